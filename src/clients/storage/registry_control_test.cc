// Goal: what registry_control.h promises (RL1, RL2), above all about calls that fail while the
// process lives on: what failed is tried again and then counts, what comes late does not, and only
// a later holder of the stream ends it. Method: the simulated registry, one fault at a time and
// many at once (STRATA_SEED). Outages of the registry around the length of a lease are in
// writer_records_test.
#include "clients/storage/registry_control.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include "base/rng.h"
#include "registry/sim/sim.h"

namespace strata::clients {
namespace {

using cluster::EpochGrant;
using registry::Change;
using registry::LeaseId;
using registry::SimFault;

constexpr StreamId kStream{1};
constexpr uint64_t kSecondUs = 1'000'000;
constexpr uint64_t kCallUs = 100'000;

bool same(const ControlData& a, const ControlData& b) {
  return a.database_id == b.database_id && a.data_format == b.data_format &&
         a.page_bytes == b.page_bytes && a.profile == b.profile && a.node == b.node &&
         a.checkpoint_lsn == b.checkpoint_lsn && a.llsn_bias == b.llsn_bias &&
         a.checkpoint_count == b.checkpoint_count && a.clean_shutdown == b.clean_shutdown;
}

class RegistryControlTest : public ::testing::Test {
 protected:
  explicit RegistryControlTest(uint64_t seed = 1)
      : store_([this] { return now_us_ += 10; }, seed),
        registry_(store_.connect()),
        other_(store_.connect()) {
    grant_ = acquire("a", registry_.get());
    control_ = open();
    data_.database_id = 7;
    data_.data_format = 3;
    data_.profile = "shared-log";
    data_.node = NodeId{2};
    data_.llsn_bias = 11;
  }
  EpochGrant acquire(const std::string& holder, registry::Registry* from) {
    auto lease = from->grant_lease(
        3600, [](LeaseId) {}, now_us_ + kSecondUs);
    EXPECT_TRUE(lease.ok()) << lease.status();
    leases_.push_back(*std::move(lease));
    cluster::StreamEpochs epochs(from, keys_);
    const auto grant =
        epochs.acquire({kStream, holder, Epoch{}, {}}, *leases_.back(), now_us_ + kSecondUs);
    EXPECT_TRUE(grant.ok()) << grant.status();
    return grant.ok() ? *grant : EpochGrant{};
  }
  std::unique_ptr<RegistryControl> open() {
    auto control = RegistryControl::open(other_.get(), keys_, grant_, kCallUs);
    EXPECT_TRUE(control.ok()) << control.status();
    control = RegistryControl::open(registry_.get(), keys_, grant_, kCallUs);
    EXPECT_TRUE(control.ok()) << control.status();
    return control.ok() ? *std::move(control) : nullptr;
  }
  // As if it had run out.
  void end_lease() {
    ASSERT_TRUE(leases_.back()->revoke(now_us_ + kSecondUs).ok());
    leases_.clear();
  }
  void pass(uint64_t us) {
    for (const uint64_t until = now_us_ + us; now_us_ < until; now_us_ += 1000) store_.run_due();
  }
  Status publish() {
    data_.checkpoint_lsn.value += 4096;
    ++data_.checkpoint_count;
    return control_->publish(data_);
  }
  // What whoever opens it next finds.
  ControlData found() {
    const auto control = RegistryControl::open(other_.get(), keys_, grant_, kCallUs);
    EXPECT_TRUE(control.ok()) << control.status();
    return control.ok() ? (*control)->data() : ControlData{};
  }
  void put(const std::string& key, const std::string& value) {
    const registry::Version now = store_.contents().at(key).version;
    const auto changed = other_->change(Change::replace(key, now, value), now_us_ + kSecondUs);
    ASSERT_TRUE(changed.ok()) << changed.status();
  }

  uint64_t now_us_ = kSecondUs;
  registry::SimStore store_;
  std::unique_ptr<registry::SimRegistry> registry_, other_;
  const cluster::ClusterKeys keys_ = *cluster::ClusterKeys::of("test");
  std::vector<std::unique_ptr<registry::Lease>> leases_;
  EpochGrant grant_;
  std::unique_ptr<RegistryControl> control_;
  ControlData data_;
};

TEST_F(RegistryControlTest, WhatWasPublishedIsFound) {
  EXPECT_FALSE(control_->founded());
  ASSERT_TRUE(publish().ok());
  EXPECT_TRUE(control_->founded());
  EXPECT_TRUE(same(control_->data(), data_));
  EXPECT_TRUE(same(found(), data_));
  data_.clean_shutdown = true;
  ASSERT_TRUE(publish().ok());
  EXPECT_TRUE(same(found(), data_));
  control_ = open();
  data_.clean_shutdown = false;
  ASSERT_TRUE(publish().ok()) << "whoever opens it goes on from there";
  EXPECT_TRUE(same(found(), data_));
}

// Each way in which a call may fail, at each of the first requests of a publication.
TEST_F(RegistryControlTest, ACallThatFailedIsTriedAgain) {  // RL2
  ASSERT_TRUE(publish().ok());
  const ControlData first = data_;
  for (const SimFault fault :
       {SimFault::kUnavailable, SimFault::kLostRequest, SimFault::kLostReply, SimFault::kDelayed})
    for (uint32_t skip = 0; skip < 3; ++skip) {
      SCOPED_TRACE(::testing::Message() << "fault " << static_cast<int>(fault) << " at " << skip);
      const ControlData before = control_->data();
      registry_->fail_next(fault, skip);
      const Status status = publish();
      EXPECT_FALSE(ends_right(status)) << status;
      EXPECT_TRUE(same(control_->data(), status.ok() ? data_ : before));
      registry_->fail_next(SimFault::kNone);
      ASSERT_TRUE(publish().ok());
      EXPECT_TRUE(same(control_->data(), data_));
      pass(2 * kSecondUs);
      EXPECT_TRUE(same(found(), data_)) << "what comes late is void";
    }
  EXPECT_GT(data_.checkpoint_count, first.checkpoint_count + 12);
}

// The stream is still this node's, the condition is not met all the same: somebody's hand, or an
// own change that arrived late. That is no reason to end.
TEST_F(RegistryControlTest, AnotherRecordThanExpectedIsNotTheEnd) {  // RL1, RL2
  ASSERT_TRUE(publish().ok());
  const auto contents = store_.contents();
  const std::string key = keys_.control(kStream);
  ASSERT_EQ(contents.count(key), 1u);
  put(key, contents.at(key).value);  // the same bytes, of another version
  const Status refused = publish();
  EXPECT_TRUE(may_pass(refused)) << refused;
  EXPECT_FALSE(is_fenced(refused));
  EXPECT_TRUE(publish().ok());
  EXPECT_TRUE(same(found(), data_));
}

TEST_F(RegistryControlTest, ALaterHolderIsTheEnd) {  // RL1
  ASSERT_TRUE(publish().ok());
  const ControlData last = data_;
  end_lease();
  ASSERT_GT(acquire("b", other_.get()).epoch, grant_.epoch);
  for (int tries = 0; tries < 3; ++tries) EXPECT_TRUE(is_fenced(publish()));
  EXPECT_TRUE(same(found(), last));
  EXPECT_TRUE(same(control_->data(), last));
  // Also when the first refusal cannot be looked into.
  auto again = RegistryControl::open(registry_.get(), keys_, grant_, kCallUs);
  ASSERT_TRUE(again.ok());
  registry_->fail_next(SimFault::kUnavailable, 1);
  const Status unsure = (*again)->publish(data_);
  EXPECT_FALSE(unsure.ok());
  EXPECT_TRUE(is_fenced((*again)->publish(data_)));
  EXPECT_TRUE(same(found(), last));
}

TEST_F(RegistryControlTest, WithoutALeaseItIsRefusedForTheTimeBeing) {  // RL1
  ASSERT_TRUE(publish().ok());
  const ControlData last = data_;
  end_lease();
  EXPECT_TRUE(is_lease_lost(publish()));
  EXPECT_TRUE(same(found(), last));
  auto lease = registry_->grant_lease(
      3600, [](LeaseId) {}, now_us_ + kSecondUs);
  ASSERT_TRUE(lease.ok());
  const auto renewed =
      cluster::StreamEpochs(registry_.get(), keys_).renew(grant_, **lease, now_us_ + kSecondUs);
  ASSERT_TRUE(renewed.ok()) << renewed.status();
  leases_.push_back(*std::move(lease));
  control_->set_writer(renewed->writer);
  EXPECT_TRUE(publish().ok());
  EXPECT_TRUE(same(found(), data_));
}

TEST_F(RegistryControlTest, WhatNobodyCouldReadIsNotPublished) {
  ASSERT_TRUE(publish().ok());
  const ControlData last = data_;
  const ControlData good = data_;
  data_.profile = "not a name/";
  EXPECT_TRUE(is_invalid_argument(publish()));
  data_ = good;
  data_.database_id = 0;
  EXPECT_TRUE(is_invalid_argument(publish()));
  EXPECT_TRUE(same(found(), last));
  data_ = good;
  EXPECT_TRUE(publish().ok());
  EXPECT_TRUE(same(found(), data_));
}

TEST_F(RegistryControlTest, ADamagedRecordIsNeitherUsedNorReplaced) {  // LC2
  ASSERT_TRUE(publish().ok());
  const std::string key = keys_.control(kStream);
  const std::string good = store_.contents().at(key).value;
  put(key, "?");
  EXPECT_TRUE(
      is_corruption(RegistryControl::open(registry_.get(), keys_, grant_, kCallUs).status()));
  EXPECT_FALSE(publish().ok());  // it expects the version before
  for (int tries = 0; tries < 2; ++tries) EXPECT_TRUE(is_corruption(publish()));
  EXPECT_EQ(store_.contents().at(key).value, "?");
  put(key, good);
  EXPECT_TRUE(publish().ok()) << "a person's hand mended it";
}

// What is found is always something that was tried, never older than the last that was OK, and
// after an OK exactly that.
TEST_F(RegistryControlTest, ThroughManyFaultsTheLastOneCounts) {  // RL2
  const char* const text = std::getenv("STRATA_SEED");
  const uint64_t first = text == nullptr ? 1 : std::strtoull(text, nullptr, 10);
  for (uint64_t seed = first; seed < first + 20; ++seed) {
    SCOPED_TRACE(::testing::Message() << "STRATA_SEED=" << seed);
    Rng rng(seed);
    uint64_t confirmed = data_.checkpoint_count, refused = 0;
    for (int i = 0; i < 60; ++i) {
      if (rng.one_in(4))
        registry_->set_faults({.unavailable = static_cast<uint32_t>(rng.below(300)),
                               .lost_request = static_cast<uint32_t>(rng.below(300)),
                               .lost_reply = static_cast<uint32_t>(rng.below(300)),
                               .delayed = static_cast<uint32_t>(rng.below(300)),
                               .delay_us_max = 3 * kSecondUs});
      const Status status = publish();
      ASSERT_FALSE(ends_right(status)) << status;
      if (status.ok()) confirmed = data_.checkpoint_count;
      refused += status.ok() ? 0 : 1;
      if (rng.one_in(3)) pass(rng.below(kSecondUs));
      const uint64_t there = found().checkpoint_count;
      ASSERT_GE(there, confirmed);
      ASSERT_LE(there, data_.checkpoint_count);
    }
    registry_->set_faults({});
    ASSERT_TRUE(publish().ok());
    pass(4 * kSecondUs);
    EXPECT_TRUE(same(found(), data_));
    EXPECT_GT(refused, 0u);
  }
}

}  // namespace
}  // namespace strata::clients
