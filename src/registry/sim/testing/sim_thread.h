// Lets a simulated registry live in real time, for tests of what runs threads of its own: leases
// are renewed and handlers called by a thread, as those of a real registry are.
#pragma once

#include <atomic>
#include <thread>

#include "base/clock.h"
#include "base/latch.h"
#include "registry/sim/sim.h"

namespace strata::registry::testing {

class SimThread {
 public:
  SimThread() : thread_([this] { run(); }) {}
  // After the registries of its store, and their leases and watches.
  ~SimThread() {
    {
      const MutexLock lock(mutex_);
      stopped_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  SimThread(const SimThread&) = delete;
  SimThread& operator=(const SimThread&) = delete;

  [[nodiscard]] SimStore& store() { return store_; }
  [[nodiscard]] uint64_t now_us() const { return monotonic_us() + ahead_us_.load(); }
  // Every lease that is shorter runs out at once, as if all processes had slept.
  void leap(uint64_t microseconds) { ahead_us_ += microseconds; }

 private:
  // Changes are not told to this thread: it looks often.
  static constexpr uint64_t kLookUs = 2'000;
  void run() {
    MutexLock lock(mutex_);
    while (!stopped_) {
      lock.unlock();
      store_.run_due();
      lock.lock();
      changed_.wait_for_us(lock, kLookUs, [this]() STRATA_REQUIRES(mutex_) { return stopped_; });
    }
  }
  std::atomic<uint64_t> ahead_us_{0};
  SimStore store_{[this] { return now_us(); }, 1};
  Mutex mutex_{LatchRank::kEngine};
  CondVar changed_;
  bool stopped_ STRATA_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace strata::registry::testing
