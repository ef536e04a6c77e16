// Whether a replica may let its appends wait for more, so that one sync makes several of them
// durable: as long as the others are a write quorum without it, nobody waits for its answer. It
// finds out by trying, since it cannot know who is well. Not thread-safe.
//   GA1  A wait is good if bytes that are not durable here were said to be quorum-durable by its
//        end. One follows the other while they are good; after one that was not, which may have
//        kept a commit waiting, the next is tried later, each time twice as long, up to kTryUsMax.
//   GA2  One replica of a group does so: if two of three did, each would see commits go on,
//        whenever the other one's wait ends, and neither that they do so slowly.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/assert.h"

namespace strata::logstore {

class GatherPolicy {
 public:
  static constexpr uint64_t kTryUsMin = 20'000;
  static constexpr uint64_t kTryUsMax = 4'000'000;

  [[nodiscard]] bool may_wait(uint64_t now_us) const noexcept { return now_us >= try_at_us_; }
  void waited(bool good, uint64_t now_us) noexcept {
    STRATA_ASSERT(interval_us_ <= kTryUsMax);
    interval_us_ = good ? 0 : std::clamp(2 * interval_us_, kTryUsMin, kTryUsMax);
    try_at_us_ = now_us + interval_us_;
  }

 private:
  uint64_t interval_us_ = 0;
  uint64_t try_at_us_ = 0;
};

}  // namespace strata::logstore
