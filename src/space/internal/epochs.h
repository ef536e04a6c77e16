// Epochs: tells when every operation that may still know a page number has ended (K5). Thread-safe.
//
// Readers announce themselves in one of kSlots counters, in the column of the current epoch's
// parity; several threads may share a counter. The epoch e advances to e + 1 only when the column
// of e - 1 is empty.
//   EP1  Whoever was inside when retire_mark() returned m has left once passed(m) is true.
// Proof of the distance 3: let the epoch be g when a reader's counter grows. It stands in column g
// or g - 1 (it read the epoch a little earlier; a column further back has the same parity and only
// counts as younger). An advance g -> g + 1 whose scan had already gone past that counter may still
// happen. Every later scan sees it, so g + 1 -> g + 2 happens at most once more (if the reader is
// in column g + 1 = g - 1) and g + 2 -> g + 3 does not happen before it leaves. The mark m is read
// after the reader entered, so m >= g, and passed(m) asks for an epoch of m + 3 at least.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

#include "base/ids.h"
#include "base/latch.h"

namespace strata::space_internal {

class Epochs {
 public:
  static constexpr uint32_t kSlots = 64;

  // Returns a ticket for leave().
  uint32_t enter() noexcept {
    const uint32_t slot = my_slot();
    const uint32_t column = epoch_.load(std::memory_order_seq_cst) & 1;
    // seq_cst, pairs with the scan in advance(): page numbers are read after this is visible.
    slots_[slot].count[column].fetch_add(1, std::memory_order_seq_cst);
    return slot * 2 + column;
  }
  void leave(uint32_t ticket) noexcept {
    // release, pairs with the scan: what the operation read, it read before it left.
    slots_[ticket / 2].count[ticket % 2].fetch_sub(1, std::memory_order_release);
  }
  [[nodiscard]] uint64_t retire_mark() const noexcept {
    return epoch_.load(std::memory_order_seq_cst);
  }
  [[nodiscard]] bool passed(uint64_t mark) const noexcept {
    return epoch_.load(std::memory_order_seq_cst) >= mark + 3;
  }
  // Advances as far as the readers allow, at most to mark + 3.
  void advance(uint64_t mark) noexcept {
    const MutexLock lock(latch_);
    while (!passed(mark)) {
      const uint64_t epoch = epoch_.load(std::memory_order_relaxed);
      if (!column_is_empty((epoch - 1) & 1)) return;
      epoch_.store(epoch + 1, std::memory_order_seq_cst);
    }
  }

 private:
  struct alignas(64) Slot {
    std::atomic<uint32_t> count[2] = {0, 0};
  };
  static uint32_t my_slot() noexcept {
    thread_local const uint32_t slot = static_cast<uint32_t>(
        mix64(std::hash<std::thread::id>()(std::this_thread::get_id())) % kSlots);
    return slot;
  }
  [[nodiscard]] bool column_is_empty(uint64_t column) const noexcept {
    for (const Slot& slot : slots_)
      if (slot.count[column].load(std::memory_order_seq_cst) != 0) return false;
    return true;
  }
  Slot slots_[kSlots];
  std::atomic<uint64_t> epoch_{2};
  Mutex latch_{LatchRank::kLeaf};  // one advance at a time
};

}  // namespace strata::space_internal
