// Raised once, when something shall end; others wait for it instead of sleeping. Thread-safe; not
// for signal handlers.
#pragma once

#include <cstdint>

#include "base/latch.h"

namespace strata {

class StopFlag {
 public:
  void raise() {
    {
      const MutexLock lock(mutex_);
      raised_ = true;
    }
    changed_.notify_all();
  }
  [[nodiscard]] bool raised() const {
    const MutexLock lock(mutex_);
    return raised_;
  }
  void wait() {
    MutexLock lock(mutex_);
    changed_.wait(lock, [this]() STRATA_REQUIRES(mutex_) { return raised_; });
  }
  // Pauses so long, or until it is raised: true.
  bool wait_for_us(uint64_t microseconds) {
    MutexLock lock(mutex_);
    return changed_.wait_for_us(lock, microseconds,
                                [this]() STRATA_REQUIRES(mutex_) { return raised_; });
  }

 private:
  mutable Mutex mutex_{LatchRank::kLeaf};
  CondVar changed_;
  bool raised_ STRATA_GUARDED_BY(mutex_) = false;
};

}  // namespace strata
