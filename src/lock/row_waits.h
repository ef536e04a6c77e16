// Row locks of one node, but for those that stand in the records: the exclusive lock of whoever has
// written to a row is the record's trx_id while that transaction is active. This library keeps the
// waiters, the exclusive locks of those who have not written yet, the shared locks and the ranges.
// Thread-safe. No page latch may be held by a caller of wait().
//
//   L1  FIFO per row: a newcomer queues behind waiters of the same row; only the head is woken when
//       the holder ends, and it retries; the others then wait for whatever transaction holds the
//       row next.
//   L2  A wait ends by: grant (retry), deadlock (the waiter is the victim: kAborted), timeout
//       (kDeadlineExceeded), interrupt (kCancelled). The waiter leaves the queue in every case.
//   L3  Deadlock detection runs when a wait begins, over waiter -> holders and waiter -> earlier
//       waiters. A cycle that forms without the newcomer in it (its queue's holder changed) loses
//       one waiter too.
//   L4  No lost wake-up: holder_ended(t) after t's outcome is published; wait() re-checks
//       `still_held` under the queue mutex after it has registered. `still_held` may call
//       shared_conflict() and exclusive_holder(), and nothing else of this class.
//   L5  Who was granted has the row's turn until it calls settled(), waits again (then it is first
//       in line again) or ends; meanwhile has_waiters() is true, so it must not ask that itself. A
//       waiter that holds a shared lock on the row goes first: nobody ahead of it could be served.
//   L6  drop_shared() wakes those who wait for that lock only; the dropper keeps a turn it has on
//       the row.
//   L7  A range lock is a shared lock on every key in it, whether there is a record or not: a
//       writer asks for both in the same way (wait_for_shared), after it has marked the record. A
//       locker registers the range and reads it then, so one of the two sees the other. What was
//       read is settled; only then does a mark inside tell that its writer waits for the locker.
//   L8  What is registered and not settled may be taken back: a locker that must wait for the owner
//       of a record does not keep a range over that record meanwhile.
//   L9  Without range locks nobody pays: they count in the same per-index counter as shared locks.
//   L10  A row has one exclusive owner: the undecided transaction in its record, or the one that
//        add_exclusive() has entered. It is entered with the leaf latched (shared will do) by who
//        finds the record live, decided and not entered; who is about to write to a record latches
//        the leaf exclusively and looks for an entry of another first. Whoever has got such a lock
//        then asks for shared holders, as a writer does.
//   L11  An entry is kept until the transaction's outcome is published (release_exclusive(), before
//        holder_ended()). It may go earlier when the record carries the transaction's own change
//        and no rollback to a savepoint can take that away without the lock (forget_changed()).
//   L12  A run is one entry for all rows of an index between two keys, both included. It is entered
//        with their leaf latched exclusively, by who has found every record there live or deleted,
//        decided or its own, and not entered for another; runs do not overlap. A row that another
//        transaction inserts into it later is not held: its newest version is younger than the run,
//        and one that is held nobody else can write. What a scan did not get to is given back
//        (trim_run()). Nobody holds a deleted record: a run keeps nobody from inserting its key
//        again.
//   L14  Whose owner the listener is told of does not end meanwhile: whoever ends, or parts with
//        its owner, takes the owner away first and then calls holder_ended() or let_reports_end(),
//        which wait for reports that may have seen it.
//   L16  A deadlock is reported as it was when it was found: who waited for whom, at which row, and
//        with which statement. The report is made under the queue mutex, and told without it. One
//        that the authority has found comes from there; each node knows the statements of its own.
//   L15  A waiter is reported with its holders and with everybody before it in its queue, when it
//        joins; those behind it with it, and with a new holder that it finds: each of them will
//        hold the row before they do, without another call of wait() of theirs.
//   L20  Rows that a locking scan has passed are held shared as runs: every row with a live,
//        decided record between two keys of an index, also one that comes later, but no key without
//        a record. A run is entered with the leaf latched exclusively, over records that nobody
//        else owns; runs of several transactions may overlap. A writer that replaces a live record
//        of somebody else's asks for them, as for the locks of single rows; who writes where there
//        is none, or to its own record, does not (`is_row`).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/ids.h"
#include "base/status.h"
#include "base/wait_interrupt.h"
#include "lock/held_rows.h"
#include "lock/key_range.h"
#include "lock/lock_authority.h"
#include "lock/row_id.h"
#include "lock/row_wait.h"
#include "lock/wait_listener.h"

namespace strata {

namespace lock_internal {
// A row has two queues: one for the row, and one in which its owner waits for the holders of shared
// locks: in the row's queue it would stand behind those who wait for it.
enum class QueueKind : uint8_t { kRow, kSharedHolders };
}  // namespace lock_internal

struct WaitCounters {
  std::atomic<uint64_t> waits{0}, wait_us{0}, deadlocks{0}, timeouts{0};
};

class RowWaits {
 public:
  // With an authority, which outlives it, waits, shared locks and ranges are those of all nodes,
  // and no rows are held that were not written to: add_run() holds nothing, and add_exclusive() is
  // not called. The listener hears when a thread of this node begins and ends to wait, and of no
  // edges.
  explicit RowWaits(LockAuthority* authority = nullptr);
  ~RowWaits();

  // Before the first wait. `owner_of` gives a transaction's owner, or nullptr; it may be called
  // under the queue mutex.
  void set_listener(WaitListener* listener, std::function<void*(TrxId)> owner_of);

  // L16. Before the first wait. Called by the thread that has found it, or hears of it, with no
  // mutex held. Null: no more; blocks until one that is being told has been. Nobody waits then.
  void on_deadlock(std::function<void(const DeadlockReport&)> call);
  // Runs `body` while no owner that `owner_of` gives can end (L14). It may call describe() of the
  // listener, and may not wait.
  void with_owners(const std::function<void(WaitListener* listener)>& body) const;
  // At most `limit`. With an authority: this node's waiters, and whom each began to wait for.
  [[nodiscard]] std::vector<RowWait> list_waits(size_t limit) const;

  // Blocks until it is `waiter`'s turn to try the row again. `still_held` says (cheaply) whether
  // `holder` is still undecided. timeout_us 0 = fail at once.
  Status wait(TrxId waiter, TrxId holder, RowId row, uint64_t timeout_us, WaitInterrupt* interrupt,
              const std::function<bool()>& still_held);
  // A newcomer must queue if somebody waits for this row already. Cheap when nobody waits at all.
  [[nodiscard]] bool has_waiters(RowId row) const noexcept;
  // The waiter that was woken got the row (or gave up): the rest of the queue now waits for
  // `holder` (zero: nobody holds it, wake the next head; so does a shared locker that got its lock,
  // for the next may be one too). A holder other than `waiter` counts as zero: the next head looks
  // for itself.
  void settled(TrxId waiter, RowId row, TrxId holder);
  // The transaction has ended (outcome published) or rolled back to a savepoint: wake heads waiting
  // for it.
  void holder_ended(TrxId holder);
  // L14, for a transaction that parts with its owner and does not end.
  void let_reports_end() noexcept;

  // --- exclusive locks of rows not written to; L10, L11 ---
  // Zero: entered. Otherwise who was before, perhaps `holder` itself. The leaf is latched.
  TrxId add_exclusive(HeldRows* held, TrxId holder, RowId row, Cts written = Cts{});
  // Zero: nobody. Cheap while there are no such locks in the index. `written`: when the newest
  // version of the row was committed, if that is known; L12.
  [[nodiscard]] TrxId exclusive_holder(RowId row, Cts written = Cts{}) const noexcept;
  // Gives one back and wakes who waits for it.
  void drop_exclusive(HeldRows* held, TrxId holder, RowId row);
  // The transaction has written to the row: drops the lock if it was the last one taken, since the
  // last savepoint. Wakes nobody: the row still has the same owner.
  void forget_changed(HeldRows* held, RowId row);
  void release_exclusive(HeldRows* held);  // all of them, and shared runs, at transaction end

  // --- runs of them; L12 ---
  struct Run {
    lock_internal::HeldRun* taken = nullptr;  // until the transaction ends
    bool held = false;                        // also when all of it was held before
  };
  // `now`: no version that has been committed is younger.
  Run add_run(HeldRows* held, TrxId holder, IndexId index, Bytes low, Bytes high, Cts now);
  // L20
  Run add_shared_run(HeldRows* held, TrxId holder, IndexId index, Bytes low, Bytes high);
  [[nodiscard]] bool shared_run_holds(TrxId holder, RowId row) const;
  // The rest is for both. As far as `high`, from its last row on, without a record between that was
  // not looked at. False: not done.
  bool extend_run(lock_internal::HeldRun* run, Bytes high, Cts now);
  // Gives the rows behind `high` back, or all of them, and wakes who waits for them.
  void trim_run(lock_internal::HeldRun* run, Bytes high);
  void drop_run(HeldRows* held, lock_internal::HeldRun* run);

  // --- shared locks (LOCK IN SHARE MODE) ---
  // Registers; the caller then looks at the row: if an active transaction owns it, it must drop the
  // shared lock or wait. Writers mark the row first and call shared_conflict() after.
  void add_shared(TrxId holder, RowId row);
  [[nodiscard]] bool index_has_shared(IndexId index) const noexcept;
  // A transaction other than `self` that holds a shared lock on the row or a range around it, or
  // zero.
  // `is_row`: there is a live record that `self` has not written (L20).
  TrxId shared_conflict(TrxId self, RowId row, bool is_row = true) const;
  [[nodiscard]] bool holds_shared(TrxId holder, RowId row) const;
  // For a writer that has marked the row: blocks until no other transaction holds a shared lock on
  // it. The deadlock detection knows all of them as holders. Errors as wait().
  Status wait_for_shared(TrxId waiter, RowId row, uint64_t timeout_us, WaitInterrupt* interrupt,
                         bool is_row = true);
  // Takes one back that was registered in vain (the row has an owner), before waiting for that.
  void drop_shared(TrxId holder, RowId row);
  // All of them, ranges too, at transaction end (before holder_ended).
  void release_shared(TrxId holder);

  // --- range locks (SERIALIZABLE); L7, L8 ---
  // False: all of it was registered before.
  bool add_range(TrxId holder, IndexId index, const KeyRange& range);
  void settle_range(TrxId holder, IndexId index, const KeyRange& range);
  [[nodiscard]] bool range_settled(TrxId holder, IndexId index, const KeyRange& range) const;
  // Whether the holder has read the row under a lock on it or in a settled range: then an undecided
  // owner of the row is one that waits for the holder.
  [[nodiscard]] bool protects(TrxId holder, RowId row) const;
  void drop_range_key(TrxId holder, RowId row);  // registered in vain (the row has an owner)

  [[nodiscard]] WaitCounters& counters() noexcept { return counters_; }
  // For SHOW ENGINE STATUS: one line per waiter, at most `limit`.
  std::string describe(size_t limit) const;

 private:
  template <typename Wait>
  Status with_authority(TrxId waiter, TrxId holder, RowId row, uint64_t timeout_us,
                        const Wait& wait);
  Status wait_in(lock_internal::QueueKind kind, TrxId waiter, TrxId holder, RowId row, bool is_row,
                 uint64_t timeout_us, WaitInterrupt* interrupt,
                 const std::function<bool()>& still_held);
  void settle_in(lock_internal::QueueKind kind, TrxId waiter, RowId row, TrxId holder);

  struct Impl;
  LockAuthority* const authority_;  // nullptr: this node is alone
  std::unique_ptr<Impl> impl_;
  WaitCounters counters_;
};

}  // namespace strata
