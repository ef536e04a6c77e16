// Goal: the file of a dropped table goes, whatever becomes of the node that has dropped it, and
// nothing else waits for that. Method: nodes are away while a table is dropped, so that its file
// has to stay; then the dropping node ends or crashes, and the others come back.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/testing/cluster.h"

namespace strata::engine {
namespace {

using namespace testing;  // NOLINT: test helpers

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

// E23: the file of a space that a killed node has dropped goes with whoever starts next.
TEST(SeveralKernelsDrops, AFileThatAKilledNodeHadToDeleteGoesWithTheNextStart) {
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
TEST(SeveralKernelsDrops, AShutdownDoesNotDependOnFilesThatCannotBeDeletedYet) {
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
