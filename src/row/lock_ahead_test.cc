// Scans that lock what they copy from a leaf as one run (RW11, L12): what they hold, what they give
// back, whom they stop for; and threads that count rows up through such scans lose no step.
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "base/rng.h"
#include "base/testing/sanitized.h"
#include "row/row_store.h"
#include "row/testing/mini_kernel.h"

namespace strata {
namespace {

using testing::MiniKernel;
using testing::MiniOptions;
using Read = RowCursor::Read;

std::string key_of(uint64_t n) {
  std::string key(4, '\0');
  store_be32(key.data(), static_cast<uint32_t>(n));
  return key;
}
std::string count_payload(uint64_t count) {
  std::string text;
  append_u64(&text, count);
  return encode_payload({}, text + std::string(100, 'p'));
}
uint64_t count_of(Bytes payload) { return load_u64(payload.data() + 1); }

class LockAhead : public ::testing::Test {
 protected:
  static constexpr uint64_t kRows = 400;  // on several leaves

  void SetUp() override {
    disk_ = make_sim_file_system();
    MiniOptions options;
    options.pool_writers = 1;
    kernel_ = std::make_unique<MiniKernel>(disk_.get(), options);
    const Status status = kernel_->open();
    ASSERT_TRUE(status.ok()) << status;
    Trx trx;
    begin(&trx);
    for (uint64_t n = 0; n < kRows; ++n) ASSERT_TRUE(insert(&trx, 10 * n).ok());
    ASSERT_TRUE(trxs()->commit(&trx).ok());
  }
  RowContext* rows() { return kernel_->rows(); }
  TrxSystem* trxs() { return kernel_->trxs(); }
  TreeId tree() { return kernel_->tree(0); }
  void begin(Trx* trx) {
    trxs()->begin(trx);
    trx->lock_wait_timeout_us = 0;
    ASSERT_TRUE(trxs()->ensure_id(trx).ok());
  }
  Status insert(Trx* trx, uint64_t n) {
    return insert_record(rows(), trx, tree(), key_of(n), count_payload(0), 0);
  }
  Status update(Trx* trx, uint64_t n, uint64_t count) {
    return update_record(rows(), trx, tree(), key_of(n), count_payload(count));
  }
  Status lock(Trx* trx, uint64_t n, RowLock mode = RowLock::kExclusive) {
    std::string payload;
    return lock_record(rows(), trx, tree(), key_of(n), mode, &payload);
  }
  // Whether another transaction gets the row at once.
  bool is_free(uint64_t n, RowLock mode = RowLock::kExclusive) {
    Trx other;
    begin(&other);
    const Status status = lock(&other, n, mode);
    EXPECT_TRUE(status.ok() || is_lock_wait_timeout(status)) << status;
    EXPECT_TRUE(rollback_all(rows(), &other).ok());
    return status.ok();
  }
  // Moves the cursor so far and counts the rows it holds.
  static uint64_t pass(RowCursor* cursor, uint64_t rows) {
    uint64_t locked = 0;
    for (uint64_t i = 0; i < rows; ++i) {
      locked += cursor->locked() ? 1 : 0;
      cursor->took();
      EXPECT_TRUE(cursor->next().ok());
    }
    return locked;
  }
  void start(RowCursor* cursor, Trx* trx, bool shared = false) {
    cursor->set_lock_ahead(true, shared);
    ASSERT_TRUE(cursor->seek(trx, Read::kLatest, Bytes()).ok());
  }

  std::unique_ptr<FileSystem> disk_;
  std::unique_ptr<MiniKernel> kernel_;
};

TEST_F(LockAhead, AScanHoldsWhatItHasPassedAndGivesBackTheRest) {
  Trx scan;
  begin(&scan);
  RowCursor cursor(rows(), tree());
  start(&cursor, &scan);
  EXPECT_EQ(pass(&cursor, 250), 250u);
  EXPECT_TRUE(cursor.locked());
  EXPECT_EQ(cursor.key(), key_of(2500));
  EXPECT_EQ(scan.held.size(), 0u);
  EXPECT_LT(scan.held.run_count(), 20u) << "one for each leaf, not for each row";
  cursor.took();
  cursor.give_back(&scan);
  for (const uint64_t n : {0u, 10u, 1000u, 2490u, 2500u}) EXPECT_FALSE(is_free(n)) << n;
  for (const uint64_t n : {2510u, 2520u, 3990u}) EXPECT_TRUE(is_free(n)) << n;
  EXPECT_TRUE(update(&scan, 2500, 1).ok());
  ASSERT_TRUE(trxs()->commit(&scan).ok());
  EXPECT_TRUE(is_free(0) && is_free(2500));
  kernel_->check(true);
}

// The row behind the range that was asked for, which the caller does not take.
TEST_F(LockAhead, WhatIsShownAndNotTakenIsGivenBack) {
  for (const uint64_t rows_before : {0u, 1u, 5u, 6u, 21u, 22u, 85u, 100u, 250u}) {
    Trx scan;
    begin(&scan);
    RowCursor cursor(rows(), tree());
    start(&cursor, &scan);
    pass(&cursor, rows_before);
    ASSERT_TRUE(cursor.locked());
    cursor.give_back(&scan);
    if (rows_before > 0) {
      EXPECT_FALSE(is_free(10 * (rows_before - 1))) << rows_before;
    }
    EXPECT_TRUE(is_free(10 * rows_before)) << rows_before;
    EXPECT_TRUE(is_free(10 * (rows_before + 1))) << rows_before;
    ASSERT_TRUE(trxs()->commit(&scan).ok());
  }
}

TEST_F(LockAhead, AWholeScanHoldsEverythingAndItsOwnerGoesOnWithIt) {
  Trx scan;
  begin(&scan);
  RowCursor cursor(rows(), tree());
  start(&cursor, &scan);
  uint64_t seen = 0;
  for (; cursor.valid(); ++seen) {
    ASSERT_TRUE(cursor.locked());
    cursor.took();
    const std::string key(cursor.key());
    if (seen % 3 == 0) {
      ASSERT_TRUE(update_record(rows(), &scan, tree(), key, count_payload(1)).ok());
    }
    if (seen % 3 == 1) {
      ASSERT_TRUE(delete_record(rows(), &scan, tree(), key).ok());
    }
    ASSERT_TRUE(cursor.next().ok());
  }
  EXPECT_EQ(seen, kRows);
  for (uint64_t n = 0; n < kRows; n += 7) EXPECT_FALSE(is_free(10 * n)) << n;
  RowCursor again(rows(), tree());  // what is held already
  start(&again, &scan);
  seen = 0;
  for (; again.valid(); ++seen) ASSERT_TRUE(again.next().ok());
  EXPECT_EQ(seen, kRows - (kRows + 1) / 3);
  ASSERT_TRUE(rollback_all(rows(), &scan).ok());
  for (uint64_t n = 0; n < kRows; n += 7) EXPECT_TRUE(is_free(10 * n)) << n;
  kernel_->check(true);
}

TEST_F(LockAhead, AScanStopsForWhatOthersHave) {
  Trx writer, locker, scan;
  begin(&writer);
  begin(&locker);
  ASSERT_TRUE(update(&writer, 100, 1).ok());
  ASSERT_TRUE(lock(&locker, 200).ok());
  begin(&scan);
  RowCursor cursor(rows(), tree());
  start(&cursor, &scan);
  EXPECT_EQ(pass(&cursor, 10), 10u);
  EXPECT_EQ(cursor.key(), key_of(100));
  EXPECT_FALSE(cursor.locked());
  EXPECT_TRUE(cursor.undecided());
  EXPECT_TRUE(is_lock_wait_timeout(lock(&scan, 100)));
  ASSERT_TRUE(cursor.next().ok());
  EXPECT_EQ(pass(&cursor, 9), 9u);
  EXPECT_EQ(cursor.key(), key_of(200));
  EXPECT_FALSE(cursor.locked() || cursor.undecided());
  EXPECT_TRUE(is_lock_wait_timeout(lock(&scan, 200)));
  ASSERT_TRUE(cursor.next().ok());
  EXPECT_TRUE(cursor.locked());
  EXPECT_TRUE(update(&writer, 100, 2).ok()) << "its own row";
  EXPECT_TRUE(lock(&locker, 200).ok()) << "its own row";
  EXPECT_TRUE(is_lock_wait_timeout(lock(&locker, 90)));
  for (Trx* trx : {&scan, &writer, &locker}) ASSERT_TRUE(trxs()->commit(trx).ok());
}

TEST_F(LockAhead, RowsMayComeIntoARun) {
  Trx gone;
  begin(&gone);
  ASSERT_TRUE(delete_record(rows(), &gone, tree(), key_of(50)).ok());
  ASSERT_TRUE(trxs()->commit(&gone).ok());
  Trx scan, inserter;
  begin(&scan);
  RowCursor cursor(rows(), tree());
  start(&cursor, &scan);
  pass(&cursor, 100);
  begin(&inserter);
  EXPECT_TRUE(insert(&inserter, 55).ok());
  EXPECT_TRUE(insert(&inserter, 50).ok()) << "over a record that nobody can hold";
  EXPECT_TRUE(update(&inserter, 55, 1).ok() && update(&inserter, 50, 1).ok());
  EXPECT_TRUE(is_lock_wait_timeout(lock(&scan, 55))) << "it is its writer's";
  ASSERT_TRUE(trxs()->commit(&inserter).ok());
  for (const uint64_t n : {50u, 55u}) EXPECT_TRUE(is_free(n)) << n;
  for (const uint64_t n : {40u, 60u}) EXPECT_FALSE(is_free(n)) << n;
  EXPECT_TRUE(lock(&scan, 55).ok());
  EXPECT_FALSE(is_free(55));
  Trx other;
  begin(&other);
  EXPECT_TRUE(lock(&other, 50).ok());
  EXPECT_TRUE(is_lock_wait_timeout(lock(&scan, 50)));
  EXPECT_TRUE(is_lock_wait_timeout(update(&scan, 50, 2)));
  ASSERT_TRUE(trxs()->commit(&other).ok());
  ASSERT_TRUE(trxs()->commit(&scan).ok());
  EXPECT_TRUE(is_free(55));
}

TEST_F(LockAhead, WhereOthersHoldSharedLocksRowsAreTakenOneByOne) {
  Trx reader, scan;
  begin(&reader);
  std::string payload;
  ASSERT_TRUE(lock_record(rows(), &reader, tree(), key_of(300), RowLock::kShared, &payload).ok());
  begin(&scan);
  RowCursor cursor(rows(), tree());
  start(&cursor, &scan);
  EXPECT_EQ(pass(&cursor, 10), 0u);
  EXPECT_TRUE(is_free(0));
  ASSERT_TRUE(trxs()->commit(&reader).ok());
  pass(&cursor, 64);
  EXPECT_TRUE(cursor.locked());
  ASSERT_TRUE(trxs()->commit(&scan).ok());
}

TEST_F(LockAhead, BeyondTheLimitOfRunsRowsAreTakenOneByOne) {
  rows()->runs_max = 1;
  Trx scan;
  begin(&scan);
  RowCursor cursor(rows(), tree());
  start(&cursor, &scan);
  const uint64_t locked = pass(&cursor, kRows - 1);
  EXPECT_GT(locked, 0u);
  EXPECT_LT(locked, kRows - 1);
  EXPECT_EQ(scan.held.run_count(), 1u);
  ASSERT_TRUE(trxs()->commit(&scan).ok());
}

// A cursor that outlives its transaction gives nothing back, and touches nothing.
TEST_F(LockAhead, TheEndOfTheTransactionComesFirst) {
  Trx scan;
  begin(&scan);
  RowCursor cursor(rows(), tree());
  start(&cursor, &scan);
  pass(&cursor, 10);
  ASSERT_TRUE(trxs()->commit(&scan).ok());
  cursor.give_back(&scan);
  begin(&scan);
  EXPECT_TRUE(is_free(0));
  ASSERT_TRUE(trxs()->commit(&scan).ok());
}

// --- shared (L20) ---

TEST_F(LockAhead, SharedScansHoldTheSameRowsAndKeepWritersOut) {
  Trx first, second;
  begin(&first);
  begin(&second);
  RowCursor cursor(rows(), tree());
  RowCursor other(rows(), tree());
  start(&cursor, &first, true);
  start(&other, &second, true);
  EXPECT_EQ(pass(&cursor, 250), 250u);
  EXPECT_EQ(pass(&other, 100), 100u);
  EXPECT_LT(first.held.shared_run_count(), 20u) << "one for each leaf, not for each row";
  cursor.took();
  cursor.give_back(&first);
  other.give_back(&second);
  for (const uint64_t n : {0u, 10u, 990u, 1000u, 2490u, 2500u}) {
    EXPECT_FALSE(is_free(n)) << n;
    EXPECT_TRUE(is_free(n, RowLock::kShared)) << n;
  }
  for (const uint64_t n : {2510u, 3990u}) EXPECT_TRUE(is_free(n)) << n;
  EXPECT_TRUE(is_lock_wait_timeout(update(&first, 10, 1))) << "the other one holds it, too";
  ASSERT_TRUE(rollback_all(rows(), &first).ok());
  EXPECT_TRUE(update(&second, 10, 1).ok());
  EXPECT_TRUE(is_free(2000)) << "held by the first one only";
  EXPECT_FALSE(is_free(990));
  ASSERT_TRUE(trxs()->commit(&second).ok());
  EXPECT_TRUE(is_free(0) && is_free(990));
  kernel_->check(true);
}

TEST_F(LockAhead, ASharedScanStopsForWhatOthersHaveExclusively) {
  Trx writer, locker, runner, scan;
  for (Trx* trx : {&writer, &locker, &runner, &scan}) begin(trx);
  ASSERT_TRUE(update(&writer, 100, 1).ok());
  ASSERT_TRUE(lock(&locker, 200).ok());
  RowCursor ahead(rows(), tree());
  ahead.set_lock_ahead(true);
  ASSERT_TRUE(ahead.seek(&runner, Read::kLatest, key_of(300)).ok());
  pass(&ahead, 3);
  RowCursor cursor(rows(), tree());
  start(&cursor, &scan, true);
  for (const uint64_t n : {100u, 200u, 300u}) {
    while (cursor.locked()) {
      cursor.took();
      ASSERT_TRUE(cursor.next().ok());
    }
    EXPECT_EQ(cursor.key(), key_of(n));
    EXPECT_TRUE(is_lock_wait_timeout(lock(&scan, n, RowLock::kShared))) << n;
    ASSERT_TRUE(cursor.next().ok());
  }
  for (Trx* trx : {&scan, &runner, &writer, &locker}) ASSERT_TRUE(trxs()->commit(trx).ok());
}

// A writer has marked a row and waits for the scan's end: whoever holds the row goes on seeing what
// it has locked. A new row is another matter.
TEST_F(LockAhead, WhoHoldsARowSharedReadsItAgainUnderAWaitingWriter) {
  Trx gone;
  begin(&gone);
  ASSERT_TRUE(delete_record(rows(), &gone, tree(), key_of(50)).ok());
  ASSERT_TRUE(trxs()->commit(&gone).ok());
  Trx scan, writer;
  begin(&scan);
  RowCursor cursor(rows(), tree());
  start(&cursor, &scan, true);
  pass(&cursor, 100);
  begin(&writer);
  writer.lock_wait_timeout_us = 30'000'000;
  EXPECT_TRUE(insert(&writer, 55).ok()) << "a run keeps nobody from inserting";
  EXPECT_TRUE(insert(&writer, 50).ok()) << "nor over a deleted record";
  EXPECT_TRUE(update(&writer, 55, 1).ok()) << "its own row";
  for (const uint64_t n : {50u, 55u})
    EXPECT_TRUE(is_lock_wait_timeout(lock(&scan, n, RowLock::kShared))) << "not committed yet";
  std::thread waiting([&] { EXPECT_TRUE(update(&writer, 40, 7).ok()); });
  while (trxs()->waits()->describe(1).empty()) std::this_thread::yield();
  std::string payload;
  ASSERT_TRUE(lock_record(rows(), &scan, tree(), key_of(40), RowLock::kShared, &payload).ok());
  EXPECT_EQ(count_of(payload), 0u);
  ASSERT_TRUE(trxs()->commit(&scan).ok());
  waiting.join();
  ASSERT_TRUE(trxs()->commit(&writer).ok());
  kernel_->check(true);
}

TEST_F(LockAhead, ARowThatComesIntoASharedRunIsHeldOnceItIsCommitted) {
  Trx scan, inserter;
  begin(&scan);
  RowCursor cursor(rows(), tree());
  start(&cursor, &scan, true);
  pass(&cursor, 100);
  begin(&inserter);
  ASSERT_TRUE(insert(&inserter, 55).ok());
  ASSERT_TRUE(trxs()->commit(&inserter).ok());
  EXPECT_FALSE(is_free(55));
  EXPECT_TRUE(is_free(55, RowLock::kShared));
  ASSERT_TRUE(trxs()->commit(&scan).ok());
  EXPECT_TRUE(is_free(55));
}

// Threads move money between rows; others lock all of them shared, one scan after the other, and
// must see the same sum in each.
TEST_F(LockAhead, WhatASharedScanHasLockedAddsUp) {
  const char* const given = std::getenv("STRATA_SEED");
  const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 1;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  constexpr uint64_t kStart = 1000;
  const uint64_t steps = testing::fewer_if_sanitized(1500, 200);
  Trx first;
  begin(&first);
  for (uint64_t n = 0; n < kRows; ++n) ASSERT_TRUE(update(&first, 10 * n, kStart).ok());
  ASSERT_TRUE(trxs()->commit(&first).ok());
  const auto sum_up = [&](Trx* trx, uint64_t* sum) {
    *sum = 0;
    RowCursor cursor(rows(), tree());
    cursor.set_lock_ahead(true, true);
    STRATA_RETURN_IF_ERROR(cursor.seek(trx, Read::kLatest, Bytes()));
    while (cursor.valid()) {
      std::string payload(cursor.payload());
      const std::string key(cursor.key());
      if (cursor.locked()) {
        cursor.took();
      } else {
        const Status locked = lock_record(rows(), trx, tree(), key, RowLock::kShared, &payload);
        if (is_not_found(locked)) payload.clear();
        if (!is_not_found(locked)) STRATA_RETURN_IF_ERROR(locked);
      }
      if (!payload.empty()) *sum += count_of(payload);
      STRATA_RETURN_IF_ERROR(cursor.next());
    }
    return ok_status();
  };
  const auto move_some = [&](Trx* trx, uint64_t from, uint64_t to) {
    std::string payload;
    STRATA_RETURN_IF_ERROR(
        lock_record(rows(), trx, tree(), key_of(10 * from), RowLock::kExclusive, &payload));
    const uint64_t amount = count_of(payload) / 2;
    STRATA_RETURN_IF_ERROR(update(trx, 10 * from, count_of(payload) - amount));
    STRATA_RETURN_IF_ERROR(
        lock_record(rows(), trx, tree(), key_of(10 * to), RowLock::kExclusive, &payload));
    return update(trx, 10 * to, count_of(payload) + amount);
  };
  std::atomic<uint64_t> sums{0};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Rng rng(seed * 1000 + t);
      for (uint64_t i = 0; i < (t < 2 ? steps : steps / 10); ++i) {
        Trx trx;
        trxs()->begin(&trx);
        trx.lock_wait_timeout_us = 30'000'000;
        Status status = trxs()->ensure_id(&trx);
        if (t < 2) {
          const uint64_t from = rng.below(kRows);
          const uint64_t to = (from + 1 + rng.below(kRows - 1)) % kRows;
          if (status.ok()) status = move_some(&trx, from, to);
        } else {
          uint64_t sum = 0;
          uint64_t again = 0;
          if (status.ok()) status = sum_up(&trx, &sum);
          if (status.ok()) status = sum_up(&trx, &again);
          if (status.ok()) {
            EXPECT_EQ(sum, kRows * kStart);
            EXPECT_EQ(again, sum);
            sums.fetch_add(1);
          }
        }
        ASSERT_TRUE(status.ok() || is_deadlock(status)) << status;
        ASSERT_TRUE((status.ok() ? trxs()->commit(&trx) : rollback_all(rows(), &trx)).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(sums.load(), 0u);
  EXPECT_FALSE(trxs()->waits()->index_has_shared(tree().index_id));
  kernel_->check(true);
}

// Threads scan a stretch, add 1 to each row of it, and now and then lock, insert or delete single
// rows: what was committed is what the rows have in the end.
TEST_F(LockAhead, NoStepIsLostBetweenThreads) {
  const char* const given = std::getenv("STRATA_SEED");
  const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 1;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  constexpr uint64_t kShared = 200;  // rows that all count up; behind them some come and go
  constexpr uint64_t kStretch = 40;
  const uint64_t steps = testing::fewer_if_sanitized(600, 150);
  std::array<std::atomic<uint64_t>, kShared> expected{};
  std::atomic<uint64_t> committed{0};
  const auto scan_and_count = [&](Trx* trx, uint64_t from, std::vector<uint64_t>* counted) {
    RowCursor cursor(rows(), tree());
    cursor.set_lock_ahead(true);
    STRATA_RETURN_IF_ERROR(cursor.seek(trx, Read::kLatest, key_of(10 * from)));
    for (uint64_t i = 0; cursor.valid() && i < kStretch; ++i) {
      const std::string key(cursor.key());
      const uint64_t raw = load_be32(key.data());
      std::string payload;
      Status status;
      if (cursor.locked()) {
        cursor.took();
        payload.assign(cursor.payload());
      } else {
        status = lock_record(rows(), trx, tree(), key, RowLock::kExclusive, &payload);
      }
      if (is_not_found(status)) status = ok_status();
      STRATA_RETURN_IF_ERROR(status);
      const uint64_t n = raw / 10;
      if (raw % 10 == 0 && n < kShared && !payload.empty()) {
        STRATA_RETURN_IF_ERROR(
            update_record(rows(), trx, tree(), key, count_payload(count_of(payload) + 1)));
        counted->push_back(n);
      }
      STRATA_RETURN_IF_ERROR(cursor.next());
    }
    cursor.give_back(trx);
    return ok_status();
  };
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Rng rng(seed * 1000 + t);
      for (uint64_t i = 0; i < steps; ++i) {
        Trx trx;
        trxs()->begin(&trx);
        trx.lock_wait_timeout_us = 30'000'000;
        std::vector<uint64_t> counted;
        Status status = trxs()->ensure_id(&trx);
        const uint64_t what = rng.below(4);
        if (status.ok() && what == 0) {  // one row, the usual way
          const uint64_t n = rng.below(kShared);
          std::string payload;
          status = lock_record(rows(), &trx, tree(), key_of(10 * n), RowLock::kExclusive, &payload);
          if (status.ok()) {
            status = update(&trx, 10 * n, count_of(payload) + 1);
            counted.push_back(n);
          }
        } else if (status.ok() && what == 1) {
          const uint64_t n = 10 * rng.below(kShared) + 5;
          status = rng.one_in(2) ? insert(&trx, n) : delete_record(rows(), &trx, tree(), key_of(n));
          if (is_duplicate_key(status) || is_not_found(status)) status = ok_status();
        } else if (status.ok()) {
          status = scan_and_count(&trx, rng.below(kShared), &counted);
        }
        ASSERT_TRUE(status.ok() || is_deadlock(status)) << status;
        if (!status.ok() || rng.one_in(8)) {
          ASSERT_TRUE(rollback_all(rows(), &trx).ok());
          continue;
        }
        ASSERT_TRUE(trxs()->commit(&trx).ok());
        committed.fetch_add(1);
        for (const uint64_t n : counted) expected[n].fetch_add(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(committed.load(), steps);
  ASSERT_TRUE(kernel_->purge_all().ok());
  kernel_->check(true);
  Trx reader;
  trxs()->begin(&reader);
  ASSERT_TRUE(trxs()->open_view(&reader).ok());
  for (uint64_t n = 0; n < kShared; ++n) {
    std::string payload;
    ASSERT_TRUE(read_record(rows(), &reader, tree(), key_of(10 * n), &payload).ok());
    EXPECT_EQ(count_of(payload), expected[n].load()) << "row " << n;
  }
  ASSERT_TRUE(trxs()->commit(&reader).ok());
}

}  // namespace
}  // namespace strata
