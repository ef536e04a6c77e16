// A storage node of the same group, as one sees it that takes pages from it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "storenode/replay/copy_offer.h"
#include "storenode/replay/request.h"

namespace strata::storenode {

// Every call blocks, for a bounded time. Thread-safe.
class CopyPeer {
 public:
  virtual ~CopyPeer() = default;
  [[nodiscard]] virtual std::string name() const = 0;
  // CO1. kUnavailable: it is not there, or is or needs to be copied itself (CO2), or its replay has
  // stopped.
  virtual StatusOr<CopyOffer> offer() = 0;
  // From `from` on; fewer than `pages_max`: there are no more. kUnavailable: it has not replayed up
  // to `marks`.
  virtual StatusOr<PageListing> list(PageId from, uint32_t pages_max,
                                     const std::vector<CopyMark>& marks) = 0;
  // In the order asked for; an error is of that page alone. Nothing is verified.
  virtual StatusOr<std::vector<StatusOr<PageAnswer>>> get(const std::vector<PageId>& pages,
                                                          Llsn at_least, Llsn at_most) = 0;
};

using CopyPeers = std::vector<std::shared_ptr<CopyPeer>>;

}  // namespace strata::storenode
