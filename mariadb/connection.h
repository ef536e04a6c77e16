// What the engine keeps per server connection, and the plugin's few globals.
//
//   CX1  A Connection is used by the thread that runs its THD. kill_query() of another thread only
//        calls Session::interrupt(), also of the session that runs its DDL.
//   CX2  `statement` is the savepoint a failing statement returns to; it moves at every statement
//        end.
//   CX3  `generation` changes whenever a transaction ends: a cursor of an older one is
//        repositioned.
//   CX4  Between the two renames of a copying ALTER and the drop of the old table, `swap` holds
//        their kernel transaction; nothing else of the connection runs in it.
//   CX5  Where other servers change tables as well, `alter_hold` has the name of the table that a
//        statement alters, from before it looks at the first row (AG5). It becomes the transaction
//        that changes the definition, and ends with it; or it ends with its statement.
#pragma once

#include "base/latch.h"
#include "mariadb/path.h"
#include "mariadb/prepared_here.h"
#include "mariadb/query_cache.h"
#include "mariadb/server.h"

namespace strata::glue {

extern handlerton* strata_hton;
extern engine::Kernel* kernel;  // null: the plugin is not up
// Set once the server has finished its own recovery of interrupted DDL.
extern std::atomic<bool> ddl_recovery_done;

struct AlterSwap {
  std::unique_ptr<engine::Session> session;
  TableName target;           // gets the new table's data
  TableName copy;             // #sql-alter-...
  bool copy_dropped = false;  // the server gave up and dropped the copy
};

// CX5. A transaction that has the table's name exclusively.
struct AlterHold {
  std::unique_ptr<engine::Session> session;
  TableName table;
  query_id_t statement;
  bool changes_triggers = false;  // published at its end (OF4 in object_files.h)
  bool table_is_locked = true;    // external_lock() of it lasts
  bool commit_seen = false;       // meanwhile
};

struct Connection {
  explicit Connection(THD* owner);

  THD* const thd;
  std::unique_ptr<engine::Session> session;
  engine::Savepoint statement{};
  // TT3 in temporary.h; null until it is needed.
  std::unique_ptr<engine::Session> temporary;
  engine::Savepoint temporary_statement{};
  uint64_t generation = 1;
  uint32_t tables_in_use = 0;
  uint64_t began = 0;          // last_change() when the transaction began (QY1)
  CachedWrites writes;         // of the transaction
  bool ordered = false;        // commit_ordered() ran
  bool prepared = false;       // prepare() of the server's own two-phase commit ran
  bool in_binary_log = false;  // ... and the outcome is found in the binary log as well
  bool xa_prepared = false;    // user XA: outlives the connection
  std::optional<PreparedHere> prepared_here;  // XP1: likewise, with changes
  std::unique_ptr<AlterSwap> swap;
  std::unique_ptr<AlterHold> alter_hold;
  // LKT4 in table_locks.h; the names of what it has locked, by table_key(). Null: nothing.
  std::unique_ptr<engine::Session> table_locks;
  std::set<std::string> locked_tables;
  query_id_t locked_by = 0;  // the statement that has
  // RNM1, RNM4 in statement_names.h: names that a statement has until it ends. Null: none.
  std::unique_ptr<engine::Session> names;
  // D8 in ddl.h: what the statement has made and fills now. Its functions' statements do not end
  // that, so it has no number of a statement (each of those has one of its own).
  TableName half_made;
  bool fills = false;
  query_id_t names_refused = 0;    // RNM3: the last statement that did not get them
  uint32_t server_tables = 0;      // that the transaction changes (ST4 in server_tables.h)
  query_id_t took_over = 0;        // the last statement that has (ST2)
  bool changes_accounts = false;   // ST7
  uint32_t accounts_read = 0;      // ST7: tables that FLUSH PRIVILEGES is reading
  std::vector<TableName> renamed;  // tables with triggers, published at the statement's end
  std::atomic<uint64_t> kills{0};  // of statements or of all (H5 in ha_strata.h)
  int swap_error = 0;  // of a swap that drop() could not commit; the statement must fail (D6)
  Mutex ddl_mutex{LatchRank::kServer};
  engine::Session* ddl_session STRATA_GUARDED_BY(ddl_mutex) = nullptr;      // of a KillReaches
  engine::Session* interrupted_too STRATA_GUARDED_BY(ddl_mutex) = nullptr;  // `temporary`
};

// While it lives, KILL of the connection interrupts `session` too.
class KillReaches {
 public:
  KillReaches(Connection* connection, engine::Session* session);
  ~KillReaches();
  KillReaches(const KillReaches&) = delete;

 private:
  Connection* const connection_;
  engine::Session* before_ = nullptr;
};

// While it lives, KILL of the THD ends what this thread reads without a session: statistics,
// checks.
class KillReachesReads {
 public:
  explicit KillReachesReads(THD* thd);

 private:
  std::optional<InterruptScope> scope_;
};

// Makes the connection on first use. thd is the current one.
Connection* connection_of(THD* thd);
// Null when the THD never used the engine.
Connection* existing_connection(THD* thd);

// Makes the engine a participant of the statement, and of the transaction when there is one.
void register_with_server(Connection* connection);
// CX5. The transaction that has the name; null: this statement has not locked it.
std::unique_ptr<engine::Session> take_alter_hold(Connection* connection, const TableName& table);
// What is left of it when nothing has been made of it. Triggers are published.
void end_alter_hold(Connection* connection);
// Registers and makes sure that a kernel transaction is active. Error: the transaction must roll
// back first.
int begin_statement(Connection* connection);
// Of `renamed`, at the end of the statement. What fails is tried again in the background.
void publish_renamed_tables(Connection* connection);
// What is left of a KILL QUERY of an earlier statement goes.
void renew_interrupt(THD* thd, engine::Session* session);
// For the statement that is about to begin; lock_wait_timeout.cc. On the session's own thread, with
// no mutex held.
uint64_t lock_wait_timeout_us(THD* thd);
// Commit or rollback of `all`/statement ends the whole transaction.
bool ends_transaction(THD* thd, bool all);
engine::Isolation isolation_of(THD* thd);

// After a commit that failed: if nobody knows its outcome, neither success nor failure may be
// reported, and the client must find out by itself. Ends the connection then. `thd` may be null.
void close_if_outcome_unknown(const Status& status, THD* thd);

// TT3 in temporary.h: what could fail of the commit. Before the connection's own is decided.
Status reserve_temporary_commit(Connection* connection);
// What the server keeps for a savepoint.
struct ServerSavepoint {
  engine::Savepoint own;
  engine::Savepoint temporary;  // of nothing, if that transaction begins later
};

// hton callbacks: transaction.cc, xa.cc.
int close_connection(handlerton*, THD* thd);
void kill_query(handlerton*, THD* thd, thd_kill_levels level);
int commit(handlerton*, THD* thd, bool all);
int rollback(handlerton*, THD* thd, bool all);
void commit_ordered(handlerton*, THD* thd, bool all);
int savepoint_set(handlerton*, THD* thd, void* savepoint);
int savepoint_rollback(handlerton*, THD* thd, void* savepoint);
int savepoint_release(handlerton*, THD* thd, void* savepoint);
bool savepoint_rollback_can_release_mdl(handlerton*, THD* thd);
int start_consistent_snapshot(handlerton*, THD* thd);
int prepare(handlerton*, THD* thd, bool all);
int recover(handlerton*, XID* list, uint length);
int commit_by_xid(handlerton*, XID* xid);
int rollback_by_xid(handlerton*, XID* xid);
bool flush_logs(handlerton*);
void commit_checkpoint_request(void* cookie);

}  // namespace strata::glue
