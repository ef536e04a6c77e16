// Monotonic time in nanoseconds, of the same clock as base/clock.h. Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>

namespace strata::transport {
inline uint64_t monotonic_ns() noexcept {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}
}  // namespace strata::transport
