// Goal: only the last writer of a stream says which memory nodes have its pools, over what it has
// read (MPR1), and lost outcomes are found out (MPR3). Method: the simulated registry.
#include "cluster/memory_pools.h"

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
const MemoryPoolSet kFirst{{{"memory-1", 0xfedcba9876543210}}, Epoch{}};
const MemoryPoolSet kSecond{{{"memory-2", 7}, {"memory-1", 0}}, Epoch{3}};

class Pools : public ::testing::Test {
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
  auto publish(const EpochGrant& grant, Version current, const MemoryPoolSet& pool) {
    return pools_.publish(kStream, grant.writer, current, pool, deadline());
  }
  auto remove(const EpochGrant& grant, Version current) {
    return pools_.remove(kStream, grant.writer, current, deadline());
  }
  std::optional<MemoryPoolSet> pool() {
    const auto read = pools_.read(kStream, deadline());
    EXPECT_TRUE(read.ok()) << read.status();
    if (!read.ok() || !read->has_value()) return std::nullopt;
    return (*read)->set;
  }

  uint64_t now_us_ = 1'000'000;
  SimStore store_{[this] { return now_us_ += 10; }, 1};
  std::unique_ptr<SimRegistry> registry_ = store_.connect();
  const ClusterKeys keys_ = *ClusterKeys::of("test");
  StreamEpochs epochs_{registry_.get(), keys_};
  MemoryPools pools_{registry_.get(), keys_};
  std::vector<std::unique_ptr<Lease>> leases_;
};

TEST_F(Pools, ComeBackAsTheyWerePublishedAndGo) {
  EXPECT_EQ(pool(), std::nullopt);
  const EpochGrant grant = acquire("a");
  const auto first = publish(grant, Version{}, kFirst);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(pool(), kFirst);
  EXPECT_EQ(
      (*registry_->get(keys_.memory(kStream), deadline()))->value,
      R"({"format":1,"pools":[{"incarnation":"fedcba9876543210","node":"memory-1"}],"since":0})");
  const auto second = publish(grant, *first, kSecond);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(pool(), kSecond);
  EXPECT_TRUE(is_conflict(remove(grant, *first)));
  EXPECT_EQ(pool(), kSecond);
  EXPECT_TRUE(remove(grant, *second).ok());
  EXPECT_EQ(pool(), std::nullopt);
  EXPECT_TRUE(remove(grant, *second).ok()) << "it is gone";
  EXPECT_TRUE(remove(grant, Version{}).ok());
}

TEST_F(Pools, ACopyIsNamedWithItsPool) {
  const EpochGrant grant = acquire("a");
  const MemoryPoolSet set{{{"memory-1", 7, "memory-2", 0}, {"memory-4", 8, "memory-3", 9}},
                          Epoch{2}};
  ASSERT_TRUE(publish(grant, Version{}, set).ok());
  EXPECT_EQ(pool(), set);
}

TEST_F(Pools, ARecordOfOnePoolAsItWasOnceIsRead) {
  ASSERT_TRUE(
      registry_
          ->change(
              Change::replace(keys_.memory(kStream), Version{},
                              R"({"format":1,"incarnation":"fedcba9876543210","node":"memory-1"})"),
              deadline())
          .ok());
  EXPECT_EQ(pool(), kFirst);
}

TEST_F(Pools, AWriterThatWasTakenOverChangesNothing) {  // MPR1
  const EpochGrant old_writer = acquire("a");
  const auto first = publish(old_writer, Version{}, kFirst);
  ASSERT_TRUE(first.ok());
  const EpochGrant writer = acquire("b");
  EXPECT_TRUE(is_conflict(publish(old_writer, *first, kSecond).status()));
  EXPECT_TRUE(is_conflict(remove(old_writer, *first)));
  EXPECT_TRUE(is_conflict(publish(writer, Version{}, kSecond).status())) << "not read before";
  EXPECT_EQ(pool(), kFirst);
  EXPECT_TRUE(remove(writer, *first).ok());
  EXPECT_EQ(pool(), std::nullopt);
}

TEST_F(Pools, WhatBecameOfALostRequestIsFoundOut) {  // MPR3
  const EpochGrant grant = acquire("a");
  registry_->fail_next(SimFault::kLostReply);
  const auto first = publish(grant, Version{}, kFirst);
  ASSERT_TRUE(first.ok()) << first.status();
  registry_->fail_next(SimFault::kLostRequest);
  const auto second = publish(grant, *first, kSecond);
  ASSERT_TRUE(second.ok()) << second.status();
  registry_->fail_next(SimFault::kUnavailable);
  EXPECT_EQ(remove(grant, *second).code(), StatusCode::kUnavailable);
  EXPECT_EQ(pool(), kSecond);
  registry_->fail_next(SimFault::kLostRequest);
  EXPECT_TRUE(remove(grant, *second).ok());
  EXPECT_EQ(pool(), std::nullopt);
  const auto third = publish(grant, Version{}, kFirst);
  ASSERT_TRUE(third.ok()) << third.status();
  registry_->fail_next(SimFault::kLostReply);
  EXPECT_TRUE(remove(grant, *third).ok());
  EXPECT_EQ(pool(), std::nullopt);
}

TEST_F(Pools, WhatIsNoPoolIsRefused) {
  const EpochGrant grant = acquire("a");
  EXPECT_TRUE(is_invalid_argument(publish(grant, Version{}, {{{"", 1}}, {}}).status()));
  EXPECT_TRUE(is_invalid_argument(publish(grant, Version{}, {}).status()));
  EXPECT_TRUE(is_invalid_argument(publish(grant, Version{}, {{{"memory-1", 0}}, {}}).status()));
  EXPECT_TRUE(is_invalid_argument(
      publish(grant, Version{}, {{{"memory-1", 1}, {"memory-1", 2}}, {}}).status()));
  EXPECT_TRUE(is_invalid_argument(
      publish(grant, Version{}, {{{"memory-1", 1, "memory-1", 2}}, {}}).status()));
  EXPECT_TRUE(
      is_invalid_argument(publish(grant, Version{}, {{{"memory-1", 1, "", 2}}, {}}).status()));
  EXPECT_TRUE(is_invalid_argument(
      publish(grant, Version{}, {{{"memory-1", 0, "memory-2", 2}, {"memory-3", 1}}, {}}).status()));
  for (const char* value :
       {"", "{}", R"({"format":1,"node":"memory-1"})",
        R"({"format":1,"incarnation":"0000000000000000","node":"memory-1"})",
        R"({"format":1,"incarnation":"0000000000000001","node":"."})",
        R"({"format":1,"pools":7,"since":0})", R"({"format":1,"pools":["memory-1"],"since":0})",
        R"({"format":1,"pools":[{"node":"memory-1"}],"since":0})",
        R"({"format":1,"pools":[{"incarnation":"0000000000000001","node":"a"}],"since":"x"})"}) {
    const auto found = registry_->get(keys_.memory(kStream), deadline());
    ASSERT_TRUE(found.ok());
    const Version version = found->has_value() ? (*found)->version : Version{};
    ASSERT_TRUE(
        registry_->change(Change::replace(keys_.memory(kStream), version, value), deadline()).ok());
    EXPECT_TRUE(is_corruption(pools_.read(kStream, deadline()).status())) << value;
  }
}

}  // namespace
}  // namespace strata::cluster
