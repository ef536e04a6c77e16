#include "row/internal/conflicts.h"

#include "base/clock.h"

namespace strata::row_internal {
namespace {

bool is_undecided_state(TrxState state) noexcept {
  return state == TrxState::kActive || state == TrxState::kPrepared ||
         state == TrxState::kCommitting;
}

}  // namespace

Conflicts::Conflicts(RowContext* context, Trx* trx, IndexId index) noexcept
    : context_(context), trx_(trx), index_(index) {}

Owner Conflicts::owner(RecordHeader* header) noexcept {
  const TrxId id = header->trx_id;
  if (id.is_zero() || !header->cts.is_zero()) return Owner::kDecided;
  if (id == trx_->id) return Owner::kSelf;
  TrxLookup found;
  if (context_->trxs->lookup_fast(id, &found)) {
    if (is_undecided_state(found.state)) return Owner::kUndecided;
    if (found.state == TrxState::kCommitted) header->cts = found.cts;
    return Owner::kDecided;
  }
  if (id != resolved_) return Owner::kUnknown;
  // Decided is for good; undecided may have changed meanwhile, then the wait ends at once.
  if (resolved_undecided_) return Owner::kUndecided;
  header->cts = resolved_cts_;
  return Owner::kDecided;
}

Status Conflicts::resolve(TrxId id) {
  STRATA_ASSIGN_OR_RETURN(const TrxLookup found, context_->trxs->lookup_told(id));
  resolved_ = id;
  resolved_undecided_ = is_undecided_state(found.state);
  resolved_cts_ = found.state == TrxState::kCommitted ? found.cts : Cts{};
  return ok_status();
}

bool Conflicts::must_queue(Bytes key) const noexcept {
  if (has_turn_ && turn_key_ == key) return false;
  return context_->trxs->waits()->has_waiters(RowId{index_, key});
}

uint64_t Conflicts::time_left_us() noexcept {
  if (trx_->lock_wait_timeout_us == 0) return 0;
  const uint64_t now_us = monotonic_us();
  if (deadline_us_ == 0) deadline_us_ = now_us + trx_->lock_wait_timeout_us;
  return deadline_us_ > now_us ? deadline_us_ - now_us : 0;
}

Status Conflicts::waited(Status status) noexcept {
  if (is_deadlock(status)) trx_->must_rollback = true;
  return status;
}

Status Conflicts::wait(TrxId holder, Bytes key, bool in_memory) {
  RowWaits* waits = context_->trxs->waits();
  if (has_turn_ && turn_key_ != key) give_turn_back();
  const auto still_held = [this, holder, in_memory] {
    if (holder.is_zero()) return false;
    if (in_memory) return holder_in_memory(turn_key_) == holder;
    const StatusOr<bool> undecided = context_->trxs->is_undecided(holder, trx_->id);
    return !undecided.ok() || *undecided;
  };
  turn_key_.assign(key);
  const Status status = waits->wait(trx_->id, holder, RowId{index_, turn_key_}, time_left_us(),
                                    &trx_->interrupt, still_held);
  has_turn_ = status.ok();
  if (resolved_ == holder) resolved_ = TrxId{};
  return waited(status);
}

void Conflicts::took(Bytes key) noexcept {
  if (!has_turn_ || turn_key_ != key) return;
  has_turn_ = false;
  context_->trxs->waits()->settled(trx_->id, RowId{index_, key}, trx_->id);
}

void Conflicts::give_turn_back() noexcept {
  if (!has_turn_) return;
  has_turn_ = false;
  context_->trxs->waits()->settled(trx_->id, RowId{index_, turn_key_}, TrxId{});
}

Status Conflicts::wait_for_shared(Bytes key, bool is_row) {
  RowWaits* waits = context_->trxs->waits();
  if (!waits->index_has_shared(index_)) return ok_status();
  return waited(waits->wait_for_shared(trx_->id, RowId{index_, key}, time_left_us(),
                                       &trx_->interrupt, is_row));
}

}  // namespace strata::row_internal
