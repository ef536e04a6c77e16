// The calls of a server that is one of several to its memory node: under the epoch of now, as one
// life. Thread-safe; blocks.
//
//   FC50  The memory node that has ended under an epoch (withdrawn) is not the end of the server:
//         it goes on at the next one under another epoch (go_on()), or is told that it is fenced,
//         by whoever renews the lease. Calls that fail meanwhile may be made again: to their
//         callers that is peer_down.
//   FC64  A memory node of another build is the end of this life: what it refuses once it always
//         refuses, and the server says why it ends in place of waiting until its lease runs out.
//   FC20  A call ends within call_us_max and what its request lets the memory node wait. Calls that
//         may be repeated end when the thread's WaitInterrupt says so (BC4).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "proto/page_locks.h"
#include "transport/calls/blocking_channel.h"

namespace strata::clients {

class RemoteCalls {
 public:
  RemoteCalls(std::shared_ptr<transport::BlockingChannel> channel, const proto::PageCaller& caller,
              uint64_t call_us_max = 2'000'000)
      : channel_(std::move(channel)),
        server_(caller.server),
        life_(caller.life),
        epoch_(caller.epoch.value),
        call_us_max_(call_us_max) {}

  // The reply's bytes. No latch may be held. Errors: the memory node's (memnode/fusion), and as
  // CA1.
  StatusOr<std::string> call(uint16_t method, Bytes request, uint64_t wait_us = 0);
  // The same for whoever looks after that: withdrawn is told.
  StatusOr<std::string> call_as_is(uint16_t method, Bytes request, uint64_t wait_us = 0);
  [[nodiscard]] proto::PageCaller caller() const noexcept { return caller_under(epoch()); }
  [[nodiscard]] proto::PageCaller caller_under(Epoch epoch) const noexcept {
    return {server_, life_, epoch};
  }
  [[nodiscard]] NodeId server() const noexcept { return server_; }
  [[nodiscard]] Epoch epoch() const noexcept { return Epoch{epoch_.load()}; }
  void go_on(Epoch epoch) noexcept { epoch_.store(epoch.value); }
  [[nodiscard]] const std::shared_ptr<transport::BlockingChannel>& channel() const noexcept {
    return channel_;
  }

 private:
  const std::shared_ptr<transport::BlockingChannel> channel_;
  const NodeId server_;
  const uint64_t life_;
  std::atomic<uint64_t> epoch_;
  const uint64_t call_us_max_;
};

// The memory node says that this server is not one of those any more: nothing that this life says
// will ever count again. Or it is of another build, and refuses this call for as long as it lives
// (FC64).
[[nodiscard]] inline bool has_ended(const Status& status) noexcept {
  return is_fenced(status) || is_unsupported(status);
}

// A part of a list that does not fit into one message.
template <class T>
std::vector<T> part_of(const std::vector<T>& all, size_t from, size_t max) {
  const auto begin = all.begin() + static_cast<ptrdiff_t>(from);
  return std::vector<T>(begin, begin + static_cast<ptrdiff_t>(std::min(max, all.size() - from)));
}

}  // namespace strata::clients
