#include "clients/memory/remote_directory.h"

#include <algorithm>

#include "base/assert.h"

namespace strata::clients {

namespace {

constexpr uint32_t kNone = UINT32_MAX;
constexpr uint32_t kShards = 32;
constexpr uint32_t kLookedAtMax = 256;  // pages of a shard, for cold clean ones

}  // namespace

struct RemoteDirectory::Entry {
  uint64_t page = 0;  // packed
  uint64_t generation = 0;
  uint64_t llsn = 0;
  uint32_t slot = 0;
  uint32_t next = kNone;  // of the bucket, or of the free ones
  uint32_t warmer = kNone;
  uint32_t colder = kNone;
  bool dirty = false;
  bool linked = false;  // out of use

  // Generations count for each slot by itself.
  [[nodiscard]] bool is_at(const proto::PoolSlot& at) const noexcept {
    return slot == at.slot && generation == at.generation;
  }
  [[nodiscard]] proto::PoolSlot told() const noexcept {
    return {slot, generation, Llsn{llsn}, dirty};
  }
};

struct RemoteDirectory::Shard {
  mutable Mutex mutex{LatchRank::kLeaf};
  std::vector<Entry> entries STRATA_GUARDED_BY(mutex);
  std::vector<uint32_t> buckets STRATA_GUARDED_BY(mutex);
  uint32_t free STRATA_GUARDED_BY(mutex) = kNone;
  uint32_t coldest STRATA_GUARDED_BY(mutex) = kNone;
  uint32_t warmest STRATA_GUARDED_BY(mutex) = kNone;

  uint32_t* bucket_of(uint64_t page) STRATA_REQUIRES(mutex) {
    return &buckets[(mix64(page) >> 8) & (buckets.size() - 1)];
  }
  Entry* find(uint64_t page) STRATA_REQUIRES(mutex) {
    if (buckets.empty()) return nullptr;
    for (uint32_t i = *bucket_of(page); i != kNone; i = entries[i].next)
      if (entries[i].page == page) return &entries[i];
    return nullptr;
  }
  // More than were made room for only if pages are spread very unevenly.
  Entry* insert(uint64_t page) STRATA_REQUIRES(mutex) {
    uint32_t index = free;
    if (index != kNone) {
      free = entries[index].next;
    } else {
      index = static_cast<uint32_t>(entries.size());
      entries.emplace_back();
    }
    uint32_t* const bucket = bucket_of(page);
    entries[index] = Entry();
    entries[index].page = page;
    entries[index].next = *bucket;
    *bucket = index;
    return &entries[index];
  }
  void erase(Entry* entry) STRATA_REQUIRES(mutex) {
    unlink(entry);
    const auto index = static_cast<uint32_t>(entry - entries.data());
    uint32_t* link = bucket_of(entry->page);
    while (*link != index) link = &entries[*link].next;
    *link = entry->next;
    entry->next = free;
    free = index;
  }
  void unlink(Entry* entry) STRATA_REQUIRES(mutex) {
    if (!entry->linked) return;
    (entry->warmer == kNone ? warmest : entries[entry->warmer].colder) = entry->colder;
    (entry->colder == kNone ? coldest : entries[entry->colder].warmer) = entry->warmer;
    entry->warmer = entry->colder = kNone;
    entry->linked = false;
  }
  void link_warm(Entry* entry) STRATA_REQUIRES(mutex) {
    unlink(entry);
    const auto index = static_cast<uint32_t>(entry - entries.data());
    entry->colder = warmest;
    (warmest == kNone ? coldest : entries[warmest].warmer) = index;
    warmest = index;
    entry->linked = true;
  }
  void link_cold(Entry* entry) STRATA_REQUIRES(mutex) {
    unlink(entry);
    const auto index = static_cast<uint32_t>(entry - entries.data());
    entry->warmer = coldest;
    (coldest == kNone ? warmest : entries[coldest].colder) = index;
    coldest = index;
    entry->linked = true;
  }
};

RemoteDirectory::RemoteDirectory() : shards_(new Shard[kShards]) {
  static_assert(sizeof(Entry) == 48);
}
RemoteDirectory::~RemoteDirectory() = default;

RemoteDirectory::Shard& RemoteDirectory::shard_of(PageId id) const noexcept {
  return shards_[mix64(id.packed()) % kShards];
}

void RemoteDirectory::reset(uint32_t slots, bool complete) {
  resets_.fetch_add(1, std::memory_order_seq_cst);
  complete_.store(false, std::memory_order_release);
  const size_t each = slots / kShards + slots / kShards / 8 + 64;
  size_t buckets = 64;
  while (buckets < each) buckets *= 2;
  for (uint32_t i = 0; i < kShards; ++i) {
    Shard& shard = shards_[i];
    const MutexLock lock(shard.mutex);
    for (const uint32_t first : shard.buckets)
      for (uint32_t at = first; at != kNone; at = shard.entries[at].next) {
        size_.fetch_sub(1, std::memory_order_relaxed);
        if (shard.entries[at].dirty) dirty_.fetch_sub(1, std::memory_order_release);
      }
    shard.entries.clear();
    if (slots != 0) shard.entries.reserve(each);
    shard.buckets.assign(buckets, kNone);
    shard.free = shard.coldest = shard.warmest = kNone;
  }
  {
    const MutexLock lock(gone_mutex_);
    gone_.clear();
  }
  slots_.store(slots, std::memory_order_relaxed);
  complete_.store(complete, std::memory_order_release);
}

std::optional<proto::PoolSlot> RemoteDirectory::find(PageId id) const {
  Shard& shard = shard_of(id);
  const MutexLock lock(shard.mutex);
  const Entry* const entry = shard.find(id.packed());
  if (entry == nullptr) return std::nullopt;
  return entry->told();
}

void RemoteDirectory::put(PageId id, const proto::PoolSlot& at, bool out_of_use) {
  Shard& shard = shard_of(id);
  const MutexLock lock(shard.mutex);
  Entry* entry = shard.find(id.packed());
  if (entry == nullptr) {
    entry = shard.insert(id.packed());
    size_.fetch_add(1, std::memory_order_relaxed);
  }
  const bool was_dirty = entry->dirty;
  const bool same = entry->llsn == at.llsn.value && entry->is_at(at);
  entry->slot = at.slot;
  entry->generation = at.generation;
  entry->llsn = at.llsn.value;
  entry->dirty = at.dirty || (same && was_dirty);  // RDR3
  if (entry->dirty && !was_dirty) dirty_.fetch_add(1, std::memory_order_release);
  if (!entry->dirty && was_dirty) dirty_.fetch_sub(1, std::memory_order_release);
  if (out_of_use) shard.link_warm(entry);
}

void RemoteDirectory::listed(absl::Span<const proto::PoolListReply::Page> pages) {
  const auto is_gone = [&](uint32_t space) {
    const MutexLock lock(gone_mutex_);
    return std::find(gone_.begin(), gone_.end(), SpaceId{space}) != gone_.end();
  };
  for (const proto::PoolListReply::Page& page : pages) {
    if (is_gone(page.id.space)) continue;
    Shard& shard = shard_of(page.id);
    const MutexLock lock(shard.mutex);
    if (shard.find(page.id.packed()) != nullptr) continue;  // RDR2
    Entry* const entry = shard.insert(page.id.packed());
    entry->slot = page.at.slot;
    entry->generation = page.at.generation;
    entry->llsn = page.at.llsn.value;
    entry->dirty = page.at.dirty;
    shard.link_cold(entry);
    size_.fetch_add(1, std::memory_order_relaxed);
    if (entry->dirty) dirty_.fetch_add(1, std::memory_order_release);
  }
}

void RemoteDirectory::whole_list() {
  complete_.store(true, std::memory_order_release);
  const MutexLock lock(gone_mutex_);
  gone_.clear();
}

void RemoteDirectory::looked_up(PageId id, const std::optional<proto::PoolSlot>& before,
                                const proto::PoolLookupReply::Found& found) {
  Shard& shard = shard_of(id);
  const MutexLock lock(shard.mutex);
  Entry* entry = shard.find(id.packed());
  if ((entry != nullptr) != before.has_value()) return;
  if (entry != nullptr && !entry->is_at(*before)) return;
  const bool was_dirty = entry != nullptr && entry->dirty;
  if (!found.there) {
    if (entry == nullptr) return;
    shard.erase(entry);
    size_.fetch_sub(1, std::memory_order_relaxed);
    if (was_dirty) dirty_.fetch_sub(1, std::memory_order_release);
    return;
  }
  if (entry == nullptr) {
    entry = shard.insert(id.packed());
    size_.fetch_add(1, std::memory_order_relaxed);
  }
  entry->slot = found.at.slot;
  entry->generation = found.at.generation;
  entry->llsn = found.at.llsn.value;
  entry->dirty = found.at.dirty;
  if (entry->dirty && !was_dirty) dirty_.fetch_add(1, std::memory_order_release);
  if (!entry->dirty && was_dirty) dirty_.fetch_sub(1, std::memory_order_release);
}

void RemoteDirectory::erase(PageId id, const proto::PoolSlot& at) {
  Shard& shard = shard_of(id);
  const MutexLock lock(shard.mutex);
  Entry* const entry = shard.find(id.packed());
  if (entry == nullptr || !entry->is_at(at)) return;
  if (entry->dirty) dirty_.fetch_sub(1, std::memory_order_release);
  shard.erase(entry);
  size_.fetch_sub(1, std::memory_order_relaxed);
}

// Looks at all of them: tables are dropped seldom.
void RemoteDirectory::erase_space(SpaceId space) {
  if (!complete()) {
    const MutexLock lock(gone_mutex_);
    gone_.push_back(space);
  }
  for (uint32_t i = 0; i < kShards; ++i) {
    Shard& shard = shards_[i];
    const MutexLock lock(shard.mutex);
    for (size_t bucket = 0; bucket < shard.buckets.size(); ++bucket)
      for (uint32_t at = shard.buckets[bucket]; at != kNone;) {
        Entry* const entry = &shard.entries[at];
        at = entry->next;
        if (PageId::unpack(entry->page).space != space.value) continue;
        if (entry->dirty) dirty_.fetch_sub(1, std::memory_order_release);
        shard.erase(entry);
        size_.fetch_sub(1, std::memory_order_relaxed);
      }
  }
}

void RemoteDirectory::cleaned(PageId id, Llsn llsn) {
  Shard& shard = shard_of(id);
  const MutexLock lock(shard.mutex);
  Entry* const entry = shard.find(id.packed());
  if (entry == nullptr || entry->llsn != llsn.value || !entry->dirty) return;
  entry->dirty = false;
  dirty_.fetch_sub(1, std::memory_order_release);
}

void RemoteDirectory::dirtied(PageId id, const proto::PoolSlot& at) {
  Shard& shard = shard_of(id);
  const MutexLock lock(shard.mutex);
  Entry* const entry = shard.find(id.packed());
  if (entry == nullptr || !entry->is_at(at) || entry->dirty) return;
  entry->dirty = true;
  dirty_.fetch_add(1, std::memory_order_release);
}

bool RemoteDirectory::evicted(PageId id) noexcept {
  Shard& shard = shard_of(id);
  const MutexLock lock(shard.mutex);
  Entry* const entry = shard.find(id.packed());
  if (entry == nullptr) return false;
  shard.link_warm(entry);
  return true;
}

void RemoteDirectory::used(PageId id) noexcept {
  Shard& shard = shard_of(id);
  const MutexLock lock(shard.mutex);
  if (Entry* const entry = shard.find(id.packed()); entry != nullptr) shard.unlink(entry);
}

RemoteDirectory::Cold RemoteDirectory::coldest(size_t max) const {
  Cold cold;
  const uint32_t first = next_shard_.fetch_add(1, std::memory_order_relaxed);
  const size_t each = (max + kShards - 1) / kShards;
  for (uint32_t i = 0; i < kShards && cold.clean.size() < max; ++i) {
    const Shard& shard = shards_[(first + i) % kShards];
    const MutexLock lock(shard.mutex);
    size_t found = 0;
    uint32_t at = shard.coldest;
    for (uint32_t looked = 0; at != kNone && looked < kLookedAtMax && found < each; ++looked) {
      const Entry& entry = shard.entries[at];
      at = entry.warmer;
      if (entry.dirty) {
        cold.dirty = true;
        continue;
      }
      cold.clean.push_back({PageId::unpack(entry.page), entry.told()});
      ++found;
    }
  }
  if (cold.clean.size() > max) cold.clean.resize(max);
  return cold;
}

void RemoteDirectory::check() const {
  size_t size = 0, dirty = 0;
  for (uint32_t i = 0; i < kShards; ++i) {
    const Shard& shard = shards_[i];
    const MutexLock lock(shard.mutex);
    size_t linked = 0, in_list = 0;
    for (const uint32_t first : shard.buckets)
      for (uint32_t at = first; at != kNone; at = shard.entries[at].next) {
        ++size;
        dirty += shard.entries[at].dirty ? 1 : 0;
        linked += shard.entries[at].linked ? 1 : 0;
      }
    uint32_t before = kNone;
    for (uint32_t at = shard.coldest; at != kNone; at = shard.entries[at].warmer) {
      STRATA_ASSERT(shard.entries[at].linked);
      STRATA_ASSERT(shard.entries[at].colder == before);
      before = at;
      ++in_list;
    }
    STRATA_ASSERT(before == shard.warmest);
    STRATA_ASSERT(linked == in_list);
  }
  STRATA_ASSERT(size == size_.load());
  STRATA_ASSERT(dirty == dirty_.load());
}

}  // namespace strata::clients
