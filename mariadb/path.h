// Table names as the server gives them to engines: "./schema/table", both parts in file name
// encoding. The dictionary uses the same encoding.
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
  bool operator==(const TableName&) const = default;
};

TableName parse_path(const char* path);
TableName from_plain_names(const char* schema, const char* table);  // encodes both
std::string schema_of_folder(const char* path);                     // "./schema/" -> "schema"

}  // namespace strata::glue
