// The file <table>.frm in the folder of its database: for the server a table that is there, for us
// a copy of what the dictionary says.
//
// The server finds tables of ours by discovery, but several statements only look for that file:
// DROP SEQUENCE, CREATE OR REPLACE VIEW and DROP under LOCK TABLES take a table without one for
// something unknown, drop what they should refuse or wait for themselves for ever
// (docs/adr/2026-11-25-definition-files.md).
//
//   DF1  The dictionary is the truth. The file is written after the change is durable, from what
//        the dictionary says; open() compares versions, and a file that is behind costs one
//        rediscovery.
//   DF2  A file that cannot be written fails no statement that has changed the dictionary: the
//        file goes, so that none is there that lies, and it is written at the next discovery. Only
//        LOCK TABLES ... WRITE needs it at once and is refused without (a DROP under it would
//        hang).
//   DF3  At every start, once the server has finished its recovery, the files become what the
//        dictionary says, whatever a crash, another server or a person has left. Where several
//        servers change tables they go instead, and come again with the first use (AG1).
//   DF4  Whole or not at all: a file is written under another name and renamed. What a kill leaves
//        of it begins with #sql and is removed at the next start (DF3) or with the database.
//   DF5  Where a table has not been used, and several servers write, its file is missing, and there
//        are statements for which nothing is discovered: it is written when CREATE OR REPLACE VIEW
//        asks whether there is such a table, and of sequences for SHOW FULL TABLES; under a
//        metadata lock, as everything that is remembered (AG1).
#pragma once

#include "mariadb/path.h"
#include "mariadb/server.h"

namespace strata::glue {

// False: the file system's names are too short for <table>.frm.
bool fits_a_file_name(const TableName& name);

// Makes the file say what `spec` says; true: it does. False: reported, and the file is not there.
bool write_definition_file(const engine::TableSpec& spec);

// Makes the file say what the dictionary says of this name: nothing, and it goes when it is ours.
void restore_definition_file(const TableName& name);

// Another server changes this table: the file goes, if it is ours, until the table is used here
// again. The caller has the exclusive metadata lock of the name.
void remove_definition_file(const TableName& name);

// All of ours in the folder of a database.
void remove_definition_files_of(const std::string& schema);

// A file of that name is there that says ENGINE=STRATA.
bool has_definition_file(const TableName& name);
// The file at `path` says ENGINE=STRATA.
bool is_definition_file(const std::string& path);

// DF3. Blocks; nobody else may use tables meanwhile.
void restore_all_definition_files();

}  // namespace strata::glue
