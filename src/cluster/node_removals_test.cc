// Goal: a request to take a node out is carried out once or never, by the stream's writer, under
// the placement that the asker has looked at (NR1, NR2, TP4). Method: the simulated registry.
#include "cluster/node_removals.h"

#include <gtest/gtest.h>

#include <vector>

#include "cluster/testing/held_by.h"
#include "registry/sim/sim.h"

namespace strata::cluster {

using registry::SimFault;
using registry::SimRegistry;
using registry::SimStore;
namespace {

constexpr StreamId kStream{1};

class Removals : public ::testing::Test {
 protected:
  Removals() {
    const auto made =
        topology_.change_placement(std::nullopt, {{1, {"a", "b", "c", "d"}, 3}}, deadline());
    EXPECT_TRUE(made.ok()) << made.status();
    placement_ = *made;
    writer_ = acquire("compute");
  }
  LeaseId lease() {
    auto lease = registry_->grant_lease(
        10, [](LeaseId) {}, deadline());
    EXPECT_TRUE(lease.ok()) << lease.status();
    leases_.push_back(*std::move(lease));
    return leases_.back()->id();
  }
  EpochGrant acquire(const std::string& holder) {
    lease();
    const auto grant =
        epochs_.acquire({kStream, holder, Epoch{}, testing::held_by(&epochs_, kStream, deadline())},
                        *leases_.back(), deadline());
    EXPECT_TRUE(grant.ok()) << grant.status();
    return grant.ok() ? *grant : EpochGrant{};
  }
  [[nodiscard]] uint64_t deadline() const { return registry_->now_us() + 1'000'000; }
  PendingRemoval ask(const std::string& node) {
    EXPECT_TRUE(removals_.ask({node, placement_.generation, ""}, lease(), deadline()).ok());
    const auto pending = removals_.read(deadline());
    EXPECT_TRUE(pending.ok() && pending->has_value());
    return **pending;
  }
  auto carry_out(const PendingRemoval& pending) {
    return removals_.carry_out(pending, placement_, writer_, deadline());
  }
  Placement now() { return **topology_.placement(deadline()); }

  uint64_t now_us_ = 1'000'000;
  SimStore store_{[this] { return now_us_ += 10; }, 1};
  std::unique_ptr<SimRegistry> registry_ = store_.connect();
  const ClusterKeys keys_ = *ClusterKeys::of("test");
  Topology topology_{registry_.get(), keys_};
  StreamEpochs epochs_{registry_.get(), keys_};
  NodeRemovals removals_{registry_.get(), keys_, kStream};
  std::vector<std::unique_ptr<Lease>> leases_;
  Placement placement_;
  EpochGrant writer_;
};

TEST_F(Removals, CarriedOutOnce) {  // NR1
  const PendingRemoval pending = ask("b");
  const auto changed = carry_out(pending);
  ASSERT_TRUE(changed.ok()) << changed.status();
  EXPECT_EQ(changed->generation, 2u);
  const StorageGroup& group = changed->groups[0];
  EXPECT_EQ(group.nodes, (std::vector<std::string>{"a", "c", "d"}));
  EXPECT_EQ(group.write_quorum, 2u);
  EXPECT_EQ(group.retired, std::vector<std::string>{"b"});
  EXPECT_EQ(group.taken_out_by, writer_.epoch);
  EXPECT_EQ(now().groups, changed->groups);
  EXPECT_FALSE(removals_.read(deadline())->has_value());
  EXPECT_TRUE(is_conflict(removals_.refuse(pending, "no", deadline())));
  // Its name never comes back, and nobody else makes the group smaller.
  EXPECT_TRUE(is_invalid_argument(with_added(*changed, 1, "b", 0).status()));
  std::vector<StorageGroup> fewer = with_added(*changed, 1, "e", 0).value();
  const auto four = topology_.change_placement(*changed, fewer, deadline());
  ASSERT_TRUE(four.ok()) << four.status();
  EXPECT_EQ(four->groups[0].taken_out_by, writer_.epoch);
  EXPECT_TRUE(is_invalid_argument(
      topology_.change_placement(*four, *with_taken_out(*four, "e"), deadline()).status()));
}

TEST_F(Removals, ALostReplyIsFoundOut) {
  const PendingRemoval pending = ask("b");
  registry_->fail_next(SimFault::kLostReply);
  const auto changed = carry_out(pending);
  ASSERT_TRUE(changed.ok()) << changed.status();
  EXPECT_EQ(changed->version, now().version);
}

TEST_F(Removals, NotOnceTheStreamWasGivenToSomebodyElse) {  // NR2
  const PendingRemoval pending = ask("b");
  acquire("another");
  EXPECT_TRUE(is_conflict(carry_out(pending).status()));
  EXPECT_EQ(now().generation, 1u);
}

TEST_F(Removals, NotOnceItWasWithdrawn) {  // NR2
  const PendingRemoval pending = ask("b");
  ASSERT_TRUE(leases_.back()->revoke(deadline()).ok());
  EXPECT_TRUE(is_conflict(carry_out(pending).status()));
  const PendingRemoval again = ask("b");
  ask("c");  // another one takes its place
  EXPECT_TRUE(is_conflict(carry_out(again).status()));
  EXPECT_EQ(now().generation, 1u);
}

TEST_F(Removals, NotOnceThePlacementIsAnotherOne) {  // NR2
  const PendingRemoval pending = ask("b");
  const auto changed =
      topology_.change_placement(placement_, *with_replaced(placement_, "a", "e"), deadline());
  ASSERT_TRUE(changed.ok()) << changed.status();
  EXPECT_TRUE(is_conflict(carry_out(pending).status()));
  placement_ = *changed;
  EXPECT_TRUE(is_conflict(carry_out(pending).status()));
  EXPECT_EQ(now().generation, 2u);
}

TEST_F(Removals, ThreeNodesStay) {  // TP4
  placement_ = *carry_out(ask("b"));
  EXPECT_TRUE(is_invalid_argument(carry_out(ask("c")).status()));
  EXPECT_TRUE(is_not_found(carry_out(ask("b")).status()));
  EXPECT_EQ(now().generation, 2u);
}

TEST_F(Removals, TheWriterHearsOfThemAndTheAskerOfTheAnswer) {
  std::vector<std::string> heard;
  const auto watch = removals_.watch([&](const StatusOr<std::optional<PendingRemoval>>& pending) {
    heard.push_back(!pending.ok()           ? "unreadable"
                    : !pending->has_value() ? "none"
                                            : (*pending)->request.node);
  });
  const auto hears = [&](const std::string& what) {
    store_.run_due();
    return !heard.empty() && heard.back() == what;
  };
  EXPECT_TRUE(hears("none"));
  const PendingRemoval pending = ask("c");
  EXPECT_TRUE(hears("c"));
  ASSERT_TRUE(removals_.refuse(pending, "not today", deadline()).ok());
  EXPECT_TRUE(hears("none"));
  const auto answer = removals_.read(deadline());
  ASSERT_TRUE(answer.ok() && answer->has_value());
  EXPECT_EQ((*answer)->request.refused, "not today");
  EXPECT_EQ((*answer)->lease, pending.lease) << "an answer that nobody fetches goes, too";
  ASSERT_TRUE(
      registry_
          ->change(Change::replace(keys_.removal(kStream), (*answer)->version, "x"), deadline())
          .ok());
  EXPECT_TRUE(hears("unreadable"));
  EXPECT_TRUE(is_corruption(removals_.read(deadline()).status()));
}

}  // namespace
}  // namespace strata::cluster
