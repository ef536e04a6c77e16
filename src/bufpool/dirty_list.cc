#include "bufpool/dirty_list.h"

#include <algorithm>

#include "base/assert.h"

namespace strata {

void DirtyList::set_bits(Frame* frame, uint8_t bits) noexcept {
  const uint8_t old = frame->dirty.load(std::memory_order_relaxed);
  if (old == 0 && bits != 0) count_.fetch_add(1, std::memory_order_relaxed);
  if (old != 0 && bits == 0) count_.fetch_sub(1, std::memory_order_relaxed);
  // Pairs with the acquire in BufferPool::Impl::try_evict.
  frame->dirty.store(bits, std::memory_order_release);
}

void DirtyList::link(Frame* frame, uint64_t lsn, bool from_head) noexcept {
  uint32_t prev = tail_;
  uint32_t next = kNoFrame;
  if (from_head) {
    next = head_;
    while (next != kNoFrame && frames_[next].first_lsn.load(std::memory_order_relaxed) <= lsn)
      next = frames_[next].dirty_next;
    prev = next == kNoFrame ? tail_ : frames_[next].dirty_prev;
  } else {
    while (prev != kNoFrame && frames_[prev].first_lsn.load(std::memory_order_relaxed) > lsn) {
      next = prev;
      prev = frames_[prev].dirty_prev;
    }
  }
  const uint32_t self = index_of(frame);
  frame->first_lsn.store(lsn, std::memory_order_relaxed);
  frame->dirty_prev = prev;
  frame->dirty_next = next;
  (prev == kNoFrame ? head_ : frames_[prev].dirty_next) = self;
  (next == kNoFrame ? tail_ : frames_[next].dirty_prev) = self;
}

void DirtyList::unlink(Frame* frame) noexcept {
  const uint32_t prev = frame->dirty_prev;
  const uint32_t next = frame->dirty_next;
  (prev == kNoFrame ? head_ : frames_[prev].dirty_next) = next;
  (next == kNoFrame ? tail_ : frames_[next].dirty_prev) = prev;
}

void DirtyList::add(Frame* frame, uint64_t lsn) noexcept {
  const MutexLock lock(mutex_);
  const uint8_t bits = frame->dirty.load(std::memory_order_relaxed);
  if ((bits & kListed) != 0) {
    if (lsn >= frame->first_lsn.load(std::memory_order_relaxed)) return;
    unlink(frame);
  }
  link(frame, lsn, /*from_head=*/false);
  set_bits(frame, bits | kListed);
}

bool DirtyList::begin_write(Frame* frame) noexcept {
  const MutexLock lock(mutex_);
  if (frame->dirty.load(std::memory_order_relaxed) != kListed) return false;
  unlink(frame);
  frame->writing_lsn = frame->first_lsn.load(std::memory_order_relaxed);
  frame->writing_prev = kNoFrame;
  frame->writing_next = writing_head_;
  if (writing_head_ != kNoFrame) frames_[writing_head_].writing_prev = index_of(frame);
  writing_head_ = index_of(frame);
  set_bits(frame, kWriting);
  return true;
}

void DirtyList::end_write(Frame* const* frames, const bool* ok, size_t count) noexcept {
  const MutexLock lock(mutex_);
  for (size_t i = 0; i < count; ++i) {
    Frame* frame = frames[i];
    uint8_t bits = frame->dirty.load(std::memory_order_relaxed);
    STRATA_ASSERT((bits & kWriting) != 0);
    const uint32_t prev = frame->writing_prev;
    const uint32_t next = frame->writing_next;
    (prev == kNoFrame ? writing_head_ : frames_[prev].writing_next) = next;
    if (next != kNoFrame) frames_[next].writing_prev = prev;
    bits &= static_cast<uint8_t>(~kWriting);
    if (!ok[i]) {
      if ((bits & kListed) != 0) unlink(frame);
      link(frame, frame->writing_lsn, /*from_head=*/true);
      bits |= kListed;
    }
    set_bits(frame, bits);
  }
  if (waiters_ != 0) write_ended_.notify_all();
}

void DirtyList::drop(Frame* frame) noexcept {
  const MutexLock lock(mutex_);
  const uint8_t bits = frame->dirty.load(std::memory_order_relaxed);
  STRATA_ASSERT((bits & kWriting) == 0);
  if ((bits & kListed) != 0) unlink(frame);
  set_bits(frame, 0);
}

size_t DirtyList::pin_below(uint64_t lsn, Frame** out, size_t max) noexcept {
  const MutexLock lock(mutex_);
  size_t count = 0;
  for (uint32_t i = head_; i != kNoFrame && count < max; i = frames_[i].dirty_next) {
    Frame& frame = frames_[i];
    if (frame.first_lsn.load(std::memory_order_relaxed) >= lsn) break;
    if ((frame.dirty.load(std::memory_order_relaxed) & kWriting) != 0) continue;
    // A listed frame is in the pool; only discard_space() or a peeking evictor can own it.
    uint32_t pins = frame.pins.load(std::memory_order_relaxed);
    while ((pins & kOwned) == 0 &&
           !frame.pins.compare_exchange_weak(pins, pins + 1, std::memory_order_acq_rel)) {
    }
    if ((pins & kOwned) == 0) out[count++] = &frame;
  }
  return count;
}

uint64_t DirtyList::oldest_locked() const noexcept {
  uint64_t lsn = UINT64_MAX;
  if (head_ != kNoFrame) lsn = frames_[head_].first_lsn.load(std::memory_order_relaxed);
  for (uint32_t i = writing_head_; i != kNoFrame; i = frames_[i].writing_next)
    lsn = std::min(lsn, frames_[i].writing_lsn);
  return lsn;
}

uint64_t DirtyList::oldest() noexcept {
  const MutexLock lock(mutex_);
  return oldest_locked();
}

bool DirtyList::clean_below(uint64_t lsn) noexcept { return oldest() >= lsn; }

void DirtyList::wait_for_write(const Frame* frame_or_null) noexcept {
  MutexLock lock(mutex_);
  if (frame_or_null != nullptr &&
      (frame_or_null->dirty.load(std::memory_order_relaxed) & kWriting) == 0)
    return;
  ++waiters_;
  write_ended_.wait_for_us(lock, 10000);
  --waiters_;
}

}  // namespace strata
