#include "storenode/replay/in_place_pages.h"

#include <algorithm>
#include <cstring>

#include "base/assert.h"
#include "base/fault.h"
#include "page/slotted.h"
#include "storenode/versions/device_errors.h"

namespace strata::storenode {
namespace {
constexpr size_t kPagesMin = 4 * kWriteBatchPages;
constexpr uint32_t kPageReadsMax = 3;  // of a page whose place in the disk says EIO
}  // namespace

InPlacePages::InPlacePages(PageSource* source, uint64_t bytes)
    : source_(source),
      pages_max_(std::max<uint64_t>(kPagesMin, bytes / kPageBytes)),
      buffer_(kWriteBatchPages * kPageBytes) {}

InPlacePages::Entry* InPlacePages::add(PageId page) {
  auto made = std::make_unique<Entry>(page);
  Entry* const entry = made.get();
  entry->place = used_.insert(used_.begin(), entry);
  entries_.emplace(page, std::move(made));
  STRATA_ASSERT(entries_.size() == used_.size());
  return entry;
}

void InPlacePages::evict() {
  auto it = used_.end();
  while (entries_.size() > pages_max_ && it != used_.begin()) {
    Entry* const entry = *std::prev(it);
    if (entry->loading || entry->dirty) {
      --it;
    } else {
      used_.erase(entry->place);
      entries_.erase(entry->page);
    }
  }
}

// A page that is not in memory is not being written either (IP2), so the file has the newest state.
StatusOr<PageRef> InPlacePages::read(PageId page) {
  MutexLock lock(mutex_);
  for (;;) {
    const auto it = entries_.find(page);
    if (it == entries_.end()) break;
    Entry* const entry = it->second.get();
    if (!entry->loading) {
      hits_.fetch_add(1, std::memory_order_relaxed);
      used_.splice(used_.begin(), used_, entry->place);
      return entry->ref;
    }
    changed_.wait(lock);
  }
  misses_.fetch_add(1, std::memory_order_relaxed);
  Entry* const entry = add(page);
  entry->loading = true;
  lock.unlock();
  auto made = std::make_shared<PageBuffer>();
  Status status;
  for (uint32_t tries = 0; tries < kPageReadsMax; ++tries) {
    status = source_->read(page, Llsn{}, made->bytes);
    if (!is_device_error(status)) break;
  }
  if (is_device_error(status)) status = error_corruption(std::string(status.message()));  // VD7
  if (status.ok() && header_of(made->bytes)->type == static_cast<uint8_t>(PageType::kTree))
    status = validate_tree_page(made->bytes);
  lock.lock();
  entry->loading = false;
  changed_.notify_all();
  if (!status.ok()) {
    used_.erase(entry->place);
    entries_.erase(page);
    return status;
  }
  entry->ref = std::move(made);
  PageRef ref = entry->ref;
  evict();
  return ref;
}

PageRef InPlacePages::at_hand(PageId page) {
  if (!mutex_.try_lock()) return nullptr;
  const MutexLock lock(mutex_, std::adopt_lock);
  const auto it = entries_.find(page);
  if (it == entries_.end() || it->second->loading) return nullptr;
  hits_.fetch_add(1, std::memory_order_relaxed);
  used_.splice(used_.begin(), used_, it->second->place);
  return it->second->ref;
}

Status InPlacePages::put(PageId page, PageRef ref) {
  STRATA_ASSERT(ref != nullptr);
  MutexLock lock(mutex_);
  Entry* entry = nullptr;
  for (;;) {
    const auto it = entries_.find(page);
    entry = it == entries_.end() ? add(page) : it->second.get();
    if (!entry->loading) break;
    changed_.wait(lock);
  }
  entry->ref = std::move(ref);
  if (!entry->dirty) ++dirty_;
  entry->dirty = true;
  used_.splice(used_.begin(), used_, entry->place);
  if (dirty_ <= pages_max_ / 2) {
    evict();
    return ok_status();
  }
  changed_.wait(lock, [this]() STRATA_REQUIRES(mutex_) { return !writing_; });
  writing_ = true;
  // An eighth at a time, since finding them goes through the whole list.
  const Status status = write_back(std::max<size_t>(kWriteBatchPages, dirty_ / 8));
  writing_ = false;
  changed_.notify_all();
  evict();
  return status;
}

Status InPlacePages::make_space(SpaceId space) {
  if (spaces_.count(space) != 0) return ok_status();
  STRATA_RETURN_IF_ERROR(source_->create_space(space));
  spaces_.insert(space);
  return ok_status();
}

Status InPlacePages::write_batch(const std::vector<std::pair<PageId, PageRef>>& batch) {
  STRATA_ASSERT(batch.size() <= kWriteBatchPages);
  if (fault(FaultPoint::node_pages_write)) return error_internal("fault point");
  PageId ids[kWriteBatchPages];
  bool written[kWriteBatchPages];
  for (size_t i = 0; i < batch.size(); ++i) {
    const PageId page = batch[i].first;
    ids[i] = page;
    std::memcpy(buffer_.get() + i * kPageBytes, batch[i].second->bytes, kPageBytes);
    STRATA_RETURN_IF_ERROR(make_space(SpaceId{page.space}));
    STRATA_RETURN_IF_ERROR(source_->grow_space(SpaceId{page.space}, page.number + 1));
  }
  return source_->write_batch(ids, static_cast<uint32_t>(batch.size()), buffer_.get(), written);
}

// writing_ is set. Writes the dirty pages used longest ago, a batch at a time, in page order. A
// page put meanwhile stays dirty.
Status InPlacePages::write_back(size_t count_max) {
  STRATA_ASSERT(writing_ && dirty_ <= used_.size());
  std::vector<std::pair<PageId, PageRef>> chosen;
  for (auto it = used_.rbegin(); it != used_.rend() && chosen.size() < count_max; ++it)
    if ((*it)->dirty) chosen.emplace_back((*it)->page, (*it)->ref);
  std::sort(chosen.begin(), chosen.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  for (size_t begin = 0; begin < chosen.size(); begin += kWriteBatchPages) {
    const size_t end = std::min(chosen.size(), begin + kWriteBatchPages);
    const std::vector<std::pair<PageId, PageRef>> batch(
        chosen.begin() + static_cast<ptrdiff_t>(begin),
        chosen.begin() + static_cast<ptrdiff_t>(end));
    mutex_.unlock();
    const Status status = write_batch(batch);
    mutex_.lock();
    STRATA_RETURN_IF_ERROR(status);
    written_.fetch_add(batch.size(), std::memory_order_relaxed);
    for (const auto& [page, ref] : batch) {
      const auto it = entries_.find(page);
      if (it == entries_.end() || it->second->ref != ref) continue;
      STRATA_ASSERT(it->second->dirty && dirty_ != 0);
      it->second->dirty = false;
      --dirty_;
    }
  }
  return ok_status();
}

Status InPlacePages::checkpoint() {
  MutexLock lock(mutex_);
  changed_.wait(lock, [this]() STRATA_REQUIRES(mutex_) { return !writing_; });
  writing_ = true;
  Status status = write_back(SIZE_MAX);
  lock.unlock();
  if (status.ok()) status = source_->sync();
  lock.lock();
  writing_ = false;
  changed_.notify_all();
  evict();
  return status;
}

// Pages in memory first: one that is written back in between is then in the file.
StatusOr<std::vector<SpaceId>> InPlacePages::list_spaces() {
  std::set<SpaceId> found;
  {
    const MutexLock lock(mutex_);
    for (const Entry* entry : used_)
      if (entry->dirty) found.insert(SpaceId{entry->page.space});
  }
  STRATA_ASSIGN_OR_RETURN(const std::vector<SpaceId> in_files, source_->list_spaces());
  found.insert(in_files.begin(), in_files.end());
  return std::vector<SpaceId>(found.begin(), found.end());
}

Status InPlacePages::delete_space(SpaceId space) {
  MutexLock lock(mutex_);
  changed_.wait(lock, [this]() STRATA_REQUIRES(mutex_) { return !writing_; });
  writing_ = true;
  for (auto it = used_.begin(); it != used_.end();) {
    Entry* const entry = *it++;
    if (entry->page.space != space.value || entry->loading) continue;
    STRATA_ASSERT(!entry->dirty || dirty_ != 0);
    if (entry->dirty) --dirty_;
    used_.erase(entry->place);
    entries_.erase(entry->page);
  }
  lock.unlock();
  spaces_.erase(space);
  const Status status = source_->delete_space(space);
  lock.lock();
  writing_ = false;
  changed_.notify_all();
  return status;
}

}  // namespace strata::storenode
