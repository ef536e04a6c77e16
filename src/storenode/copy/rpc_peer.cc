#include "storenode/copy/rpc_peer.h"

#include <cstring>
#include <utility>

#include "base/clock.h"
#include "proto/calls/calls.h"
#include "proto/copy_messages.h"
#include "proto/methods.h"
#include "proto/page_messages.h"

namespace strata::storenode {
namespace {
constexpr size_t kOfferBytesGuess = 4096;  // a longer one costs another allocation
}  // namespace

RpcPeer::RpcPeer(const transport::Secret& secret, RpcPeerOptions options)
    : options_(std::move(options)), channel_(secret, transport::Address(options_.address), {}) {}

StatusOr<std::string> RpcPeer::call(uint16_t method, const std::string& request,
                                    size_t reply_guess) {
  const auto call = proto::call_of(method, monotonic_us() + options_.timeout_us);
  transport::BlockingReply reply;
  reply.payload.resize(reply_guess);
  STRATA_RETURN_IF_ERROR(channel_.call(call, request, &reply));
  return std::move(reply.payload);
}

StatusOr<CopyOffer> RpcPeer::offer() {
  STRATA_ASSIGN_OR_RETURN(const std::string bytes, call(proto::kCopyOffer, {}, kOfferBytesGuess));
  STRATA_ASSIGN_OR_RETURN(const proto::CopyOfferReply reply, proto::decode_copy_offer_reply(bytes));
  CopyOffer offer;
  for (const auto& mark : reply.marks) offer.marks.push_back({mark.stream, {mark.lsn, mark.llsn}});
  for (const auto& dropped : reply.dropped)
    offer.dropped.push_back({dropped.space, dropped.llsn, dropped.reclaimed});
  offer.newest = reply.newest;
  offer.horizon = reply.horizon;
  offer.pages = reply.pages;
  return offer;
}

StatusOr<PageListing> RpcPeer::list(PageId from, uint32_t pages_max,
                                    const std::vector<CopyMark>& marks) {
  proto::ListPagesRequest request{from, pages_max, {}};
  for (const CopyMark& mark : marks)
    request.marks.push_back({mark.stream, mark.replayed.lsn, mark.replayed.llsn});
  STRATA_ASSIGN_OR_RETURN(const std::string bytes, call(proto::kListPages, proto::encode(request),
                                                        16 + size_t{pages_max} * 8));
  STRATA_ASSIGN_OR_RETURN(proto::ListPagesReply reply, proto::decode_list_pages_reply(bytes));
  if (!reply.pages.empty() && reply.pages.front() < from)
    return error_corruption("pages were listed that were not asked for");
  PageListing listing;
  listing.pages = std::move(reply.pages);
  for (const auto& gone : reply.gone)
    listing.gone.push_back({gone.space, gone.llsn, gone.reclaimed});
  return listing;
}

StatusOr<std::vector<StatusOr<PageAnswer>>> RpcPeer::get(const std::vector<PageId>& pages,
                                                         Llsn at_least, Llsn at_most) {
  proto::GetPagesRequest request;
  request.wait_us = options_.wait_us;
  for (const PageId page : pages) request.pages.push_back({page, at_least, at_most});
  const uint16_t method = options_.as_reader ? proto::kGetPages : proto::kPeerPages;
  STRATA_ASSIGN_OR_RETURN(const std::string bytes, call(method, proto::encode(request),
                                                        64 + pages.size() * (kPageBytes + 64)));
  STRATA_ASSIGN_OR_RETURN(const proto::GetPagesReply reply, proto::decode_get_pages_reply(bytes));
  if (reply.pages.size() != pages.size())
    return error_corruption("a reply for another number of pages");
  std::vector<StatusOr<PageAnswer>> answers;
  answers.reserve(pages.size());
  for (const proto::PageGot& got : reply.pages) {
    if (!got.status.ok()) {
      answers.emplace_back(got.status);
      continue;
    }
    auto page = std::make_shared<PageBuffer>();
    std::memcpy(page->bytes, got.bytes.data(), kPageBytes);
    answers.emplace_back(PageAnswer{std::move(page), got.llsn});
  }
  return answers;
}

}  // namespace strata::storenode
