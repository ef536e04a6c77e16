#include "proto/memory_messages.h"

#include "proto/status_bytes.h"

namespace strata::proto {
namespace {

constexpr size_t kSlotBytes = 4 + 8 + 8 + 1;
constexpr size_t kImageBytes = 8 + 1 + 8 + 8;
constexpr size_t kStagedBytes = kImageBytes + 8 + 4;
constexpr size_t kStatusBytesMin = 1 + 4;
constexpr size_t kTakenBytesMin = kStatusBytesMin + 4 + 8;

bool can_follow(const ByteReader& in, uint32_t count, uint32_t count_max, size_t part_bytes) {
  return count <= count_max && count * part_bytes <= in.remaining();
}

bool whole(const ByteReader& in) { return in.ok() && in.remaining() == 0; }

void append_flag(std::string* out, bool flag) { append_u8(out, flag ? 1 : 0); }

bool read_flag(ByteReader* in, bool* flag) {
  const uint8_t value = in->u8();
  *flag = value == 1;
  return value <= 1;
}

void append_user(std::string* out, const PoolUser& user) {
  append_u32(out, user.stream.value);
  append_u64(out, user.epoch.value);
  append_u64(out, user.number);
  append_u64(out, user.incarnation);
}

PoolUser read_user(ByteReader* in) {
  PoolUser user;
  user.stream = StreamId{in->u32()};
  user.epoch = Epoch{in->u64()};
  user.number = in->u64();
  user.incarnation = in->u64();
  return user;
}

bool is_newcomer(const PoolUser& user) {
  return !user.stream.is_zero() && !user.epoch.is_zero() && user.number != 0;
}
bool is_user(const PoolUser& user) { return is_newcomer(user) && user.incarnation != 0; }

void append_slot(std::string* out, const PoolSlot& at) {
  append_u32(out, at.slot);
  append_u64(out, at.generation);
  append_u64(out, at.llsn.value);
  append_flag(out, at.dirty);
}

bool read_slot(ByteReader* in, PoolSlot* at) {
  at->slot = in->u32();
  at->generation = in->u64();
  at->llsn = Llsn{in->u64()};
  return read_flag(in, &at->dirty);
}

void append_image(std::string* out, const PoolImage& image) {
  append_u64(out, image.id.packed());
  append_flag(out, image.dirty);
  append_u64(out, image.first.value);
  append_u64(out, image.end.value);
}

bool read_image(ByteReader* in, PoolImage* image) {
  image->id = PageId::unpack(in->u64());
  const bool well_formed = read_flag(in, &image->dirty);
  image->first = Lsn{in->u64()};
  image->end = Lsn{in->u64()};
  return well_formed;
}

void append_target(std::string* out, const PoolTarget& target) {
  append_bytes32(out, target.address);
  append_u64(out, target.session);
}

bool read_target(ByteReader* in, PoolTarget* target) {
  const Bytes address = in->bytes32();
  target->session = in->u64();
  if (address.empty() || address.size() > kPeerAddressBytesMax || target->session == 0)
    return false;
  target->address.assign(address.data(), address.size());
  return true;
}

void append_answer(std::string* out, const PoolAnswer& answer) {
  append_flag(out, answer.answered);
  append_status(out, answer.status);
}

bool read_answer(ByteReader* in, PoolAnswer* answer) {
  bool well_formed = read_flag(in, &answer->answered);
  answer->status = read_status(in, &well_formed);
  return well_formed;
}

}  // namespace

std::string encode(const PoolAttachRequest& request) {
  std::string out;
  append_user(&out, request.user);
  append_flag(&out, request.fresh);
  append_u32(&out, request.slots_max);
  append_bytes32(&out, request.token);
  append_u32(&out, request.places_max);
  return out;
}

StatusOr<PoolAttachRequest> decode_pool_attach(Bytes bytes) {
  ByteReader in(bytes);
  PoolAttachRequest out;
  out.user = read_user(&in);
  const bool well_formed = read_flag(&in, &out.fresh);
  out.slots_max = in.u32();
  const Bytes token = in.bytes32();
  out.places_max = in.u32();
  if (!well_formed || !whole(in) || !is_newcomer(out.user) || out.slots_max == 0 ||
      token.size() > kPoolTokenBytesMax || out.places_max > kPoolStagedMax)
    return error_invalid_argument("not a request to attach to a pool");
  out.token.assign(token.data(), token.size());
  return out;
}

std::string encode(const PoolAttachReply& reply) {
  std::string out;
  append_u64(&out, reply.incarnation);
  append_flag(&out, reply.made);
  append_bytes32(&out, reply.region);
  append_u32(&out, reply.slots);
  append_u64(&out, reply.headers_at);
  append_u64(&out, reply.pages_at);
  append_u64(&out, reply.report);
  append_u64(&out, reply.checkpoint_epoch.value);
  append_u64(&out, reply.checkpoint.value);
  append_u64(&out, reply.bias);
  append_bytes32(&out, reply.staging);
  append_u32(&out, reply.places);
  return out;
}

StatusOr<PoolAttachReply> decode_pool_attach_reply(Bytes bytes) {
  ByteReader in(bytes);
  PoolAttachReply out;
  out.incarnation = in.u64();
  const bool well_formed = read_flag(&in, &out.made);
  const Bytes region = in.bytes32();
  out.slots = in.u32();
  out.headers_at = in.u64();
  out.pages_at = in.u64();
  out.report = in.u64();
  out.checkpoint_epoch = Epoch{in.u64()};
  out.checkpoint = Lsn{in.u64()};
  out.bias = in.u64();
  const Bytes staging = in.bytes32();
  out.places = in.u32();
  if (!well_formed || !whole(in) || out.incarnation == 0 || out.slots == 0 || region.empty() ||
      region.size() > kPoolTokenBytesMax || staging.size() > kPoolTokenBytesMax ||
      staging.empty() != (out.places == 0) || out.places > kPoolStagedMax)
    return error_corruption("not a reply to a request to attach to a pool");
  out.region.assign(region.data(), region.size());
  out.staging.assign(staging.data(), staging.size());
  return out;
}

std::string encode(const PoolListRequest& request) {
  std::string out;
  append_user(&out, request.user);
  append_u32(&out, request.from);
  append_u32(&out, request.slots_max);
  return out;
}

StatusOr<PoolListRequest> decode_pool_list(Bytes bytes) {
  ByteReader in(bytes);
  PoolListRequest out;
  out.user = read_user(&in);
  out.from = in.u32();
  out.slots_max = in.u32();
  if (!whole(in) || !is_user(out.user) || out.slots_max == 0 || out.slots_max > kPoolListMax)
    return error_invalid_argument("not a request to list a pool");
  return out;
}

std::string encode(const PoolListReply& reply) {
  std::string out;
  out.reserve(8 + reply.pages.size() * (8 + kSlotBytes));
  append_u32(&out, reply.next);
  append_u32(&out, static_cast<uint32_t>(reply.pages.size()));
  for (const PoolListReply::Page& page : reply.pages) {
    append_u64(&out, page.id.packed());
    append_slot(&out, page.at);
  }
  return out;
}

StatusOr<PoolListReply> decode_pool_list_reply(Bytes bytes) {
  const Status bad = error_corruption("not a list of a pool's pages");
  ByteReader in(bytes);
  PoolListReply out;
  out.next = in.u32();
  const uint32_t count = in.u32();
  if (!can_follow(in, count, kPoolListMax, 8 + kSlotBytes)) return bad;
  out.pages.resize(count);
  for (PoolListReply::Page& page : out.pages) {
    page.id = PageId::unpack(in.u64());
    if (!read_slot(&in, &page.at)) return bad;
  }
  if (!whole(in)) return bad;
  return out;
}

std::string encode(const PoolPutRequest& request) {
  std::string out;
  out.reserve(48 + request.images.size() * kImageBytes + request.pages.size());
  append_user(&out, request.user);
  append_u64(&out, request.durable.value);
  append_u32(&out, static_cast<uint32_t>(request.images.size()));
  for (const PoolImage& image : request.images) append_image(&out, image);
  out += request.pages;
  return out;
}

StatusOr<PoolPutRequest> decode_pool_put(Bytes bytes) {
  const Status bad = error_invalid_argument("not a request to put pages into a pool");
  ByteReader in(bytes);
  PoolPutRequest out;
  out.user = read_user(&in);
  out.durable = Lsn{in.u64()};
  const uint32_t count = in.u32();
  if (!in.ok() || !is_user(out.user) || count == 0 || count > kPoolImagesMax ||
      in.remaining() != count * (kImageBytes + kPageBytes))
    return bad;
  out.images.resize(count);
  for (PoolImage& image : out.images)
    if (!read_image(&in, &image)) return bad;
  out.pages = in.bytes(in.remaining());
  return out;
}

std::string encode(const PoolPutStagedRequest& request) {
  std::string out;
  out.reserve(48 + request.images.size() * kStagedBytes);
  append_user(&out, request.user);
  append_u64(&out, request.durable.value);
  append_u32(&out, static_cast<uint32_t>(request.images.size()));
  for (const PoolStagedImage& staged : request.images) {
    append_image(&out, staged.image);
    append_u64(&out, staged.llsn.value);
    append_u32(&out, staged.place);
  }
  return out;
}

StatusOr<PoolPutStagedRequest> decode_pool_put_staged(Bytes bytes) {
  const Status bad = error_invalid_argument("not a request to put staged pages into a pool");
  ByteReader in(bytes);
  PoolPutStagedRequest out;
  out.user = read_user(&in);
  out.durable = Lsn{in.u64()};
  const uint32_t count = in.u32();
  if (!can_follow(in, count, kPoolImagesMax, kStagedBytes) || count == 0 || !is_user(out.user))
    return bad;
  out.images.resize(count);
  for (PoolStagedImage& staged : out.images) {
    if (!read_image(&in, &staged.image)) return bad;
    staged.llsn = Llsn{in.u64()};
    staged.place = in.u32();
  }
  if (!whole(in)) return bad;
  return out;
}

std::string encode(const PoolPutReply& reply) {
  std::string out;
  append_u32(&out, static_cast<uint32_t>(reply.taken.size()));
  for (const PoolPutReply::Taken& taken : reply.taken) {
    append_status(&out, taken.status);
    append_u32(&out, taken.slot);
    append_u64(&out, taken.generation);
  }
  return out;
}

StatusOr<PoolPutReply> decode_pool_put_reply(Bytes bytes) {
  ByteReader in(bytes);
  PoolPutReply out;
  const uint32_t count = in.u32();
  bool well_formed = can_follow(in, count, kPoolImagesMax, kTakenBytesMin);
  if (well_formed) out.taken.resize(count);
  for (PoolPutReply::Taken& taken : out.taken) {
    taken.status = read_status(&in, &well_formed);
    taken.slot = in.u32();
    taken.generation = in.u64();
  }
  if (!well_formed || !whole(in))
    return error_corruption("not a reply about pages put into a pool");
  return out;
}

std::string encode(const PoolPagesRequest& request) {
  std::string out;
  append_user(&out, request.user);
  append_u32(&out, static_cast<uint32_t>(request.pages.size()));
  for (const PageId id : request.pages) append_u64(&out, id.packed());
  return out;
}

StatusOr<PoolPagesRequest> decode_pool_pages(Bytes bytes) {
  const Status bad = error_invalid_argument("not a request about a pool's pages");
  ByteReader in(bytes);
  PoolPagesRequest out;
  out.user = read_user(&in);
  const uint32_t count = in.u32();
  if (!can_follow(in, count, kPagesMax, 8) || count == 0) return bad;
  out.pages.resize(count);
  for (PageId& id : out.pages) id = PageId::unpack(in.u64());
  if (!whole(in) || !is_user(out.user)) return bad;
  return out;
}

std::string encode(const PoolLookupReply& reply) {
  std::string out;
  append_u32(&out, static_cast<uint32_t>(reply.found.size()));
  for (const PoolLookupReply::Found& found : reply.found) {
    append_flag(&out, found.there);
    append_slot(&out, found.at);
  }
  return out;
}

StatusOr<PoolLookupReply> decode_pool_lookup_reply(Bytes bytes) {
  const Status bad = error_corruption("not a reply about a pool's pages");
  ByteReader in(bytes);
  PoolLookupReply out;
  const uint32_t count = in.u32();
  if (!can_follow(in, count, kPagesMax, 1 + kSlotBytes)) return bad;
  out.found.resize(count);
  for (PoolLookupReply::Found& found : out.found)
    if (!read_flag(&in, &found.there) || !read_slot(&in, &found.at)) return bad;
  if (!whole(in)) return bad;
  return out;
}

std::string encode(const PoolDropReply& reply) {
  std::string out;
  append_u32(&out, static_cast<uint32_t>(reply.dropped.size()));
  for (const Status& status : reply.dropped) append_status(&out, status);
  return out;
}

StatusOr<PoolDropReply> decode_pool_drop_reply(Bytes bytes) {
  ByteReader in(bytes);
  PoolDropReply out;
  const uint32_t count = in.u32();
  bool well_formed = can_follow(in, count, kPagesMax, kStatusBytesMin);
  if (well_formed) out.dropped.resize(count);
  for (Status& status : out.dropped) status = read_status(&in, &well_formed);
  if (!well_formed || !whole(in)) return error_corruption("not a reply about pages dropped");
  return out;
}

std::string encode(const PoolForgetRequest& request) {
  std::string out;
  append_user(&out, request.user);
  append_u32(&out, request.space.value);
  return out;
}

StatusOr<PoolForgetRequest> decode_pool_forget(Bytes bytes) {
  ByteReader in(bytes);
  PoolForgetRequest out;
  out.user = read_user(&in);
  out.space = SpaceId{in.u32()};
  if (!whole(in) || !is_user(out.user))
    return error_invalid_argument("not a request to forget a space");
  return out;
}

std::string encode(const PoolWriteRequest& request) {
  std::string out;
  append_user(&out, request.user);
  append_u64(&out, request.below.value);
  append_u32(&out, request.pages_max);
  append_u32(&out, static_cast<uint32_t>(request.targets.size()));
  for (const PoolTarget& target : request.targets) append_target(&out, target);
  return out;
}

StatusOr<PoolWriteRequest> decode_pool_write(Bytes bytes) {
  const Status bad = error_invalid_argument("not a request to write a pool's pages");
  ByteReader in(bytes);
  PoolWriteRequest out;
  out.user = read_user(&in);
  out.below = Lsn{in.u64()};
  out.pages_max = in.u32();
  const uint32_t count = in.u32();
  if (!can_follow(in, count, kPoolTargetsMax, 4 + 8) || count == 0) return bad;
  out.targets.resize(count);
  for (PoolTarget& target : out.targets)
    if (!read_target(&in, &target)) return bad;
  if (!whole(in) || !is_user(out.user) || out.pages_max == 0 || out.pages_max > kPoolImagesMax)
    return bad;
  return out;
}

std::string encode(const PoolWriteReply& reply) {
  std::string out;
  append_u64(&out, reply.report);
  append_u64(&out, reply.oldest.value);
  append_u64(&out, reply.dirty);
  append_u32(&out, static_cast<uint32_t>(reply.pages.size()));
  for (const PoolWriteReply::Page& page : reply.pages) {
    append_u64(&out, page.id.packed());
    append_u64(&out, page.llsn.value);
  }
  append_u32(&out, static_cast<uint32_t>(reply.answers.size()));
  for (const PoolAnswer& answer : reply.answers) append_answer(&out, answer);
  return out;
}

StatusOr<PoolWriteReply> decode_pool_write_reply(Bytes bytes) {
  const Status bad = error_corruption("not a report of pages written");
  ByteReader in(bytes);
  PoolWriteReply out;
  out.report = in.u64();
  out.oldest = Lsn{in.u64()};
  out.dirty = in.u64();
  const uint32_t pages = in.u32();
  if (!can_follow(in, pages, kPoolImagesMax, 8 + 8)) return bad;
  out.pages.resize(pages);
  for (PoolWriteReply::Page& page : out.pages) {
    page.id = PageId::unpack(in.u64());
    page.llsn = Llsn{in.u64()};
  }
  const uint32_t answers = in.u32();
  if (!can_follow(in, answers, kPoolTargetsMax, 1 + kStatusBytesMin)) return bad;
  out.answers.resize(answers);
  for (PoolAnswer& answer : out.answers)
    if (!read_answer(&in, &answer)) return bad;
  if (!whole(in)) return bad;
  return out;
}

std::string encode(const PoolWriteAgainRequest& request) {
  std::string out;
  append_user(&out, request.user);
  append_u32(&out, request.from);
  append_target(&out, request.target);
  return out;
}

StatusOr<PoolWriteAgainRequest> decode_pool_write_again(Bytes bytes) {
  ByteReader in(bytes);
  PoolWriteAgainRequest out;
  out.user = read_user(&in);
  out.from = in.u32();
  if (!read_target(&in, &out.target) || !whole(in) || !is_user(out.user))
    return error_invalid_argument("not a request to write a pool's pages again");
  return out;
}

std::string encode(const PoolWriteAgainReply& reply) {
  std::string out;
  append_u32(&out, reply.next);
  append_answer(&out, reply.answer);
  return out;
}

StatusOr<PoolWriteAgainReply> decode_pool_write_again_reply(Bytes bytes) {
  ByteReader in(bytes);
  PoolWriteAgainReply out;
  out.next = in.u32();
  if (!read_answer(&in, &out.answer) || !whole(in))
    return error_corruption("not a report of pages written again");
  return out;
}

std::string encode(const PoolSyncedRequest& request) {
  std::string out;
  append_user(&out, request.user);
  append_u64(&out, request.report);
  return out;
}

StatusOr<PoolSyncedRequest> decode_pool_synced(Bytes bytes) {
  ByteReader in(bytes);
  PoolSyncedRequest out;
  out.user = read_user(&in);
  out.report = in.u64();
  if (!whole(in) || !is_user(out.user))
    return error_invalid_argument("not a message that storage is in sync");
  return out;
}

std::string encode(const PoolSyncedReply& reply) {
  std::string out;
  append_u64(&out, reply.oldest.value);
  append_u64(&out, reply.dirty);
  return out;
}

StatusOr<PoolSyncedReply> decode_pool_synced_reply(Bytes bytes) {
  ByteReader in(bytes);
  PoolSyncedReply out;
  out.oldest = Lsn{in.u64()};
  out.dirty = in.u64();
  if (!whole(in)) return error_corruption("not a reply of what a pool has that storage lacks");
  return out;
}

std::string encode(const PoolStoredRequest& request) {
  std::string out;
  append_user(&out, request.user);
  append_u32(&out, static_cast<uint32_t>(request.pages.size()));
  for (const StoredPage& page : request.pages) {
    append_u64(&out, page.id.packed());
    append_u64(&out, page.llsn.value);
  }
  return out;
}

StatusOr<PoolStoredRequest> decode_pool_stored(Bytes bytes) {
  const Status bad = error_invalid_argument("not a message of pages that storage has");
  ByteReader in(bytes);
  PoolStoredRequest out;
  out.user = read_user(&in);
  const uint32_t count = in.u32();
  if (!can_follow(in, count, kPagesMax, 16) || count == 0) return bad;
  out.pages.resize(count);
  for (StoredPage& page : out.pages) {
    page.id = PageId::unpack(in.u64());
    page.llsn = Llsn{in.u64()};
  }
  if (!whole(in) || !is_user(out.user)) return bad;
  return out;
}

std::string encode(const PoolCheckpointRequest& request) {
  std::string out;
  append_user(&out, request.user);
  append_u64(&out, request.lsn.value);
  append_u64(&out, request.bias);
  return out;
}

StatusOr<PoolCheckpointRequest> decode_pool_checkpoint(Bytes bytes) {
  ByteReader in(bytes);
  PoolCheckpointRequest out;
  out.user = read_user(&in);
  out.lsn = Lsn{in.u64()};
  out.bias = in.u64();
  if (!whole(in) || !is_user(out.user) || out.lsn.is_zero())
    return error_invalid_argument("not a checkpoint in a pool");
  return out;
}

}  // namespace strata::proto
