// Goal: what the writer counts and what it sends (WR1-WR4). Method: scripted replies. The whole
// protocol is tested in tests/sim.
#include "quorum/writer.h"

#include <gtest/gtest.h>

namespace strata::quorum {
namespace {

constexpr Holder kHolder{Epoch{9}, 77};

struct WriterTest : ::testing::Test {
  void start(uint32_t replicas = 3, uint32_t write_quorum = 2) {
    options.replicas = replicas;
    options.write_quorum = write_quorum;
    writer =
        std::make_unique<Writer>(options, Tenure{kHolder, Lsn{100}, Lsn{0}, {{Epoch{1}, Lsn{0}}}});
    collect();
  }
  void start_streaming(uint32_t replicas = 3, uint32_t write_quorum = 2) {
    start(replicas, write_quorum);
    for (ReplicaIndex i = 0; i < replicas; ++i) begun(i, 100);
  }
  void collect() {
    for (Outgoing& o : writer->take_requests()) pending.push_back(std::move(o));
  }
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
  AppendRequest take_append(ReplicaIndex replica, uint64_t* id) {
    const Outgoing o = take(replica);
    *id = o.id;
    const auto* append = std::get_if<AppendRequest>(&o.body);
    EXPECT_NE(append, nullptr);
    return append == nullptr ? AppendRequest{} : *append;
  }
  static ReplicaState state(uint64_t end, bool voting = true) {
    ReplicaState s;
    s.promised = kHolder.epoch;
    s.last_epoch = kHolder.epoch;
    s.end = Lsn{end};
    s.quorum_durable = Lsn{100};
    s.voting = voting;
    return s;
  }
  void answer(uint64_t id, ChangeReply reply) {
    writer->on_reply(id, std::move(reply));
    collect();
  }
  void begun(ReplicaIndex replica, uint64_t end, bool voting = true) {
    const Outgoing o = take(replica);
    ASSERT_TRUE(std::holds_alternative<BeginRequest>(o.body));
    answer(o.id, {ok_status(), state(end, voting), Lsn{end}});
  }
  // Answers the oldest append to the replica.
  void stored(ReplicaIndex replica, bool voting = true) {
    uint64_t id = 0;
    const AppendRequest a = take_append(replica, &id);
    const uint64_t end = a.at.value + a.bytes.size();
    answer(id, {ok_status(), state(end, voting), Lsn{end}});
  }
  void all_stored(ReplicaIndex replica) {
    while (asked(replica)) stored(replica);
  }
  void tell(uint64_t lsn) {
    writer->tell(Lsn{lsn});
    collect();
  }
  void append(size_t bytes) {
    const Status done = writer->append(std::string(bytes, 'x'));
    ASSERT_TRUE(done.ok()) << done;
    collect();
  }
  QuorumOptions options;
  std::unique_ptr<Writer> writer;
  std::vector<Outgoing> pending;
};

TEST_F(WriterTest, IsDurableOnceAWriteQuorumHasIt) {
  start_streaming();
  EXPECT_EQ(writer->quorum_durable(), Lsn{100});
  append(10);
  append(5);
  EXPECT_EQ(writer->end(), Lsn{115});
  stored(0);
  stored(0);
  EXPECT_EQ(writer->quorum_durable(), Lsn{100});
  stored(2);
  EXPECT_EQ(writer->quorum_durable(), Lsn{110});
  stored(1);
  stored(1);
  EXPECT_EQ(writer->quorum_durable(), Lsn{115});
}

TEST_F(WriterTest, NobodyIsToldOfHalfOfWhatWasAppendedAtOnce) {  // WR1
  options.request_bytes_max = 8;
  start_streaming();
  append(10);
  append(20);
  const uint64_t told[] = {100, 110, 110, 110, 130};  // 8 and 2 bytes, then 8, 8 and 4
  for (const uint64_t lsn : told) {
    for (ReplicaIndex i = 0; i < 2; ++i) stored(i);
    EXPECT_EQ(writer->quorum_durable(), Lsn{lsn});
  }
}

TEST_F(WriterTest, FourOfSixAndAll) {
  start_streaming(6, 4);
  append(10);
  for (ReplicaIndex i = 0; i < 3; ++i) stored(i);
  EXPECT_EQ(writer->quorum_durable(), Lsn{100});
  stored(5);
  EXPECT_EQ(writer->quorum_durable(), Lsn{110});
  pending.clear();
  start_streaming(3, 3);
  append(10);
  stored(0);
  stored(1);
  EXPECT_EQ(writer->quorum_durable(), Lsn{100});
  stored(2);
  EXPECT_EQ(writer->quorum_durable(), Lsn{110});
}

TEST_F(WriterTest, PipelinesWithinItsWindow) {
  options.request_bytes_max = 10;
  options.window_bytes = 30;
  start_streaming();
  append(100);
  int sent = 0;
  uint64_t id = 0;
  while (asked(1)) {
    const AppendRequest a = take_append(1, &id);
    EXPECT_EQ(a.at.value, 100u + 10 * static_cast<uint64_t>(sent));
    EXPECT_EQ(a.bytes.size(), 10u);
    ++sent;
  }
  EXPECT_EQ(sent, 3);
}

TEST_F(WriterTest, RepliesOutOfOrderCountTheLargest) {
  options.request_bytes_max = 10;
  start_streaming();
  append(20);
  uint64_t first = 0;
  uint64_t second = 0;
  (void)take_append(0, &first);
  (void)take_append(0, &second);
  answer(second, {ok_status(), state(120), Lsn{120}});
  answer(first, {ok_status(), state(110), Lsn{110}});
  answer(first, {ok_status(), state(110), Lsn{110}});  // twice
  stored(1);
  stored(1);
  EXPECT_EQ(writer->quorum_durable(), Lsn{120});
}

TEST_F(WriterTest, AGapSendsItBackToItsEnd) {
  options.request_bytes_max = 10;
  start_streaming();
  append(30);
  uint64_t first = 0;
  uint64_t second = 0;
  uint64_t third = 0;
  (void)take_append(0, &first);
  (void)take_append(0, &second);
  (void)take_append(0, &third);
  answer(second, {error_out_of_range(), state(100), Lsn{100}});
  EXPECT_EQ(take_append(0, &first).at, Lsn{100});
  EXPECT_EQ(take_append(0, &second).at, Lsn{110});
  uint64_t id = 0;
  EXPECT_EQ(take_append(0, &id).at, Lsn{120});
  answer(third, {error_out_of_range(), state(100), Lsn{100}});  // to something sent before
  EXPECT_FALSE(asked(0));
}

TEST_F(WriterTest, StopsAtTheFirstWordOfAHigherEpoch) {
  start_streaming();
  append(10);
  stored(0);
  ReplicaState higher = state(100);
  higher.promised = Epoch{10};
  uint64_t one = 0;
  uint64_t two = 0;
  (void)take_append(1, &one);
  (void)take_append(2, &two);
  answer(one, {error_fenced(), higher, Lsn{100}});
  EXPECT_EQ(writer->fenced_by(), Epoch{10});
  answer(two, {ok_status(), state(110), Lsn{110}});
  EXPECT_EQ(writer->quorum_durable(), Lsn{100});
  EXPECT_EQ(writer->append("y").code(), StatusCode::kFailedPrecondition);
  writer->tick();
  collect();
  EXPECT_TRUE(pending.empty());
}

// WR8
TEST_F(WriterTest, TheNextAppendTellsWhatIsQuorumDurable) {
  start_streaming();
  EXPECT_FALSE(writer->has_news());
  append(10);
  EXPECT_FALSE(writer->has_news()) << "nothing new is quorum-durable";
  stored(0);
  stored(1);
  EXPECT_TRUE(writer->has_news());
  EXPECT_FALSE(asked(0)) << "no message for that alone";
  append(20);
  EXPECT_FALSE(writer->has_news());
  uint64_t id = 0;
  for (ReplicaIndex i : {0u, 1u}) EXPECT_EQ(take_append(i, &id).quorum_durable, Lsn{110});
  EXPECT_EQ(take_append(2, &id).quorum_durable, Lsn{100});
  EXPECT_EQ(take_append(2, &id).quorum_durable, Lsn{110});
  writer->tell(writer->quorum_durable());
  collect();
  EXPECT_TRUE(pending.empty()) << "all have heard, or are about to";
}

TEST_F(WriterTest, TellsWhatIsQuorumDurableWhenItIsAskedTo) {  // WR8
  start_streaming();
  append(10);
  stored(0);
  stored(1);
  tell(109);
  uint64_t id = 0;
  for (ReplicaIndex i : {0u, 1u}) {
    const AppendRequest news = take_append(i, &id);
    EXPECT_EQ(news.at, Lsn{110});
    EXPECT_TRUE(news.bytes.empty());
    EXPECT_EQ(news.quorum_durable, Lsn{110});
    answer(id, {ok_status(), state(110), Lsn{110}});
  }
  // Behind the bytes that are on their way to the one that is slow.
  (void)take_append(2, &id);
  EXPECT_EQ(take_append(2, &id).quorum_durable, Lsn{110});
  EXPECT_FALSE(writer->has_news());
  append(10);
  stored(0);
  stored(1);
  tell(110);
  EXPECT_FALSE(asked(0)) << "that was said";
  EXPECT_TRUE(writer->has_news());
  tell(120);
  for (ReplicaIndex i : {0u, 1u}) EXPECT_EQ(take_append(i, &id).quorum_durable, Lsn{120});
}

TEST_F(WriterTest, WhoDoesNotAnswerIsNotToldForEver) {  // WR8
  start_streaming();
  std::vector<uint64_t> ids;
  for (uint64_t end = 101; end <= 200; ++end) {
    append(1);
    for (ReplicaIndex i : {0u, 1u}) all_stored(i);
    tell(end);
    while (asked(2)) {
      ids.push_back(0);
      (void)take_append(2, &ids.back());
    }
  }
  EXPECT_LT(ids.size(), 150u) << "100 appends and the news";
  for (ReplicaIndex i : {0u, 1u}) all_stored(i);
  EXPECT_FALSE(writer->has_news()) << "of the others each has heard";
  for (const uint64_t id : ids) answer(id, {ok_status(), state(200), Lsn{200}});
  EXPECT_TRUE(writer->has_news());
  tell(200);
  EXPECT_TRUE(asked(2));
}

TEST_F(WriterTest, WhoComesBackIsToldWhatItMissed) {  // WR8
  start_streaming();
  append(10);
  stored(0);
  stored(1);
  tell(110);
  for (ReplicaIndex i : {0u, 1u}) all_stored(i);
  uint64_t id = 0;
  (void)take_append(2, &id);
  writer->on_lost(id);
  pending.clear();
  EXPECT_FALSE(writer->has_news()) << "nobody who listens";
  tell(110);
  EXPECT_TRUE(pending.empty());
  writer->tick();
  collect();
  begun(2, 110);
  EXPECT_TRUE(writer->has_news());
  tell(110);
  EXPECT_EQ(take_append(2, &id).quorum_durable, Lsn{110});
}

TEST_F(WriterTest, ADeadReplicaIsSkippedAndFetchesWhatIsGoneWhenItComesBack) {
  options.retain_bytes = 100;
  start_streaming();
  append(10);
  uint64_t id = 0;
  (void)take_append(2, &id);
  writer->on_lost(id);
  EXPECT_EQ(writer->status()[2].phase, Writer::ReplicaPhase::kResting);
  for (int i = 0; i < 20; ++i) {
    stored(0);
    stored(1);
    for (ReplicaIndex r : {0u, 1u})
      while (asked(r)) stored(r);
    append(10);
  }
  EXPECT_FALSE(asked(2));
  writer->tick();
  collect();
  begun(2, 105);
  const Outgoing order = take(2);
  const auto* what = std::get_if<CatchUpOrder>(&order.body);
  ASSERT_NE(what, nullptr);
  EXPECT_EQ(what->until, writer->quorum_durable());
  EXPECT_EQ(what->sources, (std::vector<ReplicaIndex>{0, 1}));
  EXPECT_EQ(writer->status()[2].phase, Writer::ReplicaPhase::kBehind);
  writer->tick();
  collect();
  begun(2, writer->quorum_durable().value);  // it got there
  EXPECT_EQ(take_append(2, &id).at, writer->quorum_durable());
}

// However large it is: else it could never be sent.
TEST_F(WriterTest, WhenNothingWaitsAnythingIsTaken) {
  options.retain_bytes = 100;
  start_streaming();
  EXPECT_TRUE(writer->has_room(1000));
  ASSERT_TRUE(writer->append(std::string(1000, 'x')).ok());
  EXPECT_FALSE(writer->has_room(1));
  EXPECT_TRUE(is_no_space(writer->append("y")));
}

TEST_F(WriterTest, TheLogIsKeptForWhoIsBehind) {  // WR5
  start();
  begun(0, 100);
  begun(1, 100);
  append(1000);
  stored(0);
  stored(1);
  EXPECT_EQ(writer->keep_from(Lsn{1050}), Lsn{0});  // replica 2 may lack anything
  answer(take(2).id, {error_out_of_range(), state(90), Lsn{40}});
  EXPECT_EQ(writer->keep_from(Lsn{1050}), Lsn{40});  // of its 90 bytes the last do not count
  EXPECT_EQ(writer->keep_from(Lsn{30}), Lsn{30});
  writer->tick();
  collect();
  (void)take(2);  // the order to fetch
  begun(2, 100);
  EXPECT_EQ(writer->keep_from(Lsn{1050}), Lsn{100});
  (void)take(2);  // another order
  writer->tick();
  collect();
  begun(2, 1100);
  EXPECT_EQ(writer->keep_from(Lsn{1050}), Lsn{1050});
  append(10);
  uint64_t id = 0;
  (void)take_append(2, &id);
  writer->on_lost(id);
  EXPECT_EQ(writer->keep_from(Lsn{2000}), Lsn{1100});  // gone, but not its disk
}

TEST_F(WriterTest, TheLogIsKeptForWhoIsBehindUpToALimit) {  // WR5
  options.keep_bytes_max = 300;
  start();
  begun(0, 100);
  begun(1, 100);
  append(1000);
  stored(0);
  stored(1);
  EXPECT_EQ(writer->keep_from(Lsn{1050}), Lsn{800});
  EXPECT_EQ(writer->keep_from(Lsn{700}), Lsn{700});
}

TEST_F(WriterTest, ALateReplicaThatWasNotRecoveredIsOrderedToFetch) {
  start();
  begun(0, 100);
  begun(1, 100);
  ReplicaState old = state(40);
  old.last_epoch = Epoch{1};
  answer(take(2).id, {error_out_of_range(), old, Lsn{40}});
  const Outgoing order = take(2);
  ASSERT_TRUE(std::holds_alternative<CatchUpOrder>(order.body));
  append(10);
  stored(0);
  stored(1);
  EXPECT_EQ(writer->quorum_durable(), Lsn{110});
}

TEST_F(WriterTest, TooMuchThatNobodyHasIsRefused) {
  options.retain_bytes = 50;
  start_streaming();
  append(30);
  EXPECT_EQ(writer->append(std::string(21, 'x')).code(), StatusCode::kResourceExhausted);
  stored(0);
  stored(1);
  EXPECT_TRUE(writer->append(std::string(21, 'x')).ok());
}

TEST_F(WriterTest, AReplicaThatLostItsTailCountsAgainOnlyWhenItVotes) {
  start_streaming();
  append(10);
  uint64_t id = 0;
  (void)take_append(0, &id);
  answer(id, {ok_status(), state(110), Lsn{110}});
  append(10);
  (void)take_append(0, &id);
  answer(id, {error_out_of_range(), state(60, false), Lsn{60}});  // it came back without its tail
  stored(1);
  stored(1);
  EXPECT_EQ(writer->quorum_durable(), Lsn{110});  // counted while it was true
  const Outgoing o = take(0);
  const auto* begin = std::get_if<BeginRequest>(&o.body);
  ASSERT_NE(begin, nullptr);
  EXPECT_EQ(begin->voter_end, Lsn{120});
  answer(o.id, {ok_status(), state(110, false), Lsn{110}});
  EXPECT_FALSE(writer->status()[0].votes);
  stored(0, true);
  EXPECT_EQ(writer->quorum_durable(), Lsn{120});
}

TEST_F(WriterTest, BytesNobodyWroteAreNotCounted) {
  start_streaming();
  append(10);
  uint64_t id = 0;
  (void)take_append(0, &id);
  answer(id, {ok_status(), state(999), Lsn{999}});
  stored(1);
  EXPECT_EQ(writer->quorum_durable(), Lsn{100});
  EXPECT_EQ(writer->status()[0].last_error.code(), StatusCode::kDataLoss);
}

// WR6
TEST_F(WriterTest, AnotherNodeInAReplicasPlaceDoesNotCountForIt) {
  start_streaming();
  append(50);
  stored(0);  // of three: a second one is needed
  EXPECT_EQ(writer->quorum_durable(), Lsn{100});
  writer->follow(2, {std::nullopt, 1, 2});
  collect();
  stored(1);
  EXPECT_EQ(writer->quorum_durable(), Lsn{100}) << "the node that had it is not there any more";
  const Outgoing asked_new = take(0);
  const auto* begin = std::get_if<BeginRequest>(&asked_new.body);
  ASSERT_NE(begin, nullptr);
  EXPECT_EQ(begin->voter_end, Lsn{150});
  // The new one keeps bytes that do not count until it holds what was sent before it came.
  answer(asked_new.id, {ok_status(), state(100, /*voting=*/false), Lsn{100}});
  stored(0, /*voting=*/false);
  EXPECT_EQ(writer->quorum_durable(), Lsn{100});
  append(10);
  stored(0);
  EXPECT_EQ(writer->quorum_durable(), Lsn{150});
  all_stored(1);
  EXPECT_EQ(writer->quorum_durable(), Lsn{160});
}

TEST_F(WriterTest, WhatANodeThatWasReplacedStillSaysIsIgnored) {
  start_streaming();
  append(50);
  uint64_t late = 0;
  take_append(0, &late);
  writer->follow(2, {std::nullopt, 1, 2});
  collect();
  stored(1);
  answer(late, {ok_status(), state(150), Lsn{150}});
  EXPECT_EQ(writer->quorum_durable(), Lsn{100});
  ReplicaState fenced = state(150);
  fenced.promised = Epoch{20};
  answer(late, {error_fenced(), fenced, Lsn{150}});
  EXPECT_FALSE(writer->fenced_by().has_value());
  EXPECT_EQ(writer->keep_from(Lsn{100}), Lsn{0}) << "nobody knows what the new one lacks";
}

TEST_F(WriterTest, OneMoreReplicaRaisesTheQuorumAtOnce) {
  start_streaming();
  append(50);
  stored(0);
  writer->follow(3, {0, 1, 2, std::nullopt});
  collect();
  stored(1);
  EXPECT_EQ(writer->quorum_durable(), Lsn{100}) << "two of four";
  stored(2);
  EXPECT_EQ(writer->quorum_durable(), Lsn{150});
  begun(3, 150);
  append(10);
  for (const ReplicaIndex replica : {3u, 0u}) all_stored(replica);
  EXPECT_EQ(writer->quorum_durable(), Lsn{150});
  all_stored(1);
  EXPECT_EQ(writer->quorum_durable(), Lsn{160});
}

TEST_F(WriterTest, WhileAReplicaIsAboutToLeaveBothQuorumsCount) {  // WR7
  start_streaming(5, 3);
  append(50);
  for (const ReplicaIndex replica : {0u, 1u, 2u}) stored(replica);
  EXPECT_EQ(writer->quorum_durable(), Lsn{150});
  writer->begin_leave(0, 3);
  EXPECT_FALSE(writer->may_leave()) << "two of the four that stay have it";
  append(10);
  for (const ReplicaIndex replica : {0u, 1u, 2u}) all_stored(replica);
  EXPECT_EQ(writer->quorum_durable(), Lsn{150}) << "three of five, two of four";
  all_stored(3);
  EXPECT_EQ(writer->quorum_durable(), Lsn{160});
  EXPECT_TRUE(writer->may_leave());
  // The writer goes on with both as long as it does not know that the placement is another one.
  append(10);
  for (const ReplicaIndex replica : {0u, 1u, 2u}) all_stored(replica);
  EXPECT_EQ(writer->quorum_durable(), Lsn{160});
  EXPECT_TRUE(writer->may_leave()) << "of what is acknowledged nothing is missing";
  writer->cancel_leave();
  EXPECT_EQ(writer->quorum_durable(), Lsn{170});
  EXPECT_FALSE(writer->may_leave());
}

TEST_F(WriterTest, AReplicaThatLostItsLogHoldsBackTheOneThatLeaves) {
  start_streaming(4, 3);
  writer->begin_leave(3, 2);
  EXPECT_TRUE(writer->may_leave());
  append(50);
  stored(0, /*voting=*/false);
  begun(0, 150, /*voting=*/false);
  all_stored(1);
  all_stored(3);
  EXPECT_EQ(writer->quorum_durable(), Lsn{100});
  EXPECT_TRUE(writer->may_leave()) << "two of the others vote";
  stored(2, /*voting=*/false);
  begun(2, 150, /*voting=*/false);
  EXPECT_FALSE(writer->may_leave());
}

TEST_F(WriterTest, WhoStaysHasAnotherNumberOnceOneHasLeft) {
  start_streaming(4, 3);
  append(50);
  uint64_t late_of_gone = 0;
  uint64_t late_of_last = 0;
  take_append(1, &late_of_gone);
  take_append(3, &late_of_last);
  writer->begin_leave(1, 2);
  EXPECT_TRUE(writer->may_leave());
  writer->follow(2, {0, 2, 3});
  collect();
  EXPECT_FALSE(writer->leaves());
  EXPECT_EQ(writer->status().size(), 3u);
  ReplicaState fenced = state(150);
  fenced.promised = Epoch{20};
  answer(late_of_gone, {error_fenced(), fenced, Lsn{150}});
  EXPECT_FALSE(writer->fenced_by().has_value());
  answer(late_of_last, {ok_status(), state(150), Lsn{150}});
  EXPECT_EQ(writer->status()[2].durable, Lsn{150});
  stored(0);
  EXPECT_EQ(writer->quorum_durable(), Lsn{150}) << "two of three";
  while (asked(2)) take(2);  // of before: asked of the one that is replica 1 now
  append(10);
  all_stored(2);
  all_stored(0);
  EXPECT_EQ(writer->quorum_durable(), Lsn{160});
}

// What waits to be sent names replicas, too.
TEST_F(WriterTest, RequestsThatWaitAreRenamed) {
  options.retain_bytes = 100;
  start_streaming(4, 3);
  writer->begin_leave(0, 2);
  ASSERT_TRUE(writer->append(std::string(20, 'x')).ok());  // nothing of it is collected
  writer->follow(2, {1, 2, 3});
  std::vector<ReplicaIndex> to;
  for (const Outgoing& o : writer->take_requests()) to.push_back(o.replica);
  EXPECT_EQ(to, (std::vector<ReplicaIndex>{0, 1, 2}));
}

}  // namespace
}  // namespace strata::quorum
