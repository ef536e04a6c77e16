// Goal: DDL of one node waits for whoever uses the table, or may still change what it has, on any
// other, be that there or away; and the file of a dropped table goes, whatever becomes of the node
// that has dropped it, and nothing else waits for that. Method: one case each. Nodes are away while
// a table is changed or dropped; then they come back, or the other one ends or crashes.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/testing/cluster.h"

namespace strata::engine {
namespace {

using namespace testing;  // NOLINT: test helpers

Row row_of(uint64_t id, uint32_t group, size_t text_bytes) {
  return Row{id, group, std::string(text_bytes, 'x'), ""};
}

bool has_file(Cluster* cluster, SpaceId space) {
  const auto exists = cluster->source()->space_exists(space);
  EXPECT_TRUE(exists.ok()) << exists.status();
  return exists.ok() && *exists;
}

std::vector<SpaceId> listed_by(KernelImpl* kernel) {
  const auto page = kernel->pool->fix(kPendingDeletePage, LatchMode::kShared);
  EXPECT_TRUE(page.ok()) << page.status();
  return page.ok() ? redo::read_pending_deletes(page->page()) : std::vector<SpaceId>();
}

// The space of the table that there was.
SpaceId drop(Cluster* cluster, uint8_t node, const std::string& name) {
  auto session = cluster->kernel(node)->new_session();
  session->begin(Isolation::kReadCommitted);
  const SpaceId space{cluster->table(session.get(), name)->spec().space_id};
  EXPECT_TRUE(session->commit().ok());
  session->begin(Isolation::kReadCommitted);
  EXPECT_TRUE(session->drop_table("test", name).ok());
  EXPECT_TRUE(session->commit().ok());
  return space;
}

// MW15: a statement that changes a definition waits for transactions of other nodes that use the
// table, and no longer than its timeout.
TEST(SeveralKernelsDdl, DdlWaitsForUsersOnOtherNodes) {
  Cluster cluster(2, {"t"}, false);
  auto user = cluster.kernel(2)->new_session();
  user->begin(Isolation::kRepeatableRead);
  const TableRef used = cluster.table(user.get());
  ASSERT_TRUE(insert(user.get(), used, 1, row_of(1, 1, 10)).ok());
  auto ddl = cluster.kernel(1)->new_session();
  ddl->set_lock_wait_timeout_us(50'000);
  ddl->begin(Isolation::kRepeatableRead);
  EXPECT_TRUE(is_lock_wait_timeout(ddl->drop_table("test", "t")));
  ASSERT_TRUE(ddl->rollback().ok());
  EXPECT_FALSE(used->stale());
  ASSERT_TRUE(insert(user.get(), used, 2, row_of(2, 1, 10)).ok());
  ddl->set_lock_wait_timeout_us(20'000'000);
  std::thread dropping([&] {
    ddl->begin(Isolation::kRepeatableRead);
    EXPECT_TRUE(ddl->drop_table("test", "t").ok());
    EXPECT_TRUE(ddl->commit().ok());
  });
  ASSERT_TRUE(user->commit().ok());
  dropping.join();
  EXPECT_TRUE(is_not_found(user->open_table("test", "t").status()));
}

// MW15, E14: whether its rows come or go is not known yet, and no session of the node says so.
TEST(SeveralKernelsDdl, DdlWaitsForWhatIsPreparedOnOtherNodes) {
  Cluster cluster(2, {"t"}, false);
  auto user = cluster.kernel(2)->new_session();
  user->begin(Isolation::kRepeatableRead);
  const TableRef used = cluster.table(user.get());
  ASSERT_TRUE(insert(user.get(), used, 1, row_of(1, 1, 10)).ok());
  ASSERT_TRUE(user->prepare("x").ok());
  user->detach_prepared();
  auto ddl = cluster.kernel(1)->new_session();
  ddl->set_lock_wait_timeout_us(50'000);
  ddl->begin(Isolation::kRepeatableRead);
  EXPECT_TRUE(is_lock_wait_timeout(ddl->truncate_table("test", "t", nullptr)));
  ASSERT_TRUE(ddl->rollback().ok());
  EXPECT_FALSE(used->stale());
  ASSERT_TRUE(cluster.kernel(2)->commit_by_xid("x").ok());
  ddl->set_lock_wait_timeout_us(20'000'000);
  ddl->begin(Isolation::kRepeatableRead);
  EXPECT_TRUE(ddl->truncate_table("test", "t", nullptr).ok());
  ASSERT_TRUE(ddl->commit().ok());
  EXPECT_TRUE(used->stale());
}

// E14, T15: nobody holds the table's name for what a node has recovered, be it there or away. What
// was copied without such rows would lack them once they are committed.
TEST(SeveralKernelsDdl, DdlWaitsForWhatIsPreparedOnNodesThatWereAway) {
  Cluster cluster(3, {"t", "other"}, false);
  const auto prepare_one = [&](uint64_t id, const std::string& xid) {
    auto user = cluster.kernel(2)->new_session();
    user->begin(Isolation::kRepeatableRead);
    ASSERT_TRUE(insert(user.get(), cluster.table(user.get()), id, row_of(id, 1, 10)).ok());
    ASSERT_TRUE(user->prepare(xid).ok());
    user->detach_prepared();
  };
  const auto ddl = [&](uint64_t timeout_us, const std::function<Status(Session*)>& statement) {
    auto session = cluster.kernel(1)->new_session();
    session->set_lock_wait_timeout_us(timeout_us);
    session->begin(Isolation::kReadCommitted);
    const Status status = statement(session.get());
    EXPECT_TRUE((status.ok() ? session->commit() : session->rollback()).ok());
    return status;
  };
  const auto drop = [](Session* s) { return s->drop_table("test", "t"); };
  const auto truncate = [](Session* s) { return s->truncate_table("test", "t", nullptr); };
  const auto copy = [&](Session* s) {
    STRATA_RETURN_IF_ERROR(s->lock_name("test", "t"));
    return s->wait_until_decided(*cluster.table(s));
  };
  const auto add = [](Session* s) { return add_index(s, "t", false); };
  const auto is_refused = [&] {
    EXPECT_TRUE(is_lock_wait_timeout(ddl(1'000, drop)));
    EXPECT_TRUE(is_lock_wait_timeout(ddl(1'000, truncate)));
    EXPECT_TRUE(is_lock_wait_timeout(ddl(1'000, copy)));
    EXPECT_TRUE(is_lock_wait_timeout(ddl(1'000, add)));
    EXPECT_TRUE(
        ddl(1'000, [](Session* s) { return s->truncate_table("test", "other", nullptr); }).ok());
  };
  // Groups of status pages are truncated before the first one, and lie between the two.
  const auto commit_many = [&] {
    auto user = cluster.kernel(2)->new_session();
    const TableRef other = cluster.table(user.get(), "other");
    for (uint64_t id = 1; id <= 9000; ++id) {
      user->begin(Isolation::kRepeatableRead);
      const Row row = row_of(1, 1, 10);
      const bool is_there = id % 2 == 0;
      ASSERT_TRUE(
          (is_there ? remove(user.get(), other, 1, row) : insert(user.get(), other, 1, row)).ok());
      ASSERT_TRUE(user->commit(Durability::kNoSync).ok());
      if (id % 1000 == 0) cluster.purge();
    }
  };
  commit_many();
  EXPECT_GT(cluster.impl(2)->trxs->all_visible_below(), 8500u);
  prepare_one(1, "x");
  commit_many();
  prepare_one(2, "y");
  cluster.crash(2);
  cluster.start(2);
  if (HasFatalFailure()) return;
  is_refused();
  cluster.stop(2);
  is_refused();
  cluster.start(2);
  if (HasFatalFailure()) return;
  ASSERT_TRUE(cluster.kernel(2)->rollback_by_xid("x").ok());
  is_refused();

  // KILL ends the wait, and so does the decision.
  auto waiting = cluster.kernel(1)->new_session();
  const auto is_waiting = [&] { return cluster.impl(1)->ddl_waiting.load() == 1; };
  waiting->set_lock_wait_timeout_us(3'600'000'000);
  for (const bool is_killed : {true, false}) {
    std::thread ends([&] {
      EXPECT_TRUE(strata::testing::wait_until(is_waiting));
      if (is_killed)
        waiting->interrupt();
      else
        EXPECT_TRUE(cluster.kernel(2)->commit_by_xid("y").ok());
    });
    waiting->begin(Isolation::kReadCommitted);
    const Status waited = copy(waiting.get());
    ends.join();
    EXPECT_TRUE(is_killed ? is_interrupted(waited) : waited.ok()) << waited;
    if (!is_killed) {
      EXPECT_EQ(scan(waiting.get(), cluster.table(waiting.get()))->size(), 1u);
    }
    EXPECT_TRUE(waiting->rollback().ok());
    waiting->clear_interrupt();
  }
  EXPECT_TRUE(ddl(20'000'000, add).ok());
  EXPECT_TRUE(ddl(20'000'000, drop).ok());
}

// E23: the file of a space that a killed node has dropped goes with whoever starts next.
TEST(SeveralKernelsDdl, AFileThatAKilledNodeHadToDeleteGoesWithTheNextStart) {
  Cluster cluster(3, {"first", "t", "other"}, false);
  drop(&cluster, 2, "first");  // takes the dictionary's pages away from node 3
  ASSERT_TRUE(cluster.impl(2)->reap_dropped().ok());
  cluster.crash(3);
  const SpaceId space = drop(&cluster, 2, "t");
  EXPECT_TRUE(is_peer_down(cluster.impl(2)->reap_dropped()));  // node 3 may be at it
  cluster.crash(2);
  EXPECT_TRUE(has_file(&cluster, space));
  cluster.start(2);
  EXPECT_TRUE(has_file(&cluster, space));
  cluster.start(3);
  if (HasFatalFailure()) return;
  for (const uint8_t node : {3, 2}) {
    ASSERT_TRUE(cluster.impl(node)->reap_dropped().ok());
    EXPECT_FALSE(has_file(&cluster, space));
  }
  for (const uint8_t node : {2, 3}) {
    ASSERT_TRUE(cluster.impl(node)->checkpointer->run_once().ok());
    ASSERT_TRUE(cluster.impl(node)->reap_dropped().ok());
    EXPECT_TRUE(listed_by(cluster.impl(node)).empty());
  }
  auto session = cluster.kernel(3)->new_session();
  session->begin(Isolation::kReadCommitted);
  EXPECT_TRUE(is_not_found(session->open_table("test", "t").status()));
  ASSERT_TRUE(
      insert(session.get(), cluster.table(session.get(), "other"), 1, Row{1, 1, "x", ""}).ok());
  EXPECT_TRUE(session->commit().ok());
  session.reset();
  expect_merged_logs_make_pages(&cluster);
}

// An error without a crash: what was committed without a sync is durable after a shutdown, also
// when files of dropped tables cannot be deleted yet.
TEST(SeveralKernelsDdl, AShutdownDoesNotDependOnFilesThatCannotBeDeletedYet) {
  Cluster cluster(3, {"first", "t", "other"}, false);
  drop(&cluster, 2, "first");  // takes the dictionary's pages away from node 3
  ASSERT_TRUE(cluster.impl(2)->reap_dropped().ok());
  cluster.crash(3);
  const SpaceId space = drop(&cluster, 2, "t");
  {
    auto session = cluster.kernel(2)->new_session();
    session->begin(Isolation::kReadCommitted);
    const TableRef other = cluster.table(session.get(), "other");
    ASSERT_TRUE(insert(session.get(), other, 1, Row{1, 1, "x", ""}).ok());
    ASSERT_TRUE(session->commit(Durability::kNoSync).ok());
  }
  cluster.stop(2);
  EXPECT_TRUE(has_file(&cluster, space));
  cluster.start(3);
  cluster.start(2);
  if (HasFatalFailure()) return;
  ASSERT_TRUE(cluster.impl(3)->reap_dropped().ok());
  ASSERT_TRUE(cluster.impl(2)->reap_dropped().ok());
  EXPECT_FALSE(has_file(&cluster, space));
  auto session = cluster.kernel(1)->new_session();
  session->begin(Isolation::kReadCommitted);
  const auto row =
      get_row(session.get(), cluster.table(session.get(), "other"), 1, LockMode::kNone);
  EXPECT_TRUE(row.ok()) << row.status();
  EXPECT_TRUE(session->commit().ok());
}

}  // namespace
}  // namespace strata::engine
