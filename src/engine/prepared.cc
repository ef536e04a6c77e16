// Prepared transactions without a session: kept for commit or rollback by xid (XA, two-phase
// commit).
#include <algorithm>

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
  const uint64_t deadline = monotonic_us() + waiter->lock_wait_timeout_us;
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
