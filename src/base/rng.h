// Small seeded generator (xoshiro256**) for tests and sampling. Not thread-safe, not cryptographic.
#pragma once

#include <cstdint>

#include "base/ids.h"

namespace strata {

class Rng {
 public:
  explicit Rng(uint64_t seed) noexcept {
    for (uint64_t& s : s_) s = mix64(seed += 0x9e3779b97f4a7c15ull);
  }
  uint64_t next() noexcept {
    const uint64_t result = rotl(s_[1] * 5, 7) * 9;
    const uint64_t t = s_[1] << 17;
    s_[2] ^= s_[0];
    s_[3] ^= s_[1];
    s_[1] ^= s_[2];
    s_[0] ^= s_[3];
    s_[2] ^= t;
    s_[3] = rotl(s_[3], 45);
    return result;
  }
  uint64_t below(uint64_t n) noexcept { return next() % n; }  // n > 0
  bool one_in(uint64_t n) noexcept { return below(n) == 0; }

 private:
  static uint64_t rotl(uint64_t x, int k) noexcept { return (x << k) | (x >> (64 - k)); }
  uint64_t s_[4];
};

}  // namespace strata
