// Goal: what the stream's writer keeps in the registry (its control data, the list of storage nodes
// in sync) outlives an outage of the registry of any length: a change that is refused because the
// lease is gone may be tried again, and only a larger epoch ends it (SE5, RL1, RL2, IY1). Method:
// the simulated registry and its clock; outages around the length of the lease, with every moment
// at which the new lease may come; lost and late outcomes.
#include <gtest/gtest.h>

#include "clients/storage/in_sync_set.h"
#include "clients/storage/registry_control.h"
#include "registry/sim/sim.h"

namespace strata::clients {
namespace {

using cluster::EpochGrant;
using cluster::InSyncNode;
using registry::LeaseId;

constexpr StreamId kStream{1};
constexpr uint32_t kLeaseS = 10;
constexpr uint64_t kSecondUs = 1'000'000;
constexpr uint64_t kCallUs = 100'000;

class WriterRecords : public ::testing::Test {
 protected:
  WriterRecords() {
    grant_ = acquire("a", epochs_, registry_.get());
    auto set = InSyncSet::open(registry_.get(), keys_, grant_, kCallUs);
    auto control = RegistryControl::open(registry_.get(), keys_, grant_, kCallUs);
    EXPECT_TRUE(set.ok() && control.ok());
    set_ = *std::move(set);
    control_ = *std::move(control);
    data_.database_id = 7;
    data_.profile = "remote-disk";
    data_.page_bytes = 16384;
    data_.data_format = 1;
  }
  EpochGrant acquire(const std::string& holder, cluster::StreamEpochs& epochs,
                     registry::Registry* registry) {
    auto lease = registry->grant_lease(
        kLeaseS, [](LeaseId) {}, now_us_ + kSecondUs);
    EXPECT_TRUE(lease.ok()) << lease.status();
    leases_.push_back(*std::move(lease));
    const auto grant =
        epochs.acquire({kStream, holder, Epoch{}, {}}, *leases_.back(), now_us_ + kSecondUs);
    EXPECT_TRUE(grant.ok()) << grant.status();
    return grant.ok() ? *grant : EpochGrant{};
  }
  // As the thread that keeps a compute node's lease does it.
  void new_lease() {
    auto lease = registry_->grant_lease(
        kLeaseS, [](LeaseId) {}, now_us_ + kSecondUs);
    ASSERT_TRUE(lease.ok()) << lease.status();
    leases_.push_back(*std::move(lease));
    const auto renewed = epochs_.renew(grant_, *leases_.back(), now_us_ + kSecondUs);
    ASSERT_TRUE(renewed.ok()) << renewed.status();
    set_->set_writer(renewed->writer);
    control_->set_writer(renewed->writer);
  }
  void pass(uint64_t us) {
    for (const uint64_t until = now_us_ + us; now_us_ < until; now_us_ += 1000) store_.run_due();
  }
  Status publish_nodes(uint64_t store) {
    const std::vector<InSyncNode> nodes = {{"s1", store}, {"s2", store}};
    return set_->publish(nodes);
  }
  Status publish_control() {
    data_.checkpoint_lsn.value += 4096;
    ++data_.checkpoint_count;
    return control_->publish(data_);
  }
  Lsn published() {
    const auto found =
        cluster::LogCheckpoints(registry_.get(), keys_).read(kStream, now_us_ + kSecondUs);
    EXPECT_TRUE(found.ok() && found->has_value()) << found.status();
    return found.ok() && found->has_value() ? (*found)->checkpoint.lsn : Lsn{};
  }

  uint64_t now_us_ = kSecondUs;
  registry::SimStore store_{[this] { return now_us_ += 10; }, 1};
  std::unique_ptr<registry::SimRegistry> registry_ = store_.connect();
  std::unique_ptr<registry::SimRegistry> other_ = store_.connect();
  const cluster::ClusterKeys keys_ = *cluster::ClusterKeys::of("test");
  cluster::StreamEpochs epochs_{registry_.get(), keys_};
  std::vector<std::unique_ptr<registry::Lease>> leases_;
  EpochGrant grant_;
  std::unique_ptr<InSyncSet> set_;
  std::unique_ptr<RegistryControl> control_;
  ControlData data_;
};

class Outage : public WriterRecords, public ::testing::WithParamInterface<uint64_t> {};

TEST_P(Outage, IsOverWhenThereIsALease) {
  ASSERT_TRUE(publish_nodes(1).ok());
  ASSERT_TRUE(publish_control().ok());
  registry_->set_connected(false);
  for (uint64_t passed_us = 0; passed_us < GetParam(); passed_us += kSecondUs / 4) {
    pass(std::min(kSecondUs / 4, GetParam() - passed_us));
    const Status nodes = publish_nodes(2), control = publish_control();
    ASSERT_FALSE(nodes.ok() || control.ok());
    ASSERT_FALSE(is_fenced(nodes) || is_fenced(control)) << nodes << control;
  }
  registry_->set_connected(true);
  // The registry is there again, a new lease perhaps not yet.
  const bool lost = !leases_.back()->valid();
  const Status nodes = publish_nodes(3), control = publish_control();
  EXPECT_TRUE(nodes.ok() || is_lease_lost(nodes)) << nodes;
  EXPECT_TRUE(control.ok() || is_lease_lost(control)) << control;
  if (lost) {
    ASSERT_NO_FATAL_FAILURE(new_lease());
  }
  EXPECT_TRUE(publish_nodes(4).ok());
  EXPECT_TRUE(publish_control().ok());
  EXPECT_EQ(set_->nodes().front().store, 4u);
  EXPECT_EQ(published(), data_.checkpoint_lsn);
}

TEST_P(Outage, IsTheEndWhenAnotherCameMeanwhile) {
  ASSERT_TRUE(publish_nodes(1).ok());
  ASSERT_TRUE(publish_control().ok());
  const Lsn before = published();
  registry_->set_connected(false);
  pass(2 * kLeaseS * kSecondUs + GetParam());
  cluster::StreamEpochs others(other_.get(), keys_);
  ASSERT_GT(acquire("b", others, other_.get()).epoch, grant_.epoch);
  registry_->set_connected(true);
  EXPECT_TRUE(is_fenced(publish_nodes(2)));
  EXPECT_TRUE(is_fenced(publish_control()));
  EXPECT_EQ(published(), before);
}

INSTANTIATE_TEST_SUITE_P(AroundTheLease, Outage,
                         ::testing::Values(kSecondUs, kLeaseS* kSecondUs - 400'000,
                                           kLeaseS* kSecondUs, kLeaseS* kSecondUs + 400'000,
                                           3 * kLeaseS * kSecondUs, 6 * kLeaseS * kSecondUs));

// The key is another one from the moment the new lease holds it.
TEST_F(WriterRecords, AChangeThatMeetsTheNewLeaseIsTriedAgain) {
  ASSERT_TRUE(publish_control().ok());
  const registry::Version before = control_->writer();
  new_lease();
  const registry::Version now = control_->writer();
  control_->set_writer(before);  // as a thread that has read it a moment ago
  set_->set_writer(before);
  EXPECT_TRUE(is_lease_lost(publish_control()));
  EXPECT_TRUE(is_lease_lost(publish_nodes(1)));
  control_->set_writer(now);
  set_->set_writer(now);
  EXPECT_TRUE(publish_control().ok());
  EXPECT_TRUE(publish_nodes(1).ok());
}

TEST_F(WriterRecords, ALostOutcomeIsMadeVoid) {  // RL2
  ASSERT_TRUE(publish_control().ok());
  ASSERT_TRUE(publish_nodes(1).ok());
  for (uint64_t round = 2; round < 6; ++round) {
    // They are done, or refused, only when nobody waits for them any more.
    registry_->set_faults({.delayed = 1000, .delay_us_max = kSecondUs});
    EXPECT_FALSE(publish_control().ok());
    EXPECT_FALSE(publish_nodes(10 * round).ok());
    registry_->set_faults({});
    if (round % 2 == 0) pass(2 * kSecondUs);
    const Status control = publish_control(), nodes = publish_nodes(round);
    EXPECT_TRUE(control.ok()) << control;
    EXPECT_TRUE(nodes.ok()) << nodes;
    pass(2 * kSecondUs);
    EXPECT_EQ(published(), data_.checkpoint_lsn);
    EXPECT_EQ(set_->nodes().front().store, round);
  }
}

}  // namespace
}  // namespace strata::clients
