#include <cstddef>

#include "base/assert.h"
#include "base/crc32c.h"
#include "redo/redo.h"

namespace strata::redo {
namespace {

static_assert(offsetof(GroupHeader, length) == 4);
static_assert(offsetof(GroupHeader, crc32c) == 8);
static_assert(offsetof(GroupHeader, durable_delta) == 12);
static_assert(offsetof(GroupHeader, lsn) == 16);
static_assert(offsetof(GroupHeader, llsn) == 24);
static_assert(offsetof(GroupHeader, node) == 32);
static_assert(offsetof(GroupHeader, section_count) == 34);
static_assert(offsetof(GroupHeader, header_crc32c) == 36);

constexpr uint32_t kCrcOffset = offsetof(GroupHeader, crc32c);
constexpr uint32_t kHeaderCrcOffset = offsetof(GroupHeader, header_crc32c);
constexpr uint32_t kGroupAlignment = 8;

uint32_t checksum_of(const char* group, uint32_t length) noexcept {
  return crc32c(group + kCrcOffset + 4, length - kCrcOffset - 4, crc32c(group, kCrcOffset));
}

uint32_t header_checksum_of(const char* group) noexcept {
  return crc32c(group + kCrcOffset + 4, kHeaderCrcOffset - kCrcOffset - 4,
                crc32c(group, kCrcOffset));
}

SectionView read_section(ByteReader* in) noexcept {
  SectionView section;
  section.page_id.space = in->u32();
  section.page_id.number = in->u32();
  section.prev_llsn = Llsn{in->u64()};
  section.ops = in->bytes32();
  return section;
}

// The sections fill the body up to the padding, which is zero.
bool framing_is_valid(const GroupView& group) noexcept {
  ByteReader in(group.body);
  for (uint32_t i = 0; i < group.header.section_count; ++i) read_section(&in);
  if (!in.ok() || in.remaining() >= kGroupAlignment) return false;
  while (in.remaining() > 0)
    if (in.u8() != 0) return false;
  return true;
}

}  // namespace

void seal_group(char* group) noexcept {
  const uint32_t length = load_u32(group + offsetof(GroupHeader, length));
  STRATA_ASSERT(length >= sizeof(GroupHeader));
  STRATA_ASSERT(length <= kGroupBytesMax);
  STRATA_ASSERT(length % kGroupAlignment == 0);
  STRATA_ASSERT(load_u16(group) == kGroupMagic);
  store_u32(group + kHeaderCrcOffset, header_checksum_of(group));
  store_u32(group + kCrcOffset, checksum_of(group, length));
}

bool header_is_whole(const GroupHeader& header) noexcept {
  return header.header_crc32c == header_checksum_of(reinterpret_cast<const char*>(&header));
}

StatusOr<GroupView> parse_group(Bytes bytes, Lsn expected_lsn, size_t* need) {
  GroupView group;
  GroupHeader& h = group.header;
  if (need != nullptr) *need = sizeof(h);
  if (bytes.size() < sizeof(h)) return error_out_of_range();
  std::memcpy(&h, bytes.data(), sizeof(h));
  if (h.magic != kGroupMagic) return error_corruption("no redo group here: magic");
  if (h.lsn != expected_lsn.value) return error_corruption("no redo group here: stale lsn");
  if (h.length < sizeof(h) || h.length > kGroupBytesMax || h.length % kGroupAlignment != 0)
    return error_corruption("redo group: impossible length");
  if (need != nullptr) *need = h.length;
  if (bytes.size() < h.length) return error_out_of_range();
  if (h.crc32c != checksum_of(bytes.data(), h.length))
    return error_corruption("redo group: checksum");
  group.body = bytes.substr(sizeof(h), h.length - sizeof(h));
  if (!framing_is_valid(group)) return error_corruption("redo group: sections do not fill it");
  return group;
}

StatusOr<SectionView> parse_section(Bytes bytes) {
  ByteReader in(bytes);
  const SectionView section = read_section(&in);
  if (!in.ok() || in.remaining() != 0) return error_corruption("redo section: its length is wrong");
  return section;
}

Status for_each_section(const GroupView& group,
                        const std::function<Status(const SectionView&)>& visit) {
  if (!framing_is_valid(group)) return error_corruption("redo group: sections do not fill it");
  ByteReader in(group.body);
  for (uint32_t i = 0; i < group.header.section_count; ++i)
    STRATA_RETURN_IF_ERROR(visit(read_section(&in)));
  return ok_status();
}

}  // namespace strata::redo
