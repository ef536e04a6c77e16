// Goal: only the last writer of a stream says which nodes are in sync, over what it has read (NS1),
// and lost outcomes are found out (NS3). Method: the simulated registry.
#include "cluster/in_sync_nodes.h"

#include <gtest/gtest.h>

#include "cluster/stream_epochs.h"
#include "cluster/testing/held_by.h"
#include "registry/sim/sim.h"

namespace strata::cluster {

using registry::SimFault;
using registry::SimRegistry;
using registry::SimStore;
namespace {

constexpr StreamId kStream{1};
const std::vector<InSyncNode> kThree = {{"s1", 1}, {"s2", 0xfedcba9876543210}, {"s3", 3}};
const std::vector<InSyncNode> kTwo = {{"s1", 1}, {"s3", 3}};

class InSync : public ::testing::Test {
 protected:
  EpochGrant acquire(const std::string& holder) {
    auto lease = registry_->grant_lease(
        10, [](LeaseId) {}, deadline());
    EXPECT_TRUE(lease.ok()) << lease.status();
    leases_.push_back(*std::move(lease));
    const auto grant =
        epochs_.acquire({kStream, holder, Epoch{}, testing::held_by(&epochs_, kStream, deadline())},
                        *leases_.back(), deadline());
    EXPECT_TRUE(grant.ok()) << grant.status();
    return grant.ok() ? *grant : EpochGrant{};
  }
  [[nodiscard]] uint64_t deadline() const { return registry_->now_us() + 1'000'000; }
  auto publish(const EpochGrant& grant, Version current, const std::vector<InSyncNode>& nodes) {
    return in_sync_.publish(kStream, grant.writer, current, nodes, deadline());
  }
  std::vector<InSyncNode> nodes() { return (*in_sync_.read(kStream, deadline()))->nodes; }

  uint64_t now_us_ = 1'000'000;
  SimStore store_{[this] { return now_us_ += 10; }, 1};
  std::unique_ptr<SimRegistry> registry_ = store_.connect();
  const ClusterKeys keys_ = *ClusterKeys::of("test");
  StreamEpochs epochs_{registry_.get(), keys_};
  InSyncNodes in_sync_{registry_.get(), keys_};
  std::vector<std::unique_ptr<Lease>> leases_;
};

TEST_F(InSync, ComesBackAsItWasPublished) {
  const auto none = in_sync_.read(kStream, deadline());
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(none->has_value());
  const EpochGrant grant = acquire("a");
  const auto first = publish(grant, Version{}, kThree);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(nodes(), kThree);
  ASSERT_TRUE(publish(grant, *first, kTwo).ok());
  EXPECT_EQ(nodes(), kTwo);
  EXPECT_EQ((*registry_->get(keys_.in_sync(kStream), deadline()))->value,
            R"({"format":1,"nodes":[{"name":"s1","store":"0000000000000001"},)"
            R"({"name":"s3","store":"0000000000000003"}]})");
}

TEST_F(InSync, AWriterThatWasTakenOverChangesNothing) {  // NS1
  const EpochGrant old_writer = acquire("a");
  const auto first = publish(old_writer, Version{}, kThree);
  ASSERT_TRUE(first.ok());
  const EpochGrant writer = acquire("b");
  EXPECT_TRUE(is_conflict(publish(old_writer, *first, kTwo).status()));
  EXPECT_TRUE(is_conflict(publish(writer, Version{}, kTwo).status())) << "over one it has not read";
  EXPECT_EQ(nodes(), kThree);
  EXPECT_TRUE(publish(writer, *first, kTwo).ok());
}

TEST_F(InSync, WhatBecameOfALostRequestIsFoundOut) {  // NS3
  const EpochGrant grant = acquire("a");
  registry_->fail_next(SimFault::kLostReply);
  const auto first = publish(grant, Version{}, kThree);
  ASSERT_TRUE(first.ok()) << first.status();
  registry_->fail_next(SimFault::kLostRequest);
  const auto second = publish(grant, *first, kTwo);
  ASSERT_TRUE(second.ok()) << second.status();
  registry_->fail_next(SimFault::kUnavailable);
  EXPECT_TRUE(is_peer_down(publish(grant, *second, kThree).status()));
  EXPECT_EQ(nodes(), kTwo);
}

TEST_F(InSync, WhatIsNoneIsRefused) {
  const EpochGrant grant = acquire("a");
  for (const std::vector<InSyncNode>& bad :
       {std::vector<InSyncNode>{}, {{"s1", 0}}, {{"no name!", 1}}, {{"s2", 1}, {"s1", 2}}})
    EXPECT_TRUE(is_invalid_argument(publish(grant, Version{}, bad).status()));
  for (const char* value : {"", "{}", "{\"format\":1}", "{\"format\":1,\"nodes\":[1]}",
                            "{\"format\":1,\"nodes\":[{\"name\":\"s1\"}]}"}) {
    const auto found = registry_->get(keys_.in_sync(kStream), deadline());
    const Version version = found->has_value() ? (*found)->version : Version{};
    ASSERT_TRUE(
        registry_->change(Change::replace(keys_.in_sync(kStream), version, value), deadline())
            .ok());
    EXPECT_TRUE(is_corruption(in_sync_.read(kStream, deadline()).status())) << value;
  }
}

}  // namespace
}  // namespace strata::cluster
