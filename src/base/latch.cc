#include "base/latch.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vector>

#include "base/assert.h"

namespace strata {

#ifdef STRATA_DEBUG_CHECKS
namespace {
thread_local std::vector<uint16_t> held_ranks;
}  // namespace

void Mutex::check_order() const noexcept {
  for (uint16_t held : held_ranks) {
    // kLeaf latches may not nest in anything of the same rank either.
    STRATA_ASSERT(held < static_cast<uint16_t>(rank_));
  }
}
void Mutex::note_locked() const noexcept { held_ranks.push_back(static_cast<uint16_t>(rank_)); }
void Mutex::note_unlocked() const noexcept {
  for (size_t i = held_ranks.size(); i-- > 0;) {
    if (held_ranks[i] == static_cast<uint16_t>(rank_)) {
      held_ranks.erase(held_ranks.begin() + static_cast<long>(i));
      return;
    }
  }
}
#endif

uint32_t Parker::wait() noexcept {
  for (;;) {
    const uint32_t value = word_.load(std::memory_order_acquire);
    if (value != 0) return value;
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word_), FUTEX_WAIT_PRIVATE, 0, nullptr, nullptr,
            0);
  }
}

// The sleeper may see the value, return and end before the wake-up: that then finds nobody, or at
// worst wakes another user of the address, and every futex user looks again after waking.
void Parker::unpark(uint32_t value) noexcept {
  auto* const address = reinterpret_cast<uint32_t*>(&word_);
  word_.store(value, std::memory_order_release);
  syscall(SYS_futex, address, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

void RwLatch::sleep(uint32_t observed) noexcept {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&state_), FUTEX_WAIT_PRIVATE, observed, nullptr,
          nullptr, 0);
}

void RwLatch::wake_all() noexcept {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&state_), FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr,
          nullptr, 0);
}

bool RwLatch::try_lock() noexcept {
  uint32_t s = state_.load(std::memory_order_relaxed);
  // A waiting writer's mark may stand; barging past it is fine because it retries at once.
  while ((s & (kWriter | kReaderMask)) == 0) {
    if (state_.compare_exchange_weak(s, (s & ~kWriterWaiting) | kWriter, std::memory_order_acquire,
                                     std::memory_order_relaxed)) {
      return true;
    }
  }
  return false;
}

void RwLatch::lock() noexcept {
  while (!try_lock()) {
    uint32_t s = state_.load(std::memory_order_relaxed);
    if ((s & (kWriter | kReaderMask)) == 0) continue;
    const uint32_t want = s | kWriterWaiting | kSleepers;
    if (s != want && !state_.compare_exchange_weak(s, want, std::memory_order_relaxed,
                                                   std::memory_order_relaxed)) {
      continue;
    }
    sleep(want);
  }
}

void RwLatch::unlock() noexcept {
  const uint32_t old =
      state_.fetch_and(~(kWriter | kWriterWaiting | kSleepers), std::memory_order_release);
  if ((old & kSleepers) != 0) wake_all();
}

bool RwLatch::try_lock_shared() noexcept {
  uint32_t s = state_.load(std::memory_order_relaxed);
  while ((s & (kWriter | kWriterWaiting)) == 0) {
    if (state_.compare_exchange_weak(s, s + 1, std::memory_order_acquire,
                                     std::memory_order_relaxed)) {
      return true;
    }
  }
  return false;
}

void RwLatch::lock_shared() noexcept {
  while (!try_lock_shared()) {
    uint32_t s = state_.load(std::memory_order_relaxed);
    if ((s & (kWriter | kWriterWaiting)) == 0) continue;
    const uint32_t want = s | kSleepers;
    if (s != want && !state_.compare_exchange_weak(s, want, std::memory_order_relaxed,
                                                   std::memory_order_relaxed)) {
      continue;
    }
    sleep(want);
  }
}

void RwLatch::unlock_shared() noexcept {
  uint32_t s = state_.load(std::memory_order_relaxed);
  for (;;) {
    const bool last = (s & kReaderMask) == 1;
    // The last reader clears the marks and wakes everyone: writers race for it, readers follow.
    const uint32_t next = last ? 0 : s - 1;
    if (state_.compare_exchange_weak(s, next, std::memory_order_release,
                                     std::memory_order_relaxed)) {
      if (last && (s & kSleepers) != 0) wake_all();
      return;
    }
  }
}

}  // namespace strata
