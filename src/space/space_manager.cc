// Life of a space: create, open, drop; header slots; epochs.
#include "space/space_manager.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

#include "base/assert.h"
#include "base/clock.h"
#include "space/internal/space_state.h"

namespace strata {
namespace {

constexpr uint64_t kDropWaitUsMax = 30000000;
constexpr uint32_t kFirstRoomPages = kPagesPerExtent;

std::string name_of(SpaceId space) { return "space " + std::to_string(space.value); }

void store_value(Mtr* mtr, MtrPage* page, uint16_t offset, uint64_t value, size_t bytes) {
  char raw[8];
  store_u64(raw, value);
  mtr->write(page, offset, Bytes(raw, bytes));
}

constexpr uint16_t slot_offset(HeaderSlot slot) noexcept {
  return static_cast<uint16_t>(kHeaderSlotsOffset + 8 * static_cast<uint32_t>(slot));
}

// Page 0 of an open space, checked.
StatusOr<MtrPage*> fix_header(Mtr* mtr, SpaceId space, LatchMode mode) {
  STRATA_ASSIGN_OR_RETURN(MtrPage * page, mtr->fix(PageId{space.value, 0}, mode));
  const char* bytes = page->page();
  if (header_of(bytes)->type != static_cast<uint8_t>(PageType::kSpaceHeader) ||
      load_u32(bytes + kHeaderMagicOffset) != kSpaceMagic ||
      load_u32(bytes + kHeaderSpaceOffset) != space.value)
    return error_corruption(name_of(space) + ": page 0 is not this space's header");
  return page;
}

}  // namespace

SpaceManager::SpaceManager(BufferPool* pool, Log* log, NodeId node, SpaceOptions options)
    : impl_(std::make_unique<Impl>(pool, log, node, options)) {
  STRATA_ASSERT(options.reuse == nullptr || options.shared);
}
SpaceManager::~SpaceManager() {
  if (impl_->joined) impl_->options.reuse->leave(impl_->node);
}

Status SpaceManager::join_reuse() {
  if (impl_->options.reuse == nullptr || impl_->joined) return ok_status();
  STRATA_RETURN_IF_ERROR(impl_->options.reuse->join(impl_->node, impl_.get()));
  impl_->joined = true;
  return ok_status();
}

StatusOr<space_internal::SpaceState*> SpaceManager::Impl::live(SpaceId space) const {
  SpaceState* state = table.find_live(space);
  if (state == nullptr) return error_not_found();
  return state;
}

Status SpaceManager::create(SpaceId space) {
  Impl::SpaceState* state = impl_->table.find_or_add(space);
  STRATA_ASSERT(!state->live.load(std::memory_order_acquire));
  PageSource* source = impl_->pool->source();
  STRATA_RETURN_IF_ERROR(source->create_space(space));
  STRATA_RETURN_IF_ERROR(source->grow_space(space, kFirstRoomPages));

  Mtr mtr(impl_->pool, impl_->log);
  // A TRUNCATE may need it, and it is little; so with what else makes a table.
  STRATA_RETURN_IF_ERROR(mtr.begin_write_to_free());
  STRATA_ASSIGN_OR_RETURN(MtrPage * header, mtr.fix_new(PageId{space.value, 0}));
  STRATA_ASSIGN_OR_RETURN(MtrPage * map, mtr.fix_new(PageId{space.value, map_page_number(0)}));
  mtr.init_plain(header, PageType::kSpaceHeader, IndexId{}, 0);
  store_value(&mtr, header, kHeaderMagicOffset, kSpaceMagic, 4);
  store_value(&mtr, header, kHeaderSpaceOffset, space.value, 4);
  mtr.init_plain(map, PageType::kSpaceMap, IndexId{}, 0);
  store_value(&mtr, map, extent_offset(0), impl_->node.value, 1);
  impl_->write_word(&mtr, map, 0, kExtentUsedOffset, 0b11);  // header and map
  mtr.publish();

  const MutexLock lock(state->latch);
  state->first_free_extent.assign(1, 0);
  state->high_water = 2;
  state->free_below = 0;
  state->own_free = kFirstRoomPages - 2;
  state->room = kFirstRoomPages;
  state->live.store(true, std::memory_order_release);
  return ok_status();
}

Status SpaceManager::open(SpaceId space, bool reclaim_pending) {
  STRATA_ASSIGN_OR_RETURN(const bool exists, impl_->pool->source()->space_exists(space));
  if (!exists) return error_not_found(name_of(space) + " has no file");
  {
    Mtr mtr(impl_->pool, impl_->log);
    STRATA_RETURN_IF_ERROR(mtr.fix_if_written(PageId{space.value, 0}, LatchMode::kShared).status());
    STRATA_RETURN_IF_ERROR(fix_header(&mtr, space, LatchMode::kShared).status());
  }
  Impl::SpaceState* state = impl_->table.find_or_add(space);
  STRATA_RETURN_IF_ERROR(impl_->load(state, reclaim_pending));
  state->live.store(true, std::memory_order_release);
  return ok_status();
}

Status SpaceManager::drop(SpaceId space) {
  Impl::SpaceState* state = impl_->table.find_live(space);
  if (state == nullptr) return error_not_found();
  state->live.store(false, std::memory_order_release);
  // Operations that saw the space alive are inside an epoch; after it nobody starts on its pages.
  const uint64_t mark = impl_->epochs.retire_mark();
  const uint64_t deadline = monotonic_us() + kDropWaitUsMax;
  for (uint64_t wait_us = 10;; wait_us = std::min<uint64_t>(2 * wait_us, 1000)) {
    impl_->epochs.advance(mark);
    if (impl_->epochs.passed(mark)) break;
    if (monotonic_us() > deadline)
      return error_busy(name_of(space) + " is dropped but still in use");
    std::this_thread::sleep_for(std::chrono::microseconds(wait_us));
  }
  {
    const MutexLock lock(impl_->retired_latch);
    std::erase_if(impl_->retired, [space](const auto& r) { return r.page.space == space.value; });
    for (auto& waiting : impl_->waiting)
      std::erase_if(waiting.pages, [space](PageId page) { return page.space == space.value; });
  }
  impl_->pool->discard_space(space);
  const MutexLock lock(state->latch);
  state->first_free_extent = {};
  return ok_status();
}

Status SpaceManager::delete_file(SpaceId space) {
  STRATA_ASSERT(!is_live(space));
  return impl_->pool->source()->delete_space(space);
}

bool SpaceManager::is_live(SpaceId space) const { return impl_->table.find_live(space) != nullptr; }

StatusOr<uint64_t> SpaceManager::read_slot(SpaceId space, HeaderSlot slot) {
  const EpochGuard epoch(this);
  STRATA_RETURN_IF_ERROR(impl_->live(space).status());
  Mtr mtr(impl_->pool, impl_->log);
  STRATA_ASSIGN_OR_RETURN(MtrPage * header, fix_header(&mtr, space, LatchMode::kShared));
  return load_u64(header->page() + slot_offset(slot));
}

StatusOr<uint64_t> SpaceManager::read_slot_in(Mtr* mtr, SpaceId space, HeaderSlot slot) {
  const EpochGuard epoch(this);
  STRATA_RETURN_IF_ERROR(impl_->live(space).status());
  STRATA_ASSIGN_OR_RETURN(MtrPage * header, fix_header(mtr, space, LatchMode::kExclusive));
  return load_u64(header->page() + slot_offset(slot));
}

Status SpaceManager::write_slot(Mtr* mtr, SpaceId space, HeaderSlot slot, uint64_t value) {
  const EpochGuard epoch(this);
  STRATA_RETURN_IF_ERROR(impl_->live(space).status());
  STRATA_ASSIGN_OR_RETURN(MtrPage * header, fix_header(mtr, space, LatchMode::kExclusive));
  if (load_u64(header->page() + slot_offset(slot)) != value)
    store_value(mtr, header, slot_offset(slot), value, 8);
  return ok_status();
}

Status SpaceManager::raise_slot(Mtr* mtr, SpaceId space, HeaderSlot slot, uint64_t value) {
  const EpochGuard epoch(this);
  STRATA_RETURN_IF_ERROR(impl_->live(space).status());
  STRATA_ASSIGN_OR_RETURN(MtrPage * header, fix_header(mtr, space, LatchMode::kExclusive));
  if (load_u64(header->page() + slot_offset(slot)) < value)
    store_value(mtr, header, slot_offset(slot), value, 8);
  return ok_status();
}

std::atomic<uint64_t>* SpaceManager::page_hint(PageId page) noexcept {
  return &impl_->hints[mix64(page.packed()) % kPageHints];
}
NodeId SpaceManager::node() const noexcept { return impl_->node; }

SpaceManager::EpochGuard::EpochGuard(SpaceManager* manager) noexcept
    : manager_(manager), slot_(manager->impl_->epochs.enter()) {}
SpaceManager::EpochGuard::~EpochGuard() { manager_->impl_->epochs.leave(slot_); }

}  // namespace strata
