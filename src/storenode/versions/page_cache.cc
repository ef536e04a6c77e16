#include "storenode/versions/page_cache.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace strata::storenode {

PageCache::PageCache(uint64_t bytes)
    : pages_per_shard_(bytes == 0 ? 0 : std::max<uint64_t>(1, bytes / kPageBytes / kShards)) {}

// Null: not there.
PageRef PageCache::take(Shard* shard, const Key& key) {
  const auto it = shard->index.find(key);
  if (it == shard->index.end()) return nullptr;
  hits_.fetch_add(1, std::memory_order_relaxed);
  shard->entries.splice(shard->entries.begin(), shard->entries, it->second);
  return it->second->ref;
}

PageRef PageCache::find(PageId page, Llsn llsn) {
  const Key key{page, llsn};
  Shard& shard = shard_of(key);
  const MutexLock lock(shard.mutex);
  PageRef found = take(&shard, key);
  if (found == nullptr) misses_.fetch_add(1, std::memory_order_relaxed);
  return found;
}

PageRef PageCache::find_at_hand(PageId page, Llsn llsn) {
  const Key key{page, llsn};
  Shard& shard = shard_of(key);
  if (!shard.mutex.try_lock()) return nullptr;
  const MutexLock lock(shard.mutex, std::adopt_lock);
  return take(&shard, key);
}

void PageCache::insert(PageId page, Llsn llsn, PageRef ref) {
  STRATA_ASSERT(ref != nullptr);
  if (pages_per_shard_ == 0) return;
  const Key key{page, llsn};
  Shard& shard = shard_of(key);
  PageRef victim;  // freed after the mutex
  const MutexLock lock(shard.mutex);
  if (const auto it = shard.index.find(key); it != shard.index.end()) {
    victim = std::exchange(it->second->ref, std::move(ref));
    return;
  }
  shard.entries.push_front(Entry{key, std::move(ref)});
  shard.index.emplace(key, shard.entries.begin());
  STRATA_ASSERT(shard.index.size() == shard.entries.size());
  if (shard.entries.size() <= pages_per_shard_) return;
  victim = std::move(shard.entries.back().ref);
  shard.index.erase(shard.entries.back().key);
  shard.entries.pop_back();
}

void PageCache::erase(PageId page, Llsn llsn) {
  const Key key{page, llsn};
  Shard& shard = shard_of(key);
  const MutexLock lock(shard.mutex);
  const auto it = shard.index.find(key);
  if (it == shard.index.end()) return;
  shard.entries.erase(it->second);
  shard.index.erase(it);
}

void PageCache::clear() {
  for (Shard& shard : shards_) {
    const MutexLock lock(shard.mutex);
    shard.index.clear();
    shard.entries.clear();
  }
}

uint64_t PageCache::bytes() const {
  uint64_t pages = 0;
  for (const Shard& shard : shards_) {
    const MutexLock lock(shard.mutex);
    pages += shard.entries.size();
  }
  return pages * kPageBytes;
}

}  // namespace strata::storenode
