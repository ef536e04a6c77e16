// Copies of pages that are about to be written in place, in a file of their own: a write in place
// that a power loss tears is repaired from its copy, so the log needs no page images (docs/adr/
// 2026-11-22-double-write.md). A ring of pages; thread-safe.
//
//   DW1  protect() returns when the copies are durable; only then are the pages written in place.
//   DW2  A copy is overwritten only when the write in place has ended well and was synced, or a
//   newer
//        copy of the page is durable.
//   DW3  Copies are overwritten in the order in which they were made: the newest copy of a page
//   outlives
//        the older ones, and is what was last written in place, or was about to be.
//   DW4  open() restores every page that does not verify from its newest copy, syncs every page
//   that has
//        a copy, and empties the ring before anything is written: the copies of one life never
//        repair pages of the next.
//   DW5  A failed sync of the ring is final: nothing is written in place any more.
//   DW6  A ring that is full of pages whose writes in place failed writes them itself, from their
//        copies, whenever somebody needs room: once the disk works again nothing else is needed.
//        Never beside a write in place of the same page by somebody else.
#pragma once

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

  // `count` sealed pages, one after the other, 4096-aligned; none of them is being written by
  // somebody else. Blocks for disk and room. On failure nothing may be written in place.
  StatusOr<Ticket> protect(const char* pages, uint32_t count);
  // How the writes in place ended, page by page; once per ticket. `ok`: the page is whole in its
  // place, or has none, as its space is not there.
  void written(Ticket ticket, const bool* ok);
  // Its pages will not be written any more: its file is gone. Blocks for writes under way (DW6).
  void forget(SpaceId space);

  // A sync of all data files: what was written() before begin_sync() is durable after synced().
  [[nodiscard]] uint64_t begin_sync();
  void synced(uint64_t mark);

 private:
  //   kWriting --written(ok)--> kWritten --synced()--> kDurable, then its place is free
  //            --written(not ok)--> kFailed --newer copies of all its pages--> kWritten
  //                                 kFailed <--> kRetrying --all of them are written--> kWritten
  enum class State : uint8_t { kWriting, kWritten, kFailed, kRetrying, kDurable };
  struct Batch {
    Ticket ticket;
    uint32_t count;
    State state = State::kWriting;
    uint64_t written_at = 0;    // by clock_
    std::vector<PageId> pages;  // in kFailed and kRetrying: those not yet superseded
  };

  DoubleWrite(std::unique_ptr<File> file, uint32_t pages, std::function<Status()> sync_in_place,
              std::function<Status(PageId id, const char* page)> write_in_place);
  Status make_room(uint32_t count, bool is_retry) STRATA_REQUIRES(mutex_);
  void grow(uint64_t end) STRATA_REQUIRES(mutex_);
  void free_durable() STRATA_REQUIRES(mutex_);
  Status write_copies(uint64_t place, uint32_t until_end, const char* pages, uint32_t count) const;
  Status read_copies(uint64_t place, uint32_t until_end, uint32_t count, char* pages) const;
  Status sync_ring() STRATA_REQUIRES(mutex_);
  Status retry_front() STRATA_REQUIRES(mutex_);
  Status write_again(uint64_t place, uint32_t until_end, uint32_t count,
                     std::vector<PageId>* left) const;
  template <typename Worthless>
  void drop_failed(const Worthless& worthless) STRATA_REQUIRES(mutex_);
  [[nodiscard]] bool has_failed(const std::vector<PageId>& pages) const STRATA_REQUIRES(mutex_);
  [[nodiscard]] bool is_retrying(const std::vector<PageId>& pages) const STRATA_REQUIRES(mutex_);
  Batch* find(Ticket ticket) STRATA_REQUIRES(mutex_);

  const std::unique_ptr<File> file_;
  const std::function<Status()> sync_in_place_;
  const std::function<Status(PageId id, const char* page)> write_in_place_;
  Mutex mutex_{LatchRank::kLeaf};
  CondVar changed_;
  uint32_t capacity_ STRATA_GUARDED_BY(mutex_);  // pages; less once the disk has no room for more
  uint32_t allocated_ STRATA_GUARDED_BY(mutex_) =
      kPagesMin;  // pages of the file; grows while the first round is written
  std::deque<Batch> batches_
      STRATA_GUARDED_BY(mutex_);  // oldest first; their copies lie one behind the other
  uint64_t head_ STRATA_GUARDED_BY(mutex_) =
      0;  // positions count up; a position's place is its remainder by capacity_
  uint64_t tail_ STRATA_GUARDED_BY(mutex_) = 0;
  Ticket next_ticket_ STRATA_GUARDED_BY(mutex_) = 1;
  uint64_t clock_ STRATA_GUARDED_BY(mutex_) = 0;
  uint32_t failed_ STRATA_GUARDED_BY(mutex_) = 0;  // batches in kFailed and kRetrying
  bool syncing_ STRATA_GUARDED_BY(mutex_) = false;
  uint64_t syncs_begun_ STRATA_GUARDED_BY(mutex_) = 0;
  uint64_t syncs_ended_ STRATA_GUARDED_BY(mutex_) = 0;
  Status broken_ STRATA_GUARDED_BY(mutex_);  // DW5
};

}  // namespace strata
