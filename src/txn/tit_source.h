// What has become of the transactions of other nodes (PolarDB-MP §4.1, the transaction information
// table read one-sided, and the global transaction id that says where to look). Owned by txn. A
// node that is alone has none (TrxSystemOptions::others = nullptr): ids of nodes that are not there
// any more are looked up in their status pages then, as they are where a place has no owner.
//
//   MW8  read() tells the state as it is during the call, never a copy from before it: a waiter
//        that has registered relies on it (MW4), and so does a view: the mark kCommitting precedes
//        the fetch of the cts, so whoever has opened a view at or above that cts meets kCommitting
//        or what follows it. A decided outcome is for good and may be remembered.
//   MW9  kCommitted is told only once the commit is durable. kCommitting with a cts within a view,
//        or with none yet, is waited for (wait_decided()): nobody may count on an outcome that a
//        crash could undo.
//   MW21  A commit that its client may have been told of is no undecided one for another node that
//         reads the newest version or wants the row: read_told() tells it as committed, and it is
//         durable then, though its own node acknowledges commits before they are.
//   MW10  Below bound(node) everything of that node is finished, and what committed is visible to
//         every view that is open or will be (T7, MW1): no look-up is needed. The bound is what was
//         heard last; an old one is as right, and only slower. It stays right when its node
//         crashes: what a node tells is below every sequence that it may give out again afterwards.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "base/ids.h"
#include "base/status.h"
#include "base/wait_interrupt.h"
#include "txn/trx_lookup.h"

namespace strata {

// A copy of a node's table that others read without asking it (clients/fusion). Owned by the TIT
// source; told of every change by the node's transaction system. The node itself never reads it.
//   MW19  What a transaction's owner is told to set is there, for all to see, when the call
//         returns: the mark kCommitting is before the cts is fetched (MW8).
//   MW20  kCommitted is shown only once it is durable (MW9): set_ended() until then, and
//         made_durable() later.
class PublishedSlots {
 public:
  virtual ~PublishedSlots() = default;
  // One caller at a time.
  virtual void claim(uint64_t sequence, TrxState state) noexcept = 0;
  // By the transaction's owner.
  virtual void set(uint64_t sequence, TrxState state, Cts cts) noexcept = 0;
  // Committed as far as this node goes, but perhaps not durable: others ask.
  virtual void set_ended(uint64_t sequence, Cts cts) noexcept = 0;
  // By anybody, of a transaction whose slot may be another's by now.
  virtual void made_durable(uint64_t sequence, Cts cts) noexcept = 0;
};

// What a node tells of its own transactions. Thread-safe. Called by the threads of a TIT source.
class OwnTransactions {
 public:
  virtual ~OwnTransactions() = default;
  // From the table, else from a status page; kNone: there is no such one, or it changed nothing.
  // May read pages.
  virtual StatusOr<TrxLookup> own_state(uint64_t sequence) = 0;
  // The same, but waits until a commit that is under way has an outcome: never kCommitting.
  virtual StatusOr<TrxLookup> own_outcome(uint64_t sequence) = 0;
  [[nodiscard]] virtual uint64_t own_bound() const noexcept = 0;  // MW10
};

class TitSource {
 public:
  virtual ~TitSource() = default;

  // Once what recovery has found is in the node's table, before anything of it is released (K11);
  // leave() when the node ends, and nobody asks `own` any more when it returns.
  virtual Status join(NodeId node, OwnTransactions* own) = 0;
  virtual void leave(NodeId node) noexcept = 0;

  // MW8. kNotFound: nobody owns that place, its status pages say what is known. No page latch held
  // but for the asking node's own reasons: waits for no latch of that node for longer than it
  // reads. Errors: kUnavailable (try again), kCancelled.
  virtual StatusOr<TrxLookup> read(TrxId id) = 0;
  // MW21. As read(), for who goes by what is committed now, whatever a view shows.
  virtual StatusOr<TrxLookup> read_told(TrxId id) { return read(id); }
  // MW9. Blocks until the outcome is known or the interrupt of the calling thread comes
  // (WaitInterrupt::current()). kNotFound as above. No latch held.
  virtual StatusOr<TrxLookup> wait_decided(TrxId id) = 0;

  // Where this node's own slots are shown to others; null: they always ask. Of the same life as
  // this.
  [[nodiscard]] virtual PublishedSlots* published() noexcept { return nullptr; }

  // MW10. A load, for use per record.
  [[nodiscard]] uint64_t bound(NodeId node) const noexcept {
    return bounds_[node.value].load(std::memory_order_acquire);
  }

 protected:
  // Heard from the node. Bounds only grow.
  void raise_bound(NodeId node, uint64_t bound) noexcept {
    std::atomic<uint64_t>& known = bounds_[node.value];
    uint64_t before = known.load(std::memory_order_relaxed);
    while (before < bound && !known.compare_exchange_weak(before, bound, std::memory_order_acq_rel,
                                                          std::memory_order_relaxed)) {
    }
  }

 private:
  std::array<std::atomic<uint64_t>, 256> bounds_{};
};

}  // namespace strata
