#include "storenode/versions/internal/keys.h"

#include <cstring>

#include "base/crc32c.h"

namespace strata::storenode::internal {
namespace {

constexpr uint8_t kKnownFlags = kRestartsChain | kMaterialized | kOldestKept;
constexpr Bytes kScannedPrefix = "scanned/";
constexpr Bytes kReplayedPrefix = "replayed/";
constexpr Bytes kDroppedPrefix = "drop/";
constexpr Bytes kBrokenPrefix = "broken/";

void append_be32(std::string* out, uint32_t v) { append_u32(out, __builtin_bswap32(v)); }

uint32_t checksum_of(Bytes key, Bytes payload) noexcept {
  return crc32c(payload.data(), payload.size(), crc32c(key.data(), key.size()));
}

bool finished(const ByteReader& in) noexcept { return in.ok() && in.remaining() == 0; }

}  // namespace

std::string version_key(PageId page, Llsn llsn) {
  std::string key;
  append_be32(&key, page.space);
  append_be32(&key, page.number);
  append_be64(&key, llsn.value);
  return key;
}

bool parse_version_key(Bytes key, PageId* page, Llsn* llsn) noexcept {
  if (key.size() != kVersionKeyBytes) return false;
  *page = PageId{load_be32(key.data()), load_be32(key.data() + 4)};
  *llsn = Llsn{load_be64(key.data() + 8)};
  return true;
}

std::string encode_version(const Version& version) {
  std::string value;
  append_u64(&value, version.prev_llsn.value);
  append_u64(&value, version.lsn.value);
  append_u32(&value, version.stream.value);
  append_u32(&value, version.section_offset);
  append_u32(&value, version.section_bytes);
  append_u32(&value, version.section_crc32c);
  append_u8(&value, version.flags & kKnownFlags);
  return value;
}

bool decode_version(Bytes value, Llsn llsn, Version* version) noexcept {
  ByteReader in(value);
  version->llsn = llsn;
  version->prev_llsn = Llsn{in.u64()};
  version->lsn = Lsn{in.u64()};
  version->stream = StreamId{in.u32()};
  version->section_offset = in.u32();
  version->section_bytes = in.u32();
  version->section_crc32c = in.u32();
  version->flags = in.u8();
  return finished(in) && (version->flags & ~kKnownFlags) == 0;
}

std::string identity_key() { return "identity"; }
std::string map_whole_key() { return "map-whole"; }
std::string horizon_key() { return "horizon"; }
std::string mark_key(Mark kind, StreamId stream) {
  std::string key(kind == Mark::kScanned ? kScannedPrefix : kReplayedPrefix);
  append_be32(&key, stream.value);
  return key;
}
std::string dropped_key(SpaceId space) {
  std::string key(kDroppedPrefix);
  append_be32(&key, space.value);
  return key;
}
std::string broken_key(PageId page) {
  std::string key(kBrokenPrefix);
  append_be32(&key, page.space);
  append_be32(&key, page.number);
  return key;
}
Bytes replayed_prefix() noexcept { return kReplayedPrefix; }
Bytes dropped_prefix() noexcept { return kDroppedPrefix; }
Bytes broken_prefix() noexcept { return kBrokenPrefix; }

std::string seal_value(Bytes key, std::string payload) {
  const uint32_t checksum = checksum_of(key, payload);
  append_u32(&payload, checksum);
  return payload;
}

std::optional<Bytes> open_value(Bytes key, Bytes value) noexcept {
  if (value.size() < sizeof(uint32_t)) return std::nullopt;
  const Bytes payload = value.substr(0, value.size() - sizeof(uint32_t));
  if (load_u32(value.data() + payload.size()) != checksum_of(key, payload)) return std::nullopt;
  return payload;
}

std::string encode_identity(const Identity& identity) {
  std::string payload;
  append_u32(&payload, identity.format);
  append_u64(&payload, identity.cluster_id);
  append_u8(&payload, static_cast<uint8_t>(identity.layout));
  return payload;
}

bool decode_identity(Bytes payload, Identity* identity) noexcept {
  ByteReader in(payload);
  identity->format = in.u32();
  identity->cluster_id = in.u64();
  identity->layout = static_cast<StoreLayout>(in.u8());
  return finished(in);
}

std::string encode_mark(const StreamMark& mark) {
  std::string payload;
  append_u64(&payload, mark.lsn.value);
  append_u64(&payload, mark.llsn.value);
  return payload;
}

bool decode_marked(Bytes key, StreamId* stream) noexcept {
  if (key.size() != kReplayedPrefix.size() + 4) return false;
  *stream = StreamId{load_be32(key.data() + kReplayedPrefix.size())};
  return true;
}

bool decode_mark(Bytes payload, StreamMark* mark) noexcept {
  ByteReader in(payload);
  mark->lsn = Lsn{in.u64()};
  mark->llsn = Llsn{in.u64()};
  return finished(in);
}

std::string encode_dropped(const DroppedSpace& dropped) {
  std::string payload;
  append_u64(&payload, dropped.llsn.value);
  append_u8(&payload, dropped.reclaimed ? 1 : 0);
  return payload;
}

bool decode_dropped(Bytes key, Bytes payload, DroppedSpace* dropped) noexcept {
  if (key.size() != kDroppedPrefix.size() + 4) return false;
  ByteReader in(payload);
  dropped->space = SpaceId{load_be32(key.data() + kDroppedPrefix.size())};
  dropped->llsn = Llsn{in.u64()};
  dropped->reclaimed = in.u8() != 0;
  return finished(in);
}

std::string encode_broken(const BrokenPage& broken) {
  std::string payload;
  append_u64(&payload, broken.llsn.value);
  append_u32(&payload, broken.stream.value);
  append_u64(&payload, broken.lsn.value);
  return payload;
}

bool decode_broken(Bytes key, Bytes payload, BrokenPage* broken) noexcept {
  if (key.size() != kBrokenPrefix.size() + 8) return false;
  ByteReader in(payload);
  const char* id = key.data() + kBrokenPrefix.size();
  broken->page_id = PageId{load_be32(id), load_be32(id + 4)};
  broken->llsn = Llsn{in.u64()};
  broken->stream = StreamId{in.u32()};
  broken->lsn = Lsn{in.u64()};
  return finished(in);
}

std::string encode_llsn(Llsn llsn) {
  std::string payload;
  append_u64(&payload, llsn.value);
  return payload;
}

bool decode_llsn(Bytes payload, Llsn* llsn) noexcept {
  ByteReader in(payload);
  *llsn = Llsn{in.u64()};
  return finished(in);
}

}  // namespace strata::storenode::internal
