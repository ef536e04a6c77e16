// For tests: builds with sanitizers take five to fifteen times as long for the same, and run after
// a release build that did all of it; so there they repeat less.
#pragma once

#include <cstdint>

namespace strata::testing {

#ifdef __SANITIZE_THREAD__
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif
#ifdef __SANITIZE_ADDRESS__
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif

// How often by default.
constexpr uint64_t fewer_if_sanitized(uint64_t usual, uint64_t sanitized) noexcept {
  return kThreadSanitizer || kAddressSanitizer ? sanitized : usual;
}

}  // namespace strata::testing
