// The file of one pool: a region whose slots peers read, and a record that outlives the process.
//
//     region = records (two, 2048 bytes apart, checksummed) up to 4096 | a SlotHeader for each slot,
//              up to a multiple of 4096 | pages
//
// Not thread-safe but for what is constant. Everything that changes the record blocks for the medium.
//   PF1  The record is written beside the one that counts: a process that dies meanwhile leaves
//        either the old one or the new one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/ids.h"
#include "base/status.h"
#include "memnode/pool/pool.h"
#include "transport/regions/region.h"

namespace strata::memnode {

// What a pool keeps besides its pages.
struct PoolRecord {
  uint64_t incarnation = 0;  // random; of the content; not 0
  bool discarding = false;   // the content of that incarnation is not all of it gone yet
  // Who was accepted last.
  Epoch epoch;
  uint64_t number = 0;
  // The last tier-1 checkpoint; lsn 0: there was none.
  Epoch checkpoint_epoch;
  Lsn checkpoint;
  uint64_t bias = 0;
};

class PoolHome {
 public:
  [[nodiscard]] static uint64_t bytes_for(uint32_t slots) noexcept;
  // The most slots that fit; 0: none.
  [[nodiscard]] static uint32_t slots_in(uint64_t bytes) noexcept;

  // A new one, with a new incarnation. Blocks. Errors: the region's.
  static StatusOr<std::unique_ptr<PoolHome>> create(const std::string& path, uint32_t slots);
  // One that an earlier process left. kDataLoss: it is no pool, or its record is damaged.
  static StatusOr<std::unique_ptr<PoolHome>> open(const std::string& path);
  PoolHome(const PoolHome&) = delete;
  PoolHome& operator=(const PoolHome&) = delete;

  [[nodiscard]] uint32_t slots() const noexcept { return slots_; }
  [[nodiscard]] uint64_t bytes() const noexcept { return bytes_for(slots_); }
  [[nodiscard]] PoolMemory memory() const noexcept;
  [[nodiscard]] uint64_t headers_at() const noexcept;
  [[nodiscard]] uint64_t pages_at() const noexcept;
  [[nodiscard]] const std::shared_ptr<transport::Region>& region() const noexcept {
    return region_;
  }

  [[nodiscard]] const PoolRecord& record() const noexcept { return record_; }
  // After an error the old one counts, in this process.
  Status save(const PoolRecord& record);

 private:
  PoolHome(std::shared_ptr<transport::Region> region, uint32_t slots)
      : region_(std::move(region)), slots_(slots) {}
  const std::shared_ptr<transport::Region> region_;
  const uint32_t slots_;
  PoolRecord record_;
  uint64_t written_ = 0;  // records so far
};

}  // namespace strata::memnode
