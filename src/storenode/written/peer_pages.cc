#include "storenode/written/peer_pages.h"

#include <utility>

#include "base/clock.h"
#include "proto/calls/calls.h"
#include "proto/methods.h"

namespace strata::storenode {

PeerPages::PeerPages(const transport::Secret& secret, PeerPagesOptions options)
    : options_(std::move(options)), channel_(secret, options_.address, {}) {}

transport::CallOptions PeerPages::call_of(uint16_t method) const {
  return proto::call_of(method, monotonic_us() + options_.call_timeout_us, options_.epoch);
}

StatusOr<std::vector<proto::SpaceSize>> PeerPages::list() {
  transport::BlockingReply answer;
  STRATA_RETURN_IF_ERROR(channel_.call(call_of(proto::kListSpaceSizes), {}, &answer));
  STRATA_ASSIGN_OR_RETURN(proto::ListSpaceSizesReply reply,
                          proto::decode_list_space_sizes_reply(answer.payload));
  return std::move(reply.spaces);
}

StatusOr<std::vector<proto::PageGot>> PeerPages::get(const std::vector<PageId>& ids) {
  proto::GetPagesRequest request{options_.stream, options_.epoch, 0, {}, {}, options_.session};
  request.pages.reserve(ids.size());
  for (const PageId id : ids) request.pages.push_back({id, Llsn{}, Llsn{UINT64_MAX}});
  transport::BlockingReply answer;
  answer.payload.resize(ids.size() * (kPageBytes + 64));
  STRATA_RETURN_IF_ERROR(channel_.call(call_of(proto::kGetPages), proto::encode(request), &answer));
  STRATA_ASSIGN_OR_RETURN(proto::GetPagesReply reply,
                          proto::decode_get_pages_reply(answer.payload));
  if (reply.pages.size() != ids.size())
    return error_corruption("a reply for another number of pages");
  return std::move(reply.pages);
}

}  // namespace strata::storenode
