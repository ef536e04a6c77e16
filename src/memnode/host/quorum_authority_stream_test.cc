// Goal: what quorum_authority_stream.h promises (AQ1-AQ4): what was told to be durable is found by
// whoever comes next, and whoever was before is told; storage nodes that are silent, fail or lose
// bytes make it wait or say so, never forget. Method: storage nodes in memory that do what the test
// says (clients/storage/testing/fake_log_node.h), over sockets.
#include "memnode/host/quorum_authority_stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/clock.h"
#include "base/diag.h"
#include "base/testing/wait_until.h"
#include "clients/storage/testing/fake_log_node.h"
#include "cluster/keys.h"
#include "memnode/host/record_frames.h"
#include "transport/calls/testing/io_node.h"

namespace strata::memnode {
namespace {

using clients::testing::FakeLogNode;
using strata::testing::wait_until;
using transport::test::secret_of;

constexpr Lsn kFirst{4096};

fusion::AuthorityRecord record_of(uint64_t epoch, uint64_t ceiling) {
  fusion::AuthorityRecord record;
  record.epoch = Epoch{epoch};
  record.ceiling = ceiling;
  record.members.push_back({NodeId{1}, 77, 0});
  return record;
}

// What became of an append. Whoever tells it may still be about to return when it is gone.
class Outcome {
 public:
  AuthorityStream::Done done() {
    return [told = told_](const Status& status) {
      const MutexLock lock(told->mutex);
      EXPECT_FALSE(told->status.has_value()) << "told twice";
      told->status = status;
    };
  }
  [[nodiscard]] std::optional<Status> status() const {
    const MutexLock lock(told_->mutex);
    return told_->status;
  }
  Status wait() {
    EXPECT_TRUE(wait_until([this] { return status().has_value(); }));
    return status().value_or(error_internal("never told"));
  }

 private:
  struct Told {
    Mutex mutex{LatchRank::kLeaf};
    std::optional<Status> status STRATA_GUARDED_BY(mutex);
  };
  const std::shared_ptr<Told> told_ = std::make_shared<Told>();
};

class QuorumAuthorityStreamTest : public ::testing::Test {
 protected:
  QuorumAuthorityStreamTest() {
    set_diag_sink([](Severity, std::string_view) {});
    for (int i = 0; i < 3; ++i) {
      const std::string address = "unix:" + (folder_ / std::to_string(i));
      nodes_.push_back(std::make_unique<FakeLogNode>(io_.world(), address));
      addresses_.push_back(address);
    }
  }
  ~QuorumAuthorityStreamTest() override { set_diag_sink(nullptr); }

  AuthorityStreamOptions options(uint64_t epoch, bool founding) const {
    AuthorityStreamOptions options;
    options.log.client.stream = cluster::kAuthorityStream;
    options.log.client.addresses = {addresses_.begin(), addresses_.end()};
    options.log.client.keys = addresses_;
    options.log.client.call_timeout_us = 100'000;
    options.log.client.tick_us = 10'000;
    options.log.holder = {Epoch{epoch}, epoch};
    options.log.founding = founding;
    options.log.first_lsn = kFirst;
    options.log.take_over_timeout_us = 10'000'000;
    options.now_us = monotonic_us;
    options.trim_bytes = 1u << 20;
    return options;
  }
  StatusOr<std::unique_ptr<QuorumAuthorityStream>> try_open(AuthorityStreamOptions options) {
    return QuorumAuthorityStream::open(io_.world(), secret_of('s'), std::move(options));
  }
  std::unique_ptr<QuorumAuthorityStream> open(AuthorityStreamOptions options) {
    auto stream = try_open(std::move(options));
    EXPECT_TRUE(stream.ok()) << stream.status();
    if (!stream.ok()) return nullptr;
    const Status begun = (*stream)->begin();
    EXPECT_TRUE(begun.ok()) << begun;
    return *std::move(stream);
  }
  static Status append(QuorumAuthorityStream* stream, const fusion::AuthorityRecord& record) {
    Outcome outcome;
    stream->append(fusion::encode(record), outcome.done());
    return outcome.wait();
  }
  void set_mute(bool mute) {
    for (const auto& node : nodes_) node->set_mute(mute);
  }

  transport::test::Folder folder_;
  transport::test::IoNode io_;
  std::vector<std::string> addresses_;
  std::vector<std::unique_ptr<FakeLogNode>> nodes_;
};

TEST_F(QuorumAuthorityStreamTest, WhoComesNextFindsTheLastRecord) {  // AQ2
  auto first = open(options(1, true));
  ASSERT_NE(first, nullptr);
  EXPECT_FALSE(first->last().has_value());
  for (uint64_t i = 1; i <= 20; ++i) ASSERT_TRUE(append(first.get(), record_of(1, i)).ok());
  const uint64_t before_us = monotonic_us();
  const auto second = open(options(2, false));
  ASSERT_NE(second, nullptr);
  ASSERT_TRUE(second->last().has_value());
  EXPECT_EQ(*second->last(), record_of(1, 20));
  EXPECT_GE(second->sealed_us(), before_us);
  // AQ1
  EXPECT_TRUE(is_fenced(append(first.get(), record_of(1, 21))));
  EXPECT_TRUE(is_fenced(append(first.get(), record_of(1, 22)))) << "and it stays so";
  EXPECT_TRUE(is_fenced(first->state()));
  ASSERT_TRUE(append(second.get(), record_of(2, 30)).ok());
  first.reset();
  const auto third = open(options(3, false));
  ASSERT_NE(third, nullptr);
  EXPECT_EQ(third->last(), record_of(2, 30));
}

TEST_F(QuorumAuthorityStreamTest, AnEpochThatWroteNothingLeavesWhatThereWas) {
  ASSERT_TRUE(append(open(options(1, true)).get(), record_of(1, 5)).ok());
  for (uint64_t epoch = 2; epoch < 6; ++epoch) {
    const auto stream = open(options(epoch, false));
    ASSERT_NE(stream, nullptr);
    EXPECT_EQ(stream->last(), record_of(1, 5));
  }
}

TEST_F(QuorumAuthorityStreamTest, AWriteQuorumIsEnough) {
  const auto stream = open(options(1, true));
  nodes_[2]->set_mute(true);
  for (uint64_t i = 1; i <= 5; ++i) ASSERT_TRUE(append(stream.get(), record_of(1, i)).ok());
}

TEST_F(QuorumAuthorityStreamTest, ANodeWhoseDiskFailsKeepsNobodyWaiting) {
  const auto stream = open(options(1, true));
  nodes_[0]->set_error(error_io_error("the disk of a test"));
  for (uint64_t i = 1; i <= 5; ++i) ASSERT_TRUE(append(stream.get(), record_of(1, i)).ok());
  EXPECT_EQ(open(options(2, false))->last(), record_of(1, 5));
}

TEST_F(QuorumAuthorityStreamTest, SilentStorageIsWaitedFor) {  // AQ3
  const auto stream = open(options(1, true));
  ASSERT_TRUE(append(stream.get(), record_of(1, 1)).ok());
  set_mute(true);
  const Lsn end = stream->end();
  Outcome late;
  stream->append(fusion::encode(record_of(1, 2)), late.done());  // returns at once
  EXPECT_TRUE(wait_until([&] { return stream->end() != end; }));
  EXPECT_FALSE(late.status().has_value());
  set_mute(false);
  EXPECT_TRUE(late.wait().ok());
  ASSERT_TRUE(append(stream.get(), record_of(1, 3)).ok());
}

TEST_F(QuorumAuthorityStreamTest, NobodyKnowsWhatBecameOfARecordThatAStopFinds) {  // AQ3
  const auto stream = open(options(1, true));
  set_mute(true);
  Outcome late;
  stream->append(fusion::encode(record_of(1, 2)), late.done());
  stream->stop();
  ASSERT_TRUE(late.status().has_value());
  EXPECT_TRUE(is_outcome_unknown(*late.status())) << *late.status();
  Outcome after;
  stream->append(fusion::encode(record_of(1, 3)), after.done());
  EXPECT_TRUE(is_outcome_unknown(after.wait()));
}

TEST_F(QuorumAuthorityStreamTest, NobodyTakesItOverWithoutAQuorum) {
  ASSERT_TRUE(append(open(options(1, true)).get(), record_of(1, 5)).ok());
  nodes_[0]->set_mute(true);
  nodes_[1]->set_mute(true);
  AuthorityStreamOptions impatient = options(2, false);
  impatient.log.take_over_timeout_us = 300'000;
  EXPECT_TRUE(is_peer_down(try_open(impatient).status()));
}

TEST_F(QuorumAuthorityStreamTest, TheStreamStaysSmall) {  // AQ4
  AuthorityStreamOptions small = options(1, true);
  small.trim_bytes = 2'000;
  const auto stream = open(small);
  for (uint64_t i = 1; i <= 300; ++i) ASSERT_TRUE(append(stream.get(), record_of(1, i)).ok());
  EXPECT_TRUE(wait_until([&] {
    return std::all_of(nodes_.begin(), nodes_.end(),
                       [](const auto& node) { return node->log().size() < 8'000; });
  }));
  const auto next = open(options(2, false));
  ASSERT_NE(next, nullptr);
  EXPECT_EQ(next->last(), record_of(1, 300));
}

TEST_F(QuorumAuthorityStreamTest, DamageIsAnErrorAndNoOlderRecord) {  // AQ2
  const std::string first = frame_of(kFirst, fusion::encode(record_of(1, 1)));
  const Lsn second_at{kFirst.value + first.size()};
  std::string second = frame_of(second_at, fusion::encode(record_of(1, 2)));
  const Lsn end{second_at.value + second.size()};
  second[second.size() / 2] ^= 1;
  // It is known to have been durable.
  for (const auto& node : nodes_) node->set_log(kFirst, first + second, end, Epoch{1});
  auto stream = try_open(options(2, false));
  ASSERT_TRUE(stream.ok()) << stream.status();
  const Status begun = (*stream)->begin();
  EXPECT_TRUE(is_corruption(begun)) << begun;
  // What nobody was told of was torn.
  for (const auto& node : nodes_) node->set_log(kFirst, first + second, second_at, Epoch{1});
  auto whole = open(options(3, false));
  ASSERT_NE(whole, nullptr);
  EXPECT_EQ(whole->last(), record_of(1, 1));
  ASSERT_TRUE(append(whole.get(), record_of(3, 9)).ok());
  whole.reset();
  EXPECT_EQ(open(options(4, false))->last(), record_of(3, 9));
}

TEST_F(QuorumAuthorityStreamTest, AWholeFrameAroundNoRecordIsAnError) {
  const std::string frame = frame_of(kFirst, "no record of an authority");
  for (const auto& node : nodes_)
    node->set_log(kFirst, frame, Lsn{kFirst.value + frame.size()}, Epoch{1});
  EXPECT_TRUE(is_corruption(try_open(options(2, false)).status()));
}

TEST_F(QuorumAuthorityStreamTest, WhatOneNodeCannotReadIsReadFromAnother) {
  {
    const auto stream = open(options(1, true));
    for (uint64_t i = 1; i <= 3; ++i) ASSERT_TRUE(append(stream.get(), record_of(1, i)).ok());
  }
  for (size_t i = 0; i < 2; ++i) nodes_[i]->set_damaged(Lsn{kFirst.value + 30});
  const auto next = open(options(2, false));
  ASSERT_NE(next, nullptr);
  EXPECT_EQ(next->last(), record_of(1, 3));
}

}  // namespace
}  // namespace strata::memnode
