// The threads that drive a LogStore in a daemon: one makes batches as they come, one fills spare
// files beside it. While a batch is being synced the next one gathers.
#pragma once

#include <functional>
#include <thread>

#include "base/latch.h"
#include "storenode/logstore/log_store.h"

namespace strata {

class LogStoreRunner {
 public:
  // `may_gather`: asked before each batch whether appends may wait for more (LG11); null: never.
  explicit LogStoreRunner(LogStore* store, std::function<bool()> may_gather = nullptr);
  ~LogStoreRunner();  // finishes what is queued, then closes the store
  LogStoreRunner(const LogStoreRunner&) = delete;
  LogStoreRunner& operator=(const LogStoreRunner&) = delete;

 private:
  void persist();
  void keep_up();
  LogStore* const store_;
  const std::function<bool()> may_gather_;
  Mutex mutex_{LatchRank::kLogStore};
  CondVar changed_;
  bool look_ STRATA_GUARDED_BY(mutex_) = false;  // the helper has something to do
  bool stopped_ STRATA_GUARDED_BY(mutex_) = false;
  std::thread persister_;
  std::thread helper_;
};

}  // namespace strata
