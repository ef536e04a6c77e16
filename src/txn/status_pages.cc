#include "txn/internal/status_pages.h"

#include "base/assert.h"
#include "base/page_name.h"
#include "page/page.h"
#include "space/map_page.h"

namespace strata::txn_internal {
namespace {

// Parent, child, one allocation map.
constexpr uint32_t kMtrBytes = 4 * Mtr::kPageLogBytesMax + Mtr::kGroupLogBytes;

uint16_t child_offset(uint64_t index) noexcept {
  return static_cast<uint16_t>(kPageHeaderBytes + index % kChildrenPerPage * 4);
}
bool is_page(const char* page, PageType type, uint64_t extra) noexcept {
  return header_of(page)->type == static_cast<uint8_t>(type) && header_of(page)->extra == extra;
}
void write_child(Mtr* mtr, MtrPage* parent, uint64_t index, uint32_t number) {
  char raw[4];
  store_u32(raw, number);
  mtr->write(parent, child_offset(index), Bytes(raw, 4));
}

}  // namespace

StatusEntry read_entry(const char* page, uint64_t sequence) noexcept {
  const char* p = page + entry_offset(sequence);
  const uint64_t word = load_u64(p);
  return StatusEntry{state_of(word), cts_of(word), UndoPtr{load_u64(p + 8)}};
}

void write_entry(Mtr* mtr, MtrPage* page, uint64_t sequence, const StatusEntry& entry) {
  char raw[kEntryBytes];
  store_u64(raw, pack_state(entry.state, entry.cts));
  store_u64(raw + 8, entry.first_undo.value);
  mtr->write(page, entry_offset(sequence), Bytes(raw, sizeof(raw)));
}

StatusPages::StatusPages(BufferPool* pool, Log* log, SpaceManager* spaces, NodeId node)
    : pool_(pool), log_(log), spaces_(spaces), node_(node) {
  for (auto& root : roots_) root.store(0, std::memory_order_relaxed);
}

Status StatusPages::initialise() {
  const SpaceId space{undo_space_of(node_)};
  STRATA_RETURN_IF_ERROR(spaces_->ensure_room(space, 1));
  Mtr mtr(pool_, log_);
  STRATA_RETURN_IF_ERROR(mtr.begin_write());
  // The header is latched first, so that naming the root in it cannot fail.
  STRATA_RETURN_IF_ERROR(mtr.fix(page_id(0), LatchMode::kExclusive).status());
  STRATA_ASSIGN_OR_RETURN(const uint32_t number, spaces_->allocate(&mtr, space));
  const StatusOr<MtrPage*> root = mtr.fix_new(page_id(number));
  STRATA_ASSERT(root.ok());  // latched by allocate()
  mtr.init_plain(*root, PageType::kStatusDirectory, IndexId{}, kRootExtra);
  const Status named = spaces_->write_slot(&mtr, space, kStatusRootSlot, number);
  STRATA_ASSERT(named.ok());
  mtr.publish();
  return ok_status();
}

// kNotFound unless the page is the wanted one (SD1).
StatusOr<PageGuard> StatusPages::fix_checked(PageId id, PageType type, uint64_t extra) const {
  STRATA_ASSIGN_OR_RETURN(PageGuard guard, expect_written(pool_->fix(id, LatchMode::kShared), id));
  if (!is_page(guard.page(), type, extra)) return error_not_found();
  return guard;
}

StatusOr<uint32_t> StatusPages::child(PageId directory, uint64_t extra, uint64_t index) const {
  STRATA_ASSIGN_OR_RETURN(const PageGuard guard,
                          fix_checked(directory, PageType::kStatusDirectory, extra));
  const uint32_t number = load_u32(guard.page() + child_offset(index));
  if (number == 0) return error_not_found();
  return number;
}

StatusOr<uint64_t> StatusPages::number_in_header(NodeId node, HeaderSlot slot) {
  const PageId header{undo_space_of(node), 0};
  const StatusOr<PageGuard> guard = pool_->fix(header, LatchMode::kShared);
  // Not kNotFound: that would mean "truncated, therefore visible".
  if (is_not_found(guard.status()))
    return error_corruption("node " + std::to_string(node.value) + " has no undo space");
  STRATA_RETURN_IF_ERROR(guard.status());
  return load_u64(guard->page() + kHeaderSlotsOffset + 8 * static_cast<uint32_t>(slot));
}

StatusOr<uint32_t> StatusPages::root_of(NodeId node) {
  std::atomic<uint32_t>& cached = roots_[node.value];
  if (const uint32_t number = cached.load(std::memory_order_relaxed); number != 0) return number;
  STRATA_ASSIGN_OR_RETURN(const uint64_t told, number_in_header(node, kStatusRootSlot));
  const auto number = static_cast<uint32_t>(told);
  if (number == 0)
    return error_corruption(name_of(PageId{undo_space_of(node), 0}) +
                            " names no transaction status directory");
  cached.store(number, std::memory_order_relaxed);
  return number;
}

StatusOr<uint32_t> StatusPages::walk(NodeId node, uint64_t chunk) {
  const uint32_t space = undo_space_of(node);
  const uint64_t leaf_index = chunk / kChildrenPerPage;
  STRATA_ASSIGN_OR_RETURN(const uint32_t root, root_of(node));
  STRATA_ASSIGN_OR_RETURN(const uint32_t leaf, child(PageId{space, root}, kRootExtra, leaf_index));
  return child(PageId{space, leaf}, leaf_index, chunk);
}

Status StatusPages::open(uint64_t first, uint64_t* end) {
  std::deque<uint32_t> found;
  for (;;) {
    const StatusOr<uint32_t> page = walk(node_, first + found.size());
    if (is_not_found(page.status())) break;
    STRATA_RETURN_IF_ERROR(page.status());
    found.push_back(*page);
  }
  *end = first + found.size();
  // Finished chunks that a crash kept from being truncated.
  while (first > 0) {
    const StatusOr<uint32_t> page = walk(node_, first - 1);
    if (is_not_found(page.status())) break;
    STRATA_RETURN_IF_ERROR(page.status());
    found.push_front(*page);
    --first;
  }
  const MutexLock lock(mutex_);
  first_chunk_ = first;
  pages_ = std::move(found);
  return ok_status();
}

Status StatusPages::add_child(PageId parent, uint64_t parent_extra, uint64_t index, PageType type,
                              uint64_t extra, uint32_t* number) {
  const SpaceId space{parent.space};
  STRATA_RETURN_IF_ERROR(spaces_->ensure_room(space, 1));
  Mtr mtr(pool_, log_);
  STRATA_RETURN_IF_ERROR(
      mtr.begin_write_to_free(kMtrBytes));  // a delete may need it, and it is little
  STRATA_ASSIGN_OR_RETURN(MtrPage * directory, mtr.fix(parent, LatchMode::kExclusive));
  if (!is_page(directory->page(), PageType::kStatusDirectory, parent_extra))
    return error_corruption(name_of(parent) + " is not the status directory expected");
  if (load_u32(directory->page() + child_offset(index)) != 0)
    return error_no_space("transaction status directory is full: a transaction is too old");
  STRATA_ASSIGN_OR_RETURN(*number, spaces_->allocate(&mtr, space));
  const StatusOr<MtrPage*> page = mtr.fix_new(PageId{space.value, *number});
  STRATA_ASSERT(page.ok());  // latched by allocate()
  mtr.init_plain(*page, type, IndexId{}, extra);
  write_child(&mtr, directory, index, *number);
  mtr.publish();
  return ok_status();
}

Status StatusPages::extend(uint64_t chunk) {
  const uint64_t leaf_index = chunk / kChildrenPerPage;
  STRATA_ASSIGN_OR_RETURN(const uint32_t root, root_of(node_));
  uint32_t leaf = 0;
  const StatusOr<uint32_t> existing = child(page_id(root), kRootExtra, leaf_index);
  if (existing.ok()) {
    leaf = *existing;
  } else if (is_not_found(existing.status())) {
    STRATA_RETURN_IF_ERROR(add_child(page_id(root), kRootExtra, leaf_index,
                                     PageType::kStatusDirectory, leaf_index, &leaf));
  } else {
    return existing.status();
  }
  uint32_t page = 0;
  STRATA_RETURN_IF_ERROR(
      add_child(page_id(leaf), leaf_index, chunk, PageType::kStatus, chunk, &page));
  const MutexLock lock(mutex_);
  if (pages_.empty()) first_chunk_ = chunk;
  STRATA_ASSERT(chunk == first_chunk_ + pages_.size());  // SD3
  pages_.push_back(page);
  return ok_status();
}

Status StatusPages::make_group(uint64_t first_chunk) {
  for (uint64_t chunk = first_chunk; chunk < first_chunk + kStripes; ++chunk)
    if (page_of(chunk) == kNoPage) STRATA_RETURN_IF_ERROR(extend(chunk));
  return ok_status();
}

uint32_t StatusPages::page_of(uint64_t chunk) const {
  const MutexLock lock(mutex_);
  if (chunk < first_chunk_ || chunk - first_chunk_ >= pages_.size()) return kNoPage;
  return pages_[chunk - first_chunk_];
}

StatusOr<MtrPage*> StatusPages::fix(Mtr* mtr, uint32_t page, uint64_t sequence) const {
  STRATA_ASSERT(page != kNoPage);
  STRATA_ASSIGN_OR_RETURN(MtrPage * fixed, mtr->fix(page_id(page), LatchMode::kExclusive));
  if (!is_page(fixed->page(), PageType::kStatus, chunk_of(sequence)))
    return error_corruption(name_of(page_id(page)) + " is not the status page expected");
  return fixed;
}

StatusOr<StatusEntry> StatusPages::read(NodeId node, uint64_t sequence) {
  const uint64_t chunk = chunk_of(sequence);
  uint32_t number = kNoPage;
  if (node == node_) number = page_of(chunk);
  if (number == kNoPage) {
    STRATA_ASSIGN_OR_RETURN(number, walk(node, chunk));
  }
  STRATA_ASSIGN_OR_RETURN(const PageGuard guard, fix_checked(PageId{undo_space_of(node), number},
                                                             PageType::kStatus, chunk));
  return read_entry(guard.page(), sequence);
}

// False: the node makes its space, or an attempt to do so has failed.
StatusOr<bool> StatusPages::has_begun(NodeId node) {
  const StatusOr<PageGuard> header = pool_->fix(PageId{undo_space_of(node), 0}, LatchMode::kShared);
  if (is_not_found(header.status())) return false;
  STRATA_RETURN_IF_ERROR(header.status());
  const uint32_t offset = kHeaderSlotsOffset + 8 * static_cast<uint32_t>(kStatusRootSlot);
  return load_u64(header->page() + offset) != 0;
}

Status StatusPages::visit_chunk(NodeId node, uint64_t chunk, const VisitEntry& visit) {
  STRATA_ASSIGN_OR_RETURN(const uint32_t number, walk(node, chunk));
  STRATA_ASSIGN_OR_RETURN(const PageGuard guard, fix_checked(PageId{undo_space_of(node), number},
                                                             PageType::kStatus, chunk));
  for (uint32_t entry = 0; entry < kEntriesPerPage; ++entry) {
    const uint64_t sequence = sequence_at(chunk, entry);
    visit(sequence, read_entry(guard.page(), sequence));
  }
  return ok_status();
}

// A node writes its bound before it frees what is below: a chunk that is not there, and not below
// the bound that is read afterwards, is behind the last one.
Status StatusPages::for_each_entry(NodeId node, const VisitEntry& visit) {
  STRATA_ASSIGN_OR_RETURN(const bool begun, has_begun(node));
  if (!begun) return ok_status();
  uint64_t end = 0;  // the first one that was not there
  for (bool again = false;; again = true) {
    STRATA_ASSIGN_OR_RETURN(const uint64_t bound, number_in_header(node, kVisibleBelowSlot));
    if (again && group_chunk_of(bound) <= end) return ok_status();
    end = group_chunk_of(bound);
    Status visited;
    while ((visited = visit_chunk(node, end, visit)).ok()) ++end;
    if (!is_not_found(visited)) return visited;
  }
}

Status StatusPages::remove_child(PageId parent, uint64_t parent_extra, uint64_t index,
                                 PageId child) {
  Mtr mtr(pool_, log_);
  STRATA_RETURN_IF_ERROR(mtr.begin_write(kMtrBytes, true));
  STRATA_ASSIGN_OR_RETURN(MtrPage * directory, mtr.fix(parent, LatchMode::kExclusive));
  if (!is_page(directory->page(), PageType::kStatusDirectory, parent_extra))
    return error_corruption(name_of(parent) + " is not the status directory expected");
  STRATA_ASSIGN_OR_RETURN(MtrPage * page, mtr.fix(child, LatchMode::kExclusive));
  STRATA_RETURN_IF_ERROR(spaces_->free(&mtr, page));
  write_child(&mtr, directory, index, 0);
  mtr.publish();
  return ok_status();
}

Status StatusPages::truncate_below(uint64_t chunk) {
  STRATA_ASSIGN_OR_RETURN(const uint32_t root, root_of(node_));
  for (;;) {
    uint64_t oldest = 0;
    uint32_t page = 0;
    {
      const MutexLock lock(mutex_);
      if (pages_.empty() || first_chunk_ >= chunk) return ok_status();
      oldest = first_chunk_;
      page = pages_.front();
    }
    const uint64_t leaf_index = oldest / kChildrenPerPage;
    STRATA_ASSIGN_OR_RETURN(const uint32_t leaf, child(page_id(root), kRootExtra, leaf_index));
    STRATA_RETURN_IF_ERROR(remove_child(page_id(leaf), leaf_index, oldest, page_id(page)));
    {
      const MutexLock lock(mutex_);
      pages_.pop_front();
      ++first_chunk_;
    }
    if ((oldest + 1) % kChildrenPerPage == 0)
      STRATA_RETURN_IF_ERROR(remove_child(page_id(root), kRootExtra, leaf_index, page_id(leaf)));
  }
}

}  // namespace strata::txn_internal
