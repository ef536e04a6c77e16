// Mutex and reader-writer latch of the kernel. Short, physical, never held over I/O.
//
// Mutex      std::mutex with a rank; debug builds assert that ranks grow per thread.
// RwLatch    4 bytes, futex based, writer-preferring; used in every buffer frame. Not recursive.
//            X and S may be released by another thread (page hand-over), so no rank is checked
//            here.
// Parker     one sleeper with a futex of its own: who is woken contends with nobody.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "base/latch_rank.h"

namespace strata {

class Mutex {
 public:
  explicit Mutex(LatchRank rank) noexcept : rank_(rank) {}
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;
  void lock() noexcept {
    check_order();
    mutex_.lock();
    note_locked();
  }
  bool try_lock() noexcept {
    if (!mutex_.try_lock()) return false;
    note_locked();
    return true;
  }
  void unlock() noexcept {
    note_unlocked();
    mutex_.unlock();
  }

 private:
  friend class CondVar;
#ifdef STRATA_DEBUG_CHECKS
  void check_order() const noexcept;
  void note_locked() const noexcept;
  void note_unlocked() const noexcept;
#else
  void check_order() const noexcept {}
  void note_locked() const noexcept {}
  void note_unlocked() const noexcept {}
#endif
  std::mutex mutex_;
  LatchRank rank_;
};

using MutexLock = std::unique_lock<Mutex>;

// Condition variable for Mutex. Waits release the mutex.
class CondVar {
 public:
  void wait(MutexLock& lock) {
    Native native(lock);
    cv_.wait(native.lock);
  }
  // Returns false on timeout.
  bool wait_for_us(MutexLock& lock, uint64_t microseconds) {
    Native native(lock);
    return cv_.wait_for(native.lock, std::chrono::microseconds(microseconds)) ==
           std::cv_status::no_timeout;
  }
  template <typename Pred>
  void wait(MutexLock& lock, Pred pred) {
    while (!pred()) wait(lock);
  }
  template <typename Pred>
  bool wait_for_us(MutexLock& lock, uint64_t microseconds, Pred pred) {
    const auto deadline =
        std::chrono::steady_clock::now() + std::chrono::microseconds(microseconds);
    while (!pred()) {
      Native native(lock);
      if (cv_.wait_until(native.lock, deadline) == std::cv_status::timeout) {
        native.release();
        return pred();
      }
    }
    return true;
  }
  void notify_one() noexcept { cv_.notify_one(); }
  void notify_all() noexcept { cv_.notify_all(); }

 private:
  // The std::mutex inside, lent to std::condition_variable: condition_variable_any would add a
  // mutex of its own to every wait and notify.
  struct Native {
    explicit Native(MutexLock& held) : owner(held.mutex()), lock(owner->mutex_, std::adopt_lock) {
      owner->note_unlocked();
    }
    ~Native() { release(); }
    Native(const Native&) = delete;
    Native& operator=(const Native&) = delete;
    void release() {
      if (lock.release() != nullptr) owner->note_locked();
    }
    Mutex* owner;
    std::unique_lock<std::mutex> lock;
  };
  std::condition_variable cv_;
};

// One sleeping thread and whoever wakes it. wait() returns what unpark() gave; one of each per
// life.
class Parker {
 public:
  uint32_t wait() noexcept;              // blocks
  void unpark(uint32_t value) noexcept;  // value != 0; the Parker may be gone when this returns
 private:
  std::atomic<uint32_t> word_{0};
};

class RwLatch {
 public:
  RwLatch() noexcept = default;
  RwLatch(const RwLatch&) = delete;
  RwLatch& operator=(const RwLatch&) = delete;

  void lock() noexcept;
  bool try_lock() noexcept;
  void unlock() noexcept;
  void lock_shared() noexcept;
  bool try_lock_shared() noexcept;
  void unlock_shared() noexcept;
  [[nodiscard]] bool is_locked_exclusive() const noexcept {
    return (state_.load(std::memory_order_relaxed) & kWriter) != 0;
  }

 private:
  static constexpr uint32_t kWriter = 1u << 31;
  static constexpr uint32_t kWritersSleep = 1u << 30;  // or are about to; keeps new readers out
  static constexpr uint32_t kReadersSleep = 1u << 29;
  static constexpr uint32_t kMarks = kWritersSleep | kReadersSleep;
  static constexpr uint32_t kReaderMask = kReadersSleep - 1;
  bool take(uint32_t marks) noexcept;
  bool sleep(uint32_t observed, uint32_t kind) noexcept;  // false: it did not
  void wake(uint32_t marks) noexcept;
  std::atomic<uint32_t> state_{0};
};

}  // namespace strata
