// Goal: with writers, readers and purge at once, no view changes its mind, every view is a
// consistent snapshot, nobody sees a commit that is not durable, and purge takes nothing that a
// view needs. Method: rows are version chains in memory, headed by real record headers (unstamped,
// so that every read asks the TrxSystem). Writers move amounts between rows, so that every snapshot
// has the same sum; some roll back. They linger between commit_order() and commit_finish(). A
// reader reads everything twice and compares. The commit positions are kept by sequence: what is
// seen must be durable. Purge cuts off the versions that the purged transaction superseded; a
// reader that needed one finds the chain broken.
#include <gtest/gtest.h>

#include <array>
#include <mutex>
#include <thread>

#include "base/rng.h"
#include "txn/testing/trx_store.h"

namespace strata {
namespace {

constexpr size_t kRows = 12;
constexpr int64_t kInitial = 1000;

struct Version {
  TrxId trx_id;
  int64_t amount = kInitial;
  std::shared_ptr<Version> previous;  // null: the first, or purged
  bool cut = false;                   // there was a previous one, purge took it
};
struct Row {
  std::mutex latch;
  std::shared_ptr<Version> newest = std::make_shared<Version>();
};

struct World {
  testing::TrxStore db;
  std::array<Row, kRows> rows;
  std::vector<std::atomic<uint64_t>> commit_end = std::vector<std::atomic<uint64_t>>(1 << 20);
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> commits{0}, rollbacks{0}, conflicts{0}, views{0}, purged{0}, waits{0};
  bool stamp = false;
  explicit World(uint32_t tit_slots) : db(tit_slots) {}

  // One row as the view sees it.
  int64_t read(const ReadView& view, Row* row) {
    std::shared_ptr<Version> v;
    {
      const std::lock_guard latch(row->latch);
      v = row->newest;
    }
    for (;;) {
      EXPECT_NE(v, nullptr) << "purge took a version that a view needs";
      if (v == nullptr) return 0;
      const RecordHeader header{v->trx_id, Cts{}, UndoPtr{}, 0};
      const StatusOr<bool> seen = db.trxs()->visible(view, header, true);
      EXPECT_TRUE(seen.ok()) << seen.status();
      if (*seen) {
        if (!v->trx_id.is_zero() && v->trx_id != view.own) {
          uint64_t end = 0;  // the writer notes it just after commit_order()
          while ((end = commit_end[sequence_of(v->trx_id)].load()) == 0) std::this_thread::yield();
          EXPECT_GE(db.log()->durable_lsn().value, end) << "seen before durable";
        }
        return v->amount;
      }
      std::shared_ptr<Version> older;
      {
        const std::lock_guard latch(row->latch);
        EXPECT_FALSE(v->cut) << "purge took a version that a view needs";
        older = v->previous;
      }
      v = older;
    }
  }

  bool change(Trx* trx, Row* row, int64_t delta) {
    const std::lock_guard latch(row->latch);
    if (*db.trxs()->is_undecided(row->newest->trx_id, trx->id)) return false;
    auto v = std::make_shared<Version>();
    v->trx_id = trx->id;
    v->amount = row->newest->amount + delta;
    v->previous = row->newest;
    row->newest = v;
    return true;
  }

  void writer(uint64_t seed) {
    Rng rng(seed);
    Trx trx;
    while (!stop.load()) {
      db.trxs()->begin(&trx);
      ASSERT_TRUE(db.trxs()->ensure_id(&trx).ok());
      const TrxId id = trx.id;
      std::vector<Row*> changed;
      bool ok = true;
      for (uint64_t n = 1 + rng.below(3); n > 0 && ok; --n) {
        const int64_t delta = 1 + static_cast<int64_t>(rng.below(50));
        Row* from = &rows[rng.below(kRows)];
        Row* to = &rows[rng.below(kRows)];
        for (auto [row, d] : {std::pair(from, -delta), std::pair(to, delta)}) {
          ASSERT_TRUE(db.change(&trx, "row").ok());
          ok = ok && change(&trx, row, d);
          if (!ok) break;
          changed.push_back(row);
        }
      }
      if (!ok || rng.one_in(8)) {
        for (size_t i = changed.size(); i-- > 0;) {
          const std::lock_guard latch(changed[i]->latch);
          ASSERT_EQ(changed[i]->newest->trx_id, id);
          changed[i]->newest = changed[i]->newest->previous;
        }
        ASSERT_TRUE(db.rollback(&trx).ok());
        (ok ? rollbacks : conflicts).fetch_add(1);
        continue;
      }
      ASSERT_TRUE(db.trxs()->reserve_commit(&trx).ok());
      ASSERT_TRUE(db.trxs()->commit_order(&trx).ok());
      commit_end[sequence_of(id)].store(trx.commit_end.value);
      if (rng.one_in(2)) std::this_thread::sleep_for(std::chrono::microseconds(rng.below(200)));
      ASSERT_TRUE(db.trxs()->commit_finish(&trx).ok());
      commits.fetch_add(1);
    }
  }

  void reader(uint64_t seed) {
    Rng rng(seed);
    Trx trx;
    while (!stop.load()) {
      db.trxs()->begin(&trx);
      ASSERT_TRUE(db.trxs()->open_view(&trx).ok());
      std::array<int64_t, kRows> first{};
      for (int pass = 0; pass < 3; ++pass) {
        int64_t sum = 0;
        for (size_t k = 0; k < kRows; ++k) {
          const size_t i = pass == 1 ? kRows - 1 - k : k;
          const int64_t amount = read(trx.view, &rows[i]);
          sum += amount;
          if (pass == 0) first[i] = amount;
          EXPECT_EQ(amount, first[i]) << "the view changed its mind";
        }
        EXPECT_EQ(sum, int64_t{kRows} * kInitial) << "not a snapshot";
        if (rng.one_in(3)) std::this_thread::sleep_for(std::chrono::microseconds(rng.below(500)));
      }
      ASSERT_TRUE(db.trxs()->commit(&trx).ok());
      views.fetch_add(1);
      if (::testing::Test::HasFailure()) return;
    }
  }

  void purger() {
    TrxSystem::PurgeItem item;
    while (!stop.load()) {
      if (!db.trxs()->next_to_purge(&item)) {
        db.trxs()->wait_for_purge_work(1000);
        continue;
      }
      for (Row& row : rows) {
        const std::lock_guard latch(row.latch);
        for (Version* v = row.newest.get(); v != nullptr; v = v->previous.get()) {
          if (v->trx_id != item.id || v->previous == nullptr) continue;
          if (v->previous->trx_id == item.id) continue;  // its own older version
          v->previous = nullptr;
          v->cut = true;
        }
      }
      ASSERT_TRUE(db.trxs()->purged(item).ok());
      purged.fetch_add(1);
    }
  }

  void run(uint64_t ms, size_t writers, size_t readers) {
    std::vector<std::thread> threads;
    for (size_t t = 0; t < writers; ++t) threads.emplace_back([this, t] { writer(t + 1); });
    for (size_t t = 0; t < readers; ++t) threads.emplace_back([this, t] { reader(t + 100); });
    threads.emplace_back([this] { purger(); });
    for (uint64_t passed = 0; passed < ms && !::testing::Test::HasFailure(); passed += 50)
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    stop = true;
    for (std::thread& t : threads) t.join();
    printf(
        "%lu commits, %lu rollbacks, %lu conflicts, %lu views, %lu purged, %lu commit waits, "
        "%lu status page reads\n",
        commits.load(), rollbacks.load(), conflicts.load(), views.load(), purged.load(),
        db.trxs()->counters().commit_waits.load(), db.trxs()->counters().status_page_reads.load());
    EXPECT_GT(commits.load(), 10u);
    EXPECT_GT(views.load(), 10u);
    EXPECT_EQ(db.trxs()->active_count(), 0u);
    purged.fetch_add(db.purge_all());
    EXPECT_EQ(purged.load(), commits.load());
    EXPECT_EQ(db.trxs()->history_length(), 0u);
    db.store()->expect_replay_is_identical();
  }
};

TEST(TrxThreads, ViewsAreSnapshotsAndKeepTheirMind) { World(1 << 10).run(2500, 3, 3); }
// A tiny table: most look-ups end in the status pages.
TEST(TrxThreads, TheSameThroughStatusPages) { World(8).run(2500, 3, 3); }

}  // namespace
}  // namespace strata
