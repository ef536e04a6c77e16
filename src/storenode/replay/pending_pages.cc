#include "storenode/replay/pending_pages.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace strata::storenode {
namespace {
constexpr uint64_t kStretchBytes = 256u << 10;  // shorter ones are joined
}  // namespace

void PendingPages::add_stream(StreamId stream, StreamMark from) {
  const MutexLock lock(mutex_);
  ends_[stream] = from;
}

void PendingPages::queue(PageId id, Page* page) {
  STRATA_ASSERT(page->state != State::kWaitsForScan || waiting_for_scan_ != 0);
  STRATA_ASSERT(page->first <= last_batch_);
  if (page->state == State::kWaitsForScan) --waiting_for_scan_;
  page->state = State::kQueued;
  stalled_ = false;
  if (page->first > ripe_) {
    queued_.emplace(page->first, id);
    return;
  }
  ripe_pages_.emplace(page->first, id);
  changed_.notify_one();
}

void PendingPages::announce_ripe() {
  if (!has_ripe()) return;
  stalled_ = false;
  changed_.notify_all();
}

void PendingPages::raise_ripe(Batch batch) {
  if (batch <= ripe_) return;
  STRATA_ASSERT(batch <= last_batch_);
  ripe_ = batch;
  if (queued_.empty() || queued_.begin()->first > ripe_) return;
  while (!queued_.empty() && queued_.begin()->first <= ripe_)
    ripe_pages_.insert(queued_.extract(queued_.begin()));
  announce_ripe();
}

void PendingPages::ripen() {
  const MutexLock lock(mutex_);
  if (!ripened_.empty()) {
    const Batch rest = ripened_.back();
    for (auto it = queued_.begin(); it != queued_.end() && it->first <= rest;) {
      const auto place = it++;
      if (pages_.at(place->second).last <= rest) ripe_pages_.insert(queued_.extract(place));
    }
    announce_ripe();
  }
  ripened_.push_back(last_batch_);
  if (ripened_.size() <= kRipensMax) return;
  raise_ripe(ripened_.front());
  ripened_.pop_front();
}

void PendingPages::ripen_all() {
  const MutexLock lock(mutex_);
  raise_ripe(last_batch_);
}

void PendingPages::add(StreamId stream, StreamMark from, StreamMark to,
                       const std::vector<PageId>& pages) {
  const MutexLock lock(mutex_);
  STRATA_ASSERT(from.lsn <= to.lsn && ends_[stream].lsn <= to.lsn);
  ends_[stream] = to;
  // What came since is told apart, and is not ripe because of what came before.
  const Batch closed = std::max(ripened_.empty() ? 0 : ripened_.back(), ripe_);
  if (!stretches_.empty() && stretches_.back().stream == stream &&
      stretches_.back().batch > closed &&
      to.lsn.value - stretches_.back().from.lsn.value <= kStretchBytes) {
    stretches_.back().to = to;
  } else if (!pages.empty()) {
    stretches_.push_back({++last_batch_, stream, from, to});
    ++stretches_of_[stream];
  }
  for (const Stretch& stretch : stretches_) {
    if (stretch.to.lsn.value + lag_bytes_ > ends_[stretch.stream].lsn.value) break;
    raise_ripe(stretch.batch);
  }
  for (const PageId id : pages) {
    STRATA_ASSERT(!stretches_.empty());
    const Batch batch = stretches_.back().batch;
    const auto [it, added] = pages_.try_emplace(id, Page{batch, batch});
    Page& page = it->second;
    page.last = batch;
    if (added) {
      listed_.emplace(batch, id);
      queue(id, &page);
    } else if (page.state == State::kTaken && page.again == 0) {
      page.again = batch;
    }
  }
  if (waiting_for_scan_ == 0) return;
  for (auto& [id, page] : pages_)
    if (page.state == State::kWaitsForScan) queue(id, &page);
}

// Zero: they are in none yet.
PendingPages::Batch PendingPages::oldest_batch(const std::vector<Section>& sections) const {
  for (const Stretch& stretch : stretches_)
    for (const Section& section : sections)
      if (section.stream == stretch.stream && section.lsn < stretch.to.lsn) return stretch.batch;
  return 0;
}

void PendingPages::done(PageId id, const std::vector<Section>& left) {
  const MutexLock lock(mutex_);
  const auto it = pages_.find(id);
  STRATA_ASSERT(it != pages_.end());
  Page& page = it->second;
  STRATA_ASSERT(page.state == State::kTaken);
  const size_t listed = listed_.erase({page.first, id});
  STRATA_ASSERT(listed == 1);
  const Batch next = left.empty() ? 0 : oldest_batch(left);
  if (next != 0 || page.again != 0) {
    page.first = next != 0 && (page.again == 0 || next < page.again) ? next : page.again;
    page.again = 0;
    listed_.emplace(page.first, id);
    queue(id, &page);
  } else {
    pages_.erase(it);
  }
  const Batch oldest = listed_.empty() ? last_batch_ + 1 : listed_.begin()->first;
  while (!stretches_.empty() && stretches_.front().batch < oldest) drop_first_stretch();
}

void PendingPages::drop_first_stretch() {
  size_t& left = stretches_of_[stretches_.front().stream];
  STRATA_ASSERT(left != 0);
  --left;
  stretches_.pop_front();
}

void PendingPages::put_off(PageId id, bool for_scan) {
  const MutexLock lock(mutex_);
  Page& page = pages_.at(id);
  STRATA_ASSERT(page.state == State::kTaken);
  if (page.again != 0 && for_scan) {
    page.again = 0;
    queue(id, &page);
    return;
  }
  page.again = 0;  // `first` covers it
  page.state = for_scan ? State::kWaitsForScan : State::kPutOff;
  if (for_scan) ++waiting_for_scan_;
}

void PendingPages::retry() {
  const MutexLock lock(mutex_);
  for (auto& [id, page] : pages_)
    if (page.state == State::kPutOff || page.state == State::kWaitsForScan) queue(id, &page);
}

void PendingPages::hold_back(bool hold) {
  const MutexLock lock(mutex_);
  if (std::exchange(held_back_, hold) == hold || !has_ripe()) return;
  stalled_ = false;
  changed_.notify_all();
}

StreamMark PendingPages::oldest(StreamId stream) const {
  const MutexLock lock(mutex_);
  return oldest_locked(stream);
}

std::optional<StreamMark> PendingPages::oldest_at_hand(StreamId stream) const {
  if (!mutex_.try_lock()) return std::nullopt;
  const MutexLock lock(mutex_, std::adopt_lock);
  return oldest_locked(stream);
}

StreamMark PendingPages::oldest_locked(StreamId stream) const {
  const auto some = stretches_of_.find(stream);
  if (some != stretches_of_.end() && some->second != 0)
    for (const Stretch& stretch : stretches_)
      if (stretch.stream == stream) return stretch.from;
  const auto it = ends_.find(stream);
  return it == ends_.end() ? StreamMark{} : it->second;
}

size_t PendingPages::count() const {
  const MutexLock lock(mutex_);
  return pages_.size();
}

bool PendingPages::wait() {
  MutexLock lock(mutex_);
  changed_.wait(lock, [this]() STRATA_REQUIRES(mutex_) {
    return stop_ || woken_ || (has_ripe() && !stalled_);
  });
  woken_ = false;
  return !stop_;
}

void PendingPages::stop(bool stop) {
  const MutexLock lock(mutex_);
  stop_ = stop;
  changed_.notify_all();
}

void PendingPages::wake() {
  const MutexLock lock(mutex_);
  if (!stalled_) return;  // nobody was sent away
  woken_ = true;
  stalled_ = false;
  changed_.notify_all();
}

}  // namespace strata::storenode
