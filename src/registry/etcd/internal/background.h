// The registry's one thread: posted tasks, timers and HTTP exchanges, one callback at a time.
//   BK1  Callbacks run in the thread, none inside a call of this class.
//   BK2  After cancel() of a timer or an exchange its callbacks are not called.
// Sleeps when there is nothing to do.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "base/latch.h"
#include "registry/etcd/internal/http.h"

namespace strata::registry::internal {

class Background {
 public:
  using Task = absl::AnyInvocable<void()>;
  using Done = absl::AnyInvocable<void(HttpOutcome)>;
  using Lines = absl::AnyInvocable<void(std::vector<std::string>)>;
  using Id = uint64_t;  // 0: none

  Background();
  ~Background();  // not in the thread; what has not run is destroyed
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  // --- any thread ---
  void post(Task task);
  void run_and_wait(Task task);  // blocks; at once in the thread itself
  [[nodiscard]] bool in_thread() const noexcept;

  // --- in the thread ---
  Id run_at(uint64_t when_us, Task task);  // of base/clock.h's clock
  // `done` comes once, unless canceled; `lines` as often as lines of a stream come.
  Id start(HttpRequest request, Done done, Lines lines = nullptr);
  void cancel(Id* id);  // a timer or an exchange, or 0; makes it 0

 private:
  struct Transfer {
    HttpExchange exchange;
    Done done;
    Lines lines;
    bool finished = false;
  };
  void run();
  void run_posted();
  void run_timers();
  void pass_on_lines();
  void pass_on_ends();
  std::unique_ptr<Transfer> take_out(Id id);
  [[nodiscard]] int sleep_ms() const;

  CURLM* const multi_;
  Id last_id_ = 0;
  std::multimap<uint64_t, std::pair<Id, Task>> timers_;  // by time
  std::map<Id, std::unique_ptr<Transfer>> transfers_;
  // Exchanges that were canceled, perhaps from a callback of their own, which must outlive it.
  std::vector<std::unique_ptr<Transfer>> canceled_;

  Mutex mutex_{LatchRank::kLeaf};
  CondVar ran_;
  std::vector<Task> posted_ STRATA_GUARDED_BY(mutex_);
  bool stopping_ STRATA_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: starts when all else is there
};

}  // namespace strata::registry::internal
