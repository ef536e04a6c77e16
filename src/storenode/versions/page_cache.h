// Versions of pages in memory: what replay has just made, or what was read lately. Thread-safe.
//   VC1  A page in the cache is sealed and never changes; whoever holds it may use it for as long
//        as he likes.
//   VC2  The cache holds at most `bytes`; the version used longest ago goes first.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <unordered_map>

#include "base/ids.h"
#include "base/latch.h"
#include "page/page.h"

namespace strata::storenode {

struct PageBuffer {
  alignas(8) char bytes[kPageBytes];
};
using PageRef = std::shared_ptr<const PageBuffer>;

class PageCache {
 public:
  explicit PageCache(uint64_t bytes);  // 0: nothing is kept
  PageCache(const PageCache&) = delete;
  PageCache& operator=(const PageCache&) = delete;

  // Null: not there. Counts a hit or a miss.
  PageRef find(PageId page, Llsn llsn);
  // The same without waiting for a latch: null also if somebody has it. Counts hits only.
  PageRef find_at_hand(PageId page, Llsn llsn);
  void insert(PageId page, Llsn llsn, PageRef ref);
  void erase(PageId page, Llsn llsn);
  void clear();

  [[nodiscard]] uint64_t hits() const noexcept { return hits_.load(std::memory_order_relaxed); }
  [[nodiscard]] uint64_t misses() const noexcept { return misses_.load(std::memory_order_relaxed); }
  [[nodiscard]] uint64_t bytes() const;

 private:
  struct Key {
    PageId page;
    Llsn llsn;
    bool operator==(const Key&) const noexcept = default;
  };
  struct Hash {
    size_t operator()(const Key& key) const noexcept {
      return static_cast<size_t>(mix64(mix64(key.page.packed()) + key.llsn.value));
    }
  };
  struct Entry {
    Key key;
    PageRef ref;
  };
  struct Shard {
    mutable Mutex mutex{LatchRank::kLeaf};
    std::list<Entry> entries STRATA_GUARDED_BY(mutex);  // used last in front
    std::unordered_map<Key, std::list<Entry>::iterator, Hash> index STRATA_GUARDED_BY(mutex);
  };
  static constexpr size_t kShards = 16;
  PageRef take(Shard* shard, const Key& key) STRATA_REQUIRES(shard->mutex);
  Shard& shard_of(const Key& key) { return shards_[Hash()(key) >> 60]; }

  const size_t pages_per_shard_;
  std::array<Shard, kShards> shards_;
  std::atomic<uint64_t> hits_{0};
  std::atomic<uint64_t> misses_{0};
};

}  // namespace strata::storenode
