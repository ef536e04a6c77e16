// Goal: whom an adopter looks after and whom not (ADP1, ADP4), in which order survivors begin, and
// that it goes on trying and stops at once (ADP5, ADP6). Method: the simulated registry with places
// in it, and no memory node, so that nothing is ever adopted here. What is:
// tests/cluster/fusion_takeover_test.cc.
#include "clients/compute/place_adopter.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>

#include "base/diag.h"
#include "base/testing/wait_until.h"
#include "cluster/testing/held_by.h"
#include "registry/sim/testing/sim_thread.h"
#include "transport/calls/testing/connections.h"

namespace strata::clients {
namespace {

using strata::testing::wait_until;

TEST(RankBehind, TheNextOneByNumberBeginsAndThenTheOthersAround) {
  const std::set<uint8_t> there{1, 3, 7, 200};
  EXPECT_EQ(rank_behind(NodeId{2}, NodeId{3}, there), 0u);
  EXPECT_EQ(rank_behind(NodeId{2}, NodeId{7}, there), 1u);
  EXPECT_EQ(rank_behind(NodeId{2}, NodeId{200}, there), 2u);
  EXPECT_EQ(rank_behind(NodeId{2}, NodeId{1}, there), 3u);
  EXPECT_EQ(rank_behind(NodeId{254}, NodeId{1}, there), 0u);
  EXPECT_EQ(rank_behind(NodeId{1}, NodeId{200}, {200}), 0u);
}

std::atomic<uint32_t> warnings{0};

class PlaceAdopterTest : public ::testing::Test {
 protected:
  PlaceAdopterTest() {
    warnings = 0;
    set_diag_sink([](Severity severity, std::string_view) {
      if (severity == Severity::kWarning) ++warnings;
    });
    PlaceAdopterOptions options;
    options.node.compute.cluster = "test";
    options.node.compute.profile = "fusion";
    options.connect = [this]() -> StatusOr<std::unique_ptr<registry::Registry>> {
      ++connections_;
      if (registry_is_away_) return error_peer_down("asked for by a test");
      return std::unique_ptr<registry::Registry>(sim_.store().connect());
    };
    options.recover = [this](FusionNode*, StopFlag*) -> StatusOr<std::string> {
      ++recovered_;
      return std::string();
    };
    options.settle_us = 1'000;
    options.rank_us = 1'000;
    options.retry_us_min = 1'000;
    options.retry_us_max = 2'000;
    options.join_us_max = 5'000;
    adopter_ = std::make_unique<PlaceAdopter>(transport::test::secret_of('s'), std::move(options));
  }
  ~PlaceAdopterTest() override {
    adopter_.reset();
    set_diag_sink(nullptr);
  }
  // Somebody has held the place's stream, and was killed or has left in order.
  void leave_place(uint8_t number, bool in_order) {
    const auto registry = sim_.store().connect();
    const uint64_t deadline_us = registry->now_us() + 5'000'000;
    cluster::Places places(registry.get(), keys_);
    bool taken = false;
    const auto place = places.take(number, &taken, deadline_us);
    ASSERT_TRUE(place.ok()) << place.status();
    ASSERT_EQ(place->place.number, NodeId{number});
    auto lease = registry->grant_lease(
        10, [](registry::LeaseId) {}, deadline_us);
    ASSERT_TRUE(lease.ok());
    cluster::StreamEpochs epochs(registry.get(), keys_);
    const auto grant = epochs.acquire(
        {cluster::log_stream_of(place->place.number), "server", Epoch{}, {}}, **lease, deadline_us);
    ASSERT_TRUE(grant.ok()) << grant.status();
    if (in_order) {
      const auto settled = places.settle(*place, true, *grant, deadline_us);
      ASSERT_TRUE(settled.ok()) << settled.status();
    }
    ASSERT_TRUE((*lease)->revoke(deadline_us).ok());
  }
  static std::vector<proto::FusionServer> members(std::initializer_list<uint8_t> numbers) {
    std::vector<proto::FusionServer> servers;
    for (const uint8_t number : numbers) servers.push_back({NodeId{number}, 1, {}});
    return servers;
  }
  [[nodiscard]] uint64_t failed() const { return adopter_->counters().failed; }
  [[nodiscard]] uint64_t looks() const { return adopter_->counters().looks; }

  registry::testing::SimThread sim_;
  const cluster::ClusterKeys keys_ = *cluster::ClusterKeys::of("test");
  std::atomic<bool> registry_is_away_{false};
  std::atomic<uint32_t> connections_{0}, recovered_{0};
  std::unique_ptr<PlaceAdopter> adopter_;
};

TEST_F(PlaceAdopterTest, LooksOnlyAfterPlacesThatAreNeitherSettledNorTakenNorItsOwn) {  // ADP1
  leave_place(1, false);                                                                // its own
  leave_place(2, true);
  leave_place(3, false);  // somebody is there
  adopter_->heard(members({1, 3}));
  adopter_->start(NodeId{1}, "server.0123");
  ASSERT_TRUE(wait_until([&] { return looks() >= 1; }));
  adopter_->heard(members({1, 3}));
  ASSERT_TRUE(wait_until([&] { return looks() >= 2; }));
  EXPECT_EQ(failed(), 0u);
  EXPECT_EQ(connections_, 1u) << "a connection of its own for each adoption";
  adopter_->heard(members({1}));  // place 3's server was fenced
  ASSERT_TRUE(wait_until([&] { return failed() >= 3; })) << "it is tried again";
  EXPECT_EQ(warnings, 1u) << "why is said once";
  // It comes back by itself.
  adopter_->heard(members({1, 3}));
  const uint64_t before = looks();
  ASSERT_TRUE(wait_until([&] { return looks() >= before + 2; }) || failed() != 0);
  EXPECT_EQ(recovered_, 0u);
}

TEST_F(PlaceAdopterTest, ARegistryThatIsAwayIsAskedAgain) {  // ADP5
  leave_place(1, false);
  leave_place(2, false);
  registry_is_away_ = true;
  adopter_->heard(members({1}));
  adopter_->start(NodeId{1}, "server.0123");
  ASSERT_TRUE(wait_until([&] { return connections_ >= 3; }));
  EXPECT_EQ(failed(), 0u);
  registry_is_away_ = false;
  ASSERT_TRUE(wait_until([&] { return failed() >= 1; }));
}

TEST_F(PlaceAdopterTest, StopsBeforeAndAfterItWasStarted) {  // ADP6
  leave_place(1, false);
  leave_place(2, false);
  adopter_->heard(members({1}));
  adopter_->start(NodeId{1}, std::string(60, 'n') + ".012");  // a long name
  ASSERT_TRUE(wait_until([&] { return connections_ >= 1; }));
  adopter_->stop();
  const uint32_t connections = connections_;
  adopter_->heard(members({1, 5}));
  adopter_->stop();
  EXPECT_EQ(connections_, connections);
}

}  // namespace
}  // namespace strata::clients
