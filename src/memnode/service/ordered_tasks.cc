#include "memnode/service/ordered_tasks.h"

#include <utility>

namespace strata::memnode {

bool OrderedTasks::post(Task task, uint64_t bytes) {
  {
    const MutexLock lock(mutex_);
    const bool full =
        waiting_.size() >= limits_.tasks || (!waiting_.empty() && bytes_ + bytes > limits_.bytes);
    if (full) return false;
    waiting_.push_back({std::move(task), bytes});
    bytes_ += bytes;
  }
  run_if_idle();
  return true;
}

void OrderedTasks::post_always(Task task) {
  {
    const MutexLock lock(mutex_);
    waiting_.push_back({std::move(task), 0});
  }
  run_if_idle();
}

bool OrderedTasks::idle() const {
  const MutexLock lock(mutex_);
  return !running_ && waiting_.empty();
}

void OrderedTasks::wait_idle() {
  MutexLock lock(mutex_);
  while (running_) ended_.wait(lock);
}

void OrderedTasks::run_if_idle() {
  {
    const MutexLock lock(mutex_);
    if (running_ || waiting_.empty()) return;
    running_ = true;
  }
  if (offload_([this] { run_all(); })) return;
  const MutexLock lock(mutex_);
  running_ = false;  // it was stopped: what waits goes with this object
  ended_.notify_all();
}

void OrderedTasks::run_all() {
  for (;;) {
    Waiting next;
    {
      const MutexLock lock(mutex_);
      if (waiting_.empty()) {
        running_ = false;
        ended_.notify_all();
        return;
      }
      next = std::move(waiting_.front());
      waiting_.pop_front();
      bytes_ -= next.bytes;
    }
    next.task();
  }
}

daemon::Offload run_in(transport::Executor* executor) {
  return [executor](daemon::WorkerPool::Task task) {
    if (executor->in_thread())
      task();
    else
      executor->run_or_post(std::move(task));
    return true;
  };
}

}  // namespace strata::memnode
