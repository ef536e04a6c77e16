// How long a statement waits for a row lock.
//
//   LT1  strata_lock_wait_timeout, if the session has another value than the server;
//        else innodb_lock_wait_timeout, if the session has another value of that than the server:
//        tools and frameworks that know InnoDB only set it for themselves; else
//        innodb_lock_wait_timeout, if nobody has changed strata_lock_wait_timeout for the server;
//        else strata_lock_wait_timeout.
//   LT2  NOWAIT and WAIT n are, in the server, values of innodb_lock_wait_timeout and of its own
//        lock_wait_timeout for one statement. They count if they are shorter than LT1.
//   LT3  A server without InnoDB has no innodb_lock_wait_timeout: the shorter one of the other two.
#include "mariadb/connection.h"
#include "mariadb/settings.h"
// After the other headers of the server.
#include "sys_vars_shared.h"

namespace strata::glue {
namespace {

// Null if there is none. A variable of a plugin that can be unloaded could vanish under us: only
// InnoDB as it is built into the server counts.
const sys_var* find_innodb_timeout(THD* thd) {
  constexpr std::string_view kName = "innodb_lock_wait_timeout";
  const LEX_CSTRING engine{STRING_WITH_LEN("InnoDB")};
  const plugin_ref innodb = my_plugin_lock_by_name(thd, &engine, MYSQL_STORAGE_ENGINE_PLUGIN);
  if (innodb == nullptr || plugin_dlib(innodb) != nullptr) return nullptr;
  mysql_prlock_rdlock(&LOCK_system_variables_hash);
  sys_var* const found = intern_find_sys_var(kName.data(), kName.size());
  mysql_prlock_unlock(&LOCK_system_variables_hash);
  return found != nullptr && found->show_type() == SHOW_UINT ? found : nullptr;
}

const sys_var* innodb_timeout(THD* thd) {
  if (!mysqld_server_started) return nullptr;  // InnoDB may come later
  static const sys_var* const found = find_innodb_timeout(thd);
  return found;
}

uint64_t value_of(const sys_var* variable, THD* thd, enum_var_type type) {
  unsigned int value = 0;
  std::memcpy(&value, variable->value_ptr(thd, type, &null_clex_str), sizeof value);
  return value;
}

// LT1
uint64_t session_timeout(THD* thd, const sys_var* innodb, uint64_t own, uint64_t innodbs) {
  if (own == innodbs) return own;
  mysql_mutex_lock(&LOCK_global_system_variables);
  const uint64_t own_global = session_setting_lock_wait_timeout(nullptr);
  const uint64_t innodbs_global = value_of(innodb, thd, OPT_GLOBAL);
  mysql_mutex_unlock(&LOCK_global_system_variables);
  if (own != own_global) return own;
  return innodbs != innodbs_global || own_global == default_lock_wait_timeout ? innodbs : own;
}

}  // namespace

uint64_t lock_wait_timeout_us(THD* thd) {
  const uint64_t own = session_setting_lock_wait_timeout(thd);
  const uint64_t servers = thd->variables.lock_wait_timeout;
  const sys_var* const innodb = innodb_timeout(thd);
  if (innodb == nullptr) return std::min(own, servers) * 1000000;
  const uint64_t innodbs = value_of(innodb, thd, OPT_SESSION);
  const uint64_t of_session = session_timeout(thd, innodb, own, innodbs);
  return (innodbs == servers ? std::min(of_session, innodbs) : of_session) * 1000000;
}

}  // namespace strata::glue
