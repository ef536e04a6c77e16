// Goal: E32, what a node leaves that is killed between CREATE and what fills the table is dropped
// by its next life, and nothing else is. Method: the statement's steps by hand, a crash after each.
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "engine/testing/cluster.h"

namespace strata::engine {
namespace {

using namespace testing;  // NOLINT: test helpers

Row row_of(uint64_t id) { return Row{id, 1, "x", ""}; }

std::vector<std::string> marks(Kernel* kernel) {
  std::vector<std::string> found;
  const Status status =
      kernel->for_each_journal("half-made/", [&](Bytes key, Bytes) { found.emplace_back(key); });
  EXPECT_TRUE(status.ok()) << status;
  return found;
}

class HalfMadeTest : public ::testing::Test {
 protected:
  // The first step of the statement, committed; the second one is what it is filled with.
  TableRef make(uint8_t node, const std::string& name) {
    auto session = cluster_.kernel(node)->new_session();
    session->begin(Isolation::kReadCommitted);
    TableRef table;
    EXPECT_TRUE(session->create_table(table_spec(name), &table).ok());
    EXPECT_TRUE(session->begin_making(table).ok());
    EXPECT_TRUE(session->commit().ok());
    return table;
  }
  std::unique_ptr<Session> fill(uint8_t node, const std::string& name, uint64_t rows) {
    auto session = cluster_.kernel(node)->new_session();
    session->begin(Isolation::kReadCommitted);
    const TableRef table = cluster_.table(session.get(), name);
    for (uint64_t id = 1; id <= rows; ++id)
      EXPECT_TRUE(insert(session.get(), table, id, row_of(id)).ok());
    EXPECT_TRUE(session->end_making("test", name).ok());
    return session;
  }
  bool has_table(uint8_t node, const std::string& name) {
    auto session = cluster_.kernel(node)->new_session();
    session->set_lock_wait_timeout_us(20'000'000);
    session->begin(Isolation::kReadCommitted);
    const Status status = session->open_table("test", name).status();
    EXPECT_TRUE(status.ok() || is_not_found(status)) << status;
    EXPECT_TRUE(session->rollback().ok());
    return status.ok();
  }
  void crash_and_start(uint8_t node) {
    cluster_.crash(node);
    cluster_.start(node);
  }
  void expect_gone(const std::string& name) {
    for (const uint8_t node : {1, 2}) {
      EXPECT_FALSE(has_table(node, name));
      EXPECT_TRUE(marks(cluster_.kernel(node)).empty());
    }
    make(1, name);  // and its name is free
    EXPECT_TRUE(fill(1, name, 3)->commit().ok());
    EXPECT_TRUE(has_table(2, name));
  }
  Cluster cluster_{2, {"t"}};
};

TEST_F(HalfMadeTest, ATableThatWasNotFilledGoes) {
  make(2, "u");
  EXPECT_EQ(marks(cluster_.kernel(1)).size(), 1u);
  crash_and_start(2);
  expect_gone("u");
}

TEST_F(HalfMadeTest, ATableThatWasBeingFilledGoes) {
  make(2, "u");
  bury(fill(2, "u", 500));
  crash_and_start(2);
  expect_gone("u");
}

TEST_F(HalfMadeTest, ATableThatWasFilledStays) {
  make(2, "u");
  EXPECT_TRUE(fill(2, "u", 5)->commit().ok());
  make(2, "empty");
  EXPECT_TRUE(fill(2, "empty", 0)->commit().ok());
  crash_and_start(2);
  for (const uint8_t node : {1, 2}) {
    EXPECT_TRUE(has_table(node, "u"));
    EXPECT_TRUE(has_table(node, "empty"));
    EXPECT_TRUE(marks(cluster_.kernel(node)).empty());
  }
}

// Of no other node, be it killed later or there.
TEST_F(HalfMadeTest, WhatAnotherNodeIsMakingStays) {
  make(1, "u");
  crash_and_start(2);
  EXPECT_TRUE(has_table(1, "u"));
  EXPECT_TRUE(fill(1, "u", 5)->commit().ok());
  crash_and_start(1);
  EXPECT_TRUE(has_table(2, "u"));
}

// The statement has failed, and dropped it; or it got another name, or was dropped elsewhere.
TEST_F(HalfMadeTest, TheMarkGoesWithTheTable) {
  make(2, "u");
  make(2, "v");
  auto session = cluster_.kernel(2)->new_session();
  session->begin(Isolation::kReadCommitted);
  EXPECT_TRUE(session->drop_table("test", "u").ok());
  EXPECT_TRUE(session->commit().ok());
  session = cluster_.kernel(1)->new_session();
  session->begin(Isolation::kReadCommitted);
  EXPECT_TRUE(session->rename_table("test", "v", "test", "w").ok());
  EXPECT_TRUE(session->commit().ok());
  session.reset();
  EXPECT_TRUE(marks(cluster_.kernel(1)).empty());
  crash_and_start(2);
  EXPECT_TRUE(has_table(1, "w"));
}

// What a statement has left that could not drop its table, and somebody has used since.
TEST_F(HalfMadeTest, ATableWithACommittedRowStays) {
  make(2, "u");
  auto session = cluster_.kernel(1)->new_session();
  session->begin(Isolation::kReadCommitted);
  EXPECT_TRUE(insert(session.get(), cluster_.table(session.get(), "u"), 1, row_of(1)).ok());
  EXPECT_TRUE(session->commit().ok());
  session.reset();
  crash_and_start(2);
  EXPECT_TRUE(has_table(1, "u"));
  EXPECT_TRUE(marks(cluster_.kernel(2)).empty());
}

// Neither is the node kept from starting, nor is the mark forgotten.
TEST_F(HalfMadeTest, WhatCannotBeDroppedStaysForTheNextLife) {
  make(2, "u");
  make(2, "v");
  auto session = cluster_.kernel(1)->new_session();
  session->begin(Isolation::kReadCommitted);
  EXPECT_TRUE(insert(session.get(), cluster_.table(session.get(), "u"), 1, row_of(1)).ok());
  crash_and_start(2);
  EXPECT_EQ(marks(cluster_.kernel(2)).size(), 1u);
  EXPECT_FALSE(has_table(2, "v"));
  EXPECT_TRUE(session->rollback().ok());
  session.reset();
  crash_and_start(2);
  expect_gone("u");
}

// Whoever decides about it comes later.
TEST_F(HalfMadeTest, WhatIsPreparedIsNotDecidedHere) {
  for (const std::string name : {"u", "v"}) {
    make(2, name);
    auto session = fill(2, name, name == "u" ? 3 : 0);
    ASSERT_TRUE(session->prepare(name).ok());
    session->detach_prepared();
  }
  crash_and_start(2);
  EXPECT_EQ(marks(cluster_.kernel(2)).size(), 2u);
  EXPECT_TRUE(cluster_.kernel(2)->commit_by_xid("u").ok());
  EXPECT_TRUE(cluster_.kernel(2)->rollback_by_xid("v").ok());
  EXPECT_TRUE(cluster_.kernel(2)->drop_half_made().ok());
  for (const uint8_t node : {1, 2}) {
    EXPECT_TRUE(has_table(node, "u"));
    EXPECT_FALSE(has_table(node, "v"));
    EXPECT_TRUE(marks(cluster_.kernel(node)).empty());
  }
}

// MW23: who waits for the name finds nothing under it.
TEST_F(HalfMadeTest, WhoWaitsForTheNameGetsItWithoutTheTable) {
  auto names = cluster_.kernel(2)->new_session();
  names->begin(Isolation::kReadCommitted);
  ASSERT_TRUE(names->lock_name("test", "u").ok());
  auto making = cluster_.kernel(2)->new_session();
  making->borrow_names(names.get());
  making->begin(Isolation::kReadCommitted);
  TableRef table;
  ASSERT_TRUE(making->create_table(table_spec("u"), &table).ok());
  ASSERT_TRUE(making->begin_making(table).ok());
  ASSERT_TRUE(making->commit().ok());
  table.reset();
  bury(std::move(making));
  bury(std::move(names));
  cluster_.crash(2);
  Status created;
  std::thread waits([&] {
    auto session = cluster_.kernel(1)->new_session();
    session->set_lock_wait_timeout_us(60'000'000);
    session->begin(Isolation::kReadCommitted);
    created = session->create_table(table_spec("u"), nullptr);
    EXPECT_TRUE((created.ok() ? session->commit() : session->rollback()).ok());
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  cluster_.start(2);
  waits.join();
  EXPECT_TRUE(created.ok()) << created;
  EXPECT_TRUE(has_table(2, "u"));
}

// A crash in the middle of the drop: it has happened, or happens with the next start.
TEST_F(HalfMadeTest, ADropThatIsInterruptedIsDoneAgain) {
  make(2, "u");
  cluster_.crash(2);
  cluster_.start(2);
  make(2, "v");
  auto session = cluster_.kernel(2)->new_session();
  session->begin(Isolation::kReadCommitted);
  EXPECT_TRUE(session->drop_table("test", "v").ok());
  bury(std::move(session));  // before its commit
  crash_and_start(2);
  crash_and_start(2);
  expect_gone("u");
  EXPECT_FALSE(has_table(1, "v"));
}

}  // namespace
}  // namespace strata::engine
