// Many threads on one kernel: money is neither made nor lost, whatever waits, deadlocks, rollbacks
// and purge do in between; and a snapshot keeps its own past over very many commits.
#include <array>
#include <atomic>
#include <chrono>
#include <thread>

#include "base/rng.h"
#include "row/testing/mini_kernel.h"

namespace strata {
namespace {

using testing::MiniKernel;
using testing::MiniOptions;

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr uint64_t kSlower = 8;
#else
constexpr uint64_t kSlower = 1;
#endif

std::string account_key(uint32_t i) {
  std::string s(4, '\0');
  store_be32(s.data(), i);
  return s;
}
std::string amount_payload(int64_t amount, size_t pad) {
  std::string s;
  append_u64(&s, static_cast<uint64_t>(amount));
  s.append(pad, 'p');
  return encode_payload({}, s);
}
int64_t amount_of(Bytes payload) { return static_cast<int64_t>(load_u64(payload.data() + 1)); }

class RowThreads : public ::testing::Test {
 protected:
  void open(const MiniOptions& options) {
    disk_ = make_sim_file_system();
    kernel_ = std::make_unique<MiniKernel>(disk_.get(), options);
    const Status status = kernel_->open();
    ASSERT_TRUE(status.ok()) << status;
  }
  RowContext* rows() { return kernel_->rows(); }
  TrxSystem* trxs() { return kernel_->trxs(); }
  TreeId tree() { return kernel_->tree(0); }

  void fill(uint32_t accounts, int64_t amount) {
    Trx trx;
    trxs()->begin(&trx);
    for (uint32_t i = 0; i < accounts; ++i) {
      const Status status =
          insert_record(rows(), &trx, tree(), account_key(i), amount_payload(amount, 200), 0);
      ASSERT_TRUE(status.ok()) << status;
    }
    ASSERT_TRUE(trxs()->commit(&trx).ok());
  }

  // kOk, or why the transfer has to be rolled back.
  Status transfer(Trx* trx, uint32_t from, uint32_t to, int64_t amount, Rng* rng) {
    std::string payload;
    STRATA_RETURN_IF_ERROR(
        lock_record(rows(), trx, tree(), account_key(from), RowLock::kExclusive, &payload));
    const int64_t have = amount_of(payload);
    STRATA_RETURN_IF_ERROR(update_record(rows(), trx, tree(), account_key(from),
                                         amount_payload(have - amount, rng->below(300))));
    STRATA_RETURN_IF_ERROR(lock_record(rows(), trx, tree(), account_key(to),
                                       rng->one_in(8) ? RowLock::kShared : RowLock::kExclusive,
                                       &payload));
    const int64_t there = amount_of(payload);
    return update_record(rows(), trx, tree(), account_key(to),
                         amount_payload(there + amount, rng->below(300)));
  }

  int64_t total(Trx* trx, uint64_t* count) {
    RowCursor cursor(rows(), tree());
    int64_t sum = 0;
    Status status = cursor.seek(trx, RowCursor::Read::kConsistent, Bytes());
    for (*count = 0; status.ok() && cursor.valid(); ++*count) {
      sum += amount_of(cursor.payload());
      status = cursor.next();
    }
    EXPECT_TRUE(status.ok()) << status;
    return sum;
  }

  std::unique_ptr<SimFileSystem> disk_;
  std::unique_ptr<MiniKernel> kernel_;
};

// L10: shared locks, ranges, and exclusive locks that stand in records, in memory, or move from one
// to the other.
TEST_F(RowThreads, NobodyIsBesideAnExclusiveOwner) {
  constexpr uint32_t kRows = 4;
  open(MiniOptions{});
  fill(kRows, 0);
  rows()->unwritten_locks_max = 2;
  std::array<std::atomic<int>, kRows> readers{};
  std::array<std::atomic<int>, kRows> writers{};
  std::atomic<uint64_t> exclusive{0}, victims{0};
  const auto run = [&](uint64_t t) {
    Rng rng(t + 100);
    for (uint64_t n = 0; n < 1500 / kSlower; ++n) {
      Trx trx;
      trxs()->begin(&trx);
      trx.lock_wait_timeout_us = 30000000;
      std::array<bool, kRows> reads{};
      std::array<bool, kRows> writes{};
      Status status;
      std::string payload;
      bool fresh = false;
      const auto note_read = [&](uint32_t i) {
        if (!reads[i]) readers[i].fetch_add(1);
        reads[i] = true;
        EXPECT_EQ(writers[i].load(), writes[i] ? 1 : 0) << "a reader beside a writer";
      };
      for (uint64_t steps = 1 + rng.below(3); steps > 0 && status.ok(); --steps) {
        const auto i = static_cast<uint32_t>(rng.below(kRows));
        const std::string key = account_key(i);
        const uint64_t dice = rng.below(8);
        if (dice == 0) {
          RangeCursor range(rows(), tree());
          status = range.seek(&trx, Bytes());
          while (status.ok() && range.valid()) {
            const uint32_t at = load_be32(range.key().data());
            status = range.next();  // leaves it: settled
            if (status.ok()) note_read(at);
          }
        } else if (dice < 4) {
          status = lock_record(rows(), &trx, tree(), key, RowLock::kShared, &payload, &fresh);
          if (status.ok()) note_read(i);
        } else {
          status = lock_record(rows(), &trx, tree(), key, RowLock::kExclusive, &payload, &fresh);
          if (!status.ok()) break;
          if (fresh && rng.one_in(4) && trx.undo.last.is_zero()) {
            trxs()->waits()->drop_exclusive(&trx.held, trx.id, RowId{tree().index_id, key});
            continue;
          }
          EXPECT_EQ(readers[i].load(), reads[i] ? 1 : 0) << "a writer beside a reader";
          if (!writes[i]) {
            EXPECT_EQ(writers[i].fetch_add(1), 0) << "two writers";
          }
          writes[i] = true;
          exclusive.fetch_add(1);
          if (dice > 5) {
            status = update_record(rows(), &trx, tree(), key, amount_payload(0, rng.below(300)));
            trxs()->waits()->forget_changed(&trx.held, RowId{tree().index_id, key});
          }
        }
        if (rng.one_in(3)) std::this_thread::yield();
      }
      EXPECT_TRUE(status.ok() || is_deadlock(status)) << status;
      if (!status.ok()) victims.fetch_add(1);
      for (uint32_t i = 0; i < kRows; ++i) {
        if (reads[i]) readers[i].fetch_sub(1);
        if (writes[i]) writers[i].fetch_sub(1);
      }
      const bool commits = status.ok() && rng.one_in(2);
      status = commits ? trxs()->commit(&trx) : rollback_all(rows(), &trx);
      ASSERT_TRUE(status.ok()) << status;
    }
  };
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 6; ++t) threads.emplace_back(run, t);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(trxs()->waits()->describe(10), "");
  printf("%lu exclusive locks, %lu victims\n", exclusive.load(), victims.load());
}

TEST_F(RowThreads, TransfersKeepTheTotalUnderDeadlocksAndPurge) {
  constexpr uint32_t kAccounts = 40;
  constexpr int64_t kAmount = 1000;
  const uint64_t transfers = 3000 / kSlower;
  MiniOptions options;
  options.pool_writers = 1;
  open(options);
  fill(kAccounts, kAmount);
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> done{0}, undone{0}, sums{0};
  std::vector<std::thread> writers;
  for (uint64_t t = 0; t < 4; ++t) {
    writers.emplace_back([&, t] {
      Rng rng(t + 1);
      for (uint64_t i = 0; i < transfers; ++i) {
        Trx trx;
        trxs()->begin(&trx);
        trx.lock_wait_timeout_us = 30000000;
        const auto from = static_cast<uint32_t>(rng.below(kAccounts));
        const auto to = static_cast<uint32_t>((from + 1 + rng.below(kAccounts - 1)) % kAccounts);
        const Status status =
            transfer(&trx, from, to, 1 + static_cast<int64_t>(rng.below(10)), &rng);
        if (status.ok() && !rng.one_in(10)) {
          TrxSystem::PurgeItem own;
          EXPECT_TRUE(trxs()->commit(&trx, rng.one_in(2) ? &own : nullptr).ok());
          purge_own(rows(), std::move(own));
          done.fetch_add(1);
        } else {
          EXPECT_TRUE(status.ok() || is_deadlock(status)) << status;
          const Status undo = rollback_all(rows(), &trx);
          EXPECT_TRUE(undo.ok()) << undo;
          undone.fetch_add(1);
        }
      }
    });
  }
  std::thread reader([&] {
    while (!stop.load()) {
      Trx trx;
      trxs()->begin(&trx);
      EXPECT_TRUE(trxs()->open_view(&trx).ok());
      for (int i = 0; i < 3; ++i) {
        uint64_t count = 0;
        EXPECT_EQ(total(&trx, &count), kAccounts * kAmount);
        EXPECT_EQ(count, kAccounts);
      }
      sums.fetch_add(3);
      EXPECT_TRUE(trxs()->commit(&trx).ok());
    }
  });
  std::thread purger([&] {
    while (!stop.load()) {
      trxs()->wait_for_purge_work(10000);
      const auto purged = purge_some(rows(), 32);
      EXPECT_TRUE(purged.ok()) << purged.status();
    }
  });
  for (std::thread& w : writers) w.join();
  stop.store(true);
  trxs()->wake_purge();
  reader.join();
  purger.join();
  ASSERT_TRUE(kernel_->purge_all().ok());
  EXPECT_EQ(kernel_->check(true), kAccounts);
  std::printf("%llu transfers, %llu rolled back, %llu deadlocks, %llu waits, %llu sums\n",
              static_cast<unsigned long long>(done.load()),
              static_cast<unsigned long long>(undone.load()),
              static_cast<unsigned long long>(trxs()->waits()->counters().deadlocks.load()),
              static_cast<unsigned long long>(trxs()->waits()->counters().waits.load()),
              static_cast<unsigned long long>(sums.load()));
}

// Writers that always roll back, their undo pages reused at once: readers copy a version and find
// its undo gone, again and again, and must come to the committed one all the same.
TEST_F(RowThreads, ReadersNeverSeeWhatIsRolledBack) {
  constexpr uint32_t kRows = 8;
  MiniOptions options;
  options.pool_writers = 1;
  open(options);
  fill(kRows, 7);
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      Rng rng(t + 5);
      while (!stop.load()) {
        Trx trx;
        trxs()->begin(&trx);
        trx.lock_wait_timeout_us = 30000000;
        Status status;
        for (int i = 0; i < 3 && status.ok(); ++i) {
          const std::string key = account_key(static_cast<uint32_t>(rng.below(kRows)));
          if (rng.one_in(3)) {
            status = delete_record(rows(), &trx, tree(), key);
            if (status.ok()) {
              status = insert_record(rows(), &trx, tree(), key, amount_payload(13, 5), 0);
            }
          } else {
            status = update_record(rows(), &trx, tree(), key, amount_payload(-99, rng.below(2000)));
          }
          if (rng.one_in(3)) {
            status = insert_record(rows(), &trx, tree(), key + "x", amount_payload(1, 9), 0);
          }
        }
        EXPECT_TRUE(status.ok() || is_deadlock(status) || is_duplicate_key(status)) << status;
        EXPECT_TRUE(rollback_all(rows(), &trx).ok());
      }
    });
  }
  for (uint64_t t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      Rng rng(t + 50);
      std::string payload;
      while (!stop.load()) {
        Trx trx;
        trxs()->begin(&trx);
        EXPECT_TRUE(trxs()->open_view(&trx).ok());
        uint64_t count = 0;
        EXPECT_EQ(total(&trx, &count), int64_t{7} * kRows);
        EXPECT_EQ(count, kRows);
        for (int i = 0; i < 50; ++i) {
          const std::string key = account_key(static_cast<uint32_t>(rng.below(kRows)));
          const Status status = read_record(rows(), &trx, tree(), key, &payload);
          EXPECT_TRUE(status.ok()) << status;
          if (status.ok()) {
            EXPECT_EQ(amount_of(payload), 7);
          }
        }
        EXPECT_TRUE(trxs()->commit(&trx).ok());
      }
    });
  }
  std::this_thread::sleep_for(std::chrono::seconds(2));
  stop.store(true);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(kernel_->check(true), kRows);
}

// Several threads insert and delete the same few unique values: never two live entries with one.
TEST_F(RowThreads, UniqueValuesStayUnique) {
  MiniOptions options;
  options.pool_writers = 1;
  open(options);
  std::vector<std::thread> threads;
  std::atomic<uint64_t> inserted{0};
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Rng rng(t + 77);
      for (uint64_t i = 0; i < 1500 / kSlower; ++i) {
        Trx trx;
        trxs()->begin(&trx);
        trx.lock_wait_timeout_us = 30000000;
        const std::string value = account_key(static_cast<uint32_t>(rng.below(8)));
        // Long keys, so that the entries of one value spread over leaves.
        const std::string key =
            value + account_key(static_cast<uint32_t>(rng.below(1000))) + std::string(800, 'k');
        Status status = insert_record(rows(), &trx, tree(), key, encode_payload({}, ""), 4);
        if (status.ok()) {
          inserted.fetch_add(1);
          RowCursor cursor(rows(), tree());
          status = cursor.seek(&trx, RowCursor::Read::kLatest, value);
          int live = 0;
          while (status.ok() && cursor.valid() && cursor.key().substr(0, 4) == value) {
            if (!cursor.undecided()) ++live;
            status = cursor.next();
          }
          EXPECT_EQ(live, 1) << "only ours can be live while we are undecided";
          if (status.ok() && rng.one_in(2)) status = delete_record(rows(), &trx, tree(), key);
        }
        EXPECT_TRUE(status.ok() || is_duplicate_key(status) || is_deadlock(status)) << status;
        if (is_duplicate_key(status)) {
          RowCursor cursor(rows(), tree());
          if (cursor.seek(&trx, RowCursor::Read::kLatest, value).ok() && cursor.valid() &&
              cursor.key().substr(0, 4) == value) {
            const std::string found(cursor.key());
            status = delete_record(rows(), &trx, tree(), found);
          }
        }
        if (is_deadlock(status) || rng.one_in(5)) {
          EXPECT_TRUE(rollback_all(rows(), &trx).ok());
        } else {
          EXPECT_TRUE(trxs()->commit(&trx).ok());
        }
        if (i % 16 == 0) {
          const auto purged = purge_some(rows(), 8);
          EXPECT_TRUE(purged.ok()) << purged.status();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(kernel_->purge_all().ok());
  kernel_->check(true);
  Trx trx;
  trxs()->begin(&trx);
  ASSERT_TRUE(trxs()->open_view(&trx).ok());
  RowCursor cursor(rows(), tree());
  std::string last;
  ASSERT_TRUE(cursor.seek(&trx, RowCursor::Read::kConsistent, Bytes()).ok());
  while (cursor.valid()) {
    EXPECT_NE(cursor.key().substr(0, 4), last);
    last.assign(cursor.key().substr(0, 4));
    ASSERT_TRUE(cursor.next().ok());
  }
  ASSERT_TRUE(trxs()->commit(&trx).ok());
  EXPECT_GT(inserted.load(), 0u);
}

// STRATA_COMMITS=1000000 for the long run.
TEST_F(RowThreads, SnapshotStaysOpenOverManyCommitsAndStillSeesItsOwnPast) {
  const char* text = std::getenv("STRATA_COMMITS");
  const uint64_t commits = text != nullptr ? std::strtoull(text, nullptr, 10) : 100000 / kSlower;
  constexpr uint32_t kRows = 50;
  MiniOptions options;
  options.pool_bytes = 64u << 20;
  options.pool_writers = 1;
  options.tit_slots = 1024;  // nearly all writers are known from status pages only
  open(options);
  fill(kRows, 7);
  Trx old_reader;
  trxs()->begin(&old_reader);
  ASSERT_TRUE(trxs()->open_view(&old_reader).ok());
  Rng rng(5);
  std::vector<int64_t> newest(kRows, 7);
  for (uint64_t i = 1; i <= commits; ++i) {
    Trx trx;
    trxs()->begin(&trx);
    const auto row = static_cast<uint32_t>(rng.below(kRows));
    const auto value = static_cast<int64_t>(rng.next() >> 8);
    Status status = update_record(rows(), &trx, tree(), account_key(row),
                                  amount_payload(value, rng.below(100)));
    ASSERT_TRUE(status.ok()) << status;
    status = trxs()->commit(&trx);
    ASSERT_TRUE(status.ok()) << status;
    newest[row] = value;
    if (i % 50000 == 0) {
      ASSERT_TRUE(kernel_->checkpoint().ok());
    }
    if (i % (commits / 4) != 0) continue;
    uint64_t count = 0;
    EXPECT_EQ(total(&old_reader, &count), int64_t{7} * kRows);
    EXPECT_EQ(count, kRows);
  }
  EXPECT_GE(trxs()->history_length(), commits);
  Trx reader;
  trxs()->begin(&reader);
  ASSERT_TRUE(trxs()->open_view(&reader).ok());
  std::string payload;
  for (uint32_t row = 0; row < kRows; ++row) {
    ASSERT_TRUE(read_record(rows(), &reader, tree(), account_key(row), &payload).ok());
    EXPECT_EQ(amount_of(payload), newest[row]);
  }
  ASSERT_TRUE(trxs()->commit(&reader).ok());
  ASSERT_TRUE(trxs()->commit(&old_reader).ok());
  const uint64_t undo_before = kernel_->undo()->pages_in_use();
  ASSERT_TRUE(kernel_->purge_all().ok());
  EXPECT_EQ(trxs()->history_length(), 0u);
  EXPECT_LT(kernel_->undo()->pages_in_use(), undo_before / 10 + 10);
}

}  // namespace
}  // namespace strata
