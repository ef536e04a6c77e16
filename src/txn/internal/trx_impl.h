// State of a TrxSystem, shared by its source files.
//
// Mutexes, in order:  ids -> (none)     purge_mutex -> (none)
//                     page latches (leaf, undo, status) -> commit_mutex -> log
// commit_mutex is taken with the status page latched already and does no I/O and no latching under
// it; so readers may take it for a moment whatever latches they hold.
#pragma once

#include <array>
#include <deque>
#include <queue>
#include <vector>

#include "base/latch.h"
#include "txn/internal/status_pages.h"
#include "txn/internal/tit.h"
#include "txn/internal/view_registry.h"
#include "txn/trx_system.h"

namespace strata {

struct TrxSystem::Impl final : OwnViews, OwnTransactions {
  Impl(const TrxSystemOptions& options, BufferPool* pool, Log* log, SpaceManager* spaces,
       UndoSpace* undo, TimestampSource* timestamps, RowWaits* waits)
      : node(options.node),
        pool(pool),
        log(log),
        spaces(spaces),
        undo(undo),
        timestamps(timestamps),
        waits(waits),
        horizon(options.horizon),
        others(options.others),
        tit(options.tit_slots),
        status(pool, log, spaces, options.node) {
    if (others != nullptr) tit.publish_to(others->published());
  }

  const NodeId node;
  BufferPool* const pool;
  Log* const log;
  SpaceManager* const spaces;
  UndoSpace* const undo;
  TimestampSource* const timestamps;
  RowWaits* const waits;
  ViewHorizon* const horizon;  // nullptr: the own views decide
  TitSource* const others;     // nullptr: status pages tell of other nodes
  bool joined = false;         // the horizon; before the first view
  bool told_others = false;    // likewise, `others`

  txn_internal::Tit tit;
  txn_internal::StatusPages status;
  txn_internal::CtsCache cts_cache;
  txn_internal::ViewRegistry views;
  std::atomic<uint32_t> next_view_hint{0};
  TrxCounters counters;

  // Sequences. Not held over I/O: one thread extends, the others wait for it.
  mutable Mutex ids{LatchRank::kTrxSystem};
  CondVar extended;
  bool extending STRATA_GUARDED_BY(ids) = false;
  uint64_t next_sequence STRATA_GUARDED_BY(ids) = 1;
  uint64_t end_sequence STRATA_GUARDED_BY(ids) = 0;  // of the chunks that exist
  // MW10: sequences below the first are given out once in the life of the database; those above are
  // too once the log is durable up to the second.
  uint64_t lasting_sequences STRATA_GUARDED_BY(ids) = 0;
  Lsn groups_made STRATA_GUARDED_BY(ids){};
  std::deque<uint8_t> finished STRATA_GUARDED_BY(ids);  // by sequence, from all_visible_below on
  std::atomic<uint64_t> all_visible_below{1};           // written under ids
  std::atomic<uint64_t> active{0};

  Mutex commit_mutex{LatchRank::kCommitOrder};  // T1

  // T14: who waits for what comes of a mark. A waiter counts itself, then looks; who changes a
  // marked slot looks at the count afterwards (both by read-modify-writes).
  Mutex outcome_mutex{LatchRank::kLeaf};
  CondVar outcome_changed;
  std::atomic<uint64_t> outcome_waiters{0};

  // What status pages of other nodes are known to be truncated below, as they say (T7).
  std::array<std::atomic<uint64_t>, 256> truncated_below{};

  // Purge.
  struct LaterCommit {
    bool operator()(const PurgeItem& a, const PurgeItem& b) const noexcept { return a.cts > b.cts; }
  };
  mutable Mutex purge_mutex{LatchRank::kPurge};
  CondVar purge_wake;
  std::priority_queue<PurgeItem, std::vector<PurgeItem>, LaterCommit> queue
      STRATA_GUARDED_BY(purge_mutex);
  // Rolled back, in order of a cts taken when their records had been restored: a view older than
  // that may still look at a copy it made of one, and must find "aborted", not "below the bound"
  // (T7).
  std::deque<std::pair<Cts, uint64_t>> aborted STRATA_GUARDED_BY(purge_mutex);
  std::vector<uint64_t> unstamped STRATA_GUARDED_BY(purge_mutex);  // the same, without a cts yet
  std::vector<PurgeItem> failed STRATA_GUARDED_BY(purge_mutex);    // T12
  uint64_t retry_at_us STRATA_GUARDED_BY(purge_mutex) = 0;
  std::vector<PurgeItem> marks
      STRATA_GUARDED_BY(purge_mutex);  // purged, not yet marked so in the status pages
  uint64_t wake_tokens STRATA_GUARDED_BY(purge_mutex) =
      0;  // waits that return at once after wake_purge()
  uint32_t purge_waiting STRATA_GUARDED_BY(purge_mutex) = 0;
  bool flushing STRATA_GUARDED_BY(purge_mutex) = false;  // one thread marks and truncates
  uint64_t persisted_bound = 0;
  std::atomic<uint64_t> min_view_seen{0};  // the minimum view never shrinks

  Status extend_chunks() STRATA_REQUIRES(ids);
  void finish(uint64_t sequence);
  void queue_failed() STRATA_REQUIRES(purge_mutex);
  Status write_status(Mtr* mtr, Trx* trx, const txn_internal::StatusEntry& entry);
  Status flush_purged();
  void push_committed(PurgeItem item);

  // Ends of a transaction.
  void release_locks(Trx* trx);
  void end_without_group(Trx* trx);
  void finish_when_unseen(uint64_t sequence);
  void stamp_aborted();
  void finish_unseen();

  // T14
  Status mark(Trx* trx);
  void unmark(Trx* trx);
  void outcome_has_changed();
  StatusOr<TrxLookup> wait_logged(uint64_t sequence, Cts snapshot, uint64_t timeout_us);
  Status await_durable(Lsn commit_lsn);

  Status join_horizon();
  Status join_others();
  StatusOr<TrxLookup> own_state(uint64_t sequence) override;
  StatusOr<TrxLookup> own_outcome(uint64_t sequence) override;
  [[nodiscard]] uint64_t own_bound() const noexcept override;
  [[nodiscard]] Cts oldest_own_view() const override;
  [[nodiscard]] Cts min_view() const {
    return horizon == nullptr ? oldest_own_view() : horizon->known();
  }
  bool lookup_tit(uint64_t sequence, TrxLookup* out) noexcept;
  bool lookup_fast(TrxId id, TrxLookup* out) noexcept;
  // What lookup_fast() could not tell, from status pages.
  StatusOr<TrxLookup> read_status(TrxId id);
  StatusOr<TrxLookup> truncated(TrxId id);
  StatusOr<TrxLookup> lookup(TrxId id, bool told_commits = false);  // MW21
};

}  // namespace strata
