// What a journal row of an object (object_files.h) is called, and which files it stands for. A
// row's value is a view's file, a db.opt, or the files of a table's triggers one after the other;
// an empty one stands for "there is none".
#pragma once

#include <set>
#include <string>
#include <string_view>

#include "mariadb/path.h"
#include "mariadb/server.h"

namespace strata::glue {

constexpr std::string_view kObjects = "object/";  // all keys begin with it
constexpr std::string_view kOptionsFile = "db.opt";

// Names as files have them.
std::string view_key(const std::string& schema, const std::string& view);
std::string options_key(const std::string& schema);
std::string triggers_key(const TableName& table);
std::string triggers_prefix(const std::string& schema);
bool is_of_options(std::string_view key);
bool is_of_triggers(std::string_view key);
// Of options: its table is empty. A key that is none of these: both are.
TableName table_of(std::string_view key);

// Errors: what cannot be read is not known to be gone. Empty: there is none. Blocks.
StatusOr<std::string> read_object(const std::string& key);
// Adds the keys of all there are; triggers of other engines' tables, too.
Status list_objects(std::set<std::string>* keys);
Status list_triggers(const std::string& schema, std::set<std::string>* keys);
// Names of triggers of tables that have none, as a server leaves them that is killed in CREATE
// TRIGGER: the folder of a database that is dropped would stay for them.
Status remove_names_without_triggers(const std::string& schema);
// Makes the files what `now` says, whole files at a time; `before` is what read_object() has said.
// kNotFound: the database has no folder here. kAlreadyExists: there is something else of that name.
Status write_object(const std::string& key, const std::string& before, const std::string& now);
// Whole or not at all. Not synced.
Status replace_object_file(const std::string& path, const std::string& bytes);

}  // namespace strata::glue
