// Views, and what a reader may see.
#include <algorithm>

#include "base/assert.h"
#include "txn/internal/trx_impl.h"
#include "txn/trx_system.h"

namespace strata {

using txn_internal::is_undecided_state;
using txn_internal::kLsnUnknown;
using txn_internal::StatusEntry;

namespace {
constexpr TrxLookup kLongAgo{TrxState::kCommitted, kOldestCts, Lsn{}};
}  // namespace

// --- views ---

StatusOr<Cts> TrxSystem::newest_cts() { return impl_->timestamps->current(); }

Status TrxSystem::open_view(Trx* trx) {
  STRATA_ASSERT(trx->started && !trx->view.open);
  Impl& s = *impl_;
  // T8: a lower bound is registered before the snapshot is read.
  STRATA_ASSIGN_OR_RETURN(const Cts lower_bound, s.timestamps->current());
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
  trx->view.open = true;
  return ok_status();
}

void TrxSystem::close_view(Trx* trx) {
  STRATA_ASSERT(trx->view.open);
  impl_->views.release(trx->view.slot);
  trx->view.open = false;
}

Cts TrxSystem::Impl::oldest_own_view() const {
  const StatusOr<Cts> now = timestamps->current();
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
// belongs to a thread inside the commit mutex: a moment, without I/O.
bool TrxSystem::Impl::lookup_tit(uint64_t sequence, TrxLookup* out) noexcept {
  while (tit.read(sequence, out)) {
    if (out->state != TrxState::kCommitting) return true;
    if (!out->cts.is_zero() && out->commit_lsn != kLsnUnknown) return true;
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
  if (node_of(id) != node || sequence < all_visible_below.load(std::memory_order_acquire))
    return kLongAgo;
  return TrxLookup{};
}

StatusOr<TrxLookup> TrxSystem::Impl::lookup(TrxId id) {
  TrxLookup out;
  if (lookup_fast(id, &out)) return out;
  if (node_of(id) == node || others == nullptr) return read_status(id);
  const StatusOr<TrxLookup> told = others->read(id);
  if (is_not_found(told.status())) return read_status(id);  // nobody owns it any more
  if (told.ok() && told->state == TrxState::kCommitted) cts_cache.put(id, told->cts);
  return told;
}

StatusOr<TrxLookup> TrxSystem::lookup(TrxId id) { return impl_->lookup(id); }

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
  if (found.state == TrxState::kCommitted && found.commit_lsn > log->durable_lsn())
    STRATA_RETURN_IF_ERROR(log->persist(found.commit_lsn));
  return found;
}

StatusOr<TrxLookup> TrxSystem::Impl::own_outcome(uint64_t sequence) {
  STRATA_ASSIGN_OR_RETURN(TrxLookup found, own_state(sequence));
  if (found.state != TrxState::kCommitting) return found;
  counters.commit_waits.fetch_add(1, std::memory_order_relaxed);
  STRATA_RETURN_IF_ERROR(log->persist(found.commit_lsn));
  found.state = TrxState::kCommitted;
  return found;
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
    return decided->state == TrxState::kCommitted && decided->cts <= view.snapshot;
  }
  // T2: it will be there if, and only if, its group is durable.
  if (s.log->durable_lsn() >= found.commit_lsn) return true;
  if (!may_block) return error_busy();
  s.counters.commit_waits.fetch_add(1, std::memory_order_relaxed);
  STRATA_RETURN_IF_ERROR(s.log->persist(found.commit_lsn));
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

uint64_t TrxSystem::all_visible_below() const noexcept {
  return impl_->all_visible_below.load(std::memory_order_acquire);
}

}  // namespace strata
