// How far timestamps may go. A pure state machine: the clock itself is a word in memory that
// servers add to by themselves (proto/fusion.h).
//
//   FT1  (FU5) A timestamp counts only if it is at or below the ceiling, and the ceiling is shown
//        once a durable record of the authority's says so. So no timestamp above a durable ceiling
//        was ever used, and a successor whose clock begins there gives none that was used, or that
//        is below one that was.
//   FT2  The ceiling is raised half a step before the clock comes to it; and above the clock where
//        that was too late.
//   FT3  It stays within what a slot of the table of transactions can hold (48 bits).
#pragma once

#include <cstdint>

namespace strata::fusion {

struct OracleOptions {
  uint64_t step = 1'000'000;
};

class Oracle {
 public:
  // `durable_ceiling`: of the last record; 0: there never was one.
  Oracle(const OracleOptions& options, uint64_t durable_ceiling) noexcept;
  // What the clock's word is set to before any server sees it.
  [[nodiscard]] uint64_t start() const noexcept { return start_; }
  // The ceiling to make durable, given where the clock is now. Only grows.
  uint64_t wanted_ceiling(uint64_t clock) noexcept;

 private:
  const OracleOptions options_;
  const uint64_t start_;
  uint64_t wanted_;
};

}  // namespace strata::fusion
