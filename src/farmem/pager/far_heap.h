// Which pages of far memory's addresses the program has. Pure; not thread-safe.
//   FM25  What allocate() returns overlaps nothing that is allocated or not yet given back.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>

namespace strata::farmem {

class FarHeap {
 public:
  static constexpr uint64_t kNone = UINT64_MAX;
  explicit FarHeap(uint64_t pages) { add(0, pages); }
  // The first of `count` pages, a multiple of `alignment` pages; kNone: there is no such room.
  // Takes the smallest place that fits.
  uint64_t allocate(uint64_t count, uint64_t alignment = 1);
  // Pages that were allocated, all or some of what one allocate() returned.
  void give_back(uint64_t first, uint64_t count);
  [[nodiscard]] uint64_t free_pages() const noexcept { return free_pages_; }

 private:
  void add(uint64_t first, uint64_t count);
  void remove(std::map<uint64_t, uint64_t>::iterator place);
  std::map<uint64_t, uint64_t> by_address_;          // first -> count
  std::set<std::pair<uint64_t, uint64_t>> by_size_;  // count, first
  uint64_t free_pages_ = 0;
};

}  // namespace strata::farmem
