// Row locks that several nodes share: who waits for which row in which order, shared and range
// locks, and the search for waits that would never end (PolarDB-MP §4.3, row locks). Owned by lock.
// RowWaits keeps all of it itself for a node that is alone; with an authority it asks that one
// (RowWaits(authority)). The exclusive lock of whoever has written to a row stays in the record on
// every node; locks of rows not written to are not taken then (the row is marked at once), because
// another node could not see them.
//
// The rules are those of RowWaits (L1-L9), over the transactions of all nodes: a TrxId names its
// node. What is new is that the parties do not share a memory.
//
//   MW4  No lost wake-up: wait() registers the waiter where the holder's node will look, and calls
//        `still_held` then. `still_held` asks the holder's node for the outcome as it is now, never
//        a copy from before. The holder's node publishes the outcome and then calls holder_ended().
//   MW5  A shared lock or a range counts from the return of add_*() on, on every node: whoever
//        marks a record in there later finds index_has_shared() true and waits. The locker reads
//        the row after that, so one of the two sees the other (the page's way from node to node
//        orders them).
//   MW6  What returns no Status cannot fail for its caller. A node that does not get through goes
//        on asking until it does or has lost its right to answer (AnswerGuard); then nothing it
//        says matters any more. So it blocks for as long as such a right lasts, at most.
//   MW7  A node that is gone (node_gone()) holds no shared lock or range and waits for nothing. Its
//        exclusive locks stay in the records until whoever adopts its transactions has ended each
//        and said so with holder_ended().
//
// Thread-safe. No page latch may be held by a caller of wait(), wait_for_shared() and add_*(); the
// rest is called with leaves latched, per record, and must be cheap where nobody waits or holds
// anything: has_waiters(), index_has_shared() and settled() ask what this node knows already and
// make no call to another one then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "base/ids.h"
#include "base/status.h"
#include "base/wait_interrupt.h"
#include "lock/key_range.h"
#include "lock/row_id.h"
#include "lock/row_wait.h"

namespace strata {

class LockAuthority {
 public:
  virtual ~LockAuthority() = default;

  // As the functions of RowWaits with the same names.
  virtual Status wait(TrxId waiter, TrxId holder, RowId row, uint64_t timeout_us,
                      WaitInterrupt* interrupt, const std::function<bool()>& still_held) = 0;
  [[nodiscard]] virtual bool has_waiters(RowId row) const noexcept = 0;
  virtual void settled(TrxId waiter, RowId row, TrxId holder) = 0;
  // Of a transaction of this node, or of one that it has adopted.
  virtual void holder_ended(TrxId holder) = 0;

  virtual void add_shared(TrxId holder, RowId row) = 0;
  [[nodiscard]] virtual bool index_has_shared(IndexId index) const noexcept = 0;
  [[nodiscard]] virtual TrxId shared_conflict(TrxId self, RowId row) const = 0;
  [[nodiscard]] virtual bool holds_shared(TrxId holder, RowId row) const = 0;
  virtual Status wait_for_shared(TrxId waiter, RowId row, uint64_t timeout_us,
                                 WaitInterrupt* interrupt) = 0;
  virtual void drop_shared(TrxId holder, RowId row) = 0;
  virtual void release_shared(TrxId holder) = 0;

  virtual bool add_range(TrxId holder, IndexId index, const KeyRange& range) = 0;
  virtual void settle_range(TrxId holder, IndexId index, const KeyRange& range) = 0;
  [[nodiscard]] virtual bool range_settled(TrxId holder, IndexId index,
                                           const KeyRange& range) const = 0;
  [[nodiscard]] virtual bool protects(TrxId holder, RowId row) const = 0;
  virtual void drop_range_key(TrxId holder, RowId row) = 0;

  // MW7. Told once, by whoever has fenced the node.
  virtual void node_gone(NodeId node) = 0;
  // L16. A deadlock in which a transaction of this node waits is told by `call`, with no mutex
  // held; `add_owners` comes before, while those who wait still do. Null: not any more; blocks
  // until neither runs. An authority may tell nobody.
  virtual void on_deadlock(std::function<void(DeadlockReport* report)> add_owners,
                           std::function<void(const DeadlockReport& report)> call) = 0;
  // For people: one line per waiter of any node, at most `limit`. May call other nodes.
  [[nodiscard]] virtual std::string describe(size_t limit) const = 0;
};

}  // namespace strata
