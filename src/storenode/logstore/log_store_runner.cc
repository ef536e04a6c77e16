#include "storenode/logstore/log_store_runner.h"

#include <utility>

#include "base/diag.h"
#include "base/thread_name.h"

namespace strata {

LogStoreRunner::LogStoreRunner(LogStore* store, std::function<bool()> may_gather)
    : store_(store),
      may_gather_(std::move(may_gather)),
      persister_([this] { persist(); }),
      helper_([this] { keep_up(); }) {}

LogStoreRunner::~LogStoreRunner() {
  store_->stop();
  persister_.join();
  {
    const MutexLock lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  helper_.join();
  const Status closed = store_->close();
  if (!closed.ok())
    diag(Severity::kWarning, "closing the log store: %s", std::string(closed.message()).c_str());
}

void LogStoreRunner::persist() {
  name_this_thread("log-persist");
  while (store_->wait_for_work()) {
    if (may_gather_ && may_gather_()) store_->gather();
    store_->persist_pending();
    if (!store_->upkeep_is_due()) continue;
    {
      const MutexLock lock(mutex_);
      look_ = true;
    }
    changed_.notify_all();
  }
}

void LogStoreRunner::keep_up() {
  name_this_thread("log-upkeep");
  MutexLock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&]() STRATA_REQUIRES(mutex_) { return look_ || stopped_; });
    if (stopped_) return;
    look_ = false;
    lock.unlock();
    store_->upkeep();
    lock.lock();
  }
}

}  // namespace strata
