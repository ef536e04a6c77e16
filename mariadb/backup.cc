#include "mariadb/backup.h"

#include "engine/backup.h"
#include "mariadb/connection.h"
#include "mariadb/error_map.h"
#include "mariadb/settings.h"
#include "sql_acl.h"
#include "sql_parse.h"

// mysqld.h of the server declares much that we do not want.
bool is_secure_file_path(char* path);

namespace strata::glue {
namespace {

constexpr const char* kMissing =
    "STRATA: a backup that copies this server's files (mariabackup, BACKUP STAGE) does not hold "
    "the "
    "%llu tables of engine STRATA: back them up with ./strata backup, mariadb-dump "
    "--single-transaction or mydumper";
// Calls between two looks at the client's socket, which cost a system call each.
constexpr uint32_t kCallsBetweenLooks = 64;

// The one backup there may be. Its owner alone uses it; others ask whose it is.
Mutex backup_mutex{LatchRank::kServer};
THD* backup_owner STRATA_GUARDED_BY(backup_mutex) = nullptr;
std::unique_ptr<engine::Backup> backup_of_owner;
bool backup_is_cut = false;

bool is_owner(THD* thd) {
  const MutexLock lock(backup_mutex);
  return thd != nullptr && backup_owner == thd;
}

void set_owner(THD* thd) {
  const MutexLock lock(backup_mutex);
  backup_owner = thd;
}

// Not 0: reported. Whoever backs up reads all tables and writes files as the server.
int refuse_without_privileges(THD* thd) {
  return check_global_access(thd, FILE_ACL) || check_global_access(thd, RELOAD_ACL) ? 1 : 0;
}

Status begin(THD* thd, const std::string& folder) {
  std::string path = folder;
  if (!is_secure_file_path(path.data()))
    return error_invalid_argument("the folder " + folder +
                                  " lies outside of secure_file_priv; to do: name one inside");
  engine::BackupOptions options;
  options.folder = folder;
  options.since = Llsn{session_setting_backup_since(thd)};
  options.go_on = [thd, calls = 0u]() mutable -> Status {
    if (thd_killed(thd)) return error_interrupted();
    if (++calls % kCallsBetweenLooks == 0 && !thd_is_connected(thd)) return error_interrupted();
    return ok_status();
  };
  STRATA_ASSIGN_OR_RETURN(auto backup, engine::Backup::begin(kernel, std::move(options)));
  set_owner(thd);
  backup_of_owner = std::move(backup);
  backup_is_cut = false;
  return backup_of_owner->copy_pages();
}

Status act(THD* thd, const std::string& what) {
  if (what == "cancel") {
    give_up_backup_of(thd);
    return ok_status();
  }
  if (!what.empty() && what[0] == '/') {
    if (is_owner(thd))
      return error_in_use("this session makes a backup already; to do: SET strata_backup='cancel'");
    const Status begun = begin(thd, what);
    if (!begun.ok()) give_up_backup_of(thd);
    return begun;
  }
  if (what != "cut" && what != "finish")
    return error_invalid_argument(
        "strata_backup is set to an absolute folder, cut, finish or cancel");
  if (!is_owner(thd) || backup_is_cut != (what == "finish"))
    return error_invalid_argument(
        "there is no backup of this session that this comes next for; to do: SET strata_backup to "
        "a "
        "folder, then to 'cut', then to 'finish'");
  if (what == "cut") {
    backup_is_cut = true;
    const Status cut = backup_of_owner->cut();
    if (!cut.ok()) give_up_backup_of(thd);
    return cut;
  }
  const Status finished = backup_of_owner->finish();
  give_up_backup_of(thd);
  return finished;
}

}  // namespace

void prepare_for_backup() {
  (void)guarded([] {  // nobody asks for an outcome; an error is raised
    THD* const thd = current_thd;
    if (is_owner(thd)) return 0;
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

void give_up_backup_of(THD* thd) {
  if (!is_owner(thd)) return;
  std::unique_ptr<engine::Backup> last = std::move(backup_of_owner);
  set_owner(nullptr);
  last.reset();  // from here on another session may begin one
}

// The check callback of the variable, since only that one may fail.
int act_on_backup(THD* thd, st_mysql_sys_var*, void* save, st_mysql_value* value) {
  return guarded([&] {
    char buffer[FN_REFLEN];
    int length = sizeof buffer;
    const char* const given = value->val_str(value, buffer, &length);
    if (kernel == nullptr || given == nullptr) return 1;
    const std::string what(given, static_cast<size_t>(length));
    *static_cast<const char**>(save) = thd_strmake(thd, what.data(), what.size());
    if (refuse_without_privileges(thd) != 0) return 1;
    connection_of(thd);  // so that close_connection() is called
    const KillReachesReads kill_reaches(thd);
    const Status status = act(thd, what);
    if (status.ok()) return 0;
    if (is_interrupted(status)) thd->send_kill_message();
    if (!thd->is_error())
      my_printf_error(ER_UNKNOWN_ERROR, "STRATA: backup: %s", MYF(0),
                      cause_and_remedy(status).c_str());
    return 1;
  });
}

}  // namespace strata::glue
