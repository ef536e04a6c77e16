// Goal: the simulated registry keeps every promise of registry.h, and its faults do what they say.
// Method: the conformance suite in virtual time; then each fault by itself.
#include "registry/sim/sim.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "cluster/membership.h"
#include "cluster/stream_epochs.h"
#include "cluster/topology.h"
#include "registry/testing/conformance.h"

namespace strata::registry {

using cluster::ClusterKeys;
using cluster::DatabaseIdentity;
using cluster::Member;
using cluster::Membership;
using cluster::Placement;
using cluster::Role;
using cluster::StreamEpochs;
using cluster::Topology;
namespace {

constexpr uint64_t kSecond = 1'000'000;

// Virtual time that jumps from one thing that is due to the next.
class SimTime {
 public:
  SimTime() : store_([this] { return now_us_; }, 1) {}
  SimStore& store() { return store_; }
  [[nodiscard]] uint64_t now_us() const { return now_us_; }
  // Until `until_us` at most.
  void step(uint64_t until_us) {
    now_us_ = std::max(now_us_, std::min(until_us, store_.run_due()));
    store_.run_due();
  }
  void pass(uint64_t us) {
    for (const uint64_t until = now_us_ + us; now_us_ < until;) step(until);
  }

 private:
  uint64_t now_us_ = kSecond;
  SimStore store_;
};

class SimWorld final : public testing::World {
 public:
  std::unique_ptr<Registry> connect() override { return time_.store().connect(); }
  bool wait_until(absl::FunctionRef<bool()> condition) override {
    for (int i = 0; i < 1000; i++) {
      time_.store().run_due();
      if (condition()) return true;
      time_.step(time_.now_us() + kSecond / 10);
    }
    return false;
  }
  void restart() override {
    time_.store().set_up(false);
    time_.pass(kSecond / 2);
    time_.store().set_up(true);
  }
  [[nodiscard]] std::string prefix() const override { return "test"; }

 private:
  SimTime time_;
};

std::unique_ptr<testing::World> make_world() { return std::make_unique<SimWorld>(); }

}  // namespace

namespace testing {
INSTANTIATE_TEST_SUITE_P(Sim, RegistryConformance, ::testing::Values<WorldFactory>(&make_world));
}  // namespace testing

namespace {

class SimTest : public ::testing::Test {
 protected:
  [[nodiscard]] uint64_t deadline() const { return time_.now_us() + kSecond; }
  Error create(const std::string& key) {
    return error_of(client_->change(Change::create(key, "x"), deadline()).status());
  }
  bool is_there(const std::string& key) { return time_.store().contents().count(key) != 0; }
  SimTime time_;
  const std::unique_ptr<SimRegistry> client_ = time_.store().connect();
  const std::unique_ptr<SimRegistry> other_ = time_.store().connect();
};

TEST_F(SimTest, EachFaultDoesWhatItSays) {
  client_->set_faults({.delay_us_max = kSecond});
  client_->fail_next(SimFault::kUnavailable);
  EXPECT_EQ(create("a"), Error::peer_down);
  client_->fail_next(SimFault::kLostRequest);
  EXPECT_EQ(create("b"), Error::outcome_unknown);
  client_->fail_next(SimFault::kLostReply);
  EXPECT_EQ(create("c"), Error::outcome_unknown);
  client_->fail_next(SimFault::kDelayed);
  EXPECT_EQ(create("d"), Error::outcome_unknown);
  EXPECT_FALSE(is_there("a") || is_there("b") || is_there("d"));
  EXPECT_TRUE(is_there("c"));
  time_.pass(2 * kSecond);
  EXPECT_TRUE(is_there("d"));
  EXPECT_FALSE(is_there("b"));
  client_->set_connected(false);
  EXPECT_EQ(create("e"), Error::peer_down);
  EXPECT_TRUE(is_peer_down(client_->get("c", deadline()).status()));
  client_->set_connected(true);
  client_->fail_next(SimFault::kLostReply);
  EXPECT_TRUE(is_timed_out(client_->get("c", deadline()).status()));
  EXPECT_EQ(create("e"), Error::ok);
  time_.store().set_up(false);
  EXPECT_EQ(create("f"), Error::peer_down);
}

TEST_F(SimTest, ADelayedChangeThatIsOvertakenIsNotMade) {
  client_->set_faults({.delay_us_max = kSecond});
  client_->fail_next(SimFault::kDelayed);
  EXPECT_EQ(create("a"), Error::outcome_unknown);
  ASSERT_TRUE(other_->change(Change::create("a", "other"), deadline()).ok());
  time_.pass(2 * kSecond);
  EXPECT_EQ(time_.store().contents()["a"].value, "other");
}

// SE2: the change of an acquisition is lost in every way, the late one included.
TEST_F(SimTest, AnEpochInDoubtIsNotUsed) {
  StreamEpochs epochs(client_.get(), *ClusterKeys::of("c"));
  auto lease = *client_->grant_lease(30, nullptr, deadline());
  client_->set_faults({.delay_us_max = kSecond});
  Epoch last;
  for (const SimFault fault : {SimFault::kLostRequest, SimFault::kLostReply, SimFault::kDelayed}) {
    client_->fail_next(fault, /*skip=*/1);  // the list comes first
    const auto grant = epochs.acquire({StreamId{1}, "n", {}, {}}, *lease, deadline());
    ASSERT_TRUE(grant.ok()) << grant.status();
    EXPECT_EQ(grant->epoch.value, last.value + 2);
    time_.pass(2 * kSecond);
    const auto now = epochs.current(StreamId{1}, deadline());
    ASSERT_TRUE(now.ok() && now->has_value());
    EXPECT_EQ((*now)->epoch, grant->epoch);  // what arrived late changed nothing
    last = grant->epoch;
  }
}

TEST_F(SimTest, APausedHolderLosesItsLeaseBeforeTheRegistryGivesItAway) {
  int lost = 0;
  auto lease = *client_->grant_lease(
      3, [&](LeaseId) { lost++; }, deadline());
  ASSERT_TRUE(client_->change(Change::create("a", "x", lease->id()), deadline()).ok());
  time_.pass(10 * kSecond);
  ASSERT_TRUE(lease->valid());
  client_->set_paused(true);
  while (lease->valid()) {
    ASSERT_TRUE(time_.store().has_lease(lease->id()));  // RG4
    time_.pass(kSecond / 100);
  }
  EXPECT_TRUE(time_.store().has_lease(lease->id()));
  EXPECT_EQ(lost, 0);  // nobody is there to be told
  client_->set_paused(false);
  time_.pass(kSecond / 100);
  EXPECT_EQ(lost, 1);
  EXPECT_FALSE(lease->valid());
  time_.pass(5 * kSecond);
  EXPECT_FALSE(is_there("a"));
  EXPECT_EQ(lost, 1);
}

TEST_F(SimTest, ALeaseOutlivesShortOutagesOnly) {
  int lost = 0;
  auto lease = *client_->grant_lease(
      6, [&](LeaseId) { lost++; }, deadline());
  time_.store().set_up(false);
  time_.pass(3 * kSecond);
  time_.store().set_up(true);
  time_.pass(20 * kSecond);
  EXPECT_TRUE(lease->valid());
  client_->set_connected(false);
  time_.pass(7 * kSecond);
  EXPECT_EQ(lost, 1);
  client_->set_connected(true);
  time_.pass(7 * kSecond);
  EXPECT_FALSE(lease->valid());
  EXPECT_EQ(lost, 1);
}

// RG5: changes missed for good bring a snapshot, others do not.
TEST_F(SimTest, AWatchThatIsBehindStartsOverOnlyWhenItMust) {
  testing::Seen seen;
  const auto watch = client_->watch("w/", seen.handler());
  time_.pass(kSecond);
  client_->set_connected(false);
  ASSERT_TRUE(other_->change(Change::create("w/a", "1"), deadline()).ok());
  time_.pass(kSecond);
  EXPECT_TRUE(seen.entries().empty());
  client_->set_connected(true);
  time_.pass(kSecond);
  EXPECT_EQ(seen.entries().size(), 1u);
  EXPECT_EQ(seen.snapshots(), 1u);
  client_->set_connected(false);
  const Version a = seen.entries()[0].version;
  ASSERT_TRUE(other_->change(Change::remove("w/a", a), deadline()).ok());
  ASSERT_TRUE(other_->change(Change::create("w/b", "2"), deadline()).ok());
  time_.store().compact();
  client_->set_connected(true);
  time_.pass(kSecond);
  ASSERT_EQ(seen.entries().size(), 1u);
  EXPECT_EQ(seen.entries()[0].key, "w/b");
  EXPECT_EQ(seen.snapshots(), 2u);
}

// An earlier life's entry does not keep a restarted node out, and a lost reply does no harm.
TEST_F(SimTest, ANodeJoinsAgainAfterItsCrash) {
  Membership membership(client_.get(), *ClusterKeys::of("c"));
  const Member member{"store-1", Role::kStorage, 77, "127.0.0.1:1", "", {}, {}};
  {
    auto lease = *client_->grant_lease(60, nullptr, deadline());
    ASSERT_TRUE(membership.join(member, *lease, deadline()).ok());
  }
  auto lease = *client_->grant_lease(60, nullptr, deadline());
  client_->set_faults({.lost_request = 150, .lost_reply = 150});
  for (int i = 0; i < 200; i++) {
    const auto joined = membership.join(member, *lease, deadline());
    if (!joined.ok()) continue;
    const KeyValue entry = time_.store().contents()["/strata/c/members/store-1"];
    EXPECT_EQ(entry.version, *joined);
    EXPECT_EQ(entry.lease, lease->id());
  }
}

TEST_F(SimTest, AnIdentityAndAPlacementInDoubtAreSettledByAskingAgain) {
  Topology topology(client_.get(), *ClusterKeys::of("c"));
  const DatabaseIdentity identity{5, "logdb", 1};
  client_->set_faults({.lost_request = 300, .lost_reply = 300});
  bool made = false;
  for (int i = 0; i < 50; i++) {
    const Status status = topology.create_identity(identity, deadline());
    ASSERT_FALSE(is_wrong_database(status)) << status;
    made |= status.ok();
  }
  EXPECT_TRUE(made);
  client_->set_faults({});
  std::optional<Placement> current = *topology.placement(deadline());
  for (uint64_t i = 1; i < 100; i++) {
    client_->fail_next(i % 3 == 0   ? SimFault::kLostReply
                       : i % 3 == 1 ? SimFault::kLostRequest
                                    : SimFault::kNone);
    auto changed =
        topology.change_placement(current, {{1, {"s" + std::to_string(i), "t"}, 1}}, deadline());
    ASSERT_TRUE(changed.ok()) << changed.status();
    EXPECT_EQ(changed->generation, i);
    EXPECT_EQ(changed->version, time_.store().contents()["/strata/c/placement"].version);
    current = *std::move(changed);
  }
}

// SY1, SY2: the same seed and the same calls give the same run.
TEST(SimDeterminism, TheSameSeedGivesTheSameRun) {
  const auto run = [](uint64_t seed) {
    uint64_t now = 1;
    SimStore store([&] { return now; }, seed);
    const auto client = store.connect();
    client->set_faults({.unavailable = 50,
                        .lost_request = 50,
                        .lost_reply = 50,
                        .delayed = 50,
                        .lost_renewal = 300,
                        .delay_us_max = kSecond,
                        .watch_delay_us_max = kSecond});
    std::string trace;
    std::vector<std::unique_ptr<Lease>> leases;
    const auto watch = client->watch("k", [&](const WatchBatch& batch) {
      trace += "w" + std::to_string(batch.at.value) + "/" + std::to_string(batch.events.size());
    });
    for (int i = 0; i < 500; i++) {
      const auto status = client->change(Change::create("k" + std::to_string(i), "x"), now + 1);
      trace += std::to_string(static_cast<int>(error_of(status.status())));
      if (i % 50 == 0) {
        auto lease = client->grant_lease(
            2, [&](LeaseId) { trace += "lost"; }, now + 1);
        if (lease.ok()) leases.push_back(*std::move(lease));
      }
      now = std::min(store.run_due(), now + kSecond / 7);
    }
    return trace;
  };
  EXPECT_EQ(run(5), run(5));
  EXPECT_NE(run(5), run(6));
}

}  // namespace
}  // namespace strata::registry
