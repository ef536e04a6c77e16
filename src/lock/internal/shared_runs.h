// Stretches of rows held shared: what a locking scan has passed, one entry for many rows. Part of
// the lock table: see row_waits.h (L20). Thread-safe; what takes a HeldRows comes from its owner's
// thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/latch.h"
#include "lock/held_rows.h"
#include "lock/row_id.h"

namespace strata::lock_internal {

class SharedRuns {
 public:
  SharedRuns() = default;
  ~SharedRuns();
  SharedRuns(const SharedRuns&) = delete;
  SharedRuns& operator=(const SharedRuns&) = delete;

  // Both ends belong to it. Null and *had: `holder` held all of it already. Null otherwise: another
  // run of its own is in the way; those of others never are.
  HeldRun* add(HeldRows* held, TrxId holder, IndexId index, Bytes low, Bytes high, bool* had);
  // Moves the upper end up; false, and nothing happened: another run of the holder is in the way.
  bool extend(HeldRun* run, Bytes high);
  // Moves the upper end down. `high` is in the run.
  void trim(HeldRun* run, Bytes high);
  void drop(HeldRows* held, HeldRun* run);
  // All of them; tells `forget` the index of each.
  void release(HeldRows* held, const std::function<void(IndexId)>& forget);

  [[nodiscard]] bool holds(TrxId holder, RowId row) const;
  // Who but `self` holds the row, or zero.
  [[nodiscard]] TrxId conflict(TrxId self, RowId row) const;
  // Appends all of them.
  void holders_of(RowId row, std::vector<TrxId>* out) const;
  [[nodiscard]] bool any_in(IndexId index) const noexcept {
    return shard_of(index).runs_here.load(std::memory_order_seq_cst) != 0;
  }

 private:
  void remove(HeldRun* run);
  static constexpr size_t kShards = 256;

  // Runs of one holder in an index do not overlap.
  using ByLow = std::map<std::string, HeldRun*, std::less<>>;
  using ByHolder = std::map<TrxId, ByLow>;
  struct Shard {
    mutable Mutex mutex{LatchRank::kLockShard};  // as those of single rows
    std::map<uint64_t, ByHolder> indexes STRATA_GUARDED_BY(mutex);
    std::atomic<uint32_t> runs_here{0};
  };
  Shard& shard_of(IndexId index) noexcept { return shards_[mix64(index.value) % kShards]; }
  const Shard& shard_of(IndexId index) const noexcept {
    return shards_[mix64(index.value) % kShards];
  }
  // Of those in `runs`, the one that holds `key` or else the last before it; null: none.
  static HeldRun* at_or_before(const ByLow& runs, Bytes key) noexcept;
  static bool holds(const ByLow& runs, Bytes key) noexcept;
  static const ByHolder* find(const Shard& shard, IndexId index) noexcept
      STRATA_REQUIRES(shard.mutex);

  std::array<Shard, kShards> shards_;
};

}  // namespace strata::lock_internal
