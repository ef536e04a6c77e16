// Many changes of rows that the transaction holds, made together (RW20), against the same changes
// made one by one; and whom they wait for.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "base/fault.h"
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
using Rows = std::map<std::string, std::string>;  // key, payload

class ChangeMany : public ::testing::Test {
 protected:
  static constexpr uint64_t kRows = 300;

  void SetUp() override {
    disk_ = make_sim_file_system();
    MiniOptions options;
    options.pool_writers = 1;
    kernel_ = std::make_unique<MiniKernel>(disk_.get(), options);
    const Status status = kernel_->open();
    ASSERT_TRUE(status.ok()) << status;
    Trx trx;
    begin(&trx);
    for (uint64_t n = 0; n < kRows; ++n) {
      for (const uint32_t tree : {0u, 1u}) {
        ASSERT_TRUE(
            insert_record(rows(), &trx, kernel_->tree(tree), key_of(n), payload_of(100, 'a'), 0)
                .ok());
      }
    }
    ASSERT_TRUE(trxs()->commit(&trx).ok());
  }
  void TearDown() override { disarm_faults(); }
  RowContext* rows() { return kernel_->rows(); }
  TrxSystem* trxs() { return kernel_->trxs(); }
  static std::string payload_of(size_t bytes, char fill) {
    return encode_payload({}, std::string(bytes, fill));
  }
  void begin(Trx* trx) {
    trxs()->begin(trx);
    trx->lock_wait_timeout_us = 0;
    ASSERT_TRUE(trxs()->ensure_id(trx).ok());
  }
  // Locks what is there as a run, and returns the keys.
  std::vector<std::string> lock_all(Trx* trx, uint32_t tree) {
    std::vector<std::string> keys;
    RowCursor cursor(rows(), kernel_->tree(tree));
    cursor.set_lock_ahead(true);
    EXPECT_TRUE(cursor.seek(trx, Read::kLatest, Bytes()).ok());
    while (cursor.valid()) {
      EXPECT_TRUE(cursor.locked());
      cursor.took();
      keys.emplace_back(cursor.key());
      EXPECT_TRUE(cursor.next().ok());
    }
    return keys;
  }
  Rows all(uint32_t tree, Trx* trx = nullptr) {
    Trx own;
    if (trx == nullptr) {
      trxs()->begin(&own);
      EXPECT_TRUE(trxs()->open_view(&own).ok());
    }
    Trx* const reader = trx != nullptr ? trx : &own;
    Rows found;
    RowCursor cursor(rows(), kernel_->tree(tree));
    EXPECT_TRUE(
        cursor.seek(reader, trx != nullptr ? Read::kLatest : Read::kConsistent, Bytes()).ok());
    while (cursor.valid()) {
      found.emplace(cursor.key(), cursor.payload());
      EXPECT_TRUE(cursor.next().ok());
    }
    if (trx == nullptr) {
      EXPECT_TRUE(trxs()->commit(&own).ok());
    }
    return found;
  }
  Status one_by_one(Trx* trx, uint32_t tree, const std::vector<HeldChange>& changes) {
    for (const HeldChange& change : changes) {
      STRATA_RETURN_IF_ERROR(
          change.deletes
              ? delete_record(rows(), trx, kernel_->tree(tree), change.key)
              : update_record(rows(), trx, kernel_->tree(tree), change.key, change.payload));
    }
    return ok_status();
  }
  Status together(Trx* trx, uint32_t tree, const std::vector<HeldChange>& changes) {
    return change_held_records(rows(), trx, kernel_->tree(tree), changes.data(), changes.size());
  }
  uint64_t groups() { return kernel_->log()->counters().groups.load(); }

  std::unique_ptr<FileSystem> disk_;
  std::unique_ptr<MiniKernel> kernel_;
};

TEST_F(ChangeMany, IsOneGroupOfTheLogForALeaf) {
  Trx trx;
  begin(&trx);
  const std::vector<std::string> keys = lock_all(&trx, 0);
  std::vector<HeldChange> changes;
  for (const std::string& key : keys) changes.push_back({key, Bytes(), true});
  const uint64_t before = groups();
  ASSERT_TRUE(together(&trx, 0, changes).ok());
  EXPECT_LT(groups() - before, kRows / 8);
  EXPECT_EQ(all(0, &trx), Rows{});
  EXPECT_EQ(all(0), all(1)) << "nobody else sees it yet";
  const Rows still = all(1);
  ASSERT_TRUE(rollback_all(rows(), &trx).ok());
  EXPECT_EQ(all(0), still);
  kernel_->check(true);
}

TEST_F(ChangeMany, IsTheSameAsOneByOne) {
  const char* const given = std::getenv("STRATA_SEED");
  const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 1;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  Rng rng(seed);
  const uint64_t rounds = testing::fewer_if_sanitized(60, 15);
  for (uint64_t round = 0; round < rounds; ++round) {
    Trx trx;
    begin(&trx);
    const std::vector<std::string> keys = lock_all(&trx, 0);
    ASSERT_EQ(lock_all(&trx, 1), keys);
    std::vector<std::string> payloads;  // stay where they are
    payloads.reserve(keys.size() + 1);
    std::vector<HeldChange> changes;
    const uint64_t deletes = rng.below(4);
    const size_t longest = rng.one_in(3) ? 1500 : 150;  // rows that grow split leaves
    for (const std::string& key : keys) {
      if (rng.one_in(3)) continue;
      const bool deleted = rng.below(8) < deletes;
      payloads.push_back(payload_of(rng.below(longest), static_cast<char>('b' + rng.below(20))));
      changes.push_back({key, deleted ? Bytes() : Bytes(payloads.back()), deleted});
      if (!deleted && rng.one_in(20)) changes.push_back(changes.back());  // the same row again
    }
    if (rng.one_in(4)) std::reverse(changes.begin(), changes.end());
    const Rows before = all(0);
    ASSERT_TRUE(together(&trx, 0, changes).ok());
    ASSERT_TRUE(one_by_one(&trx, 1, changes).ok());
    ASSERT_EQ(all(0, &trx), all(1, &trx)) << "round " << round;
    ASSERT_EQ(all(0), before);
    if (rng.one_in(3)) {
      ASSERT_TRUE(rollback_all(rows(), &trx).ok());
      ASSERT_EQ(all(0), before);
    } else {
      ASSERT_TRUE(trxs()->commit(&trx).ok());
    }
    ASSERT_EQ(all(0), all(1)) << "round " << round;
    if (rng.one_in(2)) {
      ASSERT_TRUE(kernel_->purge_all().ok());
    }
    Trx more;
    begin(&more);
    for (int i = 0; i < 20; ++i) {
      const uint64_t n = rng.below(kRows);
      for (const uint32_t tree : {0u, 1u}) {
        const Status status =
            insert_record(rows(), &more, kernel_->tree(tree), key_of(n), payload_of(90, 'z'), 0);
        ASSERT_TRUE(status.ok() || is_duplicate_key(status)) << status;
      }
    }
    ASSERT_TRUE(trxs()->commit(&more).ok());
  }
  ASSERT_TRUE(kernel_->purge_all().ok());
  kernel_->check(true);
}

// A run may lack rows that came later, and another may have those.
TEST_F(ChangeMany, WaitsForARowThatIsAnothers) {
  Trx trx, other;
  begin(&trx);
  begin(&other);
  std::string payload;
  ASSERT_TRUE(
      lock_record(rows(), &other, kernel_->tree(0), key_of(20), RowLock::kExclusive, &payload)
          .ok());
  std::vector<std::string> keys;
  std::vector<HeldChange> changes;
  for (uint64_t n = 10; n < 30; ++n) {
    keys.push_back(key_of(n));
    if (n != 20) {
      ASSERT_TRUE(
          lock_record(rows(), &trx, kernel_->tree(0), keys.back(), RowLock::kExclusive, &payload)
              .ok());
    }
  }
  for (const std::string& key : keys) changes.push_back({key, Bytes(), true});
  EXPECT_TRUE(is_lock_wait_timeout(together(&trx, 0, changes)));
  EXPECT_EQ(all(0, &trx).size(), kRows - 10) << "what came before it is made";
  ASSERT_TRUE(trxs()->commit(&other).ok());
  changes.erase(changes.begin(), changes.begin() + 10);
  EXPECT_TRUE(together(&trx, 0, changes).ok());
  ASSERT_TRUE(trxs()->commit(&trx).ok());
  EXPECT_EQ(all(0).size(), kRows - 20);
  kernel_->check(true);
}

// A shared lock that another has from before: marked and waited for, row by row.
TEST_F(ChangeMany, WaitsForSharedLocks) {
  Trx trx, reader;
  begin(&trx);
  begin(&reader);
  std::string payload;
  ASSERT_TRUE(
      lock_record(rows(), &reader, kernel_->tree(0), key_of(5), RowLock::kShared, &payload).ok());
  std::vector<std::string> keys{key_of(4), key_of(5), key_of(6)};
  std::vector<HeldChange> changes;
  for (const std::string& key : keys) changes.push_back({key, Bytes(), true});
  const UndoPtr start = trx.undo.last;
  EXPECT_TRUE(is_lock_wait_timeout(together(&trx, 0, changes)));
  ASSERT_TRUE(rollback_to(rows(), &trx, start).ok());
  ASSERT_TRUE(trxs()->commit(&reader).ok());
  EXPECT_TRUE(together(&trx, 0, changes).ok());
  ASSERT_TRUE(trxs()->commit(&trx).ok());
  EXPECT_EQ(all(0).size(), kRows - 3);
}

TEST_F(ChangeMany, AFailureLeavesWhatCameBeforeItToTheRollback) {
  const Rows before = all(0);
  for (int pass = 1; pass < 4; ++pass) {
    Trx trx;
    begin(&trx);
    const std::vector<std::string> keys = lock_all(&trx, 0);
    std::vector<HeldChange> changes;
    for (const std::string& key : keys) changes.push_back({key, Bytes(), true});
    ASSERT_TRUE(arm_fault("undo_page_added:" + std::to_string(pass) + ":error"));
    const Status made = together(&trx, 0, changes);
    disarm_faults();
    ASSERT_TRUE(rollback_all(rows(), &trx).ok());
    EXPECT_EQ(all(0), before);
    if (made.ok()) break;
  }
  kernel_->check(true);
}

}  // namespace
}  // namespace strata
