// Goal: what quorum_log_sink.h promises (QL1-QL5), above all when calls fail and the process lives
// on: who waits goes on when the storage nodes answer again, what ends is final, and what is read
// is the log or an error. Method: storage nodes in memory that do what the test says
// (testing/fake_log_node.h), over sockets.
#include "clients/storage/quorum_log_sink.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "base/testing/wait_until.h"
#include "clients/storage/testing/fake_log_node.h"
#include "proto/methods.h"
#include "transport/calls/testing/io_node.h"
#include "wal/testing/test_sink.h"

namespace strata::clients {
namespace {

using strata::testing::wait_until;
using testing::FakeLogNode;
using transport::test::secret_of;

constexpr Lsn kFirst{4096};
constexpr StreamId kStream{1};

// A whole group that begins at `at`.
std::string group_at(Lsn at, size_t payload) {
  LogReservation reservation{};
  reservation.start = at;
  reservation.durable = at;
  reservation.llsn = Llsn{at.value + test_group_bytes(payload)};
  return make_test_group(reservation, std::string(payload, 'x'));
}

class QuorumLogSinkTest : public ::testing::Test {
 protected:
  QuorumLogSinkTest() {
    for (int i = 0; i < 3; ++i) {
      const std::string address = "unix:" + (folder_ / std::to_string(i));
      nodes_.push_back(std::make_unique<FakeLogNode>(io_.world(), address));
      addresses_.push_back(address);
    }
  }
  QuorumLogOptions options(uint64_t epoch, bool founding) {
    QuorumLogOptions options;
    options.client.stream = kStream;
    options.client.addresses = {addresses_.begin(), addresses_.end()};
    options.client.keys = addresses_;
    options.client.call_timeout_us = 100'000;
    options.client.tick_us = 10'000;
    options.holder = {Epoch{epoch}, epoch};
    options.founding = founding;
    options.first_lsn = kFirst;
    options.take_over_timeout_us = 10'000'000;
    options.late_after_us = 200'000;
    return options;
  }
  std::unique_ptr<QuorumLogSink> open(QuorumLogOptions options) {
    auto sink = QuorumLogSink::open(io_.world(), secret_of('s'), std::move(options));
    EXPECT_TRUE(sink.ok()) << sink.status();
    return sink.ok() ? *std::move(sink) : nullptr;
  }
  // A database is founded; its log is empty.
  std::unique_ptr<QuorumLogSink> found() {
    auto sink = open(options(1, true));
    begin(sink.get(), sink->begin_lsn());
    return sink;
  }
  void begin(QuorumLogSink* sink, Lsn at) {
    ASSERT_TRUE(sink->cut_at(at).ok());
    ASSERT_TRUE(sink->prepare_room(Lsn{1 << 30}).ok());
    end_ = at;
    const Epoch epoch = sink->epoch();
    EXPECT_TRUE(wait_until([&] {  // the last one, too, though it is not waited for
      return std::all_of(nodes_.begin(), nodes_.end(),
                         [&](const auto& node) { return node->state().last_epoch == epoch; });
    }));
  }
  Status append(QuorumLogSink* sink, size_t payload = 100) {
    const std::string group = group_at(end_, payload);
    STRATA_RETURN_IF_ERROR(sink->append(end_, group));
    written_ += group;
    end_.value += group.size();
    return ok_status();
  }
  // All nodes have this log, `durable` of it known to be quorum-durable.
  void preload(const std::string& log, Lsn durable) {
    for (const auto& node : nodes_) node->set_log(kFirst, log, durable, Epoch{1});
  }
  // How many have all that was written. One that fell behind would fetch it from the others.
  long holders() const {
    return std::count_if(nodes_.begin(), nodes_.end(),
                         [&](const auto& node) { return node->log() == written_; });
  }
  static std::string read_all(QuorumLogSink* sink, Lsn from) {
    std::string out;
    std::string part(64 << 10, '\0');
    for (;;) {
      const auto got = sink->read(Lsn{from.value + out.size()}, part.data(), part.size());
      EXPECT_TRUE(got.ok()) << got.status();
      if (!got.ok() || *got == 0) return out;
      out.append(part, 0, *got);
    }
  }

  transport::test::Folder folder_;
  transport::test::IoNode io_;
  std::vector<std::string> addresses_;
  std::vector<std::unique_ptr<FakeLogNode>> nodes_;
  Lsn end_;
  std::string written_;
};

TEST_F(QuorumLogSinkTest, AWriteQuorumIsEnough) {  // QL2
  const auto sink = found();
  nodes_[2]->set_mute(true);
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(append(sink.get()).ok());
    ASSERT_TRUE(sink->sync().ok());
    EXPECT_GE(sink->durable_lsn(), end_);
    EXPECT_EQ(nodes_[0]->log(), written_);
    EXPECT_EQ(nodes_[1]->log(), written_);
  }
  EXPECT_EQ(read_all(sink.get(), kFirst), written_);
}

// As long as it takes; who waits hears why.
TEST_F(QuorumLogSinkTest, ASyncOutlivesAnOutage) {  // QL2
  const auto sink = found();
  nodes_[1]->set_mute(true);
  nodes_[2]->set_error(error_no_space("its disk is full"));
  ASSERT_TRUE(append(sink.get()).ok());
  std::atomic<bool> done{false};
  std::thread waits([&] {
    EXPECT_TRUE(sink->sync().ok());
    done = true;
  });
  EXPECT_TRUE(wait_until([&] { return !sink->late().ok(); }));
  EXPECT_TRUE(may_pass(sink->late()));
  const std::string why(sink->late().message());
  EXPECT_NE(why.find("its disk is full"), std::string::npos) << why;
  EXPECT_NE(why.find("log stream 1 cannot be written"), std::string::npos) << why;
  EXPECT_FALSE(done);
  EXPECT_TRUE(sink->state().ok());
  nodes_[2]->set_error(ok_status());
  waits.join();
  EXPECT_TRUE(sink->late().ok());
  EXPECT_EQ(nodes_[0]->log(), written_);
  EXPECT_EQ(nodes_[2]->log(), written_);
  ASSERT_TRUE(append(sink.get()).ok());
  EXPECT_TRUE(sink->sync().ok());
}

TEST_F(QuorumLogSinkTest, WhoGivesUpDoesNotKnow) {  // QL2
  QuorumLogOptions given_up = options(1, true);
  std::atomic<bool> give_up{false};
  given_up.give_up = [&] { return give_up.load(); };
  const auto sink = open(std::move(given_up));
  begin(sink.get(), sink->begin_lsn());
  for (const auto& node : nodes_) node->set_mute(true);
  ASSERT_TRUE(append(sink.get()).ok());
  give_up = true;
  EXPECT_TRUE(is_outcome_unknown(sink->sync()));
}

TEST_F(QuorumLogSinkTest, OpeningFencesWhoeverWroteBefore) {  // QL1, QL2
  const auto first = found();
  ASSERT_TRUE(append(first.get()).ok());
  ASSERT_TRUE(first->sync().ok());
  const std::string acknowledged = written_;
  const auto second = open(options(2, false));
  ASSERT_NE(second, nullptr);
  const Status late = append(first.get());  // it may have heard already
  EXPECT_TRUE(late.ok() || is_fenced(late)) << late;
  EXPECT_TRUE(is_fenced(first->sync()));
  EXPECT_TRUE(is_fenced(first->sync())) << "that is final";
  EXPECT_TRUE(is_fenced(first->state()));
  EXPECT_TRUE(is_fenced(first->append(Lsn{1}, "x")));
  char byte = 0;
  EXPECT_TRUE(is_fenced(first->read(kFirst, &byte, 1).status()));
  EXPECT_EQ(read_all(second.get(), kFirst).substr(0, acknowledged.size()), acknowledged);
}

TEST_F(QuorumLogSinkTest, WhoComesTooLateDoesNotOpen) {  // QL1
  const auto second = open(options(5, true));
  const auto first = QuorumLogSink::open(io_.world(), secret_of('s'), options(4, true));
  EXPECT_TRUE(is_fenced(first.status())) << first.status();
}

// The kernel decides where the log ends; until then all of it is there.
TEST_F(QuorumLogSinkTest, NothingIsDecidedBeforeTheCut) {  // QL1
  const std::string whole = group_at(kFirst, 200), torn = "half a group....";
  preload(whole + torn, kFirst);
  const auto sink = open(options(2, false));
  EXPECT_EQ(read_all(sink.get(), kFirst), whole + torn);
  for (const auto& node : nodes_) EXPECT_EQ(node->state().last_epoch, Epoch{1});
  begin(sink.get(), Lsn{kFirst.value + whole.size()});
  written_ = whole;
  ASSERT_TRUE(append(sink.get()).ok());
  ASSERT_TRUE(sink->sync().ok());
  EXPECT_EQ(read_all(sink.get(), kFirst), written_);
  EXPECT_GE(holders(), 2);
}

TEST_F(QuorumLogSinkTest, AcknowledgedBytesAreNotCutOff) {  // QL1
  const std::string log = group_at(kFirst, 200);
  preload(log, Lsn{kFirst.value + log.size()});
  const auto sink = open(options(2, false));
  EXPECT_TRUE(is_corruption(sink->cut_at(kFirst)));
  for (const auto& node : nodes_) {
    EXPECT_EQ(node->state().last_epoch, Epoch{1});
    EXPECT_EQ(node->log(), log);
  }
}

TEST_F(QuorumLogSinkTest, TooFewNodesAreNamedAndTriedAgain) {
  nodes_[0]->set_mute(true);
  nodes_[1]->set_mute(true);
  QuorumLogOptions impatient = options(1, true);
  impatient.take_over_timeout_us = 300'000;
  const auto sink = QuorumLogSink::open(io_.world(), secret_of('s'), impatient);
  EXPECT_TRUE(may_pass(sink.status())) << sink.status();
  EXPECT_NE(std::string(sink.status().message()).find("fewer than 2 of 3"), std::string::npos);
  nodes_[0]->set_mute(false);
  const auto again = open(options(2, true));
  ASSERT_NE(again, nullptr);
  // A quorum for the choice, none for the beginning.
  nodes_[0]->set_error(error_no_space("its disk is full"));
  EXPECT_EQ(again->begin_lsn(), kFirst);
}

// The others are a quorum. What it lays out in the same way it answers.
TEST_F(QuorumLogSinkTest, ANodeOfAnotherBuildIsPassedOverAndNamed) {  // QC5
  nodes_[2].reset();
  nodes_[2] = std::make_unique<FakeLogNode>(io_.world(), addresses_[2],
                                            std::set<uint16_t>{proto::kLogAppend});
  const auto sink = found();
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(append(sink.get()).ok());
    ASSERT_TRUE(sink->sync().ok());
  }
  EXPECT_EQ(nodes_[0]->log(), written_);
  EXPECT_TRUE(wait_until([&] { return !sink->replicas().at(2).unusable.ok(); }));
  const Status why = sink->replicas().at(2).unusable;
  EXPECT_TRUE(is_unsupported(why)) << why;
  EXPECT_NE(why.message().find("log_append"), std::string::npos) << why;
  EXPECT_TRUE(sink->replicas().at(0).unusable.ok());
  EXPECT_EQ(nodes_[2]->log(), "");
  EXPECT_TRUE(is_unsupported(sink->check_usable())) << sink->check_usable();
  EXPECT_TRUE(sink->late().ok()) << "it goes on";
  // Upgraded, it fetches from the others what it lacks, and takes part again.
  nodes_[2].reset();
  nodes_[2] = std::make_unique<FakeLogNode>(io_.world(), addresses_[2]);
  nodes_[2]->set_peers([this](quorum::ReplicaIndex) { return nodes_[0].get(); });
  EXPECT_TRUE(wait_until([&] {
    EXPECT_TRUE(append(sink.get()).ok() && sink->sync().ok());
    return nodes_[2]->log() == written_;
  }));
  EXPECT_TRUE(wait_until([&] { return sink->check_usable().ok(); }));
}

TEST_F(QuorumLogSinkTest, WithoutAQuorumOfThisBuildItSaysSo) {  // QC5
  for (size_t i : {0, 1}) {
    nodes_[i].reset();
    nodes_[i] = std::make_unique<FakeLogNode>(io_.world(), addresses_[i],
                                              std::set<uint16_t>{proto::kLogSeal});
  }
  QuorumLogOptions impatient = options(1, true);
  impatient.take_over_timeout_us = 300'000;
  const auto sink = QuorumLogSink::open(io_.world(), secret_of('s'), impatient);
  EXPECT_TRUE(is_unsupported(sink.status())) << sink.status();
  for (const std::string& part : {std::string("log_seal"), std::string("to the same version")})
    EXPECT_NE(sink.status().message().find(part), std::string::npos) << sink.status();
  for (const auto& node : nodes_) EXPECT_EQ(node->log(), "");
}

TEST_F(QuorumLogSinkTest, AFounderBeginsBehindWhatIsThere) {  // QL3
  const std::string left = group_at(kFirst, 300);
  preload(left + "torn", kFirst);
  const auto sink = open(options(2, true));
  const Lsn start{kFirst.value + left.size()};
  EXPECT_EQ(sink->begin_lsn(), start);
  begin(sink.get(), start);
  ASSERT_TRUE(append(sink.get()).ok());
  ASSERT_TRUE(sink->sync().ok());
  EXPECT_EQ(read_all(sink.get(), start), written_);
}

TEST_F(QuorumLogSinkTest, WhatIsDamagedInOneLogIsReadFromAnother) {  // QL4
  std::string log;
  while (log.size() < 5000) log += group_at(Lsn{kFirst.value + log.size()}, 500);
  preload(log, kFirst);  // nothing is known to be quorum-durable
  const auto sink = open(options(2, false));
  for (const auto& node : nodes_) {  // the one that is read among them
    node->set_damaged(Lsn{kFirst.value + 2000});
    EXPECT_TRUE(read_all(sink.get(), kFirst) == log);
    node->set_damaged(Lsn{});
  }
  for (const auto& node : nodes_) node->set_damaged(Lsn{kFirst.value + 2000});
  std::string out(5000, '\0');
  const auto got = sink->read(kFirst, out.data(), out.size());
  EXPECT_TRUE(is_corruption(got.status())) << got.status();
  EXPECT_NE(std::string(got.status().message()).find("no other storage node could give it"),
            std::string::npos);
  for (const auto& node : nodes_) node->set_damaged(Lsn{});
  EXPECT_TRUE(read_all(sink.get(), kFirst) == log) << "they have mended themselves";
}

TEST_F(QuorumLogSinkTest, WhenTheNodeThatIsReadGoesAwayAnotherIsAsked) {
  const std::string log = group_at(kFirst, 500);
  preload(log, kFirst);
  QuorumLogOptions impatient = options(2, false);
  const auto sink = open(std::move(impatient));
  begin(sink.get(), Lsn{kFirst.value + log.size()});
  written_ = log;
  ASSERT_TRUE(append(sink.get()).ok());
  ASSERT_TRUE(sink->sync().ok());
  ASSERT_EQ(read_all(sink.get(), kFirst), written_);
  for (size_t i = 0; i < 3; ++i)  // whoever was asked
    if (nodes_[i]->reads() > 0) nodes_[i].reset();
  EXPECT_EQ(read_all(sink.get(), kFirst), written_);
}

TEST_F(QuorumLogSinkTest, WhatWasCutOffIsNotReadAsAnythingElse) {
  const std::string log = group_at(kFirst, 500) + std::string(64, '\0');
  preload(log, Lsn{kFirst.value + 64});
  for (const auto& node : nodes_)
    node->set_log(Lsn{kFirst.value + 64}, log.substr(64), Lsn{kFirst.value + 64}, Epoch{1});
  const auto sink = open(options(2, false));
  EXPECT_EQ(sink->begin_lsn(), Lsn{kFirst.value + 64});
  char byte = 0;
  const auto got = sink->read(kFirst, &byte, 1);
  EXPECT_TRUE(is_out_of_range(got.status())) << got.status();
  EXPECT_EQ(read_all(sink.get(), sink->begin_lsn()), log.substr(64));
}

// Far more at once than the writer keeps for slow nodes.
TEST_F(QuorumLogSinkTest, MuchLogGoesOutInWholeGroups) {  // QL5
  QuorumLogOptions small = options(1, true);
  small.client.quorum.retain_bytes = 16u << 20;
  small.client.call_timeout_us = 5'000'000;
  small.late_after_us = 10'000'000;
  const auto sink = open(std::move(small));
  begin(sink.get(), sink->begin_lsn());
  std::set<Lsn> boundaries{end_};
  for (int i = 0; i < 18; ++i) {
    ASSERT_TRUE(append(sink.get(), size_t{1} << 20).ok());
    boundaries.insert(end_);
  }
  ASSERT_TRUE(sink->sync().ok());
  EXPECT_EQ(sink->durable_lsn(), end_);
  EXPECT_GE(holders(), 2);
  std::set<Lsn> told;
  for (const auto& node : nodes_)
    for (const Lsn lsn : node->told()) told.insert(lsn);
  for (const Lsn lsn : told) EXPECT_EQ(boundaries.count(lsn), 1u) << lsn.value;
}

}  // namespace
}  // namespace strata::clients
