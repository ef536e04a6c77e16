// Addresses by name, on the simulated registry: its handlers run in run_due(), in this thread or
// in one that stands for the registry's.
#include "cluster/node_addresses.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "registry/sim/sim.h"

namespace strata::cluster {

using registry::SimRegistry;
using registry::SimStore;
namespace {

class NodeAddressesTest : public ::testing::Test {
 protected:
  std::unique_ptr<Lease> join(const std::string& name, const std::string& address) {
    auto lease = client_->grant_lease(
        kSeconds, [](LeaseId) {}, deadline());
    EXPECT_TRUE(lease.ok()) << lease.status();
    Member member;
    member.name = name;
    member.identity = 1;
    member.address = address;
    const auto joined = Membership(client_.get(), keys_).join(member, **lease, deadline());
    EXPECT_TRUE(joined.ok()) << joined.status();
    return *std::move(lease);
  }
  uint64_t deadline() { return now_us_ + 1'000'000; }

  static constexpr uint32_t kSeconds = 10;
  std::atomic<uint64_t> now_us_{1};
  SimStore store_{[this] { return now_us_.load(); }, 1};
  std::unique_ptr<SimRegistry> client_ = store_.connect();
  ClusterKeys keys_ = *ClusterKeys::of("main");
};

TEST_F(NodeAddressesTest, KnowsWhoIsThereAndWhoComes) {
  const auto a = join("a", "127.0.0.1:1");
  const NodeAddresses addresses(client_.get(), keys_);
  EXPECT_EQ(addresses.address_of("a"), "");
  store_.run_due();
  EXPECT_EQ(addresses.address_of("a"), "127.0.0.1:1");
  EXPECT_EQ(addresses.address_of("b"), "");
  const auto b = join("b", "127.0.0.1:2");
  store_.run_due();
  EXPECT_EQ(addresses.address_of("b"), "127.0.0.1:2");
}

TEST_F(NodeAddressesTest, KeepsTheAddressOfAMemberThatLeft) {
  const NodeAddresses addresses(client_.get(), keys_);
  auto a = join("a", "127.0.0.1:1");
  store_.run_due();
  EXPECT_TRUE(a->revoke(deadline()).ok());
  store_.run_due();
  EXPECT_EQ(addresses.address_of("a"), "127.0.0.1:1");  // NA1
  a = join("a", "127.0.0.1:9");
  store_.run_due();
  EXPECT_EQ(addresses.address_of("a"), "127.0.0.1:9");
}

TEST_F(NodeAddressesTest, WaitsUntilEnoughAreKnown) {
  const NodeAddresses addresses(client_.get(), keys_);
  EXPECT_TRUE(addresses.wait_for({"a", "b"}, 0, now_us_));
  EXPECT_FALSE(addresses.wait_for({"a", "b"}, 1, now_us_));  // the deadline is now
  std::thread registry([this] {
    const auto c = join("c", "127.0.0.1:3");
    store_.run_due();
    const auto a = join("a", "127.0.0.1:1");
    store_.run_due();
    const auto b = join("b", "127.0.0.1:2");
    store_.run_due();
  });
  EXPECT_TRUE(addresses.wait_for({"a", "b", "a"}, 2, UINT64_MAX));
  registry.join();
  EXPECT_EQ(addresses.address_of("a"), "127.0.0.1:1");
  EXPECT_EQ(addresses.address_of("b"), "127.0.0.1:2");
  EXPECT_FALSE(addresses.wait_for({"a", "b", "d"}, 3, now_us_));
}

}  // namespace
}  // namespace strata::cluster
