// All pages of another storage node, read by calls: which spaces it has and how large they are, and
// their pages. For copies. Not thread-safe; everything blocks.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "proto/page_messages.h"
#include "proto/written_messages.h"
#include "transport/calls/blocking_channel.h"

namespace strata::storenode {

struct PeerPagesOptions {
  transport::Address address;
  StreamId stream;
  Epoch epoch;
  uint64_t session = 0;  // the peer's write session: in another it does not answer
  uint64_t call_timeout_us = 5'000'000;
};

class PeerPages {
 public:
  PeerPages(const transport::Secret& secret, PeerPagesOptions options);

  StatusOr<std::vector<proto::SpaceSize>> list();
  // In the order asked for; the bytes are not verified.
  StatusOr<std::vector<proto::PageGot>> get(const std::vector<PageId>& ids);

 private:
  [[nodiscard]] transport::CallOptions call_of(uint16_t method) const;
  const PeerPagesOptions options_;
  transport::BlockingChannel channel_;
};

}  // namespace strata::storenode
