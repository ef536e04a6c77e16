// Named points at which a test makes the process crash, fail or pause. Cost when unarmed: one
// relaxed load of a global. Armed by arm_fault() or by the environment:
// STRATA_FAULT="name:nth[:action]", where action is crash (default: SIGKILL to self), error (the
// point reports failure once), errors=N (from the nth pass on, N times), fail (from then on for
// ever) or pause_ms=N.
//
// STRATA_FAULT_FILE names a file by which a test arms points of a process that runs already: one
// such spec a line. Each pass of a point looks whether the file has changed; once it is gone, what
// it had armed is disarmed. The first failure that a line causes is noted in a file beside it with
// the suffix ".struck", one point a line. Make the file elsewhere and rename it into its place.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

namespace strata {

enum class FaultPoint : uint16_t {
#define STRATA_FAULT_POINT(name, doc) name,
#include "base/fault_points.def"
#undef STRATA_FAULT_POINT
  count
};

namespace internal {
extern std::atomic<uint32_t> faults_armed;
bool fault_hit(FaultPoint point) noexcept;  // true: the caller must report an error
}  // namespace internal

// Parses "name:nth[:action]". Returns false if it does not parse. Thread-safe.
bool arm_fault(std::string_view spec) noexcept;
void arm_fault_from_environment() noexcept;
// What STRATA_FAULT_FILE does, until disarm_faults().
void watch_fault_file(std::string_view path) noexcept;
void disarm_faults() noexcept;
// A test may replace the crash (SIGKILL) with its own function, e.g. to freeze an in-process store.
void set_fault_crash_handler(void (*handler)(FaultPoint)) noexcept;
std::string_view fault_point_name(FaultPoint point) noexcept;

// Returns true when an armed "error" action asks the caller to fail.
inline bool fault(FaultPoint point) noexcept {
  if (__builtin_expect(internal::faults_armed.load(std::memory_order_relaxed) == 0, 1))
    return false;
  return internal::fault_hit(point);
}

}  // namespace strata
