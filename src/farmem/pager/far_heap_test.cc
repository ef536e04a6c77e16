// Goal: FM25. Method: random allocations against a plain bitmap; at the end everything is one
// piece.
#include "farmem/pager/far_heap.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace strata::farmem {
namespace {

constexpr uint64_t kPages = 1000;

TEST(FarHeap, NothingOverlapsAndAllComesBack) {
  for (uint64_t seed = 1; seed <= 20; seed++) {
    Rng rng(seed);
    FarHeap heap(kPages);
    std::vector<bool> taken(kPages);
    std::vector<std::pair<uint64_t, uint64_t>> live;
    for (int step = 0; step < 2000; step++) {
      if (!live.empty() && rng.one_in(2)) {
        const size_t i = rng.below(live.size());
        // All of it, or its end only, as munmap() of a part does.
        const auto [first, count] = live[i];
        const uint64_t kept = rng.one_in(4) ? rng.below(count) : 0;
        heap.give_back(first + kept, count - kept);
        std::fill_n(taken.begin() + first + kept, count - kept, false);
        live[i].second = kept;
        if (kept == 0) live.erase(live.begin() + i);
        continue;
      }
      const uint64_t count = 1 + rng.below(60);
      const uint64_t alignment = 1u << rng.below(5);
      const uint64_t first = heap.allocate(count, alignment);
      if (first == FarHeap::kNone) continue;
      ASSERT_EQ(first % alignment, 0u);
      for (uint64_t page = first; page < first + count; page++) {
        ASSERT_LT(page, kPages);
        ASSERT_FALSE(taken[page]);
        taken[page] = true;
      }
      live.emplace_back(first, count);
    }
    for (const auto& [first, count] : live) heap.give_back(first, count);
    EXPECT_EQ(heap.free_pages(), kPages);
    EXPECT_EQ(heap.allocate(kPages), 0u);
    EXPECT_EQ(heap.allocate(1), FarHeap::kNone);
  }
}

}  // namespace
}  // namespace strata::farmem
