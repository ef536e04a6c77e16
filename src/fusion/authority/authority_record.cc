#include "fusion/authority/authority_record.h"

#include "base/crc32c.h"

namespace strata::fusion {
namespace {

constexpr uint32_t kMagic = 0x48545541;  // "AUTH"

}  // namespace

std::string encode(const AuthorityRecord& record) {
  std::string body;
  append_u32(&body, kMagic);
  append_u64(&body, record.epoch.value);
  append_u64(&body, record.ceiling);
  append_u64(&body, record.horizon);
  append_u64(&body, record.fences);
  append_u32(&body, static_cast<uint32_t>(record.members.size()));
  for (const Member& member : record.members) {
    append_u8(&body, member.server.value);
    append_u64(&body, member.life);
    append_u64(&body, member.fence);
  }
  append_u32(&body, static_cast<uint32_t>(record.fenced.size()));
  for (const proto::Fence& fence : record.fenced) {
    append_u8(&body, fence.server.value);
    append_u64(&body, fence.number);
  }
  std::string out;
  append_u32(&out, crc32c(body.data(), body.size()));
  return out + body;
}

StatusOr<AuthorityRecord> decode_authority_record(Bytes bytes) {
  const auto damaged = [] {
    return error_corruption("a record of the authority stream is damaged");
  };
  ByteReader reader(bytes);
  const uint32_t crc = reader.u32();
  if (!reader.ok() || crc != crc32c(bytes.data() + 4, bytes.size() - 4)) return damaged();
  AuthorityRecord record;
  if (reader.u32() != kMagic) return damaged();
  record.epoch = Epoch{reader.u64()};
  record.ceiling = reader.u64();
  record.horizon = reader.u64();
  record.fences = reader.u64();
  const uint32_t count = reader.u32();
  if (count > kMembersMax) return damaged();
  for (uint32_t i = 0; i < count && reader.ok(); ++i) {
    Member member;
    member.server = NodeId{reader.u8()};
    member.life = reader.u64();
    member.fence = reader.u64();
    if (member.fence > record.fences) return damaged();
    record.members.push_back(member);
  }
  const uint32_t fenced = reader.u32();
  if (fenced > kMembersMax) return damaged();
  for (uint32_t i = 0; i < fenced && reader.ok(); ++i) {
    proto::Fence fence;
    fence.server = NodeId{reader.u8()};
    fence.number = reader.u64();
    if (fence.number > record.fences) return damaged();
    record.fenced.push_back(fence);
  }
  if (!reader.ok() || reader.remaining() != 0) return damaged();
  return record;
}

}  // namespace strata::fusion
