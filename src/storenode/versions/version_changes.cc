// Storing, trimming and settling the versions of a page.
#include <map>
#include <utility>

#include "base/assert.h"
#include "storenode/versions/version_map.h"

namespace strata::storenode {
namespace {

// A list that was long once does not keep the memory for it.
void give_back(std::vector<Version>* list) {
  if (list->capacity() > 64 && list->capacity() / 4 > list->size()) list->shrink_to_fit();
}

}  // namespace

struct VersionMap::Change {
  VersionDb::Batch batch;
  std::vector<Llsn> stored;
  std::vector<Llsn> written;     // entries; ascending
  std::vector<Version> removed;  // the oldest ones
  uint32_t removed_unwritten = 0;
  Llsn oldest;  // the first one kept, if it gets kOldestKept
};

// What is removed leaves the list at once, so that nobody chooses it any more, and the oldest one
// kept says so at once: "collected" must not look like "never written". What is stored is marked
// when it is (VM2). What goes before it was ever written costs nothing.
VersionMap::Change VersionMap::plan_change(PageEntry* held, const Wish& wish) {
  Change change;
  change.batch = db_->new_batch();
  std::vector<Version>& list = held->list;
  std::vector<std::pair<size_t, const MadeVersion*>> made;
  for (const MadeVersion& one : wish.made) {
    const ptrdiff_t at = newest_at(list, one.llsn);
    if (at < 0 || list[at].llsn != one.llsn || list[at].is(kMaterialized)) continue;
    list[at].flags |= kMaterialized;  // only while the latch is held, for collectable()
    made.emplace_back(static_cast<size_t>(at), &one);
  }
  size_t gone = wish.trim == Trim::kNever ? 0 : collectable(list, horizon());
  if (wish.trim == Trim::kWhenWorthwhile && gone < list.size() / 8 + 1) gone = 0;
  for (const auto& [at, one] : made) list[at].flags &= ~kMaterialized;

  // What is put, by index: long lists are not gone through for a few entries.
  std::map<size_t, const MadeVersion*> put;
  for (const auto& [at, one] : made)
    if (at >= gone) put[at] = one;
  if (gone != 0 && !list[gone].is(kOldestKept)) {
    list[gone].flags |= kOldestKept;
    change.oldest = list[gone].llsn;
    put.try_emplace(gone, nullptr);
  }
  if (!wish.settle_to.is_zero()) {
    uint32_t unwritten = held->unwritten;
    for (size_t at = list.size(); at > gone && unwritten > 0; --at) {
      if (!list[at - 1].is(kUnwritten)) continue;
      --unwritten;
      if (list[at - 1].llsn <= wish.settle_to) put.try_emplace(at - 1, nullptr);
    }
  }
  for (const auto& [at, one] : put) {
    Version entry = list[at];
    if (one != nullptr) {
      entry.flags |= kMaterialized;
      change.batch.put_page(held->page, one->llsn, one->page->bytes);
      change.stored.push_back(one->llsn);
    }
    change.batch.put_version(held->page, entry);
    change.written.push_back(entry.llsn);
  }
  for (size_t at = 0; at < gone; ++at) {
    if (list[at].is(kUnwritten)) {
      ++change.removed_unwritten;
    } else {
      change.batch.remove_version(held->page, list[at]);
    }
  }
  STRATA_ASSERT(gone == 0 || gone < list.size());  // one stays
  STRATA_ASSERT(change.removed_unwritten <= held->unwritten);
  const auto kept = list.begin() + static_cast<ptrdiff_t>(gone);
  change.removed.assign(list.begin(), kept);
  list.erase(list.begin(), kept);
  return change;
}

void VersionMap::finish_change(PageEntry* held, const Change& change, const Status& status) {
  std::vector<Version>& list = held->list;
  if (!status.ok()) {  // as it was; late ones have not been let in (VM3)
    if (!change.oldest.is_zero()) list.front().flags &= ~kOldestKept;
    list.insert(list.begin(), change.removed.begin(), change.removed.end());
    return;
  }
  for (const Llsn llsn : change.stored) {
    const ptrdiff_t at = newest_at(list, llsn);
    STRATA_ASSERT(at >= 0);
    STRATA_ASSERT(list[at].llsn == llsn);
    list[at].flags |= kMaterialized;
  }
  if (!change.oldest.is_zero()) {
    STRATA_ASSERT(list.front().llsn == change.oldest);
  }
  mark_written(held, change.written);
  count_written(held, change.removed_unwritten);
  give_back(&list);
  counters_.stored.fetch_add(change.stored.size(), std::memory_order_relaxed);
  counters_.written.fetch_add(change.written.size(), std::memory_order_relaxed);
  if (change.stored.empty() && change.removed.empty())
    counters_.settled.fetch_add(change.written.size(), std::memory_order_relaxed);
  counters_.collected.fetch_add(change.removed.size(), std::memory_order_relaxed);
  for (const Version& version : change.removed)
    if (version.is(kMaterialized))
      counters_.collected_stored.fetch_add(1, std::memory_order_relaxed);
}

StatusOr<VersionMap::PageEntry*> VersionMap::begin_change(Shard* shard, PageId page) {
  for (;;) {
    STRATA_ASSIGN_OR_RETURN(PageEntry* const held, loaded(shard, page));
    if (!held->changing) return held;
    shard->changed.wait(shard->mutex);
  }
}

Status VersionMap::end_change(Shard* shard, PageEntry* held, Change* change) {
  Status status;
  STRATA_ASSERT(!held->changing && held->whole);
  if (!change->batch.empty()) {
    held->changing = true;
    shard->mutex.unlock();
    status = db_->write(&change->batch);
    shard->mutex.lock();
    held->changing = false;
    shard->changed.notify_all();
  }
  finish_change(held, *change, status);
  account(shard, held);
  evict(shard);
  return status;
}

Status VersionMap::change(PageId page, const Wish& wish) {
  Shard& shard = shard_of(page);
  MutexLock lock(shard.mutex);
  STRATA_ASSIGN_OR_RETURN(PageEntry* const held, begin_change(&shard, page));
  if (is_reclaimed(SpaceId{page.space})) return ok_status();
  Change change = plan_change(held, wish);
  return end_change(&shard, held, &change);
}

Status VersionMap::replace(PageId page, const MadeVersion& good) {
  Shard& shard = shard_of(page);
  MutexLock lock(shard.mutex);
  STRATA_ASSIGN_OR_RETURN(PageEntry* const held, begin_change(&shard, page));
  const ptrdiff_t at = newest_at(held->list, good.llsn);
  if (at < 0 || held->list[at].llsn != good.llsn || is_reclaimed(SpaceId{page.space}))
    return error_not_found("there is no such version");
  Change change;
  change.batch = db_->new_batch();
  Version version = held->list[at];
  version.flags |= kMaterialized;
  change.batch.put_page(page, good.llsn, good.page->bytes);
  change.batch.put_version(page, version);
  change.stored.push_back(version.llsn);
  change.written.push_back(version.llsn);
  return end_change(&shard, held, &change);
}

Status VersionMap::store(PageId page, std::span<const MadeVersion> made, Trim trim) {
  return change(page, {.made = made, .trim = trim});
}

Status VersionMap::trim(PageId page) { return change(page, {.trim = Trim::kNow}); }

Status VersionMap::settle(PageId page, Llsn to) { return change(page, {.settle_to = to}); }

}  // namespace strata::storenode
