// What cannot be undone, or committed though it was decided, is neither forgotten nor turned into
// its opposite: E18, E19.
#include <gtest/gtest.h>

#include "base/fault.h"
#include "engine/testing/failing_disk.h"
#include "engine/testing/test_database.h"

namespace strata::engine {
namespace {

using namespace testing;  // NOLINT: test helpers

class UnfinishedTest : public ::testing::Test {
 protected:
  void SetUp() override { start(); }
  void TearDown() override { disarm_faults(); }
  void start(bool background = false) {
    options_.background = background;
    auto opened = Kernel::open(options_);
    ASSERT_TRUE(opened.ok()) << opened.status();
    kernel_ = std::move(opened).value();
    session_ = kernel_->new_session();
    session_->set_lock_wait_timeout_us(0);
    if (kernel_->table_exists("test", "t")) {
      table_ = *session_->open_table("test", "t");
      return;
    }
    session_->begin(Isolation::kRepeatableRead);
    ASSERT_TRUE(session_->create_table(table_spec("t"), &table_).ok());
    for (uint64_t id = 1; id <= 4; ++id) ASSERT_TRUE(insert_row(id).ok());
    ASSERT_TRUE(session_->commit().ok());
  }
  void restart(bool background = false) {
    session_.reset();
    table_.reset();
    disarm_faults();
    kernel_.reset();
    start(background);
  }
  void crash() {
    sim_->crash(5);
    restart();
  }
  static Row row(uint64_t id, const std::string& text = "old") { return Row{id * 10, 1, text, ""}; }
  Status insert_row(uint64_t id) { return insert(session_.get(), table_, id, row(id)); }
  Status change_row(uint64_t id) {
    return update(session_.get(), table_, id, row(id), id, row(id, "new"));
  }
  void change_two() {
    session_->begin(Isolation::kRepeatableRead);
    ASSERT_TRUE(change_row(1).ok());
    ASSERT_TRUE(change_row(2).ok());
  }
  Rows others_see() {
    const auto other = kernel_->new_session();
    other->begin(Isolation::kReadCommitted);
    auto rows = scan(other.get(), table_);
    EXPECT_TRUE(rows.ok()) << rows.status();
    EXPECT_TRUE(other->commit().ok());
    return rows.ok() ? *rows : Rows{};
  }
  static Rows before() { return {{1, row(1)}, {2, row(2)}, {3, row(3)}, {4, row(4)}}; }
  static Rows after() { return {{1, row(1, "new")}, {2, row(2, "new")}, {3, row(3)}, {4, row(4)}}; }
  bool is_locked(uint64_t id) {
    const auto other = kernel_->new_session();
    other->set_lock_wait_timeout_us(0);
    other->begin(Isolation::kReadCommitted);
    TableCursor cursor(other.get(), table_, 0);
    cursor.set_lock_mode(LockMode::kExclusive);
    bool gone = false;
    const Status status = cursor.get(be64(id), &gone);
    EXPECT_TRUE(other->rollback().ok());
    return is_lock_wait_timeout(status);
  }
  uint64_t counter(std::string_view name) { return counter_of(kernel_.get(), name); }

  std::unique_ptr<SimFileSystem> sim_ = make_sim_file_system();
  FailingDisk disk_{sim_.get()};
  KernelOptions options_ = options_on(&disk_);
  std::unique_ptr<Kernel> kernel_;
  std::unique_ptr<Session> session_;
  TableRef table_;
};

// The worst of all: half a statement, committed.
TEST_F(UnfinishedTest, WhatCouldNotBeUndoneToASavepointIsNotCommitted) {
  session_->begin(Isolation::kRepeatableRead);
  ASSERT_TRUE(change_row(3).ok());
  const Savepoint savepoint = session_->savepoint();
  change_two();
  arm_fault("rollback_half:1:error");
  EXPECT_TRUE(is_deadlock(session_->rollback_to(savepoint)));
  EXPECT_TRUE(session_->must_rollback());
  EXPECT_FALSE(session_->undo_failure().ok());
  EXPECT_TRUE(is_deadlock(session_->rollback_to(savepoint)));
  EXPECT_TRUE(is_deadlock(change_row(4)));
  EXPECT_TRUE(is_deadlock(session_->prepare("xid")));
  EXPECT_TRUE(is_deadlock(session_->reserve_commit()));
  EXPECT_TRUE(is_deadlock(session_->commit()));
  EXPECT_FALSE(session_->in_transaction());
  EXPECT_EQ(others_see(), before());
  EXPECT_FALSE(is_locked(1));
  expect_consistent(kernel_.get(), table_);
  crash();
  EXPECT_EQ(others_see(), before());
}

TEST_F(UnfinishedTest, ARowThatCouldNotBeUndoneIsNotCommitted) {
  session_->begin(Isolation::kRepeatableRead);
  arm_fault("rollback_half:1:error");
  Row duplicate = row(9);
  duplicate.unique_value = row(1).unique_value;  // found when the clustered record is there
  EXPECT_TRUE(is_deadlock(insert(session_.get(), table_, 9, duplicate)));
  EXPECT_TRUE(is_deadlock(session_->commit()));
  EXPECT_EQ(others_see(), before());
  expect_consistent(kernel_.get(), table_);
}

TEST_F(UnfinishedTest, ARollbackThatFailsGoesOnWithoutItsSession) {
  change_two();
  arm_fault("rollback_half:1:error");
  EXPECT_TRUE(is_deadlock(session_->rollback()));
  EXPECT_EQ(counter("unfinished_rollbacks"), 1u);
  EXPECT_NE(kernel_->status_text().find("rollback of transaction"), std::string::npos);
  EXPECT_FALSE(session_->in_transaction());
  EXPECT_TRUE(is_locked(1));  // undoing begins with the last change, an entry of 2: 1 is as changed
  EXPECT_EQ(others_see(), before());
  // Another transaction of the same session is committed, that one is not.
  session_->begin(Isolation::kRepeatableRead);
  EXPECT_TRUE(is_lock_wait_timeout(change_row(1)));
  ASSERT_TRUE(insert_row(5).ok());
  ASSERT_TRUE(session_->commit().ok());
  Rows expected = before();
  expected[5] = row(5);
  EXPECT_EQ(others_see(), expected);
  EXPECT_TRUE(kernel_->run_unfinished().ok());
  EXPECT_EQ(counter("unfinished_rollbacks"), 0u);
  EXPECT_FALSE(is_locked(1));
  EXPECT_EQ(others_see(), expected);
  EXPECT_EQ(counter("trx_active"), 0u);
  expect_consistent(kernel_.get(), table_);
}

TEST_F(UnfinishedTest, AClientThatLeavesMeanwhileLeavesNoLocks) {
  change_two();
  arm_fault("rollback_half:1:errors=2");
  session_.reset();
  EXPECT_TRUE(is_locked(1));
  EXPECT_FALSE(kernel_->run_unfinished().ok());
  EXPECT_TRUE(is_locked(1));
  EXPECT_TRUE(kernel_->run_unfinished().ok());
  EXPECT_FALSE(is_locked(1));
  EXPECT_EQ(others_see(), before());
}

TEST_F(UnfinishedTest, ACrashOrAShutdownBeforeItIsDoneChangesNothing) {
  for (const bool orderly : {true, false}) {
    change_two();
    ASSERT_TRUE(kernel_->persist_log().ok());
    arm_fault("rollback_half:2:errors=2");
    EXPECT_FALSE(session_->rollback().ok());
    EXPECT_FALSE(kernel_->run_unfinished().ok());
    if (orderly) {
      session_.reset();
      EXPECT_TRUE(kernel_->shutdown().ok());
      restart();
    } else {
      crash();
    }
    EXPECT_EQ(others_see(), before());
    EXPECT_FALSE(is_locked(1));
    EXPECT_EQ(counter("trx_active"), 0u);
    expect_consistent(kernel_.get(), table_);
  }
}

TEST_F(UnfinishedTest, TheBackgroundTriesUntilTheDamagedDiskReadsAgain) {
  restart(true);
  change_two();
  arm_fault("rollback_half:1:errors=4");
  EXPECT_TRUE(is_deadlock(session_->rollback()));
  EXPECT_TRUE(wait_until([&] { return counter("unfinished_rollbacks") == 0; }));
  EXPECT_FALSE(is_locked(1));
  EXPECT_EQ(others_see(), before());
}

// Tables are served from memory, which changes when DDL commits: so nothing has to be put back
// there. The dictionary's rows of that one name stay locked until they are.
TEST_F(UnfinishedTest, DdlThatCouldNotBeUndoneHoldsUpItsOwnNameOnly) {
  session_->begin(Isolation::kReadCommitted);
  TableRef made;
  ASSERT_TRUE(session_->create_table(table_spec("u"), &made).ok());
  ASSERT_TRUE(session_->drop_table("test", "t").ok());
  arm_fault("rollback_half:1:error");
  EXPECT_FALSE(session_->rollback().ok());
  EXPECT_TRUE(kernel_->table_exists("test", "t"));
  EXPECT_FALSE(kernel_->table_exists("test", "u"));
  EXPECT_EQ(others_see(), before());
  const auto make = [&](const std::string& name) {
    session_->begin(Isolation::kReadCommitted);
    session_->set_lock_wait_timeout_us(0);
    const Status status = session_->create_table(table_spec(name), nullptr);
    if (status.ok()) return session_->commit();
    session_->rollback().IgnoreError();  // the point is `status`
    return status;
  };
  EXPECT_TRUE(make("other").ok());
  EXPECT_TRUE(is_lock_wait_timeout(make("u")));
  EXPECT_TRUE(kernel_->run_unfinished().ok());
  EXPECT_TRUE(make("u").ok());
  EXPECT_EQ(others_see(), before());
  crash();
  EXPECT_TRUE(kernel_->table_exists("test", "u"));
  EXPECT_EQ(others_see(), before());
}

// E14 is about outcomes nobody knows yet: this one is known, and what is dropped needs no undoing.
TEST_F(UnfinishedTest, ATableThatCannotBeReadCanBeDroppedThoughARollbackWaitsForIt) {
  change_two();
  arm_fault("rollback_half:1:errors=2");
  EXPECT_FALSE(session_->rollback().ok());
  session_->begin(Isolation::kReadCommitted);
  ASSERT_TRUE(session_->drop_table("test", "t").ok());
  ASSERT_TRUE(session_->commit().ok());
  disarm_faults();
  EXPECT_TRUE(kernel_->run_unfinished().ok());
  EXPECT_EQ(counter("trx_active"), 0u);
}

// --- two-phase commit ---

TEST_F(UnfinishedTest, ADecidedCommitIsTriedAgainNotAsserted) {
  change_two();
  ASSERT_TRUE(session_->prepare("xid").ok());
  ASSERT_TRUE(session_->reserve_commit().ok());
  arm_fault("commit_before_log:1:error");
  EXPECT_FALSE(session_->commit_ordered().ok());  // as a group commit leader does
  EXPECT_TRUE(session_->commit().ok());
  EXPECT_EQ(others_see(), after());
  crash();
  EXPECT_EQ(others_see(), after());
}

TEST_F(UnfinishedTest, ADecidedCommitThatCannotBeMadeIsNeverUndone) {
  change_two();
  ASSERT_TRUE(session_->prepare("xid").ok());
  ASSERT_TRUE(session_->reserve_commit().ok());
  arm_fault("commit_before_log:1:errors=4");
  EXPECT_FALSE(session_->commit_ordered().ok());
  EXPECT_EQ(session_->commit().code(), StatusCode::kUnknown);
  EXPECT_FALSE(session_->in_transaction());
  EXPECT_EQ(counter("unfinished_commits"), 1u);
  EXPECT_TRUE(is_locked(1));
  EXPECT_EQ(others_see(), before());
  // E14: it counts as one that is being decided.
  session_->begin(Isolation::kReadCommitted);
  EXPECT_TRUE(is_lock_wait_timeout(session_->drop_table("test", "t")));
  EXPECT_TRUE(session_->rollback().ok());
  EXPECT_TRUE(is_not_found(kernel_->rollback_by_xid("xid")));
  EXPECT_FALSE(kernel_->run_unfinished().ok());
  EXPECT_TRUE(kernel_->run_unfinished().ok());
  EXPECT_EQ(counter("unfinished_commits"), 0u);
  EXPECT_FALSE(is_locked(1));
  EXPECT_EQ(others_see(), after());
  crash();
  EXPECT_EQ(others_see(), after());
}

TEST_F(UnfinishedTest, ACrashBeforeADecidedCommitLeavesItPrepared) {
  change_two();
  ASSERT_TRUE(session_->prepare("xid").ok());
  arm_fault("commit_before_log:1:errors=2");
  EXPECT_EQ(session_->commit().code(), StatusCode::kUnknown);
  crash();
  ASSERT_EQ(kernel_->prepared_transactions().size(), 1u);
  EXPECT_TRUE(kernel_->commit_by_xid("xid").ok());
  EXPECT_EQ(others_see(), after());
}

TEST_F(UnfinishedTest, ARollbackByXidThatHasBegunIsCertain) {
  change_two();
  ASSERT_TRUE(session_->prepare("xid").ok());
  session_->detach_prepared();
  arm_fault("rollback_half:1:error");
  EXPECT_TRUE(kernel_->rollback_by_xid("xid").ok());
  EXPECT_TRUE(kernel_->prepared_transactions().empty());
  EXPECT_TRUE(is_not_found(kernel_->commit_by_xid("xid")));
  EXPECT_EQ(counter("unfinished_rollbacks"), 1u);
  EXPECT_TRUE(is_locked(1));
  EXPECT_TRUE(kernel_->run_unfinished().ok());
  EXPECT_FALSE(is_locked(1));
  EXPECT_EQ(others_see(), before());
}

// The log says prepared: a rollback of it has to say otherwise first (T10).
TEST_F(UnfinishedTest, APrepareThatMayHaveWorkedIsRolledBackAsAPreparedOne) {
  change_two();
  arm_fault("prepare_after_persist:1:error");
  EXPECT_EQ(session_->prepare("xid").code(), StatusCode::kUnknown);
  arm_fault("rollback_half:1:error");
  EXPECT_FALSE(session_->rollback().ok());
  ASSERT_TRUE(kernel_->persist_log().ok());
  crash();
  EXPECT_TRUE(kernel_->prepared_transactions().empty());
  EXPECT_EQ(others_see(), before());
}

// --- a full disk ---

class FullDiskTest : public UnfinishedTest {
 protected:
  void SetUp() override {
    options_.log_segment_bytes = 1u << 20;
    options_.log_buffer_bytes = 1u << 19;
    options_.log_checkpoint_bytes = 64u << 20;  // only a lack of room makes one
    start();
  }
  // In the session's transaction; how many it made of `count`.
  uint64_t insert_many(uint64_t first, uint64_t count, Status* status) {
    for (uint64_t i = 0; i < count; ++i) {
      *status = insert(session_.get(), table_, first + i,
                       Row{(first + i) * 10, 2, std::string(700, 'x'), ""});
      if (!status->ok()) return i;
    }
    return count;
  }
};

// It needs room for a new file before the old one goes: that of the log's reserve.
TEST_F(FullDiskTest, TruncateGoesOn) {
  restart(true);  // files of dropped tables are removed in the background
  sim_->set_capacity(24u << 20);
  Status status;
  for (uint64_t i = 0; status.ok(); ++i) {
    ASSERT_LT(i, 100'000);
    session_->begin(Isolation::kRepeatableRead);
    Row big = row(100 + i);
    big.blob = std::string(100'000, 'b');
    status = insert(session_.get(), table_, 100 + i, big);
    if (status.ok()) status = session_->commit();
  }
  ASSERT_TRUE(is_no_space(status)) << status;
  ASSERT_TRUE(session_->rollback().ok());
  // To the last byte.
  const auto filler = *sim_->open("/filler", {.create = true});
  for (uint64_t step = 1u << 20, size = 0; step != 0;) {
    if (filler->allocate(size + step).ok()) {
      size += step;
    } else {
      step /= 2;
    }
  }
  session_->begin(Isolation::kReadCommitted);
  status = session_->truncate_table("test", "t", &table_);
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_TRUE(session_->commit().ok());
  EXPECT_TRUE(others_see().empty());
  EXPECT_TRUE(wait_until([&] { return counter("disk_full") == 0; }))
      << "the reserve is whole again";
  crash();
  EXPECT_TRUE(others_see().empty());
}

// Of whatever size: what a rollback needs of the log is given back by checkpoints while it goes on.
TEST_F(FullDiskTest, ARollbackGoesOn) {
  session_->begin(Isolation::kRepeatableRead);
  Status status;
  insert_many(100, 3000, &status);
  ASSERT_TRUE(status.ok()) << status;
  disk_.fill_up();
  insert_many(10000, 1u << 20, &status);
  ASSERT_TRUE(is_no_space(status)) << status;
  EXPECT_TRUE(session_->rollback().ok());
  EXPECT_EQ(counter("unfinished_rollbacks"), 0u);
  EXPECT_EQ(others_see(), before());
  crash();
  EXPECT_EQ(others_see(), before());
  expect_consistent(kernel_.get(), table_);
}

TEST_F(FullDiskTest, AStatementIsUndoneAndItsTransactionCommitted) {
  session_->begin(Isolation::kRepeatableRead);
  ASSERT_TRUE(change_row(1).ok());
  ASSERT_TRUE(change_row(2).ok());
  const Savepoint savepoint = session_->savepoint();
  Status status;
  insert_many(100, 3000, &status);
  disk_.fill_up();
  insert_many(10000, 1u << 20, &status);
  ASSERT_TRUE(is_no_space(status)) << status;
  EXPECT_TRUE(session_->rollback_to(savepoint).ok());
  EXPECT_TRUE(session_->commit().ok());
  EXPECT_EQ(others_see(), after());
}

TEST_F(FullDiskTest, WhatFreesRoomGoesOnAndTheRestGoesOnByItselfLater) {
  disk_.fill_up();
  Status status;
  for (int i = 0; status.ok(); ++i) {  // changes that need no new pages, only log
    ASSERT_LT(i, 100'000) << "the log has room on a full disk";
    session_->begin(Isolation::kRepeatableRead);
    status = change_row(1);
    if (status.ok()) status = session_->commit();
  }
  ASSERT_TRUE(is_no_space(status)) << status;
  ASSERT_TRUE(session_->rollback().ok());
  EXPECT_EQ(counter("disk_full"), 1u);
  for (uint64_t id = 1; id <= 4; ++id) {
    session_->begin(Isolation::kRepeatableRead);
    EXPECT_TRUE(remove(session_.get(), table_, id, row(id)).ok()) << id;
    EXPECT_TRUE(session_->commit().ok());
  }
  EXPECT_EQ(others_see(), Rows{});
  session_->begin(Isolation::kRepeatableRead);
  EXPECT_TRUE(session_->drop_table("test", "t").ok());
  EXPECT_TRUE(session_->commit().ok());
  EXPECT_TRUE(kernel_->run_unfinished().ok());
  EXPECT_EQ(counter("disk_full"), 1u);
  disk_.empty();
  EXPECT_TRUE(kernel_->run_unfinished().ok());
  EXPECT_TRUE(wait_until([&] { return counter("disk_full") == 0; }));
  session_->begin(Isolation::kRepeatableRead);
  ASSERT_TRUE(session_->create_table(table_spec("t"), &table_).ok());
  insert_many(100, 100, &status);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(session_->commit().ok());
}

}  // namespace
}  // namespace strata::engine
