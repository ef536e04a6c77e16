// The calls of a server that is one of several to its memory node: under one epoch, as one life.
// Thread-safe; blocks.
//
//   FC20  A call ends within call_us_max and what its request lets the memory node wait. Calls that
//         may be repeated end when the thread's WaitInterrupt says so (BC4).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

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

}  // namespace strata::clients
