// Emulated time: what a dilated clock shows at a real time, and the way back. Pure, thread-safe.
//   TD1  Emulated time runs `factor` times slower than real time from a common origin, so clocks of
//        all processes with the same origin agree.
//   TD2  The way back is rounded up: who sleeps until real_of(t) reads t or later afterwards.
#pragma once

#include <cstdint>
#include <limits>

namespace strata::dilate {

// In thousandths: 1000 is real time, 6000 six times slower.
struct Factor {
  uint64_t milli = 1000;
};
constexpr uint64_t kFactorMilliMax = 1'000'000;

struct DilatedClock {
  Factor factor;
  int64_t origin_ns = 0;  // real and emulated time are the same there

  [[nodiscard]] constexpr int64_t shown(int64_t real_ns) const noexcept {
    return origin_ns + floor_of(__int128{real_ns - origin_ns} * 1000, factor.milli);
  }
  [[nodiscard]] constexpr int64_t real_of(int64_t shown_ns) const noexcept {
    return clamped(
        __int128{origin_ns} -
        floor_of(-(__int128{shown_ns} - origin_ns) * static_cast<int64_t>(factor.milli), 1000));
  }

 private:
  static constexpr int64_t floor_of(__int128 number, uint64_t divisor) noexcept {
    const __int128 by = divisor;
    return clamped(number >= 0 ? number / by : -((-number + by - 1) / by));
  }
  static constexpr int64_t clamped(__int128 number) noexcept {
    constexpr __int128 kMost = std::numeric_limits<int64_t>::max();
    return static_cast<int64_t>(number > kMost ? kMost : number < -kMost ? -kMost : number);
  }
};

// A length of emulated time in real time, rounded up, and the other way, rounded down. Those below
// zero stay (no time limit), and what is too long becomes the longest there is.
constexpr int64_t stretched(int64_t emulated, Factor factor) noexcept {
  if (emulated <= 0) return emulated;
  const __int128 real = (__int128{emulated} * static_cast<int64_t>(factor.milli) + 999) / 1000;
  constexpr __int128 kMost = std::numeric_limits<int64_t>::max();
  return static_cast<int64_t>(real < kMost ? real : kMost);
}
constexpr int64_t shrunk(int64_t real, Factor factor) noexcept {
  if (real <= 0) return real;
  return static_cast<int64_t>(__int128{real} * 1000 / static_cast<int64_t>(factor.milli));
}

}  // namespace strata::dilate
