// The calls with which a storage node copies a peer's pages, as bytes. Pure. The pages themselves
// come as in page_messages.h, from kPeerPages.
//   CY1  What decodes is well formed: sizes within limits, nothing left over, page ids in order.
//   CY2  decode(encode(x)) == x.
// Errors of decoding are kInvalidArgument for requests and kDataLoss for replies.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/ids.h"
#include "base/status.h"
#include "proto/methods.h"

namespace strata::proto {

// To kCopyOffer, which has no request. See storenode/replay/copy_offer.h.
struct CopyOfferReply {
  struct Mark {
    StreamId stream;
    Lsn lsn;
    Llsn llsn;
    bool operator==(const Mark&) const noexcept = default;
  };
  struct Dropped {
    SpaceId space;
    Llsn llsn;
    bool reclaimed = false;
    bool operator==(const Dropped&) const noexcept = default;
  };
  std::vector<Mark> marks;
  Llsn newest;
  Llsn horizon;
  std::vector<Dropped> dropped;
  uint64_t pages = 0;
  bool operator==(const CopyOfferReply&) const noexcept = default;
};

// Ids of pages there are, from `from` on, in their order, of a node that has replayed up to
// `marks`.
struct ListPagesRequest {
  PageId from;
  uint32_t pages_max = 0;
  std::vector<CopyOfferReply::Mark> marks;
  bool operator==(const ListPagesRequest&) const noexcept = default;
};
// Fewer than asked for: there are no more.
struct ListPagesReply {
  std::vector<PageId> pages;
  std::vector<CopyOfferReply::Dropped> gone;  // behind `marks`
  bool operator==(const ListPagesReply&) const noexcept = default;
};

std::string encode(const CopyOfferReply& reply);
StatusOr<CopyOfferReply> decode_copy_offer_reply(Bytes bytes);
std::string encode(const ListPagesRequest& request);
StatusOr<ListPagesRequest> decode_list_pages(Bytes bytes);
std::string encode(const ListPagesReply& reply);
StatusOr<ListPagesReply> decode_list_pages_reply(Bytes bytes);

}  // namespace strata::proto
