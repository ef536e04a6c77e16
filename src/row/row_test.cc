// Promises of row_store.h, each by itself, on the real kernel below and a disk in memory: versions,
// purge, rollback, cursors. Those of locks: row_locks_test.cc; of chains: row_overflow_test.cc.

#include "base/fault.h"
#include "base/testing/sanitized.h"
#include "row/testing/row_fixture.h"

namespace strata {
namespace {

using testing::MiniKernel;
using Read = RowCursor::Read;
using RowTest = testing::RowFixture;

// R3: what an index build wrote, in a leaf without room for one more header.
TEST_F(RowTest, SettledRecordsInAFullLeafAreChangedDeletedLockedAndRestored) {
  constexpr int kRows = 600;  // some leaves
  const auto key = [](int i) { return "row" + std::to_string(1000 + i); };
  Trx load;
  begin(&load);
  for (int i = 0; i < kRows; ++i) ASSERT_TRUE(insert(&load, key(i), std::string(40, 'a')).ok());
  commit(&load);
  ASSERT_TRUE(kernel_->purge_all().ok());
  ASSERT_TRUE(kernel_->settle_all().ok());
  Trx fill;  // takes the room that became free
  begin(&fill);
  for (int i = 0; i < kRows; ++i)
    for (const char* more : {"a", "b"})
      ASSERT_TRUE(insert(&fill, key(i) + more, std::string(10, 'f')).ok());
  commit(&fill);
  ASSERT_TRUE(kernel_->settle_all().ok());

  Trx reader;
  begin_read(&reader);
  Trx undone;
  begin_read(&undone);
  std::string payload;
  for (int i = 0; i < kRows; ++i) {
    ASSERT_TRUE(erase(&undone, key(i) + "a").ok());
    ASSERT_TRUE(update(&undone, key(i), "short").ok());
    ASSERT_TRUE(
        lock_record(rows(), &undone, tree(), key(i) + "b", RowLock::kExclusive, &payload).ok());
  }
  EXPECT_EQ(read(&undone, key(7)), "short");
  EXPECT_EQ(read(&reader, key(7)), std::string(40, 'a'));
  EXPECT_EQ(read(&reader, key(7) + "a"), std::string(10, 'f'));
  rollback(&undone);
  for (int i = 0; i < kRows; ++i) {
    ASSERT_EQ(dirty(key(i)), std::string(40, 'a'));
    ASSERT_EQ(dirty(key(i) + "a"), std::string(10, 'f'));
  }
  Trx done;
  begin(&done);
  for (int i = 0; i < kRows; ++i) ASSERT_TRUE(erase(&done, key(i)).ok());
  commit(&done);
  EXPECT_EQ(read(&reader, key(7)), std::string(40, 'a'));
  commit(&reader);
  ASSERT_TRUE(kernel_->purge_all().ok());
  EXPECT_EQ(kernel_->check(true), 2u * kRows);
}

TEST_F(RowTest, ViewsSeeWhatWasCommittedWhenTheyWereOpened) {
  put("a", "1");
  Trx old_reader, writer, new_reader;
  begin_read(&old_reader);
  begin(&writer);
  ASSERT_TRUE(update(&writer, "a", "2").ok());
  ASSERT_TRUE(insert(&writer, "b", "new").ok());
  EXPECT_EQ(read(&old_reader, "a"), "1");
  EXPECT_EQ(read(&old_reader, "b"), "-");
  EXPECT_EQ(dirty("a"), "2");
  ASSERT_TRUE(trxs()->open_view(&writer).ok());
  EXPECT_EQ(read(&writer, "a"), "2") << "own changes are visible";
  commit(&writer);
  EXPECT_EQ(read(&old_reader, "a"), "1");
  EXPECT_EQ(read(&old_reader, "b"), "-");
  begin_read(&new_reader);
  EXPECT_EQ(read(&new_reader, "a"), "2");
  EXPECT_EQ(read(&new_reader, "b"), "new");
  EXPECT_EQ(scan(&old_reader, Read::kConsistent), "a=1 ");
  EXPECT_EQ(scan(&new_reader, Read::kConsistent), "a=2 b=new ");
  EXPECT_EQ(scan(&new_reader, Read::kConsistent, true), "b=new a=2 ");
  commit(&old_reader);
  commit(&new_reader);
}

TEST_F(RowTest, DeletedRowStaysForOldViewsAndGoesWithPurge) {
  put("a", "1");
  Trx reader, writer;
  begin_read(&reader);
  begin(&writer);
  ASSERT_TRUE(erase(&writer, "a").ok());
  EXPECT_TRUE(is_not_found(erase(&writer, "a"))) << "gone for its deleter";
  EXPECT_EQ(read(&reader, "a"), "1");
  commit(&writer);
  ASSERT_TRUE(kernel_->purge_all().ok());
  EXPECT_EQ(read(&reader, "a"), "1") << "an open view holds purge back";
  EXPECT_EQ(kernel_->check(true), 1u);
  commit(&reader);
  ASSERT_TRUE(kernel_->purge_all().ok());
  EXPECT_EQ(kernel_->check(true), 0u);  // RW6
}

TEST_F(RowTest, PurgeThatFailsHoldsUpNobodyAndIsTriedAgain) {  // T12
  put("a", "1");
  put("b", "1");
  ASSERT_TRUE(kernel_->purge_all().ok());
  for (const char* key : {"a", "b"}) {
    Trx deleter;
    begin(&deleter);
    ASSERT_TRUE(erase(&deleter, key).ok());
    commit(&deleter);
  }
  ASSERT_TRUE(arm_fault("purge_half:1:error"));
  EXPECT_FALSE(purge_some(rows(), 10).ok());
  disarm_faults();
  EXPECT_EQ(trxs()->history_length(), 2u);
  EXPECT_EQ(*purge_some(rows(), 10), 1u) << "the other one";
  EXPECT_EQ(trxs()->history_length(), 1u);
  trxs()->retry_failed_purges();
  EXPECT_EQ(*purge_some(rows(), 10), 1u);
  EXPECT_EQ(trxs()->history_length(), 0u);
  EXPECT_EQ(kernel_->check(true), 0u);
}

TEST_F(RowTest, WhoDeletesARowTakesItOutWhenNoViewNeedsIt) {  // RW10
  const auto erase_and_purge = [&](const char* key) {
    Trx writer;
    TrxSystem::PurgeItem own;
    begin(&writer);
    ASSERT_TRUE(erase(&writer, key).ok());
    ASSERT_TRUE(trxs()->commit(&writer, &own).ok());
    purge_own(rows(), std::move(own));
  };
  const auto records = [&] {  // with those that are marked as deleted
    uint64_t count = 0;
    Mtr mtr(kernel_->pool(), kernel_->log());
    TreeCursor cursor(&rows()->tree, kernel_->tree(0), &mtr);
    EXPECT_TRUE(cursor.seek("", LatchMode::kShared).ok());
    EXPECT_TRUE(cursor.settle().ok());
    while (!cursor.at_end()) {
      ++count;
      EXPECT_TRUE(cursor.next().ok());
    }
    return count;
  };
  const auto key = [](int i) { return "key" + std::to_string(1000 + i); };
  constexpr int kRows = 60;  // more than a quarter of a page
  for (int i = 0; i < kRows; ++i) put(key(i), std::string(200, 'v'));
  ASSERT_TRUE(kernel_->purge_all().ok());
  ASSERT_EQ(records(), kRows);
  erase_and_purge(key(0).c_str());
  EXPECT_EQ(records(), kRows - 1u);
  EXPECT_EQ(trxs()->history_length(), 0u);

  Trx reader;
  begin_read(&reader);
  erase_and_purge(key(1).c_str());
  EXPECT_EQ(records(), kRows - 1u);
  EXPECT_EQ(read(&reader, key(1)), std::string(200, 'v'));
  commit(&reader);
  ASSERT_TRUE(kernel_->purge_all().ok());
  EXPECT_EQ(records(), kRows - 2u);

  // A leaf that is to be merged afterwards is left to a purge thread.
  int at = 2;
  for (; at < kRows && trxs()->history_length() == 0; ++at) erase_and_purge(key(at).c_str());
  ASSERT_LT(at, kRows);
  EXPECT_GT(at, kRows / 3);
  EXPECT_EQ(records(), static_cast<uint64_t>(kRows - at) + 1);
  ASSERT_TRUE(kernel_->purge_all().ok());
  EXPECT_EQ(records(), static_cast<uint64_t>(kRows - at));
  EXPECT_EQ(kernel_->check(true), static_cast<uint64_t>(kRows - at));
}

TEST_F(RowTest, InsertOverADeletedRowContinuesItsChain) {
  put("a", "1");
  Trx reader, deleter, inserter, second;
  begin_read(&reader);
  begin(&deleter);
  ASSERT_TRUE(erase(&deleter, "a").ok());
  commit(&deleter);
  begin(&inserter);
  ASSERT_TRUE(insert(&inserter, "a", "a much longer text than before").ok());
  EXPECT_EQ(read(&reader, "a"), "1");
  commit(&inserter);
  EXPECT_EQ(read(&reader, "a"), "1");
  begin(&second);
  EXPECT_TRUE(is_duplicate_key(insert(&second, "a", "x")));
  rollback(&second);
  commit(&reader);
  ASSERT_TRUE(kernel_->purge_all().ok());
  EXPECT_EQ(dirty("a"), "a much longer text than before")
      << "purge of the delete found it replaced";
}

TEST_F(RowTest, RollbackOfAnInsertOverAPurgedDeleteLeavesNothing) {
  put("a", "1");
  Trx deleter, inserter;
  begin(&deleter);
  ASSERT_TRUE(erase(&deleter, "a").ok());
  commit(&deleter);
  begin(&inserter);
  ASSERT_TRUE(insert(&inserter, "a", "2").ok());
  ASSERT_TRUE(kernel_->purge_all().ok());  // meets the new version: nothing to erase
  rollback(&inserter);
  EXPECT_EQ(kernel_->check(true), 0u);
}

TEST_F(RowTest, PagesOfPurgedRowsComeBack) {
  const auto pages = [&] { return *kernel_->spaces()->used_pages(MiniKernel::kSpace); };
  const uint64_t before = pages();
  const auto key = [](uint64_t i) { return std::to_string(100000 + i); };
  const uint64_t count = testing::fewer_if_sanitized(15000, 5000);
  Trx trx;
  begin(&trx);
  for (uint64_t i = 0; i < count; ++i)
    ASSERT_TRUE(insert(&trx, key(i), std::string(150, 'v')).ok());
  commit(&trx);
  EXPECT_GT(pages(), before + count / 100);
  begin(&trx);
  for (uint64_t i = 0; i < count; ++i) ASSERT_TRUE(erase(&trx, key(i)).ok());
  commit(&trx);
  ASSERT_TRUE(kernel_->purge_all().ok());
  EXPECT_LE(pages(), before + 3);
  EXPECT_EQ(kernel_->check(true), 0u);
}

TEST_F(RowTest, PurgeOfAnOldDeleteSparesANewerOne) {
  put("a", "1");
  Trx first_delete, again, second_delete, reader;
  begin(&first_delete);
  ASSERT_TRUE(erase(&first_delete, "a").ok());
  commit(&first_delete);
  begin(&again);
  ASSERT_TRUE(insert(&again, "a", "2").ok());
  commit(&again);
  begin_read(&reader);
  begin(&second_delete);
  ASSERT_TRUE(erase(&second_delete, "a").ok());
  ASSERT_TRUE(
      kernel_->purge_all().ok());      // of first_delete: finds a delete mark that is not its own
  EXPECT_EQ(read(&reader, "a"), "2");  // RW6
  rollback(&second_delete);
  EXPECT_EQ(dirty("a"), "2");
  commit(&reader);
}

TEST_F(RowTest, RollbackInterruptedByACrashIsRepeatedWithoutHarm) {
  put("a", "the first text");
  put("b", "1");
  for (int undone = 1; undone <= 6; ++undone) {
    Trx trx;
    begin(&trx);
    ASSERT_TRUE(update(&trx, "a", "x").ok());
    ASSERT_TRUE(erase(&trx, "b").ok());
    ASSERT_TRUE(update(&trx, "a", "the second text").ok());
    ASSERT_TRUE(insert(&trx, "b", "long enough").ok());
    ASSERT_TRUE(insert(&trx, "c", "new").ok());
    ASSERT_TRUE(update(&trx, "a", "the third text").ok());
    ASSERT_TRUE(arm_fault("rollback_half:" + std::to_string(undone) + ":error"));
    EXPECT_FALSE(rollback_all(rows(), &trx).ok());
    disarm_faults();
    ASSERT_TRUE(kernel_->log()->persist(kernel_->log()->next_lsn()).ok());
    kernel_->close();
    disk_->crash(static_cast<uint64_t>(undone));
    ASSERT_TRUE(kernel_->open().ok());
    EXPECT_EQ(kernel_->rolled_back(), 1u);
    Trx reader;
    begin_read(&reader);
    EXPECT_EQ(scan(&reader, Read::kConsistent), "a=the first text b=1 ") << undone;
    commit(&reader);
    EXPECT_EQ(kernel_->check(true), 2u);
  }
}

TEST_F(RowTest, ALifeWithoutTransactionsLeavesNoHoleInTheStatusPages) {
  kernel_->close();
  ASSERT_TRUE(kernel_->open().ok());
  put("a", "1");
  Trx trx;
  begin(&trx);
  ASSERT_TRUE(update(&trx, "a", "2").ok());
  ASSERT_TRUE(kernel_->log()->persist(kernel_->log()->next_lsn()).ok());
  kernel_->close();
  ASSERT_TRUE(kernel_->open().ok());
  EXPECT_EQ(kernel_->rolled_back(), 1u);
  EXPECT_EQ(dirty("a"), "1");
}

// Half of a prepared transaction must not wait for somebody to commit it.
TEST_F(RowTest, RollbackOfAPreparedTransactionInterruptedByACrashIsCompleted) {  // T10
  put("a", "1");
  put("b", "1");
  Trx trx;
  begin(&trx);
  ASSERT_TRUE(update(&trx, "a", "2").ok());
  ASSERT_TRUE(update(&trx, "b", "2").ok());
  ASSERT_TRUE(kernel_->trxs()->prepare(&trx, "xid").ok());
  ASSERT_TRUE(arm_fault("rollback_half:2:error"));
  EXPECT_FALSE(rollback_all(rows(), &trx).ok());
  disarm_faults();
  ASSERT_TRUE(kernel_->log()->persist(kernel_->log()->next_lsn()).ok());
  kernel_->close();
  disk_->crash(1);
  ASSERT_TRUE(kernel_->open().ok());
  EXPECT_EQ(kernel_->rolled_back(), 1u);
  Trx reader;
  begin_read(&reader);
  EXPECT_EQ(scan(&reader, Read::kConsistent), "a=1 b=1 ");
  commit(&reader);
}

TEST_F(RowTest, RollbackRestoresEveryKindOfChange) {
  put("a", "1");
  put("b", std::string(2000, 'b'));
  put("c", "3");
  Trx trx, reader;
  begin(&trx);
  ASSERT_TRUE(update(&trx, "a", "changed").ok());
  ASSERT_TRUE(update(&trx, "a", "changed again").ok());
  ASSERT_TRUE(update(&trx, "b", "short").ok());
  ASSERT_TRUE(erase(&trx, "c").ok());
  ASSERT_TRUE(insert(&trx, "c", "over").ok());
  ASSERT_TRUE(insert(&trx, "d", "new").ok());
  std::string payload;
  ASSERT_TRUE(lock_record(rows(), &trx, tree(), "d", RowLock::kExclusive, &payload).ok());
  rollback(&trx);
  begin_read(&reader);
  EXPECT_EQ(scan(&reader, Read::kConsistent), "a=1 b=" + std::string(2000, 'b') + " c=3 ");
  EXPECT_EQ(kernel_->check(true), 3u);
  commit(&reader);
}

TEST_F(RowTest, SavepointRollbackKeepsWhatCameBefore) {
  Trx trx, reader;
  begin(&trx);
  ASSERT_TRUE(insert(&trx, "a", "1").ok());
  const UndoPtr savepoint = trx.undo.last;
  ASSERT_TRUE(update(&trx, "a", "2").ok());
  ASSERT_TRUE(insert(&trx, "b", "1").ok());
  ASSERT_TRUE(rollback_to(rows(), &trx, savepoint).ok());
  EXPECT_EQ(dirty("a"), "1");
  EXPECT_EQ(dirty("b"), "-");
  ASSERT_TRUE(insert(&trx, "b", "3").ok());
  commit(&trx);
  begin_read(&reader);
  EXPECT_EQ(scan(&reader, Read::kConsistent), "a=1 b=3 ");
  commit(&reader);
  ASSERT_TRUE(kernel_->purge_all().ok());
  EXPECT_EQ(kernel_->check(true), 2u);
}

TEST_F(RowTest, SlotRaiseRidesOnTheInsert) {
  Trx trx;
  begin(&trx);
  const SlotRaise raise{MiniKernel::kSpace, HeaderSlot::kAutoIncrement, 41};
  ASSERT_TRUE(insert_record(rows(), &trx, tree(), "a", encode_payload({}, ""), 0, &raise).ok());
  rollback(&trx);
  EXPECT_EQ(*kernel_->spaces()->read_slot(MiniKernel::kSpace, HeaderSlot::kAutoIncrement), 41u);
}

TEST_F(RowTest, CursorTurnsAndSurvivesChangesAroundIt) {
  for (int i = 100; i < 400; ++i) put("k" + std::to_string(i), std::string(100, 'v'));
  Trx reader;
  begin_read(&reader);
  RowCursor cursor(rows(), tree());
  ASSERT_TRUE(cursor.seek(&reader, Read::kConsistent, "k200").ok());
  for (int i = 200; i < 250; ++i) {
    ASSERT_TRUE(cursor.valid());
    ASSERT_EQ(cursor.key(), "k" + std::to_string(i));
    ASSERT_TRUE(cursor.next().ok());
  }
  Trx writer;
  begin(&writer);
  for (int i = 200; i < 400; i += 2) ASSERT_TRUE(erase(&writer, "k" + std::to_string(i)).ok());
  for (int i = 200; i < 300; ++i) {
    ASSERT_TRUE(insert(&writer, "k" + std::to_string(i) + "x", std::string(500, 'n')).ok());
  }
  commit(&writer);
  for (int i = 250; i < 400; ++i) {
    ASSERT_TRUE(cursor.valid()) << i;
    ASSERT_EQ(cursor.key(), "k" + std::to_string(i));
    ASSERT_TRUE((i == 399 ? cursor.prev() : cursor.next()).ok());
  }
  for (int i = 398; i >= 100; --i) {
    ASSERT_TRUE(cursor.valid()) << i;
    ASSERT_EQ(cursor.key(), "k" + std::to_string(i));
    ASSERT_TRUE(cursor.prev().ok());
  }
  EXPECT_FALSE(cursor.valid());
  commit(&reader);
}

TEST_F(RowTest, LatestReadShowsUndecidedRowsAndSkipsCommittedDeletes) {
  for (const char* key : {"a", "b", "c", "d"}) put(key, "1");
  Trx deleter, other, self;
  begin(&deleter);
  ASSERT_TRUE(erase(&deleter, "a").ok());
  commit(&deleter);
  begin(&other);
  ASSERT_TRUE(erase(&other, "b").ok());
  ASSERT_TRUE(update(&other, "c", "2").ok());
  begin(&self);
  ASSERT_TRUE(erase(&self, "d").ok());
  ASSERT_TRUE(insert(&self, "e", "1").ok());
  RowCursor cursor(rows(), tree());
  ASSERT_TRUE(cursor.seek(&self, Read::kLatest, Bytes()).ok());
  ASSERT_TRUE(cursor.valid());
  EXPECT_EQ(cursor.key(), "b");
  EXPECT_TRUE(cursor.undecided() && cursor.deleted());
  ASSERT_TRUE(cursor.next().ok());
  EXPECT_EQ(cursor.key(), "c");
  EXPECT_TRUE(cursor.undecided() && !cursor.deleted());
  ASSERT_TRUE(cursor.next().ok());
  EXPECT_EQ(cursor.key(), "e");
  EXPECT_FALSE(cursor.undecided() || cursor.deleted());
  ASSERT_TRUE(cursor.next().ok());
  EXPECT_FALSE(cursor.valid());
  rollback(&other);
  rollback(&self);
}

TEST_F(RowTest, DroppedSpaceDoesNotStopRollback) {
  Trx trx;
  begin(&trx);
  ASSERT_TRUE(insert(&trx, "a", "1").ok());
  ASSERT_TRUE(kernel_->spaces()->drop(MiniKernel::kSpace).ok());
  rollback(&trx);
}

TEST(RowPayload, RefusesShortPayloads) {
  std::vector<OverflowRef> refs;
  Bytes inline_bytes;
  EXPECT_TRUE(is_corruption(decode_payload(Bytes(), &refs, &inline_bytes)));
  const std::string good = encode_payload({OverflowRef{1, 2, 3, TrxId{4}}}, "text");
  ASSERT_TRUE(decode_payload(good, &refs, &inline_bytes).ok());
  EXPECT_EQ(inline_bytes, "text");
  EXPECT_EQ(refs[0].first_page, 1u);
  EXPECT_EQ(refs[0].ordinal, 2u);
  EXPECT_EQ(refs[0].bytes, 3u);
  EXPECT_EQ(refs[0].creator, TrxId{4});
  EXPECT_TRUE(is_corruption(decode_payload(Bytes(good).substr(0, 20), &refs, &inline_bytes)));
}

}  // namespace
}  // namespace strata
