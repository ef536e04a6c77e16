#include "mariadb/table_locks.h"

#include <utility>

#include "base/clock.h"
#include "mariadb/agent.h"
#include "mariadb/ddl.h"
#include "mariadb/error_map.h"
#include "mariadb/path.h"

namespace strata::glue {
namespace {

constexpr uint64_t kRoundUs = 1'000'000, kRoundUsMost = 8'000'000;  // LKT2

// In tables of its own; those of the statement are put aside meanwhile.
bool is_looking_up(const THD* thd) {
  return (thd->state_flags & Open_tables_state::BACKUPS_AVAIL) != 0;
}

struct Tables {
  std::map<std::string, TableName> to_write, to_read;  // by table_key()
  std::vector<MDL_ticket*> tickets;                    // of those to write
};

// That this statement has opened and not locked yet.
Tables tables_of(THD* thd, const Connection& connection) {
  Tables found;
  for (const TABLE* table = thd->open_tables; table != nullptr; table = table->next) {
    if (table->file->ht != strata_hton || table->s->tmp_table != NO_TMP_TABLE) continue;
    TableName name = parse_path(table->s->normalized_path.str);
    if (name.internal()) continue;
    std::string key = table_key(name.schema, name.table);
    if (connection.locked_tables.contains(key)) continue;
    const bool writes = table->reginfo.lock_type >= TL_FIRST_WRITE;
    if (writes) found.tickets.push_back(table->mdl_ticket);
    (writes ? found.to_write : found.to_read).emplace(std::move(key), std::move(name));
  }
  // By two names: what is to be written is read, too.
  for (const auto& [key, name] : found.to_write) found.to_read.erase(key);
  return found;
}

// LKT3. Nobody of this server is at the tables, or comes.
class Alone {
 public:
  explicit Alone(THD* thd) : timeout_s_(static_cast<double>(thd->variables.lock_wait_timeout)) {}
  ~Alone() {
    for (const auto& [ticket, before] : upgraded_) ticket->downgrade_lock(before);
  }
  Alone(const Alone&) = delete;
  // False: reported.
  bool add(THD* thd, MDL_ticket* ticket) {
    const enum_mdl_type before = ticket->get_type();
    if (before == MDL_EXCLUSIVE) return true;
    upgraded_.reserve(upgraded_.size() + 1);
    if (thd->mdl_context.upgrade_shared_lock(ticket, MDL_EXCLUSIVE, timeout_s_)) return false;
    upgraded_.emplace_back(ticket, before);
    return true;
  }

 private:
  const double timeout_s_;
  std::vector<std::pair<MDL_ticket*, enum_mdl_type>> upgraded_;
};

Status lock_names(engine::Session* session, const Tables& tables) {
  {
    GivesUpMeanwhile names(tables.to_write);
    for (const auto& [key, name] : tables.to_write) {
      STRATA_RETURN_IF_ERROR(session->lock_name(name.schema, name.table));
      names.has(key);
    }
  }
  for (const auto& [key, name] : tables.to_read)
    STRATA_RETURN_IF_ERROR(session->keep_rows_still(name.schema, name.table));
  return ok_status();
}

// LKT2. `timeout_us`: of all of it.
Status lock_names_in_rounds(Connection* connection, const Tables& tables, uint64_t timeout_us) {
  engine::Session* const session = connection->table_locks.get();
  const KillReaches reaches(connection, session);
  const WaitShown shown(connection->thd, "Waiting for other servers' use of a table");
  const uint64_t deadline_us = monotonic_us() + timeout_us;
  const bool may_begin_anew = connection->locked_tables.empty();
  for (uint64_t round_us = kRoundUs;; round_us = std::min(2 * round_us, kRoundUsMost)) {
    const uint64_t now_us = monotonic_us();
    const uint64_t left_us = now_us < deadline_us ? deadline_us - now_us : 0;
    session->set_lock_wait_timeout_us(may_begin_anew ? std::min(left_us, round_us) : left_us);
    const Status status = lock_names(session, tables);
    if (!may_begin_anew || !is_lock_wait_timeout(status) || monotonic_us() >= deadline_us)
      return status;
    session->rollback().IgnoreError();  // it has changed nothing
    session->begin(engine::Isolation::kReadCommitted);
  }
}

int lock_them(THD* thd, Connection* connection, const Tables& tables) {
  Alone alone(thd);
  // Under LOCK TABLES the server has promised itself more than one lock (AG3).
  if (thd->locked_tables_mode == LTM_NONE)
    for (MDL_ticket* const ticket : tables.tickets)
      if (!alone.add(thd, ticket)) return HA_ERR_GENERIC;
  if (connection->table_locks == nullptr) {
    connection->table_locks = kernel->new_session();
    connection->table_locks->begin(engine::Isolation::kReadCommitted);
    connection->locked_by = thd->query_id;
  }
  engine::Session* const session = connection->table_locks.get();
  renew_interrupt(thd, session);
  const Status locked = lock_names_in_rounds(connection, tables, ddl_timeout_us(thd));
  if (!locked.ok()) return handler_error(locked, thd);
  for (const auto* const names : {&tables.to_write, &tables.to_read})
    for (const auto& [key, name] : *names) connection->locked_tables.insert(key);
  return 0;
}

}  // namespace

bool locks_tables(THD* thd) {
  if (is_looking_up(thd)) return false;
  if (thd->locked_tables_mode == LTM_LOCK_TABLES) return true;
  if (thd->locked_tables_mode != LTM_NONE || !thd_test_options(thd, OPTION_TABLE_LOCK))
    return false;
  const int command = thd_sql_command(thd);
  return command == SQLCOM_LOCK_TABLES ||
         (command == SQLCOM_FLUSH &&
          (thd->lex->type & (REFRESH_READ_LOCK | REFRESH_FOR_EXPORT)) != 0);
}

int lock_tables_for_all(THD* thd, Connection* connection) {
  const Tables tables = tables_of(thd, *connection);
  if (tables.to_write.empty() && tables.to_read.empty()) return 0;
  const int error = lock_them(thd, connection, tables);
  if (error != 0 && thd->locked_tables_mode == LTM_NONE) unlock_tables_for_all(connection);
  return error;
}

void unlock_tables_for_all(Connection* connection) noexcept {
  connection->locked_tables.clear();
  if (connection->table_locks == nullptr) return;
  connection->table_locks->rollback().IgnoreError();  // it has changed nothing
  connection->table_locks.reset();
}

// LKT5
void unlock_tables_that_are_gone(THD* thd, Connection* connection) noexcept {
  if (connection->table_locks == nullptr || is_looking_up(thd)) return;
  if (thd->locked_tables_mode == LTM_NONE && connection->locked_by != thd->query_id)
    unlock_tables_for_all(connection);
}

void has_dropped_table(THD* thd, Connection* connection) noexcept {
  const int command = thd_sql_command(thd);
  if (connection->table_locks == nullptr || is_looking_up(thd) ||
      (command != SQLCOM_DROP_TABLE && command != SQLCOM_DROP_SEQUENCE))
    return;
  for (const TABLE* table = thd->open_tables; table != nullptr; table = table->next)
    if (table->file->ht == strata_hton && table->s->tmp_table == NO_TMP_TABLE) return;
  unlock_tables_for_all(connection);
}

WaitShown::WaitShown(THD* thd, const char* what) : thd_(thd), before_(thd_proc_info(thd, what)) {}
WaitShown::~WaitShown() { thd_proc_info(thd_, before_); }

}  // namespace strata::glue
