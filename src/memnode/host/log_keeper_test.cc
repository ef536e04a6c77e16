// Goal: LKP1-LKP4: a storage node that lacks a part of a log whose server is gone gets it, and
// nothing else is touched; what fails is said once and tried again. Method: storage nodes in memory
// (clients/storage/testing/fake_log_node.h), the registry in memory, one look at a time.
#include "memnode/host/log_keeper.h"

#include <gtest/gtest.h>

#include <string>

#include "base/diag.h"
#include "memnode/host/testing/servers_log.h"

namespace strata::memnode {
namespace {

using testing::kServer;
using testing::kStream;

std::vector<std::string>& said() {
  static auto* const lines = new std::vector<std::string>;
  return *lines;
}

class LogKeeperTest : public testing::ServersLogTest {
 protected:
  LogKeeperTest() {
    said().clear();
    set_diag_sink([](Severity severity, std::string_view text) {
      if (severity == Severity::kWarning) said().emplace_back(text);
    });
  }

  LogKeeper keeper() {
    return LogKeeper(
        parts(), [this] { return there_; },
        {.look_us = 0, .complete_us = 300'000, .pause_us_max = 0, .ends_matter = ends_matter_});
  }
  cluster::Places places() { return {registry_.get(), keys_}; }

  // The server writes while one node is away, and leaves in order if it is to.
  void server_comes_and_goes(bool in_order) {
    const auto lease = grant_lease();
    const cluster::EpochGrant grant = acquire("server-7", *lease);
    const auto place = places().move_in({kServer, 77, "server-7", {}, {}}, {}, grant, deadline());
    ASSERT_TRUE(place.ok()) << place.status();
    const auto log = open_log(grant, true);
    ASSERT_NE(log, nullptr);
    nodes_[2]->set_mute(true);
    ASSERT_TRUE(write(log.get()).ok());
    ASSERT_TRUE(write(log.get()).ok());
    publish(grant, at_);
    if (in_order) {
      ASSERT_TRUE(places().settle(*place, true, grant, deadline()).ok());
    }
    ASSERT_TRUE(cluster::StreamEpochs(registry_.get(), keys_).release(grant, deadline()).ok());
  }
  bool is_settled() {
    const auto all = places().all(deadline());
    if (!all.ok() || all->size() != 1) return false;
    const auto settled = places().is_settled(all->front().place, deadline());
    return settled.ok() && *settled;
  }

  std::set<uint8_t> there_;
  bool ends_matter_ = true;
};

TEST_F(LogKeeperTest, ANodeThatWasAwayGetsTheLogOfOneThatIsGone) {  // LKP1, LKP2
  server_comes_and_goes(true);
  nodes_[2]->set_mute(false);
  const std::string whole = nodes_[0]->log();
  ASSERT_LT(nodes_[2]->log().size(), whole.size());
  LogKeeper keeper = this->keeper();
  const Status looked = keeper.look();
  ASSERT_TRUE(looked.ok()) << looked;
  EXPECT_EQ(keeper.completed(), 1u);
  for (const auto& node : nodes_) {
    EXPECT_EQ(node->log(), whole);
    EXPECT_EQ(node->state().quorum_durable, at_);
  }
  EXPECT_TRUE(is_settled()) << "whoever comes next has nothing to recover";
  EXPECT_TRUE(said().empty());
  const Epoch epoch = last_epoch();
  EXPECT_TRUE(keeper.look().ok());
  EXPECT_EQ(keeper.completed(), 1u) << "nothing is lacking any more";
  EXPECT_EQ(last_epoch(), epoch);
}

// As a node that came in another one's place has only an empty replica of it.
TEST_F(LogKeeperTest, ANodeThatDoesNotVoteGetsTheLog) {  // LKP3
  server_comes_and_goes(true);
  nodes_[2]->set_mute(false);
  ends_matter_ = false;
  LogKeeper keeper = this->keeper();
  const Epoch epoch = last_epoch();
  ASSERT_TRUE(keeper.look().ok());
  EXPECT_EQ(last_epoch(), epoch) << "all vote: what is lacking is the next writer's to send";
  nodes_[2]->set_voting(false);
  const Status looked = keeper.look();
  ASSERT_TRUE(looked.ok()) << looked;
  EXPECT_EQ(keeper.completed(), 1u);
  EXPECT_TRUE(nodes_[2]->state().voting);
  EXPECT_EQ(nodes_[2]->log(), nodes_[0]->log());
  EXPECT_EQ(epoch_when_read_, last_epoch()) << "LSE5";
  EXPECT_TRUE(is_settled());
}

TEST_F(LogKeeperTest, OneThatIsThereIsLeftAlone) {
  server_comes_and_goes(true);
  nodes_[2]->set_mute(false);
  there_ = {kServer.value};
  const Epoch epoch = last_epoch();
  LogKeeper keeper = this->keeper();
  EXPECT_TRUE(keeper.look().ok());
  EXPECT_EQ(last_epoch(), epoch);
}

TEST_F(LogKeeperTest, OneThatIsToBeRecoveredIsLeftToWhoDoesIt) {  // LKP1
  server_comes_and_goes(false);
  nodes_[2]->set_mute(false);
  const Epoch epoch = last_epoch();
  LogKeeper keeper = this->keeper();
  EXPECT_TRUE(keeper.look().ok());
  EXPECT_EQ(last_epoch(), epoch);
  EXPECT_FALSE(is_settled());
}

TEST_F(LogKeeperTest, ANodeThatDoesNotAnswerLacksNothing) {  // LKP3
  server_comes_and_goes(true);
  const Epoch epoch = last_epoch();
  LogKeeper keeper = this->keeper();
  EXPECT_TRUE(keeper.look().ok());
  EXPECT_EQ(last_epoch(), epoch);
}

TEST_F(LogKeeperTest, WhatFailsIsSaidOnceAndTriedAgain) {  // LKP3, LKP4
  server_comes_and_goes(true);
  nodes_[2]->set_mute(false);
  nodes_[2]->set_error(error_no_space("the disk is full"));
  LogKeeper keeper = this->keeper();
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(keeper.look().ok());
  ASSERT_EQ(said().size(), 1u);
  EXPECT_NE(said().front().find("the log of server 7"), std::string::npos) << said().front();
  EXPECT_TRUE(is_settled()) << "nothing was written";
  nodes_[2]->set_error(ok_status());
  const Status looked = keeper.look();
  EXPECT_TRUE(looked.ok()) << looked;
  EXPECT_EQ(nodes_[2]->log(), nodes_[0]->log());
  lease_is_lost_ = true;  // nothing lacks: nobody needs it
  EXPECT_TRUE(keeper.look().ok());
}

TEST_F(LogKeeperTest, AFailureOfTheRegistryLosesNothing) {
  server_comes_and_goes(true);
  nodes_[2]->set_mute(false);
  lease_is_lost_ = true;
  LogKeeper keeper = this->keeper();
  EXPECT_TRUE(is_lease_lost(keeper.look()));
  EXPECT_EQ(said().size(), 1u);
  EXPECT_TRUE(is_settled());
  lease_is_lost_ = false;
  EXPECT_TRUE(keeper.look().ok());
  EXPECT_EQ(keeper.completed(), 1u);
}

}  // namespace
}  // namespace strata::memnode
