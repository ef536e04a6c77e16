// Foreign keys between the server and the engine: definitions in one direction, lists and texts in
// the other. What they mean for rows and for DDL is the engine's
// (src/engine/internal/references.h).
//
//   FG1  A definition names columns as the table shows them, and tables as the dictionary does.
//   FG2  Lists and texts are made from what the dictionary says at the call: an open TABLE of a
//        parent knows nothing of new children.
//   FG3  Rows that a foreign key changes are taken apart and put together by a TABLE of our own,
//        made from the definition in the dictionary: the server may not have opened the table. No
//        expression is ever evaluated with it, so a column that others are computed from, where the
//        result is kept, is not changed by a foreign key.
//   FG4  Without memory for a text or a list the statement fails. The server takes a text or list
//        that is not there, or not whole, for all there is: a dump would lose foreign keys, and so
//        would an ALTER that copies. So what makes them throws std::bad_alloc.
#pragma once

#include "engine/table_codec.h"
#include "mariadb/connection.h"
#include "mariadb/path.h"
#include "mariadb/table_layout.h"

namespace strata::glue {

// A name in the dictionary as people write it.
std::string plain_name(Bytes encoded);

// What the kernel gets to know of the first columns of an index.
void describe_parts(const TABLE* table, const IndexLayout& index, engine::IndexSpec* out);

// The foreign keys that CREATE or ALTER asks for. `original`: the table that an ALTER copies, or
// null. False: a column is not there, or may not be used; a warning says why.
bool read_foreign_keys(THD* thd, const TableName& name, const TABLE* form,
                       const HA_CREATE_INFO* info, const engine::Table* original,
                       engine::TableSpec* spec);
// "CONSTRAINT `c` FOREIGN KEY (`a`) REFERENCES `p` (`id`)", as the server shows it in a table of
// the schema.
std::string foreign_key_text(THD* thd, const std::string& schema,
                             const engine::ForeignKeySpec& key);
// Makes the text of a foreign key error of this thread, for last_foreign_key_text().
void remember_foreign_key_error(THD* thd, const engine::ForeignKeyError& error);
void forget_foreign_key_error() noexcept;
// False: the error is not about one.
bool last_foreign_key_text(int error, String* text);
// The child's table and index of the last duplicate that a cascade met.
bool last_cascaded_duplicate(char* table, size_t table_bytes, char* index, size_t index_bytes);
// The warning that goes with error 150.
void warn_of_refused_key(THD* thd, const char* operation, const TableName& name,
                         const engine::ForeignKeyError& error, const Status& why);

// Of the child, and of the parent, in the statement's memory.
FOREIGN_KEY_INFO* foreign_key_info(THD* thd, const engine::TableSpec& child,
                                   const engine::ForeignKeySpec& key, engine::Session* session);

// KernelOptions::codecs.
engine::TableCodecs* table_codecs();

}  // namespace strata::glue
