// Goal: the promises of LogStore one by one, but for damage (log_store_damage_test.cc) and threads
// (log_store_threads_test.cc). Method: a store on a simulated disk, driven on one thread; crashes,
// failing and full disks.
#include "storenode/logstore/testing/log_store_fixture.h"

namespace strata::testing {
namespace {

using quorum::ChangeReply;
using quorum::SealReply;
using quorum::Tenure;

// --- promises and epochs ---

TEST_F(LogStoreTest, ASealIsKeptOverACrashAndRefusesLowerEpochs) {
  const SealReply first = store->seal(kStream, {Epoch{5}, 1});
  ASSERT_TRUE(first.status.ok()) << first.status;
  EXPECT_FALSE(first.state.voting);
  EXPECT_TRUE(first.history.empty());
  crash();
  EXPECT_EQ(store->seal(kStream, {Epoch{4}, 9}).status.code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(store->seal(kStream, {Epoch{4}, 9}).state.promised, Epoch{5});
  EXPECT_TRUE(store->seal(kStream, {Epoch{5}, 1}).status.ok());  // the same holder asks again
  EXPECT_EQ(store->seal(kStream, {Epoch{5}, 2}).status.code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(store->begin(kStream, tenure(4, 0)).status.code(), StatusCode::kFailedPrecondition);
  Tenure foreign = tenure(5, 0);
  foreign.holder.token = 2;
  EXPECT_EQ(store->begin(kStream, foreign).status.code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(store->catch_up(kStream, foreign, Lsn{0}, "").status.code(),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(store->seal(kStream, {Epoch{0}, 1}).status.code(), StatusCode::kInvalidArgument);
}

// LG10
TEST_F(LogStoreTest, AStreamIsMadeOnceAndRefusesWhatItMayHaveForgotten) {
  Status unknown;
  store->store().seal(kStream, {{Epoch{5}, 1}}, [&](const SealReply& r) { unknown = r.status; });
  store->drain();
  EXPECT_EQ(unknown.code(), StatusCode::kNotFound);
  store->store().begin_epoch(kStream, {tenure(5, 0), Lsn{0}},
                             [&](const ChangeReply& r) { unknown = r.status; });
  store->drain();
  EXPECT_EQ(unknown.code(), StatusCode::kNotFound);
  EXPECT_FALSE(store->store().status(kStream).ok());

  faulty.judge = [](const char*, const std::string&) { return error_internal("no disk"); };
  EXPECT_EQ(store->make(kStream, {Epoch{4}, true}).status.code(), StatusCode::kInternal);
  faulty.judge = nullptr;
  EXPECT_FALSE(store->store().status(kStream).ok());
  ASSERT_TRUE(store->make(kStream, {Epoch{5}, false}).status.ok());
  EXPECT_TRUE(store->make(kStream, {Epoch{9}, true}).status.ok());  // it is here
  crash();
  EXPECT_FALSE(store->state(kStream).voting);
  EXPECT_EQ(store->begin(kStream, tenure(4, 0)).status.code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(store->begin(kStream, tenure(5, 0)).status.ok());
  EXPECT_TRUE(store->state(kStream).voting);

  ASSERT_TRUE(store->make(StreamId{8}, {Epoch{1}, true}).status.ok());
  crash(2);
  EXPECT_TRUE(store->state(StreamId{8}).voting);
  EXPECT_TRUE(store->seal(StreamId{8}, {Epoch{1}, 3}).status.ok());
}

TEST_F(LogStoreTest, AppendsNeedABegunEpochThatIsNotFenced) {
  EXPECT_EQ(store->append(kStream, Epoch{1}, Lsn{0}, "x").status.code(), StatusCode::kNotFound);
  ASSERT_TRUE(store->seal(kStream, {Epoch{1}, 1000}).status.ok());
  EXPECT_TRUE(is_conflict(store->append(kStream, Epoch{1}, Lsn{0}, "x").status));
  start();
  EXPECT_TRUE(store->state(kStream).voting);
  EXPECT_TRUE(store->append(kStream, Epoch{1}, Lsn{0}, "x").status.ok());
  EXPECT_TRUE(is_conflict(store->append(kStream, Epoch{2}, Lsn{1}, "x").status));
  ASSERT_TRUE(store->seal(kStream, {Epoch{2}, 1}).status.ok());
  const ChangeReply fenced = store->append(kStream, Epoch{1}, Lsn{1}, "y");
  EXPECT_EQ(fenced.status.code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(fenced.state.promised, Epoch{2});
  EXPECT_EQ(fenced.state.end, Lsn{1});
  EXPECT_GE(store->store().counters().fenced, 1u);
}

TEST_F(LogStoreTest, AppendsAreGaplessAndIdempotent) {
  start();
  ASSERT_TRUE(store->append(kStream, Epoch{1}, Lsn{0}, "hello ").status.ok());
  const ChangeReply gap = store->append(kStream, Epoch{1}, Lsn{7}, "orld");
  EXPECT_EQ(gap.status.code(), StatusCode::kOutOfRange);
  EXPECT_EQ(gap.next, Lsn{6});
  EXPECT_EQ(gap.state.end, Lsn{6});
  const ChangeReply more = store->append(kStream, Epoch{1}, Lsn{3}, "lo world");
  ASSERT_TRUE(more.status.ok()) << more.status;
  EXPECT_EQ(more.state.end, Lsn{11});
  EXPECT_TRUE(store->append(kStream, Epoch{1}, Lsn{0}, "hello world").status.ok());
  EXPECT_EQ(store->append(kStream, Epoch{1}, Lsn{3}, "LO").status.code(), StatusCode::kDataLoss);
  EXPECT_EQ(store->append(kStream, Epoch{1}, Lsn{~uint64_t{0}}, "xy").status.code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(*store->read(kStream, Lsn{0}, Lsn{11}, Epoch{1}), "hello world");
  // The same within one batch.
  int answers = 0;
  std::vector<StatusCode> codes;
  for (const auto& [at, bytes] : std::vector<std::pair<uint64_t, std::string>>{
           {11, ", a"}, {12, " ag"}, {16, "?"}, {11, "!"}, {14, "g"}})
    store->store().append(kStream, {Epoch{1}, Lsn{at}, bytes, {}}, [&](const ChangeReply& r) {
      codes.push_back(r.status.code());
      ++answers;
    });
  store->drain();
  EXPECT_EQ(answers, 5);
  EXPECT_EQ(codes.size(), 5u);
  EXPECT_EQ(std::count(codes.begin(), codes.end(), StatusCode::kOk), 3);
  EXPECT_EQ(std::count(codes.begin(), codes.end(), StatusCode::kOutOfRange), 1);
  EXPECT_EQ(std::count(codes.begin(), codes.end(), StatusCode::kDataLoss), 1);
  EXPECT_EQ(store->state(kStream).end, Lsn{15});
  EXPECT_EQ(*store->read(kStream, Lsn{11}, Lsn{15}, Epoch{1}), ", ag");
}

TEST_F(LogStoreTest, OnlyQuorumDurableBytesAreReadByAppliers) {
  start();
  ASSERT_TRUE(store->append(kStream, Epoch{1}, Lsn{0}, text(100), Lsn{40}).status.ok());
  EXPECT_EQ(store->state(kStream).quorum_durable, Lsn{40});
  const quorum::ReadReply r = store->store().read(kStream, {Lsn{10}, 1000, false, {}});
  ASSERT_TRUE(r.status.ok());
  EXPECT_EQ(r.bytes, text(100).substr(10, 30));
  EXPECT_EQ(store->store().read(kStream, {Lsn{41}, 10, false, {}}).status.code(),
            StatusCode::kOutOfRange);
  // The holder of the promised epoch reads everything; nobody else does.
  EXPECT_EQ(*store->read(kStream, Lsn{0}, Lsn{100}, Epoch{1}), text(100));
  ASSERT_TRUE(store->seal(kStream, {Epoch{2}, 1}).status.ok());
  EXPECT_EQ(store->read(kStream, Lsn{0}, Lsn{100}, Epoch{1}).status().code(),
            StatusCode::kFailedPrecondition);
  // What a writer says about bytes that are not here yet counts once they are.
  ASSERT_TRUE(store->begin(kStream, tenure(3, 100, history({{1, 0}}))).status.ok());
  ASSERT_TRUE(store->append(kStream, Epoch{3}, Lsn{100}, "", Lsn{130}).status.ok());
  EXPECT_EQ(store->state(kStream).quorum_durable, Lsn{100});
  ASSERT_TRUE(store->append(kStream, Epoch{3}, Lsn{100}, text(50), Lsn{120}).status.ok());
  EXPECT_EQ(store->state(kStream).quorum_durable, Lsn{130});
  crash();
  EXPECT_EQ(store->state(kStream).quorum_durable, Lsn{130});
}

TEST_F(LogStoreTest, WhoWaitsForTheTailIsToldOnce) {
  start();
  int told = 0;
  EXPECT_EQ(store->store().tail(StreamId{99}, Lsn{0}, [] {}).status().code(),
            StatusCode::kNotFound);
  ASSERT_TRUE(store->store().tail(kStream, Lsn{0}, [&] { ++told; }).ok());
  ASSERT_TRUE(store->append(kStream, Epoch{1}, Lsn{0}, text(10)).status.ok());
  EXPECT_EQ(told, 0);  // durable here, not known to be quorum-durable
  ASSERT_TRUE(store->append(kStream, Epoch{1}, Lsn{10}, "", Lsn{5}).status.ok());
  EXPECT_EQ(told, 1);
  ASSERT_TRUE(store->store().tail(kStream, Lsn{4}, [&] { ++told; }).ok());
  EXPECT_EQ(told, 2);
  const auto ticket = store->store().tail(kStream, Lsn{5}, [&] { ++told; });
  ASSERT_TRUE(ticket.ok());
  store->store().cancel_tail(kStream, *ticket);
  ASSERT_TRUE(store->append(kStream, Epoch{1}, Lsn{10}, "", Lsn{10}).status.ok());
  EXPECT_EQ(told, 2);
}

TEST_F(LogStoreTest, BeginCutsWhatTheChosenLogDoesNotHave) {
  start();
  ASSERT_TRUE(store->append(kStream, Epoch{1}, Lsn{0}, text(100), Lsn{60}).status.ok());
  const ChangeReply begun = store->begin(kStream, tenure(3, 80, history({{1, 0}})));
  ASSERT_TRUE(begun.status.ok()) << begun.status;
  EXPECT_EQ(begun.state.end, Lsn{80});
  EXPECT_EQ(begun.state.last_epoch, Epoch{3});
  crash();
  EXPECT_EQ(store->state(kStream).end, Lsn{80});
  ASSERT_TRUE(store->append(kStream, Epoch{3}, Lsn{80}, "new", Lsn{80}).status.ok());
  EXPECT_EQ(*store->read(kStream, Lsn{78}, Lsn{83}, Epoch{3}), text(100).substr(78, 2) + "new");
  crash(3);
  EXPECT_EQ(*store->read(kStream, Lsn{78}, Lsn{83}, Epoch{3}), text(100).substr(78, 2) + "new");
  EXPECT_EQ(store->store().status(kStream)->history, history({{1, 0}, {3, 80}}));
  // Again, late: nothing is cut a second time.
  EXPECT_TRUE(store->begin(kStream, tenure(3, 80, history({{1, 0}}))).status.ok());
  EXPECT_EQ(store->state(kStream).end, Lsn{83});
  EXPECT_EQ(store->begin(kStream, tenure(3, 81, history({{1, 0}}))).status.code(),
            StatusCode::kDataLoss);
}

TEST_F(LogStoreTest, BeginAtTheVeryEndMakesALogNewerEvenWithoutBytes) {
  start();
  ASSERT_TRUE(store->append(kStream, Epoch{1}, Lsn{0}, text(100)).status.ok());
  ASSERT_TRUE(store->begin(kStream, tenure(2, 100, history({{1, 0}}))).status.ok());
  crash();
  EXPECT_EQ(store->state(kStream).last_epoch, Epoch{2});
  const SealReply sealed = store->seal(kStream, {Epoch{9}, 1});
  EXPECT_EQ(sealed.history, history({{1, 0}, {2, 100}}));
  EXPECT_EQ(sealed.state.last_epoch, Epoch{2});
}

TEST_F(LogStoreTest, AReplicaThatLacksBytesCatchesUpFirst) {
  start();
  ASSERT_TRUE(store->append(kStream, Epoch{1}, Lsn{0}, text(50)).status.ok());
  ASSERT_TRUE(store->begin(kStream, tenure(2, 50, history({{1, 0}}))).status.ok());
  ASSERT_TRUE(store->append(kStream, Epoch{2}, Lsn{50}, text(30, 'q')).status.ok());
  // Epoch 4's recovery chose a log that left epoch 1 at 40 and went on under epoch 3.
  const Tenure t = tenure(4, 90, history({{1, 0}, {3, 40}}));
  const ChangeReply behind = store->begin(kStream, t);
  EXPECT_EQ(behind.status.code(), StatusCode::kOutOfRange);
  EXPECT_EQ(behind.next, Lsn{40});
  EXPECT_EQ(store->state(kStream).end, Lsn{80});  // nothing happened yet
  EXPECT_EQ(store->catch_up(kStream, t, Lsn{41}, "x").status.code(), StatusCode::kOutOfRange);
  EXPECT_EQ(store->catch_up(kStream, t, Lsn{40}, text(51)).status.code(),
            StatusCode::kInvalidArgument);
  const ChangeReply some = store->catch_up(kStream, t, Lsn{40}, text(20, 'c'));
  ASSERT_TRUE(some.status.ok()) << some.status;
  EXPECT_EQ(some.state.end, Lsn{60});
  EXPECT_EQ(some.state.last_epoch, Epoch{3});
  EXPECT_EQ(some.state.promised, Epoch{4});
  EXPECT_TRUE(is_conflict(store->append(kStream, Epoch{4}, Lsn{60}, "x").status));  // not begun
  crash();
  EXPECT_EQ(store->state(kStream).end, Lsn{60});
  EXPECT_EQ(store->state(kStream).last_epoch, Epoch{3});
  EXPECT_EQ(store->begin(kStream, t).next, Lsn{60});
  ASSERT_TRUE(
      store->catch_up(kStream, t, Lsn{50}, text(20, 'c').substr(10) + text(30, 'd')).status.ok());
  ASSERT_TRUE(store->begin(kStream, t).status.ok());
  ASSERT_TRUE(store->append(kStream, Epoch{4}, Lsn{90}, "on", Lsn{92}).status.ok());
  crash(2);
  EXPECT_EQ(*store->read(kStream, Lsn{0}, Lsn{92}),
            text(50).substr(0, 40) + text(20, 'c') + text(30, 'd') + "on");
  // A catch-up that arrives late changes nothing.
  EXPECT_TRUE(store->catch_up(kStream, t, Lsn{40}, text(20, 'c')).status.ok());
  EXPECT_EQ(store->state(kStream).end, Lsn{92});
}

TEST_F(LogStoreTest, ANewReplicaStartsAtTheBaseAndVotesWhenItHoldsWhatWasAcknowledged) {
  const Tenure t = tenure(4, 1000, history({{1, 0}, {3, 400}}), 700);
  const ChangeReply behind = store->begin(kStream, t);
  EXPECT_EQ(behind.status.code(), StatusCode::kOutOfRange);
  EXPECT_EQ(behind.next, Lsn{700});
  ASSERT_TRUE(store->catch_up(kStream, t, Lsn{700}, text(300)).status.ok());
  EXPECT_EQ(store->state(kStream).start, Lsn{700});
  const ChangeReply begun = store->begin(kStream, t, Lsn{1010});
  ASSERT_TRUE(begun.status.ok()) << begun.status;
  EXPECT_FALSE(begun.state.voting);
  ASSERT_TRUE(store->append(kStream, Epoch{4}, Lsn{1000}, text(9), Lsn{1009}).status.ok());
  crash();
  EXPECT_FALSE(store->state(kStream).voting);
  EXPECT_TRUE(store->append(kStream, Epoch{4}, Lsn{1009}, "x", Lsn{1010}).state.voting);
  EXPECT_EQ(*store->read(kStream, Lsn{700}, Lsn{1000}), text(300));
  // Who votes goes on voting, also when a later epoch cuts its log back.
  ASSERT_TRUE(store->append(kStream, Epoch{4}, Lsn{1010}, "junk").status.ok());
  ASSERT_TRUE(
      store->begin(kStream, tenure(5, 1010, history({{3, 400}, {4, 1000}}), 700)).status.ok());
  EXPECT_TRUE(store->state(kStream).voting);
}

TEST_F(LogStoreTest, ALogThatEndsBeforeTheBaseOrLeftItEarlierIsReset) {
  start();
  ASSERT_TRUE(store->append(kStream, Epoch{1}, Lsn{0}, text(100), Lsn{50}).status.ok());
  // This replica's bytes from 60 on are no part of the chosen log, of which 90 is the first kept.
  const Tenure t = tenure(5, 200, history({{1, 0}, {4, 60}}), 90);
  EXPECT_EQ(store->begin(kStream, t).next, Lsn{90});
  ASSERT_TRUE(store->catch_up(kStream, t, Lsn{90}, text(110, 'n')).status.ok());
  crash();
  EXPECT_EQ(store->state(kStream).start, Lsn{90});
  ASSERT_TRUE(store->begin(kStream, t).status.ok());
  EXPECT_EQ(*store->read(kStream, Lsn{90}, Lsn{200}, Epoch{5}), text(110, 'n'));
  EXPECT_EQ(store->read(kStream, Lsn{89}, Lsn{91}, Epoch{5}).status().code(),
            StatusCode::kOutOfRange);
}

// LG13: writers come and go without end, and nothing is ever cut off.
TEST_F(LogStoreTest, EpochsWithoutEndAreTaken) {
  constexpr uint64_t kEpochs = 2300;
  quorum::History known;
  for (uint64_t epoch = 1; epoch <= kEpochs; ++epoch) {
    const Lsn at{epoch - 1};
    if (epoch > 1) known = store->seal(kStream, {Epoch{epoch}, epoch * 1000}).history;
    const ChangeReply begun = store->begin(kStream, tenure(epoch, at.value, known));
    ASSERT_TRUE(begun.status.ok()) << epoch << ": " << begun.status;
    ASSERT_TRUE(store->append(kStream, Epoch{epoch}, at, "x").status.ok());
  }
  const auto check = [&] {
    const auto status = store->store().status(kStream);
    EXPECT_GE(status->history.size(), 500u);
    EXPECT_LE(status->history.size(), options.history_entries_max);
    EXPECT_EQ(status->history.back(), (quorum::EpochStart{Epoch{kEpochs}, Lsn{kEpochs - 1}}));
    EXPECT_TRUE(status->damages.empty());
    EXPECT_EQ(store->state(kStream).start, Lsn{0});
    EXPECT_EQ(*store->read(kStream, Lsn{0}, Lsn{kEpochs}, Epoch{kEpochs}),
              std::string(kEpochs, 'x'));
  };
  check();
  crash();
  check();
}

// LG13: a replica that was away while all epochs it knows were forgotten keeps what it knows to be
// acknowledged and is filled from there, over a crash, though it ends before any epoch that is
// known meanwhile.
TEST_F(LogStoreTest, AReplicaWithoutACommonEpochGoesOnFromWhatWasAcknowledged) {
  start();
  ASSERT_TRUE(store->append(kStream, Epoch{1}, Lsn{0}, text(100), Lsn{50}).status.ok());
  const Tenure t = tenure(20, 300, history({{18, 200}, {19, 250}}));
  EXPECT_EQ(store->begin(kStream, t).next, Lsn{50});
  ASSERT_TRUE(store->catch_up(kStream, t, Lsn{50}, text(70, 'n')).status.ok());
  EXPECT_EQ(store->state(kStream).end, Lsn{120});
  EXPECT_EQ(store->state(kStream).last_epoch, Epoch{1}) << "the lowest there is";
  crash();
  EXPECT_EQ(store->state(kStream).end, Lsn{120});
  ASSERT_TRUE(store->catch_up(kStream, t, Lsn{120}, text(60, 'o')).status.ok());
  // Another writer's recovery, which knows more epochs, goes on from there, too.
  const Tenure next = tenure(21, 300, history({{17, 150}, {18, 200}, {19, 250}}));
  EXPECT_EQ(store->begin(kStream, next).next, Lsn{180});
  ASSERT_TRUE(store->catch_up(kStream, next, Lsn{180}, text(120, 'p')).status.ok());
  ASSERT_TRUE(store->begin(kStream, next).status.ok());
  crash();
  EXPECT_TRUE(store->store().status(kStream)->damages.empty());
  EXPECT_EQ(store->state(kStream).last_epoch, Epoch{21});
  EXPECT_EQ(*store->read(kStream, Lsn{0}, Lsn{300}, Epoch{21}),
            text(100).substr(0, 50) + text(70, 'n') + text(60, 'o') + text(120, 'p'));
}

TEST_F(LogStoreTest, AReplicaWithoutACommonEpochThatKnowsOfNothingBeginsAnew) {
  start();
  ASSERT_TRUE(store->append(kStream, Epoch{1}, Lsn{0}, text(100)).status.ok());
  const Tenure t = tenure(20, 300, history({{18, 200}, {19, 250}}));
  EXPECT_EQ(store->begin(kStream, t).next, Lsn{0});
  // What is acknowledged is behind what was chosen: no recovery may do that.
  ASSERT_TRUE(store->append(kStream, Epoch{1}, Lsn{100}, text(400), Lsn{500}).status.ok());
  EXPECT_EQ(store->begin(kStream, t).status.code(), StatusCode::kDataLoss);
}

// LG13: nothing is left of its log but an epoch that the others do not have. Were it filled from
// their base on, its vote would say that it ends there, and it had more.
TEST_F(LogStoreTest, ALogThatWasCutOffToItsEndGoesOnThere) {
  start();
  ASSERT_TRUE(store->append(kStream, Epoch{1}, Lsn{0}, text(100), Lsn{100}).status.ok());
  ASSERT_TRUE(store->truncate_prefix(kStream, Lsn{100}).status.ok());
  ASSERT_TRUE(store->begin(kStream, tenure(2, 100, history({{1, 0}}))).status.ok());
  EXPECT_EQ(store->store().status(kStream)->history, history({{2, 100}}));
  const ChangeReply begun = store->begin(kStream, tenure(3, 130, history({{1, 0}})));
  EXPECT_EQ(begun.status.code(), StatusCode::kOutOfRange);
  EXPECT_EQ(begun.next, Lsn{100}) << "it lacks what is behind that";
  EXPECT_TRUE(store->begin(kStream, tenure(4, 100, history({{1, 0}}))).status.ok());
  EXPECT_EQ(store->state(kStream).start, Lsn{100});
  EXPECT_EQ(store->state(kStream).end, Lsn{100});
}

// CU3: what is between was cut off on all the others.
TEST_F(LogStoreTest, ALogMayBeginBehindItsEpochsStart) {
  Tenure t = tenure(4, 1000, history({{1, 0}, {3, 400}}), 700);
  t.base = Lsn{1500};
  EXPECT_EQ(store->catch_up(kStream, t, Lsn{1000}, "x").status.code(),
            StatusCode::kInvalidArgument);
  const ChangeReply begun = store->begin(kStream, t, Lsn{1510});
  ASSERT_TRUE(begun.status.ok()) << begun.status;
  EXPECT_FALSE(begun.state.voting);
  EXPECT_EQ(begun.state.start, Lsn{1500});
  EXPECT_EQ(begun.state.end, Lsn{1500});
  EXPECT_EQ(begun.state.last_epoch, Epoch{4});
  ASSERT_TRUE(store->append(kStream, Epoch{4}, Lsn{1500}, text(9), Lsn{1509}).status.ok());
  crash();
  EXPECT_EQ(store->state(kStream).start, Lsn{1500});
  EXPECT_EQ(*store->read(kStream, Lsn{1500}, Lsn{1509}), text(9));
  EXPECT_EQ(store->seal(kStream, {Epoch{4}, 4000}).history, history({{4, 1000}}));
  // Who holds it already keeps it; the writer's own begin, which names the first base, changes
  // nothing either.
  t.base = Lsn{1505};
  EXPECT_EQ(store->begin(kStream, t, Lsn{1510}).state.start, Lsn{1500});
  t.base = Lsn{700};
  EXPECT_EQ(store->begin(kStream, t, Lsn{1510}).state.end, Lsn{1509});
  EXPECT_TRUE(store->append(kStream, Epoch{4}, Lsn{1509}, "x", Lsn{1510}).state.voting);
  // Again too far behind, and it goes on voting: it never acknowledged anything behind its end.
  t.base = Lsn{2000};
  const ChangeReply later = store->begin(kStream, t, Lsn{2000});
  ASSERT_TRUE(later.status.ok()) << later.status;
  EXPECT_TRUE(later.state.voting);
  EXPECT_EQ(later.state.start, Lsn{2000});
  EXPECT_EQ(store->read(kStream, Lsn{1500}, Lsn{1501}).status().code(), StatusCode::kOutOfRange);
  crash(1);
  EXPECT_EQ(store->state(kStream).end, Lsn{2000});
  // The next epoch goes on from there.
  ASSERT_TRUE(store->append(kStream, Epoch{4}, Lsn{2000}, text(30), Lsn{2010}).status.ok());
  const Tenure next = tenure(6, 2020, history({{3, 400}, {4, 1000}}), 900);
  ASSERT_TRUE(store->begin(kStream, next).status.ok());
  EXPECT_EQ(store->state(kStream).start, Lsn{2000});
  EXPECT_EQ(store->state(kStream).end, Lsn{2020});
}

// A replica that catches up is told that its log begins later, for the others have cut theirs off.
// Whoever applies the log looks at it all the while.
TEST_F(LogStoreTest, WhoLooksDuringAResetSeesTheLogBeforeOrAfterIt) {  // LG12
  Tenure t = tenure(4, 6000, history({{1, 1000}, {3, 5000}}), 1000);
  ASSERT_TRUE(store->catch_up(kStream, t, Lsn{1000}, text(3000), Lsn{4000}).status.ok());
  quorum::ReplicaState last = store->state(kStream);
  ASSERT_EQ(last.quorum_durable, Lsn{4000});
  int looks = 0;
  fs->set_observer([&] {
    const auto now = store->store().state(kStream);
    ASSERT_TRUE(now.ok());
    EXPECT_GE(now->quorum_durable, last.quorum_durable);
    EXPECT_GE(now->start, last.start);
    EXPECT_LE(now->start, now->end);
    EXPECT_FALSE(now->last_epoch.is_zero());
    last = *now;
    ++looks;
  });
  t.base = Lsn{9000};
  ASSERT_TRUE(store->begin(kStream, t, Lsn{9500}).status.ok());
  fs->set_observer(nullptr);
  EXPECT_GT(looks, 1);
  EXPECT_EQ(store->state(kStream).quorum_durable, Lsn{9000});
}

TEST_F(LogStoreTest, ALogDoesNotBeginLaterThanWhatIsKnownToBeAcknowledged) {  // LG5
  start();
  ASSERT_TRUE(store->append(kStream, Epoch{1}, Lsn{0}, text(100), Lsn{90}).status.ok());
  Tenure t = tenure(3, 40, history({{2, 10}}), 20);
  t.base = Lsn{60};
  EXPECT_EQ(store->begin(kStream, t).status.code(), StatusCode::kDataLoss);
  EXPECT_EQ(store->state(kStream).end, Lsn{100});
}

TEST_F(LogStoreTest, QuorumDurableBytesAreNeverCutOff) {
  start();
  ASSERT_TRUE(store->append(kStream, Epoch{1}, Lsn{0}, text(100), Lsn{70}).status.ok());
  const Status wrong = store->begin(kStream, tenure(3, 60, history({{1, 0}}))).status;
  EXPECT_EQ(wrong.code(), StatusCode::kDataLoss);
  EXPECT_TRUE(has(wrong, "acknowledged up to lsn 70")) << wrong;
  EXPECT_EQ(store->catch_up(kStream, tenure(3, 90, history({{1, 0}, {2, 69}})), Lsn{69}, "x")
                .status.code(),
            StatusCode::kDataLoss);
  EXPECT_EQ(store->begin(kStream, tenure(3, 65, history({{2, 61}}), 65)).status.code(),
            StatusCode::kDataLoss);
  EXPECT_EQ(store->state(kStream).end, Lsn{100});
  EXPECT_EQ(store->state(kStream).promised, Epoch{1});
}

TEST_F(LogStoreTest, TenuresThatMakeNoSenseAreRefused) {
  start();
  for (const Tenure& t :
       {tenure(0, 0), tenure(3, 50, history({{1, 0}, {3, 20}})), tenure(3, 50, history({{1, 60}})),
        tenure(3, 50, history({{2, 0}, {1, 20}}))}) {
    EXPECT_EQ(store->begin(kStream, t).status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(store->catch_up(kStream, t, Lsn{0}, "").status.code(), StatusCode::kInvalidArgument);
  }
}

// --- durability ---

TEST_F(LogStoreTest, EverythingAcknowledgedSurvivesAPowerLossOverManySegments) {
  start();
  for (int i = 0; i < 60; ++i) write(1 + i * 37 % 1900);
  EXPECT_GT(names("log-").size(), 4u);
  for (uint64_t seed = 1; seed < 6; ++seed) {
    crash(seed);
    ASSERT_EQ(store->state(kStream).end.value, content.size());
    expect_content();
    write(700);
  }
  EXPECT_TRUE(store->store().verify(kStream).ok());
}

TEST_F(LogStoreTest, OneBatchSyncsEachStreamOnce) {
  std::vector<StreamId> streams;
  for (uint32_t i = 1; i <= 3; ++i) {
    streams.push_back(StreamId{i});
    ASSERT_TRUE(store->begin(StreamId{i}, tenure(1, 0)).status.ok());
    ASSERT_TRUE(store->append(StreamId{i}, Epoch{1}, Lsn{0}, "x").status.ok());
  }
  const uint64_t syncs = store->store().counters().syncs;
  int done = 0;
  for (uint64_t n = 1; n <= 50; ++n)
    for (StreamId stream : streams)
      store->store().append(stream, {Epoch{1}, Lsn{n}, "y", {}}, [&](const ChangeReply& r) {
        EXPECT_TRUE(r.status.ok());
        EXPECT_EQ(r.state.end, Lsn{51});
        ++done;
      });
  EXPECT_EQ(store->store().pending_bytes(), 150u);
  EXPECT_TRUE(store->store().persist_pending());
  EXPECT_FALSE(store->store().persist_pending());
  EXPECT_EQ(done, 150);
  EXPECT_EQ(store->store().counters().syncs, syncs + 3);
}

TEST_F(LogStoreTest, ATornTailIsTheEndAndNothingIsWrittenBehindIt) {
  start();
  write(500);
  const uint64_t durable = content.size();
  // The process dies between write and sync, with several chunks under way.
  faulty.judge = [](const char* operation, const std::string& path) {
    const bool fails = std::string(operation) == "sync" && path.find("log-") != std::string::npos;
    return fails ? error_internal("scripted") : ok_status();
  };
  const ChangeReply lost =
      store->append(kStream, Epoch{1}, Lsn{durable}, text(5000, 'L'), Lsn{durable});
  EXPECT_EQ(lost.status.code(), StatusCode::kInternal);
  faulty.judge = nullptr;
  for (uint64_t seed = 1; seed < 30; ++seed) {
    const auto copy = fs->fork();
    copy->crash(seed);
    SyncStore after(copy.get(), options);
    const uint64_t end = after.state(kStream).end.value;
    ASSERT_GE(end, durable);
    ASSERT_LE(end, durable + 5000);
    // The same epoch goes on, with its bytes cut differently this time.
    ASSERT_TRUE(
        after.append(kStream, Epoch{1}, Lsn{durable}, text(5000, 'L').substr(0, 2600)).status.ok());
    copy->crash(seed + 100);
    SyncStore again(copy.get(), options);
    ASSERT_GE(again.state(kStream).end.value, durable + 2600);
    EXPECT_EQ(*again.read(kStream, Lsn{durable}, Lsn{durable + 2600}, Epoch{1}),
              text(5000, 'L').substr(0, 2600));
  }
}

TEST_F(LogStoreTest, AFailedSyncAcknowledgesNothingAndTheNextAppendGoesElsewhere) {
  start();
  write(500);
  const std::vector<std::string> before = names("log-");
  faulty.judge = [](const char* operation, const std::string& path) {
    const bool fails = std::string(operation) == "sync" && path.find("log-") != std::string::npos;
    return fails ? error_internal("scripted") : ok_status();
  };
  EXPECT_EQ(store->append(kStream, Epoch{1}, Lsn{500}, text(300)).status.code(),
            StatusCode::kInternal);
  EXPECT_EQ(store->state(kStream).end, Lsn{500});
  EXPECT_EQ(store->store().counters().failed_syncs, 1u);
  faulty.judge = nullptr;
  write(400);
  EXPECT_EQ(names("log-").size(), before.size() + 1);
  crash();
  ASSERT_EQ(store->state(kStream).end.value, content.size());
  expect_content();
}

TEST_F(LogStoreTest, AFailedPublishKeepsThePromiseUncertainUntilItIsWrittenAnew) {
  start();
  write(100);
  for (const char* broken : {"write", "sync"}) {
    const auto copy = fs->fork();
    FaultyFileSystem disk(copy.get());
    SyncStore node(&disk, options);
    disk.judge = [&](const char* operation, const std::string& path) {
      const bool fails = operation == std::string(broken) && path.find(".ctl") != std::string::npos;
      return fails ? error_internal("scripted") : ok_status();
    };
    EXPECT_EQ(node.seal(kStream, {Epoch{5}, 1}).status.code(), StatusCode::kInternal);
    // The promise may be on disk: until that is settled nothing is accepted.
    EXPECT_EQ(node.append(kStream, Epoch{1}, Lsn{100}, "x").status.code(), StatusCode::kInternal);
    EXPECT_EQ(node.begin(kStream, tenure(3, 100, history({{1, 0}}))).status.code(),
              StatusCode::kInternal);
    disk.judge = nullptr;
    EXPECT_TRUE(node.append(kStream, Epoch{1}, Lsn{100}, "x").status.ok());
    for (uint64_t seed = 1; seed < 5; ++seed) {
      const auto later = copy->fork();
      later->crash(seed);
      SyncStore after(later.get(), options);
      EXPECT_EQ(after.state(kStream).promised, Epoch{1});
      EXPECT_EQ(after.state(kStream).end, Lsn{101});
    }
  }
}

TEST_F(LogStoreTest, AFullDiskLosesNothingAndWorkGoesOnWhenThereIsRoom) {
  start();
  write(1000);
  fs->set_capacity(60000);
  Status full;
  for (int i = 0; i < 100 && full.ok(); ++i) {
    const ChangeReply r =
        store->append(kStream, Epoch{1}, Lsn{content.size()}, text(900), Lsn{content.size()});
    full = r.status;
    if (full.ok()) content += text(900);
  }
  EXPECT_EQ(full.code(), StatusCode::kResourceExhausted) << full;
  for (int i = 0; i < 5; ++i)
    EXPECT_EQ(store->append(kStream, Epoch{1}, Lsn{content.size()}, text(900)).status.code(),
              StatusCode::kResourceExhausted);
  // Promises are made on a full disk, too.
  EXPECT_TRUE(store->seal(kStream, {Epoch{1}, 1000}).status.ok());
  EXPECT_GE(store->store().counters().disk_full, 6u);
  expect_content();
  crash();
  expect_content();
  // Bytes that nobody was told of may be there, too.
  content = *store->read(kStream, Lsn{0}, store->state(kStream).end, Epoch{1});
  EXPECT_EQ(names("spare-").size(), 0u);  // nothing half-made takes the room
  fs->set_capacity(1u << 30);
  write(3000);
  expect_content();
}

TEST_F(LogStoreTest, TheQueueIsBounded) {
  options.pending_bytes_max = 100;
  open();
  start();
  int refused = 0;
  int done = 0;
  for (uint64_t i = 0; i < 3; ++i)
    store->store().append(kStream, {Epoch{1}, Lsn{i * 50}, text(50), {}}, [&](const auto& r) {
      if (is_busy(r.status)) ++refused;
      if (r.status.ok()) ++done;
    });
  EXPECT_EQ(refused, 1);
  store->drain();
  EXPECT_EQ(done, 2);
  EXPECT_EQ(store->store().pending_bytes(), 0u);
}

TEST_F(LogStoreTest, WhatIsQueuedIsAnsweredWhenTheStoreGoesAway) {
  start();
  Error append = Error::ok;
  Error seal = Error::ok;
  store->store().append(kStream, {Epoch{1}, Lsn{0}, "x", {}},
                        [&](const ChangeReply& r) { append = error_of(r.status); });
  store->store().seal(kStream, {{Epoch{2}, 1}},
                      [&](const SealReply& r) { seal = error_of(r.status); });
  store.reset();
  EXPECT_EQ(append, Error::peer_down);
  EXPECT_EQ(seal, Error::peer_down);
}

TEST_F(LogStoreTest, APrefixThatIsNotNeededIsForgottenAndItsFilesReused) {
  start();
  for (int i = 0; i < 40; ++i) write(900);
  EXPECT_EQ(store->truncate_prefix(kStream, Lsn{content.size()}).status.code(),
            StatusCode::kOutOfRange);
  const size_t before = names("log-").size();
  const uint64_t cut = content.size() - 3000;
  ASSERT_TRUE(store->truncate_prefix(kStream, Lsn{cut}).status.ok());
  EXPECT_LT(names("log-").size(), before);
  EXPECT_EQ(names("spare-").size(), 2u);
  EXPECT_EQ(store->state(kStream).start.value, cut);
  EXPECT_TRUE(store->truncate_prefix(kStream, Lsn{5}).status.ok());  // late
  EXPECT_EQ(store->read(kStream, Lsn{cut - 1}, Lsn{cut}).status().code(), StatusCode::kOutOfRange);
  crash();
  EXPECT_EQ(store->state(kStream).start.value, cut);
  expect_content(cut);
  const uint64_t recycled_from = content.size();
  for (int i = 0; i < 30; ++i) write(900);  // through reused files, whose old chunks must not count
  crash(2);
  ASSERT_EQ(store->state(kStream).end.value, content.size());
  expect_content(recycled_from - 3000);
  EXPECT_TRUE(store->store().verify(kStream).ok());
}

}  // namespace
}  // namespace strata::testing
