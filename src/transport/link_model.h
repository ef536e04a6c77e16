// A slower link than the real one, for experiments: latency and bandwidth, shared by whatever is
// given the same model (a node's network card). Thread-safe.
//
//   ML1  An exchange ends no earlier than it would have over the modelled link, and is not delayed
//        beyond that: what the real path took counts as part of it, the server's own time apart.
//   ML2  Each direction carries its bytes one after the other: done_at = max(now, link_free) +
//        bytes / bandwidth + latency, link_free growing by the second term only.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/latch.h"
#include "base/status.h"

namespace strata::transport {

struct LinkSpeed {
  uint64_t round_trip_ns = 0;
  uint64_t bytes_per_second = 0;  // each way; 0: no limit
};
// "none", "1g" (300 us, 125 MB/s), "10g" (300 us, 1.25 GB/s), "30g" (170 us, 3.75 GB/s), "rdma25g"
// (3 us, 3.1 GB/s). Error: kInvalidArgument.
StatusOr<LinkSpeed> link_speed(std::string_view preset);

class LinkModel {
 public:
  explicit LinkModel(const LinkSpeed& speed) noexcept : speed_(speed) {}
  // A request of so many bytes is handed over at `now_ns`. Returns when it would arrive.
  uint64_t request(uint64_t now_ns, uint64_t bytes) noexcept;
  // Its reply, after the server's own time. Returns when it would be there (ML1).
  uint64_t reply(uint64_t arrival_ns, uint64_t service_ns, uint64_t bytes) noexcept;
  // The whole of an operation that costs the peer no time.
  uint64_t round_trip(uint64_t now_ns, uint64_t bytes_out, uint64_t bytes_in) noexcept {
    return reply(request(now_ns, bytes_out), 0, bytes_in);
  }

 private:
  uint64_t pass(uint64_t* free_ns, uint64_t now_ns, uint64_t bytes) noexcept;
  const LinkSpeed speed_;
  Mutex mutex_{LatchRank::kLeaf};
  uint64_t out_free_ns_ STRATA_GUARDED_BY(mutex_) = 0;
  uint64_t in_free_ns_ STRATA_GUARDED_BY(mutex_) = 0;
};

// Blocks until then: sleeps while that is safe, yields the last moments (a sleep ends 14 to 24 us
// late). Only for modelled links.
void sleep_until_ns(uint64_t when_ns) noexcept;

}  // namespace strata::transport
