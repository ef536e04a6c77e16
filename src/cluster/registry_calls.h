// Calls to the registry that go on until it answers. For a thread that may wait.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "base/diag.h"
#include "base/stop_flag.h"
#include "registry/registry.h"

namespace strata::cluster {

constexpr uint64_t kPauseUsMin = 100'000;
constexpr uint64_t kPauseUsMax = 5'000'000;

// Doubles from kPauseUsMin to kPauseUsMax.
class GrowingPause {
 public:
  [[nodiscard]] uint64_t next_us() noexcept {
    return std::exchange(next_us_, std::min(2 * next_us_, kPauseUsMax));
  }
  void reset() noexcept { next_us_ = kPauseUsMin; }

 private:
  uint64_t next_us_ = kPauseUsMin;
};

class RegistryCalls {
 public:
  // All outlive it; `stop` may be null. `timeout_us` of all calls together, 0: none.
  RegistryCalls(registry::Registry* registry, StopFlag* stop, uint64_t timeout_us,
                uint64_t call_timeout_us)
      : registry_(registry),
        stop_(stop != nullptr ? stop : &never_),
        deadline_us_(timeout_us == 0 ? UINT64_MAX : registry->now_us() + timeout_us),
        call_timeout_us_(call_timeout_us) {}

  // `call(deadline_us)` returns a Status or StatusOr; again while the registry cannot be reached.
  // kCancelled: the flag was raised. Otherwise what the last call said, with `what` before it.
  template <class Call>
  auto until_reached(const std::string& what, Call call) -> decltype(call(uint64_t{})) {
    GrowingPause pause;
    for (;;) {
      if (stop_->raised()) return error_interrupted("stopped while " + what);
      const uint64_t now_us = registry_->now_us();
      auto result = call(std::min(deadline_us_, now_us + call_timeout_us_));
      if (result.ok() || !may_be_repeated(status_of(result))) return result;
      const std::string why(status_of(result).message());
      if (registry_->now_us() >= deadline_us_)
        return error_peer_down(
            std::string(what).append(": the registry did not answer in time: ").append(why));
      diag(Severity::kWarning, "%s: the registry does not answer, trying again: %s", what.c_str(),
           why.c_str());
      stop_->wait_for_us(pause.next_us());
    }
  }

 private:
  static const Status& status_of(const Status& status) { return status; }
  template <class Value>
  static const Status& status_of(const StatusOr<Value>& result) {
    return result.status();
  }
  StopFlag never_;
  registry::Registry* const registry_;
  StopFlag* const stop_;
  const uint64_t deadline_us_;
  const uint64_t call_timeout_us_;
};

}  // namespace strata::cluster
