#include "mariadb/backup.h"

#include "mariadb/connection.h"
#include "mariadb/error_map.h"
#include "mariadb/settings.h"

namespace strata::glue {
namespace {

constexpr const char* kMissing =
    "STRATA: a backup that copies this server's files (mariabackup, BACKUP STAGE) does not hold "
    "the "
    "%llu tables of engine STRATA: back them up with mariadb-dump --single-transaction or mydumper";

}  // namespace

void prepare_for_backup() {
  (void)guarded([] {  // nobody asks for an outcome; an error is raised
    THD* const thd = current_thd;
    ulonglong tables = 0;
    kernel->for_each_table(false, [&](const engine::TableSpec&) { ++tables; });
    if (tables == 0) return 0;
    sql_print_warning(kMissing, tables);
    if (thd == nullptr) return 0;
    if (setting_refuse_backup_stages != 0)
      my_printf_error(ER_UNKNOWN_ERROR, kMissing, MYF(0), tables);
    else
      push_warning_printf(thd, Sql_condition::WARN_LEVEL_WARN, ER_UNKNOWN_ERROR, kMissing, tables);
    return 0;
  });
}

}  // namespace strata::glue
