// Assertions for programmer errors. They stay on in release builds: a wrong kernel must stop, not
// corrupt. Bytes from disk, wire or remote memory are never asserted: they return kDataLoss.
#pragma once

namespace strata::internal {
[[noreturn]] void assert_failed(const char* condition, const char* file, int line) noexcept;
}  // namespace strata::internal

#define STRATA_ASSERT(condition)                                         \
  do {                                                                   \
    if (__builtin_expect(!(condition), 0))                               \
      ::strata::internal::assert_failed(#condition, __FILE__, __LINE__); \
  } while (0)

// For costly checks: only in builds with STRATA_DEBUG_CHECKS (debug, asan).
#ifdef STRATA_DEBUG_CHECKS
#define STRATA_DASSERT(condition) STRATA_ASSERT(condition)
#else
#define STRATA_DASSERT(condition) \
  do {                            \
  } while (0)
#endif
