#include "mariadb/connection.h"

#include <utility>

#include "mariadb/backup.h"
#include "mariadb/ddl.h"
#include "mariadb/error_map.h"
#include "mariadb/object_files.h"
#include "mariadb/server_tables.h"
#include "mariadb/settings.h"
#include "mariadb/statement_names.h"
#include "mariadb/table_locks.h"

namespace strata::glue {
namespace {

// The thread of object_files.h tries again.
void report_unpublished(const TableName& table, const Status& why) {
  sql_print_warning("STRATA: triggers of %s.%s are not yet those of other servers: %s",
                    table.schema.c_str(), table.table.c_str(), std::string(why.message()).c_str());
}

}  // namespace

handlerton* strata_hton = nullptr;
engine::Kernel* kernel = nullptr;
std::atomic<bool> ddl_recovery_done{false};

Connection::Connection(THD* owner) : thd(owner), session(kernel->new_session()) {
  session->set_owner(owner);
}

Connection* existing_connection(THD* thd) {
  // The server says where an engine's connections are once that one is ready. What the engine does
  // for itself before, such as making up a row for a database's folder, has none.
  if (strata_hton->slot == HA_SLOT_UNDEF) return nullptr;
  return static_cast<Connection*>(thd_get_ha_data(thd, strata_hton));
}

Connection* connection_of(THD* thd) {
  Connection* connection = existing_connection(thd);
  if (connection == nullptr) {
    connection = new Connection(thd);
    thd_set_ha_data(thd, strata_hton, connection);
  }
  return connection;
}

bool ends_transaction(THD* thd, bool all) {
  return all || !thd_test_options(thd, OPTION_NOT_AUTOCOMMIT | OPTION_BEGIN);
}

engine::Isolation isolation_of(THD* thd) {
  static_assert(ISO_READ_UNCOMMITTED == 0 && ISO_SERIALIZABLE == 3);
  return static_cast<engine::Isolation>(thd_tx_isolation(thd));
}

void register_with_server(Connection* connection) {
  THD* const thd = connection->thd;
  const ulonglong trx_id = connection->session->trx_id();
  trans_register_ha(thd, false, strata_hton, trx_id);
  if (thd_test_options(thd, OPTION_NOT_AUTOCOMMIT | OPTION_BEGIN))
    trans_register_ha(thd, true, strata_hton, trx_id);
}

void close_if_outcome_unknown(const Status& status, THD* thd) {
  if (!is_outcome_unknown(status) || thd == nullptr) return;
  sql_print_error("STRATA: commit of connection %llu: outcome unknown; the connection is closed",
                  static_cast<unsigned long long>(thd_get_thread_id(thd)));
  thd->set_killed(KILL_CONNECTION);
}

// A KILL that comes now has marked the THD before it interrupts, so it is seen here or comes after.
void renew_interrupt(THD* thd, engine::Session* session) {
  session->clear_interrupt();
  if (thd_kill_level(thd) != THD_IS_NOT_KILLED) session->interrupt();
}

KillReachesReads::KillReachesReads(THD* thd) {
  Connection* const connection = thd == nullptr ? nullptr : existing_connection(thd);
  if (connection == nullptr) return;
  renew_interrupt(thd, connection->session.get());
  scope_.emplace(connection->session->wait_interrupt());
}

std::unique_ptr<engine::Session> take_alter_hold(Connection* connection, const TableName& table) {
  const std::unique_ptr<AlterHold>& hold = connection->alter_hold;
  if (hold == nullptr || !(hold->table == table)) return nullptr;
  return std::move(std::exchange(connection->alter_hold, nullptr)->session);
}

void end_alter_hold(Connection* connection) {
  if (connection->alter_hold == nullptr) return;
  const std::unique_ptr<AlterHold> hold = std::move(connection->alter_hold);
  if (!hold->changes_triggers) {
    hold->session->rollback().IgnoreError();  // it has changed nothing
    return;
  }
  const Status published = publish_triggers(hold->session.get(), hold->table);
  if (!published.ok()) report_unpublished(hold->table, published);
}

void publish_renamed_tables(Connection* connection) {
  for (const TableName& table : std::exchange(connection->renamed, {}))
    if (const Status published = publish_renamed(table); !published.ok())
      report_unpublished(table, published);
}

int begin_statement(Connection* connection) {
  THD* const thd = connection->thd;
  if (connection->alter_hold != nullptr && connection->alter_hold->statement != thd->query_id)
    end_alter_hold(connection);
  engine::Session* const session = connection->session.get();
  if (session->must_rollback()) return HA_ERR_ROLLBACK;
  register_with_server(connection);
  if (!session->in_transaction()) {
    connection->began = last_change();
    session->begin(isolation_of(thd));
    connection->statement = session->savepoint();
    connection->ordered = connection->prepared = connection->xa_prepared = false;
    connection->prepared_here.reset();
    connection->in_binary_log = false;
  }
  session->set_refuses_unseen(session_setting_snapshot_isolation(thd));
  session->set_lock_wait_timeout_us(lock_wait_timeout_us(thd));
  renew_interrupt(thd, session);
  return 0;
}

int close_connection(handlerton*, THD* thd) {
  return guarded([&] {
    std::unique_ptr<Connection> connection(existing_connection(thd));
    if (connection == nullptr) return 0;
    // From here on kill_query() no longer finds the session.
    thd_set_ha_data(thd, strata_hton, nullptr);
    give_up_backup_of(thd);
    abandon_swap(connection.get());
    end_alter_hold(connection.get());
    unlock_names_of_statement(connection.get());
    unlock_tables_for_all(connection.get());
    connection->temporary.reset();  // its transaction is rolled back (engine E18)
    if (connection->xa_prepared && connection->session->has_changes()) {
      connection->session->detach_prepared();
      connection->writes.never_ends();
      server_tables_changed(connection.get());
      return 0;
    }
    connection->session->rollback().IgnoreError();  // at once or in the background (engine E18)
    server_tables_changed(connection.get());
    return 0;
  });
}

void kill_query(handlerton*, THD* thd, thd_kill_levels) {
  // The caller holds LOCK_thd_data, which keeps the connection alive.
  Connection* const connection = existing_connection(thd);
  if (connection == nullptr) return;
  connection->kills.fetch_add(1);
  connection->session->interrupt();
  const MutexLock lock(connection->ddl_mutex);
  if (connection->ddl_session != nullptr) connection->ddl_session->interrupt();
  if (connection->interrupted_too != nullptr) connection->interrupted_too->interrupt();
}

KillReaches::KillReaches(Connection* connection, engine::Session* session)
    : connection_(connection) {
  {
    const MutexLock lock(connection_->ddl_mutex);
    before_ = std::exchange(connection_->ddl_session, session);
  }
  if (thd_killed(connection_->thd)) session->interrupt();
}

KillReaches::~KillReaches() {
  const MutexLock lock(connection_->ddl_mutex);
  connection_->ddl_session = before_;
}

}  // namespace strata::glue
