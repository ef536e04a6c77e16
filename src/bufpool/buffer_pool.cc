#include "bufpool/buffer_pool.h"

#include <cstring>
#include <new>

#include "base/assert.h"
#include "base/clock.h"
#include "base/page_name.h"
#include "bufpool/pool_impl.h"

namespace strata {

// --- guards ---

PageGuard& PageGuard::operator=(PageGuard&& other) noexcept {
  if (this == &other) return *this;
  release();
  pool_ = other.pool_;
  frame_ = std::exchange(other.frame_, nullptr);
  page_ = std::exchange(other.page_, nullptr);
  mode_ = other.mode_;
  return *this;
}

void PageGuard::release() noexcept {
  if (frame_ == nullptr) return;
  BufferPool::Impl& impl = *pool_->impl_;
  const PageId id = frame_->id();
  frame_->unlock_handed_on(mode_);
  impl.unpin(frame_);
  impl.release_lock(id);
  frame_ = nullptr;
  page_ = nullptr;
}

char* PageGuard::mutable_page() const noexcept {
  STRATA_ASSERT(mode_ == LatchMode::kExclusive);
  return page_;
}

PageId PageGuard::id() const noexcept { return frame_->id(); }

Status expect_written(const Status& status, PageId id) {
  if (!is_not_found(status)) return status;
  return error_corruption(name_of(id) +
                          " is in use, but what is stored of it says that it was never written (" +
                          std::string(status.message()) + ")");
}

// --- pins ---

// A pin taken here is worth something only if the frame holds the page; then it keeps holding it
// (F1). The walk races with inserts and removals: it may end in another chain or miss the page,
// never loop.
Frame* BufferPool::Impl::find_and_pin(uint64_t packed) noexcept {
  uint32_t index = buckets_[bucket_of(packed)].load(std::memory_order_acquire);
  for (int steps = 0; index != kNoFrame && steps < 8; ++steps) {
    Frame& frame = frames_[index];
    if (frame.page_id.load(std::memory_order_relaxed) == packed) {
      const uint32_t pins = frame.pins.fetch_add(1, std::memory_order_acq_rel);
      if ((pins & kOwned) == 0 && frame.page_id.load(std::memory_order_relaxed) == packed)
        return &frame;
      unpin(&frame);
      return nullptr;
    }
    index = frame.hash_next.load(std::memory_order_acquire);
  }
  return nullptr;
}

void BufferPool::Impl::unpin(Frame* frame) noexcept {
  // Descriptors are never freed, so looking at the frame after the pin is gone is fine. Acquire:
  // pairs with the detaching thread's own unpin, which follows its store of kDetached.
  const uint32_t pins = frame->pins.fetch_sub(1, std::memory_order_acq_rel);
  if (pins == 1 && frame->state.load(std::memory_order_relaxed) == FrameState::kDetached)
    reclaim(frame);
}

void BufferPool::Impl::reclaim(Frame* frame) noexcept {
  const uint64_t packed = frame->page_id.load(std::memory_order_relaxed);
  if (packed == kNoPageId) return;  // somebody else did
  Partition& p = partition_of(packed);
  {
    const MutexLock lock(p.mutex);
    if (frame->page_id.load(std::memory_order_relaxed) != packed ||
        frame->state.load(std::memory_order_relaxed) != FrameState::kDetached)
      return;
    uint32_t none = 0;
    if (!frame->pins.compare_exchange_strong(none, kOwned, std::memory_order_acq_rel)) return;
    put_free(p, frame);
  }
}

void BufferPool::Impl::detach(Frame* frame) noexcept {
  STRATA_ASSERT(frame->dirty.load(std::memory_order_acquire) == 0);
  Partition& p = partition_of(frame->page_id.load(std::memory_order_relaxed));
  const MutexLock lock(p.mutex);
  hash_remove(p, frame);
  p.lru.remove(frame);
  frame->state.store(FrameState::kDetached, std::memory_order_release);
}

// --- finding and making ---

Frame* BufferPool::Impl::lookup(const Partition&, uint64_t packed) noexcept {
  uint32_t index = buckets_[bucket_of(packed)].load(std::memory_order_relaxed);
  while (index != kNoFrame) {
    Frame& frame = frames_[index];
    if (frame.page_id.load(std::memory_order_relaxed) == packed) return &frame;
    index = frame.hash_next.load(std::memory_order_relaxed);
  }
  return nullptr;
}

void BufferPool::Impl::pin_in_table(const Partition&, Frame* frame) noexcept {
  const uint32_t pins = frame->pins.fetch_add(1, std::memory_order_acq_rel);
  // Owners take frames out of the table, or let them go, before they drop the mutex.
  STRATA_ASSERT((pins & kOwned) == 0);
}

Frame* BufferPool::Impl::pin_cached(uint64_t packed) noexcept {
  Partition& p = partition_of(packed);
  const MutexLock lock(p.mutex);
  Frame* frame = lookup(p, packed);
  if (frame == nullptr) return nullptr;
  pin_in_table(p, frame);
  return frame;
}

// The frame is owned: nobody else touches it until the last line gives it one pin and lets it go.
void BufferPool::Impl::insert(Partition& p, Frame* frame, uint64_t packed, Access access) noexcept {
  const bool latched = frame->try_lock_to_hand_on(LatchMode::kExclusive);
  STRATA_ASSERT(latched);  // latches are taken with a pin only
  const bool locks_now = lock_ != nullptr && !locks_first_;
  frame->state.store(locks_now ? FrameState::kLocking : FrameState::kLoading,
                     std::memory_order_relaxed);
  frame->newest_end = 0;
  frame->image_lsn = 0;
  frame->page_id.store(packed, std::memory_order_relaxed);
  hash_insert(p, frame, packed);
  p.lru.insert(frame, access == Access::kReadAhead ? 0 : coarse_now_us());
  frame->pins.fetch_sub(kOwned - 1, std::memory_order_acq_rel);
}

// Returns a pinned frame; *inserted: it is new, kLoading, and the caller holds its exclusive latch.
Frame* BufferPool::Impl::pin_or_insert(uint64_t packed, Access access, bool* inserted,
                                       Status* status) noexcept {
  Partition& p = partition_of(packed);
  const uint32_t index = static_cast<uint32_t>(&p - partitions_.get());
  uint64_t started_us = 0;
  Frame* spare = nullptr;
  for (;;) {
    Frame* found = nullptr;
    bool wake = false;
    {
      const MutexLock lock(p.mutex);
      found = lookup(p, packed);
      if (found != nullptr) {
        pin_in_table(p, found);
        if (spare != nullptr) put_free(p, spare);
      } else {
        if (spare == nullptr) spare = take_free(p);
        if (spare == nullptr && !is_small(p)) spare = evict_one(p, Hunt::kOldPages);
        if (spare != nullptr) {
          insert(p, spare, packed, access);
          found = spare;
          *inserted = true;
        }
        wake = p.free_count.load(std::memory_order_relaxed) * 2 <= free_target_per_partition_;
      }
    }
    if (wake) signal_writer(index);
    if (found != nullptr) return found;
    spare = take_anywhere(index, Hunt::kOldPages);
    // Young pages go when the writer cannot help: soon after, they would be read again.
    const bool waited = started_us != 0 && monotonic_us() - started_us >= kAnyPageAfterUs;
    if (spare == nullptr && (waited || writers_.empty()))
      spare = take_anywhere(index, Hunt::kAnyPage);
    if (spare != nullptr) continue;
    if (access == Access::kReadAhead) {
      *status = error_no_space();
      return nullptr;
    }
    if (started_us == 0) started_us = monotonic_us();
    *status = wait_for_frame(started_us);
    if (!status->ok()) return nullptr;
  }
}

// The page lock of one access(), until there is a guard that it goes with (PL5). Without locks
// nothing is ever held.
class BufferPool::Impl::HeldLock {
 public:
  HeldLock(Impl* impl, PageId id) noexcept : impl_(impl), id_(id) {}
  ~HeldLock() { release(); }
  HeldLock(const HeldLock&) = delete;
  HeldLock& operator=(const HeldLock&) = delete;

  // Who does not want to wait for a latch does not wait for another node either.
  Status acquire(LatchMode mode, Access access) noexcept {
    const bool never_waits = access == Access::kTry || access == Access::kAtHand;
    Status status = never_waits ? impl_->lock_->try_acquire(id_, mode, &newest)
                                : impl_->lock_->acquire(id_, mode, &newest);
    held_ = status.ok();
    return status;
  }
  void release() noexcept {
    if (held_) impl_->release_lock(id_);
    held_ = false;
  }
  void pass_to_guard() noexcept { held_ = false; }

  Llsn newest;  // what a read must return at least

 private:
  Impl* const impl_;
  const PageId id_;
  bool held_ = false;
};

// The exclusive latch of a new frame is held, and acquire() may wait for another node to give the
// page up, while this node's own older hold is being taken away: surrender() must not wait for this
// frame then. It marks the frame instead, and what was acquired before the mark is acquired again.
// Once the frame is kLoading, surrender() waits for the latch (PL1).
Status BufferPool::Impl::lock_before_load(Frame* frame, LatchMode mode, Access access,
                                          HeldLock* held) noexcept {
  Partition& p = partition_of(frame->page_id.load(std::memory_order_relaxed));
  for (;;) {
    STRATA_RETURN_IF_ERROR(held->acquire(mode, access));
    {
      const MutexLock lock(p.mutex);
      if (frame->state.load(std::memory_order_relaxed) == FrameState::kLocking) {
        frame->state.store(FrameState::kLoading, std::memory_order_relaxed);
        return ok_status();
      }
      frame->state.store(FrameState::kLocking, std::memory_order_relaxed);
    }
    held->release();
  }
}

// Fills a frame that insert() made. On success it is kReady or kBlank and still latched
// exclusively; on failure it is detached and let go (B6).
Status BufferPool::Impl::load(Frame* frame, PageId id, LatchMode mode, Access access,
                              HeldLock* held, bool* damaged) noexcept {
  const bool locks_now = lock_ != nullptr && !locks_first_;
  Status status = locks_now ? lock_before_load(frame, mode, access, held) : ok_status();
  FrameState state = FrameState::kReady;
  if (status.ok() && access == Access::kNew) {
    std::memset(frame->page, 0, kPageBytes);
    state = FrameState::kBlank;
  } else if (status.ok()) {
    counters_.reads.fetch_add(1, std::memory_order_relaxed);
    status = source_->read(id, held->newest, frame->page);
    if (access == Access::kRedo && (is_not_found(status) || is_corruption(status))) {
      state = is_corruption(status) ? FrameState::kBlankDamaged : FrameState::kBlank;
      if (damaged != nullptr) *damaged = is_corruption(status);
      std::memset(frame->page, 0, kPageBytes);
      status = ok_status();
    }
  }
  return finish_load(frame, id, std::move(status), state);
}

// load() once the page is in the frame, or could not be read.
Status BufferPool::Impl::finish_load(Frame* frame, PageId id, Status status,
                                     FrameState state) noexcept {
  Log* log = log_.load(std::memory_order_acquire);
  if (status.ok() && log != nullptr && state == FrameState::kReady) {
    const Llsn llsn{header_of(frame->page)->llsn};
    if (options_.sole_writer && llsn > log->last_llsn()) {
      status = error_corruption(name_of(id) + " is newer (llsn " + std::to_string(llsn.value) +
                                ") than the log (llsn " + std::to_string(log->last_llsn().value) +
                                "): the end of the log was lost, or the page is not of this time");
    } else {
      log->observe_llsn(llsn);
    }
  }
  if (!status.ok()) {
    detach(frame);
    tell_loaded(frame);
    frame->unlock_handed_on(LatchMode::kExclusive);
    unpin(frame);
    return status;
  }
  frame->state.store(state, std::memory_order_release);
  tell_loaded(frame);
  return status;
}

namespace {
bool is_loading(const Frame& frame) noexcept {
  const FrameState state = frame.state.load(std::memory_order_acquire);
  return state == FrameState::kLoading || state == FrameState::kLocking ||
         state == FrameState::kLockRevoked;
}
}  // namespace

Status BufferPool::Impl::wait_for_load(Frame* frame) noexcept {
  WaitInterrupt* const interrupt = WaitInterrupt::current();
  if (interrupt == nullptr) return ok_status();  // waits at the latch
  LoadWait& wait = load_wait_of(frame);
  CondVarSleep sleep(&wait.mutex, &wait.ended);
  const WaitInterrupt::Asleep asleep(interrupt, &sleep);
  Status status;
  // Pairs with the one in tell_loaded(): whichever comes second in the counter's modification order
  // sees what the other has done. It sees us, or we see the new state.
  wait.waiters.fetch_add(1, std::memory_order_acq_rel);
  {
    MutexLock lock(wait.mutex);
    while (status.ok() && is_loading(*frame)) {
      if (interrupt->interrupted())
        status = error_interrupted();
      else
        wait.ended.wait(lock);
    }
  }
  wait.waiters.fetch_sub(1, std::memory_order_relaxed);
  return status;
}

void BufferPool::Impl::tell_loaded(Frame* frame) noexcept {
  LoadWait& wait = load_wait_of(frame);
  if (wait.waiters.fetch_add(0, std::memory_order_acq_rel) == 0) return;
  { const MutexLock lock(wait.mutex); }
  wait.ended.notify_all();
}

StatusOr<PageGuard> BufferPool::Impl::access(PageId id, LatchMode mode, Access access,
                                             bool* damaged) noexcept {
  const uint64_t packed = id.packed();
  const bool never_waits = access == Access::kTry || access == Access::kAtHand;
  HeldLock held(this, id);
  if (locks_first_) STRATA_RETURN_IF_ERROR(held.acquire(mode, access));  // PL6
  bool counted = false;
  for (;;) {
    Frame* frame = find_and_pin(packed);
    bool inserted = false;
    if (frame == nullptr) {
      if (access == Access::kAtHand) return error_busy();
      Status status;
      frame = pin_or_insert(packed, access, &inserted, &status);
      if (frame == nullptr) return status;
    }
    if (!counted) {
      counted = true;
      if (inserted)
        counters_.misses.fetch_add(1, std::memory_order_relaxed);
      else
        count_hit();
    }
    if (inserted) {
      STRATA_RETURN_IF_ERROR(load(frame, id, mode, access, &held, damaged));
      // The pin keeps the page here.
      if (mode == LatchMode::kShared) frame->unlock_handed_on(LatchMode::kExclusive);
    }
    if (!inserted && !never_waits && is_loading(*frame)) {
      Status status = wait_for_load(frame);
      if (!status.ok()) {
        unpin(frame);
        return status;
      }
    }
    // Locked by the node first, latched afterwards: whoever gives the page lock up detaches the
    // frame. One that is still being locked it cannot detach, only mark (lock_before_load()): a
    // lock got meanwhile would be taken away unnoticed, and the page be changed under another's
    // nose.
    if (lock_ != nullptr && !inserted && !locks_first_) {
      if (is_loading(*frame)) {
        if (never_waits) {
          unpin(frame);
          return error_peer_down();  // kUnavailable, no message
        }
        frame->latch.lock_shared();
        frame->latch.unlock_shared();
      }
      Status status = held.acquire(mode, access);
      if (!status.ok()) {
        unpin(frame);
        return status;
      }
    }
    if (inserted && mode == LatchMode::kExclusive) {
      // still latched since insert()
    } else if (never_waits) {
      if (!frame->try_lock_to_hand_on(mode)) {
        unpin(frame);
        return error_busy();
      }
    } else {
      frame->lock_to_hand_on(mode);
    }
    const FrameState state = frame->state.load(std::memory_order_relaxed);
    const bool blank = state == FrameState::kBlank || state == FrameState::kBlankDamaged;
    const bool may_be_blank = access == Access::kNew || access == Access::kRedo;
    if (__builtin_expect(state == FrameState::kReady, 1) || (blank && may_be_blank)) {
      if (!blank && !inserted && lru_of(frame).needs_touch(frame)) touch(frame);
      if (blank && access == Access::kRedo && damaged != nullptr)
        *damaged = state == FrameState::kBlankDamaged;
      PageGuard guard;
      guard.pool_ = pool_;
      guard.frame_ = frame;
      guard.page_ = frame->page;
      guard.mode_ = mode;
      held.pass_to_guard();
      return guard;
    }
    frame->unlock_handed_on(mode);
    unpin(frame);
    if (!locks_first_) held.release();
    // Zeroes nobody ever read are not a page: forget them and ask the source. kDetached: the load
    // failed or the page was given up meanwhile. Look again.
    if (blank) drop_blank(packed);
  }
}

// With page locks between nodes a cached page may be another node's by now: only fix() knows. What
// is brought in is fixed later, so a hint is enough here.
bool BufferPool::Impl::is_ready(uint64_t packed) noexcept {
  if (lock_ != nullptr && !lock_->seems_held(PageId::unpack(packed), LatchMode::kShared))
    return false;
  Frame* frame = find_and_pin(packed);
  if (frame == nullptr) return false;
  const bool ready = frame->state.load(std::memory_order_acquire) == FrameState::kReady;
  if (ready && lru_of(frame).needs_touch(frame)) touch(frame);
  unpin(frame);
  return ready;
}

void BufferPool::Impl::drop_blank(uint64_t packed) noexcept {
  Frame* frame = pin_cached(packed);
  if (frame == nullptr) return;
  frame->latch.lock();
  const FrameState state = frame->state.load(std::memory_order_relaxed);
  if (state == FrameState::kBlank || state == FrameState::kBlankDamaged) detach(frame);
  frame->latch.unlock();
  unpin(frame);
}

// Recency is a hint: when the mutex is busy the page just misses one promotion.
void BufferPool::Impl::touch(Frame* frame) noexcept {
  if (frame->first_use_us.load(std::memory_order_relaxed) == 0) {  // read ahead, used now
    frame->first_use_us.store(coarse_now_us(), std::memory_order_relaxed);
    if (options_.old_time_us != 0) return;
  }
  Partition& p = partition_of(frame->page_id.load(std::memory_order_relaxed));
  if (!p.mutex.try_lock()) return;
  const MutexLock lock(p.mutex, std::adopt_lock);
  p.lru.make_young(frame);
}

void BufferPool::Impl::count_hit() noexcept {
  static std::atomic<uint32_t> next_shard{0};
  thread_local const uint32_t shard =
      next_shard.fetch_add(1, std::memory_order_relaxed) % kHitShards;
  // Not a read-modify-write: two of more than kHitShards threads may lose each other's counts.
  std::atomic<uint64_t>& hits = hit_shards_[shard].hits;
  hits.store(hits.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

// --- the public face ---

BufferPool::BufferPool() = default;
BufferPool::~BufferPool() { impl_->stop_threads(); }

StatusOr<std::unique_ptr<BufferPool>> BufferPool::create(const BufferPoolOptions& options,
                                                         PageSource* source, PageLock* lock,
                                                         Log* log) {
  std::unique_ptr<BufferPool> pool(new BufferPool());
  pool->impl_ = std::make_unique<Impl>(options, source, lock, log);
  pool->impl_->pool_ = pool.get();
  STRATA_RETURN_IF_ERROR(pool->impl_->init());
  pool->impl_->start_threads();
  return pool;
}

StatusOr<PageGuard> BufferPool::fix(PageId id, LatchMode mode) noexcept {
  return impl_->access(id, mode, Access::kRead, nullptr);
}
StatusOr<PageGuard> BufferPool::try_fix(PageId id, LatchMode mode) noexcept {
  return impl_->access(id, mode, Access::kTry, nullptr);
}
StatusOr<PageGuard> BufferPool::fix_if_at_hand(PageId id) noexcept {
  return impl_->access(id, LatchMode::kShared, Access::kAtHand, nullptr);
}
Status BufferPool::bring_in(PageId id) noexcept {
  return impl_->is_ready(id.packed()) ? ok_status() : fix(id, LatchMode::kShared).status();
}
StatusOr<PageGuard> BufferPool::fix_new(PageId id) noexcept {
  return impl_->access(id, LatchMode::kExclusive, Access::kNew, nullptr);
}
StatusOr<PageGuard> BufferPool::fix_for_redo(PageId id, bool* damaged) noexcept {
  if (damaged != nullptr) *damaged = false;
  return impl_->access(id, LatchMode::kExclusive, Access::kRedo, damaged);
}

void BufferPool::note_modified(const PageGuard& guard, Lsn group_start, Lsn group_end,
                               bool image) noexcept {
  STRATA_ASSERT(guard.mode() == LatchMode::kExclusive);
  Frame* frame = guard.frame();
  if (group_end.value > frame->newest_end) frame->newest_end = group_end.value;
  if (image) frame->image_lsn = group_start.value;
  if (frame->state.load(std::memory_order_relaxed) != FrameState::kReady)
    frame->state.store(FrameState::kReady, std::memory_order_relaxed);
  const bool listed = (frame->dirty.load(std::memory_order_relaxed) & kListed) != 0;
  if (listed && group_start.value >= frame->first_lsn.load(std::memory_order_relaxed)) return;
  impl_->dirty_->add(frame, group_start.value);
}

Lsn BufferPool::image_lsn(const PageGuard& guard) const noexcept {
  return Lsn{guard.frame()->image_lsn};
}

Status BufferPool::write_back_below(Lsn lsn, absl::FunctionRef<void(size_t)> written) {
  return impl_->write_back_below(lsn.value, written);
}
Lsn BufferPool::oldest_dirty_lsn() const { return Lsn{impl_->dirty_->oldest()}; }

void BufferPool::discard_space(SpaceId space) { impl_->discard_space(space.value); }
Status BufferPool::write_back_pages(const PageId* ids, uint32_t count) {
  return impl_->write_back_pages(ids, count);
}
Status BufferPool::surrender(PageId id) { return impl_->surrender(id); }

BufferPoolCounters& BufferPool::counters() noexcept {
  uint64_t hits = 0;
  for (size_t i = 0; i < kHitShards; ++i)
    hits += impl_->hit_shards_[i].hits.load(std::memory_order_relaxed);
  impl_->counters_.hits.store(hits, std::memory_order_relaxed);
  return impl_->counters_;
}

uint32_t BufferPool::frame_count() const noexcept { return impl_->frame_count_; }
uint32_t BufferPool::free_count() const noexcept {
  uint32_t count = 0;
  for (uint32_t i = 0; i <= impl_->partition_mask_; ++i)
    count += impl_->partitions_[i].free_count.load(std::memory_order_relaxed);
  return count;
}
uint32_t BufferPool::dirty_count() const noexcept { return impl_->dirty_->count(); }
bool BufferPool::write_failing() const noexcept { return impl_->write_failing_.load(); }
PageSource* BufferPool::source() const noexcept { return impl_->source_; }
Log* BufferPool::log() const noexcept { return impl_->log_.load(std::memory_order_acquire); }
void BufferPool::attach_log(Log* log) noexcept {
  STRATA_ASSERT(impl_->log_.load() == nullptr || log == nullptr);
  impl_->log_.store(log, std::memory_order_release);
}

void BufferPool::for_each_cached(const std::function<void(PageId, const char* page)>& visit) {
  for (uint32_t i = 0; i < impl_->frame_count_; ++i) {
    const uint64_t packed = impl_->frames_[i].page_id.load(std::memory_order_relaxed);
    Frame* frame = packed == kNoPageId ? nullptr : impl_->pin_cached(packed);
    if (frame == nullptr) continue;
    frame->latch.lock_shared();
    if (frame == &impl_->frames_[i] &&
        frame->state.load(std::memory_order_relaxed) == FrameState::kReady)
      visit(PageId::unpack(packed), frame->page);
    frame->latch.unlock_shared();
    impl_->unpin(frame);
  }
}

}  // namespace strata
