#include "base/latch.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "base/assert.h"

namespace strata {

#ifdef STRATA_DEBUG_CHECKS
namespace {
thread_local std::vector<uint16_t> held_ranks;
}  // namespace

void Mutex::check_order() const noexcept {
  if (rank_ == LatchRank::kInterrupt) return;
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

// Marks are set while the latch is held and cleared when it gets free; whoever frees it wakes all
// readers and one writer. The others of them count on that one: a writer that has slept sets
// kWritersSleep when it has the latch, or when it goes to sleep again. So while writers sleep the
// mark stands, or one of them is on its way. (Waking all of them made a convoy on a page that every
// transaction writes to: each release woke dozens, and all but one slept again.)
bool RwLatch::sleep(uint32_t observed, uint32_t kind) noexcept {
  const auto result = syscall(SYS_futex, reinterpret_cast<uint32_t*>(&state_),
                              FUTEX_WAIT_BITSET_PRIVATE, observed, nullptr, nullptr, kind);
  return result == 0 || errno != EAGAIN;
}

void RwLatch::wake(uint32_t marks) noexcept {
  auto* const address = reinterpret_cast<uint32_t*>(&state_);
  if ((marks & kWritersSleep) != 0)
    syscall(SYS_futex, address, FUTEX_WAKE_BITSET_PRIVATE, 1, nullptr, nullptr, kWritersSleep);
  if ((marks & kReadersSleep) != 0)
    syscall(SYS_futex, address, FUTEX_WAKE_BITSET_PRIVATE, INT32_MAX, nullptr, nullptr,
            kReadersSleep);
}

bool RwLatch::take(uint32_t marks) noexcept {
  uint32_t s = state_.load(std::memory_order_relaxed);
  while ((s & (kWriter | kReaderMask)) == 0) {
    if (state_.compare_exchange_weak(s, s | kWriter | marks, std::memory_order_acquire,
                                     std::memory_order_relaxed)) {
      return true;
    }
  }
  return false;
}

bool RwLatch::try_lock() noexcept { return take(0); }

void RwLatch::lock() noexcept {
  uint32_t marks = 0;
  while (!take(marks)) {
    uint32_t s = state_.load(std::memory_order_relaxed);
    if ((s & (kWriter | kReaderMask)) == 0) continue;
    const uint32_t want = s | kWritersSleep;
    if (s != want && !state_.compare_exchange_weak(s, want, std::memory_order_relaxed,
                                                   std::memory_order_relaxed)) {
      continue;
    }
    if (sleep(want, kWritersSleep)) marks = kWritersSleep;
  }
}

void RwLatch::unlock() noexcept {
  const uint32_t old = state_.exchange(0, std::memory_order_release);
  if ((old & kMarks) != 0) wake(old);
}

bool RwLatch::try_lock_shared() noexcept {
  uint32_t s = state_.load(std::memory_order_relaxed);
  while ((s & (kWriter | kWritersSleep)) == 0) {
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
    if ((s & (kWriter | kWritersSleep)) == 0) continue;
    const uint32_t want = s | kReadersSleep;
    if (s != want && !state_.compare_exchange_weak(s, want, std::memory_order_relaxed,
                                                   std::memory_order_relaxed)) {
      continue;
    }
    sleep(want, kReadersSleep);
  }
}

void RwLatch::unlock_shared() noexcept {
  uint32_t s = state_.load(std::memory_order_relaxed);
  for (;;) {
    const bool last = (s & kReaderMask) == 1;
    if (state_.compare_exchange_weak(s, last ? 0 : s - 1, std::memory_order_release,
                                     std::memory_order_relaxed)) {
      if (last && (s & kMarks) != 0) wake(s);
      return;
    }
  }
}

}  // namespace strata
