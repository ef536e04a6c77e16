// Ends a thread's waits from another thread: KILL, a statement's time limit.
//
//   BA8  interrupt() is sticky until clear(), so one that comes before the wait is not lost: who
//        waits registers how to wake it, looks at interrupted() under the mutex it sleeps with, and
//        sleeps then.
//   BA9  What a thread does for a statement that may be interrupted runs in an InterruptScope; what
//        must be carried through (commit, rollback, purge) does not. Code far below (the log, a
//        page read from another node) asks for its thread's scope and needs no parameter.
#pragma once

#include <atomic>

#include "base/latch.h"

namespace strata {

// One per session. Thread-safe; one thread at a time waits with it.
class WaitInterrupt {
 public:
  // How somebody who sleeps is woken to look at interrupted(). Called with nothing held but the
  // interrupt's own mutex, any number of times, and never after the Asleep is gone.
  class Sleep {
   public:
    Sleep() = default;
    Sleep(const Sleep&) = delete;
    Sleep& operator=(const Sleep&) = delete;
    virtual void wake() noexcept = 0;

   protected:
    ~Sleep() = default;
  };

  // Registers a sleep while it lives. Made and destroyed without any mutex that wake() takes.
  class Asleep {
   public:
    Asleep(WaitInterrupt* interrupt, Sleep* sleep) noexcept;  // null: cannot be interrupted
    ~Asleep();
    Asleep(const Asleep&) = delete;
    Asleep& operator=(const Asleep&) = delete;

   private:
    WaitInterrupt* const interrupt_;
    Sleep* before_ = nullptr;
  };

  void interrupt() noexcept;  // sticky until clear()
  void clear() noexcept { (void)flag_.exchange(false, std::memory_order_acq_rel); }
  [[nodiscard]] bool interrupted() const noexcept { return flag_.load(std::memory_order_acquire); }

  // Of the calling thread's innermost InterruptScope; null outside of any.
  [[nodiscard]] static WaitInterrupt* current() noexcept;

 private:
  std::atomic<bool> flag_{false};
  Mutex mutex_{LatchRank::kInterrupt};  // taken before whatever wake() takes
  Sleep* sleep_ STRATA_GUARDED_BY(mutex_) = nullptr;
};

[[nodiscard]] inline bool is_interrupted_now(const WaitInterrupt* interrupt) noexcept {
  return interrupt != nullptr && interrupt->interrupted();
}

class InterruptScope {
 public:
  explicit InterruptScope(WaitInterrupt* interrupt) noexcept;
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

 private:
  WaitInterrupt* const before_;
};

// The sleep of a thread on a condition variable.
class CondVarSleep final : public WaitInterrupt::Sleep {
 public:
  CondVarSleep(Mutex* mutex, CondVar* changed) noexcept : mutex_(mutex), changed_(changed) {}
  void wake() noexcept override {
    { const MutexLock lock(*mutex_); }  // whoever has looked at the flag sleeps by now
    changed_->notify_all();
  }

 private:
  Mutex* const mutex_;
  CondVar* const changed_;
};

}  // namespace strata
