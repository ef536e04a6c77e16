#include "memnode/service/pool_home.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "base/crc32c.h"
#include "transport/secret.h"

namespace strata::memnode {
namespace {

constexpr uint64_t kBlockBytes = 4096;
constexpr uint64_t kRecordsApart = 2048;
constexpr uint64_t kMagic = 0x314c4f4f50525453;  // "STRPOOL1"

struct StoredRecord {
  uint64_t magic = kMagic;
  uint64_t sequence = 0;
  uint64_t slots = 0;
  uint64_t incarnation = 0;
  uint64_t discarding = 0;
  uint64_t epoch = 0;
  uint64_t number = 0;
  uint64_t checkpoint_epoch = 0;
  uint64_t checkpoint = 0;
  uint64_t bias = 0;
  uint32_t crc32c = 0;  // of what is before it
  uint32_t reserved = 0;
};
static_assert(sizeof(StoredRecord) == 88);

uint32_t checksum(const StoredRecord& stored) {
  return crc32c(&stored, offsetof(StoredRecord, crc32c));
}

uint64_t headers_bytes(uint32_t slots) {
  const uint64_t bytes = uint64_t{slots} * sizeof(SlotHeader);
  return (bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
}

bool read_record(const transport::Region& region, size_t which, StoredRecord* out) {
  std::memcpy(out, region.data() + which * kRecordsApart, sizeof *out);
  return out->magic == kMagic && out->crc32c == checksum(*out) && out->incarnation != 0 &&
         out->slots >= kPoolSlotsMin && out->slots <= UINT32_MAX;
}

uint64_t random_incarnation() {
  uint64_t number = 0;
  while (number == 0)
    transport::system_entropy()->fill(reinterpret_cast<char*>(&number), sizeof number);
  return number;
}

}  // namespace

uint64_t PoolHome::bytes_for(uint32_t slots) noexcept {
  return kBlockBytes + headers_bytes(slots) + uint64_t{slots} * kPageBytes;
}

uint32_t PoolHome::slots_in(uint64_t bytes) noexcept {
  if (bytes < 2 * kBlockBytes) return 0;
  const uint64_t slots = (bytes - 2 * kBlockBytes) / (kPageBytes + sizeof(SlotHeader));
  return static_cast<uint32_t>(std::min<uint64_t>(slots, UINT32_MAX));
}

PoolMemory PoolHome::memory() const noexcept {
  char* const data = region_->data();
  return {reinterpret_cast<SlotHeader*>(data + headers_at()), data + pages_at()};
}
uint64_t PoolHome::headers_at() const noexcept { return kBlockBytes; }
uint64_t PoolHome::pages_at() const noexcept { return kBlockBytes + headers_bytes(slots_); }

StatusOr<std::unique_ptr<PoolHome>> PoolHome::create(const std::string& path, uint32_t slots) {
  STRATA_ASSIGN_OR_RETURN(std::shared_ptr<transport::Region> region,
                          transport::Region::create(path, bytes_for(slots), 1));
  auto home = std::unique_ptr<PoolHome>(new PoolHome(std::move(region), slots));
  PoolRecord record;
  record.incarnation = random_incarnation();
  STRATA_RETURN_IF_ERROR(home->save(record));
  return home;
}

StatusOr<std::unique_ptr<PoolHome>> PoolHome::open(const std::string& path) {
  STRATA_ASSIGN_OR_RETURN(std::shared_ptr<transport::Region> region, transport::Region::open(path));
  const Status damaged = error_corruption("the pool file " + path + " has no sound record");
  if (region->bytes() < 2 * kBlockBytes) return damaged;
  StoredRecord newest;
  StoredRecord other;
  const bool first = read_record(*region, 0, &newest);
  if (read_record(*region, 1, &other) && (!first || other.sequence > newest.sequence))
    newest = other;
  else if (!first)
    return damaged;
  const auto slots = static_cast<uint32_t>(newest.slots);
  if (region->bytes() != bytes_for(slots)) return damaged;
  auto home = std::unique_ptr<PoolHome>(new PoolHome(std::move(region), slots));
  home->written_ = newest.sequence;
  home->record_ = {newest.incarnation, newest.discarding != 0,         Epoch{newest.epoch},
                   newest.number,      Epoch{newest.checkpoint_epoch}, Lsn{newest.checkpoint},
                   newest.bias};
  return home;
}

Status PoolHome::save(const PoolRecord& record) {
  StoredRecord stored;
  stored.sequence = written_ + 1;
  stored.slots = slots_;
  stored.incarnation = record.incarnation;
  stored.discarding = record.discarding ? 1 : 0;
  stored.epoch = record.epoch.value;
  stored.number = record.number;
  stored.checkpoint_epoch = record.checkpoint_epoch.value;
  stored.checkpoint = record.checkpoint.value;
  stored.bias = record.bias;
  stored.crc32c = checksum(stored);
  const uint64_t at = stored.sequence % 2 * kRecordsApart;
  std::memcpy(region_->data() + at, &stored, sizeof stored);
  STRATA_RETURN_IF_ERROR(region_->persist(at, sizeof stored));
  written_ = stored.sequence;
  record_ = record;
  return ok_status();
}

}  // namespace strata::memnode
