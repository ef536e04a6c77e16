// Changes that a scan leaves for later (E21): nobody can tell when they are made, and a failure of
// theirs is not forgotten.
#include <gtest/gtest.h>

#include "base/fault.h"
#include "engine/testing/test_database.h"

namespace strata::engine {
namespace {

using namespace testing;  // NOLINT: test helpers

Row row(uint64_t n) {
  return Row{n * 1000, static_cast<uint32_t>(n % 7), std::string(120, 't') + std::to_string(n), ""};
}

class LaterChanges : public ::testing::Test {
 protected:
  static constexpr uint64_t kRows = 500;  // on many leaves

  void SetUp() override {
    start();
    session_->begin(Isolation::kRepeatableRead);
    ASSERT_TRUE(session_->create_table(table_spec("t"), &table_).ok());
    ASSERT_TRUE(session_->commit().ok());
    session_->begin(Isolation::kRepeatableRead);
    for (uint64_t n = 1; n <= kRows; ++n) {
      Row fresh = row(n);
      if (n % 50 == 0) fresh.blob = std::string(20000, 'b');
      ASSERT_TRUE(insert(session_.get(), table_, n, fresh).ok());
      before_[n] = fresh;
    }
    ASSERT_TRUE(session_->commit().ok());
  }
  void TearDown() override { disarm_faults(); }
  void start() {
    auto opened = Kernel::open(options_on(disk_.get()));
    ASSERT_TRUE(opened.ok()) << opened.status();
    kernel_ = std::move(opened).value();
    session_ = kernel_->new_session();
  }
  Rows all() {
    const auto reader = kernel_->new_session();
    reader->begin(Isolation::kRepeatableRead);
    auto rows = scan(reader.get(), table_);
    EXPECT_TRUE(rows.ok()) << rows.status();
    return rows.ok() ? *rows : Rows{};
  }
  // Changes what the cursor stands on as a statement does: every third row goes, every third gets
  // another text.
  Status change(TableCursor* cursor, Rows* expected) {
    bool gone = false;
    STRATA_RETURN_IF_ERROR(cursor->fetch(&gone));
    const uint64_t id = load_be64(cursor->clustered_key().data());
    Row now;
    STRATA_RETURN_IF_ERROR(decode(cursor, &now));
    const OwnedImage image(id, now, table_->spec());
    const bool later = cursor->holds_run();  // not where an older run of its own is in the way
    later_ += later ? 1 : 0;
    if (id % 3 == 0) {
      expected->erase(id);
      const auto& remove = later ? &Session::delete_row_later : &Session::delete_row;
      return (session_.get()->*remove)(table_.get(), image.key, image.entries.data(),
                                       image.image.entry_count);
    }
    if (id % 3 != 1 || !now.blob.empty()) return ok_status();
    now.text += id % 2 == 0 ? " and more of it, so that leaves have to be split" : "!";
    (*expected)[id] = now;
    OwnedImage changed(id, now, table_->spec());
    if (later) return session_->update_row_later(table_.get(), changed.key, changed.inline_bytes);
    uint32_t duplicate = 0;
    changed.image.entry_count = 0;
    return session_->update_row(table_.get(), changed.key, changed.image, nullptr, 0, &duplicate);
  }
  // The rows below `end`.
  Status change_all(Rows* expected, uint64_t end = kRows + 1) {
    TableCursor cursor(session_.get(), table_, 0);
    cursor.set_lock_mode(LockMode::kExclusive);
    STRATA_RETURN_IF_ERROR(cursor.seek(Bytes()));
    while (cursor.valid() && load_be64(cursor.clustered_key().data()) < end) {
      STRATA_RETURN_IF_ERROR(change(&cursor, expected));
      STRATA_RETURN_IF_ERROR(cursor.next());
    }
    return ok_status();
  }

  std::unique_ptr<SimFileSystem> disk_ = make_sim_file_system();
  std::unique_ptr<Kernel> kernel_;
  std::unique_ptr<Session> session_;
  TableRef table_;
  Rows before_;
  uint64_t later_ = 0;  // rows that were left for later
};

TEST_F(LaterChanges, AreWholeOnceTheTransactionIsCommitted) {
  Rows expected = before_;
  session_->begin(Isolation::kRepeatableRead);
  ASSERT_TRUE(change_all(&expected).ok());
  EXPECT_EQ(later_, kRows);
  EXPECT_EQ(all(), before_) << "nobody sees what is not committed";
  ASSERT_TRUE(session_->commit().ok());
  EXPECT_EQ(all(), expected);
  for (uint32_t index : {1u, 2u}) {
    session_->begin(Isolation::kRepeatableRead);
    EXPECT_EQ(*scan(session_.get(), table_, index), expected) << index;
    ASSERT_TRUE(session_->commit().ok());
  }
  expect_consistent(kernel_.get(), table_);
  session_.reset();
  disk_->crash(3);
  kernel_.reset();
  start();
  table_ = *session_->open_table("test", "t");
  EXPECT_EQ(all(), expected);
  expect_consistent(kernel_.get(), table_);
}

TEST_F(LaterChanges, TheSessionItselfReadsThemAtOnce) {
  Rows expected = before_;
  session_->begin(Isolation::kRepeatableRead);
  TableCursor cursor(session_.get(), table_, 0);
  cursor.set_lock_mode(LockMode::kExclusive);
  ASSERT_TRUE(cursor.seek(Bytes()).ok());
  for (uint64_t n = 1; n <= 40; ++n) {
    ASSERT_TRUE(change(&cursor, &expected).ok());
    if (n % 10 == 0) {
      EXPECT_EQ(*scan(session_.get(), table_, n % 20 == 0 ? 0 : 2), expected) << n;
    }
    if (n == 25) {  // a point read
      TableCursor point(session_.get(), table_, 0);
      bool gone = false;
      ASSERT_TRUE(point.get(be64(24), &gone).ok());
      EXPECT_TRUE(gone);
    }
    ASSERT_TRUE(cursor.next().ok());
  }
  // The key of a row that goes later is free for another one.
  ASSERT_TRUE(change(&cursor, &expected).ok());
  ASSERT_TRUE(cursor.next().ok());
  ASSERT_TRUE(change(&cursor, &expected).ok());
  ASSERT_TRUE(insert(session_.get(), table_, 42, row(42)).ok());
  expected[42] = row(42);
  EXPECT_EQ(*scan(session_.get(), table_), expected);
  ASSERT_TRUE(session_->commit().ok());
  EXPECT_EQ(all(), expected);
}

TEST_F(LaterChanges, ASavepointHasThoseBeforeItAndARollbackTakesThoseBehindIt) {
  Rows expected = before_;
  Rows ignored = before_;
  session_->begin(Isolation::kRepeatableRead);
  const Savepoint start = session_->savepoint();
  ASSERT_TRUE(change_all(&expected, 30).ok());
  const Savepoint middle = session_->savepoint();
  ASSERT_TRUE(change_all(&ignored, 60).ok());
  ASSERT_TRUE(session_->rollback_to(middle).ok());
  EXPECT_EQ(*scan(session_.get(), table_), expected);
  ASSERT_TRUE(change_all(&ignored, 60).ok());
  ASSERT_TRUE(session_->rollback_to(start).ok());
  EXPECT_EQ(*scan(session_.get(), table_), before_);
  ASSERT_TRUE(change_all(&ignored, 20).ok());
  ASSERT_TRUE(session_->rollback().ok());
  EXPECT_EQ(all(), before_);
  expect_consistent(kernel_.get(), table_);
}

TEST_F(LaterChanges, AFailureStaysUntilTheStatementIsRolledBack) {
  Rows ignored = before_;
  session_->begin(Isolation::kRepeatableRead);
  const Savepoint start = session_->savepoint();
  ASSERT_TRUE(arm_fault("undo_page_added:2:error"));
  const Status failed = change_all(&ignored);
  EXPECT_FALSE(failed.ok());
  // Whoever has not seen it is told again, whatever he asks for.
  EXPECT_FALSE(session_->make_later_changes().ok());
  EXPECT_FALSE(scan(session_.get(), table_).ok());
  EXPECT_FALSE(insert(session_.get(), table_, kRows + 1, row(kRows + 1)).ok());
  EXPECT_FALSE(session_->prepare("x").ok());
  ASSERT_TRUE(session_->rollback_to(start).ok());
  EXPECT_EQ(*scan(session_.get(), table_), before_);
  Rows expected = before_;
  ASSERT_TRUE(change_all(&expected).ok());
  ASSERT_TRUE(session_->commit().ok());
  EXPECT_EQ(all(), expected);
  expect_consistent(kernel_.get(), table_);
}

TEST_F(LaterChanges, AFailureThatNobodyWasToldOfEndsTheTransaction) {
  Rows ignored = before_;
  ASSERT_TRUE(arm_fault("undo_page_added:1:fail"));
  Status failed;
  for (int i = 0; failed.ok() && i < 1000; ++i) {
    session_->begin(Isolation::kRepeatableRead);
    ASSERT_TRUE(change_all(&ignored, 20).ok());  // few enough to be all left for the commit
    failed = session_->commit();
  }
  EXPECT_FALSE(failed.ok());
  EXPECT_FALSE(session_->in_transaction());
  disarm_faults();
  expect_consistent(kernel_.get(), table_);
  // A savepoint in the middle: there is no way on from there.
  session_->begin(Isolation::kRepeatableRead);
  ASSERT_TRUE(arm_fault("undo_page_added:1:fail"));
  const Savepoint lost = [&] {
    for (uint64_t end = 20;; end += 10) {
      const Status changed = change_all(&ignored, end);
      const Savepoint at = session_->savepoint();
      if (!changed.ok() || session_->must_rollback() || end > kRows) return at;
    }
  }();
  EXPECT_TRUE(session_->must_rollback());
  EXPECT_FALSE(session_->rollback_to(lost).ok());
  EXPECT_FALSE(session_->commit().ok());
  disarm_faults();
  expect_consistent(kernel_.get(), table_);
}

}  // namespace
}  // namespace strata::engine
