// Goal: what the registry says of a stream's pools is what its writer has said last, place by place
// (RM1, MPR1-MPR4): a later life finds it, other memory nodes than those named give all of them up,
// lost answers are found out, and who was taken over changes nothing. Method: the simulated
// registry.
#include "clients/compute/remote_memory.h"

#include <gtest/gtest.h>

#include "base/diag.h"
#include "cluster/testing/held_by.h"
#include "registry/sim/sim.h"

namespace strata::clients {
namespace {

using cluster::EpochGrant;
using cluster::MemoryPoolSet;
using registry::SimFault;

constexpr StreamId kStream{1};
using Nodes = RegistryPoolNaming::Nodes;

class Naming : public ::testing::Test {
 protected:
  Naming() {
    set_diag_sink([](Severity, std::string_view) {});
    acquire();
  }
  ~Naming() override { set_diag_sink(nullptr); }
  // The stream's next writer.
  void acquire() {
    auto lease = registry_->grant_lease(
        10, [](registry::LeaseId) {}, deadline());
    ASSERT_TRUE(lease.ok()) << lease.status();
    leases_.push_back(*std::move(lease));
    const auto grant = epochs_.acquire(
        {kStream, "compute", Epoch{}, cluster::testing::held_by(&epochs_, kStream, deadline())},
        *leases_.back(), deadline());
    ASSERT_TRUE(grant.ok()) << grant.status();
    grant_ = *grant;
  }
  // Of the writer of now, for good.
  std::unique_ptr<RegistryPoolNaming> naming(const Nodes& nodes) {
    return std::make_unique<RegistryPoolNaming>(
        registry_.get(), keys_, [grant = grant_] { return grant; }, nodes, 1'000'000);
  }
  std::optional<MemoryPoolSet> there() {
    const auto read = pools_.read(kStream, deadline());
    EXPECT_TRUE(read.ok()) << read.status();
    if (!read.ok() || !read->has_value()) return std::nullopt;
    return (*read)->set;
  }
  static uint64_t named(PoolNaming* pool) {
    const auto found = pool->named();
    EXPECT_TRUE(found.ok()) << found.status();
    return found.ok() ? found->value_or(0) : UINT64_MAX;
  }
  [[nodiscard]] uint64_t deadline() const { return registry_->now_us() + 1'000'000; }

  uint64_t now_us_ = 1'000'000;
  registry::SimStore store_{[this] { return now_us_ += 10; }, 1};
  std::unique_ptr<registry::SimRegistry> registry_ = store_.connect();
  const cluster::ClusterKeys keys_ = *cluster::ClusterKeys::of("test");
  cluster::StreamEpochs epochs_{registry_.get(), keys_};
  cluster::MemoryPools pools_{registry_.get(), keys_};
  std::vector<std::unique_ptr<registry::Lease>> leases_;
  EpochGrant grant_;
};

TEST_F(Naming, ALaterLifeFindsWhatWasNamedInItsPlace) {
  const Nodes nodes = {{"m1"}, {"m2"}};
  {
    const auto names = naming(nodes);
    EXPECT_EQ(named(names->of(0)), 0u);
    ASSERT_TRUE(names->of(1)->name(22).ok());
    EXPECT_EQ(there(), (MemoryPoolSet{{{"m1", 0}, {"m2", 22}}, Epoch{}}));
    ASSERT_TRUE(names->of(0)->name(11).ok());
  }
  acquire();
  const auto names = naming(nodes);
  EXPECT_EQ(named(names->of(0)), 11u);
  EXPECT_EQ(named(names->of(1)), 22u);
  ASSERT_TRUE(names->of(0)->remove(PoolLoss::kNothing).ok());
  EXPECT_EQ(there(), (MemoryPoolSet{{{"m1", 0}, {"m2", 22}}, Epoch{}}));
  EXPECT_EQ(named(names->of(0)), 0u);
  EXPECT_TRUE(names->of(0)->remove(PoolLoss::kNothing).ok()) << "it is gone";
  ASSERT_TRUE(names->of(1)->remove(PoolLoss::kNothing).ok());
  EXPECT_EQ(there(), std::nullopt) << "the last name takes the record along";
}

TEST_F(Naming, ANameThatIsThereAlreadyIsNotWrittenAgain) {
  const auto names = naming({{"m1"}});
  ASSERT_TRUE(names->of(0)->name(11).ok());
  const registry::Version before = store_.version();
  EXPECT_TRUE(names->of(0)->name(11).ok());
  EXPECT_EQ(store_.version(), before);
}

TEST_F(Naming, WhatIsLostWithChangesMakesOlderCheckpointsVoid) {  // MPR4
  const auto names = naming({{"m1"}, {"m2"}});
  ASSERT_TRUE(names->of(0)->name(11).ok());
  ASSERT_TRUE(names->of(1)->name(22).ok());
  ASSERT_TRUE(names->of(1)->remove(PoolLoss::kNothing).ok());
  EXPECT_EQ(names->of(0)->since(), Epoch{});
  ASSERT_TRUE(names->of(1)->remove(PoolLoss::kUnknown).ok());
  EXPECT_EQ(names->of(0)->since(), Epoch{}) << "it was not named";
  ASSERT_TRUE(names->of(1)->name(23).ok());
  ASSERT_TRUE(names->of(1)->remove(PoolLoss::kUnknown).ok());
  EXPECT_EQ(names->of(0)->since(), grant_.epoch);
  EXPECT_EQ(there()->since, grant_.epoch);
  const Epoch since = grant_.epoch;
  acquire();
  const auto later = naming({{"m1"}, {"m2"}});
  EXPECT_EQ(named(later->of(0)), 11u);
  EXPECT_EQ(later->of(0)->since(), since);
  ASSERT_TRUE(later->of(1)->name(24).ok());
  EXPECT_EQ(there()->since, since) << "it stays";
}

TEST_F(Naming, OtherNodesOrAnotherOrderGiveAllUpBeforeAnythingIsRead) {  // RM1
  const std::vector<Nodes> others = {
      {{"m2"}, {"m1"}}, {{"m1"}}, {{"m1"}, {"m2"}, {"m3"}}, {{"m1", "m2"}}, {{"m1"}, {"m3"}}};
  for (const Nodes& other : others) {
    const auto names = naming({{"m1"}, {"m2"}});
    ASSERT_TRUE(names->of(0)->name(11).ok());
    ASSERT_TRUE(names->of(1)->name(22).ok());
    acquire();
    const auto later = naming(other);
    const auto found = later->copies_of(0)->named();
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(*found, std::nullopt);
    EXPECT_EQ(there(), std::nullopt);
    acquire();
    ASSERT_TRUE(naming({{"m1"}, {"m2"}})->remove_all().ok());
  }
}

TEST_F(Naming, OfTwoCopiesTheUsedOneAndItsBackupAreNamed) {
  const Nodes nodes = {{"m1", "m2"}, {"m3", "m4"}};
  {
    const auto names = naming(nodes);
    ASSERT_TRUE(names->copies_of(0)->name({0, {11, 12}}).ok());
    ASSERT_TRUE(names->copies_of(1)->name({1, {0, 14}}).ok());
    EXPECT_EQ(there(), (MemoryPoolSet{{{"m1", 11, "m2", 12}, {"m4", 14, "m3", 0}}, Epoch{}}));
  }
  acquire();
  // Which of two is used may change; that they belong together does not.
  for (const Nodes& same : {nodes, Nodes{{"m2", "m1"}, {"m4", "m3"}}}) {
    const auto names = naming(same);
    const uint32_t first = same[0][0] == "m1" ? 0 : 1;
    const auto found = names->copies_of(0)->named();
    ASSERT_TRUE(found.ok() && found->has_value());
    EXPECT_EQ((*found)->used, first);
    EXPECT_EQ((*found)->incarnations[first], 11u);
    EXPECT_EQ((*found)->incarnations[1 - first], 12u);
    const auto other = names->copies_of(1)->named();
    ASSERT_TRUE(other.ok() && other->has_value());
    EXPECT_EQ((*other)->used, 1 - first);
    EXPECT_EQ((*other)->incarnations[1 - first], 14u);
    EXPECT_EQ((*other)->incarnations[first], 0u);
  }
  // The backup takes over.
  const auto names = naming(nodes);
  ASSERT_TRUE(names->copies_of(0)->name({1, {0, 12}}).ok());
  EXPECT_EQ(there()->pools[0], (cluster::MemoryPool{"m2", 12, "m1", 0}));
}

TEST_F(Naming, ALostAnswerIsFoundOut) {  // MPR3
  const auto names = naming({{"m1"}, {"m2"}});
  ASSERT_TRUE(names->of(1)->name(22).ok());
  registry_->fail_next(SimFault::kLostReply);
  ASSERT_TRUE(names->of(0)->name(11).ok());
  EXPECT_EQ(there()->pools[0].incarnation, 11u);
  registry_->fail_next(SimFault::kLostRequest);
  ASSERT_TRUE(names->of(0)->remove(PoolLoss::kNothing).ok());
  EXPECT_EQ(there()->pools[0].incarnation, 0u);
  // Nobody can be asked: what is known counts no more, and is read before the next change.
  registry_->fail_next(SimFault::kUnavailable);
  EXPECT_FALSE(names->of(1)->name(23).ok());
  ASSERT_TRUE(names->of(0)->name(12).ok());
  EXPECT_EQ(there(), (MemoryPoolSet{{{"m1", 12}, {"m2", 22}}, Epoch{}}));
  registry_->set_connected(false);
  EXPECT_FALSE(names->of(0)->remove(PoolLoss::kNothing).ok());
  EXPECT_FALSE(names->of(0)->named().ok());
  registry_->set_connected(true);
  EXPECT_EQ(named(names->of(0)), 12u);
}

TEST_F(Naming, WhoWasTakenOverChangesNothing) {  // MPR1
  const auto old = naming({{"m1"}});
  ASSERT_TRUE(old->of(0)->name(11).ok());
  acquire();
  EXPECT_TRUE(is_fenced(old->of(0)->name(12)));
  EXPECT_TRUE(is_fenced(old->of(0)->remove(PoolLoss::kUnknown)));
  EXPECT_TRUE(is_fenced(old->remove_all()));
  const auto names = naming({{"m1"}});
  EXPECT_EQ(named(names->of(0)), 11u);
  EXPECT_EQ(names->of(0)->since(), Epoch{});
}

TEST_F(Naming, OfANewDatabaseNothingThatWasThereCounts) {
  ASSERT_TRUE(naming({{"m1"}, {"m2"}})->of(1)->name(22).ok());
  acquire();
  ASSERT_TRUE(naming({{"m7"}})->remove_all().ok());
  EXPECT_EQ(there(), std::nullopt);
  EXPECT_TRUE(naming({{"m7"}})->remove_all().ok());
}

}  // namespace
}  // namespace strata::clients
