// Transactions of one node: ids, states, commit timestamps, read views. Thread-safe; a Trx is used
// by one thread at a time (its owner), other threads look at it through lookup().
//
// State of a transaction as others see it (TIT slot, else status page):
//
//     begin()        ensure_id()            commit_order()            durable + publish()
//   none ------> (no id: read only) --> kActive ----------> kCommitting ------------> kCommitted
//                                         |  \ prepare()                                  ^
//                                         |   `-> kPrepared ---------------> (commit_order)
//                                         `--- rollback ends ---> kAborted
//   begin_rollback(): kPrepared -> kActive (T10)
//
//   T1  (K12) Commit: cts and the log position of the commit group are taken in one step (commit
//       mutex), then the group is made durable, then the slot is published, then waiters are woken.
//       No I/O under the mutex. With one writer cts order = log order.
//   T2  A reader that meets kCommitting with cts <= view waits until the commit group is durable
//       (Log::persist of its Lsn), never for the committing thread.
//   T14  Where the oracle is far away (TimestampSource::is_remote) its cts is fetched in
//        reserve_commit(), with no latch or mutex held, after the slot says kCommitting: whoever
//        opens a view at or above that cts finds the mark. If the commit does not come to its order
//        the slot says again what it said before. Who meets the mark without a cts, or with one in
//        its view and no commit group in the log yet, waits for what comes of it, without latches
//        and at most its lock wait timeout.
//   T3  TIT slot = sequence mod size, busy slots (active, prepared, committing) are skipped, so
//       sequences have gaps. A slot that holds another version means: look in the status pages.
//   T4  Status pages: entry of 16 bytes per sequence {state|cts u64, first_undo u64}, redo-logged,
//       in the node's undo space (PageType::kStatus) behind a two-level directory. Written with the
//       first undo record (kActive), in the prepare group, in the commit group, and when rolled
//       back.
//   T5  Sequences never regress: after a restart they go on behind the status pages.
//   T6  The oracle issues cts only below a ceiling that is durable in the system page.
//   T7  Everything with sequence < all_visible_below(node) is finished; the committed ones are
//       visible to every view; and no open view is older than the end of one that rolled back (its
//       reader may hold a copy of a record from before). So no look-up is needed. Without a view,
//       judge a version only while its leaf is latched. The bound is kept in a header slot of the
//       undo space now and then; recovery starts there.
//   T8  (K13) A view is registered before its cts is read, so the minimum view never overtakes it.
//   T9  Purging twice is harmless: recovery may hand out again what was purged before the crash.
//   T10  A prepared transaction becomes active again before its rollback changes anything: a crash
//        in the middle must not leave half of it waiting for a decision.
//   T13  A transaction whose undo stopped half-way can only be rolled back: it is neither prepared
//        nor committed, whoever asks and whenever.
//   T15  What another node has prepared is known by its pages alone: it may be away, or somebody
//        may have recovered it in another life, and nobody holds a name or a slot for it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "lock/row_waits.h"
#include "minitxn/mtr.h"
#include "page/record.h"
#include "space/space_manager.h"
#include "txn/timestamp_source.h"
#include "txn/tit_source.h"
#include "txn/trx_lookup.h"
#include "txn/view_horizon.h"
#include "undo/undo_log.h"

namespace strata {

// The list of spaces whose files are to be deleted (PageType::kSystem; made by the engine).
constexpr PageId kPendingDeletePage{kSystemSpace, 2};
// Header slots of a node's undo space (page numbers and sequences).
constexpr HeaderSlot kStatusRootSlot = static_cast<HeaderSlot>(2);
constexpr HeaderSlot kVisibleBelowSlot = static_cast<HeaderSlot>(3);
// Stands for the unknown, very old cts of a transaction below the bound (T7). Real ones are larger.
constexpr Cts kOldestCts{1};

// What a reader sees: versions with cts <= snapshot, and its own.
struct ReadView {
  Cts snapshot;
  TrxId own;          // kept up to date by the Trx that owns the view
  uint32_t slot = 0;  // registration
  bool open = false;
  uint64_t wait_us_max = 50000000;  // T14
};

// Where a transaction has found a row last: what it does to that row next begins there.
struct LastLeaf {
  IndexId index_id;
  PageId leaf;
};

struct Trx {
  TrxId id;  // zero until the first change
  TrxState state = TrxState::kNone;
  bool started = false;  // between begin() and commit/rollback
  ReadView view;
  UndoSpace::Writer undo;
  Cts cts;
  Lsn commit_end;      // end of the commit group
  LastLeaf last_leaf;  // a guess
  uint32_t next_overflow_ordinal = 1;
  bool must_rollback = false;   // a deadlock victim, or T13: only rollback is allowed
  Status undo_failure;          // T13: what stopped the undoing
  bool refuses_unseen = false;  // RW22: neither changes nor locks what its view does not show
  bool frees_room = false;      // a DROP or TRUNCATE: goes on while the disk is full (wal W9)
  bool recovered = false;
  uint64_t leaves_work = 0;  // for purge: about as many records to take out as this
  // Of a transaction without a session (recovered, or prepared and left): where it has changes.
  std::vector<SpaceId> changed_spaces;
  std::string xid;  // of a prepared transaction (opaque)
  uint64_t lock_wait_timeout_us = 50000000;
  WaitInterrupt interrupt;
  HeldRows held;  // rows locked and not written to
  std::vector<SpaceId>
      drop_on_commit;  // spaces to put on the pending-delete list in the commit group
  std::vector<SpaceId>
      drop_on_rollback;              // spaces created by this transaction (the engine drops them)
  std::function<void()> on_publish;  // called after publish, before waiters wake; cleared at end
  uint32_t status_page = kNoPage;    // holds this transaction's entry (T4)
  bool marked = false;               // T14: the slot says kCommitting, and cts is fetched
  void* owner = nullptr;             // of the session that runs it, for the listener of waits
  std::unique_ptr<Mtr> commit_mtr;   // log capacity of the commit group; kept for the next one

  // Whether RW22 keeps the transaction from a version that another one committed at `written`.
  [[nodiscard]] bool may_not_touch(Cts written) const noexcept {
    return refuses_unseen && view.open && written > view.snapshot;
  }
};

struct TrxSystemOptions {
  NodeId node{1};
  uint32_t tit_slots = 1u << 16;
  ViewHorizon* horizon = nullptr;  // of all nodes; nullptr: this one is alone
  TitSource* others = nullptr;     // transactions of other nodes; nullptr: status pages tell
};

struct TrxCounters {
  std::atomic<uint64_t> commits{0}, rollbacks{0}, read_only_commits{0}, commit_waits{0},
      status_page_reads{0};
};

class TrxSystem {
 public:
  TrxSystem(const TrxSystemOptions& options, BufferPool* pool, Log* log, SpaceManager* spaces,
            UndoSpace* undo, TimestampSource* timestamps, RowWaits* waits);
  ~TrxSystem();

  // First start of a database: makes the status directory in the node's undo space (which exists).
  Status initialise();
  // After redo: reads the status pages, adopts undo, returns unfinished transactions (to roll back
  // or to keep prepared) and committed ones not yet purged (the purge queue is filled).
  Status recover(std::vector<std::unique_ptr<Trx>>* active,
                 std::vector<std::unique_ptr<Trx>>* prepared);

  // What a committed transaction leaves behind.
  struct PurgeItem {
    TrxId id;
    Cts cts;
    UndoPtr first_undo;
    std::vector<uint32_t> undo_pages;
    bool has_work = true;  // false: nothing was deleted and no chain was left behind
  };

  // --- owner's side ---
  void begin(Trx* trx);
  // Gives the transaction an id and a TIT slot; called before its first change, no latch held. May
  // block.
  Status ensure_id(Trx* trx);
  // Before the first latch of a change: id, undo room. `undo_bytes` bounds the records to come.
  Status prepare_change(Trx* trx, uint32_t undo_bytes);
  // Appends an undo record in the change's mtr (writes the status entry with the first one).
  StatusOr<UndoPtr> add_undo(Mtr* mtr, Trx* trx, UndoRecord* record);

  Status prepare(Trx* trx, Bytes xid);  // XA: durable when it returns
  // Sets log capacity aside and reads what commit_order() will latch; fetches the cts where the
  // oracle is far away (T14). May block. After a failure of either the transaction is as before:
  // the caller rolls it back.
  Status reserve_commit(Trx* trx);
  // First half of commit (commit_ordered): cts, commit group published to the log buffer (T1). No
  // I/O, no wait but for latches; only if the status page was evicted since reserve_commit() it is
  // read again, outside of the commit mutex. After a failure (that read, or the oracle) the
  // transaction is as it was before reserve_commit(), which has to come first again.
  Status commit_order(Trx* trx);
  // Second half: durable, publish, wake, hand to purge. `durable` false: skip the wait for the log
  // (the caller has promised durability otherwise, e.g. by a synced prepare and binlog). kUnknown:
  // the log failed and nobody knows whether the commit will be there after a restart; the
  // transaction stays unpublished, its rows locked, and the Trx is done with.
  // `own` (may be null): what a small transaction leaves behind is put there if nobody can need it
  // any more (T11), for the caller to purge at once: purged_own(), or purge_later(). Otherwise its
  // id stays zero.
  Status commit_finish(Trx* trx, bool durable = true, PurgeItem* own = nullptr);
  Status commit(Trx* trx, PurgeItem* own = nullptr);  // both; read-only transactions just end
  // Before the first undo record of a whole rollback is applied (T10).
  Status begin_rollback(Trx* trx);
  // The caller (row layer) has applied all undo: marks kAborted, wakes waiters, ends the
  // transaction.
  Status finish_rollback(Trx* trx);

  // --- views ---
  Status open_view(Trx* trx);
  void close_view(Trx* trx);
  // No commit that anybody can know of is younger.
  StatusOr<Cts> newest_cts();
  // Versions superseded at or below it are needed by nobody, on any node (MW1). No I/O.
  [[nodiscard]] Cts min_view() const;
  // The same, and no purge that has run anywhere knew of a later one (MW2).
  StatusOr<Cts> newest_min_view();

  // --- reader's side; lookup() and visible(may_block) may read pages of undo spaces, so hold no
  // page latch of them. Zero id = committed long ago, with kOldestCts; so is any id below the bound
  // (T7). Blocks only on a status page read. kNone: no such transaction, or one that changed
  // nothing.
  StatusOr<TrxLookup> lookup(TrxId id);
  // As lookup(), for who goes by what is committed now and not by a view (MW21).
  StatusOr<TrxLookup> lookup_told(TrxId id);
  // Same without any I/O: false when the answer needs a status page. Never waits for a page latch.
  bool lookup_fast(TrxId id, TrxLookup* out) noexcept;
  // Is the version with this header visible to the view? kCommitting within the view waits for the
  // log (T2). Call without latches when may_block; otherwise returns busy if it would
  // block.
  StatusOr<bool> visible(const ReadView& view, const RecordHeader& header, bool may_block);
  // True if `id` is another transaction and kActive, kPrepared or kCommitting: it holds the row
  // lock. No I/O for ids of this node.
  StatusOr<bool> is_undecided(TrxId id, TrxId self);
  [[nodiscard]] uint64_t all_visible_below() const noexcept;
  // T15: those of another node that are prepared and have changes in the space, whether or not that
  // node is there. Reads its status pages, and may have to wait for them.
  StatusOr<std::vector<TrxId>> prepared_elsewhere(NodeId other, SpaceId space);

  // --- purge ---
  // For what commit_finish() gave to its caller: done, or left to the purge threads.
  Status purged_own(const PurgeItem& item);
  void purge_later(PurgeItem item);
  // T12: tried again after a while, or after retry_failed_purges().
  void purge_failed(PurgeItem item);
  void retry_failed_purges();
  // Next committed transaction nobody's view needs the undo of, oldest first; false if none.
  bool next_to_purge(PurgeItem* out);
  Status purged(const PurgeItem& item);  // forgets its undo, advances all_visible_below
  [[nodiscard]] uint64_t history_length() const noexcept;
  // Blocks up to timeout_us until there may be something to purge, or wake_purge(). Small backlogs
  // are let grow for some milliseconds first.
  void wait_for_purge_work(uint64_t timeout_us);
  // After a failure: blocks for timeout_us, or until wake_purge().
  void pause_purge(uint64_t timeout_us);
  void wake_purge() noexcept;

  // Whose transaction this is: nullptr when it has no session, has ended, or can no longer be kept
  // from committing. L14
  [[nodiscard]] void* owner_of(TrxId id) const noexcept;
  // The transaction goes on without its session.
  void disown(Trx* trx) noexcept;
  [[nodiscard]] RowWaits* waits() const noexcept;
  [[nodiscard]] TrxCounters& counters() noexcept;
  [[nodiscard]] uint64_t active_count() const noexcept;
  // For people: those of this node that have an id and are not decided.
  struct Undecided {
    TrxId id;
    TrxState state;
    uint64_t age_us;
    WaitOwner owner;
  };
  [[nodiscard]] std::vector<Undecided> list_undecided() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace strata
