// Copies of pages that wait to be registered in the remote pool, and which pages somebody works on
// there. Thread-safe. Blocks for a short mutex only, except begin() and wait_for_space().
//   SGP1  One operation of a page is under way: between begin() and end() nobody else begins one,
//         and no copy of it is taken.
//   SGP2  begin() makes the page's copy void: it is about to be written, and the copy, registered
//         later, would bring back what the page was.
//   SGP3  Memory is bounded: what has no room is not kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/aligned.h"
#include "base/ids.h"
#include "base/latch.h"

namespace strata::clients {

class StagedPages {
 public:
  explicit StagedPages(uint32_t pages_max);
  StagedPages(const StagedPages&) = delete;
  StagedPages& operator=(const StagedPages&) = delete;

  // Copies the page, as storage has it. `out_of_use`: nobody uses it now. False: there is no room.
  // The caller knows that nobody writes this page meanwhile.
  bool add(PageId id, const char* page, bool out_of_use) noexcept;
  [[nodiscard]] bool empty() const;

  // Different pages, in the order of their ids. Blocks while one of them is worked on.
  void begin(const PageId* ids, uint32_t count);
  bool try_begin(PageId id);  // keeps its copy
  void end(const PageId* ids, uint32_t count);

  struct Taken {
    PageId id;
    bool out_of_use = false;
  };
  // Moves up to `max` copies to `pages`, the oldest first, of pages nobody works on; begins those.
  std::vector<Taken> take(uint32_t max, char* pages);

  void clear();
  // No copy of the space is left, and nobody works on one of its pages. Blocks.
  void clear_space(SpaceId space);

 private:
  struct Copy {
    uint32_t buffer = 0;
    bool out_of_use = false;
    uint64_t order = 0;
  };
  void drop(uint64_t page) STRATA_REQUIRES(mutex_);
  [[nodiscard]] char* at(uint32_t buffer) const noexcept;

  const AlignedBytes bytes_;
  mutable Mutex mutex_{LatchRank::kLeaf};
  CondVar ended_;
  std::vector<uint32_t> free_ STRATA_GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, Copy> copies_ STRATA_GUARDED_BY(mutex_);  // by packed page
  std::unordered_set<uint64_t> busy_ STRATA_GUARDED_BY(mutex_);
  uint64_t order_ STRATA_GUARDED_BY(mutex_) = 0;
};

}  // namespace strata::clients
