// The promises of buffer_pool.h, one by one, over a page source and a log sink in memory that check
// every write (B2).
#include "bufpool/buffer_pool.h"

#include <time.h>

#include <thread>

#include "base/clock.h"
#include "base/diag.h"
#include "base/testing/wait_until.h"
#include "bufpool/pool_test_support.h"

namespace strata {
namespace {

using testing::fill_page;
using testing::LateBatches;
using testing::PageVersion;
using testing::PoolHarness;
using testing::tiny_pool;
using testing::wait_until;

constexpr uint32_t kSpace = 300;
PageId page(uint32_t number) { return PageId{kSpace, number}; }

TEST(BufferPool, PageNeverWrittenIsNotFoundAndNotCached) {
  PoolHarness h(tiny_pool(32));
  for (int i = 0; i < 3; ++i)
    EXPECT_TRUE(is_not_found(h.pool->fix(page(1), LatchMode::kShared).status()));
  EXPECT_EQ(h.pool->free_count(), 32u);
  EXPECT_EQ(h.pool->counters().reads.load(), 3u);
}

// PL4: the loader's lock is taken away before it has noticed that it has it, and so is one that a
// second thread got for the same frame. The second has to get it again before it changes the page.
TEST(BufferPool, PageLockGotWhileAFrameIsBeingLockedIsGotAgainAfterItWasTakenAway) {
  class Gate final : public PageLock {
   public:
    Status acquire(PageId, LatchMode mode, Llsn* newest) override {
      *newest = Llsn{};
      if (mode == LatchMode::kExclusive) exclusive_since_taken.store(true);
      const bool first = mode == LatchMode::kShared && !loader_asked.exchange(true);
      if (first && !wait_until([this] { return open.load(); })) return error_internal("the gate");
      return ok_status();
    }
    void forget(PageId) override {}
    std::atomic<bool> loader_asked{false}, open{false}, exclusive_since_taken{false};
  };
  Gate gate;
  PoolHarness h(tiny_pool(32), &gate);
  {
    auto guard = h.pool->fix_new(page(1));
    ASSERT_TRUE(guard.ok());
    h.begin();
    h.change(*guard, page(1));
  }
  ASSERT_TRUE(h.pool->surrender(page(1)).ok());
  gate.exclusive_since_taken.store(false);

  std::thread loader([&] { EXPECT_TRUE(h.pool->fix(page(1), LatchMode::kShared).ok()); });
  ASSERT_TRUE(wait_until([&] { return gate.loader_asked.load(); }));
  std::thread changer([&] {
    auto guard = h.pool->fix(page(1), LatchMode::kExclusive);
    EXPECT_TRUE(guard.ok());
    EXPECT_TRUE(gate.exclusive_since_taken.load());
  });
  // Where it asks at once it does so in this time; where it does not there is nothing to wait for.
  const uint64_t deadline_us = monotonic_us() + 100'000;
  (void)wait_until(
      [&] { return gate.exclusive_since_taken.load() || monotonic_us() > deadline_us; });
  ASSERT_TRUE(h.pool->surrender(page(1)).ok());  // both locks are gone
  gate.exclusive_since_taken.store(false);
  gate.open.store(true);
  loader.join();
  changer.join();
}

// PL6: another node wants the page all the time, so whenever nobody uses it it is taken away.
// Whoever has got it uses it all the same; it is not asked for again only because its frame was
// lost.
TEST(BufferPool, PageThatIsAlwaysWantedElsewhereIsUsedOncePerLock) {
  class Wanted final : public PageLock {
   public:
    Status acquire(PageId id, LatchMode, Llsn* newest) override {
      *newest = Llsn{};
      if (++acquired > 100) return error_timed_out("nobody uses what was got");
      if (users++ == 0) take_away(id);
      return ok_status();
    }
    void release(PageId id) noexcept override {
      if (--users == 0) take_away(id);
    }
    [[nodiscard]] bool awaits_release() const noexcept override { return true; }
    void forget(PageId) override {}
    void take_away(PageId id) {
      if (pool == nullptr) return;
      EXPECT_TRUE(pool->surrender(id).ok());
    }
    BufferPool* pool = nullptr;
    int acquired = 0, users = 0;
  };
  Wanted lock;
  PoolHarness h(tiny_pool(32), &lock);
  lock.pool = h.pool.get();
  h.make(page(1));
  EXPECT_EQ(lock.acquired, 1);
  for (int i = 2; i < 10; ++i) {
    h.modify(page(1));
    EXPECT_EQ(lock.acquired, i);
    EXPECT_EQ(lock.users, 0);
  }
  EXPECT_TRUE(h.pool->fix(page(1), LatchMode::kShared).ok());
  EXPECT_EQ(lock.acquired, 10);
  EXPECT_TRUE(is_not_found(h.pool->fix(page(2), LatchMode::kShared).status()));
  EXPECT_EQ(lock.users, 0);
  lock.pool = nullptr;
}

// A page that is cached and seems to be ours is not fixed again, nor locked.
TEST(BufferPool, BringInKeepsItsFastPathWithAPageLock) {
  class Counting final : public PageLock {
   public:
    Status acquire(PageId, LatchMode, Llsn* newest) override {
      *newest = Llsn{};
      ++acquired;
      return ok_status();
    }
    [[nodiscard]] bool seems_held(PageId, LatchMode) const noexcept override { return held; }
    void forget(PageId) override {}
    int acquired = 0;
    bool held = true;
  };
  Counting lock;
  PoolHarness h(tiny_pool(32), &lock);
  {
    auto guard = h.pool->fix_new(page(1));
    ASSERT_TRUE(guard.ok());
    h.begin();
    h.change(*guard, page(1));
  }
  const int before = lock.acquired;
  ASSERT_TRUE(h.pool->bring_in(page(1)).ok());
  EXPECT_EQ(lock.acquired, before);
  lock.held = false;  // another node's by now
  ASSERT_TRUE(h.pool->bring_in(page(1)).ok());
  EXPECT_EQ(lock.acquired, before + 1);
}

// A cache behind the pool hears of every page that goes for want of room, clean ones too, and gets
// its last bytes.
TEST(BufferPool, SourceHearsOfEveryEviction) {
  class Fed final : public testing::MemoryPageSource {
   public:
    [[nodiscard]] bool wants_evicted() const override { return true; }
    void evicted(PageId id, const char* bytes) noexcept override {
      PageVersion v;
      EXPECT_EQ(testing::check_page(bytes, id, &v), "");
      ++count;
    }
    uint64_t count = 0;
  };
  Fed source;
  testing::MemoryLogSink sink;
  Log log(LogOptions{.buffer_bytes = 1u << 20}, &sink, Lsn{4096}, 0);
  for (uint32_t i = 0; i < 100; ++i) {
    alignas(4096) static char bytes[kPageBytes];
    fill_page(bytes, page(i), 1, PageVersion{1, 0});
    seal_page(bytes);
    ASSERT_TRUE(source.write(page(i), bytes).ok());
  }
  auto pool = BufferPool::create(tiny_pool(32), &source, no_page_lock(), &log);
  ASSERT_TRUE(pool.ok());
  for (int round = 0; round < 2; ++round)
    for (uint32_t i = 0; i < 100; ++i) ASSERT_TRUE((*pool)->fix(page(i), LatchMode::kShared).ok());
  EXPECT_GT(source.count, 100u);
  EXPECT_EQ(source.count, (*pool)->counters().evictions.load());
}

TEST(BufferPool, NewPageIsSeenOnlyOnceItWasChanged) {
  PoolHarness h(tiny_pool(32));
  {
    auto guard = h.pool->fix_new(page(1));
    ASSERT_TRUE(guard.ok());
  }
  EXPECT_TRUE(is_not_found(h.pool->fix(page(1), LatchMode::kShared).status()));
  h.make(page(1));
  EXPECT_EQ(h.expect_page(page(1)).version, 1u);
  h.modify(page(1));
  EXPECT_EQ(h.expect_page(page(1)).version, 2u);
  EXPECT_EQ(h.pool->dirty_count(), 1u);
}

TEST(BufferPool, PagesSurviveEviction) {
  PoolHarness h(tiny_pool(32));
  for (uint32_t round = 1; round <= 3; ++round) {
    for (uint32_t i = 0; i < 200; ++i) round == 1 ? h.make(page(i)) : h.modify(page(i));
    for (uint32_t i = 0; i < 200; ++i) EXPECT_EQ(h.expect_page(page(i)).version, round);
  }
  EXPECT_GT(h.pool->counters().evictions.load(), 0u);
}

// In one partition: of several, one may have given all its frames to the others.
TEST(BufferPool, BackgroundWriterKeepsFramesFree) {
  BufferPoolOptions options = tiny_pool(64, /*writers=*/2);
  options.partitions = 1;
  PoolHarness h(options);
  for (uint32_t i = 0; i < 500; ++i) h.make(page(i));
  // More than half of the target: it is told when there are no more than that.
  EXPECT_TRUE(wait_until([&h] { return h.pool->free_count() >= 3; }));
  for (uint32_t i = 0; i < 500; ++i) EXPECT_EQ(h.expect_page(page(i)).version, 1u);
}

// What lies at the cold end is looked at once for many evictions, not for each few of them.
TEST(BufferPool, WritersSearchAsOftenAsItPays) {
  BufferPoolOptions options = tiny_pool(1024, /*writers=*/1);
  options.partitions = 1;
  PoolHarness h(options);
  for (uint32_t i = 0; i < 4000; ++i) h.make(page(i));
  ASSERT_TRUE(h.pool->write_back_below(h.log->next_lsn()).ok());
  const BufferPoolCounters& counters = h.pool->counters();
  const uint64_t looked_at = counters.looked_at;
  const uint64_t evictions = counters.evictions;
  for (uint32_t i = 0; i < 4000; ++i) h.expect_page(page(i));
  EXPECT_GT(counters.evictions - evictions, 2000u);
  EXPECT_LT(counters.looked_at - looked_at, 8 * (counters.evictions - evictions));
}

TEST(BufferPool, ColdPagesAreWrittenBeforeTheirFramesAreNeeded) {
  BufferPoolOptions options = tiny_pool(1024, /*writers=*/1);
  options.partitions = 1;
  options.old_time_us = uint64_t{1} << 60;  // a change does not warm a page
  PoolHarness h(options);
  for (uint32_t i = 0; i < 3000; ++i) h.make(page(i));
  ASSERT_TRUE(h.pool->write_back_below(h.log->next_lsn()).ok());
  for (uint32_t i = 0; i < 1000; ++i) h.expect_page(page(i));  // the coldest first
  uint32_t next = 1000;
  for (uint32_t first = 200; first < 900; first += 200) {
    for (uint32_t i = first; i < first + 64; ++i) h.modify(page(i));
    // Until they come to the cold end. Less than half of a batch waits for more.
    for (const uint32_t last = next + 230; next < last; ++next) h.expect_page(page(next));
    EXPECT_TRUE(wait_until([&h] { return h.pool->dirty_count() < 32; })) << first;
  }
}

TEST(BufferPool, IdleThreadsSleep) {
  PoolHarness h(tiny_pool(64, /*writers=*/2));
  for (uint32_t i = 0; i < 100; ++i) h.make(page(i));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  timespec before, after;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
  const int64_t used_ns =
      (after.tv_sec - before.tv_sec) * 1'000'000'000 + after.tv_nsec - before.tv_nsec;
#ifdef __SANITIZE_THREAD__
  EXPECT_LT(used_ns, 50'000'000);  // the sanitizer has a thread of its own
#else
  EXPECT_LT(used_ns, 5'000'000);
#endif
}

TEST(BufferPool, DamagedPageIsNeverHandedOut) {  // B6
  PoolHarness h(tiny_pool(32));
  h.make(page(1));
  ASSERT_TRUE(h.pool->surrender(page(1)).ok());
  h.source.damage(page(1));
  for (int i = 0; i < 2; ++i)
    EXPECT_TRUE(is_corruption(h.pool->fix(page(1), LatchMode::kShared).status()));
  EXPECT_EQ(h.pool->free_count(), 32u);
  h.source.damage(page(1));  // flips the bit back
  EXPECT_EQ(h.expect_page(page(1)).version, 1u);
}

TEST(BufferPool, TryFixReturnsInsteadOfWaiting) {
  PoolHarness h(tiny_pool(32));
  h.make(page(1));
  auto shared = h.pool->fix(page(1), LatchMode::kShared);
  ASSERT_TRUE(shared.ok());
  EXPECT_TRUE(is_busy(h.pool->try_fix(page(1), LatchMode::kExclusive).status()));
  EXPECT_TRUE(h.pool->try_fix(page(1), LatchMode::kShared).ok());
  shared->release();
  EXPECT_TRUE(h.pool->try_fix(page(1), LatchMode::kExclusive).ok());
}

TEST(BufferPool, WhoWaitsForAnotherThreadsReadCanBeInterrupted) {
  PoolHarness h(tiny_pool(32));
  h.make(page(1));
  ASSERT_TRUE(h.pool->surrender(page(1)).ok());
  std::atomic<bool> reading{false};
  std::atomic<bool> stuck{true};
  h.source.on_read = [&](PageId) {
    reading = true;
    EXPECT_TRUE(wait_until([&] { return !stuck.load(); }));
  };
  std::thread loader([&] { EXPECT_TRUE(h.pool->fix(page(1), LatchMode::kShared).ok()); });
  EXPECT_TRUE(wait_until([&] { return reading.load(); }));
  WaitInterrupt killed;
  std::thread waiter([&] {
    const InterruptScope scope(&killed);
    EXPECT_TRUE(is_interrupted(h.pool->fix(page(1), LatchMode::kShared).status()));
  });
  WaitInterrupt never;
  std::thread other([&] {
    const InterruptScope scope(&never);
    EXPECT_TRUE(h.pool->fix(page(1), LatchMode::kExclusive).ok());
  });
  killed.interrupt();
  waiter.join();
  EXPECT_TRUE(stuck.load());
  stuck = false;
  loader.join();
  other.join();
}

TEST(BufferPool, BringingInWaitsForNoLatchOfACachedPage) {
  PoolHarness h(tiny_pool(32));
  h.make(page(1));
  ASSERT_TRUE(h.pool->surrender(page(1)).ok());
  EXPECT_TRUE(h.pool->bring_in(page(1)).ok());
  const uint64_t reads = h.pool->counters().reads.load();
  const auto exclusive = h.pool->fix(page(1), LatchMode::kExclusive);
  ASSERT_TRUE(exclusive.ok());
  EXPECT_TRUE(h.pool->bring_in(page(1)).ok());
  EXPECT_EQ(h.pool->counters().reads.load(), reads);
  EXPECT_TRUE(is_not_found(h.pool->bring_in(page(2))));
}

TEST(BufferPool, RedoGetsZeroesForMissingAndDamagedPages) {
  PoolHarness h(tiny_pool(32));
  bool damaged = true;
  {
    auto guard = h.pool->fix_for_redo(page(1), &damaged);
    ASSERT_TRUE(guard.ok());
  }
  EXPECT_FALSE(damaged);
  h.make(page(2));
  ASSERT_TRUE(h.pool->surrender(page(2)).ok());
  h.source.damage(page(2));
  for (int i = 0; i < 2; ++i) {  // the second time from the cache
    auto guard = h.pool->fix_for_redo(page(2), &damaged);
    ASSERT_TRUE(guard.ok());
    EXPECT_TRUE(damaged);
    EXPECT_TRUE(page_is_all_zero(guard->page()));
  }
  EXPECT_TRUE(is_corruption(h.pool->fix(page(2), LatchMode::kShared).status()));
  h.begin();
  {
    auto guard = h.pool->fix_for_redo(page(2), &damaged);
    ASSERT_TRUE(guard.ok());
    h.change(*guard, page(2), true);
  }
  EXPECT_EQ(h.expect_page(page(2)).version, 1u);
}

TEST(BufferPool, WorksWithoutLogDuringRecovery) {
  testing::MemoryPageSource source;
  auto pool = BufferPool::create(tiny_pool(32), &source, no_page_lock(), nullptr);
  ASSERT_TRUE(pool.ok());
  for (uint32_t i = 0; i < 100; ++i) {
    bool damaged = false;
    auto guard = (*pool)->fix_for_redo(page(i), &damaged);
    ASSERT_TRUE(guard.ok()) << guard.status();
    fill_page(guard->mutable_page(), page(i), 100 + i, PageVersion{1, 0});
    (*pool)->note_modified(*guard, Lsn{100 + i}, Lsn{101 + i}, true);
  }
  EXPECT_TRUE((*pool)->write_back_below(Lsn{UINT64_MAX}).ok());
  EXPECT_EQ((*pool)->oldest_dirty_lsn(), Lsn{UINT64_MAX});
  for (uint32_t i = 0; i < 100; ++i) EXPECT_TRUE(source.holds(page(i)));
}

TEST(BufferPool, OldestDirtyLsnIsExactAlsoOutOfOrder) {
  PoolHarness h(tiny_pool(64));
  EXPECT_EQ(h.pool->oldest_dirty_lsn(), Lsn{UINT64_MAX});
  const uint64_t starts[] = {500, 300, 400, 600, 200};
  for (uint32_t i = 0; i < 5; ++i) {
    auto guard = h.pool->fix_new(page(i));
    ASSERT_TRUE(guard.ok());
    fill_page(guard->mutable_page(), page(i), 1, PageVersion{1, 0});
    h.pool->note_modified(*guard, Lsn{starts[i]}, Lsn{1}, true);
  }
  for (const uint64_t expect : {200, 300, 400, 500, 600}) {
    EXPECT_EQ(h.pool->oldest_dirty_lsn(), Lsn{expect});
    ASSERT_TRUE(h.pool->write_back_below(Lsn{expect + 1}).ok());
  }
  EXPECT_EQ(h.pool->oldest_dirty_lsn(), Lsn{UINT64_MAX});
}

// B4, B5: the page changes while its old copy is being written.
TEST(BufferPool, PageChangedDuringItsWriteStaysDirtyAtTheNewLsn) {
  PoolHarness h(tiny_pool(32));
  h.make(page(1));
  const Lsn first = h.last.start;
  bool changed = false;
  h.write_hook = [&](PageId, const char*) {
    EXPECT_EQ(h.pool->oldest_dirty_lsn(), first);
    if (!changed) h.modify(page(1));
    changed = true;
    EXPECT_EQ(h.pool->oldest_dirty_lsn(), first);
    return ok_status();
  };
  ASSERT_TRUE(h.pool->write_back_below(Lsn{first.value + 1}).ok());
  EXPECT_EQ(h.pool->oldest_dirty_lsn(), h.last.start);
  EXPECT_GT(h.last.start, first);
  EXPECT_EQ(h.pool->dirty_count(), 1u);
}

int messages = 0;
TEST(BufferPool, FailedWriteKeepsThePageDirtyAndIsReportedOnce) {
  PoolHarness h(tiny_pool(32));
  h.make(page(1));
  const Lsn first = h.last.start;
  h.make(page(2));
  set_diag_sink([](Severity, std::string_view) { ++messages; });
  bool full = true;
  h.write_hook = [&](PageId, const char*) {
    return full ? error_no_space("disk full by order") : ok_status();
  };
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(is_no_space(h.pool->write_back_below(h.log->next_lsn())));
    EXPECT_EQ(h.pool->oldest_dirty_lsn(), first);
    EXPECT_EQ(h.pool->dirty_count(), 2u);
  }
  EXPECT_EQ(messages, 1);
  EXPECT_GE(h.pool->counters().write_errors.load(), 3u);
  full = false;
  EXPECT_TRUE(h.pool->write_back_below(h.log->next_lsn()).ok());
  EXPECT_EQ(messages, 2);
  EXPECT_EQ(h.pool->dirty_count(), 0u);
  set_diag_sink(nullptr);
}

TEST(BufferPool, BackgroundWriterRetriesAfterTheDiskWasFull) {
  set_diag_sink([](Severity, std::string_view) {});
  std::atomic<bool> full{true};
  {
    PoolHarness h(tiny_pool(32, /*writers=*/1), no_page_lock(), [&full](PageId, const char*) {
      return full ? error_no_space("disk full by order") : ok_status();
    });
    std::thread space_maker([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      full = false;
    });
    for (uint32_t i = 0; i < 100; ++i) h.make(page(i));
    space_maker.join();
    for (uint32_t i = 0; i < 100; ++i) EXPECT_EQ(h.expect_page(page(i)).version, 1u);
  }
  set_diag_sink(nullptr);
}

TEST(BufferPool, NothingIsWrittenOnceTheLogIsPoisoned) {
  set_diag_sink([](Severity, std::string_view) {});
  {
    PoolHarness h(tiny_pool(32));
    h.make(page(1));
    h.sink.fail_ = true;
    EXPECT_FALSE(h.pool->write_back_below(h.log->next_lsn()).ok());
    EXPECT_FALSE(h.source.holds(page(1)));
    EXPECT_EQ(h.pool->dirty_count(), 1u);
  }
  set_diag_sink(nullptr);
}

TEST(BufferPool, DiscardedSpaceIsForgottenUnwritten) {
  PoolHarness h(tiny_pool(64, /*writers=*/1));
  for (uint32_t i = 0; i < 10; ++i) h.make(page(i));
  h.make(PageId{301, 0});
  h.pool->discard_space(SpaceId{kSpace});
  EXPECT_EQ(h.pool->dirty_count(), 1u);
  EXPECT_EQ(h.pool->free_count(), 63u);
  ASSERT_TRUE(h.pool->write_back_below(h.log->next_lsn()).ok());
  EXPECT_FALSE(h.source.holds(page(0)));
  EXPECT_TRUE(h.source.holds(PageId{301, 0}));
}

TEST(BufferPool, CheckpointWaitsForABusyPage) {
  PoolHarness h(tiny_pool(64));
  for (uint32_t i = 0; i < 20; ++i) h.make(page(i));
  auto guard = h.pool->fix(page(7), LatchMode::kExclusive);
  ASSERT_TRUE(guard.ok());
  const uint64_t before_us = monotonic_us();
  std::thread holder([held = std::move(*guard)]() mutable {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    held.release();
  });
  EXPECT_TRUE(h.pool->write_back_below(h.log->next_lsn()).ok());
  EXPECT_GE(monotonic_us() - before_us, 90'000u);
  EXPECT_EQ(h.pool->dirty_count(), 0u);
  holder.join();
}

TEST(BufferPool, EveryFramePinnedIsAnErrorNotAHang) {
  PoolHarness h(tiny_pool(16));
  std::vector<PageGuard> guards;
  for (uint32_t i = 0; i < 16; ++i) {
    auto guard = h.pool->fix_new(page(i));
    ASSERT_TRUE(guard.ok());
    guards.push_back(std::move(*guard));
  }
  EXPECT_TRUE(is_no_space(h.pool->fix_new(page(16)).status()));
  guards.clear();
  EXPECT_TRUE(h.pool->fix_new(page(16)).ok());
}

TEST(BufferPool, ScanDoesNotPushTheWorkingSetOut) {
  BufferPoolOptions options = tiny_pool(256);
  options.partitions = 1;
  PoolHarness h(options);
  for (uint32_t i = 0; i < 1000; ++i) h.make(page(i));
  ASSERT_TRUE(h.pool->write_back_below(h.log->next_lsn()).ok());
  for (int round = 0; round < 3; ++round)
    for (uint32_t i = 0; i < 100; ++i) h.expect_page(page(i));
  for (uint32_t i = 200; i < 1000; ++i) h.expect_page(page(i));
  const uint64_t reads_before = h.pool->counters().reads;
  for (uint32_t i = 0; i < 100; ++i) h.expect_page(page(i));
  EXPECT_LT(h.pool->counters().reads - reads_before, 10u);
}

TEST(BufferPool, PagesAreReadAheadInBatches) {
  PoolHarness h(tiny_pool(256, /*writers=*/1));
  std::vector<PageId> ids;
  for (uint32_t i = 0; i < 64; ++i) {
    h.make(page(i));
    ASSERT_TRUE(h.pool->surrender(page(i)).ok());
    ids.push_back(page(i));
  }
  h.source.damage(page(7));
  const uint64_t reads = h.pool->counters().reads;
  h.pool->read_ahead(ids.data(), 64);
  ASSERT_TRUE(wait_until([&] { return h.pool->counters().read_ahead == 64; }));
  for (uint32_t i = 0; i < 64; ++i) {
    if (i == 7) continue;
    EXPECT_EQ(h.expect_page(page(i)).version, 1u);
  }
  EXPECT_EQ(h.pool->counters().reads, reads + 64) << "one read of each";
  EXPECT_LE(h.source.batches, 16u);
  EXPECT_TRUE(is_corruption(h.pool->fix(page(7), LatchMode::kShared).status())) << "B6";
  h.pool->read_ahead(ids.data(), 4);  // all there: nothing to do
  EXPECT_EQ(h.pool->counters().reads, reads + 65);
}

// More batches are under way than there are threads to read ahead: none waits for its own. They
// come in another order, from another thread, some with errors.
TEST(BufferPool, ReadAheadGoesOnWhileBatchesAreUnderWay) {
  PoolHarness h(tiny_pool(4096, /*writers=*/1));
  LateBatches late(&h.source);
  std::vector<PageId> ids;
  for (uint32_t i = 0; i < 128; ++i) {
    h.make(page(i));
    ASSERT_TRUE(h.pool->surrender(page(i)).ok());
    ids.push_back(page(i));
  }
  h.source.damage(page(20));
  h.pool->read_ahead(ids.data(), 64);
  h.pool->read_ahead(ids.data() + 64, 64);
  ASSERT_TRUE(wait_until([&] { return h.pool->counters().read_ahead == 128; }));
  ASSERT_TRUE(wait_until([&] { return late.waiting() >= 8; }));
  EXPECT_TRUE(is_busy(h.pool->fix_if_at_hand(page(100)).status())) << "nothing has come";
  std::atomic<bool> found{false};
  std::thread reader([&] {
    EXPECT_EQ(h.expect_page(page(100)).version, 1u);  // waits for its batch
    found = true;
  });
  EXPECT_FALSE(found);
  std::thread([&] {
    while (late.waiting() > 3) EXPECT_TRUE(late.end(late.waiting() - 1));
    EXPECT_TRUE(late.end(1, error_peer_down("by order")));
    while (late.end(0)) {
    }
  }).join();
  reader.join();
  for (uint32_t i = 0; i < 128; ++i) {
    if (i == 20) continue;
    EXPECT_EQ(h.expect_page(page(i)).version, 1u) << "also those whose batch failed";
  }
  EXPECT_TRUE(is_corruption(h.pool->fix(page(20), LatchMode::kShared).status())) << "B6";
}

TEST(BufferPool, OnlySoManyBatchesAreUnderWayAndTheNextIsBegunWhenOneEnds) {
  PoolHarness h(tiny_pool(256, /*writers=*/1));  // four, whatever the source
  LateBatches late(&h.source);
  std::vector<PageId> ids;
  for (uint32_t i = 0; i < 64; ++i) ids.push_back(page(i));
  for (uint32_t i = 0; i < 4; ++i) {
    h.pool->read_ahead(ids.data() + i, 1);
    ASSERT_TRUE(wait_until([&] { return late.waiting() == i + 1; }));
  }
  h.pool->read_ahead(ids.data() + 4, 1);
  EXPECT_EQ(late.waiting(), 4u);
  EXPECT_TRUE(late.end(2));
  EXPECT_TRUE(wait_until([&] { return late.waiting() == 4; }));
  while (late.end(0)) {
  }
}

// The frames and what the source writes to are there until the last batch has ended.
TEST(BufferPool, EndsWhenTheLastBatchHas) {
  PoolHarness h(tiny_pool(256, /*writers=*/1));
  LateBatches late(&h.source);
  h.make(page(1));
  ASSERT_TRUE(h.pool->surrender(page(1)).ok());
  const std::array<PageId, 2> ids{page(1), page(2)};
  h.pool->read_ahead(ids.data(), 2);
  ASSERT_TRUE(wait_until([&] { return late.waiting() == 1; }));
  std::atomic<bool> gone{false};
  std::thread closer([&] {
    h.pool.reset();
    gone = true;
  });
  EXPECT_FALSE(gone);
  EXPECT_TRUE(late.end(0));
  closer.join();
  EXPECT_TRUE(gone);
}

TEST(BufferPool, ASpaceIsDiscardedWhenItsBatchesHaveEnded) {
  PoolHarness h(tiny_pool(256, /*writers=*/1));
  LateBatches late(&h.source);
  h.make(page(1));
  ASSERT_TRUE(h.pool->surrender(page(1)).ok());
  const PageId id = page(1);
  h.pool->read_ahead(&id, 1);
  ASSERT_TRUE(wait_until([&] { return late.waiting() == 1; }));
  std::thread dropper([&] { h.pool->discard_space(SpaceId{kSpace}); });
  EXPECT_TRUE(late.end(0));
  dropper.join();
  EXPECT_EQ(h.pool->free_count(), h.pool->frame_count());
}

TEST(BufferPool, WhatIsAtHandIsFixedWithoutWaiting) {
  PoolHarness h(tiny_pool(64));
  h.make(page(1));
  h.make(page(2));
  ASSERT_TRUE(h.pool->surrender(page(2)).ok());
  EXPECT_TRUE(h.pool->fix_if_at_hand(page(1)).ok());
  const uint64_t reads = h.pool->counters().reads;
  EXPECT_TRUE(is_busy(h.pool->fix_if_at_hand(page(2)).status()));
  EXPECT_EQ(h.pool->counters().reads, reads);
  const auto writer = h.pool->fix(page(1), LatchMode::kExclusive);
  ASSERT_TRUE(writer.ok());
  std::thread([&] { EXPECT_TRUE(is_busy(h.pool->fix_if_at_hand(page(1)).status())); }).join();
}

TEST(BufferPool, PrefetchedPageIsAHit) {
  PoolHarness h(tiny_pool(64, /*writers=*/1));
  h.make(page(1));
  ASSERT_TRUE(h.pool->surrender(page(1)).ok());
  const std::array<PageId, 2> both{page(1), page(2)};
  h.pool->read_ahead(both.data(), 2);  // one was never written: no harm
  EXPECT_TRUE(wait_until([&h] { return h.pool->counters().reads >= 2; }));
  const uint64_t reads = h.pool->counters().reads;
  EXPECT_EQ(h.expect_page(page(1)).version, 1u);
  EXPECT_EQ(h.pool->counters().reads, reads);
}

TEST(BufferPool, ImageLsnIsForgottenOnLoad) {
  PoolHarness h(tiny_pool(64));
  h.make(page(1));
  {
    auto guard = h.pool->fix(page(1), LatchMode::kShared);
    EXPECT_EQ(h.pool->image_lsn(*guard), h.last.start);
  }
  ASSERT_TRUE(h.pool->surrender(page(1)).ok());
  auto guard = h.pool->fix(page(1), LatchMode::kShared);
  EXPECT_TRUE(h.pool->image_lsn(*guard).is_zero());
}

TEST(BufferPool, ReadingAPageRaisesTheLogsLlsn) {
  PoolHarness h(tiny_pool(64));
  std::string bytes(kPageBytes, 0);
  fill_page(bytes.data(), page(1), uint64_t{1} << 40, PageVersion{1, 0});
  seal_page(bytes.data());
  ASSERT_TRUE(h.source.write(page(1), bytes.data()).ok());
  h.modify(page(1));
  EXPECT_GT(h.last.llsn.value, uint64_t{1} << 40);
}

class RecordingPageLock : public PageLock {
 public:
  Status acquire(PageId id, LatchMode, Llsn*) override {
    ++acquired_;
    return refuse_ ? error_fenced() : ok_status();
  }
  void forget(PageId) override { ++forgotten_; }
  std::atomic<int> acquired_{0}, forgotten_{0};
  std::atomic<bool> refuse_{false};
};

TEST(BufferPool, PageLockIsTakenBeforeAndForgottenAfterUse) {  // PL1
  RecordingPageLock lock;
  PoolHarness h(tiny_pool(32), &lock);
  h.make(page(1));
  EXPECT_EQ(lock.acquired_, 1);
  h.expect_page(page(1));
  EXPECT_EQ(lock.acquired_, 2);
  lock.refuse_ = true;
  EXPECT_TRUE(is_fenced(h.pool->fix(page(1), LatchMode::kShared).status()));
  EXPECT_TRUE(is_fenced(h.pool->fix(page(2), LatchMode::kShared).status()));
  lock.refuse_ = false;
  for (uint32_t i = 2; i < 100; ++i) h.make(page(i));
  EXPECT_GT(lock.forgotten_, 0);
}

}  // namespace
}  // namespace strata
