// One partition's recency order: a young and an old list with midpoint insertion. Internal to
// bufpool. Guarded by the partition's mutex (STRATA_GUARDED_BY there), but for needs_touch() and
// counts.
//   LU1  A page enters at the head of the old list. It becomes young when it is used again later
//        than old_time_us after its first use; so one scan cannot push the working set out.
//   LU2  The old list holds at least old_percent of the partition's pages: the young tail ages into
//        it.
//   LU3  A young page is moved to the front again only once a quarter of the young list has passed
//        it: hits on hot pages take no mutex.
#pragma once

#include <cstdint>

#include "bufpool/frame.h"

namespace strata {

class Lru {
 public:
  void configure(Frame* frames, uint64_t old_time_us, uint32_t old_percent) noexcept;
  void insert(Frame* frame, uint64_t now_us) noexcept;
  void remove(Frame* frame) noexcept;
  void make_young(Frame* frame) noexcept;
  // No mutex: reads hints only. A wrong answer costs a little recency, nothing else.
  [[nodiscard]] bool needs_touch(const Frame* frame) const noexcept;

  // Walk from the coldest page up: coldest(), then warmer(i) until kNoFrame.
  [[nodiscard]] uint32_t coldest() const noexcept {
    return old_.tail != kNoFrame ? old_.tail : young_.tail;
  }
  [[nodiscard]] uint32_t warmer(uint32_t index) const noexcept;
  [[nodiscard]] uint32_t young_count() const noexcept {
    return young_.count.load(std::memory_order_relaxed);
  }
  [[nodiscard]] uint32_t old_count() const noexcept {
    return old_.count.load(std::memory_order_relaxed);
  }

 private:
  struct List {
    uint32_t head = kNoFrame;
    uint32_t tail = kNoFrame;
    std::atomic<uint32_t> count{0};
  };
  void push_front(List* list, Frame* frame) noexcept;
  void unlink(List* list, Frame* frame) noexcept;
  void rebalance() noexcept;

  Frame* frames_ = nullptr;
  uint64_t old_time_us_ = 0;
  uint32_t old_percent_ = 0;
  List young_;
  List old_;
  std::atomic<uint32_t> young_clock_{0};  // counts entries into the young list
};

// Monotonic, a few milliseconds coarse, a few nanoseconds cheap.
uint64_t coarse_now_us() noexcept;

}  // namespace strata
