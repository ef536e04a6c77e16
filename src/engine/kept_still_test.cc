// Goal: rows that one node keeps still are changed by no other (MW22), by way of cascades neither;
// and names that a session borrows are another one's to give back.
#include <gtest/gtest.h>

#include <thread>

#include "engine/testing/cluster.h"

namespace strata::engine {
namespace {

using namespace testing;  // NOLINT: test helpers

constexpr uint64_t kLongUs = 600'000'000, kShortUs = 50'000;

struct Node {
  Node(Cluster* cluster, uint8_t number, const std::string& name = "t")
      : session(cluster->kernel(number)->new_session()),
        table(cluster->table(session.get(), name)) {
    session->set_lock_wait_timeout_us(kShortUs);
  }
  std::unique_ptr<Session> session;
  TableRef table;
  Status change(uint64_t id) {
    session->begin(Isolation::kReadCommitted);
    STRATA_RETURN_IF_ERROR(session->may_change(table));
    return insert(session.get(), table, id, Row{id, 1, "text", ""});
  }
  Status keep_still() {
    session->begin(Isolation::kReadCommitted);
    return session->keep_rows_still(table->spec().schema, table->spec().name);
  }
};

TEST(KeptStill, NobodyElseChangesRowsThatANodeKeepsStill) {
  Cluster cluster(2, {"t"}, false);
  Node one(&cluster, 1), two(&cluster, 2), reader(&cluster, 2);
  ASSERT_TRUE(two.change(1).ok());
  ASSERT_TRUE(two.session->commit().ok());
  ASSERT_TRUE(one.keep_still().ok());
  ASSERT_TRUE(one.session->keep_rows_still(one.table->spec().schema, one.table->spec().name).ok());
  EXPECT_TRUE(is_lock_wait_timeout(two.change(2)));
  ASSERT_TRUE(two.session->rollback().ok());
  reader.session->begin(Isolation::kReadCommitted);
  EXPECT_EQ(scan(reader.session.get(), reader.table)->size(), 1u);
  ASSERT_TRUE(reader.session->commit().ok());
  // Who waits goes on with its end; KILL ends the wait.
  two.session->set_lock_wait_timeout_us(kLongUs);
  two.session->interrupt();
  EXPECT_TRUE(is_interrupted(two.change(2)));
  ASSERT_TRUE(two.session->rollback().ok());
  two.session->clear_interrupt();
  std::thread waits([&] {
    EXPECT_TRUE(two.change(2).ok());
    EXPECT_TRUE(two.session->commit().ok());
  });
  ASSERT_TRUE(one.session->rollback().ok());
  waits.join();
}

TEST(KeptStill, ARightIsNoTableWhateverThatIsCalled) {
  for (const std::string_view table : {"t", "rows", ""}) {
    std::string key("test");
    key.append(1, '\0').append(table);
    EXPECT_EQ(table_of_right(right_to_change(key)), key);
    EXPECT_EQ(table_of_right(key), "");
  }
  Cluster cluster(2, {"rows"}, false);
  Node one(&cluster, 1, "rows"), two(&cluster, 2, "rows");
  ASSERT_TRUE(one.change(1).ok());
  ASSERT_TRUE(one.session->commit().ok());
  ASSERT_TRUE(two.keep_still().ok());
  EXPECT_TRUE(is_lock_wait_timeout(one.change(2)));
}

TEST(KeptStill, TransactionsThatHaveChangedRowsAreWaitedFor) {
  Cluster cluster(2, {"t"}, false);
  Node one(&cluster, 1), two(&cluster, 2);
  ASSERT_TRUE(two.change(1).ok());
  EXPECT_TRUE(is_lock_wait_timeout(one.keep_still()));
  ASSERT_TRUE(one.session->rollback().ok());
  one.session->set_lock_wait_timeout_us(kLongUs);
  std::thread waits([&] { EXPECT_TRUE(one.keep_still().ok()); });
  ASSERT_TRUE(two.session->commit().ok());
  waits.join();
  EXPECT_TRUE(is_lock_wait_timeout(two.change(2)));
  ASSERT_TRUE(two.session->rollback().ok());
  ASSERT_TRUE(one.session->rollback().ok());
  // The next one, and its own node.
  ASSERT_TRUE(one.change(3).ok());
  ASSERT_TRUE(one.session->commit().ok());
}

TEST(KeptStill, BorrowedNamesStayTheLenders) {
  Cluster cluster(2, {"t"}, false);
  Node lender(&cluster, 1), borrower(&cluster, 1), other(&cluster, 2);
  const std::string schema = lender.table->spec().schema, name = lender.table->spec().name;
  lender.session->begin(Isolation::kReadCommitted);
  lender.session->set_lock_wait_timeout_us(kLongUs);
  ASSERT_TRUE(lender.session->lock_name(schema, name).ok());
  borrower.session->borrow_names(lender.session.get());
  for (int i = 0; i < 2; ++i) {
    borrower.session->begin(Isolation::kReadCommitted);
    ASSERT_TRUE(borrower.session->lock_name(schema, name).ok());
    ASSERT_TRUE(borrower.session->rollback().ok());
    EXPECT_TRUE(is_lock_wait_timeout(other.session->open_table(schema, name).status()));
  }
  ASSERT_TRUE(lender.session->rollback().ok());
  other.session->set_lock_wait_timeout_us(kLongUs);
  EXPECT_TRUE(other.session->open_table(schema, name).ok());
}

}  // namespace
}  // namespace strata::engine
