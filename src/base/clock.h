// Monotonic time in microseconds. Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>

namespace strata {
inline uint64_t monotonic_us() noexcept {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}
}  // namespace strata
