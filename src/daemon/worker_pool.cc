#include "daemon/worker_pool.h"

#include <utility>

#include "base/assert.h"
#include "base/thread_name.h"

namespace strata::daemon {

WorkerPool::WorkerPool(size_t threads, size_t waiting_max) : waiting_max_(waiting_max) {
  for (size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
}

WorkerPool::~WorkerPool() { stop(); }

void WorkerPool::stop() {
  {
    const MutexLock lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

bool WorkerPool::run(Task task) {
  STRATA_ASSERT(task != nullptr);
  {
    const MutexLock lock(mutex_);
    STRATA_ASSERT(tasks_.size() <= waiting_max_);
    if (stopped_ || tasks_.size() >= waiting_max_) return false;
    tasks_.push_back(std::move(task));
  }
  changed_.notify_one();
  return true;
}

size_t WorkerPool::waiting() const {
  const MutexLock lock(mutex_);
  return tasks_.size();
}

void WorkerPool::work() {
  name_this_thread("service");
  for (;;) {
    Task task;
    {
      MutexLock lock(mutex_);
      while (tasks_.empty() && !stopped_) changed_.wait(lock);
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace strata::daemon
