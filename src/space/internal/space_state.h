// What a node remembers about each space between calls. Hints only: the map pages are the truth.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/ids.h"
#include "base/latch.h"
#include "space/internal/epochs.h"
#include "space/map_page.h"
#include "space/space_manager.h"

namespace strata::space_internal {

struct SpaceState {
  explicit SpaceState(SpaceId space) noexcept : id(space) {}
  const SpaceId id;
  SpaceState* next = nullptr;  // in its bucket; constant once published
  std::atomic<bool> live{false};
  Mutex latch{LatchRank::kSpaceCache};
  // Per map: no extent below this one has a page for us. kExtentsPerMap = full. The entry is
  // changed only while the map page is latched exclusively, so it cannot fall behind a free.
  std::vector<uint32_t> first_free_extent STRATA_GUARDED_BY(latch);
  // Pages [high_water, ..) have never been allocated.
  uint32_t high_water STRATA_GUARDED_BY(latch) = 0;
  uint32_t room STRATA_GUARDED_BY(latch) = 0;        // pages [0, room) have a place in the file
  uint32_t free_below STRATA_GUARDED_BY(latch) = 0;  // free pages below high_water
  // Shared spaces: free pages with a place in the file in extents of our own, at least.
  uint32_t own_free STRATA_GUARDED_BY(latch) = 0;
};

// Lock-free lookup: nodes are added under a latch and never removed (a dropped space leaves an
// empty node behind; ids are never reused).
class SpaceTable {
 public:
  ~SpaceTable() {
    for (auto& head : buckets_)
      for (SpaceState* s = head.load(std::memory_order_relaxed); s != nullptr;) {
        SpaceState* next = s->next;
        delete s;
        s = next;
      }
  }
  [[nodiscard]] SpaceState* find(SpaceId space) const noexcept {
    // acquire, pairs with the release in find_or_add().
    for (SpaceState* s = bucket(space).load(std::memory_order_acquire); s != nullptr; s = s->next)
      if (s->id == space) return s;
    return nullptr;
  }
  [[nodiscard]] SpaceState* find_live(SpaceId space) const noexcept {
    SpaceState* s = find(space);
    return s != nullptr && s->live.load(std::memory_order_acquire) ? s : nullptr;
  }
  SpaceState* find_or_add(SpaceId space) {
    const MutexLock lock(latch_);
    if (SpaceState* s = find(space)) return s;
    auto* s = new SpaceState(space);
    std::atomic<SpaceState*>& head = bucket(space);
    s->next = head.load(std::memory_order_relaxed);
    head.store(s, std::memory_order_release);
    return s;
  }

 private:
  static constexpr uint32_t kBuckets = 4096;
  std::atomic<SpaceState*>& bucket(SpaceId space) noexcept {
    return buckets_[mix64(space.value) % kBuckets];
  }
  [[nodiscard]] const std::atomic<SpaceState*>& bucket(SpaceId space) const noexcept {
    return buckets_[mix64(space.value) % kBuckets];
  }
  std::array<std::atomic<SpaceState*>, kBuckets> buckets_{};
  Mutex latch_{LatchRank::kLeaf};
};

struct RetiredPage {
  PageId page;
  uint64_t mark;  // Epochs::retire_mark() after the unlink was published
};
struct WaitingPages {
  uint64_t round = 0;  // of PageReuse
  std::vector<PageId> pages;
};

}  // namespace strata::space_internal

namespace strata {

struct SpaceManager::Impl final : OwnOperations {
  using SpaceState = space_internal::SpaceState;

  Impl(BufferPool* p, Log* l, NodeId n, SpaceOptions o) noexcept
      : pool(p), log(l), node(n), options(o) {}

  BufferPool* const pool;
  Log* const log;
  const NodeId node;
  const SpaceOptions options;
  bool joined = false;  // options.reuse; before the first operation
  space_internal::SpaceTable table;
  space_internal::Epochs epochs;
  Mutex retired_latch{LatchRank::kLeaf};
  // Marks ascending.
  std::vector<space_internal::RetiredPage> retired STRATA_GUARDED_BY(retired_latch);
  // Likewise: no operation of this node knows them any more; those of the others are asked for.
  std::vector<space_internal::WaitingPages> waiting STRATA_GUARDED_BY(retired_latch);
  std::array<std::atomic<uint64_t>, kPageHints> hints{};

  // OwnOperations: epochs tell.
  [[nodiscard]] uint64_t mark() const noexcept override { return epochs.retire_mark(); }
  bool ended(uint64_t mark) noexcept override {
    epochs.advance(mark);
    return epochs.passed(mark);
  }
  // Retired pages that nobody on this node knows any more, and nobody elsewhere.
  StatusOr<std::vector<PageId>> take_reusable();
  // Sees to `pages` free pages in extents of our own, with a place in the file.
  Status claim_extents(SpaceState* space, uint32_t pages);
  struct OwnExtents;
  Status look_at_extents(SpaceState* space, OwnExtents* out) const;

  // The state of a live space; kNotFound otherwise.
  StatusOr<SpaceState*> live(SpaceId space) const;
  // Latches a map page and checks that it is one.
  StatusOr<MtrPage*> fix_map(Mtr* mtr, SpaceState* space, uint32_t map, LatchMode mode) const;
  // Makes map `map` (the next one) in `mtr`; its page comes back latched.
  StatusOr<MtrPage*> add_map(Mtr* mtr, SpaceState* space, uint32_t map) const;
  // Takes a page out of a latched map. kNotFound: nothing there.
  StatusOr<uint32_t> take_page(Mtr* mtr, SpaceState* space, uint32_t map, MtrPage* map_page) const;
  // Writes one of the bit words of an extent.
  void write_word(Mtr* mtr, MtrPage* map_page, uint32_t extent, uint16_t word_offset,
                  uint64_t value) const;
  // Clears the pages of `numbers` (all of one map) in one mtr of its own.
  Status free_pending(SpaceState* space, uint32_t map, const std::vector<uint32_t>& numbers);
  // Reads all maps; fills the hints; frees what is pending when asked to.
  Status load(SpaceState* space, bool reclaim_pending);
  Status read_map(SpaceState* space, uint32_t map, char* copy) const;
};

}  // namespace strata
