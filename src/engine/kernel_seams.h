// Parts of the kernel that a deployment may replace (the local buffer pool and its seams). Null
// = the local implementation. All pointers outlive the kernel. Used by the multi-node tests today,
// by the disaggregated profiles later.
// With a page source, a log sink and a control store from elsewhere the data folder holds nothing
// that is needed again: a kernel opened in an empty one goes on with the same database.
#pragma once

#include <functional>
#include <memory>

#include "dict/schema_changes.h"
#include "engine/kernel.h"
#include "lock/lock_authority.h"
#include "space/page_reuse.h"
#include "txn/tit_source.h"
#include "txn/view_horizon.h"
#include "wal/control_file.h"

namespace strata::engine {

// Whether this node may still answer for the database (K13). Asked after a read, before its result
// is used. Thread-safe; cheap.
class AnswerGuard {
 public:
  virtual ~AnswerGuard() = default;
  [[nodiscard]] virtual bool may_answer() const noexcept = 0;
  // What is told instead of an answer: fenced, or lease_lost.
  [[nodiscard]] virtual Status why_not() const {
    return error_lease_lost(
        "this node cannot tell whether it is still the database's writer: it has lost its lease in "
        "the registry, and answers again when it has another");
  }
};

// The right to change the rows of a table is a name of its own beside the table's. Its holders may
// change rows; the name is shared by whoever keeps them still (Session::keep_rows_still()).
std::string right_to_change(const std::string& table_key);
// The other way; empty: `name` is no such right.
Bytes table_of_right(Bytes name);

// What stands above the kernel and remembers tables by itself (a server's definitions and open
// tables), where several nodes change them. Thread-safe.
class TableUsers {
 public:
  virtual ~TableUsers() = default;
  // MW15. Another node wants to change the table of this name (table_key()). Sees to it that nobody
  // above uses the table or begins to, calls `forget`, once at most, with the time that is left,
  // and if that is OK forgets the table as well. In a thread that may block. kDeadlineExceeded: it
  // is in use, and stays as it was; what `forget` says.
  // Of a right to change rows: sees to it that nobody above changes rows of the table while that
  // is called; who does so later asks for the right anew (Session::may_change()).
  using Forget = std::function<Status(uint64_t timeout_us)>;
  virtual Status give_up(Bytes name, uint64_t timeout_us, const Forget& forget) = 0;
  // Around the wait of a session for the exclusive lock, in its thread. Whoever keeps everybody
  // above off the table already, and waits, keeps nothing of it (MW18): its own table may be stale
  // when it has the lock.
  virtual void begins_to_wait(Bytes name) noexcept = 0;
  virtual void has_waited(Bytes name) noexcept = 0;
};

struct KernelSeams {
  PageSource* page_source = nullptr;
  PageLock* page_lock = nullptr;
  TimestampSource* timestamps = nullptr;
  bool attach =
      false;  // the database exists already: this node adds its own log and undo space to it
  // Of a log that begins now: its llsns are larger. For a place on which an attempt to begin may
  // have failed half-way, and left pages behind.
  uint64_t first_llsn_bias = 0;
  LogSink* log_sink = nullptr;      // a stream (LogSink::is_stream)
  ControlStore* control = nullptr;  // goes with log_sink: both or none
  const AnswerGuard* answers = nullptr;
  ViewHorizon* horizon = nullptr;   // of all nodes
  LockAuthority* locks = nullptr;   // of all nodes
  TitSource* others = nullptr;      // what transactions of other nodes have come to
  SchemaChanges* schema = nullptr;  // locks on tables between nodes
  TableUsers* above = nullptr;      // goes with schema
  PageReuse* page_reuse = nullptr;  // whether other nodes may still know a page; with page_lock
  bool recovers_only = false;       // recover_only.h
};

StatusOr<std::unique_ptr<Kernel>> open_with_seams(const KernelOptions& options,
                                                  const KernelSeams& seams);

}  // namespace strata::engine
