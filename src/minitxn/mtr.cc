#include "minitxn/mtr.h"

#include <algorithm>
#include <cstring>

#include "base/assert.h"
#include "base/diag.h"
#include "page/page.h"

namespace strata {
namespace {

using PageList = std::vector<std::unique_ptr<MtrPage>>;

constexpr size_t kCachedListsMax = 4;
constexpr size_t kKeptOpsBytes = 64 * 1024;
constexpr size_t kKeptGroupBytes = 512 * 1024;

// Per thread: page lists with their grown strings, so that a mini-transaction allocates nothing. A
// stack, because mini-transactions of one thread nest.
struct ThreadCache {
  std::vector<PageList> lists;
  std::string group;
  std::unique_ptr<char[]> scratch_page;
};
ThreadCache& thread_cache() {
  thread_local ThreadCache cache;
  return cache;
}

char* scratch_page() {
  std::unique_ptr<char[]>& page = thread_cache().scratch_page;
  if (page == nullptr) page = std::make_unique<char[]>(kPageBytes);
  return page.get();
}

bool is_tree_page(const char* page) noexcept {
  return header_of(page)->type == static_cast<uint8_t>(PageType::kTree);
}

#ifdef STRATA_DEBUG_CHECKS
// RD1 for images: a replay makes the bytes that are in memory now (the checksum means nothing,
// PG2).
bool replays_to(const std::string& ops, const char* page) {
  auto replayed = std::make_unique<char[]>(kPageBytes);
  std::memset(replayed.get(), 0, kPageBytes);
  if (!redo::apply_ops(replayed.get(), ops).ok()) return false;
  return std::memcmp(replayed.get() + 4, page + 4, kPageBytes - 4) == 0;
}
#endif

}  // namespace

Mtr::Mtr(BufferPool* pool, Log* log) noexcept : pool_(pool), log_(log) {
  std::vector<PageList>& lists = thread_cache().lists;
  if (lists.empty()) return;
  pages_ = std::move(lists.back());
  lists.pop_back();
}

Mtr::~Mtr() {
  STRATA_ASSERT(modified_count_ == 0);  // M4
  abandon();
  std::vector<PageList>& lists = thread_cache().lists;
  if (lists.size() < kCachedListsMax) lists.push_back(std::move(pages_));
}

Status Mtr::begin_write(uint32_t log_bytes_max, bool urgent) {
  STRATA_ASSERT(used_ == 0);  // W3: no latch may be held
  if (reserved_bytes_ >= log_bytes_max) return ok_status();
  STRATA_RETURN_IF_ERROR(log_->reserve_capacity(log_bytes_max - reserved_bytes_, urgent));
  reserved_bytes_ = log_bytes_max;
  return ok_status();
}

Status Mtr::begin_write_to_free(uint32_t log_bytes_max) {
  const Status begun = begin_write(log_bytes_max);
  return is_no_space(begun) ? begin_write(log_bytes_max, true) : begun;
}

// --- pages ---

MtrPage* Mtr::find(PageId id, LatchMode mode) noexcept {
  for (size_t i = 0; i < used_; i++) {
    if (pages_[i]->id() != id) continue;
    STRATA_ASSERT(mode == LatchMode::kShared ||
                  pages_[i]->guard.mode() == LatchMode::kExclusive);  // M5
    return pages_[i].get();
  }
  return nullptr;
}

MtrPage* Mtr::add(PageGuard guard) {
  if (used_ == pages_.size()) pages_.push_back(std::make_unique<MtrPage>());
  MtrPage* page = pages_[used_++].get();
  page->guard = std::move(guard);
  page->ops.clear();
  page->prev_llsn = 0;
  page->modified = false;
  page->restarts = false;
  return page;
}

StatusOr<MtrPage*> Mtr::fix(PageId id, LatchMode mode) {
  if (MtrPage* page = find(id, mode)) return page;
  STRATA_ASSIGN_OR_RETURN(PageGuard guard, expect_written(pool_->fix(id, mode), id));
  return add(std::move(guard));
}

StatusOr<MtrPage*> Mtr::fix_if_written(PageId id, LatchMode mode) {
  if (MtrPage* page = find(id, mode)) return page;
  STRATA_ASSIGN_OR_RETURN(PageGuard guard, pool_->fix(id, mode));
  return add(std::move(guard));
}

StatusOr<MtrPage*> Mtr::try_fix(PageId id, LatchMode mode) {
  if (MtrPage* page = find(id, mode)) return page;
  STRATA_ASSIGN_OR_RETURN(PageGuard guard, pool_->try_fix(id, mode));
  return add(std::move(guard));
}

StatusOr<MtrPage*> Mtr::fix_new(PageId id) {
  if (MtrPage* page = find(id, LatchMode::kExclusive)) return page;
  STRATA_ASSIGN_OR_RETURN(PageGuard guard, pool_->fix_new(id));
  return add(std::move(guard));
}

void Mtr::release(MtrPage* page) noexcept {
  STRATA_ASSERT(!page->modified);
  const auto used_end = pages_.begin() + static_cast<ptrdiff_t>(used_);
  const auto it = std::find_if(pages_.begin(), used_end,
                               [page](const auto& held) { return held.get() == page; });
  STRATA_ASSERT(it != used_end);
  page->guard.release();
  std::rotate(it, it + 1, used_end);
  used_--;
}

// --- changes ---

std::string* Mtr::begin_change(MtrPage* page) {
  STRATA_ASSERT(reserved_bytes_ != 0);
  STRATA_ASSERT(page->guard.mode() == LatchMode::kExclusive);
  if (!page->modified) {
    page->modified = true;
    page->prev_llsn = header_of(page->page())->llsn;
    modified_count_++;
  }
  return &page->ops;
}

// What was logged for the page before does not matter any more (RD4).
std::string* Mtr::begin_restart(MtrPage* page) {
  std::string* ops = begin_change(page);
  ops->clear();
  page->restarts = true;
  return ops;
}

// M2: the latched page is changed by the very bytes that go to the log.
void Mtr::apply(MtrPage* page, size_t ops_before) {
  const Bytes ops = Bytes(page->ops).substr(ops_before);
  const Status status = redo::apply_ops(page->guard.mutable_page(), ops);
  if (!status.ok()) diag(Severity::kError, "mtr: %s", status.ToString().c_str());
  STRATA_ASSERT(status.ok());  // M1
}

void Mtr::init_tree(MtrPage* page, const TreePageInit& init) {
  STRATA_ASSERT(init.page_id == page->id());
  redo::encode_init_tree(begin_restart(page), init);
  apply(page, 0);
}

void Mtr::init_plain(MtrPage* page, PageType type, IndexId index_id, uint64_t extra) {
  redo::encode_init_plain(begin_restart(page), page->id(), type, index_id, extra);
  apply(page, 0);
}

void Mtr::image(MtrPage* page, const char* new_bytes) {
  char* scratch = scratch_page();
  std::memcpy(scratch, new_bytes, kPageBytes);
  header_of(scratch)->space = page->id().space;
  header_of(scratch)->number = page->id().number;
  header_of(scratch)->llsn = header_of(page->page())->llsn;
  redo::encode_image(begin_restart(page), scratch);
  apply(page, 0);
}

void Mtr::insert(MtrPage* page, uint16_t slot, Bytes full_key, Bytes value) {
  std::string* ops = begin_change(page);
  const size_t before = ops->size();
  const size_t prefix_bytes = header_of(page->page())->prefix_bytes;
  STRATA_DASSERT(full_key.substr(0, prefix_bytes) == page->view().prefix());
  redo::encode_insert(ops, slot, full_key.substr(prefix_bytes), value);
  apply(page, before);
}

void Mtr::erase(MtrPage* page, uint16_t slot) {
  std::string* ops = begin_change(page);
  const size_t before = ops->size();
  redo::encode_erase(ops, slot);
  apply(page, before);
}

void Mtr::replace(MtrPage* page, uint16_t slot, Bytes value) {
  STRATA_ASSERT(slot < page->view().slot_count());
  const Bytes old_value = page->view().value(slot);
  if (old_value == value) return;
  std::string* ops = begin_change(page);
  const size_t before = ops->size();
  redo::encode_value_change(ops, slot, old_value, value);
  apply(page, before);
}

void Mtr::patch(MtrPage* page, uint16_t slot, uint16_t offset, Bytes bytes) {
  std::string* ops = begin_change(page);
  const size_t before = ops->size();
  redo::encode_patch(ops, slot, offset, bytes);
  apply(page, before);
}

void Mtr::truncate_right(MtrPage* page, uint16_t keep, Bytes high_key, uint32_t right,
                         uint16_t flags) {
  std::string* ops = begin_change(page);
  const size_t before = ops->size();
  redo::encode_truncate_right(ops, keep, high_key, right, flags);
  apply(page, before);
}

void Mtr::set_flags(MtrPage* page, uint16_t flags) {
  std::string* ops = begin_change(page);
  const size_t before = ops->size();
  redo::encode_set_flags(ops, flags);
  apply(page, before);
}

void Mtr::set_right(MtrPage* page, uint32_t right) {
  std::string* ops = begin_change(page);
  const size_t before = ops->size();
  redo::encode_set_right(ops, right);
  apply(page, before);
}

void Mtr::write(MtrPage* page, uint16_t offset, Bytes bytes) {
  std::string* ops = begin_change(page);
  const size_t before = ops->size();
  redo::encode_write(ops, offset, bytes);
  apply(page, before);
}

void Mtr::pending_delete_add(MtrPage* system_page, SpaceId space) {
  std::string* ops = begin_change(system_page);
  const size_t before = ops->size();
  redo::encode_pending_delete_add(ops, space);
  apply(system_page, before);
}

void Mtr::pending_delete_remove(MtrPage* system_page, SpaceId space) {
  std::string* ops = begin_change(system_page);
  const size_t before = ops->size();
  redo::encode_pending_delete_remove(ops, space);
  apply(system_page, before);
}

// --- publishing ---

// The image carries the page as it stands now, so it replaces the changes collected so far.
void Mtr::log_image(MtrPage* page) {
  char* bytes = page->guard.mutable_page();
  if (is_tree_page(bytes)) normalise_tree_page(bytes);
  page->ops.clear();
  redo::encode_image(&page->ops, bytes);
  page->restarts = true;
#ifdef STRATA_DEBUG_CHECKS
  STRATA_ASSERT(replays_to(page->ops, bytes));
#endif
  log_->counters().image_bytes.fetch_add(page->ops.size(), std::memory_order_relaxed);
}

void Mtr::choose_images(Lsn floor) {
  const bool needs_images = pool_->source()->needs_page_images();
  for (size_t i = 0; i < used_; i++) {
    MtrPage* page = pages_[i].get();
    if (!page->modified) continue;
    const bool too_long = page->ops.size() + redo::kSectionHeaderBytes > kPageLogBytesMax;
    const bool torn_risk = needs_images && !page->restarts && pool_->image_lsn(page->guard) < floor;
    if (too_long || torn_risk) log_image(page);
  }
}

// Lays out sections behind room for the header; returns the padded length.
uint32_t Mtr::build_group(std::string* group, Llsn* above) const {
  group->assign(sizeof(redo::GroupHeader), '\0');
  for (size_t i = 0; i < used_; i++) {
    const MtrPage& page = *pages_[i];
    if (!page.modified) continue;
    append_u32(group, page.id().space);
    append_u32(group, page.id().number);
    append_u64(group, page.prev_llsn);
    append_bytes32(group, page.ops);
    above->value = std::max(above->value, page.prev_llsn);
  }
  group->resize((group->size() + 7) / 8 * 8, '\0');
  STRATA_ASSERT(group->size() <= reserved_bytes_);  // begin_write() asked for too little
  STRATA_ASSERT(group->size() <= redo::kGroupBytesMax);
  return static_cast<uint32_t>(group->size());
}

static void seal(std::string* group, const LogReservation& r, NodeId node, size_t sections) {
  redo::GroupHeader header{};
  header.magic = redo::kGroupMagic;
  header.length = static_cast<uint32_t>(group->size());
  header.durable_delta =
      static_cast<uint32_t>(std::min<uint64_t>(r.start.value - r.durable.value, UINT32_MAX));
  header.lsn = r.start.value;
  header.llsn = r.llsn.value;
  header.node = node.value;
  header.section_count = static_cast<uint16_t>(sections);
  std::memcpy(group->data(), &header, sizeof(header));
  redo::seal_group(group->data());
}

void Mtr::finish_pages(const LogReservation& r) noexcept {
  for (size_t i = 0; i < used_; i++) {
    MtrPage& page = *pages_[i];
    if (!page.modified) continue;
    header_of(page.guard.mutable_page())->llsn = r.llsn.value;
    pool_->note_modified(page.guard, r.start, r.end, page.restarts);
    page.modified = false;
  }
  modified_count_ = 0;
}

Lsn Mtr::publish() noexcept {
  if (modified_count_ == 0) {
    abandon();
    return log_->next_lsn();
  }
  std::string& group = thread_cache().group;
  LogReservation reservation;
  for (;;) {
    const Lsn floor = log_->image_floor();
    choose_images(floor);
    Llsn above;
    const uint32_t bytes = build_group(&group, &above);
    if (log_->reserve(bytes, floor, above, &reservation)) break;
  }
  seal(&group, reservation, log_->node(), modified_count_);
  log_->copy(reservation, group);
  finish_pages(reservation);
  log_->complete(reservation);
  published_llsn_ = reservation.llsn;
  unlatch_all();
  return_unused(static_cast<uint32_t>(group.size()));
  if (group.capacity() > kKeptGroupBytes) group = std::string();
  return reservation.end;
}

void Mtr::abandon() noexcept {
  STRATA_ASSERT(modified_count_ == 0);
  unlatch_all();
  return_unused(0);
}

void Mtr::unlatch_all() noexcept {
  for (size_t i = used_; i-- > 0;) {
    MtrPage& page = *pages_[i];
    page.guard.release();
    if (page.ops.capacity() > kKeptOpsBytes) page.ops = std::string();
  }
  used_ = 0;
}

void Mtr::return_unused(uint32_t used_bytes) noexcept {
  log_->return_capacity(reserved_bytes_ - used_bytes);
  reserved_bytes_ = 0;
}

}  // namespace strata
