// Writing dirty pages back (B2, B4, B5) and the background threads.
#include <algorithm>
#include <array>
#include <cstring>

#include "base/assert.h"
#include "base/diag.h"
#include "base/thread_name.h"
#include "bufpool/pool_impl.h"

namespace strata {

namespace {
constexpr size_t kCheckpointPins = 256;  // sorted together, so that neighbours meet
constexpr uint32_t kRefillDepth = 512;
constexpr uint32_t kCleanAhead = 96;     // coldest pages of a partition that are kept clean
constexpr size_t kWorthwhileBatch = 32;  // of those, dirty: fewer are not written ahead of need
constexpr uint64_t kBackoffUsMin = 10'000;
constexpr uint64_t kBackoffUsMax = 1'000'000;
constexpr size_t kReadAheadMax = 256;       // pages that wait to be read ahead; more are left out
constexpr size_t kReadAheadThreads = 4;     // batches being read at a time
constexpr uint32_t kReadAheadBatches = 16;  // the same, where that takes no thread
constexpr uint32_t kReadAheadPages = 64;    // of one scan at a time

void sort_by_page(Frame** frames, size_t count) {
  std::sort(frames, frames + count, [](const Frame* a, const Frame* b) {
    return a->page_id.load(std::memory_order_relaxed) < b->page_id.load(std::memory_order_relaxed);
  });
}
}  // namespace

// --- one batch ---

// Pinned. True: the frame is being written by this thread and `copy` holds its bytes (B4).
bool BufferPool::Impl::copy_for_write(Frame* frame, char* copy, uint64_t* newest_end, bool wait,
                                      bool* busy) noexcept {
  *busy = false;
  if (wait) {
    frame->latch.lock_shared();
  } else if (!frame->latch.try_lock_shared()) {
    *busy = true;
    return false;
  }
  const bool mine = dirty_->begin_write(frame);
  if (mine) {
    std::memcpy(copy, frame->page, kPageBytes);
    *newest_end = std::max(*newest_end, frame->newest_end);
  }
  frame->latch.unlock_shared();
  return mine;
}

// B2, K9.
Status BufferPool::Impl::persist_before_write(uint64_t newest_end) noexcept {
  Log* log = log_.load(std::memory_order_acquire);
  if (log == nullptr) return ok_status();  // recovery: all of it comes from the durable log
  if (log->durable_lsn().value < newest_end) STRATA_RETURN_IF_ERROR(log->persist(Lsn{newest_end}));
  STRATA_ASSERT(log->durable_lsn().value >= newest_end);
  return ok_status();
}

// Seals and writes `count` copies, in page order; then ends their writes.
Status BufferPool::Impl::write_copies(WriteBuffer& buffer, Frame** frames, size_t count,
                                      uint64_t newest_end) noexcept {
  bool ok[kWriteBatchPages] = {};
  Status status = persist_before_write(newest_end);
  if (status.ok()) {
    PageId ids[kWriteBatchPages];
    PageChanges changes[kWriteBatchPages];
    for (size_t i = 0; i < count; ++i) {
      ids[i] = frames[i]->id();
      // The copy was taken by this thread, and only this write changes the frame's writing_lsn.
      changes[i] = {Lsn{frames[i]->writing_lsn}, Lsn{newest_end}};
      STRATA_ASSERT(page_id_of(buffer.at(i)) == ids[i]);
      seal_page(buffer.at(i));
    }
    status = source_->write_changed(ids, changes, static_cast<uint32_t>(count), buffer.at(0), ok);
  }
  const auto written = static_cast<size_t>(std::count(ok, ok + count, true));
  counters_.writes.fetch_add(written, std::memory_order_relaxed);
  counters_.write_errors.fetch_add(count - written, std::memory_order_relaxed);
  const auto failed = static_cast<size_t>(std::find(ok, ok + count, false) - ok);
  note_write_result(status, frames[std::min(failed, count - 1)]->id());
  if (!status.ok() && written != 0) note_write_result(ok_status(), frames[0]->id());
  dirty_->end_write(frames, ok, count);
  return status;
}

Status BufferPool::Impl::write_frames(WriteBuffer& buffer, Frame** frames, size_t count, bool wait,
                                      std::vector<Frame*>* busy_out, size_t* written) noexcept {
  STRATA_ASSERT(count <= kWriteBatchPages);
  Frame* mine[kWriteBatchPages];
  size_t copied = 0;
  uint64_t newest_end = 0;
  for (size_t i = 0; i < count; ++i) {
    bool busy = false;
    if (copy_for_write(frames[i], buffer.at(copied), &newest_end, wait, &busy))
      mine[copied++] = frames[i];
    else if (busy && busy_out != nullptr)
      busy_out->push_back(frames[i]);
    else
      unpin(frames[i]);
  }
  if (copied == 0) return ok_status();
  const Status status = write_copies(buffer, mine, copied, newest_end);
  if (status.ok() && written != nullptr) *written += copied;
  for (size_t i = 0; i < copied; ++i) unpin(mine[i]);
  batches_written_.fetch_add(1, std::memory_order_relaxed);
  return status;
}

// One message when writes begin to fail and one when they work again.
void BufferPool::Impl::note_write_result(const Status& status, PageId id) noexcept {
  if (status.ok()) {
    if (write_failing_.load(std::memory_order_relaxed) && write_failing_.exchange(false))
      diag(Severity::kInfo, "writing pages back works again");
    return;
  }
  if (write_failing_.load(std::memory_order_relaxed)) return;
  {
    const MutexLock lock(signal_mutex_);
    write_failure_ = status;
  }
  if (!write_failing_.exchange(true))
    diag(Severity::kError,
         "cannot write page %u of space %u back: %s. It stays in memory and in the log; retrying",
         id.number, id.space, std::string(status.message()).c_str());
}

// --- checkpoints ---

Status BufferPool::Impl::write_back_below(uint64_t lsn,
                                          absl::FunctionRef<void(size_t)> written) noexcept {
  WriteBuffer buffer;
  std::vector<Frame*> busy;
  Frame* frames[kCheckpointPins];
  while (!dirty_->clean_below(lsn)) {
    const size_t count = dirty_->pin_below(lsn, frames, kCheckpointPins);
    if (count == 0) {  // all of them are being written by somebody else
      dirty_->wait_for_write(nullptr);
      continue;
    }
    sort_by_page(frames, count);
    busy.clear();
    Status status;
    size_t i = 0;
    for (; i < count && status.ok(); i += std::min(kWriteBatchPages, count - i))
      status = write_frames(buffer, frames + i, std::min(kWriteBatchPages, count - i),
                            /*wait=*/false, &busy, nullptr);
    for (; i < count; ++i) unpin(frames[i]);
    // Whoever holds these latches does not wait for us: no mutex and no latch is held here.
    for (Frame* frame : busy) {
      if (status.ok())
        status = write_frames(buffer, &frame, 1, /*wait=*/true, nullptr, nullptr);
      else
        unpin(frame);
    }
    STRATA_RETURN_IF_ERROR(status);
    written(count);
  }
  return ok_status();
}

// --- giving pages up (PL2) ---

Status BufferPool::Impl::write_back_pages(const PageId* ids, uint32_t count) noexcept {
  STRATA_ASSERT(count <= kWriteBatchPages);
  Frame* dirty[kWriteBatchPages];
  size_t dirty_count = 0;
  for (uint32_t i = 0; i < count; ++i) {
    Frame* const frame = pin_cached(ids[i].packed());
    if (frame == nullptr) continue;
    if ((frame->dirty.load(std::memory_order_acquire) & kListed) != 0)
      dirty[dirty_count++] = frame;
    else
      unpin(frame);
  }
  if (dirty_count == 0) return ok_status();
  sort_by_page(dirty, dirty_count);
  WriteBuffer buffer;
  return write_frames(buffer, dirty, dirty_count, /*wait=*/true, nullptr, nullptr);
}

// Null: nothing of the page is here, nor will be without another acquire().
Frame* BufferPool::Impl::pin_to_surrender(uint64_t packed) noexcept {
  Partition& p = partition_of(packed);
  const MutexLock lock(p.mutex);
  Frame* frame = lookup(p, packed);
  if (frame == nullptr) return nullptr;
  const FrameState state = frame->state.load(std::memory_order_relaxed);
  if (state == FrameState::kLocking || state == FrameState::kLockRevoked) {
    frame->state.store(FrameState::kLockRevoked, std::memory_order_relaxed);
    return nullptr;
  }
  pin_in_table(p, frame);
  return frame;
}

Status BufferPool::Impl::surrender(PageId id) noexcept {
  for (;;) {
    Frame* frame = pin_to_surrender(id.packed());
    if (frame == nullptr) return ok_status();
    frame->latch.lock();  // guards are gone, and a load has ended
    if (frame->state.load(std::memory_order_relaxed) == FrameState::kDetached) {
      frame->latch.unlock();
      unpin(frame);
      continue;
    }
    Status status;
    if (frame->dirty.load(std::memory_order_acquire) != 0) {
      WriteBuffer buffer;
      while (status.ok() && frame->dirty.load(std::memory_order_acquire) != 0) {
        if (!dirty_->begin_write(frame)) {
          dirty_->wait_for_write(frame);
          continue;
        }
        std::memcpy(buffer.at(0), frame->page, kPageBytes);
        status = write_copies(buffer, &frame, 1, frame->newest_end);
      }
    }
    if (status.ok()) detach(frame);
    frame->latch.unlock();
    unpin(frame);
    return status;
  }
}

// --- the background writer (B3) ---

// Evicts clean pages from the cold end until the free list reaches its target; pins dirty ones met
// on the way, and now and then those among the coldest kCleanAhead, for the caller to write.
size_t BufferPool::Impl::refill_scan(Partition& p, Frame** dirty, size_t max) noexcept {
  size_t count = 0;
  const MutexLock lock(p.mutex);
  const bool looks_ahead = p.evictions_to_look_ahead == 0;
  uint32_t index = p.lru.coldest();
  uint32_t i = 0;
  for (; index != kNoFrame && i < kRefillDepth; ++i) {
    const bool enough = p.free_count.load(std::memory_order_relaxed) >= free_target_per_partition_;
    if (enough && (!looks_ahead || i >= kCleanAhead || count == max)) break;
    Frame* frame = &frames_[index];
    index = p.lru.warmer(index);
    if (!enough && try_evict(p, frame)) {
      put_free(p, frame);
    } else if (frame->dirty.load(std::memory_order_relaxed) == kListed &&
               frame->pins.load(std::memory_order_relaxed) == 0 && count < max) {
      pin_in_table(p, frame);
      dirty[count++] = frame;
    }
  }
  counters_.looked_at.fetch_add(i, std::memory_order_relaxed);
  // Otherwise at once: there may be more of them.
  if (looks_ahead && count < kWorthwhileBatch)
    p.evictions_to_look_ahead = static_cast<uint32_t>(kWorthwhileBatch - count);
  return count;
}

bool BufferPool::Impl::refill(Partition& p, WriteBuffer& buffer) noexcept {
  Frame* dirty[kWriteBatchPages];
  for (;;) {
    const uint32_t free_before = p.free_count.load(std::memory_order_relaxed);
    const size_t count = refill_scan(p, dirty, kWriteBatchPages);
    size_t written = 0;
    const bool only_ahead =
        p.free_count.load(std::memory_order_relaxed) >= free_target_per_partition_;
    if (only_ahead && (count < kWorthwhileBatch || write_failing_.load())) {
      for (size_t i = 0; i < count; ++i) unpin(dirty[i]);
    } else if (count != 0) {
      sort_by_page(dirty, count);
      // A failure is reported and counted there; the pages stay dirty.
      (void)write_frames(buffer, dirty, count, /*wait=*/false, nullptr, &written);
    }
    const uint32_t free_after = p.free_count.load(std::memory_order_relaxed);
    const uint32_t freed = free_after > free_before ? free_after - free_before : 0;
    wake_waiters(freed + static_cast<uint32_t>(written));
    if (free_after >= free_target_per_partition_) return true;
    if (written == 0) return false;
  }
}

// So many frames can be had now, free or clean.
void BufferPool::Impl::wake_waiters(uint32_t frames) noexcept {
  const uint32_t waiters = frame_waiters_.load(std::memory_order_relaxed);
  if (frames == 0 || waiters == 0) return;
  const MutexLock lock(signal_mutex_);
  for (uint32_t i = 0; i < std::min(frames, waiters); ++i) frame_freed_.notify_one();
}

void BufferPool::Impl::signal_writer(uint32_t partition_index) noexcept {
  if (writers_.empty()) return;
  Writer& writer = *writers_[partition_index % writers_.size()];
  if (writer.signalled.load(std::memory_order_relaxed) || writer.signalled.exchange(true)) return;
  const MutexLock lock(signal_mutex_);
  writer.wake.notify_one();
}

// Sleeps until a partition runs low. After a failed write it tries again by itself, ever more
// rarely.
void BufferPool::Impl::writer_main(uint32_t index) noexcept {
  name_this_thread("page-writer");
  Writer& self = *writers_[index];
  WriteBuffer buffer;
  uint64_t backoff_us = kBackoffUsMin;
  for (;;) {
    {
      MutexLock lock(signal_mutex_);
      self.wake.wait(
          lock, [&]() STRATA_REQUIRES(signal_mutex_) { return stop_ || self.signalled.load(); });
      if (stop_) return;
      self.signalled.store(false);
    }
    bool reached = true;
    for (uint32_t i = index; i <= partition_mask_; i += static_cast<uint32_t>(writers_.size()))
      reached = refill(partitions_[i], buffer) && reached;
    const bool failing = write_failing_.load(std::memory_order_relaxed);
    if (!failing) backoff_us = kBackoffUsMin;
    // Everything cold is pinned or latched: only someone who waits for a frame makes it worth a
    // retry.
    if (reached || (!failing && frame_waiters_.load(std::memory_order_relaxed) == 0)) continue;
    self.signalled.store(true);
    MutexLock lock(signal_mutex_);
    self.wake.wait_for_us(lock, failing ? backoff_us : 1000,
                          [&]() STRATA_REQUIRES(signal_mutex_) { return stop_; });
    if (failing) backoff_us = std::min(backoff_us * 2, kBackoffUsMax);
  }
}

// --- read-ahead ---

uint32_t BufferPool::read_ahead_pages() const noexcept {
  // Not so many that scans throw out each other's pages before they have come to them.
  return std::clamp<uint32_t>(impl_->frame_count_ / 256, 4, kReadAheadPages);
}

void BufferPool::read_ahead(const PageId* ids, uint32_t count) noexcept {
  Impl& impl = *impl_;
  if (impl.read_ahead_threads_.empty()) return;
  std::array<PageId, kReadAheadPages> missing;
  uint32_t missing_count = 0;
  for (uint32_t i = 0; i < std::min<uint32_t>(count, kReadAheadPages); ++i) {
    if (Frame* frame = impl.find_and_pin(ids[i].packed()); frame != nullptr)
      impl.unpin(frame);
    else
      missing[missing_count++] = ids[i];
  }
  if (missing_count == 0) return;
  const MutexLock lock(impl.signal_mutex_);
  for (uint32_t i = 0; i < missing_count; ++i) {
    if (impl.read_ahead_queue_.size() >= kReadAheadMax) break;
    impl.read_ahead_queue_.push_back(missing[i]);
    if (i % kReadBatchPages == 0) impl.read_ahead_wake_.notify_one();
  }
}

void BufferPool::Impl::read_ahead_main() noexcept {
  name_this_thread("read-ahead");
  for (ReadAheadBatchPtr batch; take_read_ahead(&batch);) begin_read_ahead(std::move(batch));
}

// Waits for pages to read and for a batch that may be begun. False: the pool ends.
bool BufferPool::Impl::take_read_ahead(ReadAheadBatchPtr* batch) noexcept {
  // More only where a source reads without a thread of ours, and never a large part of the pool.
  const uint32_t most =
      std::clamp<uint32_t>(frame_count_ / 256, kReadAheadThreads, kReadAheadBatches);
  std::array<PageId, kReadBatchPages> ids;
  uint32_t count = 0;
  {
    MutexLock lock(signal_mutex_);
    read_ahead_wake_.wait(lock, [&]() STRATA_REQUIRES(signal_mutex_) {
      return stop_ || (!read_ahead_queue_.empty() && read_ahead_under_way_ < most);
    });
    if (stop_) return false;
    for (; count < ids.size() && !read_ahead_queue_.empty(); ++count) {
      ids[count] = read_ahead_queue_.front();
      read_ahead_queue_.pop_front();
    }
    ++read_ahead_under_way_;
    if (!read_ahead_idle_.empty()) {
      *batch = std::move(read_ahead_idle_.back());
      read_ahead_idle_.pop_back();
    }
  }
  if (*batch == nullptr) *batch = std::make_unique<ReadAheadBatch>();
  std::sort(ids.begin(), ids.begin() + count);  // neighbours next to each other
  (*batch)->ids = ids;
  (*batch)->count = count;
  return true;
}

void BufferPool::Impl::put_back(ReadAheadBatchPtr batch) noexcept {
  const MutexLock lock(signal_mutex_);
  read_ahead_idle_.push_back(std::move(batch));
  --read_ahead_under_way_;
  // With the mutex held: the pool may be gone once it is not.
  if (stop_)
    read_ahead_ended_.notify_all();
  else if (!read_ahead_queue_.empty())
    read_ahead_wake_.notify_one();
}

// Nothing but the source is waited for while the frames are latched.
void BufferPool::Impl::begin_read_ahead(ReadAheadBatchPtr batch) noexcept {
  if (lock_ != nullptr) {  // each page is locked first
    for (uint32_t i = 0; i < batch->count; ++i)
      (void)access(batch->ids[i], LatchMode::kShared, Access::kReadAhead, nullptr);
    return put_back(std::move(batch));
  }
  uint32_t wanted = 0;
  for (uint32_t i = 0; i < batch->count; ++i) {
    bool inserted = false;
    Status no_frame;
    Frame* frame = pin_or_insert(batch->ids[i].packed(), Access::kReadAhead, &inserted, &no_frame);
    if (frame == nullptr) break;
    if (!inserted) {
      unpin(frame);
      continue;
    }
    batch->frames[wanted] = frame;
    batch->ids[wanted++] = batch->ids[i];
  }
  batch->count = wanted;
  if (wanted == 0) return put_back(std::move(batch));
  counters_.misses.fetch_add(wanted, std::memory_order_relaxed);
  counters_.reads.fetch_add(wanted, std::memory_order_relaxed);
  counters_.read_ahead.fetch_add(wanted, std::memory_order_relaxed);
  ReadAheadBatch* const of = batch.get();
  source_->start_read_batch(
      of->ids.data(), wanted, of->pages.get(), of->results.data(),
      [this, batch = std::move(batch)]() mutable { end_read_ahead(std::move(batch)); });
}

// In whatever thread the source has.
void BufferPool::Impl::end_read_ahead(ReadAheadBatchPtr batch) noexcept {
  for (uint32_t i = 0; i < batch->count; ++i) {
    Frame* const frame = batch->frames[i];
    Status& result = batch->results[i];
    if (result.ok())
      std::memcpy(frame->page, batch->pages.get() + size_t{i} * kPageBytes, kPageBytes);
    // A failed one is let go: whoever needs it reads it himself, and hears why he cannot.
    if (!finish_load(frame, batch->ids[i], std::exchange(result, ok_status()), FrameState::kReady)
             .ok())
      continue;
    frame->unlock_handed_on(LatchMode::kExclusive);
    unpin(frame);
  }
  put_back(std::move(batch));
}

// --- threads ---

void BufferPool::Impl::start_threads() {
  // Built complete before the first thread looks at it.
  for (uint32_t i = 0; i < options_.writers; ++i) writers_.push_back(std::make_unique<Writer>());
  for (uint32_t i = 0; i < writers_.size(); ++i)
    writers_[i]->thread = std::thread([this, i] { writer_main(i); });
  if (!writers_.empty()) {
    for (size_t i = 0; i < kReadAheadThreads; ++i)
      read_ahead_threads_.emplace_back([this] { read_ahead_main(); });
  }
}

void BufferPool::Impl::stop_threads() noexcept {
  {
    const MutexLock lock(signal_mutex_);
    stop_ = true;
    for (auto& writer : writers_) writer->wake.notify_all();
    read_ahead_wake_.notify_all();
  }
  for (auto& writer : writers_)
    if (writer->thread.joinable()) writer->thread.join();
  for (std::thread& thread : read_ahead_threads_) thread.join();
  read_ahead_threads_.clear();
  MutexLock lock(signal_mutex_);
  read_ahead_ended_.wait(
      lock, [&]() STRATA_REQUIRES(signal_mutex_) { return read_ahead_under_way_ == 0; });
}

}  // namespace strata
