#include "memnode/file/state_records.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>

#include "base/bytes.h"
#include "base/crc32c.h"

namespace strata::memnode {
namespace {

constexpr uint64_t kMagic = 0x4c4f4f5041525453;  // "STRAPOOL"
constexpr uint32_t kVersion = 1;

struct OwnerBytes {
  uint64_t magic = 0;
  uint32_t version = 0;
  uint32_t crc32c = 0;  // of what is behind it
  uint64_t node = 0;
  uint32_t stream = 0;
  uint32_t slots = 0;
};
static_assert(sizeof(OwnerBytes) == 32);

struct Record {
  uint64_t sequence = 0;  // 0: never written
  std::array<uint64_t, 4> words{};
  uint64_t check = 0;  // crc32c of what is before it, and of which record it is
};
static_assert(sizeof(Record) == 48);

constexpr uint64_t kRecordBytes = 64;  // between two
enum Which : uint64_t { kContent = 1, kUser = 2, kCheckpoint = 3 };

uint32_t checksum(const OwnerBytes& owner) noexcept {
  return crc32c(&owner.node, sizeof owner - offsetof(OwnerBytes, node));
}
uint64_t checksum(const Record& record, Which which) noexcept {
  const uint64_t kind = which;
  return crc32c(&record, offsetof(Record, check), crc32c(&kind, sizeof kind));
}

char* place_of(char* place, Which which, uint64_t sequence) noexcept {
  return place + (2 * which + sequence % 2) * kRecordBytes;
}

// The last whole one; sequence 0: none.
Record read(char* place, Which which) noexcept {
  Record best;
  for (const uint64_t turn : {0, 1}) {
    Record record;
    std::memcpy(&record, place_of(place, which, turn), sizeof record);
    const bool whole = record.check == checksum(record, which) && record.sequence % 2 == turn;
    if (whole && record.sequence > best.sequence) best = record;
  }
  return best;
}

void write(char* place, Which which, std::array<uint64_t, 4> words) noexcept {
  Record record{.sequence = read(place, which).sequence + 1, .words = words, .check = 0};
  if (record.sequence == 0) record.sequence = 2;  // nobody lives so long; a damaged one may say so
  record.check = checksum(record, which);
  auto* const target = reinterpret_cast<uint64_t*>(place_of(place, which, record.sequence));
  std::array<uint64_t, sizeof(Record) / 8> all;
  std::memcpy(all.data(), &record, sizeof record);
  for (size_t i = 0; i < all.size(); i++)  // MST2: in this order
    std::atomic_ref<uint64_t>(target[i]).store(all[i], std::memory_order_release);
}

}  // namespace

StatusOr<StateRecords::Owner> StateRecords::owner() const {
  OwnerBytes bytes;
  std::memcpy(&bytes, place_, sizeof bytes);
  const OwnerBytes nothing;
  if (std::memcmp(&bytes, &nothing, sizeof bytes) == 0) return error_not_found();
  if (bytes.magic != kMagic || bytes.crc32c != checksum(bytes))
    return error_corruption("the header of a pool");
  if (bytes.version != kVersion) return error_corruption("a pool of another version");
  return Owner{.stream = StreamId{bytes.stream}, .node = bytes.node, .slots = bytes.slots};
}

void StateRecords::begin(const Owner& owner) noexcept {
  std::memset(place_, 0, kStateBytes);
  OwnerBytes bytes{.magic = 0,
                   .version = kVersion,
                   .crc32c = 0,
                   .node = owner.node,
                   .stream = owner.stream.value,
                   .slots = owner.slots};
  bytes.crc32c = checksum(bytes);
  std::memcpy(place_, &bytes, sizeof bytes);
  std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(place_))
      .store(kMagic, std::memory_order_release);
}

uint64_t StateRecords::incarnation() const noexcept { return read(place_, kContent).words[0]; }
std::array<uint64_t, 2> StateRecords::boot() const noexcept {
  const Record record = read(place_, kContent);
  return {record.words[1], record.words[2]};
}
bool StateRecords::persistent() const noexcept { return read(place_, kContent).words[3] == 1; }
void StateRecords::set_incarnation(uint64_t incarnation, const std::array<uint64_t, 2>& boot,
                                   bool persistent) noexcept {
  write(place_, kContent, {incarnation, boot[0], boot[1], persistent ? 1u : 0u});
}

StateRecords::User StateRecords::user() const noexcept {
  const Record record = read(place_, kUser);
  return {Epoch{record.words[0]}, record.words[1]};
}
void StateRecords::set_user(const User& user) noexcept {
  write(place_, kUser, {user.epoch.value, user.number, 0, 0});
}

StateRecords::Checkpoint StateRecords::checkpoint() const noexcept {
  const Record record = read(place_, kCheckpoint);
  if (record.words[3] != incarnation()) return {};
  return {Epoch{record.words[0]}, Lsn{record.words[1]}, record.words[2]};
}
void StateRecords::set_checkpoint(const Checkpoint& checkpoint) noexcept {
  write(place_, kCheckpoint,
        {checkpoint.epoch.value, checkpoint.lsn.value, checkpoint.bias, incarnation()});
}

}  // namespace strata::memnode
