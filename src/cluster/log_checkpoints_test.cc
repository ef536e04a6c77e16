// Goal: only the last writer of a stream publishes its checkpoint, over what it has read (LC1), and
// what cannot be read is neither used nor replaced (LC2). Method: the simulated registry.
#include "cluster/log_checkpoints.h"

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

LogCheckpoint checkpoint_at(uint64_t lsn) {
  return {0xfedcba9876543210, "logdb-mv-sr", 3, 16384, NodeId{1}, Lsn{lsn}, ~uint64_t{0}, 7, true};
}

class Checkpoints : public ::testing::Test {
 protected:
  EpochGrant acquire(const std::string& holder) {
    auto lease = registry_->grant_lease(
        10, [](LeaseId) {}, deadline());
    EXPECT_TRUE(lease.ok()) << lease.status();
    leases_.push_back(*std::move(lease));
    EpochRequest request;
    request.stream = kStream;
    request.holder = holder;
    request.in_place_of = testing::held_by(&epochs_, kStream, deadline());
    const auto grant = epochs_.acquire(request, *leases_.back(), deadline());
    EXPECT_TRUE(grant.ok()) << grant.status();
    return grant.ok() ? *grant : EpochGrant{};
  }
  [[nodiscard]] uint64_t deadline() const { return registry_->now_us() + 1'000'000; }
  auto publish(const EpochGrant& grant, Version current, uint64_t lsn) {
    return checkpoints_.publish(kStream, grant.writer, current, checkpoint_at(lsn), deadline());
  }

  uint64_t now_us_ = 1'000'000;
  SimStore store_{[this] { return now_us_ += 10; }, 1};
  std::unique_ptr<SimRegistry> registry_ = store_.connect();
  const ClusterKeys keys_ = *ClusterKeys::of("test");
  StreamEpochs epochs_{registry_.get(), keys_};
  LogCheckpoints checkpoints_{registry_.get(), keys_};
  std::vector<std::unique_ptr<Lease>> leases_;
};

TEST_F(Checkpoints, ComeBackAsTheyWerePublished) {
  const auto none = checkpoints_.read(kStream, deadline());
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(none->has_value());
  const EpochGrant grant = acquire("a");
  const auto first = publish(grant, Version{}, 4096);
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = publish(grant, *first, ~uint64_t{0} - 5);
  ASSERT_TRUE(second.ok()) << second.status();
  const auto read = checkpoints_.read(kStream, deadline());
  ASSERT_TRUE(read.ok() && read->has_value());
  EXPECT_EQ((*read)->checkpoint, checkpoint_at(~uint64_t{0} - 5));
  EXPECT_EQ((*read)->version, *second);
}

TEST_F(Checkpoints, AWriterThatWasTakenOverPublishesNothing) {  // LC1
  const EpochGrant old_writer = acquire("a");
  const auto first = publish(old_writer, Version{}, 4096);
  ASSERT_TRUE(first.ok());
  const EpochGrant writer = acquire("b");
  EXPECT_TRUE(is_conflict(publish(old_writer, *first, 9000).status()));
  EXPECT_TRUE(is_conflict(publish(writer, Version{}, 9000).status())) << "over one it has not read";
  EXPECT_TRUE(publish(writer, *first, 8000).ok());
  EXPECT_EQ((*checkpoints_.read(kStream, deadline()))->checkpoint.lsn, Lsn{8000});
}

TEST_F(Checkpoints, WhatBecameOfALostRequestIsFoundOut) {
  const EpochGrant grant = acquire("a");
  registry_->fail_next(SimFault::kLostReply);
  const auto first = publish(grant, Version{}, 4096);
  ASSERT_TRUE(first.ok()) << first.status();
  registry_->fail_next(SimFault::kLostRequest);
  const auto second = publish(grant, *first, 5000);
  ASSERT_TRUE(second.ok()) << second.status();
  registry_->fail_next(SimFault::kUnavailable);
  EXPECT_EQ(publish(grant, *second, 6000).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ((*checkpoints_.read(kStream, deadline()))->checkpoint.lsn, Lsn{5000});
}

TEST_F(Checkpoints, WhatCannotBeReadStays) {  // LC2
  const EpochGrant grant = acquire("a");
  for (const char* value :
       {"", "{}", "{\"format\":2}",
        "{\"format\":1,\"database_id\":\"0000000000000001\",\"profile\":\"x\"}"}) {
    const auto found = registry_->get(keys_.control(kStream), deadline());
    ASSERT_TRUE(found.ok());
    const Version version = found->has_value() ? (*found)->version : Version{};
    ASSERT_TRUE(
        registry_->change(Change::replace(keys_.control(kStream), version, value), deadline())
            .ok());
    const Status read = checkpoints_.read(kStream, deadline()).status();
    EXPECT_TRUE(is_corruption(read)) << value;
    EXPECT_NE(read.message().find("control"), absl::string_view::npos) << read;
    EXPECT_FALSE(publish(grant, Version{}, 4096).ok());
    EXPECT_EQ((**registry_->get(keys_.control(kStream), deadline())).value, value);
  }
}

TEST_F(Checkpoints, RefusedBeforeAnythingIsSent) {
  const EpochGrant grant = acquire("a");
  LogCheckpoint bad = checkpoint_at(1);
  bad.database_id = 0;
  EXPECT_TRUE(is_invalid_argument(
      checkpoints_.publish(kStream, grant.writer, {}, bad, deadline()).status()));
  bad = checkpoint_at(1);
  bad.profile = "no name!";
  EXPECT_TRUE(is_invalid_argument(
      checkpoints_.publish(kStream, grant.writer, {}, bad, deadline()).status()));
}

}  // namespace
}  // namespace strata::cluster
