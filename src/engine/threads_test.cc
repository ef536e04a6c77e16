// Goal: everything at once. Sixteen threads move money between rows, insert and delete, scan by
// snapshots, read with locks and at SERIALIZABLE, save and roll back, while the background threads
// write pages, take checkpoints and purge, and one thread asks for status, statistics and
// checkpoints. Every consistent read must find the same total; at the end tables and indexes agree.
// Made for ThreadSanitizer; STRATA_SECONDS says how long it goes on.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <thread>

#include "base/clock.h"
#include "base/latch.h"
#include "base/rng.h"
#include "engine/testing/test_database.h"

namespace strata::engine {
namespace {

using namespace testing;  // NOLINT: test helpers

constexpr uint64_t kRows = 400;
constexpr uint64_t kThreads = 16;
#ifdef __SANITIZE_THREAD__
constexpr uint64_t kSeconds = 20;
#else
constexpr uint64_t kSeconds = 4;
#endif
constexpr uint32_t kMoney = 100;          // of each row, in `group`
constexpr uint64_t kVisitors = 1u << 20;  // ids from here on come and go and have no money

bool is_expected(const Status& status) {
  return is_deadlock(status) || is_lock_wait_timeout(status);
}

class Everything : public ::testing::Test {
 protected:
  void SetUp() override {
    KernelOptions options = options_on(disk_.get());
    options.background = true;
    options.purge_threads = 2;
    auto opened = Kernel::open(options);
    ASSERT_TRUE(opened.ok()) << opened.status();
    kernel_ = std::move(opened).value();
    auto session = kernel_->new_session();
    session->begin(Isolation::kRepeatableRead);
    ASSERT_TRUE(session->create_table(table_spec("t"), &table_).ok());
    ASSERT_TRUE(session->commit().ok());
    session->begin(Isolation::kRepeatableRead);
    for (uint64_t id = 0; id < kRows; ++id)
      ASSERT_TRUE(insert(session.get(), table_, id, account(id, kMoney)).ok());
    ASSERT_TRUE(session->commit().ok());
  }

  static Row account(uint64_t id, uint32_t money) {
    return Row{id, money, std::string(40 + id % 1500, 'a'), ""};
  }

  std::unique_ptr<SimFileSystem> disk_ = make_sim_file_system();
  std::unique_ptr<Kernel> kernel_;
  TableRef table_;
  std::atomic<bool> stop_{false};
  Mutex stop_mutex_{LatchRank::kLeaf};
  CondVar stopping_;
  std::atomic<uint64_t> commits_{0}, retries_{0}, scans_{0};

  void stop() {
    {
      const MutexLock lock(stop_mutex_);
      stop_.store(true);
    }
    stopping_.notify_all();
  }
  bool stopped_within(uint64_t microseconds) {
    MutexLock lock(stop_mutex_);
    return stopping_.wait_for_us(lock, microseconds, [this] { return stop_.load(); });
  }

  // One thread's work.
  class Worker {
   public:
    Worker(Everything* test, uint64_t seed)
        : test_(test), table_(test->table_), rng_(seed), session_(test->kernel_->new_session()) {}

    void run() {
      session_->set_lock_wait_timeout_us(2000000);
      while (!test_->stop_.load() && !HasFailure()) {
        const Status status = transaction();
        if (status.ok()) {
          test_->commits_.fetch_add(1);
          continue;
        }
        ASSERT_TRUE(is_expected(status)) << status;
        ASSERT_TRUE(session_->rollback().ok());
        test_->retries_.fetch_add(1);
      }
    }

   private:
    Status transaction() {
      const auto isolation = static_cast<Isolation>(1 + rng_.below(3));
      session_->begin(isolation);
      switch (rng_.below(8)) {
        case 0:
          STRATA_RETURN_IF_ERROR(count_money(isolation));
          break;
        case 1:
          STRATA_RETURN_IF_ERROR(visit());
          break;
        case 2:
          STRATA_RETURN_IF_ERROR(read_locked(isolation));
          break;
        case 3: {
          const Savepoint savepoint = session_->savepoint();
          STRATA_RETURN_IF_ERROR(transfer(17));
          STRATA_RETURN_IF_ERROR(session_->rollback_to(savepoint));
          STRATA_RETURN_IF_ERROR(transfer(1));
          break;
        }
        default:
          STRATA_RETURN_IF_ERROR(transfer(1 + static_cast<uint32_t>(rng_.below(5))));
      }
      return rng_.one_in(10) ? session_->rollback() : session_->commit();
    }

    Status take(uint64_t id, Row* row) {
      TableCursor cursor(session_.get(), table_, 0);
      cursor.set_lock_mode(LockMode::kExclusive);
      bool gone = false;
      STRATA_RETURN_IF_ERROR(cursor.get(be64(id), &gone));
      if (gone) return error_internal("a row is missing");
      return decode(&cursor, row);
    }

    Status transfer(uint32_t money) {
      const uint64_t from = rng_.below(kRows);
      const uint64_t to = (from + 1 + rng_.below(kRows - 1)) % kRows;
      Row source;
      Row target;
      STRATA_RETURN_IF_ERROR(take(from, &source));
      STRATA_RETURN_IF_ERROR(take(to, &target));
      if (source.group < money) return ok_status();
      Row less = source;
      Row more = target;
      less.group -= money;
      more.group += money;
      if (rng_.one_in(8)) more.text.assign(rng_.below(1800), 'b');
      if (rng_.one_in(20)) more.blob.assign(17000 + rng_.below(20000), 'c');
      STRATA_RETURN_IF_ERROR(update(session_.get(), table_, from, source, from, less));
      return update(session_.get(), table_, to, target, to, more);
    }

    Status visit() {
      const uint64_t id = kVisitors + rng_.below(3000);
      const Row row{id, 0, std::string(rng_.below(1500), 'v'), ""};
      const Status status = insert(session_.get(), table_, id, row);
      if (!is_duplicate_key(status)) return status;
      Row there;
      TableCursor cursor(session_.get(), table_, 0);
      cursor.set_lock_mode(LockMode::kExclusive);
      bool gone = false;
      STRATA_RETURN_IF_ERROR(cursor.get(be64(id), &gone));
      if (gone) return ok_status();
      STRATA_RETURN_IF_ERROR(decode(&cursor, &there));
      return remove(session_.get(), table_, id, there);
    }

    // A snapshot, or everything locked.
    Status count_money(Isolation isolation) {
      const bool locking = isolation == Isolation::kSerializable;
      const auto index = static_cast<uint32_t>(rng_.below(3));
      const bool backwards = rng_.one_in(2);
      TableCursor cursor(session_.get(), table_, index);
      if (locking) cursor.set_lock_mode(LockMode::kShared);
      STRATA_RETURN_IF_ERROR(backwards ? cursor.seek_before(Bytes()) : cursor.seek(Bytes()));
      uint64_t rows = 0;
      uint64_t money = 0;
      while (cursor.valid()) {
        bool gone = false;
        STRATA_RETURN_IF_ERROR(cursor.fetch(&gone));
        if (!gone) {
          Row row;
          STRATA_RETURN_IF_ERROR(decode(&cursor, &row));
          if (load_be64(cursor.clustered_key().data()) < kVisitors) ++rows;
          money += row.group;
        }
        STRATA_RETURN_IF_ERROR(backwards ? cursor.prev() : cursor.next());
      }
      EXPECT_EQ(rows, kRows) << "index " << index << (locking ? " locking" : "");
      EXPECT_EQ(money, kRows * kMoney) << "index " << index << (locking ? " locking" : "");
      test_->scans_.fetch_add(1);
      return ok_status();
    }

    Status read_locked(Isolation isolation) {
      TableCursor cursor(session_.get(), table_, static_cast<uint32_t>(rng_.below(3)));
      cursor.set_lock_mode(rng_.one_in(2) ? LockMode::kShared : LockMode::kExclusive);
      cursor.set_skip_locked(rng_.one_in(3));
      const std::string from = be64(rng_.below(kRows));
      STRATA_RETURN_IF_ERROR(rng_.one_in(2) ? cursor.seek(from) : cursor.seek_before(from));
      const bool backwards = rng_.one_in(2);
      for (int i = 0; i < 10 && cursor.valid(); ++i) {
        bool gone = false;
        if (!rng_.one_in(4)) STRATA_RETURN_IF_ERROR(cursor.fetch(&gone));
        if (isolation == Isolation::kReadCommitted && rng_.one_in(2))
          STRATA_RETURN_IF_ERROR(cursor.unlock_row());
        STRATA_RETURN_IF_ERROR(backwards ? cursor.prev() : cursor.next());
      }
      return ok_status();
    }

    Everything* const test_;
    TableRef table_;
    Rng rng_;
    std::unique_ptr<Session> session_;
  };

  void administer() {
    for (uint64_t i = 0; !stop_.load(); ++i) {
      EXPECT_FALSE(kernel_->status_text().empty());
      (void)kernel_->counters();
      EXPECT_TRUE(kernel_->refresh_statistics(table_.get()).ok());
      EXPECT_TRUE(kernel_->estimate_range(table_.get(), 1, be64(10), be64(200)).ok());
      if (i % 4 == 0) {
        EXPECT_TRUE(kernel_->checkpoint().ok());
      }
      stopped_within(50'000);
    }
  }
};

TEST_F(Everything, AtOnce) {
  const uint64_t seed = environment("STRATA_SEED", 1);
  SCOPED_TRACE("STRATA_SEED=" + std::to_string(seed));
  const uint64_t end_us = monotonic_us() + environment("STRATA_SECONDS", kSeconds) * 1000000;
  {
    std::vector<std::unique_ptr<Worker>> workers;
    for (uint64_t i = 0; i < kThreads; ++i)
      workers.push_back(std::make_unique<Worker>(this, seed * 100 + i));
    std::vector<std::thread> threads;
    for (auto& worker : workers) threads.emplace_back([&] { worker->run(); });
    threads.emplace_back([this] { administer(); });
    while (monotonic_us() < end_us && !HasFailure()) stopped_within(20'000);
    stop();
    for (std::thread& thread : threads) thread.join();
  }
  std::printf("%llu transactions, %llu retries, %llu full scans\n",
              static_cast<unsigned long long>(commits_.load()),
              static_cast<unsigned long long>(retries_.load()),
              static_cast<unsigned long long>(scans_.load()));
  EXPECT_GT(commits_.load(), kThreads);
  EXPECT_GT(scans_.load(), 0u);
  expect_consistent(kernel_.get(), table_);
  EXPECT_TRUE(kernel_->shutdown().ok());
}

}  // namespace
}  // namespace strata::engine
