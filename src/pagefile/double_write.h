// Copies of pages that are about to be written in place, in a file of their own: a write in place
// that a power loss tears is repaired from its copy, so the log needs no page images (docs/adr/
// 2026-11-22-double-write.md). A ring of pages; thread-safe.
//
//   DW1  protect() returns when the copies are durable; only then are the pages written in place.
//   DW2  A copy is overwritten only when the write in place has ended well and was synced, or a
//        newer copy of the page is durable.
//   DW3  Copies are overwritten in the order in which they were made: the newest copy of a page
//        outlives the older ones, and is what was last written in place, or was about to be.
//   DW4  open() restores every page that does not verify from its newest copy, syncs every page
//        that has a copy, and empties the ring before anything is written: the copies of one life
//        never repair pages of the next.
//   DW5  A failed sync of the ring says nothing about the copies it was to cover, and a later one
//        that ends well says nothing about them either: they are made again, elsewhere in the ring.
//   DW6  A ring that is full of pages whose writes in place failed writes them itself, from their
//        copies, whenever somebody needs room: once the disk works again nothing else is needed.
//        Never beside a write in place of the same page by somebody else.
//   DW7  A failed sync of the data files puts all pages that were written in place since the last
//        one that ended well in doubt: the kernel may have dropped them, and a later sync that ends
//        well says nothing about them. They are written again from their copies, and only a sync
//        after that counts.
//   DW8  As long as a page is in doubt, or its write in place has failed, it is read from its copy.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/latch.h"
#include "base/status.h"
#include "io/file_system.h"

namespace strata {

// Where pages are put back.
struct DoubleWriteRepair {
  // OK: whole. kDataLoss: torn. kNotFound: never written, or there is no such space any more. The
  // last life may have written it without a sync: the next sync() covers it.
  std::function<Status(PageId id, char* page)> read;
  std::function<Status(PageId id, const char* page)>
      write;  // also later, by any thread (DW6). kNotFound: no such space
  std::function<Status()> sync;
};

class DoubleWrite {
 public:
  using Ticket = uint64_t;
  static constexpr uint32_t kPagesMin =
      128;  // there from the start, so that a full disk is no obstacle
  static constexpr uint32_t kBatchPagesMax = 64;

  // The ring grows to `pages` as it is used, if the disk has room. `sync_in_place` makes every
  // finished write in place durable, as begin_sync() says; called with nothing held. Blocks.
  // Errors: as of files; kResourceExhausted when the disk has no room for the ring.
  static StatusOr<std::unique_ptr<DoubleWrite>> open(FileSystem* fs, const std::string& path,
                                                     uint32_t pages, bool direct_io,
                                                     const DoubleWriteRepair& repair,
                                                     std::function<Status()> sync_in_place);

  // Empties the ring if every write in place is durable: opening a folder that was closed well
  // changes nothing in it.
  ~DoubleWrite();
  DoubleWrite(const DoubleWrite&) = delete;
  DoubleWrite& operator=(const DoubleWrite&) = delete;

  // `count` sealed pages, one after the other, aligned for direct I/O; nobody else writes any of
  // them meanwhile. Blocks for disk and room. On failure nothing may be written in place.
  StatusOr<Ticket> protect(const char* pages, uint32_t count);
  // How the writes in place ended, page by page; once per ticket. `ok`: the page is whole in its
  // place, or has none, as its space is not there.
  void written(Ticket ticket, const bool* ok);
  // Its pages will not be written any more: its file is gone. Blocks for writes under way (DW6).
  void forget(SpaceId space);

  // A sync of all data files: what was written() before begin_sync() is durable after synced().
  // Blocks: pages in doubt are written first (DW7). An error: they cannot be.
  [[nodiscard]] StatusOr<uint64_t> begin_sync();
  // False: another sync failed meanwhile, and what this one was to cover is in doubt.
  [[nodiscard]] bool synced(uint64_t mark);
  void sync_failed();  // DW7
  // DW8. True: *page (aligned for direct I/O) holds the copy of a page that is not whole in its
  // place, or not known to be. Costs a load if there is none.
  [[nodiscard]] bool read_copy(PageId id, char* page) const;

 private:
  //   kCopying --protect()--> kWriting, or void: nothing was written in place
  //   kWriting --written(ok)--> kWritten --synced()--> kDurable, then its place is free
  //            --written(not ok)--> kFailed --newer copies of all its pages--> kWritten
  //   kWriting, kWritten --sync_failed()--> kFailed, in doubt
  //                                 kFailed <--> kRetrying --all of them are written--> kWritten
  enum class State : uint8_t { kCopying, kWriting, kWritten, kFailed, kRetrying, kDurable };
  struct Batch {
    Ticket ticket;
    uint64_t position;  // of its first copy, as head_ counts
    uint32_t count;
    State state = State::kCopying;
    bool in_doubt = false;      // DW7: what was written, or is being written, in place
    uint64_t written_at = 0;    // by clock_
    std::vector<PageId> pages;  // kGone: of a space that is gone
    std::vector<PageId> left;   // in kFailed and kRetrying: those to be written, not superseded
  };

  DoubleWrite(std::unique_ptr<File> file, uint32_t pages, std::function<Status()> sync_in_place,
              std::function<Status(PageId id, const char* page)> write_in_place);
  Status make_room(uint32_t count, bool is_retry) STRATA_REQUIRES(mutex_);
  void grow(uint64_t end) STRATA_REQUIRES(mutex_);
  void free_durable() STRATA_REQUIRES(mutex_);
  Status write_copies(uint64_t place, uint32_t until_end, const char* pages, uint32_t count) const;
  Status read_copies(uint64_t place, uint32_t until_end, uint32_t count, char* pages) const;
  void sync_ring() STRATA_REQUIRES(mutex_);
  void note_ring_sync(const Status& status) STRATA_REQUIRES(mutex_);
  Status retry(Batch* batch) STRATA_REQUIRES(mutex_);
  Status write_again(uint64_t place, uint32_t until_end, uint32_t count,
                     std::vector<PageId>* left) const;
  template <typename Worthless>
  void drop_failed(const Worthless& worthless) STRATA_REQUIRES(mutex_);
  void put_in_doubt(Batch* batch) STRATA_REQUIRES(mutex_);
  void end_doubt(Batch* batch) STRATA_REQUIRES(mutex_);
  [[nodiscard]] std::vector<PageId> newest_of(const Batch& batch) const STRATA_REQUIRES(mutex_);
  void set_left(Batch* batch, std::vector<PageId> left) STRATA_REQUIRES(mutex_);
  [[nodiscard]] bool has_failed(const std::vector<PageId>& pages) const STRATA_REQUIRES(mutex_);
  [[nodiscard]] bool is_retrying(const std::vector<PageId>& pages) const STRATA_REQUIRES(mutex_);
  Batch* find(Ticket ticket) STRATA_REQUIRES(mutex_);

  const std::unique_ptr<File> file_;
  const std::function<Status()> sync_in_place_;
  const std::function<Status(PageId id, const char* page)> write_in_place_;
  mutable Mutex mutex_{LatchRank::kLeaf};
  CondVar changed_;
  // Pages; less once the disk has no room for more.
  uint32_t capacity_ STRATA_GUARDED_BY(mutex_);
  // Pages of the file; grows while the first round is written.
  uint32_t allocated_ STRATA_GUARDED_BY(mutex_) = kPagesMin;
  // Oldest first; their copies lie one behind the other.
  std::deque<Batch> batches_ STRATA_GUARDED_BY(mutex_);
  // Positions count up; a position's place is its remainder by capacity_.
  uint64_t head_ STRATA_GUARDED_BY(mutex_) = 0;
  uint64_t tail_ STRATA_GUARDED_BY(mutex_) = 0;
  Ticket next_ticket_ STRATA_GUARDED_BY(mutex_) = 1;
  uint64_t clock_ STRATA_GUARDED_BY(mutex_) = 0;
  std::atomic<uint32_t> failed_{0};  // batches in kFailed and kRetrying; changed under the mutex
  bool syncing_ STRATA_GUARDED_BY(mutex_) = false;
  uint64_t syncs_begun_ STRATA_GUARDED_BY(mutex_) = 0;
  uint64_t syncs_ended_ STRATA_GUARDED_BY(mutex_) = 0;
  uint64_t ring_failures_ STRATA_GUARDED_BY(mutex_) = 0;  // DW5: failed syncs of the ring
  Status last_ring_failure_ STRATA_GUARDED_BY(mutex_);
  bool ring_failing_ STRATA_GUARDED_BY(mutex_) = false;   // since the last sync of it
  uint64_t sync_failures_ STRATA_GUARDED_BY(mutex_) = 0;  // DW7
  // Batches in kFailed and kRetrying that are in doubt.
  uint32_t doubted_ STRATA_GUARDED_BY(mutex_) = 0;
};

}  // namespace strata
