// Goal: several servers over storage nodes that make pages from their logs (profile fusion-sr). All
// storage nodes make the same pages, byte for byte, whichever logs the changes are in and in
// whatever order these came; one that lost its folder gets pages and logs from its peers, also of
// servers that have left; one that was away while a server wrote and left does no harm. Method:
// storage nodes and servers with kernels in one process over sockets; an oracle of what was
// committed. STRATA_SEED chooses the work.
#include <gtest/gtest.h>

#include <thread>

#include "base/testing/wait_until.h"
#include "fusion_memory.h"
#include "fusion_work.h"

namespace strata::testing {
namespace {

using engine::testing::environment;

class FusionReplayed : public ::testing::Test {
 protected:
  FusionReplayed() : seed_(environment("STRATA_SEED", 42)), work_(seed_) {
    // Workers begin soon after a restart (LE3).
    for (const auto& node : cluster_.storage) node->options().pages.leases.lease_us = 100'000;
  }
  ~FusionReplayed() override {
    for (const auto& server : cluster_.servers) {
      if (server->runs()) server->node()->pages()->fenced(error_fenced("the test is over"));
      server->die();
    }
  }
  void start_with_table(size_t servers) {
    std::printf("STRATA_SEED=%llu\n", static_cast<unsigned long long>(seed_));
    memory_.start();
    ASSERT_TRUE(wait_until([&] { return memory_.serves(); })) << memory_.status().why;
    for (size_t i = 0; i < servers; ++i) {
      FusionServer* const server = cluster_.add();
      server->adopts = adopts_;
      const Status started = server->start();
      ASSERT_TRUE(started.ok()) << started;
      if (i != 0) continue;
      const Status made = create_table(cluster_.servers[0].get());
      ASSERT_TRUE(made.ok()) << made;
    }
  }
  // They differ until each has heard of everything, and scanned it. What is compared are pages that
  // are stored, so all are: workers do not leave alone what has not changed between checkpoints.
  void expect_same_pages(const std::vector<size_t>& nodes) {
    std::vector<StorageNode*> compared;
    for (const size_t node : nodes) compared.push_back(cluster_.storage[node].get());
    std::string difference;
    size_t pages = 0;
    const bool same = wait_until([&] {
      for (StorageNode* node : compared)
        if (!node->pages()->checkpoint().ok() || node->pages()->backlog_bytes() != 0) return false;
      difference = different_pages(compared, &pages);
      return difference.empty();
    });
    EXPECT_TRUE(same) << difference;
    EXPECT_GT(pages, 20u);
  }
  [[nodiscard]] bool is_well(size_t node) { return cluster_.storage[node]->health().ok(); }

  const uint64_t seed_;
  Work work_;
  bool adopts_ = false;
  FusionCluster cluster_{kFusionReplayed};
  RealMemoryNode memory_{&cluster_};
};

TEST_F(FusionReplayed, AllStorageNodesMakeTheSamePages) {
  start_with_table(3);
  ASSERT_FALSE(HasFailure());
  work_for(&cluster_, &work_, 300);
  ASSERT_FALSE(HasFailure());
  work_.verify(&cluster_);
  expect_same_pages({0, 1, 2});
  for (const auto& node : cluster_.storage) {
    EXPECT_EQ(node->written(), nullptr);
    EXPECT_EQ(node->pages()->status().streams.size(), 3u);
    EXPECT_EQ(node->pages()->counters().pages_broken.load(), 0u);
  }
}

TEST_F(FusionReplayed, AStorageNodeThatLostItsFolderGetsAllFromItsPeers) {  // ND7, ND9
  start_with_table(3);
  ASSERT_FALSE(HasFailure());
  work_for(&cluster_, &work_, 200);
  ASSERT_FALSE(HasFailure());
  const Status left = cluster_.servers[2]->stop();  // nobody writes its log any more
  ASSERT_TRUE(left.ok()) << left;
  for (const auto& node : cluster_.storage) ASSERT_TRUE(node->pages()->checkpoint().ok());
  cluster_.storage[0]->stop();
  cluster_.storage[0]->wipe();
  cluster_.storage[0]->start();
  work_for(&cluster_, &work_, 100);
  ASSERT_FALSE(HasFailure());
  EXPECT_TRUE(wait_until([&] { return is_well(0); })) << cluster_.storage[0]->health();
  expect_same_pages({0, 1, 2});
  cluster_.storage[1]->stop();
  work_for(&cluster_, &work_, 50);
  ASSERT_FALSE(HasFailure());
  const Status back = cluster_.servers[2]->start();
  ASSERT_TRUE(back.ok()) << back;
  work_.verify(&cluster_);
}

// Each of two nodes misses the end of another server's log; then the third one, which has all, is
// lost.
TEST_F(FusionReplayed, NodesThatWereAwayWhileServersLeftGetTheirLogs) {  // FTM8
  start_with_table(4);
  ASSERT_FALSE(HasFailure());
  for (const size_t node : {size_t{0}, size_t{1}}) {
    cluster_.storage[node]->stop();
    work_for(&cluster_, &work_, 60);
    ASSERT_FALSE(HasFailure());
    const Status left = cluster_.servers[2 + node]->stop();
    ASSERT_TRUE(left.ok()) << left;
    cluster_.storage[node]->start();
    ASSERT_TRUE(wait_until([&] { return is_well(node); })) << cluster_.storage[node]->health();
  }
  expect_same_pages({0, 1, 2});
  cluster_.storage[2]->stop();
  work_for(&cluster_, &work_, 30);
  work_.verify(&cluster_);
  for (const size_t server : {size_t{2}, size_t{3}}) {
    const Status back = cluster_.servers[server]->start();
    ASSERT_TRUE(back.ok()) << back;
  }
  work_.verify(&cluster_);
}

// All of it is gone at once, and a server does not come back.
TEST_F(FusionReplayed, AfterTheEndOfEverythingNothingIsLost) {  // FTM7
  memory_.options.service.resume_us_max = 1'000'000;
  adopts_ = true;
  start_with_table(3);
  ASSERT_FALSE(HasFailure());
  for (int round = 0; round < 3 && !HasFailure(); ++round) {
    work_for(&cluster_, &work_, 80);
    ASSERT_FALSE(HasFailure());
    memory_.kill();
    for (const auto& server : cluster_.servers) {
      if (server->runs()) server->node()->pages()->fenced(error_fenced("it was killed"));
      server->die();
    }
    memory_.start();
    for (size_t i = 0; i < 2; ++i) {
      const Status back = cluster_.servers[i]->start();
      ASSERT_TRUE(back.ok()) << back;
    }
    if (round == 0) {  // what it had under way is undone by it alone
      const Status back = cluster_.servers[2]->start();
      ASSERT_TRUE(back.ok()) << back;
    }
    work_.verify(&cluster_);
  }
  expect_same_pages({0, 1, 2});
}

}  // namespace
}  // namespace strata::testing
