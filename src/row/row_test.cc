// Each promise of row_store.h by itself, on the real kernel below and a disk in memory.
#include <atomic>
#include <thread>

#include "base/fault.h"
#include "base/testing/sanitized.h"
#include "row/row_store.h"
#include "row/testing/mini_kernel.h"

namespace strata {
namespace {

using testing::MiniKernel;
using testing::MiniOptions;
using Read = RowCursor::Read;

class RowTest : public ::testing::Test {
 protected:
  void SetUp() override {
    disk_ = make_sim_file_system();
    open();
  }
  void open() {
    kernel_ = std::make_unique<MiniKernel>(disk_.get(), MiniOptions{});
    const Status status = kernel_->open();
    ASSERT_TRUE(status.ok()) << status;
  }
  RowContext* rows() { return kernel_->rows(); }
  TrxSystem* trxs() { return kernel_->trxs(); }
  TreeId tree(uint32_t i = 0) { return kernel_->tree(i); }

  void begin(Trx* trx) {
    trxs()->begin(trx);
    trx->lock_wait_timeout_us = 0;
  }
  // With a view.
  void begin_read(Trx* trx) {
    begin(trx);
    ASSERT_TRUE(trxs()->open_view(trx).ok());
  }
  void commit(Trx* trx) {
    const Status status = trxs()->commit(trx);
    ASSERT_TRUE(status.ok()) << status;
  }
  void rollback(Trx* trx) {
    const Status status = rollback_all(rows(), trx);
    ASSERT_TRUE(status.ok()) << status;
  }
  Status insert(Trx* trx, Bytes key, Bytes text, uint32_t t = 0, size_t unique_bytes = 0) {
    return insert_record(rows(), trx, tree(t), key, encode_payload({}, text), unique_bytes);
  }
  Status update(Trx* trx, Bytes key, Bytes text) {
    return update_record(rows(), trx, tree(), key, encode_payload({}, text));
  }
  Status erase(Trx* trx, Bytes key, uint32_t t = 0) {
    return delete_record(rows(), trx, tree(t), key);
  }
  void expect_kept_out(Trx* trx, Bytes key) {
    std::string payload;
    EXPECT_TRUE(is_lock_wait_timeout(update(trx, key, "2"))) << key;
    EXPECT_TRUE(is_lock_wait_timeout(erase(trx, key))) << key;
    EXPECT_TRUE(is_lock_wait_timeout(insert(trx, key, "2"))) << key;
    for (const RowLock mode : {RowLock::kShared, RowLock::kExclusive})
      EXPECT_TRUE(is_lock_wait_timeout(lock_record(rows(), trx, tree(), key, mode, &payload)));
  }
  // Text of the visible version, "-" when there is none.
  std::string read(Trx* trx, Bytes key) {
    std::string payload;
    const Status status = read_record(rows(), trx, tree(), key, &payload);
    if (is_not_found(status)) return "-";
    EXPECT_TRUE(status.ok()) << status;
    return text_of(payload);
  }
  std::string dirty(Bytes key) {
    std::string payload;
    const Status status = read_dirty(rows(), tree(), key, &payload);
    return is_not_found(status) ? "-" : text_of(payload);
  }
  static std::string text_of(Bytes payload) {
    std::vector<OverflowRef> refs;
    Bytes text;
    EXPECT_TRUE(decode_payload(payload, &refs, &text).ok());
    return std::string(text);
  }
  // A committed row.
  void put(Bytes key, Bytes text) {
    Trx trx;
    begin(&trx);
    const Status status = insert(&trx, key, text);
    ASSERT_TRUE(status.ok()) << status;
    commit(&trx);
  }
  std::string scan(Trx* trx, Read read_mode, bool backward = false) {
    RowCursor cursor(rows(), tree());
    std::string out;
    Status status = backward ? cursor.seek_before(trx, read_mode, Bytes(), true)
                             : cursor.seek(trx, read_mode, Bytes());
    while (status.ok() && cursor.valid()) {
      out += std::string(cursor.key()) + "=" + text_of(cursor.payload()) + " ";
      status = backward ? cursor.prev() : cursor.next();
    }
    EXPECT_TRUE(status.ok()) << status;
    return out;
  }

  std::unique_ptr<SimFileSystem> disk_;
  std::unique_ptr<MiniKernel> kernel_;
};

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

TEST_F(RowTest, UndecidedRowKeepsOthersOut) {
  put("a", "1");
  Trx owner, other;
  std::string payload;
  begin(&owner);
  begin(&other);
  ASSERT_TRUE(lock_record(rows(), &owner, tree(), "a", RowLock::kExclusive, &payload).ok());
  EXPECT_EQ(text_of(payload), "1");
  expect_kept_out(&other, "a");
  ASSERT_TRUE(trxs()->open_view(&other).ok());
  EXPECT_EQ(read(&other, "a"), "1") << "plain reads do not wait";
  rollback(&owner);
  EXPECT_TRUE(update(&other, "a", "2").ok());
  commit(&other);
  EXPECT_EQ(dirty("a"), "2");
}

TEST_F(RowTest, LockingWritesNothingUntilTooManyRowsAreHeld) {  // RW2
  put("a", "1");
  put("b", "1");
  Trx owner, other;
  std::string payload;
  bool fresh = false;
  begin(&owner);
  begin(&other);
  rows()->unwritten_locks_max = 1;
  const Lsn before = kernel_->log()->next_lsn();
  ASSERT_TRUE(lock_record(rows(), &owner, tree(), "a", RowLock::kExclusive, &payload, &fresh).ok());
  EXPECT_TRUE(fresh);
  EXPECT_EQ(kernel_->log()->next_lsn(), before);
  EXPECT_TRUE(owner.undo.last.is_zero());
  ASSERT_TRUE(lock_record(rows(), &owner, tree(), "b", RowLock::kExclusive, &payload, &fresh).ok());
  EXPECT_TRUE(fresh);
  EXPECT_GT(kernel_->log()->next_lsn(), before) << "the second one stands in the record";
  for (const char* key : {"a", "b"}) {
    expect_kept_out(&other, key);
    for (const RowLock mode : {RowLock::kShared, RowLock::kExclusive})
      EXPECT_TRUE(lock_record(rows(), &owner, tree(), key, mode, &payload).ok());
  }
  EXPECT_EQ(owner.held.size(), 1u);
  commit(&owner);
  EXPECT_EQ(owner.held.size(), 0u);
  EXPECT_TRUE(update(&other, "a", "2").ok());
  EXPECT_TRUE(update(&other, "b", "2").ok());
  commit(&other);
}

TEST_F(RowTest, RowsLockedInMemorySurviveARollbackToASavepoint) {
  put("a", "1");
  Trx owner, other;
  std::string payload;
  begin(&owner);
  begin(&other);
  ASSERT_TRUE(lock_record(rows(), &owner, tree(), "a", RowLock::kExclusive, &payload).ok());
  ASSERT_TRUE(update(&owner, "a", "2").ok());
  ASSERT_TRUE(rollback_to(rows(), &owner, UndoPtr{}).ok());
  EXPECT_EQ(dirty("a"), "1");
  EXPECT_TRUE(is_lock_wait_timeout(update(&other, "a", "3")));
  rollback(&owner);
  EXPECT_TRUE(update(&other, "a", "3").ok());
  commit(&other);
}

TEST_F(RowTest, ARowGivenBackWakesWhoWaitsForIt) {
  put("a", "1");
  Trx owner, other;
  std::string payload;
  begin(&owner);
  ASSERT_TRUE(lock_record(rows(), &owner, tree(), "a", RowLock::kExclusive, &payload).ok());
  std::thread thread([&] {
    begin(&other);
    other.lock_wait_timeout_us = 20000000;
    EXPECT_TRUE(update(&other, "a", "2").ok());
    commit(&other);
  });
  while (trxs()->waits()->counters().waits.load() == 0) std::this_thread::yield();
  trxs()->waits()->drop_exclusive(&owner.held, owner.id, RowId{tree().index_id, "a"});
  thread.join();
  EXPECT_EQ(dirty("a"), "2");
  commit(&owner);
}

TEST_F(RowTest, ALockInMemoryAndSharedLocksAndRangesExclude) {
  put("a", "1");
  put("c", "1");
  Trx locker, reader;
  std::string payload;
  begin(&locker);
  begin(&reader);
  RangeCursor range(rows(), tree());
  range.set_bounds("a", "b");
  ASSERT_TRUE(range.seek(&reader, "a").ok());
  ASSERT_TRUE(range.next().ok());
  EXPECT_TRUE(is_lock_wait_timeout(
      lock_record(rows(), &locker, tree(), "a", RowLock::kExclusive, &payload)));
  EXPECT_EQ(locker.held.size(), 0u) << "a lock that was refused is given back";
  EXPECT_TRUE(lock_record(rows(), &reader, tree(), "a", RowLock::kExclusive, &payload).ok());
  ASSERT_TRUE(lock_record(rows(), &locker, tree(), "c", RowLock::kExclusive, &payload).ok());
  RangeCursor all(rows(), tree());
  all.set_bounds("a", "");
  ASSERT_TRUE(all.seek(&reader, "a").ok());
  EXPECT_TRUE(is_lock_wait_timeout(all.next())) << "c is the locker's";
  commit(&locker);
  ASSERT_TRUE(all.seek(&reader, "a").ok());
  ASSERT_TRUE(all.next().ok());
  EXPECT_EQ(all.key(), "c");
  commit(&reader);
}

TEST_F(RowTest, RowsOfATransactionWithUnknownOutcomeStayLocked) {  // W5
  put("a", "1");
  put("b", "1");
  Trx owner, other;
  std::string payload;
  begin(&owner);
  begin(&other);
  ASSERT_TRUE(lock_record(rows(), &owner, tree(), "a", RowLock::kExclusive, &payload).ok());
  ASSERT_TRUE(update(&owner, "b", "2").ok());
  ASSERT_TRUE(arm_fault("commit_before_publish:1:error"));
  EXPECT_FALSE(trxs()->commit(&owner).ok());
  disarm_faults();
  EXPECT_TRUE(is_lock_wait_timeout(
      lock_record(rows(), &other, tree(), "a", RowLock::kExclusive, &payload)));
  rollback(&other);
}

TEST_F(RowTest, SharedLocksLetReadersInAndWritersWait) {
  put("a", "1");
  Trx first, second, writer;
  std::string payload;
  begin(&first);
  begin(&second);
  begin(&writer);
  ASSERT_TRUE(lock_record(rows(), &first, tree(), "a", RowLock::kShared, &payload).ok());
  ASSERT_TRUE(lock_record(rows(), &second, tree(), "a", RowLock::kShared, &payload).ok());
  const UndoPtr before = writer.undo.last;
  EXPECT_TRUE(is_lock_wait_timeout(update(&writer, "a", "2")));
  ASSERT_TRUE(trxs()->open_view(&first).ok());
  EXPECT_EQ(read(&first, "a"), "1");
  // The mark is there until the statement is rolled back; who holds the lock already still has it.
  ASSERT_TRUE(lock_record(rows(), &first, tree(), "a", RowLock::kShared, &payload).ok());
  EXPECT_EQ(text_of(payload), "1");
  ASSERT_TRUE(rollback_to(rows(), &writer, before).ok());
  EXPECT_EQ(dirty("a"), "1");
  commit(&first);
  commit(&second);
  EXPECT_TRUE(update(&writer, "a", "2").ok());
  commit(&writer);
}

TEST_F(RowTest, WriterGoesOnWhenTheSharedHolderEnds) {
  put("a", "1");
  Trx reader, writer;
  std::string payload;
  begin(&reader);
  ASSERT_TRUE(lock_record(rows(), &reader, tree(), "a", RowLock::kShared, &payload).ok());
  std::atomic<bool> done{false};
  std::thread thread([&] {
    begin(&writer);
    writer.lock_wait_timeout_us = 20000000;
    EXPECT_TRUE(update(&writer, "a", "2").ok());
    done.store(true);
    commit(&writer);
  });
  while (trxs()->waits()->counters().waits.load() == 0) std::this_thread::yield();
  EXPECT_FALSE(done.load());
  commit(&reader);
  thread.join();
  EXPECT_EQ(dirty("a"), "2");
}

TEST_F(RowTest, DeadlockHasOneVictim) {
  put("a", "1");
  put("b", "1");
  Trx first, second;
  begin(&first);
  begin(&second);
  first.lock_wait_timeout_us = second.lock_wait_timeout_us = 20000000;
  ASSERT_TRUE(update(&first, "a", "first").ok());
  ASSERT_TRUE(update(&second, "b", "second").ok());
  Status crossed;
  std::thread thread([&] {
    crossed = update(&first, "b", "first");
    crossed.ok() ? commit(&first) : rollback(&first);
  });
  while (trxs()->waits()->counters().waits.load() == 0) std::this_thread::yield();
  const Status status = update(&second, "a", "second");
  EXPECT_TRUE(is_deadlock(status)) << status;
  EXPECT_TRUE(second.must_rollback);
  EXPECT_TRUE(is_deadlock(update(&second, "b", "x"))) << "only rollback is allowed";
  rollback(&second);
  thread.join();
  EXPECT_TRUE(crossed.ok()) << crossed;
  EXPECT_EQ(dirty("a"), "first");
  EXPECT_EQ(dirty("b"), "first");
}

TEST_F(RowTest, UniqueCheckLooksAtEveryEntryWithTheSameKey) {
  Trx first, second, third;
  begin(&first);
  ASSERT_TRUE(insert(&first, "k1-p1", "", 1, 2).ok());
  begin(&second);
  EXPECT_TRUE(is_lock_wait_timeout(insert(&second, "k1-p2", "", 1, 2))) << "undecided";
  EXPECT_TRUE(insert(&second, "k2-p2", "", 1, 2).ok());
  commit(&first);
  EXPECT_TRUE(is_duplicate_key(insert(&second, "k1-p2", "", 1, 2)));
  EXPECT_TRUE(is_duplicate_key(insert(&second, "k1-p0", "", 1, 2)));
  EXPECT_TRUE(insert(&second, "k1-p0", "", 1, SIZE_MAX).ok()) << "not asked to check";
  ASSERT_TRUE(erase(&second, "k1-p0", 1).ok());
  ASSERT_TRUE(erase(&second, "k1-p1", 1).ok());
  EXPECT_TRUE(insert(&second, "k1-p3", "", 1, 2).ok()) << "its own delete makes room";
  begin(&third);
  EXPECT_TRUE(is_lock_wait_timeout(insert(&third, "k1-p9", "", 1, 2)));
  rollback(&second);
  EXPECT_TRUE(is_duplicate_key(insert(&third, "k1-p9", "", 1, 2)));
  commit(&third);
}

TEST_F(RowTest, AnInsertWritesNothingWhileAnotherKeepsTheKeyAbsent) {  // RW12
  Trx reader, writer;
  begin(&reader);
  begin(&writer);
  RangeCursor range(rows(), tree());
  range.set_bounds("a", "c");
  ASSERT_TRUE(range.seek(&reader, "a").ok());
  EXPECT_FALSE(range.valid());
  EXPECT_TRUE(is_lock_wait_timeout(insert(&writer, "b", "theirs")));
  EXPECT_EQ(dirty("b"), "-") << "it would be in the reader's way";
  EXPECT_TRUE(insert(&reader, "b", "mine").ok());
  EXPECT_TRUE(is_lock_wait_timeout(insert(&writer, "b", "theirs")));
  commit(&reader);
  EXPECT_TRUE(is_duplicate_key(insert(&writer, "b", "theirs")));
  rollback(&writer);
}

TEST_F(RowTest, AnInsertSaysWhatIsInItsWay) {
  Trx first, second;
  begin(&first);
  ASSERT_TRUE(insert(&first, "k1-p1", "", 1, 2).ok());
  commit(&first);
  begin(&second);
  Duplicate met;
  const auto again = [&](Bytes key, size_t unique_bytes) {
    return insert_record(rows(), &second, tree(1), key, encode_payload({}, ""), unique_bytes,
                         nullptr, &met);
  };
  EXPECT_TRUE(is_duplicate_key(again("k1-p2", 2)));
  EXPECT_EQ(met.key, "k1-p1");
  EXPECT_FALSE(met.own);
  EXPECT_TRUE(again("k2-p2", 2).ok());
  EXPECT_TRUE(is_duplicate_key(again("k2-p2", 0)));
  EXPECT_EQ(met.key, "k2-p2");
  EXPECT_TRUE(met.own);
  rollback(&second);
}

// Entries of one unique value over several leaves: deleted ones in between must be passed, and the
// new one must land where it belongs.
TEST_F(RowTest, UniqueCheckCrossesLeaves) {
  const std::string pad(700, 'p');
  for (int i = 0; i < 120; ++i) {
    Trx trx;
    begin(&trx);
    const std::string key = "k" + std::to_string(1000 + i) + pad;
    ASSERT_TRUE(insert(&trx, key, "", 1, 1).ok()) << i;
    if (i < 119) {
      ASSERT_TRUE(erase(&trx, key, 1).ok());
    }
    commit(&trx);
  }
  Trx trx;
  begin(&trx);
  EXPECT_TRUE(is_duplicate_key(insert(&trx, "k0", "", 1, 1)));
  ASSERT_TRUE(erase(&trx, "k1119" + pad, 1).ok());
  EXPECT_TRUE(insert(&trx, "k1060x" + pad, "", 1, 1).ok());
  EXPECT_TRUE(is_duplicate_key(insert(&trx, "k", "", 1, 1)));
  commit(&trx);
  ASSERT_TRUE(kernel_->purge_all().ok());
  EXPECT_EQ(kernel_->check(true), 1u);
}

// Leaves that purge has emptied and not yet merged lie between the first entry of the value and the
// place of the new one.
TEST_F(RowTest, UniqueCheckPassesEmptyLeaves) {
  const std::string pad(700, 'p');
  const auto key_of = [&](int i) { return "k" + std::to_string(1000 + i) + pad; };
  for (int i = 0; i < 120; ++i) {
    Trx trx;
    begin(&trx);
    ASSERT_TRUE(insert(&trx, key_of(i), "", 1).ok());
    commit(&trx);
  }
  for (int i = 0; i < 120; ++i) {  // as purge does, but for the merging
    Mtr mtr(rows()->tree.pool, rows()->tree.log);
    ASSERT_TRUE(mtr.begin_write().ok());
    TreeCursor cursor(&rows()->tree, tree(1), &mtr);
    ASSERT_TRUE(cursor.seek(key_of(i), LatchMode::kExclusive).ok());
    ASSERT_TRUE(cursor.equals(key_of(i)));
    cursor.erase();
    mtr.publish();
  }
  for (const int place : {60, 1, 118, 61}) {
    Trx trx;
    begin(&trx);
    ASSERT_TRUE(insert(&trx, key_of(place), "", 1, 1).ok());
    commit(&trx);
    begin(&trx);
    EXPECT_TRUE(is_duplicate_key(insert(&trx, key_of(119 - place), "", 1, 1)));
    ASSERT_TRUE(erase(&trx, key_of(place), 1).ok());
    commit(&trx);
  }
  ASSERT_TRUE(kernel_->purge_all().ok());
  EXPECT_EQ(kernel_->check(true), 0u);
}

TEST_F(RowTest, OverflowChainLivesAsLongAsSomebodyNeedsIt) {
  const uint64_t pages_before = *kernel_->spaces()->used_pages(MiniKernel::kSpace);
  std::string big(100000, 'x');
  for (size_t i = 0; i < big.size(); ++i) big[i] = static_cast<char>(i * 7 + i / 251);
  Trx writer, reader, updater;
  begin(&writer);
  auto ref = write_overflow(rows(), &writer, MiniKernel::kSpace, big);
  ASSERT_TRUE(ref.ok()) << ref.status();
  ASSERT_TRUE(insert_record(rows(), &writer, tree(), "a", encode_payload({*ref}, "in"), 0).ok());
  commit(&writer);
  begin_read(&reader);
  begin(&updater);
  ASSERT_TRUE(update_record(rows(), &updater, tree(), "a", encode_payload({}, "small")).ok());
  commit(&updater);
  ASSERT_TRUE(kernel_->purge_all().ok());
  std::string payload, value;
  std::vector<OverflowRef> refs;
  Bytes inline_bytes;
  ASSERT_TRUE(read_record(rows(), &reader, tree(), "a", &payload).ok());
  ASSERT_TRUE(decode_payload(payload, &refs, &inline_bytes).ok());
  ASSERT_EQ(refs.size(), 1u);
  ASSERT_TRUE(read_overflow(rows(), MiniKernel::kSpace, refs[0], &value).ok());
  EXPECT_EQ(value, big);
  commit(&reader);
  ASSERT_TRUE(kernel_->purge_all().ok());
  EXPECT_EQ(*kernel_->spaces()->used_pages(MiniKernel::kSpace), pages_before);
  EXPECT_TRUE(is_corruption(read_overflow(rows(), MiniKernel::kSpace, *ref, &value)));
}

TEST_F(RowTest, OverflowChainOfAnUndoneChangeIsFreed) {
  const uint64_t pages_before = *kernel_->spaces()->used_pages(MiniKernel::kSpace);
  const std::string big(200000, 'y');
  put("a", "1");
  Trx trx;
  begin(&trx);
  const UndoPtr savepoint = trx.undo.last;
  auto ref = write_overflow(rows(), &trx, MiniKernel::kSpace, big);
  ASSERT_TRUE(ref.ok());
  ASSERT_TRUE(update_record(rows(), &trx, tree(), "a", encode_payload({*ref}, "")).ok());
  ASSERT_TRUE(rollback_to(rows(), &trx, savepoint).ok());
  EXPECT_EQ(*kernel_->spaces()->used_pages(MiniKernel::kSpace), pages_before);
  // Undone free_on_purge lists must not free what lives on.
  ref = write_overflow(rows(), &trx, MiniKernel::kSpace, big);
  ASSERT_TRUE(ref.ok());
  ASSERT_TRUE(update_record(rows(), &trx, tree(), "a", encode_payload({*ref}, "")).ok());
  const UndoPtr with_chain = trx.undo.last;
  ASSERT_TRUE(update_record(rows(), &trx, tree(), "a", encode_payload({}, "")).ok());
  ASSERT_TRUE(rollback_to(rows(), &trx, with_chain).ok());
  commit(&trx);
  ASSERT_TRUE(kernel_->purge_all().ok());
  std::string value;
  EXPECT_TRUE(read_overflow(rows(), MiniKernel::kSpace, *ref, &value).ok());
  EXPECT_EQ(value, big);
}

// An update of the key moves a chain to another record; the old record's purge must leave it alone,
// and free what it alone had.
TEST_F(RowTest, AMovedChainOutlivesTheRecordItCameFrom) {
  const uint64_t pages_before = *kernel_->spaces()->used_pages(MiniKernel::kSpace);
  const std::string big(100000, 'm');
  Trx trx;
  begin(&trx);
  const auto moved = write_overflow(rows(), &trx, MiniKernel::kSpace, big);
  const auto dropped = write_overflow(rows(), &trx, MiniKernel::kSpace, big);
  ASSERT_TRUE(moved.ok() && dropped.ok());
  const std::string both = encode_payload({*moved, *dropped}, "");
  ASSERT_TRUE(insert_record(rows(), &trx, tree(), "a", both, 0).ok());
  commit(&trx);
  const uint64_t pages_with_both = *kernel_->spaces()->used_pages(MiniKernel::kSpace);
  begin(&trx);
  ASSERT_TRUE(insert_record(rows(), &trx, tree(), "b", encode_payload({*moved}, ""), 0).ok());
  ASSERT_TRUE(delete_record(rows(), &trx, tree(), "a", {*moved}).ok());
  commit(&trx);
  ASSERT_TRUE(kernel_->purge_all().ok());
  std::string value;
  ASSERT_TRUE(read_overflow(rows(), MiniKernel::kSpace, *moved, &value).ok());
  EXPECT_EQ(value, big);
  EXPECT_TRUE(is_corruption(read_overflow(rows(), MiniKernel::kSpace, *dropped, &value)));
  EXPECT_LT(*kernel_->spaces()->used_pages(MiniKernel::kSpace), pages_with_both);
  begin(&trx);
  ASSERT_TRUE(delete_record(rows(), &trx, tree(), "b").ok());
  commit(&trx);
  ASSERT_TRUE(kernel_->purge_all().ok());
  EXPECT_EQ(*kernel_->spaces()->used_pages(MiniKernel::kSpace), pages_before);
}

TEST_F(RowTest, HalfWrittenOverflowChainIsFreedAfterACrash) {
  const uint64_t pages_before = *kernel_->spaces()->used_pages(MiniKernel::kSpace);
  Trx trx;
  begin(&trx);
  ASSERT_TRUE(arm_fault("overflow_half:1:error"));
  EXPECT_FALSE(write_overflow(rows(), &trx, MiniKernel::kSpace, std::string(300000, 'z')).ok());
  disarm_faults();
  EXPECT_GT(*kernel_->spaces()->used_pages(MiniKernel::kSpace), pages_before + 5);
  ASSERT_TRUE(kernel_->log()->persist(kernel_->log()->next_lsn()).ok());
  kernel_->close();
  disk_->crash(1);
  ASSERT_TRUE(kernel_->open().ok());
  EXPECT_EQ(kernel_->rolled_back(), 1u);
  EXPECT_EQ(*kernel_->spaces()->used_pages(MiniKernel::kSpace), pages_before);
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

TEST_F(RowTest, LockingARowDoesNotChangeWhatPlainReadsShow) {
  put("a", "1");
  Trx trx, other;
  begin_read(&trx);
  begin(&other);
  ASSERT_TRUE(update(&other, "a", "2").ok());
  commit(&other);
  std::string payload;
  ASSERT_TRUE(lock_record(rows(), &trx, tree(), "a", RowLock::kExclusive, &payload).ok());
  EXPECT_EQ(text_of(payload), "2") << "locking reads see the latest version";
  EXPECT_EQ(read(&trx, "a"), "1");  // RW8
  EXPECT_EQ(scan(&trx, Read::kConsistent), "a=1 ");
  ASSERT_TRUE(update(&trx, "a", "3").ok());
  EXPECT_EQ(read(&trx, "a"), "3");
  commit(&trx);
}

// A transaction with an old view changes a row that another has moved to another index key since.
TEST_F(RowTest, OwnChangeBringsTheRowsNewestEntriesIntoView) {
  put("p", "x");
  Trx setup, trx, other;
  begin(&setup);
  ASSERT_TRUE(insert(&setup, "1p", "", 1).ok());
  commit(&setup);
  begin_read(&trx);
  begin(&other);
  ASSERT_TRUE(update(&other, "p", "y").ok());
  ASSERT_TRUE(erase(&other, "1p", 1).ok());
  ASSERT_TRUE(insert(&other, "2p", "", 1).ok());
  commit(&other);
  const auto entries = [&] {
    RowCursor cursor(rows(), tree(1));
    cursor.set_base_row({tree(0), [](Bytes key, Bytes) { return key.substr(1); }});
    std::string out;
    Status status = cursor.seek(&trx, Read::kConsistent, Bytes());
    for (; status.ok() && cursor.valid(); status = cursor.next())
      out += std::string(cursor.key()) + " ";
    EXPECT_TRUE(status.ok()) << status;
    return out;
  };
  EXPECT_EQ(entries(), "1p ");
  const UndoPtr before = trx.undo.last;
  ASSERT_TRUE(update(&trx, "p", "z").ok());
  EXPECT_EQ(entries(), "2p ");  // RW8
  ASSERT_TRUE(rollback_to(rows(), &trx, before).ok());
  EXPECT_EQ(entries(), "1p ");
  ASSERT_TRUE(erase(&trx, "p").ok());
  ASSERT_TRUE(erase(&trx, "2p", 1).ok());
  EXPECT_EQ(entries(), "");
  commit(&trx);
}

// RW22, every way to a record that others have changed, deleted or inserted since the view.
TEST_F(RowTest, WhatAViewDoesNotShowIsNeitherChangedNorLockedByWhoRefusesIt) {
  for (const char* key : {"changed", "deleted", "undone", "untouched"}) put(key, "1");
  const auto refused = [this](Bytes key, auto&& touch) {
    Trx trx;
    begin_read(&trx);
    trx.refuses_unseen = true;
    Trx writer;
    begin(&writer);
    ASSERT_TRUE(update(&writer, "changed", "2").ok());
    ASSERT_TRUE(erase(&writer, "deleted").ok());
    ASSERT_TRUE(insert(&writer, "new", "2").ok());
    commit(&writer);
    Trx undone;
    begin(&undone);
    ASSERT_TRUE(update(&undone, "undone", "2").ok());
    rollback(&undone);
    for (const Bytes seen : {"undone", "untouched"}) {
      Status status = update(&trx, seen, "3");
      ASSERT_TRUE(status.ok()) << status;
      status = touch(&trx, seen);
      ASSERT_TRUE(status.ok() || is_duplicate_key(status)) << status;
    }
    Status status = touch(&trx, key);
    EXPECT_TRUE(is_row_changed(status)) << key << ": " << status;
    EXPECT_EQ(error_class(status), ErrorClass::abort_trx);
    EXPECT_TRUE(is_deadlock(update(&trx, "untouched", "4")));  // only rollback is left
    rollback(&trx);
    Trx again;
    begin_read(&again);
    again.refuses_unseen = true;
    status = touch(&again, key);
    EXPECT_FALSE(is_row_changed(status)) << key << ": " << status;
    rollback(&again);
    Trx restore;
    begin(&restore);
    ASSERT_TRUE(insert(&restore, "deleted", "1").ok());
    ASSERT_TRUE(erase(&restore, "new").ok());
    commit(&restore);
  };
  std::string payload;
  for (const Bytes key : {"changed", "deleted", "new"}) {
    refused(key, [&](Trx* trx, Bytes k) { return update(trx, k, "5"); });
    refused(key, [&](Trx* trx, Bytes k) { return insert(trx, k, "5"); });
    for (const RowLock mode : {RowLock::kShared, RowLock::kExclusive})
      refused(key, [&](Trx* trx, Bytes k) {
        return lock_record(rows(), trx, tree(), k, mode, &payload);
      });
    refused(key, [&](Trx* trx, Bytes k) {
      const HeldChange change{.key = k, .payload = payload};
      return change_held_records(rows(), trx, tree(), &change, 1);
    });
  }
  for (const Bytes key : {"changed", "deleted"})
    refused(key, [&](Trx* trx, Bytes k) -> Status {
      if (k != key) return ok_status();
      return erase(trx, k);
    });
}

TEST_F(RowTest, WhoHasNoViewYetRefusesNothing) {  // RW22
  put("k", "1");
  Trx trx;
  begin(&trx);
  trx.refuses_unseen = true;
  put("l", "1");
  EXPECT_TRUE(update(&trx, "k", "2").ok());
  ASSERT_TRUE(trxs()->open_view(&trx).ok());
  put("m", "1");
  EXPECT_TRUE(update(&trx, "l", "2").ok());
  EXPECT_TRUE(update(&trx, "k", "3").ok());
  commit(&trx);
}

// RW22, RW11: a scan that locks leaf by leaf stops at the row, and holds those before it.
TEST_F(RowTest, ALockingScanStopsAtWhatTheViewDoesNotShow) {
  for (const bool ahead : {false, true}) {
    for (const bool deletes : {false, true}) {
      const std::string prefix = std::string(ahead ? "a" : "o") + (deletes ? "d" : "u");
      for (int i = 0; i < 6; ++i) put(prefix + std::to_string(i), "1");
      Trx trx;
      begin_read(&trx);
      trx.refuses_unseen = true;
      ASSERT_TRUE(trxs()->ensure_id(&trx).ok());
      Trx writer;
      begin(&writer);
      ASSERT_TRUE(
          (deletes ? erase(&writer, prefix + "3") : update(&writer, prefix + "3", "2")).ok());
      commit(&writer);
      const auto scan_to = [&](const std::string& high, Status* status) {
        RowCursor cursor(rows(), tree());
        cursor.set_lock_ahead(ahead);
        cursor.set_bounds(prefix, high);
        std::string payload;
        std::string shown;
        *status = cursor.seek(&trx, Read::kLatest, prefix);
        while (status->ok() && cursor.valid() && cursor.key() < Bytes(high)) {
          shown += cursor.key().back();
          cursor.took();
          if (!cursor.locked())
            *status = lock_record(rows(), &trx, tree(), std::string(cursor.key()),
                                  RowLock::kExclusive, &payload);
          if (status->ok()) *status = cursor.next();
        }
        return shown;
      };
      Status status;
      EXPECT_EQ(scan_to(prefix + "3", &status), "012");  // behind the bound nothing is refused
      EXPECT_TRUE(status.ok()) << status;
      EXPECT_EQ(scan_to(prefix + "9", &status), deletes ? "012" : "0123");
      EXPECT_TRUE(is_row_changed(status)) << status;
      rollback(&trx);
    }
  }
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
