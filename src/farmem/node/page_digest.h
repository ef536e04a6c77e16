// A digest of a page under a random key that nobody else knows: the sum over its 256 pairs of words
// (word + key) * (word + key), modulo 2^128. Two different pages, whatever they are, have the same
// one with a probability of at most 2^-64, provided that who chose them does not know the key: the
// classic bound of this family of functions. So it tells unchanged pages from changed ones and what
// was written last from anything else. About 0.2 us.
#pragma once

#include <array>
#include <cstdint>

#include "farmem/policy/policy_options.h"
#include "transport/secret.h"

namespace strata::farmem {

struct Digest {
  uint64_t low = 0;
  uint64_t high = 0;
  friend bool operator==(const Digest&, const Digest&) = default;
};

class PageDigest {
 public:
  explicit PageDigest(transport::Entropy* entropy) {
    entropy->fill(reinterpret_cast<char*>(key_.data()), sizeof key_);
    const std::array<char, kPageBytes> zeros{};
    zero_ = of(zeros.data());
  }
  [[nodiscard]] Digest of(const char* page) const noexcept;
  [[nodiscard]] Digest of_zeros() const noexcept { return zero_; }

 private:
  std::array<uint64_t, kPageBytes / sizeof(uint64_t)> key_;
  Digest zero_;
};

}  // namespace strata::farmem
