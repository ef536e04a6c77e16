// What the tests of bufpool share: a log sink and a page source in memory that check the pool's
// promises at every write.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "bufpool/buffer_pool.h"
#include "page/page.h"
#include "pagefile/testing/test_pages.h"
#include "wal/log.h"

namespace strata::testing {

class MemoryLogSink : public LogSink {
 public:
  [[nodiscard]] Lsn begin_lsn() const override { return Lsn{begin_.load()}; }
  Status prepare_room(Lsn end) override { return ok_status(); }
  [[nodiscard]] Lsn room_end() const override { return Lsn{uint64_t{1} << 60}; }
  Status append(Lsn at, Bytes bytes) override {
    if (fail_) return error_peer_down("append fails by order");
    end_ = at.value + bytes.size();
    return ok_status();
  }
  Status sync() override {
    if (fail_) return error_peer_down("sync fails by order");
    durable_.store(end_);
    return ok_status();
  }
  StatusOr<size_t> read(Lsn, char*, size_t) override { return size_t{0}; }
  Status truncate_below(Lsn lsn) override {
    begin_.store(lsn.value);
    return ok_status();
  }
  [[nodiscard]] uint64_t durable() const { return durable_.load(); }
  std::atomic<bool> fail_{false};

 private:
  std::atomic<uint64_t> begin_{0};
  std::atomic<uint64_t> durable_{0};
  std::atomic<uint64_t> end_{0};
};

// --- page sources ---

// In memory; verifies like a real one.
class MemoryPageSource : public PageSource {
 public:
  Status read(PageId id, Llsn at_least, char* page) override {
    if (on_read) on_read(id);
    const std::lock_guard lock(mutex_);
    const auto it = pages_.find(id);
    if (it == pages_.end()) return error_not_found();
    std::memcpy(page, it->second.data(), kPageBytes);
    return verify_page(page, id);
  }
  void read_batch(const PageId* ids, uint32_t count, char* pages, Status* results) override {
    batches.fetch_add(1);
    PageSource::read_batch(ids, count, pages, results);
  }
  void start_read_batch(const PageId* ids, uint32_t count, char* pages, Status* results,
                        ReadBatchDone done) override {
    if (!on_start_batch)
      return PageSource::start_read_batch(ids, count, pages, results, std::move(done));
    on_start_batch({ids, count, pages, results, std::move(done)});
  }
  // A batch that somebody was given to end it whenever he likes.
  struct Batch {
    const PageId* ids;
    uint32_t count;
    char* pages;
    Status* results;
    ReadBatchDone done;
  };
  void end(Batch batch) {
    read_batch(batch.ids, batch.count, batch.pages, batch.results);
    batch.done();
  }
  Status write(PageId id, const char* page) override {
    if (on_write) {
      Status s = on_write(id, page);
      if (!s.ok()) return s;
    }
    const std::lock_guard lock(mutex_);
    pages_[id].assign(page, kPageBytes);
    ++writes_;
    return ok_status();
  }
  Status sync() override { return ok_status(); }
  Status create_space(SpaceId) override { return ok_status(); }
  Status delete_space(SpaceId) override { return ok_status(); }
  StatusOr<bool> space_exists(SpaceId) override { return true; }
  StatusOr<std::vector<SpaceId>> list_spaces() override { return std::vector<SpaceId>(); }
  Status grow_space(SpaceId, uint32_t) override { return ok_status(); }
  [[nodiscard]] bool needs_page_images() const override { return true; }
  [[nodiscard]] bool replays_log() const override { return replays; }
  bool replays = false;  // set before anybody asks
  [[nodiscard]] bool has_memory_tier() const override { return memory_tier; }
  Status sync_below(Lsn floor) override {
    const std::lock_guard lock(mutex_);
    synced_below.push_back(floor);
    return ok_status();
  }
  StatusOr<bool> publish_memory_checkpoint(const MemoryCheckpoint& at) override {
    std::function<Status(const MemoryCheckpoint&)> first;
    {
      const std::lock_guard lock(mutex_);
      first = on_memory_checkpoint_;
    }
    if (first) STRATA_RETURN_IF_ERROR(first(at));
    const std::lock_guard lock(mutex_);
    if (memory_kept) in_memory = at;
    return memory_kept;
  }
  std::optional<MemoryCheckpoint> memory_checkpoint() override {
    const std::lock_guard lock(mutex_);
    return in_memory;
  }
  bool memory_tier = false;                   // set before anybody asks
  bool memory_kept = true;                    // there is such a memory now
  std::vector<Lsn> synced_below;              // while nobody else is at work
  std::optional<MemoryCheckpoint> in_memory;  // likewise
  // Asked first from now on; null: nobody. May come while others are at work.
  void on_memory_checkpoint(std::function<Status(const MemoryCheckpoint&)> first) {
    const std::lock_guard lock(mutex_);
    on_memory_checkpoint_ = std::move(first);
  }

  void damage(PageId id) {
    const std::lock_guard lock(mutex_);
    pages_.at(id)[5000] ^= 1;
  }
  bool holds(PageId id) {
    const std::lock_guard lock(mutex_);
    return pages_.count(id) != 0;
  }
  std::atomic<uint32_t> batches{0};
  // Set before threads start.
  std::function<void(PageId)> on_read;
  std::function<void(Batch)> on_start_batch;
  std::function<Status(PageId, const char*)> on_write;

 private:
  std::function<Status(const MemoryCheckpoint&)> on_memory_checkpoint_;
  std::mutex mutex_;
  std::map<PageId, std::string> pages_;
  uint64_t writes_ = 0;
};

// Holds back the batches of a source. Before the pool's threads start reading ahead.
class LateBatches {
 public:
  explicit LateBatches(MemoryPageSource* source) : source_(source) {
    source->on_start_batch = [this](MemoryPageSource::Batch batch) {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(std::move(batch));
    };
  }
  [[nodiscard]] size_t waiting() {
    const std::lock_guard lock(mutex_);
    return waiting_.size();
  }
  // The n-th of those that wait. False: there is none. In the caller's thread.
  bool end(size_t n, const Status& error = ok_status()) {
    std::unique_lock lock(mutex_);
    if (n >= waiting_.size()) return false;
    MemoryPageSource::Batch batch = std::move(waiting_[n]);
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(n));
    lock.unlock();
    if (error.ok()) {
      source_->end(std::move(batch));
    } else {
      for (uint32_t i = 0; i < batch.count; ++i) batch.results[i] = error;
      batch.done();
    }
    return true;
  }

 private:
  MemoryPageSource* const source_;
  std::mutex mutex_;
  std::vector<MemoryPageSource::Batch> waiting_;
};

// --- a log, a source and a pool ---

struct PoolHarness {
  using WriteHook = std::function<Status(PageId, const char*)>;
  // With background writers the hook has to be there from the start.
  explicit PoolHarness(BufferPoolOptions options = {}, PageLock* lock = no_page_lock(),
                       WriteHook hook = nullptr)
      : write_hook(std::move(hook)) {
    log = std::make_unique<Log>(LogOptions{.buffer_bytes = 1u << 20}, &sink, Lsn{4096}, 0);
    source.on_write = [this](PageId id, const char* page) { return check_write(id, page); };
    auto made = BufferPool::create(options, &source, lock, log.get());
    EXPECT_TRUE(made.ok()) << made.status();
    if (made.ok()) pool = std::move(made).value();
  }
  ~PoolHarness() { pool.reset(); }

  // B2 and the seal, at every write.
  Status check_write(PageId id, const char* page) {
    PageVersion v;
    EXPECT_EQ(check_page(page, id, &v), "");
    EXPECT_TRUE(verify_page(page, id).ok());
    EXPECT_LE(v.group_end, sink.durable()) << "B2: page " << id.number;
    if (write_hook) return write_hook(id, page);
    return ok_status();
  }

  // One group on one latched page. The caller got capacity from begin().
  void change(const PageGuard& guard, PageId id, bool image = false) {
    char* page = guard.mutable_page();
    PageVersion v;
    std::memcpy(&v, page + kPageHeaderBytes, sizeof v);
    LogReservation r;
    while (!log->reserve(kGroupBytes, log->image_floor(), Llsn{header_of(page)->llsn}, &r)) {
    }
    const std::string group(kGroupBytes, 'g');
    log->copy(r, group);
    fill_page(page, id, r.llsn.value, PageVersion{v.version + 1, r.end.value});
    pool->note_modified(guard, r.start, r.end, image);
    log->complete(r);
    last = r;
  }
  void begin() { ASSERT_TRUE(log->reserve_capacity(kGroupBytes, false).ok()); }

  void make(PageId id) {
    begin();
    auto guard = pool->fix_new(id);
    ASSERT_TRUE(guard.ok()) << guard.status();
    change(*guard, id, true);
  }
  void modify(PageId id) {
    begin();
    auto guard = pool->fix(id, LatchMode::kExclusive);
    ASSERT_TRUE(guard.ok()) << guard.status();
    change(*guard, id);
  }
  PageVersion expect_page(PageId id) {
    PageVersion v;
    auto guard = pool->fix(id, LatchMode::kShared);
    EXPECT_TRUE(guard.ok()) << guard.status();
    if (guard.ok()) {
      EXPECT_EQ(check_page(guard->page(), id, &v), "");
    }
    return v;
  }

  static constexpr uint32_t kGroupBytes = 64;
  MemoryLogSink sink;
  MemoryPageSource source;
  WriteHook write_hook;
  std::unique_ptr<Log> log;
  std::unique_ptr<BufferPool> pool;
  LogReservation last;
};

inline BufferPoolOptions tiny_pool(uint32_t frames, uint32_t writers = 0) {
  BufferPoolOptions options;
  options.bytes = uint64_t{frames} * kPageBytes;
  options.partitions = 4;
  options.old_time_us = 0;
  options.free_target = 4;
  options.writers = writers;
  return options;
}

}  // namespace strata::testing
