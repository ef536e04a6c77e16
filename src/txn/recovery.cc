// After redo: the status pages say what every transaction had come to.
#include <algorithm>
#include <memory>
#include <set>

#include "base/assert.h"
#include "txn/internal/trx_impl.h"
#include "txn/trx_system.h"

namespace strata {

using txn_internal::group_chunk_of;
using txn_internal::kEntriesPerPage;
using txn_internal::kSequencesPerGroup;
using txn_internal::kStripes;
using txn_internal::sequence_at;
using txn_internal::StatusEntry;

namespace {

// One that was neither committed nor rolled back.
StatusOr<std::unique_ptr<Trx>> revive(UndoSpace* undo, TrxId id, const StatusEntry& entry,
                                      uint32_t status_page) {
  auto trx = std::make_unique<Trx>();
  UndoSpace::Adopted found;
  const Status adopted = undo->adopt(id, entry.first_undo, &trx->undo, &found);
  if (is_not_found(adopted))
    return error_corruption("transaction " + std::to_string(id.value) +
                            " is unfinished but its undo records are missing from page " +
                            std::to_string(undo_space_of(undo_node(entry.first_undo))) + ":" +
                            std::to_string(undo_page_number(entry.first_undo)));
  STRATA_RETURN_IF_ERROR(adopted);
  trx->id = id;
  trx->xid = std::move(found.xid);
  trx->changed_spaces = std::move(found.spaces);
  trx->state = entry.state;
  trx->started = true;
  trx->recovered = true;
  trx->view.own = id;
  trx->status_page = status_page;
  return trx;
}

}  // namespace

Status TrxSystem::recover(std::vector<std::unique_ptr<Trx>>* active,
                          std::vector<std::unique_ptr<Trx>>* prepared) {
  Impl& s = *impl_;
  STRATA_RETURN_IF_ERROR(s.join_horizon());
  STRATA_ASSIGN_OR_RETURN(uint64_t bound,
                          s.spaces->read_slot(SpaceId{undo_space_of(s.node)}, kVisibleBelowSlot));
  bound = std::max<uint64_t>(bound, 1);
  const uint64_t first_chunk = group_chunk_of(bound);
  uint64_t end_chunk = 0;
  STRATA_RETURN_IF_ERROR(s.status.open(first_chunk, &end_chunk));

  std::vector<PurgeItem> committed;
  std::set<uint64_t> unfinished;
  Cts newest;
  const auto page_copy = std::make_unique<char[]>(kPageBytes);
  end_chunk -= end_chunk % kStripes;  // of a group half made nothing was given away (SD4)
  for (uint64_t chunk = first_chunk; chunk < end_chunk; ++chunk) {
    const uint32_t number = s.status.page_of(chunk);
    {
      const PageId page = s.status.page_id(number);
      STRATA_ASSIGN_OR_RETURN(const PageGuard guard,
                              expect_written(s.pool->fix(page, LatchMode::kShared), page));
      std::memcpy(page_copy.get(), guard.page(), kPageBytes);
    }
    for (uint32_t i = 0; i < kEntriesPerPage; ++i) {
      const uint64_t sequence = sequence_at(chunk, i);
      if (sequence < bound) continue;
      const StatusEntry entry = txn_internal::read_entry(page_copy.get(), sequence);
      const TrxId id = make_trx_id(s.node, sequence);
      newest = std::max(newest, entry.cts);
      if (entry.state == TrxState::kActive || entry.state == TrxState::kPrepared) {
        STRATA_ASSIGN_OR_RETURN(std::unique_ptr<Trx> trx, revive(s.undo, id, entry, number));
        (entry.state == TrxState::kActive ? active : prepared)->push_back(std::move(trx));
        unfinished.insert(sequence);
      } else if (entry.state == TrxState::kCommitted && !entry.first_undo.is_zero()) {
        UndoSpace::Writer run;
        const Status adopted = s.undo->adopt(id, entry.first_undo, &run);
        if (is_not_found(adopted)) continue;  // purged; the mark was lost
        STRATA_RETURN_IF_ERROR(adopted);
        committed.push_back(PurgeItem{id, entry.cts, entry.first_undo, std::move(run.pages)});
        unfinished.insert(sequence);
      }
    }
  }
  STRATA_RETURN_IF_ERROR(s.timestamps->raise_to(std::max(newest, kOldestCts)));

  {
    const MutexLock lock(s.ids);
    // T5: behind the last group. Where there is none the next one is that of the bound: a hole
    // would end the next recovery's search.
    s.end_sequence = end_chunk / kStripes * kSequencesPerGroup;
    s.next_sequence = std::max(s.end_sequence, bound);
    s.lasting_sequences = s.next_sequence;
    s.finished.assign(s.next_sequence - bound, 1);
    for (const uint64_t sequence : unfinished) s.finished[sequence - bound] = 0;
    s.all_visible_below.store(bound, std::memory_order_release);
    s.persisted_bound = bound;
  }

  // The table must hold every undecided one, even if it was larger in the last life.
  const auto collide = [&](uint32_t slots) {
    std::set<uint64_t> taken;
    for (const auto* list : {active, prepared})
      for (const auto& trx : *list)
        if (!taken.insert(sequence_of(trx->id) & (slots - 1)).second) return true;
    return false;
  };
  uint32_t slots = s.tit.size();
  while (collide(slots)) slots *= 2;
  if (slots != s.tit.size()) s.tit.resize(slots);
  for (const auto* list : {active, prepared}) {
    for (const auto& trx : *list) {
      s.tit.claim(sequence_of(trx->id), trx->state);
      s.active.fetch_add(1, std::memory_order_relaxed);
    }
  }
  {
    const MutexLock lock(s.purge_mutex);
    for (PurgeItem& item : committed) s.queue.push(std::move(item));
  }
  STRATA_RETURN_IF_ERROR(s.undo->finish_recovery());
  return s.join_others();
}

}  // namespace strata
