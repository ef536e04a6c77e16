#include "engine/internal/reserved_numbers.h"

#include <algorithm>

#include "base/assert.h"
#include "base/clock.h"
#include "engine/internal/kernel_impl.h"

namespace strata::engine {
namespace {

constexpr uint64_t kChunkMax = 10000;
constexpr uint64_t kBusyUs = 1'000'000;

// Smallest value >= next of the form offset + k * step; smaller than `next` if there is none.
uint64_t aligned(uint64_t next, uint64_t offset, uint64_t step) noexcept {
  if (step <= 1 || offset > step) return next;
  return next <= offset ? offset : offset + (next - offset + step - 1) / step * step;
}

uint64_t add_or_max(uint64_t a, uint64_t b) noexcept {
  uint64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}
uint64_t times_or_max(uint64_t a, uint64_t b) noexcept {
  uint64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

}  // namespace

StatusOr<uint64_t> ReservedNumbers::take(uint64_t offset, uint64_t step, uint64_t count,
                                         uint64_t most) {
  if (step == 0) step = 1;
  MutexLock lock(mutex_);
  for (;;) {
    const uint64_t next = next_.load(std::memory_order_relaxed);
    if (next == UINT64_MAX) return UINT64_MAX;
    const uint64_t first = aligned(next, offset, step);
    if (first < next) return UINT64_MAX;  // wrapped
    if (first > most) return first;
    const uint64_t last = add_or_max(first, times_or_max(step, count - 1));
    if (last < end_) {
      next_.store(last + 1, std::memory_order_relaxed);
      return first;
    }
    if (end_ == UINT64_MAX) {  // fewer than wanted are left, as with one node
      next_.store(UINT64_MAX, std::memory_order_relaxed);
      return first;
    }
    if (taking_) {
      taken_.wait(lock, [this] { return !taking_; });
      continue;
    }
    const uint64_t now_us = monotonic_us();
    STRATA_ASSERT(now_us >= taken_at_us_ && chunk_ >= 1 && chunk_ <= kChunkMax);
    chunk_ = now_us - taken_at_us_ < kBusyUs ? std::min(2 * chunk_, kChunkMax)
                                             : std::max<uint64_t>(chunk_ / 2, 1);
    taken_at_us_ = now_us;
    taking_ = true;
    lock.unlock();
    // Wherever the range begins, `count` of the form asked for are in it.
    NumberRange range;
    const Status status =
        take_range(next, std::max(chunk_, times_or_max(step, add_or_max(count, 1))), &range);
    lock.lock();
    STRATA_ASSERT(taking_);
    taking_ = false;
    taken_.notify_all();
    STRATA_RETURN_IF_ERROR(status);
    if (range.first == range.end) return UINT64_MAX;
    // An explicit value may have been used meanwhile.
    const uint64_t reached = next_.load(std::memory_order_relaxed);
    if (range.first != end_ && reached < range.first)
      next_.store(range.first, std::memory_order_relaxed);
    end_ = std::max(range.end, end_);
    STRATA_ASSERT(next_.load(std::memory_order_relaxed) <= end_);
  }
}

Status ReservedNumbers::take_range(uint64_t at_least, uint64_t count, NumberRange* range) {
  STRATA_ASSIGN_OR_RETURN(*range,
                          source_->reserve(space_, HeaderSlot::kAutoIncrement, at_least, count));
  uint64_t end = taken_end_.load(std::memory_order_relaxed);
  while (end < range->end && !taken_end_.compare_exchange_weak(end, range->end)) {
  }
  return ok_status();
}

void ReservedNumbers::raise(uint64_t used) noexcept {
  const uint64_t after = used == UINT64_MAX ? UINT64_MAX : used + 1;
  if (next_.load(std::memory_order_relaxed) >= after) return;
  const MutexLock lock(mutex_);
  if (next_.load(std::memory_order_relaxed) >= after) return;
  next_.store(after, std::memory_order_relaxed);
  end_ = std::max(end_, after);  // nothing of the range is left
}

}  // namespace strata::engine
