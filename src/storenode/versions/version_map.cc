#include "storenode/versions/version_map.h"

#include <algorithm>

#include "base/assert.h"

namespace strata::storenode {
namespace {

constexpr uint64_t kNodeBytes = 200;  // of a list without versions: node, hash entry, list entry

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
  for (const DroppedSpace& space : dropped) dropped_.emplace(space.space, space);
  return ok_status();
}

// --- lists in memory ---

void VersionMap::account(Shard* shard, size_t before, const Node& node) {
  const uint64_t grown = node.list.capacity() * sizeof(Version) - before * sizeof(Version);
  shard->bytes += grown;
  bytes_.fetch_add(grown, std::memory_order_relaxed);
}

void VersionMap::forget(Shard* shard, Node* node) {
  const uint64_t bytes = kNodeBytes + node->list.capacity() * sizeof(Version);
  shard->bytes -= bytes;
  bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  shard->used.erase(node->place);
  shard->nodes.erase(node->page);
}

void VersionMap::evict(Shard* shard) {
  auto it = shard->used.end();
  while (shard->bytes > shard_bytes_max_ && it != shard->used.begin()) {
    Node* const node = *std::prev(it);
    if (node->loading || node->changing) {
      --it;
    } else {
      forget(shard, node);  // `it` stays valid: another node's place, or the end
    }
  }
}

// The node is in the shard, and whoever finds it there waits. Versions that are added meanwhile
// may be in what is read, too.
Status VersionMap::load(Shard* shard, MutexLock* lock, Node* node) {
  std::vector<Version> read;
  lock->unlock();
  const Status status = db_->read_versions(node->page, &read);
  lock->lock();
  const size_t before = node->list.capacity();
  for (const Version& version : node->list) {
    const auto at = std::lower_bound(read.begin(), read.end(), version, by_llsn);
    if (at == read.end() || at->llsn != version.llsn) read.insert(at, version);
  }
  read.erase(read.begin(), oldest_kept(&read));
  node->list = std::move(read);
  node->loading = false;
  account(shard, before, *node);
  shard->changed.notify_all();
  return status;
}

StatusOr<VersionMap::Node*> VersionMap::loaded(Shard* shard, MutexLock* lock, PageId page) {
  for (;;) {
    const auto it = shard->nodes.find(page);
    if (it == shard->nodes.end()) break;
    Node* const node = it->second.get();
    if (!node->loading) {
      counters_.hits.fetch_add(1, std::memory_order_relaxed);
      shard->used.splice(shard->used.begin(), shard->used, node->place);
      return node;
    }
    shard->changed.wait(*lock);  // the node may be gone then
  }
  counters_.misses.fetch_add(1, std::memory_order_relaxed);
  auto made = std::make_unique<Node>(page);
  Node* const node = made.get();
  node->place = shard->used.insert(shard->used.begin(), node);
  shard->nodes.emplace(page, std::move(made));
  shard->bytes += kNodeBytes;
  bytes_.fetch_add(kNodeBytes, std::memory_order_relaxed);
  if (Status status = load(shard, lock, node); !status.ok()) {
    forget(shard, node);
    return status;
  }
  return node;
}

Status VersionMap::inspect(PageId page, absl::FunctionRef<void(VersionList)> look) {
  Shard& shard = shard_of(page);
  MutexLock lock(shard.mutex);
  STRATA_ASSIGN_OR_RETURN(Node* const node, loaded(&shard, &lock, page));
  if (is_reclaimed(SpaceId{page.space})) {
    look({});
  } else {
    look(node->list);
  }
  evict(&shard);
  return ok_status();
}

void VersionMap::insert_version(Shard* shard, Node* node, const Version& version) {
  const size_t before = node->list.capacity();
  const auto at = std::lower_bound(node->list.begin(), node->list.end(), version, by_llsn);
  if (at != node->list.end() && at->llsn == version.llsn) return;  // a load has just read it
  if (at == node->list.begin() && at != node->list.end() && at->is(kOldestKept)) return;  // VM3
  node->list.insert(at, version);
  account(shard, before, *node);
}

Status VersionMap::add(const std::vector<NewVersion>& versions, VersionDb::Batch* batch) {
  for (const NewVersion& added : versions) batch->put_version(added.page, added.version);
  STRATA_RETURN_IF_ERROR(db_->write(batch));
  for (const NewVersion& added : versions) {
    Shard& shard = shard_of(added.page);
    const MutexLock lock(shard.mutex);
    const auto it = shard.nodes.find(added.page);
    if (it != shard.nodes.end()) insert_version(&shard, it->second.get(), added.version);
  }
  counters_.added.fetch_add(versions.size(), std::memory_order_relaxed);
  return ok_status();
}

// --- storing and trimming ---

struct VersionMap::Change {
  VersionDb::Batch batch;
  std::vector<Version> stored;   // as they are afterwards
  std::vector<Version> removed;  // the oldest ones
  Llsn oldest;                   // the first one kept, if it gets kOldestKept
};

// What is removed leaves the list at once, so that nobody chooses it any more, and the oldest one
// kept says so at once: "collected" must not look like "never written". What is stored is marked
// when it is (VM2).
VersionMap::Change VersionMap::plan_change(Node* node, std::span<const MadeVersion> made,
                                           Trim trim) {
  Change change;
  change.batch = db_->new_batch();
  std::vector<Version>& list = node->list;
  std::vector<ptrdiff_t> marked;
  for (const MadeVersion& one : made) {
    const ptrdiff_t at = newest_at(list, one.llsn);
    if (at < 0 || list[at].llsn != one.llsn || list[at].is(kMaterialized)) continue;
    list[at].flags |= kMaterialized;  // only while the latch is held, for collectable()
    marked.push_back(at);
    change.batch.put_page(node->page, one.llsn, one.page->bytes);
    change.batch.put_version(node->page, list[at]);
    change.stored.push_back(list[at]);
  }
  size_t gone = collectable(list, horizon());
  if (trim == Trim::kWhenWorthwhile && gone < list.size() / 8 + 1) gone = 0;
  if (gone != 0 && !list[gone].is(kOldestKept)) {
    Version oldest = list[gone];
    oldest.flags |= kOldestKept;
    change.batch.put_version(node->page, oldest);
    change.oldest = oldest.llsn;
    list[gone].flags |= kOldestKept;
  }
  for (const ptrdiff_t at : marked) list[at].flags &= ~kMaterialized;
  const auto kept = list.begin() + static_cast<ptrdiff_t>(gone);
  for (auto it = list.begin(); it != kept; ++it) {
    change.removed.push_back(*it);
    change.batch.remove_version(node->page, *it);
  }
  list.erase(list.begin(), kept);
  return change;
}

void VersionMap::finish_change(Shard* shard, Node* node, const Change& change,
                               const Status& status) {
  std::vector<Version>& list = node->list;
  if (!status.ok()) return forget(shard, node);  // the next one who asks reads it as it was
  for (const Version& version : change.stored) {
    const ptrdiff_t at = newest_at(list, version.llsn);
    if (at >= 0 && list[at].llsn == version.llsn) list[at].flags |= kMaterialized;
  }
  if (!change.oldest.is_zero()) {
    STRATA_ASSERT(list.front().llsn == change.oldest);  // late ones have not been let in (VM3)
  }
  counters_.stored.fetch_add(change.stored.size(), std::memory_order_relaxed);
  counters_.collected.fetch_add(change.removed.size(), std::memory_order_relaxed);
  for (const Version& version : change.removed)
    if (version.is(kMaterialized))
      counters_.collected_stored.fetch_add(1, std::memory_order_relaxed);
}

StatusOr<VersionMap::Node*> VersionMap::begin_change(Shard* shard, MutexLock* lock, PageId page) {
  for (;;) {
    STRATA_ASSIGN_OR_RETURN(Node* const node, loaded(shard, lock, page));
    if (!node->changing) return node;
    shard->changed.wait(*lock);
  }
}

Status VersionMap::end_change(Shard* shard, MutexLock* lock, Node* node, Change* change) {
  if (change->batch.empty()) return ok_status();
  node->changing = true;
  lock->unlock();
  const Status status = db_->write(&change->batch);
  lock->lock();
  node->changing = false;
  finish_change(shard, node, *change, status);
  shard->changed.notify_all();
  evict(shard);
  return status;
}

Status VersionMap::change(PageId page, std::span<const MadeVersion> made, Trim trim) {
  Shard& shard = shard_of(page);
  MutexLock lock(shard.mutex);
  STRATA_ASSIGN_OR_RETURN(Node* const node, begin_change(&shard, &lock, page));
  if (is_reclaimed(SpaceId{page.space})) return ok_status();
  Change change = plan_change(node, made, trim);
  return end_change(&shard, &lock, node, &change);
}

Status VersionMap::replace(PageId page, const MadeVersion& good) {
  Shard& shard = shard_of(page);
  MutexLock lock(shard.mutex);
  STRATA_ASSIGN_OR_RETURN(Node* const node, begin_change(&shard, &lock, page));
  const ptrdiff_t at = newest_at(node->list, good.llsn);
  if (at < 0 || node->list[at].llsn != good.llsn || is_reclaimed(SpaceId{page.space}))
    return error_not_found("there is no such version");
  Change change;
  change.batch = db_->new_batch();
  Version version = node->list[at];
  version.flags |= kMaterialized;
  change.batch.put_page(page, good.llsn, good.page->bytes);
  change.batch.put_version(page, version);
  change.stored.push_back(version);
  return end_change(&shard, &lock, node, &change);
}

Status VersionMap::store(PageId page, std::span<const MadeVersion> made, Trim trim) {
  return change(page, made, trim);
}

Status VersionMap::trim(PageId page) { return change(page, {}, Trim::kNow); }

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
  return true;
}

void VersionMap::wait_until_idle(SpaceId space) {
  for (Shard& shard : shards_) {
    MutexLock lock(shard.mutex);
    shard.changed.wait(lock, [&shard, space] {
      return std::none_of(shard.nodes.begin(), shard.nodes.end(), [space](const auto& it) {
        return it.first.space == space.value && it.second->changing;
      });
    });
  }
}

void VersionMap::forget_space(SpaceId space) {
  for (Shard& shard : shards_) {
    const MutexLock lock(shard.mutex);
    for (auto it = shard.used.begin(); it != shard.used.end();) {
      Node* const node = *it++;
      if (node->page.space == space.value && !node->loading && !node->changing)
        forget(&shard, node);
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
  const MutexLock lock(dropped_mutex_);
  const auto it = dropped_.find(space);
  return it == dropped_.end() || !it->second.reclaimed ? Llsn{} : it->second.llsn;
}

bool VersionMap::is_dropped(SpaceId space) const {
  const MutexLock lock(dropped_mutex_);
  return dropped_.count(space) != 0;
}

void VersionMap::drop_memory() {
  for (Shard& shard : shards_) {
    const MutexLock lock(shard.mutex);
    for (auto it = shard.used.begin(); it != shard.used.end();) {
      Node* const node = *it++;
      if (!node->loading && !node->changing) forget(&shard, node);
    }
  }
}

}  // namespace strata::storenode
