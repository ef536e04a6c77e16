#include "mariadb/system_tables.h"

#include <string>
#include <vector>

#include "mariadb/connection.h"
#include "mariadb/definition_files.h"
#include "mariadb/paths_of_server.h"

namespace strata::glue {

namespace {
const char* const kExtensions[] = {".frm", ".MAI", ".MAD", ".MYI", ".MYD", ".ibd"};
}  // namespace

void replace_local_system_tables() {
  if (mysqld_server_started) return;  // INSTALL PLUGIN: they are in use
  std::vector<std::string> tables;
  kernel->for_each_table(false, [&](const engine::TableSpec& spec) {
    if (spec.schema == "mysql") tables.push_back(spec.name);
  });
  std::string names;
  for (const std::string& table : tables) {
    if (is_definition_file(mysql_real_data_home + ("mysql/" + table) + reg_ext)) continue;
    bool moved = false;
    for (const char* const extension : kExtensions) {
      const std::string file = "mysql/" + table + extension;
      moved |= move_to_replaced(mysql_real_data_home + file, "mysql." + table + extension);
    }
    if (moved) names += (names.empty() ? "" : ", ") + table;
  }
  if (!names.empty())
    sql_print_information(
        "STRATA: the database has its own tables mysql.{%s}: this folder's were moved to "
        "%s/replaced",
        names.c_str(), data_folder().c_str());
}

}  // namespace strata::glue
