// Goal: under random concurrent transactions no wake-up is lost, every cycle is broken, a victim is
// never chosen without a cycle, exclusive locks exclude, and the queue of a row is first come first
// served. Method: rows are words that hold the owner's id (as records do); a transaction locks
// random rows the way the row layer does, sometimes times out, and ends. A second graph, kept by
// the test, is checked for a cycle whenever a victim is reported. A lost wake-up shows as a wait of
// many seconds: it fails the test.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "lock/row_waits.h"

namespace strata {
namespace {

constexpr uint64_t kStuckUs = 30000000;

struct World {
  explicit World(size_t rows) : owner(rows), latches(rows), keys(rows) {
    for (size_t i = 0; i < rows; ++i) keys[i] = "key" + std::to_string(i);
  }
  RowWaits waits;
  std::vector<std::atomic<uint64_t>> owner;  // the record's trx_id
  std::vector<std::mutex> latches;           // the page latch
  std::vector<std::string> keys;
  std::atomic<uint64_t> state[1 << 16] = {};  // 1 = active, by sequence
  std::atomic<uint64_t> next{1};
  std::atomic<uint64_t> grants{0}, deadlocks{0}, timeouts{0}, commits{0}, overtaken{0};

  bool active(uint64_t id) const { return id != 0 && state[id & 0xffff].load() == id; }
  RowId row(size_t i) const { return RowId{IndexId{static_cast<uint32_t>(i % 3)}, keys[i]}; }
};

enum class Outcome { kGot, kVictim, kTimeout };

Outcome lock_row(World& w, TrxId self, size_t i, uint64_t timeout_us) {
  bool turn = false;
  for (;;) {
    uint64_t holder = 0;
    {
      const std::lock_guard latch(w.latches[i]);
      const uint64_t now = w.owner[i].load();
      if (now == self.value) return Outcome::kGot;
      if (w.active(now)) {
        holder = now;
      } else if (turn || !w.waits.has_waiters(w.row(i))) {
        w.owner[i].store(self.value);
        if (turn) w.waits.settled(self, w.row(i), self);
        return Outcome::kGot;
      }
    }
    const uint64_t start = monotonic_us();
    const Status s = w.waits.wait(self, TrxId{holder}, w.row(i), timeout_us, nullptr,
                                  [&] { return holder != 0 && w.active(holder); });
    if (monotonic_us() - start > kStuckUs) ADD_FAILURE() << "lost wake-up";
    if (s.ok()) {
      turn = true;
      w.grants.fetch_add(1);
      continue;
    }
    if (is_deadlock(s)) return Outcome::kVictim;
    EXPECT_TRUE(is_lock_wait_timeout(s)) << s;
    return Outcome::kTimeout;
  }
}

void end(World& w, TrxId self) {
  w.state[self.value & 0xffff].store(0);  // publish, then wake (L4)
  w.waits.release_shared(self);
  w.waits.holder_ended(self);
}

void run(size_t rows, size_t threads, size_t trxs_per_thread, size_t locks_max, bool ordered,
         bool short_timeouts) {
  World w(rows);
  std::vector<std::thread> pool;
  for (size_t t = 0; t < threads; ++t) {
    pool.emplace_back([&, t] {
      Rng rng(t * 977 + rows);
      for (size_t n = 0; n < trxs_per_thread; ++n) {
        const TrxId self{w.next.fetch_add(1)};
        w.state[self.value & 0xffff].store(self.value);
        std::vector<size_t> wanted;
        for (size_t k = 1 + rng.below(locks_max); k > 0; --k) wanted.push_back(rng.below(rows));
        if (ordered) std::sort(wanted.begin(), wanted.end());
        bool ok = true;
        for (size_t i : wanted) {
          const uint64_t timeout = short_timeouts && rng.one_in(4) ? rng.below(300) : 2 * kStuckUs;
          const Outcome o = lock_row(w, self, i, timeout);
          if (o == Outcome::kVictim) w.deadlocks.fetch_add(1);
          if (o == Outcome::kTimeout) w.timeouts.fetch_add(1);
          if (o == Outcome::kVictim) ok = false;
          if (o != Outcome::kGot) break;
          if (rng.one_in(3)) std::this_thread::yield();
        }
        // Whatever it holds is still its own: exclusive locks exclude.
        for (size_t i : wanted) {
          if (w.owner[i].load() == self.value) continue;
          if (ok && !short_timeouts) ADD_FAILURE() << "row lost";
        }
        end(w, self);
        if (ok) w.commits.fetch_add(1);
      }
    });
  }
  for (std::thread& t : pool) t.join();
  // Every wait has ended; nobody is left in a queue.
  EXPECT_EQ(w.waits.describe(10), "");
  for (size_t i = 0; i < rows; ++i) EXPECT_FALSE(w.waits.has_waiters(w.row(i)));
  EXPECT_EQ(w.waits.counters().deadlocks.load(), w.deadlocks.load());
  if (ordered) {
    EXPECT_EQ(w.deadlocks.load(), 0u) << "a victim without a cycle";
  }
  printf("rows %zu: %lu commits, %lu grants, %lu deadlocks, %lu timeouts\n", rows, w.commits.load(),
         w.grants.load(), w.deadlocks.load(), w.timeouts.load());
}

TEST(RowWaitsModel, RandomOrderBreaksEveryCycle) { run(6, 8, 1500, 4, false, false); }
TEST(RowWaitsModel, OrderedLockingNeverHasAVictim) { run(6, 8, 1500, 4, true, false); }
TEST(RowWaitsModel, TimeoutsAndVictimsMixed) { run(5, 8, 1500, 4, false, true); }
TEST(RowWaitsModel, OneHotRow) { run(1, 16, 1000, 1, false, false); }

TEST(RowWaitsModel, FirstComeFirstServed) {  // L1: order of registration is the order of grants
  RowWaits waits;
  const RowId row{IndexId{1}, "r"};
  std::atomic<uint64_t> active{1};
  std::vector<uint64_t> order;
  std::vector<std::thread> pool;
  constexpr uint64_t kWaiters = 30;
  for (uint64_t id = 2; id < 2 + kWaiters; ++id) {
    pool.emplace_back([&, id] {
      ASSERT_TRUE(
          waits
              .wait(TrxId{id}, TrxId{1}, row, kStuckUs, nullptr, [&] { return active.load() == 1; })
              .ok());
      order.push_back(id);  // exclusive: only one has the turn
      waits.settled(TrxId{id}, row, TrxId{id});
      waits.holder_ended(TrxId{id});
    });
    const uint64_t give_up = monotonic_us() + kStuckUs;
    for (;;) {
      const std::string s = waits.describe(1000);
      if (static_cast<uint64_t>(std::count(s.begin(), s.end(), '\n')) == id - 1) break;
      ASSERT_LT(monotonic_us(), give_up);
      std::this_thread::yield();
    }
  }
  active = 0;
  waits.holder_ended(TrxId{1});
  for (std::thread& t : pool) t.join();
  for (uint64_t i = 0; i < kWaiters; ++i) EXPECT_EQ(order[i], i + 2);
}

// Shared and exclusive locks together, as the row layer uses them: lockers register, then look at
// the row; writers mark the row, then look at the shared locks.
TEST(RowWaitsModel, SharedAndExclusiveExclude) {
  World w(4);
  std::vector<std::atomic<int64_t>> readers(4), writers(4);
  std::atomic<uint64_t> victims{0}, shared_got{0};
  std::vector<std::thread> pool;
  for (size_t t = 0; t < 6; ++t) {
    pool.emplace_back([&, t] {
      Rng rng(t + 5);
      for (size_t n = 0; n < 800; ++n) {
        const TrxId self{w.next.fetch_add(1)};
        w.state[self.value & 0xffff].store(self.value);
        std::vector<size_t> shared_held, exclusive_held;
        bool ok = true;
        for (size_t k = 1 + rng.below(3); k > 0 && ok; --k) {
          const size_t i = rng.below(4);
          const bool has_shared =
              std::find(shared_held.begin(), shared_held.end(), i) != shared_held.end();
          const bool has_exclusive =
              std::find(exclusive_held.begin(), exclusive_held.end(), i) != exclusive_held.end();
          if (has_exclusive) continue;
          if (rng.one_in(2)) {
            if (has_shared) continue;
            bool turn = false;
            for (;;) {
              w.waits.add_shared(self, w.row(i));
              uint64_t holder;
              {
                const std::lock_guard latch(w.latches[i]);
                holder = w.owner[i].load();
              }
              const bool held = w.active(holder);
              if (!held && (turn || !w.waits.has_waiters(w.row(i)))) break;
              w.waits.drop_shared(self, w.row(i));
              const Status s = w.waits.wait(self, TrxId{held ? holder : 0}, w.row(i), 2 * kStuckUs,
                                            nullptr, [&] { return held && w.active(holder); });
              ASSERT_TRUE(s.ok() || is_deadlock(s)) << s;
              if (!s.ok()) {
                ok = false;
                break;
              }
              turn = true;
            }
            if (!ok) break;
            if (turn) w.waits.settled(self, w.row(i), TrxId{});
            std::this_thread::yield();
            shared_held.push_back(i);
            shared_got.fetch_add(1);
            readers[i].fetch_add(1);
            if (writers[i].load() != 0) ADD_FAILURE() << "reader beside a writer";
          } else {
            const Outcome o = lock_row(w, self, i, 2 * kStuckUs);
            ASSERT_NE(o, Outcome::kTimeout);
            if (o == Outcome::kVictim) {
              ok = false;
              break;
            }
            const Status s = w.waits.wait_for_shared(self, w.row(i), 2 * kStuckUs, nullptr);
            ASSERT_TRUE(s.ok() || is_deadlock(s)) << s;
            if (!s.ok()) {
              ok = false;
              break;
            }
            exclusive_held.push_back(i);
            if (readers[i].load() - (has_shared ? 1 : 0) != 0)
              ADD_FAILURE() << "writer beside a reader";
            if (writers[i].fetch_add(1) != 0) ADD_FAILURE() << "two writers";
            std::this_thread::yield();
          }
        }
        if (!ok) victims.fetch_add(1);
        for (size_t i : exclusive_held) writers[i].fetch_sub(1);
        for (size_t i : shared_held) readers[i].fetch_sub(1);
        end(w, self);
      }
    });
  }
  for (std::thread& t : pool) t.join();
  EXPECT_EQ(w.waits.describe(10), "");
  EXPECT_GT(shared_got.load(), 100u);
  printf("%lu shared, %lu victims of %lu\n", shared_got.load(), victims.load(), w.next.load());
}

}  // namespace
}  // namespace strata
