#include "clients/memory/staged_pages.h"

#include <algorithm>
#include <cstring>

#include "base/assert.h"
#include "page/page.h"

namespace strata::clients {

StagedPages::StagedPages(uint32_t pages_max) : bytes_(std::max<size_t>(pages_max, 1) * kPageBytes) {
  for (uint32_t i = 0; i < pages_max; ++i) free_.push_back(i);
  copies_.reserve(pages_max);
}

char* StagedPages::at(uint32_t buffer) const noexcept {
  return bytes_.get() + size_t{buffer} * kPageBytes;
}

bool StagedPages::add(PageId id, const char* page, bool out_of_use) noexcept {
  uint32_t buffer = 0;
  {
    const MutexLock lock(mutex_);
    if (const auto found = copies_.find(id.packed()); found != copies_.end()) {
      found->second.out_of_use = out_of_use;  // the same bytes: it would be void otherwise
      return true;
    }
    if (free_.empty()) return false;
    buffer = free_.back();
    free_.pop_back();
  }
  std::memcpy(at(buffer), page, kPageBytes);
  const MutexLock lock(mutex_);
  const bool added = copies_.emplace(id.packed(), Copy{buffer, out_of_use, ++order_}).second;
  if (!added) free_.push_back(buffer);
  return true;
}

bool StagedPages::empty() const {
  const MutexLock lock(mutex_);
  return copies_.empty();
}

void StagedPages::drop(uint64_t page) {
  const auto found = copies_.find(page);
  if (found == copies_.end()) return;
  free_.push_back(found->second.buffer);
  copies_.erase(found);
}

void StagedPages::begin(const PageId* ids, uint32_t count) {
  MutexLock lock(mutex_);
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t page = ids[i].packed();
    ended_.wait(lock, [&]() STRATA_REQUIRES(mutex_) { return !busy_.contains(page); });
    busy_.insert(page);
    drop(page);
  }
}

bool StagedPages::try_begin(PageId id) {
  const MutexLock lock(mutex_);
  return busy_.insert(id.packed()).second;
}

void StagedPages::end(const PageId* ids, uint32_t count) {
  {
    const MutexLock lock(mutex_);
    for (uint32_t i = 0; i < count; ++i) {
      const size_t erased = busy_.erase(ids[i].packed());
      STRATA_ASSERT(erased == 1);
    }
  }
  ended_.notify_all();
}

std::vector<StagedPages::Taken> StagedPages::take(uint32_t max, char* pages) {
  std::vector<std::pair<uint64_t, Copy>> oldest;
  {
    const MutexLock lock(mutex_);
    for (const auto& [page, copy] : copies_)
      if (!busy_.contains(page)) oldest.emplace_back(page, copy);
    std::sort(oldest.begin(), oldest.end(),
              [](const auto& a, const auto& b) { return a.second.order < b.second.order; });
    if (oldest.size() > max) oldest.resize(max);
    for (const auto& [page, copy] : oldest) {
      busy_.insert(page);
      copies_.erase(page);
    }
  }
  std::vector<Taken> taken;
  for (const auto& [page, copy] : oldest) {
    std::memcpy(pages + taken.size() * kPageBytes, at(copy.buffer), kPageBytes);
    taken.push_back({PageId::unpack(page), copy.out_of_use});
  }
  const MutexLock lock(mutex_);
  for (const auto& [page, copy] : oldest) free_.push_back(copy.buffer);
  return taken;
}

void StagedPages::clear() {
  const MutexLock lock(mutex_);
  for (const auto& [page, copy] : copies_) free_.push_back(copy.buffer);
  copies_.clear();
}

void StagedPages::clear_space(SpaceId space) {
  const auto in_space = [&](uint64_t page) { return PageId::unpack(page).space == space.value; };
  MutexLock lock(mutex_);
  for (auto it = copies_.begin(); it != copies_.end();) {
    if (!in_space(it->first)) {
      ++it;
      continue;
    }
    free_.push_back(it->second.buffer);
    it = copies_.erase(it);
  }
  ended_.wait(lock, [&]() STRATA_REQUIRES(mutex_) {
    return std::none_of(busy_.begin(), busy_.end(), in_space);
  });
}

}  // namespace strata::clients
