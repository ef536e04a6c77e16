// Goal: each rule of the memory node's half of row locks by itself (FQ1-FQ8), message by message.
#include "fusion/locks/row_locks.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <vector>

#include "proto/fusion_messages.h"

namespace strata::fusion {
namespace {

using proto::LockBatch;
using proto::LockEvent;
using proto::LockEventKind;
using proto::LockReply;
using proto::LockRequest;
using proto::LockRequestKind;

constexpr IndexId kIndex{7};
constexpr Epoch kEpoch{3};

TrxId trx(uint8_t server, uint64_t sequence) { return make_trx_id(NodeId{server}, sequence); }

// A server that says what the test tells it to.
class Peer {
 public:
  Peer(RowLocks* locks, uint8_t id, uint64_t life = 1, Epoch epoch = kEpoch)
      : locks_(locks), id_(id), life_(life), epoch_(epoch) {}

  std::vector<LockEvent> say(std::vector<LockRequest> requests) {
    LockBatch batch;
    batch.server = NodeId{id_};
    batch.life = life_;
    batch.epoch = epoch_;
    batch.heard = heard_;
    if (!requests.empty()) batch.number = ++number_;
    batch.requests = std::move(requests);
    const StatusOr<LockReply> reply = locks_->exchange(batch);
    EXPECT_TRUE(reply.ok()) << reply.status();
    if (!reply.ok()) return {};
    EXPECT_EQ(reply->accepted, number_);
    heard_ = reply->first_event + reply->events.size() - 1;
    return reply->events;
  }
  std::vector<LockEvent> report(std::vector<LockRequest> what = {}) {
    what.push_back({.kind = LockRequestKind::kReported});
    return say(std::move(what));
  }
  std::vector<LockEvent> hear() { return say({}); }

  std::vector<LockEvent> wait(uint64_t number, TrxId waiter, TrxId holder, const std::string& key,
                              bool goes_first = false, uint64_t ticket = 0) {
    return say({{.kind = LockRequestKind::kWait,
                 .number = number,
                 .trx = waiter,
                 .holder = holder,
                 .index = kIndex,
                 .key = key,
                 .ticket = ticket,
                 .flag = goes_first}});
  }
  std::vector<LockEvent> cancel(uint64_t number, const std::string& key) {
    return say({{.kind = LockRequestKind::kCancel, .number = number, .index = kIndex, .key = key}});
  }
  std::vector<LockEvent> settled(TrxId who, const std::string& key, bool took) {
    return say({{.kind = LockRequestKind::kSettled,
                 .trx = who,
                 .index = kIndex,
                 .key = key,
                 .flag = took}});
  }
  std::vector<LockEvent> ended(TrxId who) {
    return say({{.kind = LockRequestKind::kEnded, .trx = who}});
  }
  std::vector<LockEvent> gone(uint64_t number, TrxId holder, const std::string& key,
                              bool poll = false) {
    return say({{.kind = LockRequestKind::kGone,
                 .number = number,
                 .holder = holder,
                 .index = kIndex,
                 .key = key,
                 .flag = poll}});
  }
  std::vector<LockEvent> of_row(LockRequestKind kind, uint64_t number, TrxId who,
                                const std::string& key) {
    return say({{.kind = kind, .number = number, .trx = who, .index = kIndex, .key = key}});
  }
  std::vector<LockEvent> add_range(uint64_t number, TrxId who, const std::string& low,
                                   const std::string& high, bool infinite = false) {
    return say({{.kind = LockRequestKind::kAddRange,
                 .number = number,
                 .trx = who,
                 .index = kIndex,
                 .key = low,
                 .high = high,
                 .infinite = infinite}});
  }
  std::vector<LockEvent> consult_heard(uint64_t change) {
    return say({{.kind = LockRequestKind::kConsultHeard, .number = change, .index = kIndex}});
  }
  std::vector<LockEvent> confirmed(uint64_t cycle, bool yes) {
    return say({{.kind = LockRequestKind::kConfirmed, .number = cycle, .flag = yes}});
  }
  [[nodiscard]] uint64_t number() const noexcept { return number_; }

 private:
  RowLocks* const locks_;
  const uint8_t id_;
  const uint64_t life_;
  const Epoch epoch_;
  uint64_t number_ = 0, heard_ = 0;
};

// The first of this kind, which must be there.
LockEvent the(const std::vector<LockEvent>& events, LockEventKind kind) {
  for (const LockEvent& event : events)
    if (event.kind == kind) return event;
  ADD_FAILURE() << "no event " << static_cast<int>(kind) << " among " << events.size();
  return {};
}
bool has(const std::vector<LockEvent>& events, LockEventKind kind) {
  for (const LockEvent& event : events)
    if (event.kind == kind) return true;
  return false;
}

struct RowLocksTest : ::testing::Test {
  RowLocksTest() {
    one.report();
    two.report();
  }
  RowLocks locks{kEpoch, {}};
  Peer one{&locks, 1}, two{&locks, 2};
};

TEST_F(RowLocksTest, FirstWaiterIsRegisteredBeforeItLooksAndGetsTheTurnWhenTheHolderEnds) {
  const LockEvent registered =
      the(two.wait(1, trx(2, 5), trx(1, 9), "a"), LockEventKind::kRegistered);
  EXPECT_EQ(registered.number, 1u);
  EXPECT_TRUE(registered.flag);
  EXPECT_EQ(registered.trx, trx(1, 9));
  const LockEvent queued = the(one.hear(), LockEventKind::kRowQueued);  // its newcomers queue
  EXPECT_TRUE(queued.flag);
  EXPECT_EQ(queued.key, "a");
  const auto after = one.ended(trx(1, 9));
  EXPECT_TRUE(after.empty());
  EXPECT_EQ(the(two.hear(), LockEventKind::kGranted).number, 1u);
  two.settled(trx(2, 5), "a", true);
  EXPECT_FALSE(the(one.hear(), LockEventKind::kRowQueued).flag);
  EXPECT_EQ(locks.describe(10), "");
}

TEST_F(RowLocksTest, WhoLooksInVainForTheHolderGetsTheTurn) {
  two.wait(1, trx(2, 5), trx(1, 9), "a");
  EXPECT_TRUE(two.gone(1, trx(1, 8), "a").empty());  // not whom it waits for
  EXPECT_EQ(the(two.gone(1, trx(1, 9), "a"), LockEventKind::kGranted).number, 1u);
  EXPECT_TRUE(two.gone(1, trx(1, 9), "a").empty());  // over
  EXPECT_EQ(locks.counters().polls_found, 0u);
}

// FQ1: whoever finds another holder when its turn comes waits in its old place.
TEST_F(RowLocksTest, TheTurnGoesByTickets) {
  const uint64_t ticket =
      the(two.wait(1, trx(2, 5), trx(1, 9), "a"), LockEventKind::kRegistered).ticket;
  const auto behind = the(two.wait(2, trx(2, 6), trx(1, 9), "a"), LockEventKind::kRegistered);
  EXPECT_FALSE(behind.flag);
  EXPECT_GT(behind.ticket, ticket);
  one.ended(trx(1, 9));
  EXPECT_EQ(the(two.hear(), LockEventKind::kGranted).number, 1u);
  // A transaction of server 1 that did not know of the queue was faster.
  const auto again =
      the(two.wait(3, trx(2, 5), trx(1, 10), "a", false, ticket), LockEventKind::kRegistered);
  EXPECT_TRUE(again.flag);
  EXPECT_EQ(again.ticket, ticket);
  one.ended(trx(1, 10));
  EXPECT_EQ(the(two.hear(), LockEventKind::kGranted).number, 3u);
  two.settled(trx(2, 5), "a", true);
  EXPECT_FALSE(has(two.hear(), LockEventKind::kGranted));  // the other waits for it now
  EXPECT_EQ(the(two.ended(trx(2, 5)), LockEventKind::kGranted).number, 2u);
  // Not wanted any more: nobody else is there.
  EXPECT_FALSE(has(two.settled(trx(2, 6), "a", false), LockEventKind::kGranted));
  EXPECT_EQ(locks.describe(10), "");
}

TEST_F(RowLocksTest, WhoQueuesForNobodyGetsTheTurnAtOnceOrBehindTheOthers) {
  EXPECT_EQ(the(one.wait(1, trx(1, 5), TrxId{}, "a"), LockEventKind::kGranted).number, 1u);
  EXPECT_FALSE(has(two.wait(1, trx(2, 5), TrxId{}, "a"), LockEventKind::kGranted));
  one.settled(trx(1, 5), "a", false);
  EXPECT_EQ(the(two.hear(), LockEventKind::kGranted).number, 1u);
}

TEST_F(RowLocksTest, WhoHoldsTheRowSharedGoesFirst) {
  one.wait(1, trx(1, 5), trx(2, 9), "a");
  const auto first = the(one.wait(2, trx(1, 6), trx(2, 9), "a", true), LockEventKind::kRegistered);
  EXPECT_TRUE(first.flag);
  two.ended(trx(2, 9));
  EXPECT_EQ(the(one.hear(), LockEventKind::kGranted).number, 2u);
}

// FQ2: with many local waiters behind it the first one of another server waits for eight at most.
TEST_F(RowLocksTest, HotRowStaysOnItsServerButNotForLong) {
  two.wait(1, trx(2, 1), trx(1, 1), "hot");
  for (uint64_t i = 1; i <= 20; ++i) one.wait(i, trx(1, 100 + i), trx(1, 1), "hot");
  one.hear();
  TrxId holder = trx(1, 1);
  for (uint64_t i = 1; i <= 8; ++i) {
    EXPECT_EQ(the(one.ended(holder), LockEventKind::kGranted).number, i);
    holder = trx(1, 100 + i);
    one.settled(holder, "hot", true);
    EXPECT_FALSE(has(two.hear(), LockEventKind::kGranted));
  }
  EXPECT_FALSE(has(one.ended(holder), LockEventKind::kGranted));
  EXPECT_EQ(the(two.hear(), LockEventKind::kGranted).number, 1u);
  two.settled(trx(2, 1), "hot", true);
  two.ended(trx(2, 1));
  EXPECT_EQ(the(one.hear(), LockEventKind::kGranted).number, 9u);
  EXPECT_EQ(locks.counters().overtaken, 8u);
}

// FC12, FQ8: a cancel is idempotent, and one that crosses the turn hands it on.
TEST_F(RowLocksTest, CancelledWaitIsOverAndACrossingTurnGoesOn) {
  two.wait(1, trx(2, 5), trx(1, 9), "a");
  one.wait(1, trx(1, 5), trx(1, 9), "a");
  two.wait(2, trx(2, 6), trx(1, 9), "a");
  two.cancel(2, "a");
  two.cancel(2, "a");
  one.ended(trx(1, 9));  // FQ2: its own server's goes first
  two.cancel(1, "a");
  EXPECT_FALSE(the(one.cancel(1, "a"), LockEventKind::kRowQueued).flag);  // crosses the turn
  EXPECT_EQ(locks.describe(10), "");
  one.cancel(1, "a");
  // And the next one is not kept waiting by any of this.
  EXPECT_EQ(the(two.wait(3, trx(2, 7), TrxId{}, "a"), LockEventKind::kGranted).number, 3u);
}

TEST_F(RowLocksTest, WhenTheFirstGivesUpTheNextLooksForItself) {
  two.wait(1, trx(2, 5), trx(1, 9), "a");
  two.wait(2, trx(2, 6), trx(1, 9), "a");
  EXPECT_EQ(the(two.cancel(1, "a"), LockEventKind::kGranted).number, 2u);
}

// FQ3: a holder whose table cannot be written to is told of from here, and the look comes after.
TEST_F(RowLocksTest, HoldersServerIsToldAndOnlyThenTheWaiterLooks) {
  two.wait(1, trx(2, 5), trx(1, 9), "a");
  two.say({{.kind = LockRequestKind::kNote, .number = 1, .holder = trx(1, 9)}});
  EXPECT_FALSE(has(two.hear(), LockEventKind::kLook));
  EXPECT_EQ(the(one.hear(), LockEventKind::kWaitedFor).trx, trx(1, 9));
  one.say({{.kind = LockRequestKind::kNoted, .holder = trx(1, 9)}});
  const LockEvent look = the(two.hear(), LockEventKind::kLook);
  EXPECT_EQ(look.number, 1u);
  EXPECT_EQ(look.trx, trx(1, 9));
}

// FQ3, FQ7: rows of a server that is gone stay its transactions' until who adopts them ends each.
TEST_F(RowLocksTest, WhoAdoptsIsToldWhoIsWaitedFor) {
  two.wait(1, trx(2, 5), trx(1, 9), "a");
  locks.gone(NodeId{1});
  // What it has said last may not have come: the waiter looks again.
  const auto events = two.hear();
  EXPECT_FALSE(has(events, LockEventKind::kGranted));
  EXPECT_EQ(the(events, LockEventKind::kRegistered).trx, trx(1, 9));
  two.say({{.kind = LockRequestKind::kNote, .number = 1, .holder = trx(1, 9)}});  // nobody is there
  locks.adopted(NodeId{1}, NodeId{2});
  EXPECT_EQ(the(two.hear(), LockEventKind::kWaitedFor).trx, trx(1, 9));
  EXPECT_EQ(
      the(two.say({{.kind = LockRequestKind::kNoted, .holder = trx(1, 9)}}), LockEventKind::kLook)
          .number,
      1u);
  EXPECT_EQ(the(two.ended(trx(1, 9)), LockEventKind::kGranted).number, 1u);
}

TEST_F(RowLocksTest, AnotherLifeOfAServerIsToldWhoIsWaitedFor) {
  two.wait(1, trx(2, 5), trx(1, 9), "a");
  locks.gone(NodeId{1});
  Peer again(&locks, 1, 2);
  EXPECT_EQ(the(again.report(), LockEventKind::kWaitedFor).trx, trx(1, 9));
}

TEST_F(RowLocksTest, ServerThatIsGoneWaitsForNothingAndHoldsNothingShared) {
  one.consult_heard(1);
  one.of_row(LockRequestKind::kAddShared, 1, trx(1, 4), "s");
  one.consult_heard(1);
  two.consult_heard(1);
  two.of_row(LockRequestKind::kWaitShared, 1, trx(2, 4), "s");
  one.wait(2, trx(1, 5), trx(2, 9), "a");
  two.wait(2, trx(2, 6), trx(2, 9), "a");
  one.wait(3, trx(1, 6), TrxId{}, "b");  // has the turn
  two.wait(3, trx(2, 7), TrxId{}, "b");
  locks.gone(NodeId{1});
  const auto events = two.hear();
  std::vector<uint64_t> granted;
  for (const LockEvent& event : events)
    if (event.kind == LockEventKind::kGranted) granted.push_back(event.number);
  EXPECT_EQ(granted, (std::vector<uint64_t>{2, 3, 1}));  // the first of `a` looks for itself
}

// FQ5
TEST_F(RowLocksTest, SharedLockCountsOnceEveryWriterAsks) {
  EXPECT_EQ(the(one.of_row(LockRequestKind::kAddShared, 1, trx(1, 4), "a"), LockEventKind::kConsult)
                .number,
            1u);
  EXPECT_FALSE(has(one.consult_heard(1), LockEventKind::kAdded));
  EXPECT_EQ(the(two.hear(), LockEventKind::kConsult).number, 1u);
  // Another one meanwhile waits for the same answers.
  EXPECT_FALSE(has(two.add_range(1, trx(2, 4), "m", "p"), LockEventKind::kAdded));
  EXPECT_EQ(the(two.consult_heard(1), LockEventKind::kAdded).number, 1u);
  EXPECT_EQ(the(one.hear(), LockEventKind::kAdded).number, 1u);
  // And the next at once.
  EXPECT_TRUE(
      has(one.of_row(LockRequestKind::kAddShared, 2, trx(1, 4), "b"), LockEventKind::kAdded));
  EXPECT_EQ(
      the(two.of_row(LockRequestKind::kAskShared, 2, trx(2, 9), "b"), LockEventKind::kShared).trx,
      trx(1, 4));
  EXPECT_EQ(
      the(two.of_row(LockRequestKind::kAskShared, 3, trx(1, 4), "b"), LockEventKind::kShared).trx,
      TrxId{});
  EXPECT_EQ(
      the(one.of_row(LockRequestKind::kAskShared, 3, trx(1, 4), "mm"), LockEventKind::kShared).trx,
      trx(2, 4));
}

TEST_F(RowLocksTest, AnswerToAnEarlierChangeCountsForNothing) {
  one.of_row(LockRequestKind::kAddShared, 1, trx(1, 4), "a");
  one.consult_heard(1);
  two.consult_heard(1);
  one.of_row(LockRequestKind::kReleaseShared, 0, trx(1, 4), "");
  locks.tick(1'000'000);
  locks.tick(10'900'000);
  EXPECT_FALSE(has(two.hear(), LockEventKind::kConsult) && locks.counters().consults > 1);
  locks.tick(11'100'000);
  const LockEvent off = the(two.hear(), LockEventKind::kConsult);
  EXPECT_FALSE(off.flag);
  EXPECT_EQ(off.number, 2u);
  one.of_row(LockRequestKind::kAddShared, 2, trx(1, 4), "a");
  one.consult_heard(3);
  EXPECT_FALSE(has(two.consult_heard(1), LockEventKind::kAdded));
  EXPECT_FALSE(has(one.hear(), LockEventKind::kAdded));
  two.consult_heard(3);
  EXPECT_TRUE(has(one.hear(), LockEventKind::kAdded));
}

TEST_F(RowLocksTest, NewServerHearsWhatWritersAskForWithItsFirstReply) {
  one.of_row(LockRequestKind::kAddShared, 1, trx(1, 4), "a");
  one.consult_heard(1);
  two.consult_heard(1);
  one.hear();
  Peer three(&locks, 3);
  EXPECT_TRUE(the(three.report(), LockEventKind::kConsult).flag);
  EXPECT_FALSE(
      has(one.of_row(LockRequestKind::kAddShared, 2, trx(1, 4), "b"), LockEventKind::kAdded));
  three.consult_heard(1);
  EXPECT_TRUE(has(one.hear(), LockEventKind::kAdded));
}

TEST_F(RowLocksTest, ServerThatIsGoneIsNotAwaited) {
  one.of_row(LockRequestKind::kAddShared, 1, trx(1, 4), "a");
  one.consult_heard(1);
  locks.gone(NodeId{2});
  EXPECT_TRUE(has(one.hear(), LockEventKind::kAdded));
}

TEST_F(RowLocksTest, WriterWaitsUntilTheLastSharedHolderIsGone) {
  one.add_range(1, trx(1, 4), "a", "z");
  one.consult_heard(1);
  two.consult_heard(1);
  two.of_row(LockRequestKind::kAddShared, 1, trx(2, 4), "m");
  EXPECT_FALSE(
      has(two.of_row(LockRequestKind::kWaitShared, 2, trx(2, 5), "m"), LockEventKind::kGranted));
  one.of_row(LockRequestKind::kDropRangeKey, 0, trx(1, 4), "m");
  EXPECT_FALSE(has(two.hear(), LockEventKind::kGranted));
  EXPECT_EQ(
      the(two.of_row(LockRequestKind::kDropShared, 0, trx(2, 4), "m"), LockEventKind::kGranted)
          .number,
      2u);
  // Only that key was taken out.
  EXPECT_FALSE(
      has(two.of_row(LockRequestKind::kWaitShared, 3, trx(2, 5), "n"), LockEventKind::kGranted));
  one.of_row(LockRequestKind::kReleaseShared, 0, trx(1, 4), "");
  EXPECT_EQ(the(two.hear(), LockEventKind::kGranted).number, 3u);
  // Nobody is in the way of its own.
  one.of_row(LockRequestKind::kAddShared, 2, trx(1, 4), "x");
  EXPECT_TRUE(
      has(one.of_row(LockRequestKind::kWaitShared, 3, trx(1, 4), "x"), LockEventKind::kGranted));
}

// FQ4
TEST_F(RowLocksTest, DeadlockOverTwoServersEndsForTheNewcomerOnceBothHaveConfirmed) {
  one.wait(1, trx(1, 1), trx(2, 1), "b");
  const auto asked = the(two.wait(1, trx(2, 1), trx(1, 1), "a"), LockEventKind::kConfirm);
  const uint64_t cycle = the(one.hear(), LockEventKind::kConfirm).number;
  EXPECT_EQ(asked.number, cycle);
  EXPECT_EQ(asked.waits, std::vector<uint64_t>{1});
  two.confirmed(cycle, true);
  two.confirmed(cycle, true);
  EXPECT_EQ(locks.counters().deadlocks, 0u);
  const std::vector<LockEvent> first = one.confirmed(cycle, true);
  EXPECT_FALSE(has(first, LockEventKind::kVictim));
  const std::vector<LockEvent> second = two.hear();
  EXPECT_EQ(the(second, LockEventKind::kVictim).number, 1u);
  EXPECT_EQ(second.front().kind, LockEventKind::kDeadlock);  // FQ9: before that
  EXPECT_EQ(locks.counters().deadlocks, 1u);
  for (const LockEvent& told : {second.front(), the(first, LockEventKind::kDeadlock)}) {
    EXPECT_EQ(told.trx, trx(2, 1));
    const auto waits = proto::decode_deadlock(told.key);
    ASSERT_TRUE(waits.ok());
    ASSERT_EQ(waits->size(), 2u);
    for (const proto::DeadlockWait& wait : *waits) {
      EXPECT_EQ(wait.index, kIndex);
      EXPECT_EQ(wait.key, wait.trx == trx(1, 1) ? "b" : "a");
    }
  }
  two.ended(trx(2, 1));
  EXPECT_EQ(the(one.hear(), LockEventKind::kGranted).number, 1u);
}

TEST_F(RowLocksTest, CycleThatIsNoneAnyMoreHasNoVictim) {
  one.wait(1, trx(1, 1), trx(2, 1), "b");
  const uint64_t cycle =
      the(two.wait(1, trx(2, 1), trx(1, 1), "a"), LockEventKind::kConfirm).number;
  two.confirmed(cycle, true);
  one.cancel(1, "b");
  EXPECT_FALSE(has(one.confirmed(cycle, false), LockEventKind::kVictim));
  EXPECT_FALSE(has(two.hear(), LockEventKind::kVictim));
  EXPECT_EQ(locks.counters().unconfirmed, 1u);
}

// The first one of a queue retries and finds a holder that waits for who is behind it.
TEST_F(RowLocksTest, CycleThatRunsThroughAQueueIsFound) {
  two.wait(1, trx(2, 1), trx(1, 1), "a");
  two.wait(2, trx(2, 2), trx(1, 1), "a");
  // Its holder is behind another in `a`.
  const uint64_t cycle =
      the(one.wait(1, trx(1, 1), trx(2, 2), "b"), LockEventKind::kConfirm).number;
  const auto at_two = the(two.hear(), LockEventKind::kConfirm);
  EXPECT_EQ(at_two.waits, std::vector<uint64_t>{2});
  two.confirmed(cycle, true);
  EXPECT_EQ(the(one.confirmed(cycle, true), LockEventKind::kVictim).number, 1u);
}

TEST_F(RowLocksTest, CycleOverASharedLockIsFound) {
  one.of_row(LockRequestKind::kAddShared, 1, trx(1, 1), "a");
  one.consult_heard(1);
  two.consult_heard(1);
  two.of_row(LockRequestKind::kWaitShared, 1, trx(2, 1), "a");
  const uint64_t cycle =
      the(one.wait(2, trx(1, 1), trx(2, 1), "b"), LockEventKind::kConfirm).number;
  two.confirmed(cycle, true);
  EXPECT_EQ(the(one.confirmed(cycle, true), LockEventKind::kVictim).number, 2u);
}

TEST_F(RowLocksTest, EveryCycleOfANewcomerLosesOne) {
  Peer three(&locks, 3);
  three.report();
  // Two hold what the third waits for, and both wait for it.
  one.of_row(LockRequestKind::kAddShared, 1, trx(1, 1), "s");
  for (Peer* peer : {&one, &two, &three}) peer->consult_heard(1);
  two.of_row(LockRequestKind::kAddShared, 1, trx(2, 1), "s");
  one.wait(2, trx(1, 1), trx(3, 1), "x");
  two.wait(2, trx(2, 1), trx(3, 1), "y");
  const uint64_t cycle =
      the(three.of_row(LockRequestKind::kWaitShared, 1, trx(3, 1), "s"), LockEventKind::kConfirm)
          .number;
  one.confirmed(cycle, true);
  EXPECT_EQ(the(three.confirmed(cycle, true), LockEventKind::kVictim).number, 1u);
  EXPECT_FALSE(has(two.hear(), LockEventKind::kVictim));
  EXPECT_EQ(locks.counters().deadlocks, 1u);
}

// FQ6
TEST(RowLocksOfANewMemoryNode, NothingIsGivenBeforeAllHaveReported) {
  RowLocks locks(Epoch{4}, {NodeId{1}, NodeId{2}, NodeId{3}});
  Peer one(&locks, 1, 1, Epoch{4}), two(&locks, 2, 1, Epoch{4});
  const auto wait = [](uint64_t number, TrxId who, TrxId holder, uint64_t ticket) {
    return LockRequest{.kind = LockRequestKind::kWait,
                       .number = number,
                       .trx = who,
                       .holder = holder,
                       .index = kIndex,
                       .key = "a",
                       .ticket = ticket};
  };
  EXPECT_TRUE(
      one.report(
             {wait(11, trx(1, 5), trx(3, 1), 40),
              wait(12, trx(1, 6), trx(3, 1), 60),
              {.kind = LockRequestKind::kAddShared, .trx = trx(1, 7), .index = kIndex, .key = "s"}})
          .empty());
  EXPECT_TRUE(one.of_row(LockRequestKind::kAskShared, 13, trx(1, 9), "t").empty());
  EXPECT_TRUE(one.wait(14, trx(1, 8), TrxId{}, "free").empty());
  EXPECT_FALSE(locks.active());
  EXPECT_TRUE(two.report({wait(21, trx(2, 5), trx(3, 1), 50),
                          {.kind = LockRequestKind::kHasTurn,
                           .number = 20,
                           .trx = trx(2, 6),
                           .index = kIndex,
                           .key = "t",
                           .ticket = 45}})
                  .empty());
  locks.gone(NodeId{3});  // the last one will never report
  EXPECT_TRUE(locks.active());
  const auto at_one = one.hear();
  const LockEvent look = the(at_one, LockEventKind::kRegistered);  // the oldest ticket
  EXPECT_EQ(look.number, 11u);
  EXPECT_TRUE(look.flag);
  EXPECT_EQ(the(at_one, LockEventKind::kGranted).number, 14u);
  EXPECT_EQ(the(at_one, LockEventKind::kShared).number, 13u);
  // Writers are told again to ask, under a number of this epoch, before a lock is added.
  const LockEvent consult = the(two.hear(), LockEventKind::kConsult);
  EXPECT_FALSE(
      has(two.of_row(LockRequestKind::kAddShared, 22, trx(2, 9), "s"), LockEventKind::kAdded));
  one.consult_heard(consult.number);
  EXPECT_TRUE(has(two.consult_heard(consult.number), LockEventKind::kAdded));
  EXPECT_EQ(
      the(two.of_row(LockRequestKind::kAskShared, 23, trx(2, 9), "s"), LockEventKind::kShared).trx,
      trx(1, 7));
  // The turns go by the old tickets, and the turn that was held is.
  EXPECT_EQ(the(one.gone(11, trx(3, 1), "a"), LockEventKind::kGranted).number, 11u);
  EXPECT_TRUE(one.settled(trx(1, 5), "a", false).empty());
  EXPECT_EQ(the(two.hear(), LockEventKind::kGranted).number, 21u);
  EXPECT_FALSE(has(one.wait(15, trx(1, 10), TrxId{}, "t"), LockEventKind::kGranted));
  two.settled(trx(2, 6), "t", false);
  EXPECT_EQ(the(one.hear(), LockEventKind::kGranted).number, 15u);
}

TEST(RowLocksOfANewMemoryNode, FindsCyclesThatWereReported) {
  RowLocks locks(Epoch{4}, {NodeId{1}, NodeId{2}});
  Peer one(&locks, 1, 1, Epoch{4}), two(&locks, 2, 1, Epoch{4});
  const auto wait = [](TrxId who, TrxId holder, const char* key) {
    return LockRequest{.kind = LockRequestKind::kWait,
                       .number = 1,
                       .trx = who,
                       .holder = holder,
                       .index = kIndex,
                       .key = key,
                       .ticket = 5};
  };
  one.report({wait(trx(1, 1), trx(2, 1), "b")});
  const auto events = two.report({wait(trx(2, 1), trx(1, 1), "a")});
  EXPECT_TRUE(has(events, LockEventKind::kConfirm));
}

// FW3
TEST_F(RowLocksTest, BatchesCountOnceAndEventsComeUntilTheyAreHeard) {
  LockBatch batch;
  batch.server = NodeId{1};
  batch.life = 1;
  batch.epoch = kEpoch;
  batch.number = one.number() + 1;
  batch.requests.push_back(
      {.kind = LockRequestKind::kWait, .number = 1, .trx = trx(1, 5), .index = kIndex, .key = "a"});
  for (int i = 0; i < 3; ++i) {  // as when replies are lost
    const auto reply = locks.exchange(batch);
    ASSERT_TRUE(reply.ok());
    EXPECT_EQ(reply->accepted, batch.number);
    EXPECT_EQ(reply->first_event, 1u);
    ASSERT_EQ(reply->events.size(), 1u);
  }
  EXPECT_EQ(locks.counters().waits, 1u);
  EXPECT_TRUE(locks.has_events(NodeId{1}));
  batch.heard = 1;
  EXPECT_TRUE(locks.exchange(batch)->events.empty());
  EXPECT_FALSE(locks.has_events(NodeId{1}));
  batch.heard = 2;
  EXPECT_FALSE(locks.exchange(batch).ok());
  batch.heard = 1;
  batch.number += 2;
  EXPECT_FALSE(locks.exchange(batch).ok());
  batch.life = 2;
  EXPECT_TRUE(is_fenced(locks.exchange(batch).status()));
  batch.epoch = Epoch{9};
  EXPECT_TRUE(is_withdrawn(locks.exchange(batch).status()));
  batch.server = NodeId{8};
  batch.epoch = kEpoch;
  EXPECT_TRUE(is_withdrawn(locks.exchange(batch).status()));
}

TEST_F(RowLocksTest, PollThatFindsSomethingIsCounted) {
  two.wait(1, trx(2, 5), trx(1, 9), "a");
  EXPECT_EQ(the(two.gone(1, trx(1, 9), "a", true), LockEventKind::kGranted).number, 1u);
  EXPECT_EQ(locks.counters().polls_found, 1u);
}

TEST(KeyRanges, AreMergedAndKeysTakenOut) {
  KeyRanges ranges;
  ranges.add("b", "d", false);
  ranges.add("f", "h", false);
  ranges.add("d", "f", false);
  EXPECT_EQ(ranges.size(), 1u);
  ranges.remove("c");
  EXPECT_EQ(ranges.size(), 2u);
  EXPECT_TRUE(ranges.contains("b"));
  EXPECT_FALSE(ranges.contains("c"));
  EXPECT_TRUE(ranges.contains(std::string("c\0", 2)));
  ranges.remove("b");
  EXPECT_FALSE(ranges.contains("b"));
  ranges.add("", "", true);
  EXPECT_EQ(ranges.size(), 1u);
  ranges.remove("");
  EXPECT_FALSE(ranges.contains(""));
  EXPECT_TRUE(ranges.contains("zzz"));
  ranges.add("q", "q", false);
  EXPECT_EQ(ranges.size(), 1u);
}

}  // namespace
}  // namespace strata::fusion
