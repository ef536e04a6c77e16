#include "clients/fusion/fusion_locks.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/clock.h"
#include "base/wait_interrupt.h"

namespace strata::clients {
namespace {

using State = RowLockClient::Call::State;
constexpr uint64_t kWaitUsMax = uint64_t{365} * 24 * 3600 * 1'000'000;

KeyRange point_of(Bytes key, std::string* behind) {
  behind->assign(key);
  behind->push_back('\0');
  return {key, *behind, false};
}

}  // namespace

class FusionLocks::Sleeper final : public RowLockClient::Call {
 public:
  void changed() noexcept override { wake.notify_all(); }
  CondVar wake;
};

FusionLocks::FusionLocks(NodeId server, uint64_t life, TitReader* others, TitRegion* own,
                         const FusionLocksOptions& options)
    : server_(server),
      others_(others),
      own_(own),
      options_(options),
      client_(server, life, &hints_) {}
FusionLocks::~FusionLocks() = default;

// --- messages ---

void FusionLocks::use(Epoch epoch) {
  const MutexLock lock(mutex_);
  client_.use(epoch);
  say();
}

bool FusionLocks::joined() const {
  const MutexLock lock(mutex_);
  return client_.joined();
}

std::optional<proto::LockBatch> FusionLocks::next_batch(uint64_t wait_us) {
  MutexLock lock(mutex_);
  if (!client_.has_batch()) to_send_.wait_for_us(lock, wait_us);
  return client_.next_batch();
}

proto::LockBatch FusionLocks::poll() const {
  const MutexLock lock(mutex_);
  return client_.poll();
}

// FC59
void FusionLocks::heard(Epoch epoch, const proto::LockReply& reply) {
  MutexLock lock(mutex_);
  std::vector<DeadlockReport> deadlocks = client_.take_deadlocks(epoch, reply);
  const bool tells = !deadlocks.empty() && deadlock_call_ != nullptr;
  if (tells) {
    ++telling_;
    const MutexUnlock unlocked(mutex_);
    for (DeadlockReport& report : deadlocks) add_owners_(&report);
  }
  client_.heard(epoch, reply);
  say();
  if (!tells) return;
  {
    const MutexUnlock unlocked(mutex_);
    for (const DeadlockReport& report : deadlocks) deadlock_call_(report);
  }
  if (--telling_ == 0) told_.notify_all();
}

void FusionLocks::on_deadlock(std::function<void(DeadlockReport* report)> add_owners,
                              std::function<void(const DeadlockReport& report)> call) {
  MutexLock lock(mutex_);
  while (telling_ != 0) told_.wait(lock);
  add_owners_ = std::move(add_owners);
  deadlock_call_ = std::move(call);
}

void FusionLocks::end() {
  const MutexLock lock(mutex_);
  client_.end();
  to_send_.notify_all();
}

bool FusionLocks::ended() const {
  const MutexLock lock(mutex_);
  return client_.ended();
}

RowLockClientCounters FusionLocks::counters() const {
  const MutexLock lock(mutex_);
  return client_.counters();
}

void FusionLocks::say() const {
  if (client_.has_batch()) to_send_.notify_all();
}

// --- waiting ---

void FusionLocks::look(Sleeper* call, const Wish& wish) const {
  const uint64_t look = call->look;
  const TrxId at = call->look_at;
  bool announced = call->told;
  bool held = false;
  {
    const MutexUnlock unlocked(mutex_);
    if (!announced) announced = others_ != nullptr && others_->announce_waiter(at);
    held = (*wish.still_held)();
  }
  client_.looked(call, look, announced, held);
  say();
}

Status FusionLocks::sleep(Sleeper* call, const Wish& wish, MutexLock* lock) const {
  uint64_t poll_at_us = monotonic_us() + options_.poll_us;
  bool ended_at_last_poll = false;
  for (;;) {
    switch (call->state) {
      case State::kDone:
        return ok_status();
      case State::kVictim:
        return error_deadlock();
      case State::kEnded:
        return error_lease_lost("this server does not answer any more");
      case State::kLook:
        look(call, wish);
        continue;
      case State::kAsleep:
        break;
    }
    const uint64_t now_us = monotonic_us();
    if (is_interrupted_now(wish.interrupt) || now_us >= wish.deadline_us) {
      client_.cancel(call);
      say();
      return is_interrupted_now(wish.interrupt) ? error_interrupted() : error_lock_wait_timeout();
    }
    if (wish.still_held != nullptr && now_us >= poll_at_us) {  // FC18
      bool held = true;
      const uint64_t look = call->look;
      {
        const MutexUnlock unlocked(mutex_);
        held = (*wish.still_held)();
      }
      if (call->state != State::kAsleep || call->look != look) continue;
      if (!held && ended_at_last_poll) {
        client_.poll_found(call);
        say();
      }
      ended_at_last_poll = !held;
      poll_at_us = now_us + options_.poll_us;
      continue;
    }
    const uint64_t until_us =
        wish.still_held != nullptr ? std::min(wish.deadline_us, poll_at_us) : wish.deadline_us;
    if (until_us == UINT64_MAX) {
      call->wake.wait(*lock);
    } else {
      call->wake.wait_for_us(*lock, until_us - now_us);
    }
  }
}

Status FusionLocks::wait(TrxId waiter, TrxId holder, RowId row, uint64_t timeout_us,
                         WaitInterrupt* interrupt, const std::function<bool()>& still_held) {
  const bool holds = protects(waiter, row);
  if (timeout_us == 0) {
    const bool held = still_held();
    const MutexLock lock(mutex_);
    const bool again = client_.has_turn(waiter, row);
    if (!held && (again || !client_.has_waiters(row))) return ok_status();
    if (again) client_.settled(waiter, row, false);
    say();
    return error_lock_wait_timeout();
  }
  Sleeper call;
  CondVarSleep alarm(&mutex_, &call.wake);
  const WaitInterrupt::Asleep asleep(interrupt, &alarm);
  const uint64_t deadline_us = monotonic_us() + std::min(timeout_us, kWaitUsMax);
  MutexLock lock(mutex_);
  if (holds && !client_.has_turn(waiter, row)) {
    // Who holds it shared need not queue for a row that nobody else keeps from it.
    bool held = true;
    {
      const MutexUnlock unlocked(mutex_);
      held = still_held();
    }
    if (!held) return ok_status();
  }
  client_.wait(&call, waiter, holder, row, holds);
  say();
  return sleep(&call,
               {.deadline_us = deadline_us, .interrupt = interrupt, .still_held = &still_held},
               &lock);
}

bool FusionLocks::has_waiters(RowId row) const noexcept {
  if (hints_.of(row).load(std::memory_order_acquire) == 0) return false;
  const MutexLock lock(mutex_);
  return client_.has_waiters(row);
}

void FusionLocks::settled(TrxId waiter, RowId row, TrxId holder) {
  if (hints_.of(row).load(std::memory_order_acquire) == 0) return;
  const MutexLock lock(mutex_);
  client_.settled(waiter, row, holder == waiter);
  say();
}

void FusionLocks::holder_ended(TrxId holder) {
  if (holder.is_zero()) return;
  const bool word =
      own_ != nullptr && node_of(holder) == server_ && own_->may_be_waited_for(sequence_of(holder));
  if (!word && hints_.of(holder).fetch_add(0, std::memory_order_acq_rel) == 0) return;
  const MutexLock lock(mutex_);
  client_.holder_ended(holder, word);
  say();
}

// --- shared locks and ranges ---

// One of both: a range, or the row with the key.
void FusionLocks::add(TrxId holder, IndexId index, const KeyRange* range, Bytes key) {
  constexpr KeyRange kWhole{{}, {}, true};
  Sleeper call;
  MutexLock lock(mutex_);
  if (client_.adds_in(holder, index) >= options_.whole_after &&
      !client_.has_whole(holder, index)) {  // FC19
    {
      const MutexUnlock unlocked(mutex_);
      held_.add_range(holder, index, kWhole);
    }
    client_.add_range(&call, holder, index, kWhole);
  } else if (range != nullptr) {
    client_.add_range(&call, holder, index, *range);
  } else {
    client_.add_shared(&call, holder, RowId{index, key});
  }
  say();
  // FC17. Only end() makes it fail, and then nothing that this server says matters any more.
  (void)sleep(&call, {}, &lock);
}

void FusionLocks::add_shared(TrxId holder, RowId row) {
  if (held_.holds_shared(holder, row)) return;
  held_.add_shared(holder, row);
  bool whole = false;
  {
    const MutexLock lock(mutex_);
    whole = client_.has_whole(holder, row.index);
  }
  if (!whole) return add(holder, row.index, nullptr, row.key);
  std::string behind;
  const KeyRange point = point_of(row.key, &behind);
  if (held_.add_range(holder, row.index, point)) add(holder, row.index, &point, {});
}

bool FusionLocks::index_has_shared(IndexId index) const noexcept {
  return hints_.of(index).load(std::memory_order_seq_cst) != 0;
}

TrxId FusionLocks::shared_conflict(TrxId self, RowId row) const {
  const TrxId own = held_.shared_conflict(self, row);
  if (!own.is_zero() || !index_has_shared(row.index)) return own;
  Sleeper call;
  MutexLock lock(mutex_);
  client_.ask_shared(&call, self, row);
  say();
  (void)sleep(&call, {}, &lock);  // FC17
  return call.answer;
}

bool FusionLocks::holds_shared(TrxId holder, RowId row) const {
  return held_.holds_shared(holder, row);
}

Status FusionLocks::wait_for_shared(TrxId waiter, RowId row, uint64_t timeout_us,
                                    WaitInterrupt* interrupt) {
  if (!index_has_shared(row.index)) return ok_status();
  if (timeout_us == 0)
    return shared_conflict(waiter, row).is_zero() ? ok_status() : error_lock_wait_timeout();
  Sleeper call;
  CondVarSleep alarm(&mutex_, &call.wake);
  const WaitInterrupt::Asleep asleep(interrupt, &alarm);
  const uint64_t deadline_us = monotonic_us() + std::min(timeout_us, kWaitUsMax);
  MutexLock lock(mutex_);
  client_.wait_shared(&call, waiter, row);
  say();
  return sleep(&call, {.deadline_us = deadline_us, .interrupt = interrupt}, &lock);
}

void FusionLocks::drop_shared(TrxId holder, RowId row) {
  if (!held_.holds_shared(holder, row)) return;
  held_.drop_shared(holder, row);
  bool whole = false;
  {
    const MutexLock lock(mutex_);
    client_.drop_shared(holder, row);
    whole = client_.has_whole(holder, row.index);
    say();
  }
  if (whole && !held_.protects(holder, row)) drop_range_key(holder, row);
}

void FusionLocks::release_shared(TrxId holder) {
  if (hints_.sharers.load(std::memory_order_acquire) == 0) return;
  held_.release_shared(holder);
  const MutexLock lock(mutex_);
  client_.release_shared(holder);
  say();
}

bool FusionLocks::add_range(TrxId holder, IndexId index, const KeyRange& range) {
  if (!held_.add_range(holder, index, range)) return false;
  add(holder, index, &range, {});
  return true;
}

void FusionLocks::settle_range(TrxId holder, IndexId index, const KeyRange& range) {
  held_.settle_range(holder, index, range);
}

bool FusionLocks::range_settled(TrxId holder, IndexId index, const KeyRange& range) const {
  return held_.range_settled(holder, index, range);
}

bool FusionLocks::protects(TrxId holder, RowId row) const {
  return hints_.sharers.load(std::memory_order_acquire) != 0 && held_.protects(holder, row);
}

void FusionLocks::drop_range_key(TrxId holder, RowId row) {
  held_.drop_range_key(holder, row);
  const MutexLock lock(mutex_);
  client_.drop_range_key(holder, row);
  say();
}

std::string FusionLocks::describe(size_t limit) const {
  Sleeper call;
  MutexLock lock(mutex_);
  client_.describe(&call, limit);
  say();
  (void)sleep(&call, {}, &lock);  // for people: empty if this server has ended
  return call.text;
}

}  // namespace strata::clients
