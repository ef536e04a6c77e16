#include "fusion/timestamps/oracle.h"

#include <algorithm>

#include "proto/fusion.h"

namespace strata::fusion {

Oracle::Oracle(const OracleOptions& options, uint64_t durable_ceiling) noexcept
    : options_(options), start_(std::max<uint64_t>(durable_ceiling, 1)), wanted_(start_) {}

uint64_t Oracle::wanted_ceiling(uint64_t clock) noexcept {
  const uint64_t at = std::min(clock, proto::kCtsMax);  // a word that others write: may be anything
  if (at + options_.step / 2 >= wanted_)
    wanted_ = std::min(std::max(at, wanted_) + options_.step, proto::kCtsMax);
  return wanted_;
}

}  // namespace strata::fusion
