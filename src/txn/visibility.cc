// Views, and what a reader may see.
#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/clock.h"
#include "base/wait_interrupt.h"
#include "txn/internal/trx_impl.h"
#include "txn/trx_system.h"

namespace strata {

using txn_internal::is_undecided_state;
using txn_internal::kLsnUnknown;
using txn_internal::StatusEntry;

namespace {
constexpr TrxLookup kLongAgo{TrxState::kCommitted, kOldestCts, Lsn{}};
constexpr uint64_t kOutcomeWaitUsMax = 50'000'000;  // of who asks for another node's view
}  // namespace

// --- views ---

StatusOr<Cts> TrxSystem::newest_cts() { return impl_->timestamps->current(); }

Status TrxSystem::open_view(Trx* trx) {
  STRATA_ASSERT(trx->started && !trx->view.open);
  Impl& s = *impl_;
  // T8: a lower bound is registered before the snapshot is read. Where there are several nodes that
  // is the horizon last heard: no snapshot that is read later is older, and it needs no fetch.
  Cts lower_bound = s.horizon != nullptr ? s.horizon->known() : Cts{};
  if (s.horizon == nullptr) {
    STRATA_ASSIGN_OR_RETURN(lower_bound, s.timestamps->current());
  }
  uint32_t hint = trx->view.slot;
  if (hint == 0) hint = s.next_view_hint.fetch_add(1, std::memory_order_relaxed) % 64;
  if (!s.views.acquire(hint, std::max(lower_bound, kOldestCts), &trx->view.slot))
    return error_no_space("too many open views");
  const StatusOr<Cts> snapshot = s.timestamps->current();
  if (!snapshot.ok()) {
    s.views.release(trx->view.slot);
    return snapshot.status();
  }
  s.views.set(trx->view.slot, std::max(*snapshot, kOldestCts));
  trx->view.snapshot = *snapshot;
  trx->view.own = trx->id;
  trx->view.wait_us_max = trx->lock_wait_timeout_us;
  trx->view.open = true;
  return ok_status();
}

void TrxSystem::close_view(Trx* trx) {
  STRATA_ASSERT(trx->view.open);
  impl_->views.release(trx->view.slot);
  trx->view.open = false;
}

Cts TrxSystem::Impl::oldest_own_view() const {
  // Never waits for a lease: what renews the lease asks.
  const StatusOr<Cts> now = timestamps->current_at_once();
  // What was the minimum of all nodes once was a bound of this one, too.
  if (!now.ok()) return Cts{min_view_seen.load(std::memory_order_relaxed)};
  return views.min(*now);
}

Cts TrxSystem::min_view() const { return impl_->min_view(); }

StatusOr<Cts> TrxSystem::newest_min_view() {
  if (impl_->horizon == nullptr) return impl_->oldest_own_view();
  return impl_->horizon->newest();
}

Status TrxSystem::Impl::join_horizon() {
  if (horizon == nullptr || joined) return ok_status();
  STRATA_RETURN_IF_ERROR(horizon->join(node, this));
  joined = true;
  return ok_status();
}

// --- look-up ---

// False: not in the table. A slot between "committing" and its cts or log position being known
// belongs to a thread inside the commit mutex: a moment, without I/O. With an oracle far away it
// may be long before either is known, and is told as it is (T14).
bool TrxSystem::Impl::lookup_tit(uint64_t sequence, TrxLookup* out) noexcept {
  while (tit.read(sequence, out)) {
    if (out->state != TrxState::kCommitting) return true;
    if (!out->cts.is_zero() && out->commit_lsn != kLsnUnknown) return true;
    if (timestamps->is_remote()) return true;
    const MutexLock lock(commit_mutex);
  }
  return false;
}

bool TrxSystem::Impl::lookup_fast(TrxId id, TrxLookup* out) noexcept {
  if (id.is_zero()) {
    *out = kLongAgo;
    return true;
  }
  if (node_of(id) == node) {
    const uint64_t sequence = sequence_of(id);
    if (lookup_tit(sequence, out)) return true;
    if (sequence < all_visible_below.load(std::memory_order_acquire)) {
      *out = kLongAgo;
      return true;
    }
  } else if (others != nullptr && sequence_of(id) < others->bound(node_of(id))) {  // MW10
    *out = kLongAgo;
    return true;
  }
  Cts cts;
  if (!cts_cache.find(id, &cts)) return false;
  *out = TrxLookup{TrxState::kCommitted, cts, Lsn{}};
  return true;
}

bool TrxSystem::lookup_fast(TrxId id, TrxLookup* out) noexcept {
  return impl_->lookup_fast(id, out);
}

StatusOr<TrxLookup> TrxSystem::Impl::read_status(TrxId id) {
  counters.status_page_reads.fetch_add(1, std::memory_order_relaxed);
  const uint64_t sequence = sequence_of(id);
  const StatusOr<StatusEntry> entry = status.read(node_of(id), sequence);
  if (entry.ok()) {
    // A decided entry is final; an undecided one of this node is in the table (T3) unless recovery
    // has not come so far yet.
    if (entry->state == TrxState::kCommitted) cts_cache.put(id, entry->cts);
    return TrxLookup{entry->state, entry->cts, Lsn{}};
  }
  if (!is_not_found(entry.status())) return entry.status();
  // Truncated: older than every view of every node (MW1). (Or, for this node, a sequence that was
  // never given out.)
  if (node_of(id) != node) return truncated(id);
  if (sequence < all_visible_below.load(std::memory_order_acquire)) return kLongAgo;
  return TrxLookup{};
}

// Of another node's entry that is not there. That node writes its bound before it frees an entry
// below, and the bound is read after the entry was not found: so an entry above it was never freed,
// and a page that names it, or the way to it, is damaged or older than the page that names it.
StatusOr<TrxLookup> TrxSystem::Impl::truncated(TrxId id) {
  std::atomic<uint64_t>& known = truncated_below[node_of(id).value];
  if (sequence_of(id) < known.load(std::memory_order_relaxed)) return kLongAgo;
  STRATA_ASSIGN_OR_RETURN(const uint64_t bound,
                          status.number_in_header(node_of(id), kVisibleBelowSlot));
  if (sequence_of(id) >= bound)
    return error_corruption("transaction " + std::to_string(sequence_of(id)) + " of node " +
                            std::to_string(node_of(id).value) +
                            " is in none of its status pages, which reach down to " +
                            std::to_string(bound));
  uint64_t before = known.load(std::memory_order_relaxed);
  while (before < bound && !known.compare_exchange_weak(before, bound, std::memory_order_relaxed)) {
  }
  return kLongAgo;
}

StatusOr<TrxLookup> TrxSystem::Impl::lookup(TrxId id, bool told_commits) {
  TrxLookup out;
  if (lookup_fast(id, &out)) return out;
  if (node_of(id) == node || others == nullptr) return read_status(id);
  const StatusOr<TrxLookup> told = told_commits ? others->read_told(id) : others->read(id);
  if (is_not_found(told.status())) return read_status(id);  // nobody owns it any more
  if (told.ok() && told->state == TrxState::kCommitted) cts_cache.put(id, told->cts);
  return told;
}

StatusOr<TrxLookup> TrxSystem::lookup(TrxId id) { return impl_->lookup(id); }
StatusOr<TrxLookup> TrxSystem::lookup_told(TrxId id) { return impl_->lookup(id, true); }

// --- what this node tells others (MW8, MW9) ---

Status TrxSystem::Impl::join_others() {
  if (others == nullptr || told_others) return ok_status();
  STRATA_RETURN_IF_ERROR(others->join(node, this));
  told_others = true;
  return ok_status();
}

// A crash forgets sequences whose group is not durable, and they are given out again.
uint64_t TrxSystem::Impl::own_bound() const noexcept {
  const MutexLock lock(ids);
  const uint64_t below = all_visible_below.load(std::memory_order_relaxed);
  return log->durable_lsn() >= groups_made ? below : std::min(below, lasting_sequences);
}

StatusOr<TrxLookup> TrxSystem::Impl::own_state(uint64_t sequence) {
  STRATA_ASSIGN_OR_RETURN(const TrxLookup found, lookup(make_trx_id(node, sequence)));
  // MW9: a commit that did not wait for the log is told here, and to nobody elsewhere so far.
  if (found.state == TrxState::kCommitted && !found.commit_lsn.is_zero()) {
    if (found.commit_lsn > log->durable_lsn())
      STRATA_RETURN_IF_ERROR(log->persist(found.commit_lsn));
    tit.made_durable(sequence, found.cts);
  }
  return found;
}

StatusOr<TrxLookup> TrxSystem::Impl::own_outcome(uint64_t sequence) {
  STRATA_ASSIGN_OR_RETURN(TrxLookup found, own_state(sequence));
  if (found.state == TrxState::kCommitting &&
      (found.cts.is_zero() || found.commit_lsn == kLsnUnknown)) {
    STRATA_ASSIGN_OR_RETURN(found, wait_logged(sequence, Cts{UINT64_MAX}, kOutcomeWaitUsMax));
    if (found.state != TrxState::kCommitting) return own_state(sequence);
  }
  if (found.state != TrxState::kCommitting) return found;
  STRATA_RETURN_IF_ERROR(await_durable(found.commit_lsn));
  found.state = TrxState::kCommitted;
  return found;
}

Status TrxSystem::Impl::await_durable(Lsn commit_lsn) {
  if (log->durable_lsn() >= commit_lsn) return ok_status();
  counters.commit_waits.fetch_add(1, std::memory_order_relaxed);
  return log->persist(commit_lsn);
}

// T14. Until the commit that the slot marks has its group in the log, or a cts that is not in the
// view, or does not come. What the table says then; kNone: the slot is another's.
StatusOr<TrxLookup> TrxSystem::Impl::wait_logged(uint64_t sequence, Cts snapshot,
                                                 uint64_t timeout_us) {
  CondVarSleep sleeper(&outcome_mutex, &outcome_changed);
  WaitInterrupt* const interrupt = WaitInterrupt::current();
  const WaitInterrupt::Asleep asleep(interrupt, &sleeper);
  const uint64_t deadline_us = monotonic_us() + std::min(timeout_us, kOutcomeWaitUsMax);
  counters.commit_waits.fetch_add(1, std::memory_order_relaxed);
  outcome_waiters.fetch_add(1, std::memory_order_acq_rel);
  StatusOr<TrxLookup> result = TrxLookup{};
  {
    MutexLock lock(outcome_mutex);
    for (;;) {
      TrxLookup found;
      if (!tit.read(sequence, &found)) break;
      result = found;
      if (found.state != TrxState::kCommitting) break;
      if (!found.cts.is_zero() && (found.cts > snapshot || found.commit_lsn != kLsnUnknown)) break;
      if (is_interrupted_now(interrupt)) {
        result = error_interrupted();
        break;
      }
      const uint64_t now_us = monotonic_us();
      if (now_us >= deadline_us) {
        result = error_lock_wait_timeout(
            "a commit that this statement has to wait for has not ended in time");
        break;
      }
      outcome_changed.wait_for_us(lock, deadline_us - now_us);
    }
  }
  outcome_waiters.fetch_sub(1, std::memory_order_relaxed);
  return result;
}

StatusOr<bool> TrxSystem::visible(const ReadView& view, const RecordHeader& header,
                                  bool may_block) {
  const TrxId id = header.trx_id;
  if (id.is_zero() || id == view.own) return true;
  if (!header.cts.is_zero()) return header.cts <= view.snapshot;
  Impl& s = *impl_;
  // T7: an open view is no older than the views that purge looked at.
  if (node_of(id) == s.node &&
      sequence_of(id) < s.all_visible_below.load(std::memory_order_acquire))
    return true;
  TrxLookup found;
  if (!s.lookup_fast(id, &found)) {
    if (!may_block) return error_busy();
    STRATA_ASSIGN_OR_RETURN(found, lookup(id));
  }
  if (found.state == TrxState::kCommitted) return found.cts <= view.snapshot;
  if (found.state != TrxState::kCommitting || found.cts > view.snapshot) return false;
  if (node_of(id) != s.node) {  // MW9
    if (!may_block) return error_peer_down();
    s.counters.commit_waits.fetch_add(1, std::memory_order_relaxed);
    StatusOr<TrxLookup> decided = s.others->wait_decided(id);
    if (is_not_found(decided.status())) decided = s.read_status(id);
    STRATA_RETURN_IF_ERROR(decided.status());
    if (decided->state != TrxState::kCommitted) return false;
    s.cts_cache.put(id, decided->cts);
    return decided->cts <= view.snapshot;
  }
  if (found.cts.is_zero() || found.commit_lsn == kLsnUnknown) {  // T14
    if (!may_block) return error_busy();
    STRATA_ASSIGN_OR_RETURN(found, s.wait_logged(sequence_of(id), view.snapshot, view.wait_us_max));
    if (found.state == TrxState::kNone) return visible(view, header, true);  // ended long since
    if (found.state == TrxState::kCommitted) return found.cts <= view.snapshot;
    if (found.state != TrxState::kCommitting || found.cts > view.snapshot) return false;
  }
  // T2: it will be there if, and only if, its group is durable.
  if (s.log->durable_lsn() >= found.commit_lsn) return true;
  if (!may_block) return error_busy();
  STRATA_RETURN_IF_ERROR(s.await_durable(found.commit_lsn));
  return true;
}

StatusOr<bool> TrxSystem::is_undecided(TrxId id, TrxId self) {
  if (id.is_zero() || id == self) return false;
  TrxLookup found;
  if (node_of(id) == impl_->node)
    return impl_->tit.read(sequence_of(id), &found) && is_undecided_state(found.state);
  STRATA_ASSIGN_OR_RETURN(found, lookup(id));
  return is_undecided_state(found.state);
}

// T15
StatusOr<std::vector<TrxId>> TrxSystem::prepared_elsewhere(NodeId other, SpaceId space) {
  Impl& s = *impl_;
  STRATA_ASSERT(other != s.node);
  std::vector<std::pair<TrxId, UndoPtr>> prepared;
  STRATA_RETURN_IF_ERROR(
      s.status.for_each_entry(other, [&](uint64_t sequence, const StatusEntry& entry) {
        if (entry.state == TrxState::kPrepared)
          prepared.emplace_back(make_trx_id(other, sequence), entry.first_undo);
      }));
  std::vector<TrxId> found;
  for (const auto& [id, first_undo] : prepared) {
    std::vector<SpaceId> spaces;
    const Status read = read_changed_spaces(s.pool, id, first_undo, &spaces);
    if (is_not_found(read)) {  // it has been decided meanwhile
      STRATA_ASSIGN_OR_RETURN(const TrxLookup now, s.read_status(id));
      if (now.state != TrxState::kPrepared) continue;
      return error_corruption("transaction " + std::to_string(id.value) +
                              " is prepared but its undo records are missing");
    }
    STRATA_RETURN_IF_ERROR(read);
    if (std::find(spaces.begin(), spaces.end(), space) != spaces.end()) found.push_back(id);
  }
  return found;
}

uint64_t TrxSystem::all_visible_below() const noexcept {
  return impl_->all_visible_below.load(std::memory_order_acquire);
}

}  // namespace strata
