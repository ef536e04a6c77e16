// Spaces (files of pages) and the allocation of pages inside them. Thread-safe.
//
// Layout of a space: page 0 is the header (PageType::kSpaceHeader: magic u32, space id u32, then
// kHeaderSlots u64 slots that the owner of the space uses, e.g. AUTO_INCREMENT). Allocation maps
// (PageType::kSpaceMap) stand at page 1 + g * kPagesPerMap for g = 0, 1, ...; each describes
// kPagesPerMap pages from g * kPagesPerMap on, as extents of 64 pages:
//   owner node u8, pad[7] | used bits u64 | pending-free bits u64
//
//   SP1  A node allocates only from extents it owns (ExtentSource seam); it takes a free extent
//        over inside the allocating mini-transaction.
//   SP2  A tree page that was unlinked is pending-free until every operation older than the unlink
//        has ended (K5), then free. After a crash of the only writer all pending pages are free.
//   SP3  A page is freed while its frame is exclusively latched in the same mini-transaction, so
//        the node has seen its llsn and later llsns are larger (K2). Space ids are never reused.
//   SP4  ensure_room() is called before the first latch: it extends the file (may block, may fail
//        with kResourceExhausted); allocate() afterwards cannot fail for lack of space.
// Latch rank: map pages come last (tree -> overflow -> undo -> allocation). Within one mtr maps are
// latched in ascending order: an mtr that frees several pages of a space frees them by ascending
// page number.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "bufpool/buffer_pool.h"
#include "minitxn/mtr.h"
#include "space/page_reuse.h"

namespace strata {

constexpr uint32_t kHeaderSlots = 16;
enum class HeaderSlot : uint32_t { kAutoIncrement = 0, kRowId = 1, kUser2 = 2 /* .. 15 */ };

struct SpaceOptions {
  // Other nodes allocate in the same spaces: maps and room that this node has not made are looked
  // for, and extents are claimed before they are needed.
  bool shared = false;
  PageReuse* reuse = nullptr;  // goes with `shared`: operations of other nodes, MW13
};

class SpaceManager {
 public:
  SpaceManager(BufferPool* pool, Log* log, NodeId node, SpaceOptions options = {});
  ~SpaceManager();

  // Before the first operation, where other nodes' operations count (MW13). Blocks.
  Status join_reuse();

  // Makes the file (durable), then header and first map page. The file exists before any redo names
  // it.
  Status create(SpaceId space);
  // Loads allocation hints; frees what was pending (SP2) when `reclaim_pending`.
  Status open(SpaceId space, bool reclaim_pending);
  // From now on the space does not exist: operations on it return kNotFound. Frames are discarded.
  // The file is deleted separately (delete_file) once the drop is durable and checkpointed.
  Status drop(SpaceId space);
  Status delete_file(SpaceId space);
  [[nodiscard]] bool is_live(SpaceId space) const;

  Status ensure_room(SpaceId space, uint32_t pages);
  // Takes a page. Latches the map page exclusively in `mtr` until it is published. The caller fixes
  // the page with mtr->fix_new() and initialises it in the same mtr. (The page is fixed here
  // already, before the first change, so that fix_new() then cannot fail.)
  StatusOr<uint32_t> allocate(Mtr* mtr, SpaceId space);
  // Frees at once: undo and overflow pages nobody can reach any more. `page` latched exclusively in
  // mtr.
  Status free(Mtr* mtr, MtrPage* page);
  // Marks a just unlinked tree page pending; call note_retired() after publish.
  Status retire(Mtr* mtr, MtrPage* page);
  void note_retired(PageId page);
  // Frees retired pages whose operations have all ended. Called by purge, outside any epoch.
  // Blocks.
  Status reclaim();
  // True if the page is allocated (for CHECK and recovery scans). Blocks.
  StatusOr<bool> is_allocated(PageId page);
  // All allocated page numbers of a space except header and maps.
  StatusOr<std::vector<uint32_t>> allocated_pages(SpaceId space);
  StatusOr<uint64_t> used_pages(SpaceId space);
  // Likewise, and the free pages between used ones. No I/O.
  struct Use {
    uint64_t used_pages = 0;  // with header and maps
    uint64_t free_pages = 0;
  };
  StatusOr<Use> use(SpaceId space);

  // Header slots. write_slot rides on the caller's mtr (latches page 0 exclusively: allocation
  // rank).
  StatusOr<uint64_t> read_slot(SpaceId space, HeaderSlot slot);
  // Under a latch on page 0 that the mtr has.
  StatusOr<uint64_t> read_slot_in(Mtr* mtr, SpaceId space, HeaderSlot slot);
  Status write_slot(Mtr* mtr, SpaceId space, HeaderSlot slot, uint64_t value);
  // Writes max(value, stored).
  Status raise_slot(Mtr* mtr, SpaceId space, HeaderSlot slot, uint64_t value);

  // A word that the owner of a page may use for hints about it. Shared by many pages, never exact,
  // lost at restart; wait-free.
  static constexpr uint32_t kPageHints = 1024;
  [[nodiscard]] std::atomic<uint64_t>* page_hint(PageId page) noexcept;
  [[nodiscard]] NodeId node() const noexcept;

  // Operations that hold page numbers without latches run inside an epoch (K5). May nest.
  class EpochGuard {
   public:
    explicit EpochGuard(SpaceManager* manager) noexcept;
    ~EpochGuard();
    EpochGuard(const EpochGuard&) = delete;

   private:
    SpaceManager* manager_;
    uint32_t slot_;
  };

 private:
  friend class EpochGuard;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace strata
