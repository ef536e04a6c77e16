// Tasks that run one after the other, in the order in which they came, in threads of the owner's
// choice: some that may block, or, of tasks that never do, an IO thread (run_in()). Thread-safe.
//   OT1  A task begins once all before it have ended.
//   OT2  What waits is bounded, in tasks and bytes: post() refuses more. What finishes something
//        that was taken (post_always()) is never refused.
#pragma once

#include <cstdint>
#include <deque>

#include "base/latch.h"
#include "daemon/worker_pool.h"
#include "transport/world.h"

namespace strata::memnode {

class OrderedTasks {
 public:
  using Task = daemon::WorkerPool::Task;
  struct Limits {
    size_t tasks = 1024;
    uint64_t bytes = 64u << 20;
  };
  // `offload` refuses nothing until it is stopped; then no task runs any more.
  OrderedTasks(daemon::Offload offload, const Limits& limits)
      : offload_(std::move(offload)), limits_(limits) {}
  OrderedTasks(const OrderedTasks&) = delete;
  OrderedTasks& operator=(const OrderedTasks&) = delete;

  // False: too much waits; the task was not taken. `bytes`: what it holds.
  [[nodiscard]] bool post(Task task, uint64_t bytes);
  void post_always(Task task);
  // Nothing runs and nothing waits.
  [[nodiscard]] bool idle() const;
  // Blocks until nothing runs; nobody posts any more. Not in a task.
  void wait_idle();

 private:
  struct Waiting {
    Task task;
    uint64_t bytes = 0;
  };
  void run_if_idle();
  void run_all();
  const daemon::Offload offload_;
  const Limits limits_;
  mutable Mutex mutex_{LatchRank::kLeaf};
  std::deque<Waiting> waiting_ STRATA_GUARDED_BY(mutex_);
  uint64_t bytes_ STRATA_GUARDED_BY(mutex_) = 0;
  bool running_ STRATA_GUARDED_BY(mutex_) = false;
  CondVar ended_;
};

// For tasks that never block: they run in the executor's thread, at once if they come from there.
// To wake another thread for each would take longer than most of them. Not where a latch is held.
[[nodiscard]] daemon::Offload run_in(transport::Executor* executor);

}  // namespace strata::memnode
