// A peer over sockets. Thread-safe; every call blocks for its timeout at most.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "storenode/copy/peer.h"
#include "transport/calls/blocking_channel.h"

namespace strata::storenode {

struct RpcPeerOptions {
  std::string name;
  std::function<std::string()> address;  // asked at each attempt to connect; empty: not known
  uint64_t timeout_us = 5'000'000;       // of one call
  uint32_t wait_us = 1'000'000;          // how long the peer may wait for log it does not have yet
  bool as_reader = false;                // get() asks as compute does: the peer mends what it meets
};

class RpcPeer final : public CopyPeer {
 public:
  RpcPeer(const transport::Secret& secret, RpcPeerOptions options);
  [[nodiscard]] std::string name() const override { return options_.name; }
  StatusOr<CopyOffer> offer() override;
  StatusOr<PageListing> list(PageId from, uint32_t pages_max,
                             const std::vector<CopyMark>& marks) override;
  StatusOr<std::vector<StatusOr<PageAnswer>>> get(const std::vector<PageId>& pages, Llsn at_least,
                                                  Llsn at_most) override;

 private:
  StatusOr<std::string> call(uint16_t method, const std::string& request, size_t reply_guess);
  const RpcPeerOptions options_;
  transport::BlockingChannel channel_;
};

}  // namespace strata::storenode
