// Where frames come from: set-up, free lists, eviction, waiting, dropping a space.

#include <algorithm>
#include <bit>
#include <string>

#include "base/assert.h"
#include "base/clock.h"
#include "bufpool/pool_impl.h"

namespace strata {

namespace {
constexpr uint32_t kFramesMin = 16;
constexpr uint64_t kFrameWaitUsMax = 10'000'000;    // B3: the deadline of the last resort
constexpr uint64_t kHopelessWaitUsMax = 2'000'000;  // every frame pinned, or writes fail
constexpr uint32_t kOldPagesDepth = 64;
constexpr uint64_t kFrameWaitStepUs = 2000;  // unpinning tells nobody, so look again

uint32_t partitions_for(uint32_t wanted, uint32_t frames) {
  const uint32_t most = std::max(1u, std::min(wanted, frames / kFramesMin));
  return std::bit_floor(most);
}
}  // namespace

BufferPool::Impl::Impl(const BufferPoolOptions& options, PageSource* source, PageLock* lock,
                       Log* log)
    : options_(options),
      source_(source),
      lock_(lock == no_page_lock() ? nullptr : lock),
      locks_first_(lock_ != nullptr && lock_->awaits_release()),
      feeds_source_(source->wants_evicted()),
      log_(log) {}

BufferPool::Impl::~Impl() { stop_threads(); }

Status BufferPool::Impl::init() {
  const uint64_t count = options_.bytes / kPageBytes;
  if (count < kFramesMin || count >= kNoFrame)
    return error_invalid_argument("buffer pool size " + std::to_string(options_.bytes) +
                                  " bytes is out of range: at least " +
                                  std::to_string(kFramesMin * kPageBytes) + " bytes are needed");
  frame_count_ = static_cast<uint32_t>(count);
  auto memory = MappedMemory::map(size_t{frame_count_} * kPageBytes);
  if (!memory.ok())
    return error_no_space(std::string(memory.status().message()) +
                          " for the buffer pool; make it smaller");
  memory_ = std::move(*memory);

  frames_ = std::make_unique<Frame[]>(frame_count_);
  dirty_ = std::make_unique<DirtyList>(frames_.get());
  hit_shards_ = std::make_unique<HitShard[]>(kHitShards);
  bucket_mask_ = std::bit_ceil(uint64_t{frame_count_} * 2) - 1;
  buckets_ = std::make_unique<std::atomic<uint32_t>[]>(bucket_mask_ + 1);
  for (uint64_t i = 0; i <= bucket_mask_; ++i)
    buckets_[i].store(kNoFrame, std::memory_order_relaxed);

  const uint32_t partitions = partitions_for(options_.partitions, frame_count_);
  partition_mask_ = partitions - 1;
  frames_per_partition_ = frame_count_ / partitions;
  partitions_ = std::make_unique<Partition[]>(partitions);
  uint32_t target =
      options_.free_target != 0 ? options_.free_target : std::max(64u, frame_count_ / 100);
  target = std::min(target, frame_count_ / 4);
  free_target_per_partition_ = std::max(1u, (target + partitions - 1) / partitions);
  for (uint32_t i = 0; i < partitions; ++i) {
    Partition& p = partitions_[i];
    const MutexLock lock(p.mutex);
    p.lru.configure(frames_.get(), options_.old_time_us, options_.old_percent);
  }
  for (uint32_t i = frame_count_; i-- > 0;) {
    frames_[i].page = memory_.get() + size_t{i} * kPageBytes;
    Partition& p = partitions_[i & partition_mask_];
    const MutexLock lock(p.mutex);
    put_free(p, &frames_[i]);
  }
  return ok_status();
}

// --- hash chains: written under the partition mutex, walked without it by find_and_pin() ---

void BufferPool::Impl::hash_insert(const Partition&, Frame* frame, uint64_t packed) noexcept {
  std::atomic<uint32_t>& bucket = buckets_[bucket_of(packed)];
  frame->hash_next.store(bucket.load(std::memory_order_relaxed), std::memory_order_relaxed);
  // Pairs with the acquire loads in find_and_pin(): publishes page_id and hash_next.
  bucket.store(static_cast<uint32_t>(frame - frames_.get()), std::memory_order_release);
}

void BufferPool::Impl::hash_remove(const Partition&, Frame* frame) noexcept {
  const uint32_t self = static_cast<uint32_t>(frame - frames_.get());
  std::atomic<uint32_t>* link =
      &buckets_[bucket_of(frame->page_id.load(std::memory_order_relaxed))];
  while (link->load(std::memory_order_relaxed) != self) {
    STRATA_ASSERT(link->load(std::memory_order_relaxed) != kNoFrame);
    link = &frames_[link->load(std::memory_order_relaxed)].hash_next;
  }
  link->store(frame->hash_next.load(std::memory_order_relaxed), std::memory_order_release);
}

// --- free frames and eviction ---

void BufferPool::Impl::put_free(Partition& p, Frame* frame) noexcept {
  STRATA_DASSERT((frame->pins.load(std::memory_order_relaxed) & kOwned) != 0);
  frame->state.store(FrameState::kFree, std::memory_order_relaxed);
  frame->page_id.store(kNoPageId, std::memory_order_relaxed);
  frame->lru_next = p.free_head;
  p.free_head = static_cast<uint32_t>(frame - frames_.get());
  p.free_count.store(p.free_count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

Frame* BufferPool::Impl::take_free(Partition& p) noexcept {
  if (p.free_head == kNoFrame) return nullptr;
  Frame* frame = &frames_[p.free_head];
  p.free_head = frame->lru_next;
  p.free_count.store(p.free_count.load(std::memory_order_relaxed) - 1, std::memory_order_relaxed);
  return frame;
}

bool BufferPool::Impl::try_evict(Partition& p, Frame* frame) noexcept {
  if (frame->dirty.load(std::memory_order_relaxed) != 0) return false;
  if (frame->pins.load(std::memory_order_relaxed) != 0) return false;
  uint32_t none = 0;
  if (!frame->pins.compare_exchange_strong(none, kOwned, std::memory_order_acq_rel)) return false;
  // Dirty bits change only with a pin held (or under ownership), so from here on they stand still.
  if (frame->dirty.load(std::memory_order_acquire) != 0) {
    frame->pins.fetch_sub(kOwned, std::memory_order_acq_rel);
    return false;
  }
  const PageId id = frame->id();
  hash_remove(p, frame);
  p.lru.remove(frame);
  if (feeds_source_ && frame->state.load(std::memory_order_relaxed) == FrameState::kReady)
    source_->evicted(id, frame->page);
  frame->state.store(FrameState::kFree, std::memory_order_relaxed);
  frame->page_id.store(kNoPageId, std::memory_order_relaxed);
  if (lock_ != nullptr) lock_->forget(id);
  if (p.evictions_to_look_ahead != 0) --p.evictions_to_look_ahead;
  counters_.evictions.fetch_add(1, std::memory_order_relaxed);
  return true;
}

Frame* BufferPool::Impl::evict_one(Partition& p, Hunt hunt) noexcept {
  const uint64_t batches = batches_written_.load(std::memory_order_relaxed);
  const uint64_t now_us = coarse_now_us();
  if (hunt == Hunt::kOldPages && p.barren_batches == batches && p.barren_us == now_us)
    return nullptr;
  const uint32_t depth = hunt == Hunt::kOldPages ? kOldPagesDepth : UINT32_MAX;
  uint32_t index = p.lru.coldest();
  for (uint32_t i = 0; index != kNoFrame && i < depth; ++i) {
    Frame* frame = &frames_[index];
    if (hunt == Hunt::kOldPages && frame->place.load(std::memory_order_relaxed) == LruPlace::kYoung)
      break;
    index = p.lru.warmer(index);
    if (try_evict(p, frame)) return frame;
  }
  p.barren_batches = batches;
  p.barren_us = now_us;
  return nullptr;
}

Frame* BufferPool::Impl::take_from(Partition& p, Hunt hunt) noexcept {
  const MutexLock lock(p.mutex);
  if (Frame* frame = take_free(p); frame != nullptr) return frame;
  return evict_one(p, hunt);
}

Frame* BufferPool::Impl::take_anywhere(uint32_t first_partition, Hunt hunt) noexcept {
  for (const bool from_small : {false, true}) {
    for (uint32_t i = 0; i <= partition_mask_; ++i) {
      Partition& p = partitions_[(first_partition + i) & partition_mask_];
      if (is_small(p) != from_small) continue;
      if (Frame* frame = take_from(p, hunt); frame != nullptr) return frame;
    }
  }
  return nullptr;
}

bool BufferPool::Impl::every_frame_pinned() const noexcept {
  for (uint32_t i = 0; i < frame_count_; ++i)
    if (frames_[i].pins.load(std::memory_order_relaxed) == 0) return false;
  return true;
}

Status BufferPool::Impl::no_frame() noexcept {
  const std::string what = "no free frame in a buffer pool of " + std::to_string(frame_count_) +
                           " pages (" + std::to_string(dirty_->count()) + " dirty)";
  if (!write_failing_.load(std::memory_order_relaxed))
    return error_no_space(what + "; make the pool larger");
  const MutexLock lock(signal_mutex_);
  const std::string why = what + ": pages cannot be written back (" + cause_of(write_failure_) +
                          "), which is tried again; to do: look at the disk, then try again";
  return is_no_space(write_failure_) ? error_no_space(why) : error_busy(why);
}

// B3: nothing is free and nothing clean is unpinned. May be called with page latches held.
Status BufferPool::Impl::wait_for_frame(uint64_t started_us) noexcept {
  if (is_interrupted_now(WaitInterrupt::current())) return error_interrupted();
  counters_.free_waits.fetch_add(1, std::memory_order_relaxed);
  const uint64_t waited_us = monotonic_us() - started_us;
  const auto hopeless = [this] {
    return write_failing_.load(std::memory_order_relaxed) || every_frame_pinned();
  };
  if (waited_us > kFrameWaitUsMax || (waited_us > kHopelessWaitUsMax && hopeless()))
    return no_frame();
  if (writers_.empty()) {  // driven by hand: do the writer's work here
    WriteBuffer buffer;
    for (uint32_t i = 0; i <= partition_mask_; ++i)
      if (refill(partitions_[i], buffer)) return ok_status();
  }
  frame_waiters_.fetch_add(1, std::memory_order_relaxed);
  for (uint32_t i = 0; i < writers_.size(); ++i) signal_writer(i);
  {
    MutexLock lock(signal_mutex_);
    frame_freed_.wait_for_us(lock, kFrameWaitStepUs);
  }
  frame_waiters_.fetch_sub(1, std::memory_order_relaxed);
  return ok_status();
}

// --- dropping a space ---

void BufferPool::Impl::discard_space(uint32_t space) noexcept {
  {
    const MutexLock lock(signal_mutex_);
    std::erase_if(read_ahead_queue_, [space](PageId id) { return id.space == space; });
  }
  for (bool busy = true; busy;) {
    busy = false;
    for (uint32_t i = 0; i < frame_count_; ++i) {
      Frame* frame = &frames_[i];
      const uint64_t packed = frame->page_id.load(std::memory_order_relaxed);
      if (packed == kNoPageId || PageId::unpack(packed).space != space) continue;
      Partition& p = partition_of(packed);
      const MutexLock lock(p.mutex);
      if (frame->page_id.load(std::memory_order_relaxed) != packed ||
          frame->state.load(std::memory_order_relaxed) == FrameState::kDetached)
        continue;
      uint32_t none = 0;
      if (!frame->pins.compare_exchange_strong(none, kOwned, std::memory_order_acq_rel)) {
        busy = true;  // being written or read ahead
        continue;
      }
      dirty_->drop(frame);
      hash_remove(p, frame);
      p.lru.remove(frame);
      if (lock_ != nullptr) lock_->forget(PageId::unpack(packed));
      put_free(p, frame);
    }
    if (busy) dirty_->wait_for_write(nullptr);
  }
}

}  // namespace strata
