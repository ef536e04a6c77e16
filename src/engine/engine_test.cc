// The engine through its public API, on a simulated disk: rows, indexes, transactions, DDL,
// restart.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "base/testing/sanitized.h"
#include "engine/testing/test_database.h"
#include "redo/redo.h"

namespace strata::engine {
namespace {

using namespace testing;  // NOLINT: test helpers

class EngineTest : public ::testing::Test {
 protected:
  void SetUp() override { start(); }
  void start() {
    auto opened = Kernel::open(options_on(disk_.get()));
    ASSERT_TRUE(opened.ok()) << opened.status();
    kernel_ = std::move(opened).value();
    session_ = kernel_->new_session();
  }
  void crash(uint64_t seed) {
    session_.reset();
    disk_->crash(seed);
    kernel_.reset();
    start();
  }
  TableRef create(const std::string& name) {
    session_->begin(Isolation::kRepeatableRead);
    TableRef table;
    EXPECT_TRUE(session_->create_table(table_spec(name), &table).ok());
    EXPECT_TRUE(session_->commit().ok());
    return table;
  }
  TableRef open(const std::string& name) {
    auto table = session_->open_table("test", name);
    EXPECT_TRUE(table.ok()) << table.status();
    return table.ok() ? *table : nullptr;
  }
  Rows all(const TableRef& table, uint32_t index = 0, bool backwards = false) {
    session_->begin(Isolation::kRepeatableRead);
    auto rows = scan(session_.get(), table, index, backwards);
    EXPECT_TRUE(rows.ok()) << rows.status();
    EXPECT_TRUE(session_->commit().ok());
    return rows.ok() ? *rows : Rows{};
  }
  bool is_locked_for_others(const TableRef& table, uint64_t id) {
    const auto other = kernel_->new_session();
    other->set_lock_wait_timeout_us(0);
    bool gone = false;
    other->begin(Isolation::kReadCommitted);
    TableCursor cursor(other.get(), table, 0);
    cursor.set_lock_mode(LockMode::kExclusive);
    const Status status = cursor.get(be64(id), &gone);
    EXPECT_TRUE(other->rollback().ok());
    return is_lock_wait_timeout(status);
  }

  std::unique_ptr<SimFileSystem> disk_ = make_sim_file_system();
  std::unique_ptr<Kernel> kernel_;
  std::unique_ptr<Session> session_;
};

Row row(uint64_t n) {
  return Row{n * 1000, static_cast<uint32_t>(n % 7), "text " + std::to_string(n), ""};
}

TEST_F(EngineTest, ADuplicateThatWasMetStaysLocked) {
  TableRef table = create("t");
  session_->begin(Isolation::kReadCommitted);
  for (const uint64_t i : {1, 2, 3}) ASSERT_TRUE(insert(session_.get(), table, i, row(i)).ok());
  ASSERT_TRUE(session_->commit().ok());
  auto other = kernel_->new_session();
  other->set_lock_wait_timeout_us(0);
  const auto other_can_remove = [&](uint64_t id) {
    other->begin(Isolation::kReadCommitted);
    const Status removed = remove(other.get(), table, id, row(id));
    EXPECT_TRUE(removed.ok() || is_lock_wait_timeout(removed)) << removed;
    EXPECT_TRUE(other->rollback().ok());
    return removed.ok();
  };
  session_->begin(Isolation::kReadCommitted);
  const Savepoint before = session_->savepoint();
  EXPECT_TRUE(is_duplicate_key(insert(session_.get(), table, 1, row(9))));
  EXPECT_TRUE(is_duplicate_key(insert(session_.get(), table, 4, row(2))));  // by_value
  EXPECT_FALSE(other_can_remove(1));
  EXPECT_FALSE(other_can_remove(2));
  EXPECT_TRUE(other_can_remove(3));
  ASSERT_TRUE(session_->rollback_to(before).ok());
  EXPECT_FALSE(other_can_remove(1)) << "a lock outlives the statement";
  ASSERT_TRUE(session_->commit().ok());
  EXPECT_TRUE(other_can_remove(1));
  EXPECT_TRUE(other_can_remove(2));
}

TEST_F(EngineTest, CommittedRowsSurviveACrashAndUncommittedOnesDoNot) {
  TableRef table = create("t");
  Rows expected;
  session_->begin(Isolation::kRepeatableRead);
  for (uint64_t i = 1; i <= 500; ++i) {
    ASSERT_TRUE(insert(session_.get(), table, i, row(i)).ok());
    expected[i] = row(i);
  }
  ASSERT_TRUE(session_->commit().ok());
  session_->begin(Isolation::kRepeatableRead);
  for (uint64_t i = 501; i <= 600; ++i) ASSERT_TRUE(insert(session_.get(), table, i, row(i)).ok());
  ASSERT_TRUE(kernel_->persist_log().ok());
  // No rollback: the session is simply lost with the process.
  auto lost = std::move(session_);
  disk_->crash(7);
  lost.reset();
  kernel_.reset();
  start();
  table = open("t");
  for (uint32_t index : {0u, 1u, 2u}) {
    EXPECT_EQ(all(table, index), expected) << index;
    EXPECT_EQ(all(table, index, true), expected) << index;
  }
  EXPECT_EQ(table->next_auto_increment(), 601u);
  expect_consistent(kernel_.get(), table);
}

TEST_F(EngineTest, DuplicateKeysAreFoundAndUndoOnlyTheirRow) {
  TableRef table = create("t");
  session_->begin(Isolation::kRepeatableRead);
  ASSERT_TRUE(insert(session_.get(), table, 1, row(1)).ok());
  ASSERT_TRUE(insert(session_.get(), table, 2, row(2)).ok());
  EXPECT_TRUE(is_duplicate_key(insert(session_.get(), table, 1, row(9))));
  EXPECT_TRUE(is_duplicate_key(insert(session_.get(), table, 3, row(2))));  // by_value
  ASSERT_TRUE(session_->commit().ok());
  EXPECT_EQ(all(table), (Rows{{1, row(1)}, {2, row(2)}}));
  expect_consistent(kernel_.get(), table);
}

TEST_F(EngineTest, SavepointsUndoUpdatesDeletesAndOutsideValues) {
  TableRef table = create("t");
  Row big = row(1);
  big.blob = std::string(50000, 'b');
  session_->begin(Isolation::kRepeatableRead);
  ASSERT_TRUE(insert(session_.get(), table, 1, big).ok());
  ASSERT_TRUE(insert(session_.get(), table, 2, row(2)).ok());
  ASSERT_TRUE(session_->commit().ok());
  session_->begin(Isolation::kRepeatableRead);
  Row changed = big;
  changed.unique_value = 5;
  changed.blob = std::string(70000, 'c');
  ASSERT_TRUE(update(session_.get(), table, 1, big, 1, changed).ok());
  const Savepoint savepoint = session_->savepoint();
  ASSERT_TRUE(remove(session_.get(), table, 2, row(2)).ok());
  Row again = changed;
  again.blob = "short";
  ASSERT_TRUE(update(session_.get(), table, 1, changed, 10, again).ok());
  EXPECT_EQ(*scan(session_.get(), table), (Rows{{10, again}}));
  ASSERT_TRUE(session_->rollback_to(savepoint).ok());
  EXPECT_EQ(*scan(session_.get(), table), (Rows{{1, changed}, {2, row(2)}}));
  ASSERT_TRUE(session_->commit().ok());
  EXPECT_EQ(all(table, 1), (Rows{{1, changed}, {2, row(2)}}));
  expect_consistent(kernel_.get(), table);
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(kernel_->run_purge(100).ok());
  EXPECT_EQ(all(table, 2), (Rows{{1, changed}, {2, row(2)}}));
}

TEST_F(EngineTest, SnapshotsSeeTheirOwnPast) {
  TableRef table = create("t");
  session_->begin(Isolation::kRepeatableRead);
  for (uint64_t i = 1; i <= 50; ++i) ASSERT_TRUE(insert(session_.get(), table, i, row(i)).ok());
  ASSERT_TRUE(session_->commit().ok());
  auto reader = kernel_->new_session();
  reader->begin(Isolation::kRepeatableRead);
  const Rows before = *scan(reader.get(), table);
  for (uint64_t i = 1; i <= 50; ++i) {
    session_->begin(Isolation::kRepeatableRead);
    if (i % 3 == 0) {
      ASSERT_TRUE(remove(session_.get(), table, i, row(i)).ok());
    } else {
      Row next = row(i);
      next.group = 99;
      ASSERT_TRUE(update(session_.get(), table, i, row(i), i, next).ok());
    }
    ASSERT_TRUE(session_->commit().ok());
    ASSERT_TRUE(kernel_->run_purge(10).ok());
  }
  for (uint32_t index : {0u, 1u, 2u}) EXPECT_EQ(*scan(reader.get(), table, index), before);
  ASSERT_TRUE(reader->commit().ok());
  EXPECT_EQ(all(table).size(), 34u);
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(kernel_->run_purge(100).ok());
  expect_consistent(kernel_.get(), table);
}

TEST_F(EngineTest, ConflictingWritersWaitAndTimeOut) {
  TableRef table = create("t");
  session_->begin(Isolation::kRepeatableRead);
  ASSERT_TRUE(insert(session_.get(), table, 1, row(1)).ok());
  ASSERT_TRUE(session_->commit().ok());
  session_->begin(Isolation::kRepeatableRead);
  Row next = row(1);
  next.text = "changed";
  ASSERT_TRUE(update(session_.get(), table, 1, row(1), 1, next).ok());
  auto other = kernel_->new_session();
  other->set_lock_wait_timeout_us(20000);
  other->begin(Isolation::kRepeatableRead);
  EXPECT_TRUE(is_lock_wait_timeout(remove(other.get(), table, 1, row(1))));
  EXPECT_EQ(*scan(other.get(), table), (Rows{{1, row(1)}}));
  ASSERT_TRUE(session_->commit().ok());
  EXPECT_TRUE(remove(other.get(), table, 1, next).ok());
  EXPECT_TRUE(other->commit().ok());
  EXPECT_TRUE(all(table).empty());
}

TEST_F(EngineTest, DdlIsAtomicAndSurvivesACrash) {
  create("kept");
  session_->begin(Isolation::kRepeatableRead);
  ASSERT_TRUE(session_->create_table(table_spec("lost"), nullptr).ok());
  ASSERT_TRUE(session_->rename_table("test", "kept", "test", "renamed").ok());
  ASSERT_TRUE(kernel_->persist_log().ok());
  auto lost = std::move(session_);
  disk_->crash(3);
  lost.reset();
  kernel_.reset();
  start();
  EXPECT_TRUE(kernel_->table_exists("test", "kept"));
  EXPECT_FALSE(kernel_->table_exists("test", "lost"));
  EXPECT_FALSE(kernel_->table_exists("test", "renamed"));

  session_->begin(Isolation::kRepeatableRead);
  ASSERT_TRUE(session_->rename_table("test", "kept", "test", "renamed").ok());
  ASSERT_TRUE(session_->commit().ok());
  TableRef table = open("renamed");
  session_->begin(Isolation::kRepeatableRead);
  ASSERT_TRUE(insert(session_.get(), table, 1, row(1)).ok());
  ASSERT_TRUE(session_->commit().ok());
  session_->begin(Isolation::kRepeatableRead);
  ASSERT_TRUE(session_->truncate_table("test", "renamed", &table).ok());
  ASSERT_TRUE(session_->commit().ok());
  EXPECT_TRUE(all(open("renamed")).empty());
  crash(11);
  EXPECT_TRUE(all(open("renamed")).empty());
  session_->begin(Isolation::kRepeatableRead);
  ASSERT_TRUE(session_->drop_table("test", "renamed").ok());
  ASSERT_TRUE(session_->commit().ok());
  crash(12);
  EXPECT_FALSE(kernel_->table_exists("test", "renamed"));
  crash(13);
}

// E6: a view finds neither nothing in a table that was emptied behind it, nor rows of a copy that
// came later. A new name changes nothing.
TEST_F(EngineTest, JournalRowsOfOnePrefix) {
  session_->begin(Isolation::kReadCommitted);
  for (const char* const key : {"a", "ab", "b", "b/1", "b/2", "b0", "c"})
    ASSERT_TRUE(session_->journal_put(key, std::string("of ") + key).ok());
  ASSERT_TRUE(session_->commit().ok());
  session_->begin(Isolation::kReadCommitted);
  ASSERT_TRUE(session_->journal_erase("b/1").ok());
  const auto keys_of = [this](Bytes prefix) {
    std::string keys;
    const Status read = kernel_->for_each_journal(prefix, [&](Bytes key, Bytes value) {
      EXPECT_EQ(value, "of " + std::string(key));
      keys += std::string(key) + " ";
    });
    EXPECT_TRUE(read.ok()) << read;
    return keys;
  };
  EXPECT_EQ(keys_of("b/"), "b/1 b/2 ");  // as committed
  ASSERT_TRUE(session_->commit().ok());
  EXPECT_EQ(keys_of("b/"), "b/2 ");
  EXPECT_EQ(keys_of("b"), "b b/2 b0 ");
  EXPECT_EQ(keys_of("c/"), "");
  EXPECT_EQ(keys_of("d"), "");
  EXPECT_EQ(keys_of(""), "a ab b b/2 b0 c ");
}

TEST_F(EngineTest, OlderViewsCannotReadWhatWasWrittenAnew) {
  const auto ddl = [&](const std::function<Status()>& statement) {
    session_->begin(Isolation::kReadCommitted);
    ASSERT_TRUE(statement().ok());
    ASSERT_TRUE(session_->commit().ok());
  };
  const auto create = [&](const char* name) {
    ddl([&] {
      TableSpec spec = table_spec(name);
      spec.internal_name = spec.name[0] == '#';
      return session_->create_table(spec, nullptr);
    });
  };
  const auto fill = [&](const char* name) {
    ddl([&] { return insert(session_.get(), open(name), 1, row(1)); });
  };
  for (const char* name : {"emptied", "renamed", "#sql-alter-1"}) create(name);
  fill("emptied");
  fill("renamed");
  const std::unique_ptr<Session> old = kernel_->new_session();
  old->begin(Isolation::kRepeatableRead);
  ASSERT_TRUE(old->open_view().ok());
  fill("#sql-alter-1");
  TableRef fresh;
  ddl([&] { return session_->truncate_table("test", "emptied", &fresh); });
  ddl([&] { return session_->rename_table("test", "renamed", "test", "other"); });
  ddl([&] { return session_->rename_table("test", "#sql-alter-1", "test", "copied"); });
  create("made");
  for (const uint32_t index : {0u, 1u}) {
    for (const char* name : {"emptied", "copied", "made"})
      EXPECT_TRUE(is_definition_changed(scan(old.get(), open(name), index).status())) << name;
    EXPECT_EQ(scan(old.get(), open("other"), index)->size(), 1u);
  }
  ASSERT_TRUE(old->commit().ok());
  EXPECT_EQ(all(open("copied")).size(), 1u);
  EXPECT_TRUE(all(open("emptied")).empty());
}

TEST_F(EngineTest, DropWaitsForRoomInThePendingDeleteList) {  // E10
  constexpr uint32_t kTables = redo::kPendingDeletesMax / 2 + 100;
  for (uint32_t i = 0; i < kTables; ++i) {
    session_->begin(Isolation::kRepeatableRead);
    ASSERT_TRUE(session_->create_table(table_spec("t"), nullptr).ok()) << i;
    ASSERT_TRUE(session_->drop_table("test", "t").ok()) << i;
    ASSERT_TRUE(session_->commit(Durability::kNoSync).ok()) << i;
  }
  crash(3);
  session_->begin(Isolation::kRepeatableRead);
  EXPECT_TRUE(is_not_found(session_->open_table("test", "t").status()));
  ASSERT_TRUE(session_->commit().ok());
  EXPECT_NE(create("t"), nullptr);
}

TEST_F(EngineTest, APreparedTransactionSurvivesACrashAndCanGoEitherWay) {
  TableRef table = create("t");
  for (uint64_t id : {1, 2}) {
    session_->begin(Isolation::kRepeatableRead);
    ASSERT_TRUE(insert(session_.get(), table, id, row(id)).ok());
    ASSERT_TRUE(session_->prepare("xid-" + std::to_string(id)).ok());
    session_->detach_prepared();
  }
  crash(5);
  table = open("t");
  EXPECT_EQ(kernel_->prepared_transactions().size(), 2u);
  EXPECT_TRUE(all(table).empty());
  EXPECT_TRUE(kernel_->commit_by_xid("xid-1").ok());
  EXPECT_TRUE(kernel_->rollback_by_xid("xid-2").ok());
  EXPECT_TRUE(is_not_found(kernel_->commit_by_xid("xid-3")));
  EXPECT_EQ(all(table), (Rows{{1, row(1)}}));
  crash(6);
  EXPECT_TRUE(kernel_->prepared_transactions().empty());  // T10
  EXPECT_EQ(all(open("t")), (Rows{{1, row(1)}}));
}

TEST_F(EngineTest, DirtyReadsTellValuesThatWentAwayFromDamage) {  // E15
  const TableRef table = create("t");
  Row old_row = row(1), new_row = row(1);
  old_row.blob = std::string(50000, 'o');
  new_row.blob = std::string(60000, 'n');
  const auto writer = kernel_->new_session();
  session_->begin(Isolation::kReadUncommitted);
  for (const uint32_t index : {0u, 1u}) {
    TableCursor cursor(session_.get(), table, index);
    std::string blob;
    bool gone = false;

    writer->begin(Isolation::kRepeatableRead);
    ASSERT_TRUE(insert(writer.get(), table, 1, old_row).ok());
    ASSERT_TRUE(cursor.seek(Bytes()).ok());
    ASSERT_TRUE(cursor.fetch(&gone).ok() && !gone);
    ASSERT_TRUE(writer->rollback().ok());
    EXPECT_TRUE(is_not_found(cursor.external(0, &blob)));
    EXPECT_TRUE(cursor.fetch_again(&gone).ok());
    EXPECT_TRUE(gone);

    writer->begin(Isolation::kRepeatableRead);
    ASSERT_TRUE(insert(writer.get(), table, 1, old_row).ok());
    ASSERT_TRUE(writer->commit().ok());
    writer->begin(Isolation::kRepeatableRead);
    ASSERT_TRUE(update(writer.get(), table, 1, old_row, 1, new_row).ok());
    ASSERT_TRUE(cursor.seek(Bytes()).ok());
    ASSERT_TRUE(cursor.fetch(&gone).ok() && !gone);
    EXPECT_TRUE(cursor.external(0, &blob).ok());
    EXPECT_EQ(blob, new_row.blob);
    ASSERT_TRUE(writer->rollback().ok());
    EXPECT_TRUE(is_not_found(cursor.external(0, &blob)));
    EXPECT_TRUE(cursor.fetch_again(&gone).ok());
    EXPECT_FALSE(gone);
    EXPECT_TRUE(cursor.external(0, &blob).ok());
    EXPECT_EQ(blob, old_row.blob);

    writer->begin(Isolation::kRepeatableRead);
    ASSERT_TRUE(remove(writer.get(), table, 1, old_row).ok());
    ASSERT_TRUE(writer->commit().ok());
  }
  EXPECT_TRUE(session_->commit().ok());
}

TEST_F(EngineTest, ACheckSeesOneMomentAtAnyIsolationLevel) {
  const TableRef table = create("t");
  const auto writer = kernel_->new_session();
  const auto put = [&](uint64_t id) {
    writer->begin(Isolation::kRepeatableRead);
    EXPECT_TRUE(insert(writer.get(), table, id, row(id)).ok());
    EXPECT_TRUE(writer->commit().ok());
  };
  for (const uint64_t id : {1000, 2000}) put(id);
  const Kernel::RowEntries entries = entries_of(table);
  uint64_t next = 1;
  for (const Isolation isolation : {Isolation::kReadUncommitted, Isolation::kReadCommitted,
                                    Isolation::kRepeatableRead, Isolation::kSerializable}) {
    session_->begin(isolation);
    CheckResult result;
    // Each row that is looked at has one more row in front, which the indexes have, too.
    const auto meanwhile = [&](Bytes key, Bytes bytes, const IndexBuild::External& external,
                               const Kernel::EmitEntry& emit) {
      put(next++);
      return entries(key, bytes, external, emit);
    };
    ASSERT_TRUE(kernel_->check_table(session_.get(), table, true, meanwhile, &result).ok());
    EXPECT_TRUE(result.problems.empty()) << result.problems.front();
    // Afterwards the session reads as before.
    bool gone = false;
    TableCursor cursor(session_.get(), table, 0);
    ASSERT_TRUE(cursor.get(be64(next - 1), &gone).ok());
    EXPECT_EQ(gone, isolation != Isolation::kReadUncommitted);
    ASSERT_TRUE(session_->commit().ok());
  }
}

TEST_F(EngineTest, ACheckSaysIfASecondLookFindsNothing) {
  const TableRef table = create("t");
  session_->begin(Isolation::kRepeatableRead);
  for (const uint64_t id : {1, 2}) ASSERT_TRUE(insert(session_.get(), table, id, row(id)).ok());
  const Kernel::RowEntries entries = entries_of(table);
  bool left_out = false;
  CheckResult result;
  ASSERT_TRUE(kernel_
                  ->check_table(
                      session_.get(), table, true,
                      [&](Bytes key, Bytes bytes, const IndexBuild::External& external,
                          const Kernel::EmitEntry& emit) {
                        if (std::exchange(left_out, true))
                          return entries(key, bytes, external, emit);
                        return ok_status();
                      },
                      &result)
                  .ok());
  ASSERT_GE(result.problems.size(), 2u);
  EXPECT_NE(result.problems[0].find("has 2 entries, the rows make 1"), std::string::npos);
  EXPECT_NE(result.problems[1].find("a second look"), std::string::npos) << result.problems[1];
  ASSERT_TRUE(session_->rollback().ok());
}

TEST_F(EngineTest, DdlWaitsForPreparedTransactions) {  // E14
  create("t");
  create("other");
  const auto prepare_one = [&](uint64_t id) {
    session_->begin(Isolation::kRepeatableRead);
    ASSERT_TRUE(insert(session_.get(), open("t"), id, row(id)).ok());
    ASSERT_TRUE(session_->prepare("xid").ok());
    session_->detach_prepared();
  };
  const auto ddl = [&](const std::function<Status()>& statement) {
    session_->set_lock_wait_timeout_us(1000);
    session_->begin(Isolation::kReadCommitted);
    const Status status = statement();
    EXPECT_TRUE((status.ok() ? session_->commit() : session_->rollback()).ok());
    return status;
  };
  TableRef fresh;
  const auto drop = [&] { return session_->drop_table("test", "t"); };
  const auto truncate = [&] { return session_->truncate_table("test", "t", &fresh); };
  const auto copy = [&] { return session_->wait_until_decided(*open("t")); };
  const auto add = [&] { return add_index(session_.get(), "t", false); };
  prepare_one(1);
  for (const bool restarted : {false, true}) {
    if (restarted) crash(31);
    EXPECT_TRUE(is_lock_wait_timeout(ddl(drop)));
    EXPECT_TRUE(is_lock_wait_timeout(ddl(truncate)));
    EXPECT_TRUE(is_lock_wait_timeout(ddl(copy)));
    EXPECT_TRUE(is_lock_wait_timeout(ddl(add)));
  }
  EXPECT_TRUE(ddl([&] { return session_->drop_table("test", "other"); }).ok());
  // KILL ends the wait, one that comes early, too.
  session_->interrupt();
  EXPECT_TRUE(is_interrupted(ddl(drop)));
  session_->clear_interrupt();
  std::thread kill([&] {
    EXPECT_TRUE(wait_until([&] { return counter_of(kernel_.get(), "ddl_waiting") == 1; }));
    session_->interrupt();
  });
  session_->set_lock_wait_timeout_us(3'600'000'000);
  session_->begin(Isolation::kReadCommitted);
  EXPECT_TRUE(is_interrupted(drop()));
  kill.join();
  EXPECT_TRUE(session_->rollback().ok());
  session_->clear_interrupt();
  std::thread decision([&] {
    EXPECT_TRUE(wait_until([&] { return counter_of(kernel_.get(), "ddl_waiting") == 1; }));
    EXPECT_TRUE(kernel_->commit_by_xid("xid").ok());
  });
  session_->set_lock_wait_timeout_us(10'000'000);
  session_->begin(Isolation::kReadCommitted);
  EXPECT_TRUE(copy().ok());
  decision.join();
  EXPECT_TRUE(session_->rollback().ok());
  EXPECT_EQ(all(open("t")), (Rows{{1, row(1)}}));
  prepare_one(2);
  EXPECT_TRUE(kernel_->rollback_by_xid("xid").ok());
  EXPECT_TRUE(ddl(add).ok());
  EXPECT_EQ(all(open("t"), 3), (Rows{{1, row(1)}}));
  EXPECT_TRUE(ddl(truncate).ok());
  EXPECT_TRUE(all(open("t")).empty());
}

// E7: what a crash left unfinished is rolled back while others work, also over several shutdowns.
TEST_F(EngineTest, RollbackAfterACrashGoesOnBehindTheService) {
  constexpr uint64_t kRows = strata::testing::kThreadSanitizer ? 800 : 3000;
  TableRef table = create("t");
  Rows expected;
  session_->begin(Isolation::kRepeatableRead);
  for (uint64_t id = 1; id <= kRows; ++id) {
    ASSERT_TRUE(insert(session_.get(), table, id, row(id)).ok());
    expected[id] = row(id);
  }
  ASSERT_TRUE(session_->commit().ok());
  session_->begin(Isolation::kRepeatableRead);
  for (uint64_t id = 1; id <= kRows; ++id) {
    ASSERT_TRUE(update(session_.get(), table, id, row(id), id, row(id + 100000)).ok());
    ASSERT_TRUE(insert(session_.get(), table, kRows + id, row(id + 200000)).ok());
  }
  ASSERT_TRUE(kernel_->persist_log().ok());
  auto lost = std::move(session_);
  disk_->crash(77);
  lost.reset();
  kernel_.reset();

  KernelOptions options = options_on(disk_.get());
  options.background = true;
  const auto open_kernel = [&] {
    auto opened = Kernel::open(options);
    ASSERT_TRUE(opened.ok()) << opened.status();
    kernel_ = std::move(opened).value();
    session_ = kernel_->new_session();
  };
  for (int life = 0; life < 3; ++life) {
    open_kernel();
    EXPECT_EQ(all(open("t")), expected) << life;
    session_.reset();
    ASSERT_TRUE(kernel_->shutdown().ok());
    kernel_.reset();
  }
  open_kernel();
  table = open("t");
  // Waits for the rollback, or comes after it.
  session_->set_lock_wait_timeout_us(60'000'000);
  session_->begin(Isolation::kRepeatableRead);
  ASSERT_TRUE(insert(session_.get(), table, 2 * kRows, row(900005)).ok());
  ASSERT_TRUE(update(session_.get(), table, 1, row(1), 1, row(900009)).ok());
  ASSERT_TRUE(session_->commit().ok());
  expected[2 * kRows] = row(900005);
  expected[1] = row(900009);
  EXPECT_EQ(all(table), expected);
  for (uint32_t index = 1; index < table->spec().indexes.size(); ++index)
    EXPECT_EQ(all(table, index), expected);
  session_.reset();
  ASSERT_TRUE(kernel_->shutdown().ok());
}

TEST_F(EngineTest, SizesAreKnownAfterARestartAndFollowChanges) {
  TableRef table = create("t");
  EXPECT_FALSE(table->statistics_are_old());
  for (uint64_t i = 1; i <= 3000; ++i) {
    session_->begin(Isolation::kRepeatableRead);
    ASSERT_TRUE(insert(session_.get(), table, i, row(i)).ok());
    ASSERT_TRUE(session_->commit().ok());
  }
  EXPECT_EQ(table->estimated_rows(), 3000u);
  EXPECT_TRUE(table->statistics_are_old());
  ASSERT_TRUE(kernel_->refresh_old_statistics(table.get()).ok());
  EXPECT_FALSE(table->statistics_are_old());
  EXPECT_EQ(table->estimated_rows(), 3000u);
  const uint64_t pages = table->clustered_leaf_pages();
  EXPECT_GT(pages, 5u);
  EXPECT_GT(table->index_bytes(), 0u);
  ASSERT_TRUE(kernel_->persist_log().ok());
  crash(11);
  table = open("t");
  EXPECT_TRUE(table->statistics_are_old());
  ASSERT_TRUE(kernel_->refresh_old_statistics(table.get()).ok());
  EXPECT_FALSE(table->statistics_are_old());
  EXPECT_NEAR(static_cast<double>(table->estimated_rows()), 3000, 600);
  EXPECT_NEAR(static_cast<double>(table->clustered_leaf_pages()), static_cast<double>(pages), 2);
}

TEST_F(EngineTest, CleanShutdownNeedsNoRedo) {
  TableRef table = create("t");
  session_->begin(Isolation::kRepeatableRead);
  for (uint64_t i = 1; i <= 100; ++i) ASSERT_TRUE(insert(session_.get(), table, i, row(i)).ok());
  ASSERT_TRUE(session_->commit().ok());
  session_.reset();
  ASSERT_TRUE(kernel_->shutdown().ok());
  kernel_.reset();
  start();
  EXPECT_EQ(all(open("t")).size(), 100u);
  for (const Kernel::Counter& counter : kernel_->counters()) {
    if (std::string(counter.name) == "recovery_log_bytes") {
      EXPECT_EQ(counter.value, 0u);
    }
  }
}

TEST_F(EngineTest, RefusesWhatItMustNotTouch) {
  session_.reset();
  ASSERT_TRUE(kernel_->shutdown().ok());
  kernel_.reset();
  KernelOptions other = options_on(disk_.get());
  other.profile = "logdb";
  EXPECT_FALSE(Kernel::open(other).ok());
  // Half-initialised: pages but no control file.
  ASSERT_TRUE(disk_->remove("/db/control-1").ok());
  ASSERT_TRUE(disk_->sync_directory("/db").ok());
  const Status refused = Kernel::open(options_on(disk_.get())).status();
  EXPECT_TRUE(is_corruption(refused)) << refused;
}

TEST_F(EngineTest, AFolderOfSomebodyElsesStaysAsItIs) {  // E20
  KernelOptions other = options_on(disk_.get(), "/other");
  ASSERT_TRUE(disk_->make_directory("/other").ok());
  ASSERT_TRUE(disk_->open("/other/letter.txt", OpenOptions{.create = true}).ok());
  const Status refused = Kernel::open(other).status();
  EXPECT_TRUE(is_corruption(refused)) << refused;
  auto names = disk_->list("/other");
  ASSERT_TRUE(names.ok());
  EXPECT_EQ(*names, std::vector<std::string>{"letter.txt"});
}

TEST(EngineBackground, ACommitThatDoesNotWaitIsDurableSoonAfter) {
  const auto disk = make_sim_file_system();
  KernelOptions options = options_on(disk.get());
  options.background = true;
  auto opened = Kernel::open(options);
  ASSERT_TRUE(opened.ok()) << opened.status();
  std::unique_ptr<Kernel> kernel = std::move(opened).value();
  std::unique_ptr<Session> session = kernel->new_session();
  TableRef table;
  session->begin(Isolation::kRepeatableRead);
  ASSERT_TRUE(session->create_table(table_spec("t"), &table).ok());
  ASSERT_TRUE(session->commit().ok());
  session->begin(Isolation::kRepeatableRead);
  ASSERT_TRUE(insert(session.get(), table, 1, row(1)).ok());
  ASSERT_TRUE(session->commit(Durability::kNoSync).ok());
  const uint64_t written = counter_of(kernel.get(), "log_lsn");
  EXPECT_TRUE(wait_until([&] { return counter_of(kernel.get(), "log_durable_lsn") >= written; }));
  disk->crash(5);
  session.reset();
  kernel.reset();
  options.background = false;
  opened = Kernel::open(options);
  ASSERT_TRUE(opened.ok()) << opened.status();
  session = (*opened)->new_session();
  session->begin(Isolation::kRepeatableRead);
  auto found = session->open_table("test", "t");
  ASSERT_TRUE(found.ok());
  auto rows = scan(session.get(), *found, 0, false);
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ(rows->size(), 1u);
  EXPECT_TRUE(session->commit().ok());
}

TEST_F(EngineTest, ADamagedPageIsReportedAndNeverServed) {
  TableRef table = create("t");
  session_->begin(Isolation::kRepeatableRead);
  for (uint64_t i = 1; i <= 2000; ++i) ASSERT_TRUE(insert(session_.get(), table, i, row(i)).ok());
  ASSERT_TRUE(session_->commit().ok());
  const uint32_t space = table->spec().space_id;
  const uint32_t root = table->spec().indexes[0].root_page;
  session_.reset();
  table.reset();
  ASSERT_TRUE(kernel_->shutdown().ok());
  kernel_.reset();
  char name[64];
  std::snprintf(name, sizeof name, "/db/pages/space-%08x.pages", space);
  disk_->flip_bit(name, (uint64_t{root} * 16384 + 5000) * 8);
  auto opened = Kernel::open(options_on(disk_.get()));
  if (opened.ok()) {
    kernel_ = std::move(opened).value();
    session_ = kernel_->new_session();
    session_->begin(Isolation::kRepeatableRead);
    const auto rows = scan(session_.get(), open("t"));
    EXPECT_TRUE(is_corruption(rows.status())) << rows.status();
  } else {
    EXPECT_TRUE(is_corruption(opened.status())) << opened.status();
  }
}

TEST_F(EngineTest, AFullDiskFailsStatementsAndLosesNothing) {
  TableRef table = create("t");
  Rows expected;
  disk_->set_capacity(24u << 20);
  bool failed = false;
  for (uint64_t i = 1; i <= 4000 && !failed; ++i) {
    Row big = row(i);
    big.blob = std::string(20000, static_cast<char>('a' + i % 26));
    session_->begin(Isolation::kRepeatableRead);
    Status status = insert(session_.get(), table, i, big);
    if (status.ok()) status = session_->commit();
    if (status.ok()) {
      expected[i] = big;
    } else {
      failed = true;
      EXPECT_TRUE(is_no_space(status)) << status;
      EXPECT_TRUE(session_->rollback().ok());
    }
  }
  EXPECT_TRUE(failed);
  EXPECT_EQ(all(table), expected);
  disk_->set_capacity(1u << 30);
  const uint64_t next = expected.size() + 10;
  EXPECT_TRUE(wait_until([&] {  // the log asks for room now and then
    session_->begin(Isolation::kRepeatableRead);
    const bool inserted = insert(session_.get(), table, next, row(next)).ok();
    return (inserted ? session_->commit() : session_->rollback()).ok() && inserted;
  }));
  expected[next] = row(next);
  crash(21);
  EXPECT_EQ(all(open("t")), expected);
}

TEST_F(EngineTest, TheLogStaysBoundedHoweverMuchIsWritten) {  // E13
  TableRef table = create("t");
  size_t most = 0;
  for (uint64_t i = 1; i <= 2500; ++i) {
    Row big = row(i);
    big.blob = std::string(20000, static_cast<char>('a' + i % 26));
    session_->begin(Isolation::kRepeatableRead);
    ASSERT_TRUE(insert(session_.get(), table, i, big).ok());
    ASSERT_TRUE(session_->commit().ok());
    auto names = disk_->list("/db/log");
    ASSERT_TRUE(names.ok());
    most = std::max(most, names->size());
  }
  const KernelOptions options = options_on(disk_.get());
  const uint64_t limit = 4 * options.log_checkpoint_bytes / options.log_segment_bytes;
  EXPECT_GT(most, 1u);
  EXPECT_LE(most, limit + 3);  // the running one, the next one, and a spare
}

// Reads [from, to) of an index with shared locks; returns how many rows there were.
StatusOr<size_t> read_range(Session* session, const TableRef& table, uint32_t index, Bytes from,
                            Bytes to) {
  TableCursor cursor(session, table, index);
  cursor.set_lock_mode(LockMode::kShared);
  cursor.set_bounds(from, to);
  size_t rows = 0;
  STRATA_RETURN_IF_ERROR(cursor.seek(from));
  while (cursor.valid()) {
    bool gone = false;
    STRATA_RETURN_IF_ERROR(cursor.fetch(&gone));
    rows += gone ? 0 : 1;
    STRATA_RETURN_IF_ERROR(cursor.next());
  }
  return rows;
}

TEST_F(EngineTest, RangesReadAtSerializableHoldAcrossSplitsMergesAndPurge) {
  const TableRef table = create("t");
  Rows rows;
  session_->begin(Isolation::kRepeatableRead);
  for (uint64_t i = 1000; i < 2000; i += 10) {
    rows[i] = row(i);
    ASSERT_TRUE(insert(session_.get(), table, i, rows[i]).ok());
  }
  ASSERT_TRUE(session_->commit().ok());
  auto reader = kernel_->new_session();
  reader->begin(Isolation::kSerializable);
  EXPECT_EQ(*read_range(reader.get(), table, 0, be64(1200), be64(1300)), 10u);
  EXPECT_EQ(*read_range(reader.get(), table, 1, be64(1500000), be64(1500001)), 1u);
  EXPECT_EQ(*read_range(reader.get(), table, 1, be64(7), be64(8)), 0u);

  session_->set_lock_wait_timeout_us(0);
  const auto attempt = [&](uint64_t id, uint64_t value) {
    session_->begin(Isolation::kReadCommitted);
    Row fresh = row(id);
    fresh.unique_value = value;
    const Status status = insert(session_.get(), table, id, fresh);
    EXPECT_TRUE(session_->rollback().ok());
    return status;
  };
  const auto expect_protected = [&] {
    EXPECT_TRUE(is_lock_wait_timeout(attempt(1201, 42)));
    EXPECT_TRUE(is_lock_wait_timeout(attempt(1299, 42)));
    EXPECT_TRUE(is_lock_wait_timeout(attempt(9, 7)));
    EXPECT_TRUE(attempt(999, 42).ok());
    EXPECT_TRUE(attempt(1300, 43).code() == StatusCode::kAlreadyExists);
    EXPECT_TRUE(attempt(7777, 43).ok());
    session_->begin(Isolation::kReadCommitted);
    EXPECT_TRUE(is_lock_wait_timeout(remove(session_.get(), table, 1500, rows[1500])));
    EXPECT_TRUE(session_->rollback().ok());
    session_->begin(Isolation::kReadCommitted);
    EXPECT_TRUE(is_lock_wait_timeout(remove(session_.get(), table, 1250, rows[1250])));
    EXPECT_TRUE(session_->rollback().ok());
  };
  expect_protected();
  // Much more around it, and less again: the pages of the range are others now.
  session_->begin(Isolation::kReadCommitted);
  for (uint64_t i = 2000; i < 6000; ++i) {
    // Close by on both sides: 1000 to 1199 and from 1301 on, then far away.
    const uint64_t id = i < 2200 ? i - 1000 : i - 899;
    if (rows.contains(id)) continue;
    Row fresh = row(100000 + i);
    fresh.text.assign(200, 'x');
    ASSERT_TRUE(insert(session_.get(), table, id, fresh).ok()) << id;
  }
  ASSERT_TRUE(session_->commit().ok());
  expect_protected();
  for (uint64_t i = 1000; i < 2000; i += 10) {
    if ((i >= 1200 && i < 1310) || i == 1500) continue;
    session_->begin(Isolation::kReadCommitted);
    ASSERT_TRUE(remove(session_.get(), table, i, rows[i]).ok()) << i;
    ASSERT_TRUE(session_->commit().ok());
  }
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(kernel_->run_purge(1000).ok());
  expect_protected();
  // A second read finds the same; a second reader shares.
  EXPECT_EQ(*read_range(reader.get(), table, 0, be64(1200), be64(1300)), 10u);
  auto other = kernel_->new_session();
  other->begin(Isolation::kSerializable);
  EXPECT_EQ(*read_range(other.get(), table, 0, be64(1199), be64(1301)), 12u);
  ASSERT_TRUE(reader->commit().ok());
  EXPECT_TRUE(is_lock_wait_timeout(attempt(1201, 42)));
  EXPECT_TRUE(attempt(9, 7).ok());
  ASSERT_TRUE(other->commit().ok());
  EXPECT_TRUE(attempt(1201, 42).ok());
  expect_consistent(kernel_.get(), table);
}

TEST_F(EngineTest, ARowSkippedForItsSharedLockIsNotMarked) {
  const TableRef table = create("t");
  session_->begin(Isolation::kRepeatableRead);
  for (uint64_t i = 1; i <= 3; ++i) ASSERT_TRUE(insert(session_.get(), table, i, row(i)).ok());
  ASSERT_TRUE(session_->commit().ok());
  auto reader = kernel_->new_session();
  reader->begin(Isolation::kRepeatableRead);
  bool gone = false;
  TableCursor shared(reader.get(), table, 0);
  shared.set_lock_mode(LockMode::kShared);
  ASSERT_TRUE(shared.get(be64(2), &gone).ok());
  session_->begin(Isolation::kRepeatableRead);
  std::vector<uint64_t> taken;
  TableCursor queue(session_.get(), table, 0);
  queue.set_lock_mode(LockMode::kExclusive);
  queue.set_skip_locked(true);
  ASSERT_TRUE(queue.seek(Bytes()).ok());
  while (queue.valid()) {
    ASSERT_TRUE(queue.fetch(&gone).ok());
    if (!gone) taken.push_back(load_be64(queue.entry().key.data()));
    ASSERT_TRUE(queue.next().ok());
  }
  EXPECT_EQ(taken, (std::vector<uint64_t>{1, 3}));
  auto third = kernel_->new_session();
  third->set_lock_wait_timeout_us(0);
  third->begin(Isolation::kRepeatableRead);
  TableCursor also_shared(third.get(), table, 0);
  also_shared.set_lock_mode(LockMode::kShared);
  EXPECT_TRUE(also_shared.get(be64(2), &gone).ok());
  EXPECT_TRUE(is_lock_wait_timeout(also_shared.get(be64(1), &gone)));
}

TEST_F(EngineTest, UnlockRowGivesBackOnlyWhatTheLastFetchTook) {
  const TableRef table = create("t");
  session_->begin(Isolation::kRepeatableRead);
  for (uint64_t i = 1; i <= 3; ++i) ASSERT_TRUE(insert(session_.get(), table, i, row(i)).ok());
  ASSERT_TRUE(session_->commit().ok());
  const auto is_locked = [&](uint64_t id) { return is_locked_for_others(table, id); };
  for (const LockMode mode : {LockMode::kExclusive, LockMode::kShared}) {
    session_->begin(Isolation::kReadCommitted);
    bool gone = false;
    TableCursor cursor(session_.get(), table, 0);
    cursor.set_lock_mode(mode);
    ASSERT_TRUE(cursor.get(be64(1), &gone).ok());
    EXPECT_TRUE(is_locked(1));
    ASSERT_TRUE(cursor.unlock_row().ok());
    EXPECT_FALSE(is_locked(1));
    ASSERT_TRUE(cursor.get(be64(2), &gone).ok());
    ASSERT_TRUE(cursor.get(be64(2), &gone).ok());  // held before
    ASSERT_TRUE(cursor.unlock_row().ok());
    EXPECT_TRUE(is_locked(2));
    ASSERT_TRUE(cursor.get(be64(3), &gone).ok());
    Row changed = row(3);
    changed.text = "changed";
    ASSERT_TRUE(update(session_.get(), table, 3, row(3), 3, changed).ok());
    ASSERT_TRUE(cursor.unlock_row().ok());
    EXPECT_TRUE(is_locked(3));
    ASSERT_TRUE(session_->rollback().ok());
  }
  EXPECT_EQ(all(table), (Rows{{1, row(1)}, {2, row(2)}, {3, row(3)}}));
}

// L11: what a statement has locked before it failed stays locked; statements that change many rows
// keep no list of them.
TEST_F(EngineTest, LocksFromBeforeASavepointOutliveARollbackToIt) {
  const TableRef table = create("t");
  session_->begin(Isolation::kRepeatableRead);
  for (uint64_t i = 1; i <= 3; ++i) ASSERT_TRUE(insert(session_.get(), table, i, row(i)).ok());
  ASSERT_TRUE(session_->commit().ok());
  const auto is_locked = [&](uint64_t id) { return is_locked_for_others(table, id); };
  session_->begin(Isolation::kRepeatableRead);
  bool gone = false;
  TableCursor cursor(session_.get(), table, 0);
  cursor.set_lock_mode(LockMode::kExclusive);
  ASSERT_TRUE(cursor.get(be64(1), &gone).ok());
  const Savepoint savepoint = session_->savepoint();
  Row changed = row(1);
  changed.text = "changed";
  ASSERT_TRUE(update(session_.get(), table, 1, row(1), 1, changed).ok());
  ASSERT_TRUE(session_->rollback_to(savepoint).ok());
  EXPECT_TRUE(is_locked(1));
  // Duplicate of 3: the row is not changed, and still locked.
  ASSERT_TRUE(cursor.get(be64(2), &gone).ok());
  Row twice = row(2);
  twice.unique_value = row(3).unique_value;
  EXPECT_TRUE(is_duplicate_key(update(session_.get(), table, 2, row(2), 2, twice)));
  EXPECT_TRUE(is_locked(2));
  EXPECT_FALSE(is_locked(3));
  ASSERT_TRUE(session_->commit().ok());
  for (uint64_t i = 1; i <= 3; ++i) EXPECT_FALSE(is_locked(i));
  EXPECT_EQ(all(table), (Rows{{1, row(1)}, {2, row(2)}, {3, row(3)}}));
}

TEST_F(EngineTest, ALookWithoutALockShowsTheCommittedVersionWhole) {
  const TableRef table = create("t");
  std::vector<Row> rows{row(0), row(1), row(2), row(3)};
  for (uint64_t i = 1; i <= 3; ++i) rows[i].blob = std::string(50000, static_cast<char>('0' + i));
  session_->begin(Isolation::kRepeatableRead);
  for (uint64_t i = 1; i <= 3; ++i) ASSERT_TRUE(insert(session_.get(), table, i, rows[i]).ok());
  ASSERT_TRUE(session_->commit().ok());
  auto looker = kernel_->new_session();
  looker->begin(Isolation::kReadCommitted);
  TableCursor cursor(looker.get(), table, 0);
  cursor.set_lock_mode(LockMode::kExclusive);
  bool gone = false;
  const auto expect_blob = [&](const std::string& expected) {
    std::string blob;
    ASSERT_FALSE(gone);
    ASSERT_EQ(cursor.external_count(), 1u);
    ASSERT_TRUE(cursor.external(0, &blob).ok());
    EXPECT_EQ(blob, expected);
  };
  const auto replace = [&](uint64_t id) {
    Row next = rows[id];
    next.blob = std::string(60000, 'n');
    session_->begin(Isolation::kReadCommitted);
    ASSERT_TRUE(update(session_.get(), table, id, rows[id], id, next).ok());
  };
  const auto purge = [&] {
    for (int i = 0; i < 10; ++i) ASSERT_TRUE(kernel_->run_purge(100).ok());
  };
  // Whether the cursor moved before the view was open (the first row) or after makes no difference.
  ASSERT_TRUE(cursor.seek(Bytes()).ok());
  for (uint64_t id = 1; id <= 2; ++id) {
    const std::string before = rows[id].blob;
    replace(id);
    ASSERT_TRUE(session_->commit().ok());
    purge();
    ASSERT_TRUE(cursor.fetch_unlocked(&gone).ok());
    expect_blob(id == 1 ? std::string(60000, 'n') : before);
    purge();
    ASSERT_TRUE(cursor.fetch(&gone).ok());  // locks, and so sees the latest
    expect_blob(std::string(60000, 'n'));
    if (id == 2) replace(3);
    ASSERT_TRUE(cursor.next().ok());
  }
  ASSERT_TRUE(cursor.fetch_unlocked(&gone).ok());  // its writer has not committed yet
  expect_blob(rows[3].blob);
  ASSERT_TRUE(session_->commit().ok());
  purge();
  expect_blob(rows[3].blob);
  // A view that was closed meanwhile protects nothing that was read under it.
  ASSERT_TRUE(cursor.seek(be64(2)).ok());
  looker->close_view();
  ASSERT_TRUE(cursor.fetch_unlocked(&gone).ok());
  expect_blob(std::string(60000, 'n'));
  ASSERT_TRUE(looker->commit().ok());
  expect_consistent(kernel_.get(), table);
}

}  // namespace
}  // namespace strata::engine
