// Goal: what nodes tell each other of a table's rows adds up on all of them, whoever tells, samples
// or hears first. Method: two kernels on one cluster; the test carries what is told.
#include <gtest/gtest.h>

#include "engine/testing/cluster.h"

namespace strata::engine {
namespace {

using namespace testing;  // NOLINT: test helpers

struct Node {
  Node(Cluster* cluster, uint8_t number)
      : kernel(cluster->kernel(number)),
        session(kernel->new_session()),
        table(cluster->table(session.get())) {}
  Kernel* kernel;
  std::unique_ptr<Session> session;
  TableRef table;

  void insert_rows(uint64_t from, uint64_t count) {
    session->begin(Isolation::kReadCommitted);
    ASSERT_TRUE(session->may_change(table).ok());
    for (uint64_t id = from; id < from + count; ++id)
      ASSERT_TRUE(insert(session.get(), table, id, Row{id, 1, "text", ""}).ok());
    ASSERT_TRUE(session->commit().ok());
  }
  [[nodiscard]] uint64_t rows() const { return table->estimated_rows(); }
  // Adds to `known` what this node has not told.
  TableCounts tell(const TableCounts& known) {
    const Committed all = Kernel::committed(*table), mine = Kernel::untold(*table, all);
    TableCounts next = known;
    next.rows += static_cast<uint64_t>(mine.net);
    next.modified += mine.changed;
    ++next.version;
    Kernel::take_counts(table.get(), next, &all);
    return next;
  }
  void hear(const TableCounts& known) { Kernel::take_counts(table.get(), known, nullptr); }
};

class Counts : public ::testing::Test {
 protected:
  Cluster cluster_{2, {"t"}, false};
  Node one_{&cluster_, 1}, two_{&cluster_, 2};
  TableCounts known_{.known = true, .version = 1, .base = 1};
};

TEST_F(Counts, AddUpOnAllNodes) {
  one_.hear(known_);
  two_.hear(known_);
  one_.insert_rows(0, 30);
  two_.insert_rows(100, 12);
  EXPECT_EQ(one_.rows(), 30u);
  EXPECT_EQ(two_.rows(), 12u);
  EXPECT_EQ(one_.kernel->tables_with_untold().size(), 1u);
  known_ = one_.tell(known_);
  EXPECT_TRUE(one_.kernel->tables_with_untold().empty());
  EXPECT_EQ(one_.rows(), 30u);
  two_.hear(known_);
  EXPECT_EQ(two_.rows(), 42u);  // its own are still untold
  known_ = two_.tell(known_);
  EXPECT_EQ(two_.rows(), 42u);
  one_.hear(known_);
  EXPECT_EQ(one_.rows(), 42u);
  one_.hear(known_);
  EXPECT_EQ(one_.rows(), 42u);
  EXPECT_EQ(known_.modified, 42u);
}

TEST_F(Counts, WhatIsOldChangesNothing) {
  one_.hear(known_);
  one_.insert_rows(0, 5);
  const TableCounts old = known_;
  known_ = one_.tell(known_);
  one_.hear(old);
  EXPECT_EQ(one_.rows(), 5u);
}

// Between a node's telling and its taking that over, a statement of it may have heard of it.
TEST_F(Counts, HearingOfOnesOwnFirstCountsNothingTwice) {
  one_.hear(known_);
  one_.insert_rows(0, 10);
  const Committed mine = Kernel::committed(*one_.table);
  TableCounts told = known_;
  told.version = 2;
  told.rows = 10;
  one_.hear(told);
  Kernel::take_counts(one_.table.get(), told, &mine);
  EXPECT_EQ(one_.rows(), 10u);
  // The same with a newer one of somebody else's in between.
  one_.insert_rows(50, 10);
  const Committed more = Kernel::committed(*one_.table);
  TableCounts second = told, third = told;
  second.version = 3;
  second.rows = 20;
  third.version = 4;
  third.rows = 27;
  one_.hear(third);
  Kernel::take_counts(one_.table.get(), second, &more);
  EXPECT_EQ(one_.rows(), 27u);
}

TEST_F(Counts, ASampleOfAnotherNodeHasSeenWhatIsUntoldHere) {
  one_.hear(known_);
  one_.insert_rows(0, 40);
  Sampled sampled;
  ASSERT_TRUE(two_.kernel->refresh_statistics(two_.table.get(), &sampled).ok());
  EXPECT_TRUE(sampled.done);
  EXPECT_TRUE(sampled.recounted);
  EXPECT_EQ(two_.rows(), 40u);
  TableCounts counted = Kernel::counts(*two_.table);
  counted.version = counted.base = 2;
  one_.hear(counted);
  EXPECT_EQ(one_.rows(), 40u);
  EXPECT_TRUE(one_.kernel->tables_with_untold().empty());
}

// What was told before is not told again by whoever comes with older totals.
TEST_F(Counts, OldTotalsAreOldNews) {
  one_.hear(known_);
  one_.insert_rows(0, 10);
  const Committed old = Kernel::committed(*one_.table);
  one_.insert_rows(50, 5);
  known_ = one_.tell(known_);
  TableCounts next = known_;
  ++next.version;
  Kernel::take_counts(one_.table.get(), next, &old);
  EXPECT_EQ(one_.rows(), 15u);
  EXPECT_TRUE(one_.kernel->tables_with_untold().empty());
}

// Of a sample of its own, too: what was committed since is not in it.
TEST_F(Counts, ASampleOfThisNodeKeepsWhatCameAfterIt) {
  one_.hear(known_);
  one_.insert_rows(0, 40);
  const Committed mine = Kernel::committed(*one_.table);
  TableCounts counted = Kernel::counts(*one_.table);
  counted.version = counted.base = 2;
  one_.insert_rows(100, 3);
  Kernel::take_counts(one_.table.get(), counted, &mine);
  EXPECT_EQ(one_.rows(), 43u);
  EXPECT_EQ(Kernel::untold(*one_.table, Kernel::committed(*one_.table)).net, 3);
}

TEST_F(Counts, WhatOthersHaveChangedMakesASampleOld) {
  two_.hear(known_);
  EXPECT_FALSE(two_.table->statistics_are_old());
  known_.version = 2;
  known_.rows = known_.modified = 1000;
  two_.hear(known_);
  EXPECT_TRUE(two_.table->statistics_are_old());
}

}  // namespace
}  // namespace strata::engine
