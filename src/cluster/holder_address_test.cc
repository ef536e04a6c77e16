// Goal: whoever asks for a stream's holder gets the address of the last one that was given an epoch
// (NA2), whatever comes first, and what cannot be read changes nothing. Method: the simulated
// registry, whose handlers run in run_due().
#include "cluster/holder_address.h"

#include <gtest/gtest.h>

#include "registry/sim/sim.h"

namespace strata::cluster {

using registry::SimRegistry;
using registry::SimStore;
namespace {

constexpr StreamId kStream{250};

class HolderAddressTest : public ::testing::Test {
 protected:
  std::unique_ptr<Lease> join(const std::string& name, const std::string& address) {
    auto lease = client_->grant_lease(
        10, [](LeaseId) {}, deadline());
    EXPECT_TRUE(lease.ok()) << lease.status();
    Member member;
    member.name = name;
    member.identity = 1;
    member.address = address;
    EXPECT_TRUE(Membership(client_.get(), keys_).join(member, **lease, deadline()).ok());
    return *std::move(lease);
  }
  Epoch acquire(const std::string& name, const Lease& lease) {
    StreamEpochs epochs(client_.get(), keys_);
    const auto before = epochs.current(kStream, deadline());
    EXPECT_TRUE(before.ok()) << before.status();
    EpochRequest request{kStream, name, Epoch{}, {}};
    if (before->has_value()) request.in_place_of = (*before)->writer;
    const auto grant = epochs.acquire(request, lease, deadline());
    EXPECT_TRUE(grant.ok()) << grant.status();
    return grant.ok() ? grant->epoch : Epoch{};
  }
  uint64_t deadline() { return now_us_ + 1'000'000; }

  uint64_t now_us_ = 1;
  SimStore store_{[this] { return now_us_; }, 1};
  std::unique_ptr<SimRegistry> client_ = store_.connect();
  ClusterKeys keys_ = *ClusterKeys::of("main");
};

TEST_F(HolderAddressTest, IsThatOfWhoeverWasGivenTheLastEpoch) {
  const auto a = join("m1", "127.0.0.1:1");
  const HolderAddress address(client_.get(), keys_, kStream);
  store_.run_due();
  EXPECT_EQ(address.now(), "") << "nobody has it";
  const Epoch first = acquire("m1", *a);
  store_.run_due();
  EXPECT_EQ(address.now(), "127.0.0.1:1");
  EXPECT_EQ(address.epoch(), first);
  // Its successor has the epoch before it is seen as a member.
  auto lease = client_->grant_lease(
      10, [](LeaseId) {}, deadline());
  ASSERT_TRUE(lease.ok());
  const Epoch second = acquire("m2", **lease);
  store_.run_due();
  EXPECT_GT(second, first);
  EXPECT_EQ(address.now(), "");
  const auto b = join("m2", "127.0.0.1:2");
  store_.run_due();
  EXPECT_EQ(address.now(), "127.0.0.1:2");
  EXPECT_EQ(address.epoch(), second);
}

TEST_F(HolderAddressTest, FollowsAHolderThatComesBackElsewhere) {
  auto a = join("m1", "127.0.0.1:1");
  acquire("m1", *a);
  const HolderAddress address(client_.get(), keys_, kStream);
  store_.run_due();
  EXPECT_EQ(address.now(), "127.0.0.1:1");
  EXPECT_TRUE(a->revoke(deadline()).ok());
  store_.run_due();
  EXPECT_EQ(address.now(), "127.0.0.1:1") << "it may still be there (NA1)";
  a = join("m1", "127.0.0.1:9");
  store_.run_due();
  EXPECT_EQ(address.now(), "127.0.0.1:9");
}

}  // namespace
}  // namespace strata::cluster
