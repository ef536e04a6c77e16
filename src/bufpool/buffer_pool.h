// Caches pages in fixed frames of one mapping. Thread-safe.
//
//   B1  frame.page_id changes only at pin count 0, under the partition latch.
//   B2  A frame is written back, surrendered or dropped only once log.durable_lsn() >= the end Lsn
//       of the last group that touched it (K9).
//   B3  No query waits for a write: a background writer keeps free frames ready; a miss takes a
//       free frame, or evicts a clean one, and only as a last resort waits for the writer (with a
//       deadline).
//   B4  Write-back copies the page under a shared latch and does I/O without it; a page changed
//       meanwhile stays dirty with the Lsn of its first change after the copy.
//   B5  oldest_dirty_lsn() counts pages being written until their write completed.
//   B6  A damaged page is never handed out: fix() fails with kDataLoss and nothing is cached. Nor,
//       with a sole writer, is one that is newer than the log: what it belongs to was lost.
// LRU: young and old sublists per partition, midpoint insertion: a page enters at the head of the
// old list and moves to the young one when it is used again later than `old_time_us` after its
// first use.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "base/ids.h"
#include "base/status.h"
#include "bufpool/page_lock.h"
#include "pagefile/page_source.h"
#include "wal/log.h"

namespace strata {

class BufferPool;
struct Frame;

// A pinned, latched page. Movable; unlatches and unpins at destruction.
class PageGuard {
 public:
  PageGuard() noexcept = default;
  PageGuard(PageGuard&& other) noexcept { *this = std::move(other); }
  PageGuard& operator=(PageGuard&& other) noexcept;
  ~PageGuard() { release(); }
  [[nodiscard]] bool valid() const noexcept { return frame_ != nullptr; }
  [[nodiscard]] const char* page() const noexcept { return page_; }
  // Only redo::apply_* may write through this (K1); needs an exclusive guard.
  [[nodiscard]] char* mutable_page() const noexcept;
  [[nodiscard]] LatchMode mode() const noexcept { return mode_; }
  [[nodiscard]] PageId id() const noexcept;
  [[nodiscard]] Frame* frame() const noexcept { return frame_; }
  void release() noexcept;

 private:
  friend class BufferPool;
  BufferPool* pool_ = nullptr;
  Frame* frame_ = nullptr;
  char* page_ = nullptr;
  LatchMode mode_ = LatchMode::kShared;
};

// For pages that something refers to: never written means lost then, kNotFound becomes kDataLoss.
[[nodiscard]] Status expect_written(const Status& status, PageId id);
inline StatusOr<PageGuard> expect_written(StatusOr<PageGuard> guard, PageId id) {
  if (guard.ok()) return guard;
  return expect_written(guard.status(), id);
}

struct BufferPoolOptions {
  uint64_t bytes = 128u << 20;
  uint32_t partitions = 16;
  uint64_t old_time_us = 1000000;
  uint32_t old_percent = 37;
  uint32_t free_target = 0;  // frames kept free; 0 = 1 % of the pool, at least 64
  bool sole_writer = false;  // every page is of our own log: one newer than it is damage (B6)
  uint32_t writers = 1;      // background write-back threads; 0 = none (tests drive it by hand)
};

struct BufferPoolCounters {
  std::atomic<uint64_t> hits{0}, misses{0}, reads{0}, writes{0}, evictions{0}, free_waits{0},
      write_errors{0};
  std::atomic<uint64_t> read_ahead{0};  // of the reads
  std::atomic<uint64_t> looked_at{0};   // frames, by the writers in search of cold pages
};

class BufferPool {
 public:
  // All pointers outlive the pool.
  static StatusOr<std::unique_ptr<BufferPool>> create(const BufferPoolOptions& options,
                                                      PageSource* source, PageLock* lock, Log* log);
  ~BufferPool();  // stops the background threads; writes nothing back

  // Pins and latches a page; reads it on a miss (blocks). Errors: kDataLoss, kNotFound (never
  // written), kResourceExhausted (every frame pinned), fenced, lease_lost, kUnavailable
  // (I/O error).
  StatusOr<PageGuard> fix(PageId id, LatchMode mode) noexcept;
  // Same, but returns busy at once instead of waiting for a latch (no message).
  StatusOr<PageGuard> try_fix(PageId id, LatchMode mode) noexcept;
  // The page is in memory when it returns OK, and will hardly be evicted soon: for what is latched
  // later while other latches are held. Waits for no latch if it is cached. Errors as fix().
  Status bring_in(PageId id) noexcept;
  // An exclusive guard on a page that is about to be initialised by redo: nothing is read. The
  // frame holds whatever it held if cached, zeroes otherwise.
  StatusOr<PageGuard> fix_new(PageId id) noexcept;
  // Like fix(kExclusive), but a page that was never written, or fails its checksum, comes back
  // zeroed: recovery uses it before it applies a section that restarts the chain. *damaged tells.
  StatusOr<PageGuard> fix_for_redo(PageId id, bool* damaged) noexcept;

  // Called by Mtr::publish with the guard's exclusive latch held, after page.llsn was set and
  // before Log::complete. `image` = the group held a full image or init of this page. Never fails.
  void note_modified(const PageGuard& guard, Lsn group_start, Lsn group_end, bool image) noexcept;
  // Start Lsn of the group that last held an image of this page, 0 if not since it was read.
  [[nodiscard]] Lsn image_lsn(const PageGuard& guard) const noexcept;

  // Writes back every page whose first unwritten change is below `lsn` and waits. Blocks. `written`
  // hears after every few pages how many; nothing is held meanwhile, so it may wait.
  Status write_back_below(
      Lsn lsn, absl::FunctionRef<void(size_t)> written = [](size_t) {});
  // Smallest first-change Lsn over all dirty pages; Lsn{UINT64_MAX} when none is dirty.
  [[nodiscard]] Lsn oldest_dirty_lsn() const;
  // Forgets all frames of a space without writing them. No guard on any of them may exist or
  // appear.
  void discard_space(SpaceId space);
  // Writes back those of up to kWriteBatchPages pages that are here and dirty, with one persist and
  // one batch: for who is about to give them up. Waits for their latches. Blocks.
  Status write_back_pages(const PageId* ids, uint32_t count);
  // Gives a page up to another node: waits for guards to go, persists, writes back, drops the
  // frame.
  Status surrender(PageId id);
  // Starts reading those of the pages that are not in memory, several with one request to the
  // source; does not wait. Best effort: some may be left out, and no error is told.
  void read_ahead(const PageId* ids, uint32_t count) noexcept;
  // How many pages one scan should ask for at a time.
  [[nodiscard]] uint32_t read_ahead_pages() const noexcept;
  // fix(kShared) of a page that is in memory and latched by no writer; busy (no message) at
  // once otherwise: may be called with latches held.
  StatusOr<PageGuard> fix_if_at_hand(PageId id) noexcept;

  [[nodiscard]] BufferPoolCounters& counters() noexcept;
  [[nodiscard]] uint32_t frame_count() const noexcept;
  [[nodiscard]] uint32_t free_count() const noexcept;
  [[nodiscard]] uint32_t dirty_count() const noexcept;
  // Writing pages back has failed, and no later write has ended well yet.
  [[nodiscard]] bool write_failing() const noexcept;
  [[nodiscard]] PageSource* source() const noexcept;
  [[nodiscard]] Log* log() const noexcept;
  void attach_log(Log* log) noexcept;  // once, after recovery, before any note_modified
  // Test hook: visits every cached page under a shared latch.
  void for_each_cached(const std::function<void(PageId, const char* page)>& visit);

 private:
  friend class PageGuard;
  BufferPool();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace strata
