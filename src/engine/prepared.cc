// Prepared transactions without a session: kept for commit or rollback by xid (XA, two-phase
// commit).
#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/clock.h"
#include "engine/internal/kernel_impl.h"

namespace strata::engine {

void KernelImpl::keep_prepared(std::unique_ptr<Trx> trx) {
  STRATA_ASSERT(trx->state == TrxState::kPrepared);
  const MutexLock lock(prepared_mutex);
  Prepared& kept = prepared[trx->xid];
  kept.changed_spaces = std::move(trx->changed_spaces);
  kept.trx = std::move(trx);
}

// A decision that fails (full disk) can be tried again: the transaction stays prepared. But once a
// rollback has begun, durably (T10), it is certain, and goes on in the background (E18).
Status KernelImpl::decide_prepared(Bytes xid, const std::function<Status(Trx*)>& decide) {
  std::unique_ptr<Trx> trx;
  {
    const MutexLock lock(prepared_mutex);
    const auto it = prepared.find(std::string(xid));
    if (it == prepared.end() || it->second.trx == nullptr) return error_not_found();
    trx = std::move(it->second.trx);
  }
  const Status status = decide(trx.get());
  const bool stays = !status.ok() && trx->state == TrxState::kPrepared;
  const bool goes_on = trx->state == TrxState::kActive;
  {
    const MutexLock lock(prepared_mutex);
    const auto it = prepared.find(std::string(xid));
    STRATA_ASSERT(it != prepared.end());  // it stayed there (E14)
    if (stays) {
      it->second.trx = std::move(trx);
    } else {
      prepared.erase(it);
    }
  }
  prepared_decided.notify_all();
  if (!goes_on) return status;
  finish_later({.trx = std::move(trx), .why = text_of(status)});
  return ok_status();
}

bool KernelImpl::is_undecided(SpaceId space) const {
  return std::any_of(prepared.begin(), prepared.end(), [&](const auto& entry) {
    const std::vector<SpaceId>& spaces = entry.second.changed_spaces;
    return std::find(spaces.begin(), spaces.end(), space) != spaces.end();
  });
}

// MW15, E14: false, if one is not decided in time.
bool KernelImpl::wait_until_decided(SpaceId space, uint64_t deadline_us) {
  MutexLock lock(prepared_mutex);
  while (is_undecided(space)) {
    const uint64_t now_us = monotonic_us();
    if (now_us >= deadline_us) return false;
    prepared_decided.wait_for_us(lock, deadline_us - now_us);
  }
  return true;
}

// E14
Status KernelImpl::wait_until_decided(SpaceId space, Trx* waiter) {
  const uint64_t deadline_us = monotonic_us() + waiter->lock_wait_timeout_us;
  STRATA_RETURN_IF_ERROR(wait_until_decided_here(space, waiter, deadline_us));
  if (!several_writers()) return ok_status();
  STRATA_ASSIGN_OR_RETURN(std::vector<TrxId> undecided, prepared_elsewhere(space));
  if (undecided.empty()) return ok_status();
  ddl_waiting.fetch_add(1, std::memory_order_relaxed);
  WaitListener* const listener = options.wait_listener;
  if (listener != nullptr) listener->wait_begins(waiter->owner);
  const Status status = wait_until_decided_elsewhere(std::move(undecided), waiter, deadline_us);
  ddl_waiting.fetch_sub(1, std::memory_order_relaxed);
  if (listener != nullptr) listener->wait_ends(waiter->owner);
  return status;
}

// The exclusive lock of the table's name has waited for the transactions that use it, and for what
// a node that has it keeps (names.cc). But a transaction that somebody has recovered, the node
// itself or one that took over its place, uses no name any more (T15).
StatusOr<std::vector<TrxId>> KernelImpl::prepared_elsewhere(SpaceId space) {
  std::vector<TrxId> found;
  STRATA_ASSIGN_OR_RETURN(const std::vector<SpaceId> present, source->list_spaces());
  for (const SpaceId one : present) {
    if (!is_undo_space(one) || one.value == undo_space_of(NodeId{options.node})) continue;
    const NodeId other{static_cast<uint8_t>(one.value)};
    STRATA_ASSIGN_OR_RETURN(const std::vector<TrxId> there, trxs->prepared_elsewhere(other, space));
    found.insert(found.end(), there.begin(), there.end());
  }
  return found;
}

// Nobody tells of a decision elsewhere: looked at again and again, less often as it takes longer.
Status KernelImpl::wait_until_decided_elsewhere(std::vector<TrxId> undecided, Trx* waiter,
                                                uint64_t deadline_us) {
  constexpr uint64_t kPauseUsMin = 5'000;
  constexpr uint64_t kPauseUsMax = 200'000;
  CondVarSleep sleep(&prepared_mutex, &prepared_decided);
  for (uint64_t pause_us = kPauseUsMin;; pause_us = std::min(2 * pause_us, kPauseUsMax)) {
    while (!undecided.empty()) {
      STRATA_ASSIGN_OR_RETURN(const TrxLookup now, trxs->lookup(undecided.back()));
      if (now.state == TrxState::kPrepared || now.state == TrxState::kCommitting) break;
      undecided.pop_back();
    }
    if (undecided.empty()) return ok_status();
    const WaitInterrupt::Asleep asleep(&waiter->interrupt, &sleep);
    MutexLock lock(prepared_mutex);
    if (waiter->interrupt.interrupted()) return error_interrupted();
    const uint64_t now_us = monotonic_us();
    if (now_us >= deadline_us) return error_lock_wait_timeout();
    prepared_decided.wait_for_us(lock, std::min(pause_us, deadline_us - now_us));
  }
}

Status KernelImpl::wait_until_decided_here(SpaceId space, Trx* waiter, uint64_t deadline) {
  CondVarSleep sleep(&prepared_mutex, &prepared_decided);
  const WaitInterrupt::Asleep asleep(&waiter->interrupt, &sleep);
  MutexLock lock(prepared_mutex);
  if (!is_undecided(space)) return ok_status();
  ddl_waiting.fetch_add(1, std::memory_order_relaxed);
  WaitListener* const listener = options.wait_listener;
  if (listener != nullptr) {
    lock.unlock();
    listener->wait_begins(waiter->owner);
    lock.lock();
  }
  Status status;
  while (status.ok() && is_undecided(space)) {
    const uint64_t now = monotonic_us();
    if (waiter->interrupt.interrupted())
      status = error_interrupted();
    else if (now >= deadline)
      status = error_lock_wait_timeout();
    else
      prepared_decided.wait_for_us(lock, deadline - now);
  }
  ddl_waiting.fetch_sub(1, std::memory_order_relaxed);
  lock.unlock();
  if (listener != nullptr) listener->wait_ends(waiter->owner);
  return status;
}

std::vector<PreparedTransaction> Kernel::prepared_transactions() {
  std::vector<PreparedTransaction> out;
  const MutexLock lock(impl_->prepared_mutex);
  for (const auto& [xid, kept] : impl_->prepared)
    if (kept.trx != nullptr) out.push_back({xid});
  return out;
}

Status Kernel::commit_by_xid(Bytes xid) {
  return impl_->decide_prepared(xid, [this](Trx* trx) {
    Status status = impl_->trxs->commit(trx);
    while (is_no_space(status) && trx->state == TrxState::kPrepared && impl_->free_log_room())
      status = impl_->trxs->commit(trx);
    return status;
  });
}

Status Kernel::rollback_by_xid(Bytes xid) {
  return impl_->decide_prepared(xid, [this](Trx* trx) { return impl_->roll_back(trx); });
}

}  // namespace strata::engine
