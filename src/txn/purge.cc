// The purge queue, and the bound below which everything is visible.
#include <algorithm>
#include <map>
#include <utility>

#include "base/clock.h"
#include "base/diag.h"
#include "txn/internal/trx_impl.h"
#include "txn/trx_system.h"

namespace strata {

using txn_internal::chunk_of;
using txn_internal::group_chunk_of;

namespace {
constexpr size_t kBacklog = 64;        // enough to wake the purge thread for
constexpr uint64_t kGatherUs = 50000;  // a smaller backlog waits this long for more
constexpr size_t kMarksMax = 256;      // purged transactions per write of marks and bound
constexpr size_t kOwnMarksMax = 1024;  // the same where the purge thread must be woken for it
constexpr size_t kIdleMarksMin = 32;
constexpr uint64_t kRetryUs = 60'000'000;
constexpr uint64_t kWakeTokens = 64;  // at least the number of purge threads
}  // namespace

void TrxSystem::Impl::push_committed(PurgeItem item) {
  const MutexLock lock(purge_mutex);
  queue.push(std::move(item));
  const size_t size = queue.size();
  if (purge_waiting != 0 && (size == 1 || size % kBacklog == 0)) purge_wake.notify_one();
}

void TrxSystem::purge_later(PurgeItem item) { impl_->push_committed(std::move(item)); }

void TrxSystem::purge_failed(PurgeItem item) {
  Impl& s = *impl_;
  const MutexLock lock(s.purge_mutex);
  if (s.failed.empty()) s.retry_at_us = monotonic_us() + kRetryUs;
  s.failed.push_back(std::move(item));
}

void TrxSystem::retry_failed_purges() {
  const MutexLock lock(impl_->purge_mutex);
  impl_->queue_failed();
}

void TrxSystem::Impl::queue_failed() {
  for (PurgeItem& item : failed) queue.push(std::move(item));
  failed.clear();
}

bool TrxSystem::next_to_purge(PurgeItem* out) {
  Impl& s = *impl_;
  bool found = false;
  bool flush = false;
  s.stamp_aborted();
  s.finish_unseen();
  {
    const MutexLock lock(s.purge_mutex);
    if (!s.failed.empty() && monotonic_us() >= s.retry_at_us) s.queue_failed();
    if (!s.queue.empty()) {
      const uint64_t cts = s.queue.top().cts.value;
      if (cts > s.min_view_seen.load(std::memory_order_relaxed))
        s.min_view_seen.store(
            std::max(s.min_view_seen.load(std::memory_order_relaxed), min_view().value),
            std::memory_order_relaxed);
      found = cts <= s.min_view_seen.load(std::memory_order_relaxed);
    }
    if (found) {
      *out = s.queue.top();
      s.queue.pop();
    }
    flush = !found && s.marks.size() >= kIdleMarksMin;
  }
  if (!flush) return found;
  const Status flushed = s.flush_purged();
  if (!flushed.ok()) diag(Severity::kWarning, "purge: %s", flushed.ToString().c_str());
  return found;
}

Status TrxSystem::purged(const PurgeItem& item) {
  Impl& s = *impl_;
  const Status forgotten = s.undo->forget(item.undo_pages);  // what failed is tried with the next
  s.finish(sequence_of(item.id));
  bool flush = false;
  {
    const MutexLock lock(s.purge_mutex);
    s.marks.push_back(PurgeItem{item.id, item.cts, UndoPtr{}, {}});
    flush = s.marks.size() >= kMarksMax;
  }
  if (flush) STRATA_RETURN_IF_ERROR(s.flush_purged());
  return forgotten;
}

// The marks are left to a purge thread: whoever commits does not wait for status pages of others.
Status TrxSystem::purged_own(const PurgeItem& item) {
  Impl& s = *impl_;
  const Status forgotten = s.undo->forget(item.undo_pages);
  s.finish(sequence_of(item.id));
  bool others_ended = false;
  {
    const MutexLock lock(s.purge_mutex);
    s.marks.push_back(PurgeItem{item.id, item.cts, UndoPtr{}, {}});
    if (s.purge_waiting != 0 && s.marks.size() % kOwnMarksMax == 0) s.purge_wake.notify_one();
    others_ended = !s.aborted.empty();
  }
  if (others_ended) s.finish_unseen();
  return forgotten;
}

// Writes down what is purged, so that recovery need not purge it again: the bound, and a mark for
// each transaction above it. Frees status pages below the bound.
Status TrxSystem::Impl::flush_purged() {
  std::vector<PurgeItem> todo;
  {
    const MutexLock lock(purge_mutex);
    if (flushing) return ok_status();
    flushing = true;
    todo.swap(marks);
  }
  const uint64_t bound = all_visible_below.load(std::memory_order_acquire);
  Status result;
  std::map<uint64_t, std::vector<const PurgeItem*>> by_chunk;
  for (const PurgeItem& item : todo)
    if (sequence_of(item.id) >= bound) by_chunk[chunk_of(sequence_of(item.id))].push_back(&item);
  for (const auto& [chunk, items] : by_chunk) {
    Mtr mtr(pool, log);
    result = mtr.begin_write_to_free(2 * (Mtr::kGroupLogBytes + Mtr::kPageLogBytesMax));
    if (!result.ok()) break;
    const StatusOr<MtrPage*> page =
        status.fix(&mtr, status.page_of(chunk), sequence_of(items.front()->id));
    result = page.status();
    if (!result.ok()) break;
    for (const PurgeItem* item : items)
      txn_internal::write_entry(&mtr, *page, sequence_of(item->id),
                                {TrxState::kCommitted, item->cts, UndoPtr{}});
    mtr.publish();
  }
  if (result.ok() && bound > persisted_bound) {
    Mtr mtr(pool, log);
    result = mtr.begin_write_to_free(Mtr::kGroupLogBytes + Mtr::kPageLogBytesMax);
    if (result.ok())
      result = spaces->raise_slot(&mtr, SpaceId{undo_space_of(node)}, kVisibleBelowSlot, bound);
    if (result.ok()) {
      mtr.publish();
      persisted_bound = bound;
      result = status.truncate_below(group_chunk_of(bound));
    }
  }
  const MutexLock lock(purge_mutex);
  flushing = false;
  return result;
}

uint64_t TrxSystem::history_length() const noexcept {
  const MutexLock lock(impl_->purge_mutex);
  return impl_->queue.size() + impl_->failed.size();
}

void TrxSystem::wait_for_purge_work(uint64_t timeout_us) {
  Impl& s = *impl_;
  MutexLock lock(s.purge_mutex);
  const auto woken = [&s]() STRATA_REQUIRES(s.purge_mutex) { return s.wake_tokens != 0; };
  ++s.purge_waiting;
  if (s.queue.empty()) {
    s.purge_wake.wait_for_us(lock, timeout_us, [&]() STRATA_REQUIRES(s.purge_mutex) {
      return woken() || !s.queue.empty() || s.marks.size() >= kOwnMarksMax;
    });
  }
  if (!s.queue.empty()) {
    s.purge_wake.wait_for_us(
        lock, std::min(timeout_us, kGatherUs), [&]() STRATA_REQUIRES(s.purge_mutex) {
          return woken() || (s.queue.size() >= kBacklog && s.queue.top().cts <= min_view());
        });
  }
  --s.purge_waiting;
  if (s.wake_tokens != 0) --s.wake_tokens;
}

void TrxSystem::pause_purge(uint64_t timeout_us) {
  Impl& s = *impl_;
  MutexLock lock(s.purge_mutex);
  s.purge_wake.wait_for_us(lock, timeout_us,
                           [&s]() STRATA_REQUIRES(s.purge_mutex) { return s.wake_tokens != 0; });
  if (s.wake_tokens != 0) --s.wake_tokens;
}

void TrxSystem::wake_purge() noexcept {
  const MutexLock lock(impl_->purge_mutex);
  impl_->wake_tokens = kWakeTokens;
  impl_->purge_wake.notify_all();
}

}  // namespace strata
