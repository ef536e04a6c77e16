// Table names as the server gives them to engines: "./schema/table", both parts in file name
// encoding. The dictionary uses the same encoding.
//
//   PN1  Where several servers write, an internal name ends with the place of the server whose it
//        is: two of them may choose the same one, and nobody collects what another's statement is
//        still at (is_ours()). Files have the name without it.
#pragma once

#include "mariadb/server.h"

namespace strata::glue {

struct TableName {
  std::string schema;
  std::string table;
  // Intermediate tables of ALTER and the like: hidden from discovery, collected after a crash.
  [[nodiscard]] bool internal() const { return table.compare(0, 4, "#sql") == 0; }
  [[nodiscard]] bool is_alter_copy() const { return table.compare(0, 11, "#sql-alter-") == 0; }
  [[nodiscard]] bool is_alter_backup() const { return table.compare(0, 12, "#sql-backup-") == 0; }
  // PN1. Not another server's.
  [[nodiscard]] bool is_ours() const;
  // What the server calls its file, without an extension.
  [[nodiscard]] std::string file_name() const;
  bool operator==(const TableName&) const = default;
};

TableName parse_path(const char* path);
TableName from_plain_names(const char* schema, const char* table);  // encodes both
std::string schema_of_folder(const char* path);                     // "./schema/" -> "schema"

}  // namespace strata::glue
