#include "storenode/versions/version_map.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <tuple>
#include <utility>

#include "base/assert.h"

namespace strata::storenode {
namespace {

constexpr uint64_t kEntryBytes = 200;  // of a list without versions: entry, hash entry, list entry
constexpr uint64_t kSpillEntries = 4096;  // written at once
constexpr size_t kAddedAtOnce = 32;       // pages, under one latch

bool by_llsn(const Version& a, const Version& b) noexcept { return a.llsn < b.llsn; }

// Where the versions that count begin (VM3).
std::vector<Version>::iterator oldest_kept(std::vector<Version>* list) noexcept {
  auto it = list->end();
  while (it != list->begin())
    if ((--it)->is(kOldestKept)) return it;
  return list->begin();
}

}  // namespace

ptrdiff_t newest_at(VersionList list, Llsn at) noexcept {
  const auto after = std::upper_bound(list.begin(), list.end(), at,
                                      [](Llsn llsn, const Version& v) { return llsn < v.llsn; });
  return after - list.begin() - 1;
}

size_t collectable(VersionList list, Llsn horizon) noexcept {
  ptrdiff_t keep = newest_at(list, horizon);
  while (keep > 0 && !list[keep].is(kMaterialized) && !list[keep].is(kRestartsChain)) --keep;
  return keep < 0 ? 0 : static_cast<size_t>(keep);
}

VersionMap::VersionMap(VersionDb* db, uint64_t memory_bytes)
    : db_(db), shard_bytes_max_(memory_bytes / kShards) {}

VersionMap::~VersionMap() = default;

Status VersionMap::open() {
  STRATA_ASSIGN_OR_RETURN(const Llsn horizon, db_->read_horizon());
  horizon_.store(horizon.value);
  STRATA_ASSIGN_OR_RETURN(const std::vector<DroppedSpace> dropped, db_->read_dropped());
  const MutexLock lock(dropped_mutex_);
  for (const DroppedSpace& space : dropped) {
    if (dropped_.emplace(space.space, space).second && space.reclaimed) ++reclaimed_;
  }
  return ok_status();
}

// --- lists in memory ---

VersionMap::PageEntry* VersionMap::make_entry(Shard* shard, PageId page) {
  auto made = std::make_unique<PageEntry>(page);
  PageEntry* const held = made.get();
  held->place = shard->clean.insert(shard->clean.begin(), held);
  shard->entries.emplace(page, std::move(made));
  account(shard, held);
  return held;
}

// After any change of its list.
void VersionMap::account(Shard* shard, PageEntry* held) {
  const uint64_t bytes = kEntryBytes + held->list.capacity() * sizeof(Version);
  const bool dirty = held->unwritten != 0;
  shard->bytes += bytes - held->bytes;
  bytes_.fetch_add(bytes - held->bytes, std::memory_order_relaxed);
  if (held->dirty) shard->dirty_bytes -= held->bytes;
  if (dirty) shard->dirty_bytes += bytes;
  if (dirty != held->dirty) {
    auto& from = dirty ? shard->clean : shard->dirty;
    auto& to = dirty ? shard->dirty : shard->clean;
    to.splice(to.begin(), from, held->place);
  }
  held->dirty = dirty;
  held->bytes = bytes;
  STRATA_ASSERT(shard->dirty_bytes <= shard->bytes);
}

void VersionMap::forget(Shard* shard, PageEntry* held) {
  STRATA_ASSERT(!held->loading && !held->changing);
  STRATA_ASSERT(shard->bytes >= held->bytes);
  shard->bytes -= held->bytes;
  bytes_.fetch_sub(held->bytes, std::memory_order_relaxed);
  if (held->dirty) shard->dirty_bytes -= held->bytes;
  unwritten_.fetch_sub(held->unwritten, std::memory_order_relaxed);
  (held->dirty ? shard->dirty : shard->clean).erase(held->place);
  shard->entries.erase(held->page);
}

// Lists that have nothing to be written leave memory.
void VersionMap::evict(Shard* shard) {
  auto it = shard->clean.end();
  while (shard->bytes > shard_bytes_max_ && it != shard->clean.begin()) {
    PageEntry* const held = *std::prev(it);
    if (held->loading || held->changing) {
      --it;
    } else {
      forget(shard, held);  // `it` stays valid: another entry's place, or the end
    }
  }
}

// The entry is in the shard, and whoever finds it there waits. Versions that are added meanwhile
// may be in what is read, too.
Status VersionMap::load(Shard* shard, PageEntry* held) {
  std::vector<Version> read;
  STRATA_ASSERT(!held->loading && !held->whole);
  held->loading = true;
  shard->mutex.unlock();
  const Status status = db_->read_versions(held->page, &read);
  shard->mutex.lock();
  held->loading = false;
  shard->changed.notify_all();
  if (!status.ok()) return status;
  for (const Version& version : held->list) {
    const auto at = std::lower_bound(read.begin(), read.end(), version, by_llsn);
    if (at == read.end() || at->llsn != version.llsn) read.insert(at, version);
  }
  read.erase(read.begin(), oldest_kept(&read));
  held->list = std::move(read);
  held->whole = true;
  count_unwritten(held);
  account(shard, held);
  return status;
}

StatusOr<VersionMap::PageEntry*> VersionMap::loaded(Shard* shard, PageId page) {
  PageEntry* held = nullptr;
  for (;;) {
    const auto it = shard->entries.find(page);
    if (it == shard->entries.end()) break;
    held = it->second.get();
    if (held->whole) {
      counters_.hits.fetch_add(1, std::memory_order_relaxed);
      auto& used = held->dirty ? shard->dirty : shard->clean;
      used.splice(used.begin(), used, held->place);
      return held;
    }
    if (!held->loading) break;
    shard->changed.wait(shard->mutex);  // the entry may be gone then
    held = nullptr;
  }
  counters_.misses.fetch_add(1, std::memory_order_relaxed);
  if (held == nullptr) held = make_entry(shard, page);
  if (Status status = load(shard, held); !status.ok()) {
    if (!held->dirty && !held->changing) forget(shard, held);
    return status;
  }
  return held;
}

Status VersionMap::inspect(PageId page, absl::FunctionRef<void(VersionList)> look) {
  Shard& shard = shard_of(page);
  MutexLock lock(shard.mutex);
  STRATA_ASSIGN_OR_RETURN(PageEntry* const held, loaded(&shard, page));
  if (is_reclaimed(SpaceId{page.space})) {
    look({});
  } else {
    look(held->list);
  }
  evict(&shard);
  return ok_status();
}

bool VersionMap::is_surely_there(SpaceId space) const {
  if (reclaimed_.load() == 0) return true;
  if (!dropped_mutex_.try_lock()) return false;
  const MutexLock lock(dropped_mutex_, std::adopt_lock);
  const auto it = dropped_.find(space);
  return it == dropped_.end() || !it->second.reclaimed;
}

bool VersionMap::inspect_at_hand(PageId page, absl::FunctionRef<void(VersionList)> look) {
  Shard& shard = shard_of(page);
  if (!shard.mutex.try_lock()) return false;
  const MutexLock lock(shard.mutex, std::adopt_lock);
  if (!is_surely_there(SpaceId{page.space})) return false;
  const auto it = shard.entries.find(page);
  if (it == shard.entries.end() || !it->second->whole) return false;
  PageEntry* const held = it->second.get();
  counters_.hits.fetch_add(1, std::memory_order_relaxed);
  auto& used = held->dirty ? shard.dirty : shard.clean;
  used.splice(used.begin(), used, held->place);
  look(held->list);
  return true;
}

// --- new versions ---

struct VersionMap::PageVersions {
  PageId page;
  std::span<const Version* const> versions;
};

// A page whose list is not in memory gets one that begins with its first version here: what RocksDB
// has of it is read when somebody asks.
void VersionMap::add_to_page(Shard* shard, const PageVersions& added) {
  PageEntry* held = nullptr;
  for (const Version* const version : added.versions) {
    for (;;) {
      if (held == nullptr) {
        const auto it = shard->entries.find(added.page);
        held = it == shard->entries.end() ? make_entry(shard, added.page) : it->second.get();
      }
      if (place_version(held, *version)) break;
      account(shard, held);
      shard->changed.wait(shard->mutex);  // unless that change fails; the entry may be gone then
      held = nullptr;
    }
  }
  account(shard, held);
}

// False: a change under way decides whether the version counts.
bool VersionMap::place_version(PageEntry* held, const Version& version) {
  std::vector<Version>& list = held->list;
  auto at = list.end();
  if (!list.empty() && !by_llsn(list.back(), version))
    at = std::lower_bound(list.begin(), list.end(), version, by_llsn);
  if (at != list.end() && at->llsn == version.llsn) return true;
  if (at == list.begin() && at != list.end() && at->is(kOldestKept)) return !held->changing;  // VM3
  at = list.insert(at, version);
  at->flags |= kUnwritten;
  ++held->unwritten;
  unwritten_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

// Pages that change all the time are there once, with many versions. Only small entries are sorted:
// a page's hash tells it from all others (mix64 is a bijection) and begins with its shard.
std::vector<VersionMap::PageVersions> VersionMap::by_shard_and_page(
    std::span<const NewVersion> versions, std::vector<const Version*>* in_order) {
  std::vector<std::pair<uint64_t, uint32_t>> order;
  order.reserve(versions.size());
  for (const NewVersion& one : versions)
    order.emplace_back(std::hash<PageId>()(one.page), static_cast<uint32_t>(order.size()));
  std::sort(order.begin(), order.end());
  in_order->reserve(order.size());  // the spans stay valid
  std::vector<PageVersions> pages;
  for (size_t begin = 0, end = 0; begin != order.size(); begin = end) {
    for (; end != order.size() && order[end].first == order[begin].first; ++end)
      in_order->push_back(&versions[order[end].second].version);
    pages.push_back({versions[order[begin].second].page, std::span(*in_order).subspan(begin)});
  }
  return pages;
}

// Asks the memory for what add_to_page() will need of each page, so that it waits for all of it at
// once.
void VersionMap::warm(Shard* shard, std::span<const PageVersions> pages) {
  for (const PageVersions& one : pages) shard->entries.prefetch(one.page);
  std::array<const PageEntry*, kAddedAtOnce> entries;
  size_t found = 0;
  for (const PageVersions& one : pages) {
    const auto it = shard->entries.find(one.page);
    if (it == shard->entries.end()) continue;
    __builtin_prefetch(it->second.get(), 1);
    entries[found++] = it->second.get();
  }
  for (const PageEntry* const held : std::span(entries).first(found)) {
    if (held->list.empty()) continue;
    __builtin_prefetch(&held->list.back(), 1);
    __builtin_prefetch(&held->list.back() + 1, 1);
  }
}

Status VersionMap::add(std::span<const NewVersion> versions, std::vector<PageId>* pages) {
  for (Shard& shard : shards_) {
    MutexLock lock(shard.mutex);
    STRATA_RETURN_IF_ERROR(make_room(&shard, shard_bytes_max_ / 4 * 3));
  }
  std::vector<const Version*> in_order;
  std::vector<PageVersions> sorted = by_shard_and_page(versions, &in_order);
  std::erase_if(sorted,
                [&](const PageVersions& one) { return is_reclaimed(SpaceId{one.page.space}); });
  for (std::span<const PageVersions> rest(sorted); !rest.empty();) {
    const size_t number = shard_number(rest.front().page);
    size_t taken = 0;
    while (taken < std::min(rest.size(), kAddedAtOnce) && shard_number(rest[taken].page) == number)
      ++taken;
    Shard& shard = shards_[number];
    MutexLock lock(shard.mutex);
    warm(&shard, rest.first(taken));
    for (const PageVersions& one : rest.first(taken)) {
      add_to_page(&shard, one);
      pages->push_back(one.page);
    }
    evict(&shard);
    rest = rest.subspan(taken);
  }
  counters_.added.fetch_add(versions.size(), std::memory_order_relaxed);
  return ok_status();
}

// --- room for more ---

struct VersionMap::Spill {
  struct Part {
    PageEntry* held;
    std::vector<Llsn> written;
  };
  VersionDb::Batch batch;
  std::vector<Part> parts;
  uint64_t entries = 0;
};

// Those used longest ago, and somewhat more than must be, so that many go in one batch.
VersionMap::Spill VersionMap::plan_spill(Shard* shard, uint64_t dirty_bytes_max) {
  Spill spill;
  spill.batch = db_->new_batch();
  const uint64_t wanted = dirty_bytes_max - dirty_bytes_max / 8;
  uint64_t left = shard->dirty_bytes;
  for (auto it = shard->dirty.rbegin(); it != shard->dirty.rend() && left > wanted; ++it) {
    PageEntry* const held = *it;
    // Those of a space that is just being reclaimed go with it.
    if (held->loading || held->changing || is_reclaimed(SpaceId{held->page.space})) continue;
    Spill::Part part{held, {}};
    for (const Version& version : held->list) {
      if (!version.is(kUnwritten)) continue;
      spill.batch.put_version(held->page, version);
      part.written.push_back(version.llsn);
    }
    STRATA_ASSERT(!part.written.empty() && part.written.size() == held->unwritten);
    held->changing = true;
    STRATA_ASSERT(left >= held->bytes);
    left -= held->bytes;
    spill.entries += part.written.size();
    spill.parts.push_back(std::move(part));
    if (spill.entries >= kSpillEntries) break;
  }
  return spill;
}

void VersionMap::finish_spill(Shard* shard, const Spill& spill, const Status& status) {
  for (const Spill::Part& part : spill.parts) {
    STRATA_ASSERT(part.held->changing);
    part.held->changing = false;
    if (!status.ok()) continue;
    mark_written(part.held, part.written);
    account(shard, part.held);
    // As little as it says is soon read again.
    if (!part.held->dirty && !part.held->whole && !part.held->loading) forget(shard, part.held);
  }
  shard->changed.notify_all();
  if (!status.ok()) return;
  counters_.written.fetch_add(spill.entries, std::memory_order_relaxed);
  counters_.settled.fetch_add(spill.entries, std::memory_order_relaxed);
}

Status VersionMap::make_room(Shard* shard, uint64_t dirty_bytes_max) {
  while (shard->dirty_bytes > dirty_bytes_max) {
    Spill spill = plan_spill(shard, dirty_bytes_max);
    if (spill.parts.empty()) break;  // others are at work on them
    shard->mutex.unlock();
    const Status status = db_->write(&spill.batch);
    shard->mutex.lock();
    finish_spill(shard, spill, status);
    STRATA_RETURN_IF_ERROR(status);
  }
  evict(shard);
  return ok_status();
}

void VersionMap::mark_written(PageEntry* held, std::span<const Llsn> written) {
  uint32_t marked = 0;
  for (const Llsn llsn : written) {
    const ptrdiff_t at = newest_at(held->list, llsn);
    if (at < 0 || held->list[at].llsn != llsn || !held->list[at].is(kUnwritten)) continue;
    held->list[at].flags &= ~kUnwritten;
    ++marked;
  }
  count_written(held, marked);
}

void VersionMap::count_written(PageEntry* held, uint32_t entries) {
  STRATA_ASSERT(held->unwritten >= entries);
  held->unwritten -= entries;
  unwritten_.fetch_sub(entries, std::memory_order_relaxed);
}

void VersionMap::count_unwritten(PageEntry* held) {
  const auto now = static_cast<uint32_t>(
      std::count_if(held->list.begin(), held->list.end(),
                    [](const Version& version) { return version.is(kUnwritten); }));
  unwritten_.fetch_add(uint64_t{now} - held->unwritten, std::memory_order_relaxed);
  held->unwritten = now;
}

StatusOr<std::vector<SpaceId>> VersionMap::list_spaces() {
  std::set<SpaceId> all;
  // Memory first: what leaves it meanwhile is in the version db.
  for (Shard& shard : shards_) {
    const MutexLock lock(shard.mutex);
    for (const PageEntry* held : shard.dirty) all.insert(SpaceId{held->page.space});
  }
  STRATA_ASSIGN_OR_RETURN(const std::vector<SpaceId> written, db_->list_spaces());
  all.insert(written.begin(), written.end());
  std::erase_if(all, [this](SpaceId space) { return is_reclaimed(space); });
  return std::vector<SpaceId>(all.begin(), all.end());
}

Status VersionMap::drop_memory() {
  for (Shard& shard : shards_) {
    MutexLock lock(shard.mutex);
    STRATA_RETURN_IF_ERROR(make_room(&shard, 0));
    for (auto it = shard.clean.begin(); it != shard.clean.end();) {
      PageEntry* const held = *it++;
      if (!held->loading && !held->changing) forget(&shard, held);
    }
  }
  return ok_status();
}

Status VersionMap::raise_horizon(Llsn horizon) {
  if (horizon.value <= horizon_.load()) return ok_status();
  VersionDb::Batch batch = db_->new_batch();
  batch.put_horizon(horizon);
  STRATA_RETURN_IF_ERROR(db_->write(&batch));
  uint64_t seen = horizon_.load();
  while (seen < horizon.value && !horizon_.compare_exchange_weak(seen, horizon.value)) {
  }
  reclaim_due_.store(true);
  return ok_status();
}

// --- dropped spaces ---

DroppedSpace VersionMap::note_dropped(SpaceId space, Llsn llsn) {
  const MutexLock lock(dropped_mutex_);
  const auto [it, added] = dropped_.emplace(space, DroppedSpace{space, llsn, false});
  if (added) reclaim_due_.store(true);
  return it->second;
}

std::vector<DroppedSpace> VersionMap::reclaimable() {
  std::vector<DroppedSpace> found;
  if (!reclaim_due_.exchange(false)) return found;
  const MutexLock lock(dropped_mutex_);
  for (const auto& [space, dropped] : dropped_)
    if (!dropped.reclaimed && dropped.llsn <= horizon()) found.push_back(dropped);
  if (!found.empty()) reclaim_due_.store(true);  // until a call finds nothing
  return found;
}

bool VersionMap::set_reclaimed(SpaceId space, bool reclaimed) {
  const MutexLock lock(dropped_mutex_);
  const auto it = dropped_.find(space);
  if (it == dropped_.end() || it->second.reclaimed == reclaimed) return false;
  it->second.reclaimed = reclaimed;
  reclaimed ? reclaimed_.fetch_add(1) : reclaimed_.fetch_sub(1);
  return true;
}

void VersionMap::wait_until_idle(SpaceId space) {
  for (Shard& shard : shards_) {
    MutexLock lock(shard.mutex);
    shard.changed.wait(lock, [&shard, space]() STRATA_REQUIRES(shard.mutex) {
      return std::none_of(shard.entries.begin(), shard.entries.end(), [space](const auto& it) {
        return it.first.space == space.value && it.second->changing;
      });
    });
  }
}

// Nobody changes its pages any more, nor adds to them.
void VersionMap::forget_space(SpaceId space) {
  const auto is_loading = [space](const PageEntry* held) {
    return held->page.space == space.value && held->loading;
  };
  for (Shard& shard : shards_) {
    MutexLock lock(shard.mutex);
    shard.changed.wait(lock, [&shard, &is_loading]() STRATA_REQUIRES(shard.mutex) {
      return std::none_of(shard.clean.begin(), shard.clean.end(), is_loading) &&
             std::none_of(shard.dirty.begin(), shard.dirty.end(), is_loading);
    });
    for (std::list<PageEntry*>* const entries : {&shard.clean, &shard.dirty}) {
      for (auto it = entries->begin(); it != entries->end();) {
        PageEntry* const held = *it++;
        if (held->page.space == space.value) forget(&shard, held);
      }
    }
  }
}

// First nobody starts a change of one of its pages, then those under way end, then they go.
Status VersionMap::reclaim_space(const DroppedSpace& dropped) {
  if (!set_reclaimed(dropped.space, true)) return ok_status();
  wait_until_idle(dropped.space);
  DroppedSpace mark = dropped;
  mark.reclaimed = true;
  VersionDb::Batch batch = db_->new_batch();
  batch.remove_space(dropped.space);
  batch.put_dropped(mark);
  if (Status status = db_->write(&batch); !status.ok()) {
    set_reclaimed(dropped.space, false);
    return status;
  }
  forget_space(dropped.space);
  counters_.spaces_reclaimed.fetch_add(1, std::memory_order_relaxed);
  return ok_status();
}

bool VersionMap::is_reclaimed(SpaceId space) const { return !reclaimed_at(space).is_zero(); }

Llsn VersionMap::reclaimed_at(SpaceId space) const {
  if (reclaimed_.load() == 0) return Llsn{};
  const MutexLock lock(dropped_mutex_);
  const auto it = dropped_.find(space);
  return it == dropped_.end() || !it->second.reclaimed ? Llsn{} : it->second.llsn;
}

std::vector<DroppedSpace> VersionMap::reclaimed_behind(Llsn llsn) const {
  std::vector<DroppedSpace> found;
  const MutexLock lock(dropped_mutex_);
  for (const auto& [space, dropped] : dropped_)
    if (dropped.reclaimed && dropped.llsn > llsn) found.push_back(dropped);
  return found;
}

bool VersionMap::is_dropped(SpaceId space) const {
  const MutexLock lock(dropped_mutex_);
  return dropped_.count(space) != 0;
}

}  // namespace strata::storenode
