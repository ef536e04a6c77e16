// E30: an unlogged kernel works like any other one while it lives, never waits for a disk to make
// anything durable, and leaves nothing to the next one, however it ended.
#include "engine/testing/test_database.h"

namespace strata::engine {
namespace {

using namespace testing;  // NOLINT: test helpers

class UnloggedTest : public ::testing::Test {
 protected:
  KernelOptions options() {
    KernelOptions made = options_on(disk_.get());
    made.unlogged = true;
    return made;
  }
  void start() {
    auto opened = Kernel::open(options());
    ASSERT_TRUE(opened.ok()) << opened.status();
    kernel_ = std::move(opened).value();
    session_ = kernel_->new_session();
  }
  TableRef create(const std::string& name) {
    const auto session = kernel_->new_session();
    session->begin(Isolation::kReadCommitted);
    TableRef table;
    Status status = session->create_table(table_spec(name), &table);
    EXPECT_TRUE(status.ok()) << status;
    status = session->commit();
    EXPECT_TRUE(status.ok()) << status;
    return table;
  }
  std::vector<std::string> page_files() {
    const auto names = disk_->list(options().directory + "/pages");
    EXPECT_TRUE(names.ok()) << names.status();
    return names.ok() ? *names : std::vector<std::string>{};
  }

  std::unique_ptr<SimFileSystem> disk_ = make_sim_file_system();
  std::unique_ptr<Kernel> kernel_;
  std::unique_ptr<Session> session_;
};

Row row(uint64_t n) {
  return Row{n * 1000, static_cast<uint32_t>(n % 7), "text " + std::to_string(n),
             n % 50 == 0 ? std::string(9000, 'b') : ""};
}

TEST_F(UnloggedTest, ItCommitsRollsBackAndEvictsOnADiskWhoseSyncsFail) {
  start();
  disk_->fail_syncs("/", 1);
  const TableRef table = create("t");
  constexpr uint64_t kRows = 20'000;  // more than the pool has room for
  session_->begin(Isolation::kRepeatableRead);
  for (uint64_t i = 1; i <= kRows; ++i) ASSERT_TRUE(insert(session_.get(), table, i, row(i)).ok());
  ASSERT_TRUE(session_->commit(Durability::kSync).ok());
  session_->begin(Isolation::kRepeatableRead);
  for (uint64_t i = 1; i <= 100; ++i) {
    ASSERT_TRUE(update(session_.get(), table, i, row(i), i, row(i + kRows)).ok());
    ASSERT_TRUE(remove(session_.get(), table, i + 200, row(i + 200)).ok());
  }
  const Savepoint middle = session_->savepoint();
  ASSERT_TRUE(insert(session_.get(), table, kRows + 1, row(3 * kRows)).ok());
  ASSERT_TRUE(session_->rollback_to(middle).ok());
  ASSERT_TRUE(session_->rollback().ok());
  session_->begin(Isolation::kRepeatableRead);
  const auto rows = scan(session_.get(), table);
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ(rows->size(), kRows);
  EXPECT_EQ(rows->at(1), row(1));
  ASSERT_TRUE(session_->commit().ok());
  expect_consistent(kernel_.get(), table);
}

// What a session that has the table for itself needs: it sees rows that it has just made in a table
// that is younger than its transaction, and takes no snapshot.
TEST_F(UnloggedTest, DirtyReadsSeeTablesThatAreYoungerThanTheTransaction) {
  start();
  const TableRef first = create("first");
  session_->begin(Isolation::kRepeatableRead);
  ASSERT_TRUE(insert(session_.get(), first, 1, row(1)).ok());
  const auto rows_of = [&](const TableRef& table) {
    TableCursor cursor(session_.get(), table, 1);
    cursor.set_reads_dirty(true);
    uint64_t rows = 0;
    Status status = cursor.seek(Bytes());
    while (status.ok() && cursor.valid()) {
      bool gone = false;
      status = cursor.fetch(&gone);
      rows += gone ? 0 : 1;
      if (status.ok()) status = cursor.next();
    }
    EXPECT_TRUE(status.ok()) << status;
    return rows;
  };
  EXPECT_EQ(rows_of(first), 1u);
  const TableRef second = create("second");
  ASSERT_TRUE(insert(session_.get(), second, 1, row(1)).ok());
  ASSERT_TRUE(insert(session_.get(), second, 2, row(2)).ok());
  EXPECT_EQ(rows_of(second), 2u);
  ASSERT_TRUE(session_->rollback().ok());
}

// Without its rows' undo, which belongs to nothing any more.
TEST_F(UnloggedTest, ATableIsDroppedUnderATransactionThatHasChangedIt) {
  start();
  const TableRef kept = create("kept");
  const TableRef dropped = create("dropped");
  session_->begin(Isolation::kRepeatableRead);
  ASSERT_TRUE(insert(session_.get(), kept, 1, row(1)).ok());
  ASSERT_TRUE(insert(session_.get(), dropped, 1, row(1)).ok());
  const auto other = kernel_->new_session();
  other->begin(Isolation::kReadCommitted);
  ASSERT_TRUE(other->drop_table("test", "dropped").ok());
  ASSERT_TRUE(other->commit().ok());
  const Status status = session_->rollback();
  EXPECT_TRUE(status.ok()) << status;
  session_->begin(Isolation::kRepeatableRead);
  const auto rows = scan(session_.get(), kept);
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_TRUE(rows->empty());
  ASSERT_TRUE(session_->commit().ok());
}

TEST_F(UnloggedTest, EachOpeningBeginsWithNothing) {
  start();
  const size_t files_of_an_empty_one = page_files().size();
  for (int life = 0; life < 3; ++life) {
    const TableRef table = create("t" + std::to_string(life));
    session_->begin(Isolation::kRepeatableRead);
    ASSERT_TRUE(insert(session_.get(), table, 1, row(1)).ok());
    EXPECT_GT(page_files().size(), files_of_an_empty_one);
    if (life == 0) {
      ASSERT_TRUE(session_->commit().ok());
      session_.reset();
      EXPECT_TRUE(kernel_->shutdown().ok());
    } else if (life == 1) {  // with files of the last one there, torn or whole
      session_.reset();
      disk_->crash(7);
    }
    session_.reset();
    kernel_.reset();
    start();
    uint64_t tables = 0;
    kernel_->for_each_table(true, [&tables](const TableSpec&) { ++tables; });
    EXPECT_EQ(tables, 0u);
    EXPECT_EQ(page_files().size(), files_of_an_empty_one);
  }
}

TEST_F(UnloggedTest, AFolderInUseStaysAsItIs) {
  start();
  const TableRef table = create("t");
  const std::vector<std::string> before = page_files();
  const auto second = Kernel::open(options());
  EXPECT_TRUE(is_in_use(second.status())) << second.status();
  EXPECT_EQ(page_files(), before);
}

}  // namespace
}  // namespace strata::engine
