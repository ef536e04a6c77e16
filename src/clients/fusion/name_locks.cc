#include "clients/fusion/name_locks.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/assert.h"
#include "base/diag.h"
#include "base/thread_name.h"
#include "base/wait_interrupt.h"

namespace strata::clients {

using proto::NameMode;

namespace {
constexpr uint64_t kLeaseAgainUs = 5'000;
}  // namespace

// A thread that waits for a name, until it is answered, interrupted, or has waited long enough.
class NameLocks::Sleeping final : public NameHolds::Request {
 public:
  using Request::Request;
  void answered() noexcept override {
    const MutexLock lock(mutex_);
    answered_ = true;
    changed_.notify_one();
  }
  // False: it is not answered.
  bool wait_until(uint64_t end_us, WaitInterrupt* interrupt) {
    CondVarSleep sleep(&mutex_, &changed_);
    const WaitInterrupt::Asleep asleep(interrupt, &sleep);
    MutexLock lock(mutex_);
    while (!answered_) {
      const uint64_t now_us = monotonic_us();
      if (now_us >= end_us || is_interrupted_now(interrupt)) return false;
      changed_.wait_for_us(lock, end_us - now_us);
    }
    return true;
  }
  void wait_answered() {
    MutexLock lock(mutex_);
    while (!answered_) changed_.wait(lock);
  }

 private:
  Mutex mutex_{LatchRank::kLeaf};
  CondVar changed_;
  bool answered_ = false;  // mutex_
};

NameLocks::NameLocks(const NameLocksOptions& options, Epoch epoch, const LeaseCheck* lease,
                     NameService* service)
    : options_(options),
      epoch_(epoch.value),
      lease_(lease),
      service_(service),
      holds_(options.holds, [this] {
        const MutexLock lock(mutex_);
        has_work_ = true;
        ++work_;
        changed_.notify_all();
        to_give_up_.notify_all();
      }) {}

NameLocks::~NameLocks() { stop(); }

void NameLocks::heard(const Status& status) {
  if (is_fenced(status)) fenced(status);
}

void NameLocks::fenced(const Status& why) {
  holds_.end(why);
  const MutexLock lock(mutex_);
  space_is_left_.notify_all();
}

// --- whose it is ---

Status NameLocks::join(NodeId, SchemaUser* user) {
  {
    const MutexLock lock(mutex_);
    STRATA_ASSERT(user_ == nullptr && !stopping_);
    user_ = user;
  }
  threads_.emplace_back([this] { send(); });
  for (uint32_t i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { give_up(); });
  return ok_status();
}

Status NameLocks::has_recovered(NodeId) {
  const Status adopted = service_->adoption_ended();
  heard(adopted);
  return adopted;
}

void NameLocks::stop() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
    to_give_up_.notify_all();
    space_is_left_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void NameLocks::leave(NodeId) noexcept {
  stop();
  {
    const MutexLock lock(mutex_);
    user_ = nullptr;
  }
  holds_.end(error_ended("this server has left the others"));
}

// --- names ---

// Everybody's asks that are not sent yet, in one call. Those that are lost are asked again after a
// while (NameHolds::repeat()).
void NameLocks::ask() {
  const std::vector<proto::NameAsk> asks = holds_.take_asks();
  if (asks.empty()) return;
  const InterruptScope carried_through(nullptr);
  heard(service_->ask(asks));
}

void NameLocks::report() {
  std::vector<proto::NameReport> reports = holds_.take_reports();
  if (reports.empty()) return;
  const Status status = service_->report(reports);
  heard(status);
  if (!status.ok()) holds_.reports_failed(std::move(reports));
}

Status NameLocks::acquire(Bytes name, NameMode mode, uint64_t timeout_us,
                          WaitInterrupt* interrupt) {
  const uint64_t now_us = monotonic_us();
  const uint64_t end_us = timeout_us < UINT64_MAX - now_us ? now_us + timeout_us : UINT64_MAX;
  Sleeping request(name, mode);
  if (!holds_.acquire(&request, now_us)) {
    ask();
    if (!request.wait_until(end_us, interrupt)) {
      if (holds_.cancel(&request, monotonic_us()))
        return is_interrupted_now(interrupt) ? error_interrupted() : error_lock_wait_timeout();
      request.wait_answered();  // it is being answered
    }
  }
  STRATA_RETURN_IF_ERROR(request.status);
  const Status may = wait_for_lease(end_us, interrupt);  // FC45
  if (!may.ok() && mode != NameMode::kUse) holds_.unlock(name, monotonic_us());
  return may;
}

Status NameLocks::wait_for_lease(uint64_t end_us, WaitInterrupt* interrupt) {
  Mutex mutex(LatchRank::kLeaf);
  CondVar never;
  while (!lease_->valid(Epoch{epoch_.load()})) {
    STRATA_RETURN_IF_ERROR(holds_.ended());
    if (monotonic_us() >= end_us)
      return error_lease_lost("this server has no lease from the memory node at the moment");
    CondVarSleep sleep(&mutex, &never);
    const WaitInterrupt::Asleep asleep(interrupt, &sleep);
    MutexLock lock(mutex);
    if (is_interrupted_now(interrupt)) return error_interrupted();
    never.wait_for_us(lock, kLeaseAgainUs);
  }
  return ok_status();
}

std::vector<proto::HeldName> NameLocks::renew(Epoch epoch) {
  epoch_.store(epoch.value);
  return holds_.renew(monotonic_us());
}

Status NameLocks::use(NodeId, Bytes name, uint64_t timeout_us, WaitInterrupt* interrupt) {
  return acquire(name, NameMode::kUse, timeout_us, interrupt);
}

Status NameLocks::lock(NodeId, Bytes name, uint64_t timeout_us, WaitInterrupt* interrupt) {
  return acquire(name, NameMode::kExclusive, timeout_us, interrupt);
}

Status NameLocks::share(NodeId, Bytes name, uint64_t timeout_us, WaitInterrupt* interrupt) {
  return acquire(name, NameMode::kShared, timeout_us, interrupt);
}

void NameLocks::unlock(NodeId, Bytes name) noexcept { holds_.unlock(name, monotonic_us()); }

void NameLocks::send() {
  name_this_thread("name-locks");
  uint64_t looked_us = monotonic_us();
  for (;;) {
    {
      MutexLock lock(mutex_);
      if (!has_work_ && !stopping_) changed_.wait_for_us(lock, options_.look_us);
      if (stopping_) return;
      has_work_ = false;
    }
    report();
    ask();
    if (monotonic_us() - looked_us < options_.look_us) continue;
    looked_us = monotonic_us();
    report();  // those that could not be sent before
    holds_.repeat(looked_us);
  }
}

// FC39.
void NameLocks::give_up() {
  name_this_thread("name-give-up");
  for (;;) {
    std::optional<SpaceId> space;
    uint64_t seen = 0;
    SchemaUser* user = nullptr;
    {
      const MutexLock lock(mutex_);
      if (stopping_) return;
      if (!to_leave_.empty()) {
        space = *to_leave_.begin();
        to_leave_.erase(to_leave_.begin());
        leaving_.insert(*space);
      }
      seen = work_;
      user = user_;
    }
    if (space.has_value()) {
      leave_one(user, *space);
      continue;
    }
    const std::optional<std::string> name = holds_.take_ready();
    if (!name.has_value()) {
      MutexLock lock(mutex_);
      while (!stopping_ && to_leave_.empty() && work_ == seen) to_give_up_.wait(lock);
      continue;
    }
    const Status forgotten = user->give_up(*name, options_.try_us);
    holds_.gave_up(*name, forgotten.ok(), monotonic_us());
  }
}

// --- spaces ---

void NameLocks::asked_to_leave(const proto::SpaceLeave& leave) {
  const MutexLock lock(mutex_);
  if (leaving_.contains(leave.space)) return;  // it is being left
  to_leave_.insert(leave.space);
  to_give_up_.notify_one();
}

// FC42. If it fails it is asked again.
void NameLocks::leave_one(SchemaUser* user, SpaceId space) {
  const Status left = user->leave_space(space);
  if (left.ok()) {
    heard(service_->has_left({space}));
  } else {
    diag(Severity::kWarning, "a space that another server has dropped cannot be left yet: %s",
         std::string(left.message()).c_str());
  }
  const MutexLock lock(mutex_);
  leaving_.erase(space);
}

void NameLocks::is_left(const proto::SpaceIsLeft&) {
  const MutexLock lock(mutex_);
  ++spaces_heard_;
  space_is_left_.notify_all();
}

Status NameLocks::space_dropped(NodeId, SpaceId space) {
  const uint64_t end_us = monotonic_us() + options_.space_wait_us;
  for (;;) {
    uint64_t heard_before = 0;
    {
      const MutexLock lock(mutex_);
      heard_before = spaces_heard_;
    }
    const StatusOr<bool> left = service_->space_dropped(space);
    heard(left.status());
    STRATA_RETURN_IF_ERROR(left.status());
    if (*left)
      return lease_->valid(Epoch{epoch_.load()})
                 ? ok_status()
                 : error_lease_lost("this server has no lease from the memory node at the moment");
    MutexLock lock(mutex_);
    for (;;) {
      const uint64_t now_us = monotonic_us();
      if (stopping_ || now_us >= end_us)
        return error_peer_down("not all servers have left a space that was dropped yet");
      if (spaces_heard_ != heard_before) break;
      // What was said of it may be lost: asked again after a while.
      if (!space_is_left_.wait_for_us(lock, std::min<uint64_t>(end_us - now_us, 500'000))) break;
    }
  }
}

}  // namespace strata::clients
