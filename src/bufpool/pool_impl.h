// The buffer pool's insides, shared by its source files. Internal to bufpool.
//
// Latch order: page latch -> partition mutex (70) -> wait/signal mutex (75) -> dirty list (78). At
// most one partition mutex at a time. No mutex is held over I/O or while waiting for a page latch.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "base/aligned.h"
#include "base/latch.h"
#include "base/mapped_memory.h"
#include "base/wait_interrupt.h"
#include "bufpool/buffer_pool.h"
#include "bufpool/dirty_list.h"
#include "bufpool/frame.h"
#include "bufpool/lru.h"
#include "page/page.h"

namespace strata {

// Aligned room for the copies of one batch.
class WriteBuffer {
 public:
  [[nodiscard]] char* at(size_t i) const noexcept { return bytes_.get() + i * kPageBytes; }

 private:
  AlignedBytes bytes_{kWriteBatchPages * kPageBytes};
};

struct alignas(64) Partition {
  Mutex mutex{LatchRank::kPoolPartition};
  Lru lru STRATA_GUARDED_BY(mutex);
  // For Lru::needs_touch() and the counts, which want no mutex: hence without analysis.
  const Lru& lru_hints() const noexcept STRATA_NO_THREAD_SAFETY_ANALYSIS { return lru; }
  uint32_t free_head STRATA_GUARDED_BY(mutex) = kNoFrame;  // linked by lru_next
  std::atomic<uint32_t> free_count{0};
  // A hunt for old pages found nothing when this many batches had been written, at this time: until
  // either has moved on, another need not look.
  uint64_t barren_batches STRATA_GUARDED_BY(mutex) = UINT64_MAX;
  uint64_t barren_us STRATA_GUARDED_BY(mutex) = 0;
  // So many evictions must come before it pays to look again for cold pages to write ahead of need:
  // fewer cannot bring a batch of them to the cold end.
  uint32_t evictions_to_look_ahead STRATA_GUARDED_BY(mutex) = 0;
};

// Per-thread-ish hit counts: one shared counter would cost more than the rest of a hit.
struct alignas(64) HitShard {
  std::atomic<uint64_t> hits{0};
};
constexpr size_t kHitShards = 256;

// Pages being read ahead with one call of the source. Their frames are pinned and latched until
// they are there, whichever thread brings them.
struct ReadAheadBatch {
  std::array<PageId, kReadBatchPages> ids;
  std::array<Frame*, kReadBatchPages> frames;
  std::array<Status, kReadBatchPages> results;
  uint32_t count = 0;
  AlignedBytes pages{kReadBatchPages * kPageBytes};
};
using ReadAheadBatchPtr = std::unique_ptr<ReadAheadBatch>;

constexpr uint64_t kAnyPageAfterUs = 20'000;  // that a miss has waited for the writer

enum class Hunt : uint8_t { kOldPages, kAnyPage };
enum class Access : uint8_t { kRead, kTry, kAtHand, kNew, kRedo, kReadAhead };

struct BufferPool::Impl {
  Impl(const BufferPoolOptions& options, PageSource* source, PageLock* lock, Log* log);
  ~Impl();
  Status init();

  // --- lookup and loading (buffer_pool.cc) ---
  StatusOr<PageGuard> access(PageId id, LatchMode mode, Access access, bool* damaged) noexcept;
  Frame* find_and_pin(uint64_t packed) noexcept;  // no mutex; may miss a cached page
  // `p` is the partition of the page: it names the mutex, here and below.
  Frame* lookup(const Partition& p, uint64_t packed) noexcept STRATA_REQUIRES(p.mutex);
  void pin_in_table(const Partition& p, Frame* frame) noexcept STRATA_REQUIRES(p.mutex);
  Frame* pin_cached(uint64_t packed) noexcept;  // takes the partition mutex
  Frame* pin_or_insert(uint64_t packed, Access access, bool* inserted, Status* status) noexcept;
  void insert(Partition& p, Frame* frame, uint64_t packed, Access access) noexcept
      STRATA_REQUIRES(p.mutex);
  class HeldLock;
  Status load(Frame* frame, PageId id, LatchMode mode, Access access, HeldLock* held,
              bool* damaged) noexcept;
  struct LoadWait;
  // Until the page has been read, or could not be. The frame is pinned.
  Status wait_for_load(Frame* frame) noexcept;
  void tell_loaded(Frame* frame) noexcept;
  LoadWait& load_wait_of(const Frame* frame) noexcept {
    return load_waits_[static_cast<size_t>(frame - frames_.get()) % load_waits_.size()];
  }
  Status finish_load(Frame* frame, PageId id, Status status, FrameState state) noexcept;
  Status lock_before_load(Frame* frame, LatchMode mode, Access access, HeldLock* held) noexcept;
  void release_lock(PageId id) noexcept {  // PL5
    if (lock_ != nullptr) lock_->release(id);
  }
  void unpin(Frame* frame) noexcept;
  // Exclusive latch held, not dirty: takes the frame out of the hash table. Unlatch and unpin
  // follow.
  void detach(Frame* frame) noexcept;
  void reclaim(Frame* frame) noexcept;  // frees a detached frame at pin count 0
  bool is_ready(uint64_t packed) noexcept;
  void drop_blank(uint64_t packed) noexcept;
  void touch(Frame* frame) noexcept;
  const Lru& lru_of(const Frame* frame) noexcept {
    return partition_of(frame->page_id.load(std::memory_order_relaxed)).lru_hints();
  }
  void count_hit() noexcept;

  // --- frames (frames.cc) ---
  Partition& partition_of(uint64_t packed) noexcept {
    return partitions_[bucket_of(packed) & partition_mask_];
  }
  uint64_t bucket_of(uint64_t packed) const noexcept { return mix64(packed) & bucket_mask_; }
  void hash_insert(const Partition& p, Frame* frame, uint64_t packed) noexcept
      STRATA_REQUIRES(p.mutex);
  void hash_remove(const Partition& p, Frame* frame) noexcept STRATA_REQUIRES(p.mutex);
  Frame* take_free(Partition& p) noexcept STRATA_REQUIRES(p.mutex);  // owned frame or nullptr
  void put_free(Partition& p, Frame* frame) noexcept STRATA_REQUIRES(p.mutex);
  bool try_evict(Partition& p,
                 Frame* frame) noexcept
      STRATA_REQUIRES(p.mutex);  // frame becomes owned and unlinked
  // Hunt::kOldPages spares the young lists and looks at few frames; kAnyPage takes whatever is
  // clean.
  Frame* evict_one(Partition& p, Hunt hunt) noexcept STRATA_REQUIRES(p.mutex);
  // Frames wander to partitions that are short of them; a partition well below its share takes
  // frames from others before it evicts pages of its own.
  bool is_small(const Partition& p) const noexcept {
    return (p.lru_hints().young_count() + p.lru_hints().old_count()) * 8 <
           frames_per_partition_ * 7;
  }
  Frame* take_from(Partition& p, Hunt hunt) noexcept;  // takes the mutex
  Frame* take_anywhere(uint32_t first_partition, Hunt hunt) noexcept;
  Status wait_for_frame(uint64_t started_us) noexcept;
  [[nodiscard]] Status no_frame() noexcept;
  bool every_frame_pinned() const noexcept;

  // --- write-back (write_back.cc) ---
  // Writes pinned frames and unpins them. Frames whose latch is busy are skipped, or waited for
  // when `wait`. Frames left alone because of that go to *busy (still pinned) when not null. count
  // <= batch.
  Status write_frames(WriteBuffer& buffer, Frame** frames, size_t count, bool wait,
                      std::vector<Frame*>* busy, size_t* written) noexcept;
  bool copy_for_write(Frame* frame, char* copy, uint64_t* newest_end, bool wait,
                      bool* busy) noexcept;
  // Pinned frames in page order, begun; their copies in the buffer. Ends the writes. Does not
  // unpin.
  Status write_copies(WriteBuffer& buffer, Frame** frames, size_t count,
                      uint64_t newest_end) noexcept;
  Status persist_before_write(uint64_t newest_end) noexcept;  // B2
  void note_write_result(const Status& status, PageId id) noexcept;
  Status write_back_below(uint64_t lsn, absl::FunctionRef<void(size_t)> written) noexcept;
  void discard_space(uint32_t space) noexcept;
  Status write_back_pages(const PageId* ids, uint32_t count) noexcept;
  Status surrender(PageId id) noexcept;
  Frame* pin_to_surrender(uint64_t packed) noexcept;
  // Brings one partition's free list back to its target. Returns false when it could not.
  bool refill(Partition& p, WriteBuffer& buffer) noexcept;
  size_t refill_scan(Partition& p, Frame** dirty, size_t max) noexcept;
  void wake_waiters(uint32_t frames) noexcept;
  void writer_main(uint32_t index) noexcept;
  void signal_writer(uint32_t partition_index) noexcept;
  void read_ahead_main() noexcept;
  bool take_read_ahead(ReadAheadBatchPtr* batch) noexcept;
  void begin_read_ahead(ReadAheadBatchPtr batch) noexcept;
  void end_read_ahead(ReadAheadBatchPtr batch) noexcept;
  void put_back(ReadAheadBatchPtr batch) noexcept;
  void start_threads();
  void stop_threads() noexcept;

  BufferPool* pool_ = nullptr;
  const BufferPoolOptions options_;
  PageSource* const source_;
  PageLock* const lock_;     // nullptr: the no-op lock
  const bool locks_first_;   // PL6
  const bool feeds_source_;  // the source hears of evictions
  std::atomic<Log*> log_;

  uint32_t frame_count_ = 0;
  std::unique_ptr<Frame[]> frames_;
  MappedMemory memory_;  // the frames
  std::unique_ptr<std::atomic<uint32_t>[]> buckets_;
  uint64_t bucket_mask_ = 0;
  std::unique_ptr<Partition[]> partitions_;
  uint32_t partition_mask_ = 0;
  uint32_t frames_per_partition_ = 0;
  uint32_t free_target_per_partition_ = 1;
  std::unique_ptr<DirtyList> dirty_;

  BufferPoolCounters counters_;
  std::unique_ptr<HitShard[]> hit_shards_;

  // Background threads.
  struct Writer {
    std::thread thread;
    std::atomic<bool> signalled{false};
    CondVar wake;
  };
  Mutex signal_mutex_{LatchRank::kFreeList};
  std::vector<std::unique_ptr<Writer>> writers_;
  bool stop_ STRATA_GUARDED_BY(signal_mutex_) = false;
  std::atomic<uint64_t> batches_written_{0};
  std::atomic<bool> write_failing_{false};  // an episode of failed writes is going on
  Status write_failure_ STRATA_GUARDED_BY(signal_mutex_);  // the first one of it
  std::atomic<uint32_t> frame_waiters_{0};
  CondVar frame_freed_;  // signal_mutex_
  // Where threads that may be interrupted wait for a page that another thread reads: not at its
  // latch.
  struct LoadWait {
    std::atomic<uint32_t> waiters{0};
    Mutex mutex{LatchRank::kFreeList};
    CondVar ended;
  };
  std::array<LoadWait, 16> load_waits_;
  std::vector<std::thread> read_ahead_threads_;
  std::deque<PageId> read_ahead_queue_ STRATA_GUARDED_BY(signal_mutex_);
  CondVar read_ahead_wake_;
  std::vector<ReadAheadBatchPtr> read_ahead_idle_ STRATA_GUARDED_BY(signal_mutex_);
  uint32_t read_ahead_under_way_ STRATA_GUARDED_BY(signal_mutex_) = 0;
  CondVar read_ahead_ended_;
};

}  // namespace strata
