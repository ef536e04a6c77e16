// Keys that somebody works on, one at a time: instead of a latch held over I/O. Thread-safe.
//   BS1  A key has one holder. All keys of one hold are taken at once, so holders never wait for
//        each other in a circle.
#pragma once

#include <unordered_set>

#include "base/latch.h"

namespace strata::storenode {

template <class Key>
class BusySet {
 public:
  class Hold {
   public:
    // Blocks until nobody holds any of keys[0..count), which stay where they are.
    Hold(BusySet* set, const Key* keys, size_t count) : set_(set), keys_(keys), count_(count) {
      MutexLock lock(set_->mutex_);
      set_->freed_.wait(lock, [this]() STRATA_REQUIRES(set_->mutex_) { return free(); });
      set_->busy_.insert(keys_, keys_ + count_);
    }
    ~Hold() {
      {
        const MutexLock lock(set_->mutex_);
        for (size_t i = 0; i < count_; ++i) set_->busy_.erase(keys_[i]);
      }
      set_->freed_.notify_all();
    }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

   private:
    [[nodiscard]] bool free() const STRATA_REQUIRES(set_->mutex_) {
      for (size_t i = 0; i < count_; ++i)
        if (set_->busy_.count(keys_[i]) != 0) return false;
      return true;
    }
    BusySet* const set_;
    const Key* const keys_;
    const size_t count_;
  };

 private:
  Mutex mutex_{LatchRank::kLeaf};
  CondVar freed_;
  std::unordered_set<Key> busy_ STRATA_GUARDED_BY(mutex_);
};

}  // namespace strata::storenode
