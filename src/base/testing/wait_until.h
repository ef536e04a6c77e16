// For tests: waiting for something another thread brings about, instead of sleeping and hoping.
#pragma once

#include <cstdint>
#include <thread>

#include "base/clock.h"

namespace strata::testing {

// False: the condition did not come true within ten seconds. It is looked at again and again, so it
// should be cheap.
template <typename Condition>
bool wait_until(const Condition& condition) {
  const uint64_t deadline = monotonic_us() + 10'000'000;
  while (!condition()) {
    if (monotonic_us() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(500));
  }
  return true;
}

}  // namespace strata::testing
