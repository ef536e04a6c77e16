#include "clients/compute/held_versions.h"

#include <algorithm>

#include "base/assert.h"
#include "base/thread_name.h"

namespace strata::clients {

HeldVersions::HeldVersions(StoragePageSource* pages, uint64_t reader, uint64_t again_us)
    : pages_(pages), reader_(reader), again_us_(again_us) {
  STRATA_ASSERT(reader != 0);
  thread_ = std::thread([this] { work(); });
}

HeldVersions::~HeldVersions() {
  bool holds = false;
  {
    const MutexLock lock(mutex_);
    stopped_ = true;
    holds = holds_;
    changed_.notify_all();
  }
  thread_.join();
  if (holds) pages_->release_versions(reader_);
}

Status HeldVersions::hold(Llsn oldest) {
  const Status held = pages_->hold_versions(reader_, oldest);
  if (!held.ok()) return held;
  const MutexLock lock(mutex_);
  holds_ = true;
  oldest_ = std::max(oldest_, oldest);
  state_ = ok_status();
  changed_.notify_all();
  return held;
}

Status HeldVersions::state() const {
  const MutexLock lock(mutex_);
  return state_;
}

void HeldVersions::work() {
  name_this_thread("held-versions");
  for (;;) {
    Llsn oldest;
    {
      MutexLock lock(mutex_);
      changed_.wait(lock, [this]() STRATA_REQUIRES(mutex_) { return stopped_ || holds_; });
      changed_.wait_for_us(lock, again_us_, [this]() STRATA_REQUIRES(mutex_) { return stopped_; });
      if (stopped_) return;
      oldest = oldest_;
    }
    const Status held = pages_->hold_versions(reader_, oldest);
    const MutexLock lock(mutex_);
    // One that was moved forward meanwhile is refused the older one, and has the newer.
    if (oldest == oldest_) state_ = held;
  }
}

}  // namespace strata::clients
