// Key ranges that transactions have read and that nobody else may change until they end
// (SERIALIZABLE). Part of the lock table: see row_waits.h (L7-L9). Thread-safe; the calls that take
// a holder and change something come from that transaction's own thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/bytes.h"
#include "base/ids.h"
#include "base/latch.h"
#include "lock/key_range.h"

namespace strata {

namespace lock_internal {

// Disjoint, non-touching ranges: however often a transaction reads something, it is kept once.
class IntervalSet {
 public:
  bool add(const KeyRange& range);  // false: it was all there
  void remove(const KeyRange& range);
  [[nodiscard]] bool contains(Bytes key) const noexcept;
  [[nodiscard]] bool covers(const KeyRange& range) const noexcept;
  [[nodiscard]] size_t size() const noexcept { return ends_.size(); }

 private:
  struct End {
    std::string high;
    bool infinite = false;
    [[nodiscard]] bool reaches(Bytes key) const noexcept { return infinite || Bytes(high) >= key; }
    [[nodiscard]] bool passes(Bytes key) const noexcept { return infinite || Bytes(high) > key; }
  };
  using Map = std::map<std::string, End, std::less<>>;  // by low
  [[nodiscard]] Map::const_iterator last_at_or_below(Bytes key) const noexcept;
  Map ends_;
};

class RangeLocks {
 public:
  struct Added {
    bool grew = false;   // not all of it was registered before
    bool first = false;  // the holder had none in the index
  };
  // Registers: whoever marks a record in the range from now on finds it.
  Added add(TrxId holder, IndexId index, const KeyRange& range);
  // The holder has read the (registered) range: nobody else's change can be undecided in it but
  // those that wait for the holder.
  void settle(TrxId holder, IndexId index, const KeyRange& range);
  [[nodiscard]] bool settled(TrxId holder, IndexId index, Bytes key) const;
  [[nodiscard]] bool settled(TrxId holder, IndexId index, const KeyRange& range) const;
  // Takes one unsettled key back.
  void drop_key(TrxId holder, IndexId index, Bytes key);
  // Forgets the holder; returns the indexes it had ranges in.
  std::vector<IndexId> release(TrxId holder);

  // A transaction other than `self` with a range over the key, or zero.
  [[nodiscard]] TrxId conflict(TrxId self, IndexId index, Bytes key) const;
  // Appends all of them.
  void holders_of(IndexId index, Bytes key, std::vector<TrxId>* out) const;
  [[nodiscard]] bool none() const noexcept { return total_.load(std::memory_order_acquire) == 0; }

 private:
  struct Held {
    TrxId holder;
    IntervalSet registered;
    IntervalSet settled;
  };
  struct Shard {
    mutable Mutex mutex{LatchRank::kLockShard};  // as those of the shared locks
    std::unordered_map<uint32_t, std::vector<Held>> by_index STRATA_GUARDED_BY(mutex);
  };
  struct HolderShard {
    Mutex mutex{LatchRank::kLockShard};
    std::unordered_map<TrxId, std::vector<IndexId>> indexes STRATA_GUARDED_BY(mutex);
  };
  static constexpr size_t kShards = 64;

  Shard& shard_of(IndexId index) noexcept { return shards_[index.value % kShards]; }
  const Shard& shard_of(IndexId index) const noexcept { return shards_[index.value % kShards]; }
  HolderShard& holder_shard(TrxId id) noexcept { return holders_[mix64(id.value) % kShards]; }
  static const Held* find(const Shard& shard, TrxId holder, IndexId index) noexcept
      STRATA_REQUIRES(shard.mutex);
  static Held* find(Shard& shard, TrxId holder, IndexId index) noexcept
      STRATA_REQUIRES(shard.mutex) {
    return const_cast<Held*>(find(static_cast<const Shard&>(shard), holder, index));
  }

  std::atomic<uint64_t> total_{0};  // (holder, index) pairs
  std::array<Shard, kShards> shards_;
  std::array<HolderShard, kShards> holders_;
};

}  // namespace lock_internal
}  // namespace strata
