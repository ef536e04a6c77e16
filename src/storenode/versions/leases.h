// Which old states may still be asked for. Thread-safe; time is the caller's.
//   LE1  The horizon is at most the llsn of every lease that has not expired, and at most the
//        newest llsn that was known `window_us` ago.
//   LE2  It never shrinks, and no lease is given below it.
//   LE3  For `lease_us` after the start it stays as it was before: readers that the last life knew
//        come back. Nothing is to be waited for in a store that never had a horizon.
#pragma once

#include <cstdint>
#include <deque>
#include <unordered_map>

#include "base/ids.h"
#include "base/latch.h"
#include "base/status.h"

namespace strata::storenode {

struct LeaseOptions {
  uint64_t lease_us = 10'000'000;  // a reader that is not heard of for that long has none
  uint64_t window_us = 0;          // of time travel: states this old can be asked for
};

class LeaseTable {
 public:
  // `horizon`: what was collected up to now. `now_us`: the start (LE3).
  LeaseTable(const LeaseOptions& options, Llsn horizon, uint64_t now_us)
      : options_(options),
        horizon_(horizon),
        settled_us_(now_us + (horizon.is_zero() ? 0 : options.lease_us)) {}

  // Gives, renews or moves forward the lease of a reader that reads as of `at` or later.
  // kOutOfRange: that is collected already, or `at` is older than the lease he has.
  // kResourceExhausted: there are thousands of readers.
  Status renew(uint64_t reader, Llsn at, uint64_t now_us);
  void release(uint64_t reader);
  // The newest llsn known at that time; once in a while.
  void observe(Llsn newest, uint64_t now_us);
  // Versions may be collected at it. Forgets leases that have expired.
  Llsn horizon(uint64_t now_us);
  [[nodiscard]] bool settled(uint64_t now_us) const { return now_us >= settled_us_; }  // LE3
  [[nodiscard]] size_t leases() const;

 private:
  struct Lease {
    Llsn at;
    uint64_t expires_us;
  };
  struct Sample {
    uint64_t at_us;
    Llsn newest;
  };
  const LeaseOptions options_;
  mutable Mutex mutex_{LatchRank::kLeaf};
  std::unordered_map<uint64_t, Lease> leases_ STRATA_GUARDED_BY(mutex_);
  std::deque<Sample> samples_ STRATA_GUARDED_BY(mutex_);  // oldest first
  Llsn horizon_ STRATA_GUARDED_BY(mutex_);
  const uint64_t settled_us_;
};

}  // namespace strata::storenode
