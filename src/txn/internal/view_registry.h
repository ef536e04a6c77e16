// Open views of one node: an array of words, 0 = free, else a lower bound of the view's snapshot,
// then the snapshot (T8). All accesses are seq_cst: an opener stores its slot and then reads the
// clock, min() reads the clock and then the slots; so a view that min() misses has a snapshot at
// least as large.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>

#include "base/ids.h"

namespace strata::txn_internal {

class ViewRegistry {
 public:
  static constexpr uint32_t kSlots = 1u << 14;

  // Takes a free slot, `hint` if possible. False if none is left.
  bool acquire(uint32_t hint, Cts lower_bound, uint32_t* slot) noexcept {
    if (try_slot(hint % kSlots, lower_bound)) {
      *slot = hint % kSlots;
      return true;
    }
    for (uint32_t i = 0; i < kSlots; ++i) {
      if (!try_slot(i, lower_bound)) continue;
      *slot = i;
      return true;
    }
    return false;
  }
  void set(uint32_t slot, Cts snapshot) noexcept { slots_[slot].store(snapshot.value); }
  void release(uint32_t slot) noexcept { slots_[slot].store(0); }
  // `now`: the clock, read before the call.
  [[nodiscard]] Cts min(Cts now) const noexcept {
    const uint32_t end = end_.load();
    uint64_t least = now.value;
    for (uint32_t i = 0; i < end; ++i) {
      const uint64_t v = slots_[i].load();
      if (v != 0) least = std::min(least, v);
    }
    return Cts{least};
  }

 private:
  bool try_slot(uint32_t i, Cts lower_bound) noexcept {
    // The end is raised first: a slot in use is never beyond it.
    uint32_t end = end_.load();
    while (end <= i && !end_.compare_exchange_weak(end, i + 1)) {
    }
    uint64_t free = 0;
    return slots_[i].load() == 0 && slots_[i].compare_exchange_strong(free, lower_bound.value);
  }
  std::unique_ptr<std::atomic<uint64_t>[]> slots_ =
      std::make_unique<std::atomic<uint64_t>[]>(kSlots);
  std::atomic<uint32_t> end_{0};
};

}  // namespace strata::txn_internal
