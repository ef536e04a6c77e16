// Status pages of a node (T4): an array of 16-byte entries indexed by sequence, in chunks of one
// page, found through a two-level directory whose root is named in a header slot of the undo space.
//
//   entry:                state 3 bits, cts 61 bits | first_undo u64
//   status page:          entries from offset 64 on, every kStripes-th sequence of its group;
//                         header.extra = chunk number
//   directory leaf:       page numbers u32 of kChildrenPerPage consecutive chunks (0 = none);
//                         header.extra = chunk / kChildrenPerPage
//   directory root:       page numbers u32 of leaves, by leaf number mod kChildrenPerPage: a window
//                         that moves along as old chunks are truncated; header.extra = kRootExtra
//   SD1  A page's extra says what it is for: a reader that finds another number met a reused page,
//        and takes the chunk for truncated.
//   SD2  Latch order: root, leaf, status page, then allocation.
//   SD3  Chunks are made and truncated in order, so the ones that exist are consecutive.
//   SD4  kStripes chunks are a group; they take the sequences of the group in turns. Transactions
//        that run at the same time, whose sequences are close, latch different pages. A group is
//        made before the first of its sequences is given away, and truncated when none is needed.
#pragma once

#include <deque>
#include <functional>

#include "base/latch.h"
#include "base/status.h"
#include "bufpool/buffer_pool.h"
#include "minitxn/mtr.h"
#include "space/space_manager.h"
#include "txn/internal/tit.h"

namespace strata::txn_internal {

constexpr uint32_t kEntryBytes = 16;
constexpr uint32_t kEntriesPerPage = (kPageBytes - kPageHeaderBytes) / kEntryBytes;
constexpr uint32_t kChildrenPerPage = (kPageBytes - kPageHeaderBytes) / 4;
static_assert(kEntriesPerPage == 1020);
constexpr uint64_t kRootExtra = UINT64_MAX;

constexpr uint32_t kStripes = 8;
constexpr uint64_t kSequencesPerGroup = uint64_t{kStripes} * kEntriesPerPage;

constexpr uint64_t chunk_of(uint64_t sequence) noexcept {
  return sequence / kSequencesPerGroup * kStripes + sequence % kStripes;
}
constexpr uint32_t entry_of(uint64_t sequence) noexcept {
  return static_cast<uint32_t>(sequence % kSequencesPerGroup / kStripes);
}
constexpr uint64_t sequence_at(uint64_t chunk, uint32_t entry) noexcept {
  return chunk / kStripes * kSequencesPerGroup + uint64_t{entry} * kStripes + chunk % kStripes;
}
// Of the group that holds `sequence`.
constexpr uint64_t group_chunk_of(uint64_t sequence) noexcept {
  return sequence / kSequencesPerGroup * kStripes;
}
static_assert(kSequencesPerGroup % kStripes == 0);

struct StatusEntry {
  TrxState state = TrxState::kNone;
  Cts cts;
  UndoPtr first_undo;
};

inline uint16_t entry_offset(uint64_t sequence) noexcept {
  return static_cast<uint16_t>(kPageHeaderBytes + entry_of(sequence) * kEntryBytes);
}
StatusEntry read_entry(const char* page, uint64_t sequence) noexcept;
void write_entry(Mtr* mtr, MtrPage* page, uint64_t sequence, const StatusEntry& entry);

class StatusPages {
 public:
  StatusPages(BufferPool* pool, Log* log, SpaceManager* spaces, NodeId node);
  Status initialise();  // makes the root
  // A number in the header of a node's undo space, which need not be open here. Errors: the pool's,
  // kDataLoss.
  StatusOr<uint64_t> number_in_header(NodeId node, HeaderSlot slot);
  // Finds the chunks that exist from `first` on; *end = one past the last (`first` if there is
  // none).
  Status open(uint64_t first, uint64_t* end);
  // Makes those pages of the group from `first_chunk` on that there are not: a crash, or a full
  // disk, may have left some. One caller at a time. Blocks.
  Status make_group(uint64_t first_chunk);
  [[nodiscard]] uint32_t page_of(uint64_t chunk) const;  // own; kNoPage: truncated or not made yet
  [[nodiscard]] PageId page_id(uint32_t number) const noexcept {
    return PageId{undo_space_of(node_), number};
  }
  // Latches an own status page and checks that it is the one. The mtr is unchanged after an error.
  StatusOr<MtrPage*> fix(Mtr* mtr, uint32_t page, uint64_t sequence) const;
  // Entry of any node's transaction. kNotFound: truncated, or never made.
  StatusOr<StatusEntry> read(NodeId node, uint64_t sequence);
  // Visits the entries of any node from its bound on, of all pages that are there when they are
  // looked at. `visit` is called with the page latched. Nothing where a node has only just begun.
  using VisitEntry = std::function<void(uint64_t sequence, const StatusEntry& entry)>;
  Status for_each_entry(NodeId node, const VisitEntry& visit);
  // Frees own pages of chunks below `chunk`. One caller at a time. Blocks.
  Status truncate_below(uint64_t chunk);

 private:
  StatusOr<PageGuard> fix_checked(PageId id, PageType type, uint64_t extra) const;
  StatusOr<uint32_t> child(PageId directory, uint64_t extra, uint64_t index) const;
  StatusOr<uint32_t> root_of(NodeId node);
  StatusOr<uint32_t> walk(NodeId node, uint64_t chunk);
  StatusOr<bool> has_begun(NodeId node);
  Status visit_chunk(NodeId node, uint64_t chunk, const VisitEntry& visit);
  Status extend(uint64_t chunk);  // the next one
  Status add_child(PageId parent, uint64_t parent_extra, uint64_t index, PageType type,
                   uint64_t extra, uint32_t* number);
  Status remove_child(PageId parent, uint64_t parent_extra, uint64_t index, PageId child);

  BufferPool* const pool_;
  Log* const log_;
  SpaceManager* const spaces_;
  const NodeId node_;
  std::atomic<uint32_t> roots_[256];  // by node; 0 = not looked up yet
  mutable Mutex mutex_{LatchRank::kLeaf};
  uint64_t first_chunk_ STRATA_GUARDED_BY(mutex_) = 0;    // of pages_
  std::deque<uint32_t> pages_ STRATA_GUARDED_BY(mutex_);  // own chunks, consecutive (SD3)
};

}  // namespace strata::txn_internal
