// The calls of a server that is one of several to its memory node: under one epoch, as one life.
// Thread-safe; blocks.
//
//   FC20  A call ends within call_us_max and what its request lets the memory node wait. Calls that
//         may be repeated end when the thread's WaitInterrupt says so (BC4).
#pragma once

#include <algorithm>
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
      : channel_(std::move(channel)), caller_(caller), call_us_max_(call_us_max) {}

  // The reply's bytes. No latch may be held. Errors: the memory node's (memnode/fusion), and as
  // CA1.
  StatusOr<std::string> call(uint16_t method, Bytes request, uint64_t wait_us = 0);
  // The same, where a memory node that has ended is as good as one that has fenced this server: it
  // knew what the server holds, and its successor does not (FC22).
  StatusOr<std::string> call_member(uint16_t method, Bytes request, uint64_t wait_us = 0);
  [[nodiscard]] const proto::PageCaller& caller() const noexcept { return caller_; }
  [[nodiscard]] const std::shared_ptr<transport::BlockingChannel>& channel() const noexcept {
    return channel_;
  }

 private:
  const std::shared_ptr<transport::BlockingChannel> channel_;
  const proto::PageCaller caller_;
  const uint64_t call_us_max_;
};

// The memory node says that this server is not one of those any more, or that it serves no more
// under this epoch: nothing that this life says will ever count again.
[[nodiscard]] inline bool has_ended(const Status& status) noexcept {
  return is_fenced(status) || is_withdrawn(status);
}

// A part of a list that does not fit into one message.
template <class T>
std::vector<T> part_of(const std::vector<T>& all, size_t from, size_t max) {
  const auto begin = all.begin() + static_cast<ptrdiff_t>(from);
  return std::vector<T>(begin, begin + static_cast<ptrdiff_t>(std::min(max, all.size() - from)));
}

}  // namespace strata::clients
