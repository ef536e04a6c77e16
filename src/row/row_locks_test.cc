// Promises of row_store.h about locks of rows, keys that must be unique, and what a view lets a
// locking read do, each by itself, on the real kernel below and a disk in memory.
#include <atomic>
#include <thread>

#include "base/fault.h"
#include "row/testing/row_fixture.h"

namespace strata {
namespace {

using Read = RowCursor::Read;
using RowLocksTest = testing::RowFixture;

TEST_F(RowLocksTest, UndecidedRowKeepsOthersOut) {
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

TEST_F(RowLocksTest, LockingWritesNothingUntilTooManyRowsAreHeld) {  // RW2
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

TEST_F(RowLocksTest, RowsLockedInMemorySurviveARollbackToASavepoint) {
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

TEST_F(RowLocksTest, ARowGivenBackWakesWhoWaitsForIt) {
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

TEST_F(RowLocksTest, ALockInMemoryAndSharedLocksAndRangesExclude) {
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

TEST_F(RowLocksTest, RowsOfATransactionWithUnknownOutcomeStayLocked) {  // W5
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

TEST_F(RowLocksTest, SharedLocksLetReadersInAndWritersWait) {
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

TEST_F(RowLocksTest, WriterGoesOnWhenTheSharedHolderEnds) {
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

TEST_F(RowLocksTest, DeadlockHasOneVictim) {
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

TEST_F(RowLocksTest, UniqueCheckLooksAtEveryEntryWithTheSameKey) {
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

TEST_F(RowLocksTest, AnInsertWritesNothingWhileAnotherKeepsTheKeyAbsent) {  // RW12
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

TEST_F(RowLocksTest, AnInsertSaysWhatIsInItsWay) {
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
TEST_F(RowLocksTest, UniqueCheckCrossesLeaves) {
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
TEST_F(RowLocksTest, UniqueCheckPassesEmptyLeaves) {
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

TEST_F(RowLocksTest, LockingARowDoesNotChangeWhatPlainReadsShow) {
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
TEST_F(RowLocksTest, OwnChangeBringsTheRowsNewestEntriesIntoView) {
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
TEST_F(RowLocksTest, WhatAViewDoesNotShowIsNeitherChangedNorLockedByWhoRefusesIt) {
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

TEST_F(RowLocksTest, WhoHasNoViewYetRefusesNothing) {  // RW22
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
TEST_F(RowLocksTest, ALockingScanStopsAtWhatTheViewDoesNotShow) {
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

}  // namespace
}  // namespace strata
