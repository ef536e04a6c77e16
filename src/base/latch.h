// Mutex and reader-writer latch of the kernel. Short, physical, never held over I/O.
//
// Mutex      std::mutex with a rank; debug builds assert that ranks grow per thread.
// MutexLock  holds a Mutex while it lives. What it guards Clang checks: thread_annotations.h.
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
#include "base/thread_annotations.h"

namespace strata {

class STRATA_CAPABILITY("mutex") Mutex {
 public:
  explicit constexpr Mutex(LatchRank rank) noexcept : rank_(rank) {}
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;
  void lock() noexcept STRATA_ACQUIRE() {
    check_order();
    mutex_.lock();
    note_locked();
  }
  bool try_lock() noexcept STRATA_TRY_ACQUIRE(true) {
    if (!mutex_.try_lock()) return false;
    note_locked();
    return true;
  }
  void unlock() noexcept STRATA_RELEASE() {
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

// Holds the mutex while it lives, except between unlock() and lock().
class STRATA_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) noexcept STRATA_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  // The caller holds it already: try_lock() gave it.
  MutexLock(Mutex& mutex, std::adopt_lock_t) noexcept STRATA_REQUIRES(mutex) : mutex_(mutex) {}
  ~MutexLock() STRATA_RELEASE() {
    if (held_) mutex_.unlock();
  }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;
  void unlock() noexcept STRATA_RELEASE() {
    held_ = false;
    mutex_.unlock();
  }
  void lock() noexcept STRATA_ACQUIRE() {
    mutex_.lock();
    held_ = true;
  }

 private:
  friend class CondVar;
  Mutex& mutex_;
  bool held_ = true;
};

// The other way round: within a function that is called with the mutex held, it is free while this
// lives.
class STRATA_SCOPED_CAPABILITY MutexUnlock {
 public:
  explicit MutexUnlock(Mutex& mutex) noexcept STRATA_RELEASE(mutex) : mutex_(mutex) {
    mutex_.unlock();
  }
  ~MutexUnlock() STRATA_RELEASE() { mutex_.lock(); }
  MutexUnlock(const MutexUnlock&) = delete;
  MutexUnlock& operator=(const MutexUnlock&) = delete;

 private:
  Mutex& mutex_;
};

// Condition variable for Mutex. Waits release the mutex. What a wait looks at is guarded by the
// mutex, so a lambda says so too: wait(lock, [this]() STRATA_REQUIRES(mutex_) { return ready_; }).
class CondVar {
 public:
  void wait(Mutex& mutex) STRATA_REQUIRES(mutex) {
    Native native(mutex);
    cv_.wait(native.lock);
  }
  // Returns false on timeout.
  bool wait_for_us(Mutex& mutex, uint64_t microseconds) STRATA_REQUIRES(mutex) {
    Native native(mutex);
    return cv_.wait_for(native.lock, std::chrono::microseconds(microseconds)) ==
           std::cv_status::no_timeout;
  }
  // No analysis of this one and the next with a predicate: which mutex it wants is known where it
  // is written only.
  template <typename Pred>
  void wait(Mutex& mutex, Pred pred) STRATA_REQUIRES(mutex) STRATA_NO_THREAD_SAFETY_ANALYSIS {
    while (!pred()) wait(mutex);
  }
  template <typename Pred>
  bool wait_for_us(Mutex& mutex, uint64_t microseconds, Pred pred)
      STRATA_REQUIRES(mutex) STRATA_NO_THREAD_SAFETY_ANALYSIS {
    const auto deadline =
        std::chrono::steady_clock::now() + std::chrono::microseconds(microseconds);
    while (!pred()) {
      Native native(mutex);
      if (cv_.wait_until(native.lock, deadline) == std::cv_status::timeout) {
        native.release();
        return pred();
      }
    }
    return true;
  }
  // The same for who has a MutexLock, which holds its mutex. No analysis: it does not know whose.
  void wait(MutexLock& lock) STRATA_NO_THREAD_SAFETY_ANALYSIS { wait(lock.mutex_); }
  bool wait_for_us(MutexLock& lock, uint64_t us) STRATA_NO_THREAD_SAFETY_ANALYSIS {
    return wait_for_us(lock.mutex_, us);
  }
  template <typename Pred>
  void wait(MutexLock& lock, Pred pred) STRATA_NO_THREAD_SAFETY_ANALYSIS {
    wait(lock.mutex_, pred);
  }
  template <typename Pred>
  bool wait_for_us(MutexLock& lock, uint64_t us, Pred pred) STRATA_NO_THREAD_SAFETY_ANALYSIS {
    return wait_for_us(lock.mutex_, us, pred);
  }
  void notify_one() noexcept { cv_.notify_one(); }
  void notify_all() noexcept { cv_.notify_all(); }

 private:
  // The std::mutex inside, lent to std::condition_variable: condition_variable_any would add a
  // mutex of its own to every wait and notify.
  struct Native {
    explicit Native(Mutex& held) : owner(held), lock(held.mutex_, std::adopt_lock) {
      owner.note_unlocked();
    }
    ~Native() { release(); }
    Native(const Native&) = delete;
    Native& operator=(const Native&) = delete;
    void release() {
      if (lock.release() != nullptr) owner.note_locked();
    }
    Mutex& owner;
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

class STRATA_CAPABILITY("latch") RwLatch {
 public:
  RwLatch() noexcept = default;
  RwLatch(const RwLatch&) = delete;
  RwLatch& operator=(const RwLatch&) = delete;

  void lock() noexcept STRATA_ACQUIRE();
  bool try_lock() noexcept STRATA_TRY_ACQUIRE(true);
  void unlock() noexcept STRATA_RELEASE();
  void lock_shared() noexcept STRATA_ACQUIRE_SHARED();
  bool try_lock_shared() noexcept STRATA_TRY_ACQUIRE_SHARED(true);
  void unlock_shared() noexcept STRATA_RELEASE_SHARED();
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

// Holds a latch exclusively while it lives.
class STRATA_SCOPED_CAPABILITY ExclusiveLatch {
 public:
  explicit ExclusiveLatch(RwLatch& latch) noexcept STRATA_ACQUIRE(latch) : latch_(latch) {
    latch_.lock();
  }
  ~ExclusiveLatch() STRATA_RELEASE() { latch_.unlock(); }
  ExclusiveLatch(const ExclusiveLatch&) = delete;
  ExclusiveLatch& operator=(const ExclusiveLatch&) = delete;

 private:
  RwLatch& latch_;
};

// Holds a latch beside other readers while it lives.
class STRATA_SCOPED_CAPABILITY SharedLatch {
 public:
  explicit SharedLatch(RwLatch& latch) noexcept STRATA_ACQUIRE_SHARED(latch) : latch_(latch) {
    latch_.lock_shared();
  }
  ~SharedLatch() STRATA_RELEASE_EITHER() { latch_.unlock_shared(); }
  SharedLatch(const SharedLatch&) = delete;
  SharedLatch& operator=(const SharedLatch&) = delete;

 private:
  RwLatch& latch_;
};

}  // namespace strata
