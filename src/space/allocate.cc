// Allocation of pages: map pages, room in the file, retired pages.
#include <algorithm>
#include <bit>
#include <map>
#include <string>

#include "base/assert.h"
#include "base/page_name.h"
#include "space/internal/space_state.h"
#include "space/space_manager.h"

namespace strata {
namespace {

// Room kept beyond what a caller asks for: several threads allocate at once (SP4), and a thread may
// need a new map page besides.
constexpr uint32_t kRoomSlackPages = 32;
constexpr uint32_t kGrowPagesMax = 4096;

bool may_allocate(const ExtentEntry& extent, NodeId node) noexcept {  // SP1
  return (extent.owner == 0 || extent.owner == node.value) && extent.used != ~uint64_t{0};
}

}  // namespace

void SpaceManager::Impl::write_word(Mtr* mtr, MtrPage* map_page, uint32_t extent,
                                    uint16_t word_offset, uint64_t value) const {
  char raw[8];
  store_u64(raw, value);
  mtr->write(map_page, static_cast<uint16_t>(extent_offset(extent) + word_offset), Bytes(raw, 8));
}

StatusOr<MtrPage*> SpaceManager::Impl::fix_map(Mtr* mtr, SpaceState* space, uint32_t map,
                                               LatchMode mode) const {
  const PageId id{space->id.value, map_page_number(map)};
  STRATA_ASSIGN_OR_RETURN(MtrPage * page, mtr->fix(id, mode));
  if (header_of(page->page())->type != static_cast<uint8_t>(PageType::kSpaceMap))
    return error_corruption(name_of(id) + " is not an allocation map");
  return page;
}

StatusOr<MtrPage*> SpaceManager::Impl::add_map(Mtr* mtr, SpaceState* space, uint32_t map) const {
  if (map >= kMapsMax)
    return error_no_space("space " + std::to_string(space->id.value) +
                          " has reached the largest page number");
  return mtr->fix_new(PageId{space->id.value, map_page_number(map)});
}

StatusOr<uint32_t> SpaceManager::Impl::take_page(Mtr* mtr, SpaceState* space, uint32_t map,
                                                 MtrPage* map_page) const {
  uint32_t e = 0;
  {
    const MutexLock lock(space->latch);
    if (map < space->first_free_extent.size()) e = space->first_free_extent[map];
  }
  ExtentEntry extent{};
  for (; e < kExtentsPerMap; ++e) {
    extent = read_extent(map_page->page(), e);
    if (may_allocate(extent, node)) break;
  }
  uint32_t number = kNoPage;
  if (e < kExtentsPerMap) {
    const int bit = std::countr_one(extent.used);
    number = map * kPagesPerMap + e * kPagesPerExtent + static_cast<uint32_t>(bit);
    // A map that lost changes may offer a page in use. The one just at work is noticed.
    if (mtr->held(PageId{space->id.value, number}) != nullptr)
      return error_corruption(name_of(map_page->id()) + ": says that page " +
                              std::to_string(number) + " is free, but it is in use");
    // Everything that can fail comes before the first change (M1).
    STRATA_RETURN_IF_ERROR(mtr->fix_new(PageId{space->id.value, number}).status());
    if (extent.owner == 0) {
      const char owner = static_cast<char>(node.value);
      mtr->write(map_page, extent_offset(e), Bytes(&owner, 1));
    }
    write_word(mtr, map_page, e, kExtentUsedOffset, extent.used | bit_of(number));
  }
  const MutexLock lock(space->latch);
  if (map < space->first_free_extent.size()) space->first_free_extent[map] = e;
  if (number == kNoPage) return error_not_found();
  if (space->own_free > 0) --space->own_free;
  if (number < space->high_water) {
    if (space->free_below > 0) --space->free_below;
  } else {
    space->free_below += number - space->high_water;
    space->high_water = number + 1;
  }
  return number;
}

// What the maps say of extents that this node may use.
struct SpaceManager::Impl::OwnExtents {
  struct Free {
    uint32_t map;
    uint32_t extent;
  };
  uint64_t free_pages = 0;           // in extents of our own
  std::vector<uint32_t> first_free;  // by map: the first own extent that has one
  std::vector<Free> unclaimed;       // of nobody, the lowest first; no more than will be wanted
  uint32_t maps = 0;
};

Status SpaceManager::Impl::look_at_extents(SpaceState* space, OwnExtents* out) const {
  constexpr size_t kUnclaimedMax = 64;
  const auto copy = std::make_unique<char[]>(kPageBytes);
  for (uint32_t map = 0; map < kMapsMax; ++map, ++out->maps) {
    const Status status = read_map(space, map, copy.get());
    if (is_not_found(status) && map > 0) break;
    STRATA_RETURN_IF_ERROR(status);
    uint32_t first = kExtentsPerMap;
    for (uint32_t e = 0; e < kExtentsPerMap; ++e) {
      const ExtentEntry extent = read_extent(copy.get(), e);
      if (extent.owner == 0 && out->unclaimed.size() < kUnclaimedMax)
        out->unclaimed.push_back({map, e});
      if (extent.owner != node.value || extent.used == ~uint64_t{0}) continue;
      out->free_pages += 64 - static_cast<uint32_t>(std::popcount(extent.used));
      first = std::min(first, e);
    }
    out->first_free.push_back(first);
  }
  return ok_status();
}

// SP1, SP4. The room is made before the claim is: what we own has a place in the file. Others may
// claim the same extent first; then the next look says so.
Status SpaceManager::Impl::claim_extents(SpaceState* space, uint32_t pages) {
  constexpr uint32_t kClaimsMax = 16;
  constexpr int kLooksMax = 100;
  for (int look = 0; look < kLooksMax; ++look) {
    {
      const MutexLock lock(space->latch);
      if (space->own_free >= pages) return ok_status();
    }
    OwnExtents found;
    STRATA_RETURN_IF_ERROR(look_at_extents(space, &found));
    {
      const MutexLock lock(space->latch);
      // Others free pages in our extents, and make maps.
      while (space->first_free_extent.size() < found.maps) space->first_free_extent.push_back(0);
      for (uint32_t map = 0; map < found.maps; ++map)
        space->first_free_extent[map] =
            std::min(space->first_free_extent[map], found.first_free[map]);
      space->own_free = static_cast<uint32_t>(std::min<uint64_t>(found.free_pages, UINT32_MAX));
      if (found.free_pages >= pages) return ok_status();
    }
    const auto missing = static_cast<uint32_t>(pages - found.free_pages);
    // About as much again as there is in use, so that a large table is not asked for page by page.
    const uint32_t wanted = std::min((missing + kPagesPerExtent - 1) / kPagesPerExtent, kClaimsMax);
    if (found.unclaimed.empty()) {
      // allocate() makes the next map, and takes what it needs there.
      const uint64_t end = uint64_t{map_page_number(found.maps)} + pages + kPagesPerExtent;
      return pool->source()->grow_space(space->id,
                                        static_cast<uint32_t>(std::min<uint64_t>(end, kNoPage)));
    }
    if (found.unclaimed.size() > wanted) found.unclaimed.resize(wanted);
    const OwnExtents::Free last = found.unclaimed.back();
    const uint64_t end =
        uint64_t{last.map} * kPagesPerMap + uint64_t{last.extent + 1} * kPagesPerExtent;
    STRATA_RETURN_IF_ERROR(pool->source()->grow_space(
        space->id, static_cast<uint32_t>(std::min<uint64_t>(end, kNoPage))));
    for (const OwnExtents::Free& free : found.unclaimed) {
      Mtr mtr(pool, log);
      STRATA_RETURN_IF_ERROR(mtr.begin_write_to_free());
      STRATA_ASSIGN_OR_RETURN(MtrPage * map_page,
                              fix_map(&mtr, space, free.map, LatchMode::kExclusive));
      if (read_extent(map_page->page(), free.extent).owner != 0) continue;  // somebody was faster
      const char owner = static_cast<char>(node.value);
      mtr.write(map_page, extent_offset(free.extent), Bytes(&owner, 1));
      mtr.publish();
    }
  }
  return error_no_space("space " + std::to_string(space->id.value) +
                        ": other nodes took every extent that was looked at");
}

Status SpaceManager::ensure_room(SpaceId space, uint32_t pages) {
  const EpochGuard epoch(this);
  STRATA_ASSIGN_OR_RETURN(Impl::SpaceState * state, impl_->live(space));
  if (impl_->options.shared) return impl_->claim_extents(state, pages + kRoomSlackPages);
  uint64_t target = 0;
  {
    const MutexLock lock(state->latch);
    if (state->free_below >= pages + kRoomSlackPages) return ok_status();
    const uint64_t need = uint64_t{state->high_water} + pages + kRoomSlackPages;
    if (state->room >= need) return ok_status();
    target = need + std::min<uint64_t>(need / 8, kGrowPagesMax);
    target = (target + kPagesPerExtent - 1) / kPagesPerExtent * kPagesPerExtent;
    target = std::min<uint64_t>(target, kNoPage);
  }
  // Two threads may grow to about the same size at once: the source takes the larger.
  STRATA_RETURN_IF_ERROR(impl_->pool->source()->grow_space(space, static_cast<uint32_t>(target)));
  const MutexLock lock(state->latch);
  state->room = std::max(state->room, static_cast<uint32_t>(target));
  return ok_status();
}

StatusOr<uint32_t> SpaceManager::allocate(Mtr* mtr, SpaceId space) {
  const EpochGuard epoch(this);
  STRATA_ASSIGN_OR_RETURN(Impl::SpaceState * state, impl_->live(space));
  // Maps are latched in ascending order, so the search starts at the last one this mtr has already.
  uint32_t first = 0;
  uint32_t map_count = 0;
  {
    const MutexLock lock(state->latch);
    map_count = static_cast<uint32_t>(state->first_free_extent.size());
  }
  for (uint32_t map = 1; map < map_count; ++map)
    if (mtr->held(PageId{space.value, map_page_number(map)}) != nullptr) first = map;
  for (uint32_t map = first;; ++map) {
    bool exists = false;
    {
      const MutexLock lock(state->latch);
      exists = map < state->first_free_extent.size();
      // Only the last map decides under its latch whether another one is needed.
      if (exists && map + 1 < state->first_free_extent.size() &&
          state->first_free_extent[map] >= kExtentsPerMap)
        continue;
    }
    if (!exists) break;
    const PageId map_id{space.value, map_page_number(map)};
    const bool held = mtr->held(map_id) != nullptr;
    STRATA_ASSIGN_OR_RETURN(MtrPage * map_page,
                            impl_->fix_map(mtr, state, map, LatchMode::kExclusive));
    StatusOr<uint32_t> taken = impl_->take_page(mtr, state, map, map_page);
    if (taken.ok() || !is_not_found(taken.status())) return taken;
    bool last = false;
    {
      const MutexLock lock(state->latch);
      last = map + 1 == state->first_free_extent.size();
    }
    if (!last) {
      if (!held) mtr->release(map_page);
      continue;
    }
    // The last map is full and stays latched: nobody else can add the next one meanwhile. Another
    // node may have done so before.
    const uint32_t next = map + 1;
    if (impl_->options.shared) {
      const Status theirs =
          mtr->fix_if_written(PageId{space.value, map_page_number(next)}, LatchMode::kExclusive)
              .status();
      if (!theirs.ok() && !is_not_found(theirs)) return theirs;
      if (theirs.ok()) {
        const MutexLock lock(state->latch);
        if (state->first_free_extent.size() == next) state->first_free_extent.push_back(0);
        if (!held) mtr->release(map_page);
        continue;
      }
    }
    STRATA_ASSIGN_OR_RETURN(MtrPage * next_page, impl_->add_map(mtr, state, next));
    const uint32_t number = next * kPagesPerMap;  // the page before the map itself
    STRATA_RETURN_IF_ERROR(mtr->fix_new(PageId{space.value, number}).status());
    mtr->init_plain(next_page, PageType::kSpaceMap, IndexId{}, 0);
    const char owner = static_cast<char>(impl_->node.value);
    mtr->write(next_page, extent_offset(0), Bytes(&owner, 1));
    impl_->write_word(mtr, next_page, 0, kExtentUsedOffset, 0b11);
    const MutexLock lock(state->latch);
    state->first_free_extent.push_back(0);
    state->high_water = std::max(state->high_water, map_page_number(next) + 1);
    return number;
  }
  return error_internal("no allocation map");
}

Status SpaceManager::free(Mtr* mtr, MtrPage* page) {
  const EpochGuard epoch(this);
  const PageId id = page->id();
  STRATA_ASSERT(page->guard.mode() == LatchMode::kExclusive);  // SP3
  STRATA_ASSERT(!is_map_page(id.number) && id.number != 0);
  STRATA_ASSIGN_OR_RETURN(Impl::SpaceState * state, impl_->live(SpaceId{id.space}));
  const uint32_t map = map_of(id.number);
  const uint32_t e = extent_of(id.number);
  STRATA_ASSIGN_OR_RETURN(MtrPage * map_page,
                          impl_->fix_map(mtr, state, map, LatchMode::kExclusive));
  const ExtentEntry extent = read_extent(map_page->page(), e);
  const uint64_t bit = bit_of(id.number);
  if ((extent.used & bit) == 0 || (extent.pending & bit) != 0)
    return error_corruption(name_of(id) + " is freed but was not allocated");
  impl_->write_word(mtr, map_page, e, kExtentUsedOffset, extent.used & ~bit);
  const MutexLock lock(state->latch);
  if (map < state->first_free_extent.size())
    state->first_free_extent[map] = std::min(state->first_free_extent[map], e);
  ++state->free_below;
  return ok_status();
}

Status SpaceManager::retire(Mtr* mtr, MtrPage* page) {
  const EpochGuard epoch(this);
  const PageId id = page->id();
  STRATA_ASSERT(page->guard.mode() == LatchMode::kExclusive);  // SP3
  STRATA_ASSIGN_OR_RETURN(Impl::SpaceState * state, impl_->live(SpaceId{id.space}));
  const uint32_t e = extent_of(id.number);
  STRATA_ASSIGN_OR_RETURN(MtrPage * map_page,
                          impl_->fix_map(mtr, state, map_of(id.number), LatchMode::kExclusive));
  const ExtentEntry extent = read_extent(map_page->page(), e);
  const uint64_t bit = bit_of(id.number);
  if ((extent.used & bit) == 0 || (extent.pending & bit) != 0)
    return error_corruption(name_of(id) + " is unlinked but was not allocated");
  impl_->write_word(mtr, map_page, e, kExtentPendingOffset, extent.pending | bit);
  return ok_status();
}

void SpaceManager::note_retired(PageId page) {
  const MutexLock lock(impl_->retired_latch);
  impl_->retired.push_back({page, impl_->epochs.retire_mark()});
}

Status SpaceManager::Impl::free_pending(SpaceState* space, uint32_t map,
                                        const std::vector<uint32_t>& numbers) {
  std::map<uint32_t, uint64_t> bits;  // by extent
  for (const uint32_t number : numbers) bits[extent_of(number)] |= bit_of(number);
  Mtr mtr(pool, log);
  STRATA_RETURN_IF_ERROR(mtr.begin_write_to_free());  // it frees room
  STRATA_ASSIGN_OR_RETURN(MtrPage * map_page, fix_map(&mtr, space, map, LatchMode::kExclusive));
  uint32_t freed = 0;
  for (const auto& [e, mask] : bits) {
    const ExtentEntry extent = read_extent(map_page->page(), e);
    const uint64_t clear = mask & extent.used & extent.pending;
    if (clear == 0) continue;
    freed += static_cast<uint32_t>(std::popcount(clear));
    write_word(&mtr, map_page, e, kExtentUsedOffset, extent.used & ~clear);
    write_word(&mtr, map_page, e, kExtentPendingOffset, extent.pending & ~clear);
  }
  if (!bits.empty()) {
    const MutexLock lock(space->latch);
    if (map < space->first_free_extent.size())
      space->first_free_extent[map] = std::min(space->first_free_extent[map], bits.begin()->first);
    space->free_below += freed;
  }
  mtr.publish();
  return ok_status();
}

// MW13: what no operation of ours knows waits for a round of the others, begun now.
StatusOr<std::vector<PageId>> SpaceManager::Impl::take_reusable() {
  // Nobody says when other nodes' operations have ended: what was unlinked stays as it is.
  if (options.shared && options.reuse == nullptr) return std::vector<PageId>{};
  {
    const MutexLock lock(retired_latch);
    if (retired.empty() && waiting.empty()) return std::vector<PageId>{};
  }
  epochs.advance(epochs.retire_mark());
  std::vector<PageId> ready;
  {
    const MutexLock lock(retired_latch);
    const auto end = std::find_if(retired.begin(), retired.end(),
                                  [this](const auto& r) { return !epochs.passed(r.mark); });
    for (auto it = retired.begin(); it != end; ++it) ready.push_back(it->page);
    retired.erase(retired.begin(), end);
  }
  if (options.reuse == nullptr) return ready;
  if (!ready.empty()) {
    const StatusOr<uint64_t> round = options.reuse->begin_round();
    const MutexLock lock(retired_latch);
    if (!round.ok()) {  // from the beginning, the next time
      for (const PageId page : ready) retired.push_back({page, epochs.retire_mark()});
      return round.status();
    }
    waiting.push_back({*round, std::move(ready)});
  }
  std::vector<PageId> reusable;
  for (;;) {
    space_internal::WaitingPages oldest;
    {
      const MutexLock lock(retired_latch);
      if (waiting.empty()) return reusable;
      oldest = std::move(waiting.front());
      waiting.erase(waiting.begin());
    }
    const StatusOr<bool> ended = options.reuse->round_ended(oldest.round);
    if (ended.ok() && *ended) {
      reusable.insert(reusable.end(), oldest.pages.begin(), oldest.pages.end());
      continue;
    }
    const MutexLock lock(retired_latch);
    waiting.insert(waiting.begin(), std::move(oldest));
    return reusable;  // after a failure, too: what was taken out must not be lost
  }
}

Status SpaceManager::reclaim() {
  STRATA_ASSIGN_OR_RETURN(const std::vector<PageId> ready, impl_->take_reusable());
  if (ready.empty()) return ok_status();
  std::map<std::pair<uint32_t, uint32_t>, std::vector<uint32_t>> by_map;
  for (const PageId page : ready) by_map[{page.space, map_of(page.number)}].push_back(page.number);
  Status first_error;
  for (const auto& [key, numbers] : by_map) {
    const EpochGuard epoch(this);
    Impl::SpaceState* state = impl_->table.find_live(SpaceId{key.first});
    if (state == nullptr) continue;
    const Status status = impl_->free_pending(state, key.second, numbers);
    if (status.ok()) continue;
    if (first_error.ok()) first_error = status;
    // Kept for the next time.
    const MutexLock lock(impl_->retired_latch);
    const uint64_t mark = impl_->epochs.retire_mark();
    for (const uint32_t number : numbers)
      impl_->retired.push_back({PageId{key.first, number}, mark});
  }
  return first_error;
}

Status SpaceManager::Impl::read_map(SpaceState* space, uint32_t map, char* copy) const {
  Mtr mtr(pool, log);
  const PageId id{space->id.value, map_page_number(map)};
  // The first map is always there; of the others the first absent one ends the search.
  if (map > 0) STRATA_RETURN_IF_ERROR(mtr.fix_if_written(id, LatchMode::kShared).status());
  STRATA_ASSIGN_OR_RETURN(MtrPage * page, fix_map(&mtr, space, map, LatchMode::kShared));
  std::memcpy(copy, page->page(), kPageBytes);
  return ok_status();
}

Status SpaceManager::Impl::load(SpaceState* space, bool reclaim_pending) {
  const auto copy = std::make_unique<char[]>(kPageBytes);
  std::vector<uint32_t> first_free;
  uint32_t high_water = 2;
  uint64_t used_pages = 0;
  for (uint32_t map = 0; map < kMapsMax; ++map) {
    const Status status = read_map(space, map, copy.get());
    if (is_not_found(status) && map > 0) break;  // maps are made in order: no later one exists
    STRATA_RETURN_IF_ERROR(status);
    std::vector<uint32_t> pending;
    uint32_t free_extent = kExtentsPerMap;
    for (uint32_t e = 0; e < kExtentsPerMap; ++e) {
      const ExtentEntry extent = read_extent(copy.get(), e);
      const uint32_t base = map * kPagesPerMap + e * kPagesPerExtent;
      used_pages += static_cast<uint32_t>(std::popcount(extent.used));
      if (extent.used != 0)
        high_water = std::max(high_water, base + 64 - std::countl_zero(extent.used));
      if (may_allocate(extent, node)) free_extent = std::min(free_extent, e);
      if (!reclaim_pending) continue;
      for (uint64_t bits = extent.pending & extent.used; bits != 0; bits &= bits - 1)
        pending.push_back(base + static_cast<uint32_t>(std::countr_zero(bits)));
    }
    first_free.push_back(free_extent);
    {
      const MutexLock lock(space->latch);
      space->first_free_extent = first_free;
    }
    if (!pending.empty()) {
      STRATA_RETURN_IF_ERROR(free_pending(space, map, pending));
      used_pages -= pending.size();
      const MutexLock lock(space->latch);
      first_free = space->first_free_extent;
    }
  }
  const MutexLock lock(space->latch);
  space->high_water = high_water;
  space->free_below = high_water - std::min<uint64_t>(high_water, used_pages);
  space->room = 0;
  return ok_status();
}

StatusOr<bool> SpaceManager::is_allocated(PageId page) {
  const EpochGuard epoch(this);
  STRATA_ASSIGN_OR_RETURN(Impl::SpaceState * state, impl_->live(SpaceId{page.space}));
  const uint32_t map = map_of(page.number);
  {
    const MutexLock lock(state->latch);
    if (map >= state->first_free_extent.size()) return false;
  }
  Mtr mtr(impl_->pool, impl_->log);
  STRATA_ASSIGN_OR_RETURN(MtrPage * map_page, impl_->fix_map(&mtr, state, map, LatchMode::kShared));
  const ExtentEntry extent = read_extent(map_page->page(), extent_of(page.number));
  return (extent.used & ~extent.pending & bit_of(page.number)) != 0;
}

StatusOr<std::vector<uint32_t>> SpaceManager::allocated_pages(SpaceId space) {
  const EpochGuard epoch(this);
  STRATA_ASSIGN_OR_RETURN(Impl::SpaceState * state, impl_->live(space));
  uint32_t map_count = 0;
  {
    const MutexLock lock(state->latch);
    map_count = static_cast<uint32_t>(state->first_free_extent.size());
  }
  const auto copy = std::make_unique<char[]>(kPageBytes);
  std::vector<uint32_t> numbers;
  for (uint32_t map = 0; map < map_count; ++map) {
    STRATA_RETURN_IF_ERROR(impl_->read_map(state, map, copy.get()));
    for (uint32_t e = 0; e < kExtentsPerMap; ++e) {
      const ExtentEntry extent = read_extent(copy.get(), e);
      const uint32_t base = map * kPagesPerMap + e * kPagesPerExtent;
      for (uint64_t bits = extent.used & ~extent.pending; bits != 0; bits &= bits - 1) {
        const uint32_t number = base + static_cast<uint32_t>(std::countr_zero(bits));
        if (number != 0 && !is_map_page(number)) numbers.push_back(number);
      }
    }
  }
  return numbers;
}

StatusOr<uint64_t> SpaceManager::used_pages(SpaceId space) {
  STRATA_ASSIGN_OR_RETURN(const Use found, use(space));
  return found.used_pages;
}

StatusOr<SpaceManager::Use> SpaceManager::use(SpaceId space) {
  const EpochGuard epoch(this);
  STRATA_ASSIGN_OR_RETURN(Impl::SpaceState * state, impl_->live(space));
  const MutexLock lock(state->latch);
  const uint32_t free_pages = std::min(state->high_water, state->free_below);
  return Use{state->high_water - free_pages, free_pages};
}

}  // namespace strata
