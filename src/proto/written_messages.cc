#include "proto/written_messages.h"

#include "proto/status_bytes.h"

namespace strata::proto {
namespace {

bool whole(const ByteReader& in) { return in.ok() && in.remaining() == 0; }

void append_writer(std::string* out, const Writer& writer) {
  append_u32(out, writer.stream.value);
  append_u64(out, writer.epoch.value);
  append_u64(out, writer.session);
}

Writer read_writer(ByteReader* in) {
  Writer writer;
  writer.stream = StreamId{in->u32()};
  writer.epoch = Epoch{in->u64()};
  writer.session = in->u64();
  return writer;
}

bool is_writer(const Writer& writer) { return !writer.stream.is_zero() && writer.session != 0; }

}  // namespace

std::string encode(const BeginWritesRequest& request) {
  std::string out;
  append_writer(&out, request.writer);
  append_u64(&out, request.continues);
  return out;
}

StatusOr<BeginWritesRequest> decode_begin_writes(Bytes bytes) {
  ByteReader in(bytes);
  BeginWritesRequest out;
  out.writer = read_writer(&in);
  out.continues = in.u64();
  if (!whole(in) || !is_writer(out.writer))
    return error_invalid_argument("not a request to begin writing pages");
  return out;
}

std::string encode(const BeginWritesReply& reply) {
  std::string out;
  append_u64(&out, reply.store);
  append_u8(&out, reply.continued ? 1 : 0);
  return out;
}

StatusOr<BeginWritesReply> decode_begin_writes_reply(Bytes bytes) {
  ByteReader in(bytes);
  BeginWritesReply out;
  out.store = in.u64();
  const uint8_t continued = in.u8();
  out.continued = continued == 1;
  if (!whole(in) || out.store == 0 || continued > 1)
    return error_corruption("not a reply to a request to begin writing pages");
  return out;
}

std::string encode(const WritePagesRequest& request) {
  std::string out;
  out.reserve(32 + request.ids.size() * 8 + request.pages.size());
  append_writer(&out, request.writer);
  append_u32(&out, static_cast<uint32_t>(request.ids.size()));
  for (const PageId id : request.ids) append_u64(&out, id.packed());
  out += request.pages;
  return out;
}

StatusOr<WritePagesRequest> decode_write_pages(Bytes bytes) {
  ByteReader in(bytes);
  WritePagesRequest out;
  out.writer = read_writer(&in);
  const uint32_t count = in.u32();
  if (!in.ok() || !is_writer(out.writer) || count == 0 || count > kWritePagesMax ||
      in.remaining() != count * (size_t{8} + kPageBytes))
    return error_invalid_argument("not a request to write pages");
  out.ids.resize(count);
  for (PageId& id : out.ids) id = PageId::unpack(in.u64());
  out.pages = in.bytes(count * size_t{kPageBytes});
  return out;
}

std::string encode(const SyncPagesRequest& request) {
  std::string out;
  append_writer(&out, request.writer);
  return out;
}

StatusOr<SyncPagesRequest> decode_sync_pages(Bytes bytes) {
  ByteReader in(bytes);
  const SyncPagesRequest out{read_writer(&in)};
  if (!whole(in) || !is_writer(out.writer))
    return error_invalid_argument("not a request to sync pages");
  return out;
}

std::string encode(const SpaceRequest& request) {
  std::string out;
  append_writer(&out, request.writer);
  append_u32(&out, request.space.value);
  append_u32(&out, request.pages);
  return out;
}

StatusOr<SpaceRequest> decode_space(Bytes bytes) {
  ByteReader in(bytes);
  SpaceRequest out;
  out.writer = read_writer(&in);
  out.space = SpaceId{in.u32()};
  out.pages = in.u32();
  if (!whole(in) || out.writer.stream.is_zero())
    return error_invalid_argument("not a request about a space");
  return out;
}

std::string encode(const ListSpaceSizesReply& reply) {
  std::string out;
  append_u32(&out, static_cast<uint32_t>(reply.spaces.size()));
  for (const SpaceSize& size : reply.spaces) {
    append_u32(&out, size.space.value);
    append_u32(&out, size.pages);
  }
  return out;
}

StatusOr<ListSpaceSizesReply> decode_list_space_sizes_reply(Bytes bytes) {
  ByteReader in(bytes);
  ListSpaceSizesReply out;
  const uint32_t count = in.u32();
  if (!in.ok() || count * size_t{8} != in.remaining())
    return error_corruption("not a list of spaces and their sizes");
  out.spaces.resize(count);
  for (SpaceSize& size : out.spaces) {
    size.space = SpaceId{in.u32()};
    size.pages = in.u32();
  }
  return out;
}

std::string encode(const CopyPagesRequest& request) {
  std::string out;
  append_writer(&out, request.writer);
  append_bytes32(&out, request.peer);
  append_u64(&out, request.peer_session);
  return out;
}

StatusOr<CopyPagesRequest> decode_copy_pages(Bytes bytes) {
  ByteReader in(bytes);
  CopyPagesRequest out;
  out.writer = read_writer(&in);
  out.peer = std::string(in.bytes32());
  out.peer_session = in.u64();
  if (!whole(in) || !is_writer(out.writer) || out.peer.empty() ||
      out.peer.size() > kPeerAddressBytesMax)
    return error_invalid_argument("not a request to copy pages");
  return out;
}

std::string encode(const CopyPagesReply& reply) {
  std::string out;
  append_u8(&out, static_cast<uint8_t>(reply.state));
  append_u64(&out, reply.pages_seen);
  append_u64(&out, reply.pages_taken);
  append_status(&out, reply.why);
  return out;
}

StatusOr<CopyPagesReply> decode_copy_pages_reply(Bytes bytes) {
  ByteReader in(bytes);
  CopyPagesReply out;
  const uint8_t state = in.u8();
  out.state = static_cast<CopyPagesReply::State>(state);
  out.pages_seen = in.u64();
  out.pages_taken = in.u64();
  bool well_formed = state <= static_cast<uint8_t>(CopyPagesReply::State::kFailed);
  out.why = read_status(&in, &well_formed);
  if (!well_formed || !whole(in)) return error_corruption("not a reply to a request to copy pages");
  return out;
}

}  // namespace strata::proto
