#include "proto/page_messages.h"

#include "proto/status_bytes.h"

namespace strata::proto {
namespace {

// Whether so many parts of so many bytes each can still follow.
bool can_follow(const ByteReader& in, uint32_t count, uint32_t count_max, size_t part_bytes) {
  return count <= count_max && count * part_bytes <= in.remaining();
}

bool whole(const ByteReader& in) { return in.ok() && in.remaining() == 0; }

void append_positions(std::string* out, const std::vector<Position>& positions) {
  append_u32(out, static_cast<uint32_t>(positions.size()));
  for (const Position& position : positions) {
    append_u32(out, position.stream.value);
    append_u64(out, position.lsn.value);
  }
}

// False: there are too many.
bool read_positions(ByteReader* in, std::vector<Position>* positions) {
  const uint32_t count = in->u32();
  if (!can_follow(*in, count, kPositionsMax, 12)) return false;
  positions->resize(count);
  for (Position& position : *positions) {
    position.stream = StreamId{in->u32()};
    position.lsn = Lsn{in->u64()};
  }
  return true;
}

template <class Reply>
std::string encode_reply(const Reply& reply) {
  std::string out;
  out.reserve(32 + reply.pages.size() * (kPageBytes + 32));
  append_u64(&out, reply.progress.backlog_bytes);
  append_u64(&out, reply.progress.scan_lag_bytes);
  append_u64(&out, reply.progress.scanned_bytes);
  append_u32(&out, static_cast<uint32_t>(reply.pages.size()));
  for (const auto& page : reply.pages) {
    append_status(&out, page.status);
    if (!page.status.ok()) continue;
    append_u64(&out, page.llsn.value);
    out += page.bytes;
  }
  return out;
}

}  // namespace

std::string encode(const GetPagesRequest& request) {
  std::string out;
  out.reserve(40 + request.pages.size() * 24 + request.scanned_to.size() * 12);
  append_u32(&out, request.stream.value);
  append_u64(&out, request.epoch.value);
  append_u32(&out, request.wait_us);
  append_u32(&out, static_cast<uint32_t>(request.pages.size()));
  for (const PageWanted& page : request.pages) {
    append_u64(&out, page.page.packed());
    append_u64(&out, page.at_least.value);
    append_u64(&out, page.at_most.value);
  }
  append_positions(&out, request.scanned_to);
  append_u64(&out, request.session);
  return out;
}

StatusOr<GetPagesRequest> decode_get_pages(Bytes bytes) {
  ByteReader in(bytes);
  GetPagesRequest out;
  out.stream = StreamId{in.u32()};
  out.epoch = Epoch{in.u64()};
  out.wait_us = in.u32();
  const uint32_t pages = in.u32();
  if (pages == 0 || !can_follow(in, pages, kPagesMax, 24))
    return error_invalid_argument("a request for " + std::to_string(pages) + " pages");
  out.pages.resize(pages);
  for (PageWanted& page : out.pages) {
    page.page = PageId::unpack(in.u64());
    page.at_least = Llsn{in.u64()};
    page.at_most = Llsn{in.u64()};
    if (page.at_least > page.at_most)
      return error_invalid_argument("a request for a page as of an empty range of llsns");
  }
  if (!read_positions(&in, &out.scanned_to))
    return error_invalid_argument("a request for pages with too many positions");
  out.session = in.u64();
  if (!whole(in)) return error_invalid_argument("not a request for pages");
  return out;
}

std::string encode(const GetPagesReply& reply) { return encode_reply(reply); }
std::string encode(const GetPagesReplyView& reply) { return encode_reply(reply); }

StatusOr<GetPagesReplyView> view_get_pages_reply(Bytes bytes) {
  ByteReader in(bytes);
  GetPagesReplyView out;
  out.progress.backlog_bytes = in.u64();
  out.progress.scan_lag_bytes = in.u64();
  out.progress.scanned_bytes = in.u64();
  const uint32_t pages = in.u32();
  bool well_formed = can_follow(in, pages, kPagesMax, 5);
  if (well_formed) out.pages.resize(pages);
  for (PageView& page : out.pages) {
    page.status = read_status(&in, &well_formed);
    if (!page.status.ok()) continue;
    page.llsn = Llsn{in.u64()};
    page.bytes = in.bytes(kPageBytes);
  }
  if (!well_formed || !whole(in)) return error_corruption("not a reply to a request for pages");
  return out;
}

StatusOr<GetPagesReply> decode_get_pages_reply(Bytes bytes) {
  STRATA_ASSIGN_OR_RETURN(const GetPagesReplyView view, view_get_pages_reply(bytes));
  GetPagesReply out;
  out.progress = view.progress;
  out.pages.reserve(view.pages.size());
  for (const PageView& page : view.pages)
    out.pages.push_back({page.status, page.llsn, std::string(page.bytes)});
  return out;
}

std::string encode(const ListSpacesRequest& request) {
  std::string out;
  append_positions(&out, request.scanned_to);
  return out;
}

StatusOr<ListSpacesRequest> decode_list_spaces(Bytes bytes) {
  ByteReader in(bytes);
  ListSpacesRequest out;
  if (!read_positions(&in, &out.scanned_to) || !whole(in))
    return error_invalid_argument("not a request for a list of spaces");
  return out;
}

std::string encode(const ListSpacesReply& reply) {
  std::string out;
  append_u64(&out, reply.as_of.value);
  append_u64(&out, reply.scanned_bytes);
  append_positions(&out, reply.waits_for);
  append_u32(&out, static_cast<uint32_t>(reply.spaces.size()));
  for (const SpaceId space : reply.spaces) append_u32(&out, space.value);
  return out;
}

StatusOr<ListSpacesReply> decode_list_spaces_reply(Bytes bytes) {
  ByteReader in(bytes);
  ListSpacesReply out;
  out.as_of = Llsn{in.u64()};
  out.scanned_bytes = in.u64();
  const bool has_positions = read_positions(&in, &out.waits_for);
  const uint32_t count = in.u32();
  if (!has_positions || !in.ok() || count * size_t{4} != in.remaining())
    return error_corruption("not a list of spaces");
  out.spaces.resize(count);
  for (SpaceId& space : out.spaces) space = SpaceId{in.u32()};
  return out;
}

std::string encode(const ReaderLeaseRequest& request) {
  std::string out;
  append_u64(&out, request.reader);
  append_u64(&out, request.oldest.value);
  append_u32(&out, request.ttl_ms);
  return out;
}

StatusOr<ReaderLeaseRequest> decode_reader_lease(Bytes bytes) {
  ByteReader in(bytes);
  ReaderLeaseRequest out;
  out.reader = in.u64();
  out.oldest = Llsn{in.u64()};
  out.ttl_ms = in.u32();
  if (!whole(in) || out.reader == 0) return error_invalid_argument("not a request for a lease");
  return out;
}

}  // namespace strata::proto
