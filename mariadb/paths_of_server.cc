#include "mariadb/paths_of_server.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "mariadb/settings.h"

namespace strata::glue {

std::string data_folder() {
  const std::string folder = setting_data_dir == nullptr ? "" : setting_data_dir;
  return !folder.empty() && folder.front() == '/' ? folder : mysql_real_data_home + folder;
}

bool is_database_folder(const std::string& name) {
  for (const char* const own : {"mysql", "sys", "performance_schema", "lost+found"})
    if (name == own) return false;
  return !name.empty() && name.front() != '#' && name.front() != '.';
}

bool move_to_replaced(const std::string& from, const std::string& name) {
  const std::string replaced = data_folder() + "/replaced";
  (void)::mkdir(replaced.c_str(), 0700);
  const std::string to = replaced + "/" + name;
  if (::rename(from.c_str(), to.c_str()) == 0) return true;
  if (errno != ENOENT)
    sql_print_error(
        "STRATA: cannot move %s to %s: %s. This server goes on with its own file, not with the "
        "database's",
        from.c_str(), to.c_str(), std::strerror(errno));
  return false;
}

}  // namespace strata::glue
