// Uses of base/latch.h that Clang's analysis must reject, one per value of MISUSE; with 0 there is
// none of them and it must have nothing to say. Compiled by tools/check_locks.py, never run.
#include "base/latch.h"

namespace strata {

class Counter {
 public:
  void add() STRATA_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    add_locked();
  }
  void wait_for_one() {
    MutexLock lock(mutex_);
    changed_.wait(lock, [this]() STRATA_REQUIRES(mutex_) { return value_ != 0; });
  }
  void pause_locked() STRATA_REQUIRES(mutex_) {
    { const MutexUnlock free(mutex_); }
    ++value_;
  }
  int value_if_free() {
    if (!mutex_.try_lock()) return -1;
    const MutexLock lock(mutex_, std::adopt_lock);
    return value_;
  }
  int shared() {
    const SharedLatch latch(latch_);
    return latched_;
  }
  void set_shared(int value) {
    const ExclusiveLatch latch(latch_);
    latched_ = value;
  }

#if MISUSE == 1
  int without_the_mutex() { return value_; }
#elif MISUSE == 2
  void without_what_is_required() { add_locked(); }
#elif MISUSE == 3
  void after_unlock() {
    MutexLock lock(mutex_);
    lock.unlock();
    ++value_;
  }
#elif MISUSE == 4
  void twice() {
    const MutexLock lock(mutex_);
    add();
  }
#elif MISUSE == 5
  void write_under_a_shared_latch() {
    const SharedLatch latch(latch_);
    latched_ = 1;
  }
#elif MISUSE == 6
  void wait_without() { changed_.wait(mutex_); }
#elif MISUSE == 7
  void never_released() { mutex_.lock(); }
#elif MISUSE == 8
  void wait_for_what_is_not_declared() {
    MutexLock lock(mutex_);
    changed_.wait(lock, [this] { return value_ != 0; });
  }
#elif MISUSE == 9
  int the_other_mutex() {
    const MutexLock lock(other_);
    return value_;
  }
#endif

 private:
  void add_locked() STRATA_REQUIRES(mutex_) {
    ++value_;
    changed_.notify_all();
  }

  Mutex mutex_{LatchRank::kLeaf};
  [[maybe_unused]] Mutex other_{LatchRank::kLeaf};
  CondVar changed_;
  int value_ STRATA_GUARDED_BY(mutex_) = 0;
  RwLatch latch_;
  int latched_ STRATA_GUARDED_BY(latch_) = 0;
};

}  // namespace strata
