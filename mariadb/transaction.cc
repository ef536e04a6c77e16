// Commit, rollback, savepoints and snapshots of a connection.
//
//   TX1  "Statement end" and "transaction end" are the same callback: ends_transaction() tells them
//        apart.
//   TX2  commit() that fails is not followed by rollback(): the engine has rolled back by then.
//   TX3  After commit_ordered() nothing may fail but the log; prepare() has reserved what it needs.
//   TX4  When a statement, or what followed a savepoint, cannot be undone, the whole transaction is
//        gone (engine E18), as after a deadlock: the statement's error says so, whatever it was
//        before, and the server rolls back too, so that a COMMIT that comes later commits nothing.
#include "mariadb/cluster.h"
#include "mariadb/connection.h"
#include "mariadb/ddl.h"
#include "mariadb/error_map.h"
#include "mariadb/server_tables.h"
#include "mariadb/settings.h"
#include "mariadb/statement_names.h"

namespace strata::glue {
namespace {

engine::Durability durability_of(const Connection& connection) {
  // On one machine, after prepare() and the binary log, the outcome is durable already; the server
  // asks for the rest by commit_checkpoint_request(). Not so:
  //   in a cluster: the binary log stays behind when another server takes over (BL2);
  //   when this transaction is not written to the binary log (SET sql_log_bin=0, a replica without
  //   log_slave_updates, binlog_ignore_db), which then knows nothing of it;
  //   with tc.log, the coordinator where there is no binary log: this version's crash recovery
  //   rolls back whatever is prepared all the same (xarecover_handlerton() does not look into the
  //   commit list).
  if (connection.in_binary_log && connection.ordered && cluster_identity() == 0)
    return engine::Durability::kNoSync;
  return setting_flush_log_at_commit == 1 ? engine::Durability::kSync : engine::Durability::kNoSync;
}

void transaction_ended(Connection* connection) {
  ++connection->generation;
  connection->writes.end();
  connection->ordered = connection->prepared = connection->xa_prepared = false;
  connection->prepared_here.reset();
  connection->in_binary_log = false;
  connection->server_tables = 0;
  server_tables_changed(connection);
  connection->statement = {};
}

// TT3. Null: it has none.
engine::Session* temporary_transaction(Connection* connection) {
  engine::Session* const session = connection->temporary.get();
  return session != nullptr && session->in_transaction() ? session : nullptr;
}

void statement_ended(Connection* connection) {
  if (engine::Session* const temporary = temporary_transaction(connection))
    connection->temporary_statement = temporary->savepoint();
  engine::Session* const session = connection->session.get();
  if (!session->in_transaction()) return;
  connection->statement = session->savepoint();
  if (isolation_of(connection->thd) <= engine::Isolation::kReadCommitted) session->close_view();
}

// TX4
void report_rolled_back(const char* what, const Status& why) {
  my_printf_error(ER_ROLLBACK_ONLY, "STRATA: %s: %.*s", MYF(0), what,
                  static_cast<int>(why.message().size()), why.message().data());
}

void roll_back_temporary(Connection* connection) {
  // At once or in the background (engine E18); nobody else comes to the rows.
  if (engine::Session* const temporary = temporary_transaction(connection))
    temporary->rollback().IgnoreError();
}

int commit_failed(Connection* connection, const Status& status) {
  roll_back_temporary(connection);
  close_if_outcome_unknown(status, connection->thd);
  if (error_class(status) == ErrorClass::abort_trx) {
    if (status.message().empty()) {
      my_error(ER_LOCK_DEADLOCK, MYF(0));
    } else {
      report_rolled_back("not committed", status);
    }
  }
  server_tables_rolled_back(connection->server_tables);
  transaction_ended(connection);
  // Whoever is killed while it commits is told so as at any other moment (1317): the server would
  // say that the commit has failed (1180), and the number of that error.
  if (server_has_no_text(status) || is_interrupted(status)) tell_client(status);
  return handler_error(status, nullptr);
}

// The statement has failed with an error that is not sent yet: the one that counts replaces it.
void give_up_transaction(THD* thd, const Status& undo_failure) {
  thd->mark_transaction_to_rollback(true);
  if (undo_failure.ok()) return;  // a deadlock, which the client has been told
  if (thd->is_error()) thd->clear_error();
  report_rolled_back("the whole transaction was rolled back, since a statement could not be undone",
                     undo_failure);
}

// Nothing of it waits for a disk, and what could fail has been done (TT3).
void commit_temporary(Connection* connection) {
  engine::Session* const temporary = temporary_transaction(connection);
  if (temporary == nullptr) return;
  const Status status = temporary->commit(engine::Durability::kNoSync);
  if (status.ok()) return;
  push_warning_printf(connection->thd, Sql_condition::WARN_LEVEL_WARN, ER_ERROR_DURING_COMMIT,
                      "STRATA: changes of temporary tables are lost: %.*s",
                      static_cast<int>(status.message().size()), status.message().data());
}

int roll_back_whole(Connection* connection) {
  roll_back_temporary(connection);
  // Only what the log says about a prepared one makes its rollback certain, also after a crash.
  const bool was_prepared = connection->prepared || connection->xa_prepared;
  const Status status = connection->session->rollback();
  server_tables_rolled_back(connection->server_tables);
  transaction_ended(connection);
  if (status.ok()) return 0;
  if (was_prepared) return handler_error(status, nullptr);
  // It is rolled back for everybody, but its rows are locked for a while.
  push_warning_printf(connection->thd, Sql_condition::WARN_LEVEL_WARN, ER_ERROR_DURING_ROLLBACK,
                      "STRATA: %.*s", static_cast<int>(status.message().size()),
                      status.message().data());
  return 0;
}

}  // namespace

Status reserve_temporary_commit(Connection* connection) {
  engine::Session* const temporary = temporary_transaction(connection);
  if (temporary == nullptr || !temporary->has_changes()) return ok_status();
  return temporary->reserve_commit();
}

int commit(handlerton*, THD* thd, bool all) {
  return guarded([&] {
    Connection* const connection = existing_connection(thd);
    if (connection == nullptr) return 0;
    int error = finish_swap(connection);
    // A copying ALTER commits what it has copied before it uses it.
    if (AlterHold* const hold = connection->alter_hold.get(); hold != nullptr) {
      if (!hold->table_is_locked || hold->statement != thd->query_id)
        end_alter_hold(connection);
      else
        hold->commit_seen = true;
    }
    if (!connection->renamed.empty()) publish_renamed_tables(connection);
    // Once this is done, and what fills a table has come into it (D8): nobody sees that empty.
    const auto unlock = [](Connection* c) {
      if (!c->fills) unlock_names_of_statement(c);
    };
    const std::unique_ptr<Connection, decltype(unlock)> unlocks(connection, unlock);
    engine::Session* const session = connection->session.get();
    if (!ends_transaction(thd, all)) {
      // Mostly there is nothing left to make (HW1 in ha_write.cc). What fails here the server does
      // not roll back as a statement any more.
      Status made = session->make_later_changes();
      if (engine::Session* const temporary = temporary_transaction(connection);
          made.ok() && temporary != nullptr)
        made = temporary->make_later_changes();
      if (!made.ok()) {
        thd->mark_transaction_to_rollback(true);
        (void)roll_back_whole(connection);  // its own failure is a warning by then
        return handler_error(made, thd);
      }
      statement_ended(connection);
      return error;
    }
    Status filled = ends_to_fill(connection);  // D8
    if (session->in_transaction()) {
      Status status = std::move(filled);
      if (status.ok() && !connection->ordered) status = reserve_temporary_commit(connection);
      if (status.ok())
        status = session->commit(durability_of(*connection));
      else
        session->rollback().IgnoreError();  // at once or in the background (engine E18)
      thd_wakeup_subsequent_commits(thd, status.ok() ? 0 : 1);
      if (!status.ok()) return commit_failed(connection, status);
    }
    commit_temporary(connection);
    transaction_ended(connection);
    return error;
  });
}

void commit_ordered(handlerton*, THD* thd, bool all) {
  // May run on the thread that leads a group commit: no errors, no waits, no thread-local state.
  Connection* const connection = existing_connection(thd);
  if (connection == nullptr || !ends_transaction(thd, all)) return;
  if (connection->session->in_transaction())
    connection->ordered = connection->session->commit_ordered().ok();
}

int rollback(handlerton*, THD* thd, bool all) {
  return guarded([&] {
    Connection* const connection = existing_connection(thd);
    if (connection == nullptr) return 0;
    abandon_swap(connection);
    end_alter_hold(connection);
    if (!connection->renamed.empty()) publish_renamed_tables(connection);
    statement_rolled_back(thd, connection);
    gives_up_filling(connection);  // D8
    engine::Session* const session = connection->session.get();
    if (!session->in_transaction()) {
      if (ends_transaction(thd, all)) {
        roll_back_temporary(connection);
        transaction_ended(connection);
      }
      return 0;
    }
    const bool whole = ends_transaction(thd, all);
    engine::Session* const temporary = temporary_transaction(connection);
    if (!whole && !session->must_rollback()) {
      // A failure is seen below.
      if (session->rollback_to(connection->statement).ok() &&
          (temporary == nullptr || temporary->rollback_to(connection->temporary_statement).ok())) {
        statement_ended(connection);
        return 0;
      }
    }
    if (!whole)
      give_up_transaction(thd, temporary == nullptr || !session->undo_failure().ok()
                                   ? session->undo_failure()
                                   : temporary->undo_failure());
    return roll_back_whole(connection);
  });
}

static_assert(std::is_trivially_copyable_v<ServerSavepoint>);

int savepoint_set(handlerton*, THD* thd, void* savepoint) {
  return guarded([&] {
    Connection* const connection = connection_of(thd);
    if (const int error = begin_statement(connection)) return error;
    ServerSavepoint now{connection->session->savepoint(), {}};
    if (engine::Session* const temporary = temporary_transaction(connection))
      now.temporary = temporary->savepoint();
    std::memcpy(savepoint, &now, sizeof now);
    return 0;
  });
}

int savepoint_rollback(handlerton*, THD* thd, void* savepoint) {
  return guarded([&] {
    Connection* const connection = connection_of(thd);
    ServerSavepoint to;
    std::memcpy(&to, savepoint, sizeof to);
    engine::Session* failed = connection->session.get();
    Status status = failed->rollback_to(to.own);
    engine::Session* const temporary = temporary_transaction(connection);
    if (status.ok() && temporary != nullptr) {
      failed = temporary;
      status = temporary->rollback_to(to.temporary);
    }
    if (!status.ok()) {
      give_up_transaction(thd, failed->undo_failure());
      return HA_ERR_ROLLBACK;
    }
    connection->statement = connection->session->savepoint();
    if (temporary != nullptr) connection->temporary_statement = temporary->savepoint();
    return 0;
  });
}

int savepoint_release(handlerton*, THD*, void*) { return 0; }

bool savepoint_rollback_can_release_mdl(handlerton*, THD* thd) {
  Connection* const connection = existing_connection(thd);
  return connection == nullptr || !connection->session->has_changes();
}

int start_consistent_snapshot(handlerton*, THD* thd) {
  return guarded([&] {
    Connection* const connection = connection_of(thd);
    if (const int error = begin_statement(connection)) return error;
    if (isolation_of(thd) < engine::Isolation::kRepeatableRead) {
      push_warning(thd, Sql_condition::WARN_LEVEL_WARN, HA_ERR_UNSUPPORTED,
                   "STRATA: WITH CONSISTENT SNAPSHOT needs at least REPEATABLE READ; ignored");
      return 0;
    }
    return handler_error(connection->session->open_view(), thd);
  });
}

}  // namespace strata::glue
