// Goal: a recovery chooses right, copies what is missing and says "done" no sooner than it may
// (RC1-RC3). Method: scripted replies. The whole protocol is tested in tests/sim.
#include "quorum/recovery.h"

#include <gtest/gtest.h>

namespace strata::quorum {
namespace {

constexpr Holder kHolder{Epoch{9}, 77};

struct RecoveryTest : ::testing::Test {
  void start(uint32_t replicas, uint32_t write_quorum, std::optional<Lsn> fresh = std::nullopt) {
    QuorumOptions options;
    options.replicas = replicas;
    options.write_quorum = write_quorum;
    options.request_bytes_max = 40;
    recovery = std::make_unique<Recovery>(options, kHolder, fresh);
    collect();
  }
  void collect() {
    for (Outgoing& o : recovery->take_requests()) pending.push_back(std::move(o));
  }
  // The oldest request to `replica`; it is taken off the list.
  Outgoing take(ReplicaIndex replica) {
    for (size_t i = 0; i < pending.size(); ++i) {
      if (pending[i].replica != replica) continue;
      Outgoing o = std::move(pending[i]);
      pending.erase(pending.begin() + static_cast<ptrdiff_t>(i));
      return o;
    }
    ADD_FAILURE() << "nothing was asked of replica " << replica;
    return {};
  }
  bool asked(ReplicaIndex replica) const {
    for (const Outgoing& o : pending)
      if (o.replica == replica) return true;
    return false;
  }
  void answer(uint64_t id, Reply reply) {
    recovery->on_reply(id, std::move(reply));
    collect();
  }
  static ReplicaState state(uint64_t epoch, uint64_t end, uint64_t durable = 0) {
    ReplicaState s;
    s.promised = kHolder.epoch;
    s.last_epoch = Epoch{epoch};
    s.end = Lsn{end};
    s.quorum_durable = Lsn{durable};
    s.voting = true;
    return s;
  }
  void seal(ReplicaIndex replica, uint64_t epoch, uint64_t end, History history,
            uint64_t durable = 0) {
    const Outgoing o = take(replica);
    ASSERT_TRUE(std::holds_alternative<SealRequest>(o.body));
    answer(o.id, SealReply{ok_status(), state(epoch, end, durable), std::move(history)});
  }
  void begin_ok(ReplicaIndex replica) {
    const Outgoing o = take(replica);
    const auto* begin = std::get_if<BeginRequest>(&o.body);
    ASSERT_NE(begin, nullptr);
    EXPECT_EQ(begin->voter_end, begin->tenure.start);
    answer(o.id,
           ChangeReply{ok_status(), state(9, begin->tenure.start.value), begin->tenure.start});
  }
  std::unique_ptr<Recovery> recovery;
  std::vector<Outgoing> pending;
};

const History kOne = {{Epoch{1}, Lsn{0}}};
const History kTwo = {{Epoch{1}, Lsn{0}}, {Epoch{2}, Lsn{50}}};

TEST_F(RecoveryTest, ChoosesTheHighestEpochBeforeTheGreatestLength) {
  start(3, 2);
  seal(0, 1, 200, kOne, 50);
  EXPECT_EQ(recovery->state(), Recovery::State::kSealing);
  seal(1, 2, 60, kTwo, 50);
  ASSERT_EQ(recovery->state(), Recovery::State::kCopying);
  EXPECT_EQ(recovery->tenure().start, Lsn{60});
  EXPECT_EQ(recovery->tenure().history, kTwo);
  EXPECT_EQ(recovery->tenure().holder, kHolder);
  // The longer log has other bytes from where epoch 2 began.
  EXPECT_EQ(recovery->chosen().same_until, (std::vector<Lsn>{Lsn{50}, Lsn{60}, Lsn{}}));
  // The third one's vote comes too late to be chosen from, but it gets the log, too.
  seal(2, 2, 90, kTwo);
  EXPECT_EQ(recovery->tenure().start, Lsn{60});
  begin_ok(1);
  EXPECT_EQ(recovery->state(), Recovery::State::kCopying);
  begin_ok(2);
  EXPECT_EQ(recovery->state(), Recovery::State::kDone);
}

TEST_F(RecoveryTest, ChoosesTheLongerOfEqualEpochs) {
  start(6, 4);
  seal(5, 2, 60, kTwo);
  seal(0, 2, 61, kTwo);
  EXPECT_EQ(recovery->state(), Recovery::State::kSealing);  // 3 of 6 meet every 4 of 6
  seal(3, 1, 500, kOne);
  ASSERT_EQ(recovery->state(), Recovery::State::kCopying);
  EXPECT_EQ(recovery->tenure().start, Lsn{61});
  EXPECT_EQ(recovery->votes(), 3u);
}

TEST_F(RecoveryTest, CopiesWhatIsMissingFromWhoHasIt) {
  start(3, 2);
  seal(0, 1, 120, kOne);
  seal(2, 1, 40, kOne);
  begin_ok(0);
  const Outgoing begin = take(2);
  answer(begin.id, ChangeReply{error_out_of_range(), state(1, 40), Lsn{40}});
  for (uint64_t at = 40; at < 120; at += 40) {
    const Outgoing read = take(0);
    const auto* request = std::get_if<ReadRequest>(&read.body);
    ASSERT_NE(request, nullptr);
    EXPECT_EQ(request->from, Lsn{at});
    EXPECT_EQ(request->bytes_max, 40u);
    EXPECT_TRUE(request->recovery);
    EXPECT_EQ(request->epoch, kHolder.epoch);
    answer(read.id, ReadReply{ok_status(), Lsn{at}, std::string(40, 'x'), Lsn{7}});
    const Outgoing write = take(2);
    const auto* bytes = std::get_if<CatchUpRequest>(&write.body);
    ASSERT_NE(bytes, nullptr);
    EXPECT_EQ(bytes->at, Lsn{at});
    EXPECT_EQ(bytes->bytes.size(), 40u);
    EXPECT_EQ(bytes->quorum_durable, Lsn{7});
    answer(write.id, ChangeReply{ok_status(), state(1, at + 40), Lsn{at + 40}});
  }
  EXPECT_EQ(recovery->state(), Recovery::State::kCopying);
  begin_ok(2);
  EXPECT_EQ(recovery->state(), Recovery::State::kDone);
}

TEST_F(RecoveryTest, PassesOnNewsOnlyOfTheBytesItCopies) {  // CU2
  start(3, 2);
  seal(0, 1, 120, kOne);
  seal(2, 1, 40, kOne);
  begin_ok(0);
  const Outgoing begin = take(2);
  answer(begin.id, ChangeReply{error_out_of_range(), state(1, 40), Lsn{40}});
  answer(take(0).id, ReadReply{ok_status(), Lsn{40}, std::string(40, 'x'), Lsn{110}});
  const Outgoing write = take(2);
  const auto* bytes = std::get_if<CatchUpRequest>(&write.body);
  ASSERT_NE(bytes, nullptr);
  EXPECT_EQ(bytes->quorum_durable, Lsn{80});
}

TEST_F(RecoveryTest, WaitsForAnOwnerWhoSaysWhereTheEpochBegins) {  // RC4
  QuorumOptions options;
  options.replicas = 3;
  options.write_quorum = 2;
  recovery = std::make_unique<Recovery>(options, kHolder, std::nullopt, /*wait_for_start=*/true);
  collect();
  seal(0, 2, 61, kTwo, 45);
  seal(1, 1, 70, kOne, 40);
  ASSERT_EQ(recovery->state(), Recovery::State::kChosen);
  EXPECT_EQ(recovery->chosen().replica, 0u);
  EXPECT_EQ(recovery->chosen().end, Lsn{61});
  EXPECT_EQ(recovery->chosen().quorum_durable, Lsn{45});
  seal(2, 2, 61, kTwo);  // late: nothing is chosen anew
  EXPECT_TRUE(pending.empty());
  recovery->begin_at(Lsn{48});
  collect();
  ASSERT_EQ(recovery->state(), Recovery::State::kCopying);
  EXPECT_EQ(recovery->tenure().start, Lsn{48});
  EXPECT_EQ(recovery->tenure().history, kOne) << "an epoch that began behind it is forgotten";
  begin_ok(0);
  begin_ok(2);
  EXPECT_EQ(recovery->state(), Recovery::State::kDone);
}

TEST_F(RecoveryTest, ReadsElsewhereWhenTheChosenReplicaFails) {
  start(5, 3);
  seal(0, 1, 120, kOne);
  seal(1, 1, 120, kOne);
  seal(2, 1, 40, kOne);
  begin_ok(1);
  const Outgoing begin = take(2);
  answer(begin.id, ChangeReply{error_out_of_range(), state(1, 40), Lsn{40}});
  (void)take(0);  // its begin is never answered
  const Outgoing read = take(0);
  answer(read.id, ReadReply{error_corruption(), Lsn{40}, "", {}});
  EXPECT_FALSE(asked(1));
  recovery->tick();
  collect();
  const Outgoing again = take(1);
  EXPECT_TRUE(std::holds_alternative<ReadRequest>(again.body));
}

TEST_F(RecoveryTest, WhoDoesNotVoteIsNotCounted) {
  start(3, 2);
  const Outgoing fresh = take(0);
  ReplicaState newcomer;
  newcomer.promised = kHolder.epoch;
  answer(fresh.id, SealReply{ok_status(), newcomer, {}});
  seal(1, 1, 100, kOne);
  EXPECT_EQ(recovery->state(), Recovery::State::kSealing);
  seal(2, 1, 90, kOne);
  EXPECT_EQ(recovery->state(), Recovery::State::kCopying);
  EXPECT_TRUE(asked(0));  // it gets the log all the same
}

TEST_F(RecoveryTest, ANewStreamStartsWhereItIsTold) {
  start(3, 2, Lsn{4096});
  for (ReplicaIndex i : {0u, 2u}) {
    ReplicaState newcomer;
    newcomer.promised = kHolder.epoch;
    newcomer.voting = true;
    answer(take(i).id, SealReply{ok_status(), newcomer, {}});
  }
  ASSERT_EQ(recovery->state(), Recovery::State::kCopying);
  EXPECT_EQ(recovery->tenure().start, Lsn{4096});
  EXPECT_EQ(recovery->tenure().base, Lsn{4096});
  begin_ok(0);
  begin_ok(2);
  EXPECT_EQ(recovery->state(), Recovery::State::kDone);
}

// Whoever lost its disk must not vote for an empty log, not even in a recovery that was started
// when the stream was new.
TEST_F(RecoveryTest, EmptyReplicasOfAStreamThatIsNotNewAreNoQuorum) {
  start(3, 2);
  for (ReplicaIndex i : {0u, 2u}) {
    ReplicaState empty;
    empty.promised = kHolder.epoch;
    empty.voting = true;
    answer(take(i).id, SealReply{ok_status(), empty, {}});
  }
  EXPECT_EQ(recovery->state(), Recovery::State::kFailed);
  EXPECT_EQ(recovery->failure().code(), StatusCode::kDataLoss);

  pending.clear();
  start(3, 2, Lsn{4096});
  ReplicaState newcomer;
  newcomer.promised = kHolder.epoch;
  answer(take(0).id, SealReply{ok_status(), newcomer, {}});
  seal(1, 1, 5000, {{Epoch{1}, Lsn{4096}}});
  EXPECT_EQ(recovery->state(), Recovery::State::kSealing);
}

TEST_F(RecoveryTest, IsFencedByAHigherEpochAtAnyTime) {
  start(3, 2);
  seal(0, 1, 100, kOne);
  ReplicaState higher = state(1, 100);
  higher.promised = Epoch{12};
  answer(take(1).id, SealReply{error_fenced(), higher, {}});
  EXPECT_EQ(recovery->state(), Recovery::State::kFailed);
  EXPECT_EQ(recovery->fenced_by(), Epoch{12});
  EXPECT_EQ(recovery->failure().code(), StatusCode::kFailedPrecondition);

  pending.clear();
  start(3, 2);
  seal(0, 1, 100, kOne);
  seal(1, 1, 100, kOne);
  answer(take(1).id, ChangeReply{error_fenced(), higher, {}});
  EXPECT_EQ(recovery->state(), Recovery::State::kFailed);
  EXPECT_EQ(recovery->fenced_by(), Epoch{12});
}

TEST_F(RecoveryTest, AskedAgainAtATickAndLateAnswersAreIgnored) {
  start(3, 2);
  const Outgoing first = take(0);
  recovery->on_lost(first.id);
  (void)take(1);
  (void)take(2);
  recovery->tick();
  collect();
  EXPECT_TRUE(asked(0));
  EXPECT_FALSE(asked(1));
  answer(first.id, SealReply{ok_status(), state(1, 10), kOne});
  EXPECT_EQ(recovery->votes(), 0u);
  seal(0, 1, 10, kOne);
  EXPECT_EQ(recovery->votes(), 1u);
}

TEST_F(RecoveryTest, AcknowledgedBytesThatNobodyHasAreReported) {
  start(3, 2);
  ReplicaState lost = state(1, 30);
  lost.voting = false;
  lost.quorum_durable = Lsn{90};
  answer(take(0).id, SealReply{ok_status(), lost, kOne});
  seal(1, 1, 80, kOne);
  seal(2, 1, 70, kOne);
  EXPECT_EQ(recovery->state(), Recovery::State::kFailed);
  EXPECT_EQ(recovery->failure().code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace strata::quorum
