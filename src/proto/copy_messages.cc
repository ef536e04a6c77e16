#include "proto/copy_messages.h"

namespace strata::proto {
namespace {

constexpr size_t kMarkBytes = 4 + 8 + 8;
constexpr size_t kDroppedBytes = 4 + 8 + 1;

bool can_follow(const ByteReader& in, uint32_t count, uint32_t count_max, size_t part_bytes) {
  return count <= count_max && count * part_bytes <= in.remaining();
}

bool whole(const ByteReader& in) { return in.ok() && in.remaining() == 0; }

using Marks = std::vector<CopyOfferReply::Mark>;
using DroppedSpaces = std::vector<CopyOfferReply::Dropped>;

void append_marks(std::string* out, const Marks& marks) {
  append_u32(out, static_cast<uint32_t>(marks.size()));
  for (const CopyOfferReply::Mark& mark : marks) {
    append_u32(out, mark.stream.value);
    append_u64(out, mark.lsn.value);
    append_u64(out, mark.llsn.value);
  }
}

bool read_marks(ByteReader* in, Marks* marks) {
  const uint32_t count = in->u32();
  if (!can_follow(*in, count, kCopyStreamsMax, kMarkBytes)) return false;
  marks->resize(count);
  for (CopyOfferReply::Mark& mark : *marks) {
    mark.stream = StreamId{in->u32()};
    mark.lsn = Lsn{in->u64()};
    mark.llsn = Llsn{in->u64()};
  }
  return true;
}

void append_dropped(std::string* out, const DroppedSpaces& all) {
  append_u32(out, static_cast<uint32_t>(all.size()));
  for (const CopyOfferReply::Dropped& dropped : all) {
    append_u32(out, dropped.space.value);
    append_u64(out, dropped.llsn.value);
    append_u8(out, dropped.reclaimed ? 1 : 0);
  }
}

bool read_dropped(ByteReader* in, DroppedSpaces* all) {
  const uint32_t count = in->u32();
  if (!can_follow(*in, count, kDroppedSpacesMax, kDroppedBytes)) return false;
  all->resize(count);
  for (CopyOfferReply::Dropped& dropped : *all) {
    dropped.space = SpaceId{in->u32()};
    dropped.llsn = Llsn{in->u64()};
    const uint8_t reclaimed = in->u8();
    if (reclaimed > 1) return false;
    dropped.reclaimed = reclaimed == 1;
  }
  return true;
}

}  // namespace

std::string encode(const CopyOfferReply& reply) {
  std::string out;
  out.reserve(32 + reply.marks.size() * kMarkBytes + reply.dropped.size() * kDroppedBytes);
  append_marks(&out, reply.marks);
  append_u64(&out, reply.newest.value);
  append_u64(&out, reply.horizon.value);
  append_u64(&out, reply.pages);
  append_dropped(&out, reply.dropped);
  return out;
}

StatusOr<CopyOfferReply> decode_copy_offer_reply(Bytes bytes) {
  ByteReader in(bytes);
  CopyOfferReply out;
  bool well_formed = read_marks(&in, &out.marks);
  out.newest = Llsn{in.u64()};
  out.horizon = Llsn{in.u64()};
  out.pages = in.u64();
  well_formed = well_formed && read_dropped(&in, &out.dropped);
  if (!well_formed || !whole(in)) return error_corruption("not an offer of pages");
  return out;
}

std::string encode(const ListPagesRequest& request) {
  std::string out;
  append_u64(&out, request.from.packed());
  append_u32(&out, request.pages_max);
  append_marks(&out, request.marks);
  return out;
}

StatusOr<ListPagesRequest> decode_list_pages(Bytes bytes) {
  ByteReader in(bytes);
  ListPagesRequest out;
  out.from = PageId::unpack(in.u64());
  out.pages_max = in.u32();
  const bool well_formed = read_marks(&in, &out.marks);
  if (!well_formed || !whole(in) || out.pages_max == 0 || out.pages_max > kListedPagesMax)
    return error_invalid_argument("not a request to list pages");
  return out;
}

std::string encode(const ListPagesReply& reply) {
  std::string out;
  out.reserve(8 + reply.pages.size() * 8 + reply.gone.size() * kDroppedBytes);
  append_u32(&out, static_cast<uint32_t>(reply.pages.size()));
  for (const PageId page : reply.pages) append_u64(&out, page.packed());
  append_dropped(&out, reply.gone);
  return out;
}

StatusOr<ListPagesReply> decode_list_pages_reply(Bytes bytes) {
  const Status bad = error_corruption("not a list of pages");
  ByteReader in(bytes);
  ListPagesReply out;
  const uint32_t pages = in.u32();
  if (!can_follow(in, pages, kListedPagesMax, 8)) return bad;
  out.pages.resize(pages);
  for (size_t i = 0; i < out.pages.size(); ++i) {
    out.pages[i] = PageId::unpack(in.u64());
    if (i > 0 && !(out.pages[i - 1] < out.pages[i])) return bad;
  }
  if (!read_dropped(&in, &out.gone) || !whole(in)) return bad;
  return out;
}

}  // namespace strata::proto
