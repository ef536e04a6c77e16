// Threads for what must not run in an IO thread, because it blocks. Thread-safe.
//
//   DM5  At most `waiting_max` tasks wait: run() refuses more, and says so.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "base/latch.h"

namespace strata::daemon {

class WorkerPool {
 public:
  using Task = absl::AnyInvocable<void()>;
  WorkerPool(size_t threads, size_t waiting_max);
  ~WorkerPool();  // stop()
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // Runs what waits, then ends the threads. Blocks; not in a task, and by one thread at a time.
  void stop();
  // False: too many wait, or it was stopped; the task was not taken.
  [[nodiscard]] bool run(Task task);
  [[nodiscard]] size_t waiting() const;

 private:
  void work();
  const size_t waiting_max_;
  mutable Mutex mutex_{LatchRank::kLeaf};
  CondVar changed_;
  std::deque<Task> tasks_ STRATA_GUARDED_BY(mutex_);
  bool stopped_ STRATA_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

// Takes a task to a thread that may block, or says false: a WorkerPool's run() in a daemon, at once
// in a simulation.
using Offload = std::function<bool(WorkerPool::Task)>;

}  // namespace strata::daemon
