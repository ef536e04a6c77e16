// Many threads on few frames: readers, writers, a checkpointer, read-ahead, surrender, try_fix, a
// flaky source. Goal: no lost change, no torn or foreign bytes, no write ahead of the log (B2), no
// leaked frame; and no data race under TSan. Method: every page carries (id, version) in every
// byte; a shared array of atomics says the least version a reader may see.
#include <array>
#include <atomic>
#include <thread>

#include "base/diag.h"
#include "base/rng.h"
#include "base/testing/wait_until.h"
#include "bufpool/pool_test_support.h"

namespace strata {
namespace {

using testing::check_page;
using testing::PageVersion;
using testing::PoolHarness;
using testing::tiny_pool;

constexpr uint32_t kPages = 400;
constexpr uint32_t kSpace = 300;
constexpr int kThreads = 8;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kOperations = 1500;
#else
constexpr int kOperations = 30000;
#endif

struct Stress {
  explicit Stress(uint32_t frames, uint32_t writers, PoolHarness::WriteHook hook = nullptr)
      : h(tiny_pool(frames, writers), no_page_lock(), std::move(hook)) {
    for (uint32_t i = 0; i < kPages; ++i) h.make(PageId{kSpace, i});
    for (auto& v : least) v = 1;
  }

  void change(PageId id, Rng& rng) {
    if (!h.log->reserve_capacity(PoolHarness::kGroupBytes, false).ok()) return;
    auto guard = rng.next() % 8 == 0 ? h.pool->fix_new(id) : h.pool->fix(id, LatchMode::kExclusive);
    if (!guard.ok()) {
      h.log->return_capacity(PoolHarness::kGroupBytes);
      ADD_FAILURE() << guard.status();
      return;
    }
    if (page_is_all_zero(guard->page())) {  // fix_new of a page that is not cached; leave it alone
      h.log->return_capacity(PoolHarness::kGroupBytes);
      return;
    }
    PageVersion v;
    EXPECT_EQ(check_page(guard->page(), id, &v), "");
    EXPECT_GE(v.version, least[id.number]);
    LogReservation r;
    while (!h.log->reserve(PoolHarness::kGroupBytes, h.log->image_floor(),
                           Llsn{header_of(guard->page())->llsn}, &r)) {
    }
    const std::string group(PoolHarness::kGroupBytes, 'g');
    h.log->copy(r, group);
    testing::fill_page(guard->mutable_page(), id, r.llsn.value,
                       PageVersion{v.version + 1, r.end.value});
    h.pool->note_modified(*guard, r.start, r.end, false);
    h.log->complete(r);
    least[id.number] = v.version + 1;
  }

  void look(PageId id, bool try_only) {
    const uint64_t expect = least[id.number];
    auto guard =
        try_only ? h.pool->try_fix(id, LatchMode::kShared) : h.pool->fix(id, LatchMode::kShared);
    if (!guard.ok()) {
      EXPECT_TRUE(try_only && is_busy(guard.status())) << guard.status();
      return;
    }
    PageVersion v;
    EXPECT_EQ(check_page(guard->page(), id, &v), "");
    EXPECT_GE(v.version, expect);
  }

  void operate(uint64_t seed) {
    Rng rng(seed);
    for (int i = 0; i < kOperations; ++i) {
      // Skewed, so that some pages are always fought over.
      const uint32_t range = rng.next() % 4 == 0 ? kPages : 40;
      const PageId id{kSpace, static_cast<uint32_t>(rng.next() % range)};
      const uint64_t dice = rng.next() % 100;
      if (dice < 30) {
        change(id, rng);
      } else if (dice < 85) {
        look(id, dice < 40);
      } else if (dice < 88) {
        std::array<PageId, 5> next;
        for (uint32_t i = 0; i < next.size(); ++i)
          next[i] = PageId{kSpace, (id.number + 1 + i) % (kPages + 3)};
        h.pool->read_ahead(next.data(), next.size());
      } else if (dice < 90) {
        EXPECT_TRUE(h.pool->surrender(id).ok());
      } else if (dice < 92) {
        const uint64_t oldest = h.pool->oldest_dirty_lsn().value;
        const Status s = h.pool->write_back_below(Lsn{h.log->next_lsn().value - 1000});
        EXPECT_TRUE(s.ok()) << s;
        if (s.ok() && oldest != UINT64_MAX) {
          EXPECT_GE(h.pool->oldest_dirty_lsn().value, oldest);
        }
      } else if (dice < 93) {
        EXPECT_TRUE(
            is_not_found(h.pool->fix(PageId{kSpace, kPages + 5}, LatchMode::kShared).status()));
      } else {  // two pages at once, in order
        const PageId other{kSpace, id.number + 1 < kPages ? id.number + 1 : id.number};
        auto first = h.pool->fix(id, LatchMode::kShared);
        EXPECT_TRUE(first.ok());
        if (other != id) {
          EXPECT_TRUE(h.pool->fix(other, LatchMode::kExclusive).ok());
        }
      }
    }
  }

  void run() {
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) threads.emplace_back([this, t] { operate(1000 + t); });
    for (std::thread& t : threads) t.join();
    for (uint32_t i = 0; i < kPages; ++i)
      EXPECT_GE(h.expect_page(PageId{kSpace, i}).version, least[i].load());
    while (!h.pool->write_back_below(h.log->next_lsn()).ok()) {
    }
    EXPECT_EQ(h.pool->dirty_count(), 0u);
    for (uint32_t i = 0; i < kPages; ++i) EXPECT_TRUE(h.pool->surrender(PageId{kSpace, i}).ok());
    // None is leaked; what was being read ahead ends.
    EXPECT_TRUE(
        testing::wait_until([this] { return h.pool->free_count() == h.pool->frame_count(); }));
    for (uint32_t i = 0; i < kPages; ++i)
      EXPECT_EQ(h.expect_page(PageId{kSpace, i}).version, least[i].load());
  }

  PoolHarness h;
  std::atomic<uint64_t> least[kPages];
};

TEST(BufferPoolStress, NoChangeIsLostWithBackgroundWriters) {
  Stress stress(64, /*writers=*/2);
  stress.run();
}

// What is read ahead comes late, from a thread of the source's, in any order, sometimes not at all.
TEST(BufferPoolStress, NoChangeIsLostWhenBatchesComeLate) {
  Stress stress(512, /*writers=*/2);
  testing::LateBatches late(&stress.h.source);
  std::atomic<bool> stop{false};
  std::thread source([&] {
    Rng rng(9);
    while (!stop.load() || late.waiting() > 0) {
      const size_t waiting = late.waiting();
      const bool fails = rng.one_in(10);
      if (waiting == 0 ||
          !late.end(rng.below(waiting), fails ? error_peer_down("by order") : ok_status()))
        std::this_thread::yield();
    }
  });
  stress.run();
  stop = true;
  source.join();
}

TEST(BufferPoolStress, NoChangeIsLostWhenCallersDoTheWriting) {
  Stress stress(64, /*writers=*/0);
  stress.run();
}

TEST(BufferPoolStress, NoChangeIsLostWhenWritesFailNowAndThen) {
  set_diag_sink([](Severity, std::string_view) {});
  {
    std::atomic<uint64_t> count{0};
    Stress stress(128, /*writers=*/1, [&count](PageId, const char*) {
      return ++count % 20 == 0 ? error_no_space("by order") : ok_status();
    });
    // surrender() may report such a failure; it keeps the page then.
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&stress, t] {
        Rng rng(77 + static_cast<uint64_t>(t));
        for (int i = 0; i < kOperations; ++i) {
          const PageId id{kSpace, static_cast<uint32_t>(rng.next() % kPages)};
          if (rng.next() % 3 == 0)
            stress.change(id, rng);
          else if (rng.next() % 50 == 0)
            (void)stress.h.pool->surrender(id);
          else
            stress.look(id, false);
        }
      });
    }
    for (std::thread& t : threads) t.join();
    for (uint32_t i = 0; i < kPages; ++i)
      EXPECT_EQ(stress.h.expect_page(PageId{kSpace, i}).version, stress.least[i].load());
  }
  set_diag_sink(nullptr);
}

// Two nodes over one source: a page lock service that calls surrender() on the holder. PL1, PL2.
class TwoNodes {
 public:
  struct Node final : public PageLock {
    Status acquire(PageId id, LatchMode, Llsn*) override {
      // Exclusive only: the simplest service that moves pages around.
      for (;;) {
        Node* other = nullptr;
        {
          const std::lock_guard lock(service->mutex);
          Node*& holder = service->holder[id.number];
          if (holder == this && !service->moving[id.number]) return ok_status();
          if (holder == nullptr) holder = this;
          if (!service->moving[id.number] && holder != this) {
            service->moving[id.number] = true;
            other = holder;
          }
          if (holder == this && !service->moving[id.number]) return ok_status();
        }
        if (other == nullptr) {
          std::this_thread::yield();
          continue;
        }
        const Status status = other->pool->surrender(id);
        const std::lock_guard lock(service->mutex);
        service->moving[id.number] = false;
        if (!status.ok()) return status;
        service->holder[id.number] = this;
      }
    }
    void forget(PageId) override {}  // keeps the lock: allowed
    BufferPool* pool = nullptr;
    TwoNodes* service = nullptr;
  };
  std::mutex mutex;
  Node* holder[kPages] = {};
  bool moving[kPages] = {};
};

TEST(BufferPoolStress, PagesMoveBetweenTwoNodesWithoutLosingChanges) {
  TwoNodes service;
  TwoNodes::Node locks[2];
  testing::MemoryPageSource source;
  testing::MemoryLogSink sinks[2];
  std::unique_ptr<Log> logs[2];
  std::unique_ptr<BufferPool> pools[2];
  for (int n = 0; n < 2; ++n) {
    logs[n] = std::make_unique<Log>(LogOptions{.buffer_bytes = 1u << 20}, &sinks[n], Lsn{4096}, 0);
    locks[n].service = &service;
    auto made = BufferPool::create(tiny_pool(32, 1), &source, &locks[n], logs[n].get());
    ASSERT_TRUE(made.ok());
    pools[n] = std::move(*made);
    locks[n].pool = pools[n].get();
  }
  constexpr uint32_t kShared = 50;
  std::vector<char> bytes(kPageBytes);
  for (uint32_t i = 0; i < kShared; ++i) {
    testing::fill_page(bytes.data(), PageId{kSpace, i}, 1, PageVersion{0, 0});
    seal_page(bytes.data());
    ASSERT_TRUE(source.write(PageId{kSpace, i}, bytes.data()).ok());
  }
  std::atomic<uint64_t> changes[kShared] = {};
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      Rng rng(500 + static_cast<uint64_t>(t));
      const int n = t % 2;
      for (int i = 0; i < kOperations / 10; ++i) {
        const PageId id{kSpace, static_cast<uint32_t>(rng.next() % kShared)};
        if (!logs[n]->reserve_capacity(64, false).ok()) return;
        auto guard = pools[n]->fix(id, LatchMode::kExclusive);
        ASSERT_TRUE(guard.ok()) << guard.status();
        PageVersion v;
        ASSERT_EQ(check_page(guard->page(), id, &v), "");
        LogReservation r;
        while (!logs[n]->reserve(64, logs[n]->image_floor(), Llsn{header_of(guard->page())->llsn},
                                 &r)) {
        }
        EXPECT_GT(r.llsn.value, header_of(guard->page())->llsn);
        logs[n]->copy(r, std::string(64, 'g'));
        testing::fill_page(guard->mutable_page(), id, r.llsn.value, PageVersion{v.version + 1, 0});
        pools[n]->note_modified(*guard, r.start, r.end, false);
        logs[n]->complete(r);
        ++changes[id.number];
      }
    });
  }
  for (std::thread& t : threads) t.join();
  for (uint32_t i = 0; i < kShared; ++i) {
    auto guard = pools[i % 2]->fix(PageId{kSpace, i}, LatchMode::kShared);
    ASSERT_TRUE(guard.ok());
    PageVersion v;
    EXPECT_EQ(check_page(guard->page(), PageId{kSpace, i}, &v), "");
    EXPECT_EQ(v.version, changes[i].load()) << "page " << i;
  }
}

}  // namespace
}  // namespace strata
