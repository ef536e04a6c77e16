// Stretches of rows held exclusively by transactions that have not written to them: what a locking
// scan has passed, one entry for many rows. Part of the lock table: see row_waits.h (L12).
// Thread-safe; what takes a HeldRows comes from its owner's thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "base/latch.h"
#include "lock/held_rows.h"
#include "lock/row_id.h"

namespace strata::lock_internal {

class ExclusiveRuns {
 public:
  ExclusiveRuns() = default;
  ~ExclusiveRuns();
  ExclusiveRuns(const ExclusiveRuns&) = delete;
  ExclusiveRuns& operator=(const ExclusiveRuns&) = delete;

  // Both ends belong to it. Null and *had: `holder` held all of it already. Null otherwise: another
  // run is in the way.
  HeldRun* add(HeldRows* held, TrxId holder, IndexId index, Bytes low, Bytes high, Cts now,
               bool* had);
  // Moves the upper end up; false, and nothing happened: another run is in the way.
  bool extend(HeldRun* run, Bytes high, Cts now);
  // Moves the upper end down. `high` is in the run.
  void trim(HeldRun* run, Bytes high);
  void drop(HeldRows* held, HeldRun* run);
  [[nodiscard]] TrxId holder_of(RowId row, Cts written) const;
  [[nodiscard]] bool any_in(IndexId index) const noexcept {
    return shard_of(index).runs_here.load(std::memory_order_seq_cst) != 0;
  }
  void release(HeldRows* held);

 private:
  void remove(HeldRun* run);
  static constexpr size_t kShards = 256;

  // Runs of an index do not overlap, whoever holds them: the one that may hold a key is the last
  // that begins at or before it.
  using ByLow = std::map<std::string, HeldRun*, std::less<>>;
  struct Shard {
    mutable Mutex mutex{LatchRank::kLockShard};  // as those of single rows
    std::map<uint64_t, ByLow> indexes STRATA_GUARDED_BY(mutex);
    std::atomic<uint32_t> runs_here{0};
  };
  Shard& shard_of(IndexId index) noexcept { return shards_[mix64(index.value) % kShards]; }
  const Shard& shard_of(IndexId index) const noexcept {
    return shards_[mix64(index.value) % kShards];
  }
  // Of those in `runs`, the one that holds `key` or else the last before it; null: none.
  static HeldRun* at_or_before(const ByLow& runs, Bytes key) noexcept;

  std::array<Shard, kShards> shards_;
};

}  // namespace strata::lock_internal
