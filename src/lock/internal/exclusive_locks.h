// Rows held exclusively by transactions that have not written to them. Part of the lock table: see
// row_waits.h (L10, L11). Thread-safe; what takes a HeldRows comes from its owner's thread. `hash`
// is always that of the row.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "base/latch.h"
#include "lock/held_rows.h"
#include "lock/row_id.h"

namespace strata::lock_internal {

class ExclusiveLocks {
 public:
  ExclusiveLocks() = default;
  ~ExclusiveLocks();
  ExclusiveLocks(const ExclusiveLocks&) = delete;
  ExclusiveLocks& operator=(const ExclusiveLocks&) = delete;

  // Zero: `holder` has it now. Otherwise whoever had it before, and nothing happened.
  TrxId add(HeldRows* held, TrxId holder, RowId row, uint64_t hash);
  [[nodiscard]] TrxId holder_of(RowId row, uint64_t hash) const;
  [[nodiscard]] bool any_in(IndexId index) const noexcept {
    return counter(index).load(std::memory_order_seq_cst) != 0;
  }
  // False: it was not held.
  bool drop(HeldRows* held, RowId row, uint64_t hash);
  // Drops the row if it was the last one taken, and no savepoint has been set since.
  void drop_last(HeldRows* held, RowId row, uint64_t hash);
  void release(HeldRows* held);

 private:
  static constexpr size_t kShards = 64;  // powers of two
  static constexpr size_t kChains = 64;  // per shard
  static constexpr size_t kIndexCounters = 1024;
  static constexpr size_t kSparesMax = 16;

  struct Shard {
    mutable Mutex mutex{LatchRank::kLockShard};  // as those of the shared locks
    std::array<HeldRow*, kChains> chains STRATA_GUARDED_BY(mutex){};
  };
  Shard& shard_of(uint64_t hash) noexcept { return shards_[hash % kShards]; }
  const Shard& shard_of(uint64_t hash) const noexcept { return shards_[hash % kShards]; }
  static size_t chain_of(uint64_t hash) noexcept { return hash / kShards % kChains; }
  static HeldRow* find(const Shard& shard, RowId row, uint64_t hash) noexcept
      STRATA_REQUIRES(shard.mutex);
  static std::unique_ptr<HeldRow> take_spare(HeldRows* held);
  const std::atomic<uint32_t>& counter(IndexId index) const noexcept {
    return per_index_[index.value % kIndexCounters];
  }
  std::atomic<uint32_t>& counter(IndexId index) noexcept {
    return per_index_[index.value % kIndexCounters];
  }
  void unlink(HeldRow* row) noexcept;
  void drop_at(HeldRows* held, size_t position);

  std::array<Shard, kShards> shards_;
  std::array<std::atomic<uint32_t>, kIndexCounters> per_index_{};
};

}  // namespace strata::lock_internal
