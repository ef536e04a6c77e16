// Goal: each rule of pages.h by hand, at exact steps (FU13, FU14, FU16, FU17, FU20, FP1-FP3, FP7).
#include "fusion/pages/pages.h"

#include <gtest/gtest.h>

namespace strata::fusion {
namespace {

using proto::kNoPageSlot;
using proto::PageAsk;
using proto::PageCaller;
using proto::PageGiveUp;
using proto::PageGrant;
using proto::PageMode;
using proto::PageReport;

constexpr NodeId kA{1}, kB{2}, kC{3};
constexpr PageId kP{256, 7}, kQ{256, 8};
constexpr auto kS = PageMode::kShared;
constexpr auto kX = PageMode::kExclusive;
constexpr Epoch kEpoch{4};
using Positions = std::vector<proto::StreamPosition>;

class PagesTest : public ::testing::Test {
 protected:
  PagesTest() { begin({.slots = 8}); }
  ~PagesTest() override { EXPECT_EQ(pages_->check(), ""); }
  void begin(const PagesOptions& options) {
    pages_.emplace(options, kEpoch);
    for (const NodeId server : {kA, kB, kC}) ASSERT_TRUE(pages_->joined(server, life(server)).ok());
  }
  static uint64_t life(NodeId server) { return 100u + server.value; }
  static PageCaller caller(NodeId server) { return {server, life(server), kEpoch}; }

  void ask(NodeId server, PageId page, PageMode mode, uint64_t number, uint64_t now_us = 0,
           bool redo = false) {
    const PageAsk asks[] = {{page, mode, number, redo}};
    ASSERT_TRUE(pages_->ask(caller(server), asks, now_us).ok());
  }
  Status say(NodeId server, const PageReport& report) {
    const PageReport reports[] = {report};
    return pages_->report(caller(server), reports, now_us_);
  }
  void give_up(NodeId server, PageId page, uint64_t number) {
    ASSERT_TRUE(say(server, {.page = page, .number = number, .gives_up = true}).ok());
  }
  PageReport version(PageId page, uint64_t number, uint64_t llsn, uint32_t slot, NodeId of,
                     bool gives_up = true) {
    return {.page = page,
            .number = number,
            .gives_up = gives_up,
            .changed = true,
            .llsn = Llsn{llsn},
            .slot = slot,
            .stream = StreamId{of.value},
            .first = Lsn{llsn * 10},
            .end = Lsn{llsn * 10 + 5}};
  }
  uint32_t slot(NodeId server) {
    const auto slots = pages_->take_slots(caller(server), ++requests_, 1);
    EXPECT_TRUE(slots.ok() && slots->size() == 1);
    return slots->front();
  }
  // The one message there is.
  template <typename Message>
  Message one(NodeId to) {
    const auto out = pages_->take_outgoing();
    EXPECT_EQ(out.size(), 1u);
    if (out.size() != 1 || !std::holds_alternative<Message>(out[0].message)) {
      ADD_FAILURE() << "another message";
      return {};
    }
    EXPECT_EQ(out[0].server, to);
    EXPECT_EQ(out[0].life, life(to));
    return std::get<Message>(out[0].message);
  }
  PageGrant granted(NodeId to) { return one<PageGrant>(to); }
  void nothing() { EXPECT_TRUE(pages_->take_outgoing().empty()); }
  // A has the page exclusively.
  PageGrant take(NodeId server, PageId page, PageMode mode, uint64_t number) {
    ask(server, page, mode, number);
    return granted(server);
  }
  void fence(NodeId server) {
    pages_->fence(server);
    pages_->release_fenced(server);
  }

  uint64_t requests_ = 0, now_us_ = 0;
  std::optional<Pages> pages_;
};

TEST_F(PagesTest, ReadersShareAWriterIsAlone) {
  const PageGrant a = take(kA, kP, kS, 1);
  EXPECT_EQ(a.ask, 1u);
  EXPECT_EQ(a.mode, kS);
  EXPECT_FALSE(a.known);
  EXPECT_EQ(a.slot, kNoPageSlot);
  const PageGrant b = take(kB, kP, kS, 1);
  EXPECT_GT(b.number, a.number);
  ask(kC, kP, kX, 1);
  const auto out = pages_->take_outgoing();
  ASSERT_EQ(out.size(), 2u);  // both are asked, nobody is granted anything
  for (const auto& o : out) EXPECT_TRUE(std::holds_alternative<PageGiveUp>(o.message));
  give_up(kA, kP, a.number);
  nothing();
  give_up(kB, kP, b.number);
  EXPECT_EQ(granted(kC).mode, kX);
}

TEST_F(PagesTest, WhoComesLaterWaitsBehindWhoCameBefore) {  // FU20
  const PageGrant a = take(kA, kP, kS, 1);
  ask(kB, kP, kX, 1);
  EXPECT_EQ(one<PageGiveUp>(kA).number, a.number);
  ask(kC, kP, kS, 1);  // could be granted beside A, but B came first
  nothing();
  give_up(kA, kP, a.number);
  const auto out = pages_->take_outgoing();  // B has it, and is asked for it on C's behalf
  ASSERT_EQ(out.size(), 2u);
  EXPECT_EQ(out[0].server, kB);
  give_up(kB, kP, std::get<PageGrant>(out[0].message).number);
  EXPECT_EQ(granted(kC).mode, kS);
}

TEST_F(PagesTest, TheNextWriterIsAskedOnBehalfOfTheNextInTheQueue) {  // FU20
  const PageGrant a = take(kA, kP, kX, 1);
  ask(kB, kP, kX, 1);
  EXPECT_EQ(one<PageGiveUp>(kA).number, a.number);
  ask(kC, kP, kX, 1);
  nothing();
  give_up(kA, kP, a.number);
  const auto out = pages_->take_outgoing();  // B is granted it, and asked for it at once
  ASSERT_EQ(out.size(), 2u);
  const auto& b = std::get<PageGrant>(out[0].message);
  EXPECT_EQ(std::get<PageGiveUp>(out[1].message).number, b.number);
  EXPECT_EQ(out[1].server, kB);
}

TEST_F(PagesTest, AVersionIsWhereTheNextFindsIt) {  // FU13, FU14
  const PageGrant a = take(kA, kP, kX, 1);
  const uint32_t s = slot(kA);
  ask(kB, kP, kS, 1);
  one<PageGiveUp>(kA);
  ASSERT_TRUE(say(kA, version(kP, a.number, 70, s, kA)).ok());
  const PageGrant b = granted(kB);
  EXPECT_TRUE(b.known);
  EXPECT_EQ(b.llsn, Llsn{70});
  EXPECT_EQ(b.slot, s);
}

TEST_F(PagesTest, ReportsThatComeAgainChangeNothing) {  // FU13, FP1
  const PageGrant a = take(kA, kP, kX, 1);
  const uint32_t s5 = slot(kA), s6 = slot(kA);
  const PageReport first = version(kP, a.number, 70, s5, kA, false);
  ASSERT_TRUE(say(kA, first).ok());
  ASSERT_TRUE(say(kA, first).ok());
  ASSERT_TRUE(say(kA, version(kP, a.number, 80, s6, kA, false)).ok());
  // The first slot is free, and A gets it again; the late repetition must not bring 70 back.
  uint32_t again = slot(kA);
  while (again != s5) again = slot(kA);
  ASSERT_TRUE(say(kA, first).ok());
  EXPECT_EQ(pages_->counters().refused_versions, 2u);
  const PageReport last = version(kP, a.number, 90, s5, kA);
  ASSERT_TRUE(say(kA, last).ok());
  const PageGrant b = take(kB, kP, kX, 1);
  EXPECT_EQ(b.llsn, Llsn{90});
  ASSERT_TRUE(say(kA, last).ok());  // A's hold has ended: B keeps its
  ask(kC, kP, kS, 1);
  EXPECT_EQ(one<PageGiveUp>(kB).number, b.number);
}

TEST_F(PagesTest, AGrantThatCrossesItsNotHeldIsNobodys) {  // FU13
  const PageGrant a = take(kA, kP, kX, 1);                 // on its way
  ask(kB, kP, kX, 1);
  EXPECT_EQ(one<PageGiveUp>(kA).number, a.number);  // overtakes it
  give_up(kA, kP, a.number);                        // "not held"
  const PageGrant b = granted(kB);
  // A asks again by the number of its ask: it is still waiting for it.
  ask(kA, kP, kX, 1);
  EXPECT_EQ(one<PageGiveUp>(kB).number, b.number);
  give_up(kA, kP, a.number);  // late
  nothing();
  give_up(kB, kP, b.number);
  EXPECT_GT(granted(kA).number, b.number);
}

TEST_F(PagesTest, AGrantThatDidNotArriveIsSentAgain) {
  const PageGrant a = take(kA, kP, kX, 3);
  EXPECT_EQ(take(kA, kP, kX, 3).number, a.number);
  ask(kA, kP, kX, 2);  // late
  nothing();
  // By a later ask it does not know of that hold: it has to give that up first.
  ask(kA, kP, kX, 4);
  EXPECT_EQ(one<PageGiveUp>(kA).number, a.number);
  give_up(kA, kP, a.number);
  EXPECT_EQ(granted(kA).ask, 4u);
}

TEST_F(PagesTest, NobodyIsGrantedMoreThanItHas) {  // FU19: no conversion here either
  const PageGrant a = take(kA, kP, kS, 1);
  ask(kB, kP, kX, 1);
  one<PageGiveUp>(kA);
  ask(kA, kP, kX, 2);  // behind B
  nothing();
  give_up(kA, kP, a.number);
  const auto out = pages_->take_outgoing();
  ASSERT_EQ(out.size(), 2u);
  EXPECT_EQ(out[0].server, kB);
  give_up(kB, kP, std::get<PageGrant>(out[0].message).number);
  EXPECT_EQ(granted(kA).ask, 2u);
}

TEST_F(PagesTest, HoldersAreAskedAgainAfterAWhile) {
  const PageGrant a = take(kA, kP, kX, 1);
  ask(kB, kP, kX, 1, 1000);
  EXPECT_EQ(one<PageGiveUp>(kA).number, a.number);
  pages_->tick(100'999);
  nothing();
  pages_->tick(101'000);
  EXPECT_EQ(one<PageGiveUp>(kA).number, a.number);
  give_up(kA, kP, a.number);
  granted(kB);
  pages_->tick(900'000);
  nothing();
}

TEST_F(PagesTest, WhatNoServerOfOursSaysIsRefusedWhole) {  // FU14, FW2
  const PageGrant a = take(kA, kP, kX, 1);
  const PageGrant b = take(kB, kQ, kS, 1);
  const uint32_t of_b = slot(kB), of_a = slot(kA);
  const auto refused = [&](NodeId server, const PageReport& report) {
    const PageReport reports[] = {report};
    return is_invalid_argument(pages_->report(caller(server), reports, 0));
  };
  EXPECT_TRUE(refused(kA, version(kP, a.number, 70, of_b, kA)));
  EXPECT_TRUE(refused(kA, version(kP, a.number, 70, 1000, kA)));
  EXPECT_TRUE(refused(kA, version(kP, a.number, 70, kNoPageSlot, kA)));
  EXPECT_TRUE(refused(kB, version(kQ, b.number, 70, of_b, kB)));  // it may only read it
  const PageReport two[] = {version(kP, a.number, 70, of_a, kA),
                            version(kQ, a.number, 71, of_a, kA)};
  EXPECT_TRUE(is_invalid_argument(pages_->report(caller(kA), two, 0)));
  EXPECT_EQ(pages_->counters().versions, 0u);
  const PageAsk none[] = {{kP, static_cast<PageMode>(9), 1}};
  EXPECT_TRUE(is_invalid_argument(pages_->ask(caller(kA), none, 0)));
}

TEST_F(PagesTest, OthersEpochsAndLivesAreRefused) {  // FU1
  const PageAsk asks[] = {{kP, kS, 1}};
  EXPECT_TRUE(is_fenced(pages_->ask({kA, life(kA), Epoch{3}}, asks, 0)));
  EXPECT_TRUE(is_fenced(pages_->ask({kA, life(kA) + 1, kEpoch}, asks, 0)));
  EXPECT_TRUE(is_fenced(pages_->ask({NodeId{9}, 1, kEpoch}, asks, 0)));
  EXPECT_TRUE(is_fenced(pages_->take_slots({kA, 0, kEpoch}, 1, 1).status()));
  EXPECT_TRUE(is_in_use(pages_->joined(kA, life(kA) + 1)));
  pages_->fence(kA);
  EXPECT_TRUE(is_fenced(pages_->ask(caller(kA), asks, 0)));
  EXPECT_TRUE(is_fenced(say(kA, {.page = kP, .number = 1, .gives_up = true})));
}

TEST_F(PagesTest, EntriesGoWhenStorageHasThemAndRaiseTheFloor) {  // FU16
  begin({.slots = 8, .shards = 1});
  const PageGrant a = take(kA, kP, kX, 1);
  const uint32_t s = slot(kA);
  ASSERT_TRUE(say(kA, version(kP, a.number, 70, s, kA)).ok());
  pages_->trim(0);
  EXPECT_EQ(pages_->entries(), 1u);  // storage lacks it
  const auto writes = pages_->begin_writes(10);
  ASSERT_EQ(writes.size(), 1u);
  pages_->trim(0);
  EXPECT_EQ(pages_->entries(), 1u);
  pages_->write_ended(writes[0], true);
  EXPECT_TRUE(pages_->floor_of(kP).llsn.is_zero());
  const uint64_t free = pages_->free_slots();
  pages_->trim(0);
  EXPECT_EQ(pages_->entries(), 0u);
  EXPECT_EQ(pages_->free_slots(), free + 1);
  const PageGrant b = take(kB, kQ, kS, 1);  // of the same shard
  EXPECT_FALSE(b.known);
  EXPECT_EQ(b.floor.llsn, Llsn{70});
  ASSERT_EQ(b.floor.scanned_to.size(), 1u);
  EXPECT_EQ(b.floor.scanned_to[0], (proto::StreamPosition{StreamId{1}, Lsn{705}}));
}

TEST_F(PagesTest, WhatBecameDirtyLaterIsNotWrittenYet) {  // FU17, FV13
  begin({.slots = 8});
  const PageGrant a = take(kA, kP, kX, 1);
  const PageGrant b = take(kA, kQ, kX, 2);
  now_us_ = 1000;
  ASSERT_TRUE(say(kA, version(kP, a.number, 70, slot(kA), kA, false)).ok());
  now_us_ = 2000;
  ASSERT_TRUE(say(kA, version(kQ, b.number, 71, slot(kA), kA, false)).ok());
  ASSERT_TRUE(say(kA, version(kP, a.number, 80, slot(kA), kA, false)).ok());
  EXPECT_TRUE(pages_->begin_writes(10, 999).empty());
  const auto first = pages_->begin_writes(10, 1000);
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].page, kP);
  EXPECT_EQ(first[0].llsn, Llsn{80}) << "the newest of its versions, once";
  now_us_ = 3000;
  ASSERT_TRUE(say(kA, version(kP, a.number, 90, slot(kA), kA, false)).ok());
  pages_->write_ended(first[0], true);
  EXPECT_EQ(pages_->begin_writes(10, 2999).size(), 1u) << "only the other one";
  EXPECT_EQ(pages_->begin_writes(10).size(), 1u) << "somebody waits for it";
}

TEST_F(PagesTest, TheFloorIsThatOfTheGrantNotOfTheAsk) {  // FU16
  begin({.slots = 8, .shards = 1, .storage_replays = true});
  const PageGrant b = take(kB, kQ, kX, 1);
  ask(kC, kQ, kX, 1);
  one<PageGiveUp>(kB);
  const PageGrant a = take(kA, kP, kX, 1);
  ASSERT_TRUE(say(kA, version(kP, a.number, 70, kNoPageSlot, kA)).ok());
  pages_->trim(0);
  EXPECT_EQ(pages_->entries(), 1u);
  give_up(kB, kQ, b.number);
  EXPECT_EQ(granted(kC).floor.llsn, Llsn{70});
}

TEST_F(PagesTest, WhereStorageReplaysAKnownPageHasItsPlacesInTheLogs) {  // FU16
  begin({.slots = 8, .shards = 1, .storage_replays = true});
  PageGrant grant = take(kA, kP, kX, 1);
  EXPECT_TRUE(grant.floor.scanned_to.empty());
  ASSERT_TRUE(say(kA, version(kP, grant.number, 70, slot(kA), kA)).ok());
  grant = take(kB, kP, kX, 1);
  EXPECT_TRUE(grant.known);
  EXPECT_EQ(grant.floor.scanned_to, (Positions{{StreamId{1}, Lsn{705}}}));
  ASSERT_TRUE(say(kB, version(kP, grant.number, 80, kNoPageSlot, kB)).ok());
  grant = take(kC, kP, kS, 1);
  EXPECT_EQ(grant.slot, kNoPageSlot);
  EXPECT_EQ(grant.floor.scanned_to, (Positions{{StreamId{1}, Lsn{705}}, {StreamId{2}, Lsn{805}}}));
}

// It may have changed the page after the version that is known.
TEST_F(PagesTest, WhatAWriterHadThatEndedIsInItsLogUpToTheEnd) {  // FP7
  begin({.slots = 8, .shards = 1, .storage_replays = true});
  const PageGrant a = take(kA, kP, kX, 1);
  ASSERT_TRUE(say(kA, version(kP, a.number, 70, slot(kA), kA, false)).ok());
  take(kA, kQ, kX, 2);
  const uint64_t free = pages_->free_slots();
  ask(kB, kP, kS, 1);
  one<PageGiveUp>(kA);
  fence(kA);
  EXPECT_EQ(pages_->free_slots(), free + 1);
  ASSERT_TRUE(pages_->joined(kA, 900).ok());
  const PageCaller next{kA, 900, kEpoch};
  ASSERT_TRUE(pages_->adopt(next, kA).ok());
  nothing();
  ASSERT_TRUE(pages_->adoption_ended(next, kA, {StreamId{1}, Lsn{999}}).ok());
  const PageGrant b = granted(kB);
  EXPECT_FALSE(b.known);
  EXPECT_EQ(b.slot, kNoPageSlot);
  EXPECT_EQ(b.floor.scanned_to, (Positions{{StreamId{1}, Lsn{999}}}));
  const PageGrant c = take(kC, kQ, kS, 1);  // also what it had never said anything of
  EXPECT_EQ(c.floor.scanned_to, (Positions{{StreamId{1}, Lsn{999}}}));
}

TEST_F(PagesTest, SoIsWhatAWriterHadThatHasLeft) {  // FP7
  begin({.slots = 8, .shards = 1, .storage_replays = true});
  const PageGrant p = take(kA, kP, kX, 1);
  ASSERT_TRUE(say(kA, version(kP, p.number, 70, slot(kA), kA, false)).ok());
  const PageGrant q = take(kA, kQ, kX, 2);
  ASSERT_TRUE(say(kA, version(kQ, q.number, 75, slot(kA), kA)).ok());  // given up: it is known
  pages_->left(kA, life(kA), {StreamId{1}, Lsn{999}});
  const PageGrant b = take(kB, kP, kS, 1);
  EXPECT_FALSE(b.known);
  EXPECT_EQ(b.floor.scanned_to, (Positions{{StreamId{1}, Lsn{999}}}));
  const PageGrant c = take(kB, kQ, kS, 2);
  EXPECT_TRUE(c.known);
  EXPECT_EQ(c.llsn, Llsn{75});
}

// What a memory node hears of those of an earlier one; and who has no log says nothing of one.
TEST_F(PagesTest, EndsOfLogsThatAreKnownAreInEveryFloor) {  // FP6
  begin({.slots = 8, .shards = 4, .storage_replays = true});
  const proto::StreamPosition ends[] = {{StreamId{1}, Lsn{500}}, {StreamId{2}, Lsn{}}};
  pages_->know_ends(ends);
  for (uint32_t page = 0; page < 20; ++page)
    EXPECT_EQ(take(kA, {256, page}, kS, page + 1).floor.scanned_to,
              (Positions{{StreamId{1}, Lsn{500}}}));
  pages_->left(kB, life(kB), {});
  EXPECT_EQ(pages_->floor_of(kP).scanned_to, (Positions{{StreamId{1}, Lsn{500}}}));
}

TEST_F(PagesTest, SlotsAreTakenBackFromPagesThatMayGo) {  // FP2
  begin({.slots = 2});
  const PageGrant a = take(kA, kP, kX, 1);
  ASSERT_TRUE(say(kA, version(kP, a.number, 70, slot(kA), kA)).ok());
  slot(kA);
  EXPECT_TRUE(pages_->take_slots(caller(kB), ++requests_, 1)->empty());
  pages_->write_ended(pages_->begin_writes(1)[0], true);
  EXPECT_EQ(pages_->take_slots(caller(kB), ++requests_, 1)->size(), 1u);
  EXPECT_EQ(pages_->entries(), 0u);
}

TEST_F(PagesTest, PagesThatServersKeepDoNotFillThePool) {  // FP4
  begin({.slots = 2});
  const PageGrant p = take(kA, kP, kX, 1);
  ASSERT_TRUE(say(kA, version(kP, p.number, 70, slot(kA), kA, false)).ok());
  const PageGrant q = take(kA, kQ, kX, 2);
  ASSERT_TRUE(say(kA, version(kQ, q.number, 71, slot(kA), kA)).ok());
  const PageGrant reader = take(kB, kQ, kS, 1);
  EXPECT_NE(reader.slot, kNoPageSlot);
  // Storage lacks both; then only one of them.
  EXPECT_TRUE(pages_->take_slots(caller(kB), ++requests_, 1)->empty());
  const auto writes = pages_->begin_writes(2);
  ASSERT_EQ(writes.size(), 2u);
  pages_->write_ended(writes[1], true);
  EXPECT_EQ(pages_->take_slots(caller(kB), ++requests_, 1)->size(), 1u);
  EXPECT_TRUE(pages_->take_slots(caller(kB), ++requests_, 1)->empty());
  pages_->write_ended(writes[0], true);
  const auto slots = pages_->take_slots(caller(kB), ++requests_, 1);
  ASSERT_EQ(slots->size(), 1u);
  EXPECT_EQ(pages_->entries(), 2u);
  EXPECT_EQ(pages_->check(), "");
  // Who comes next hears which version it has to find in storage.
  const PageGrant next = take(kC, kQ, kS, 1);
  EXPECT_TRUE(next.known);
  EXPECT_EQ(next.llsn, Llsn{71});
  EXPECT_EQ(next.slot, kNoPageSlot);
}

TEST_F(PagesTest, NoSlotIsLostWithAnAnswer) {  // FP2
  begin({.slots = 40});
  const auto slots = pages_->take_slots(caller(kA), 1, 3);
  ASSERT_TRUE(slots.ok());
  EXPECT_EQ(*pages_->take_slots(caller(kA), 1, 3), *slots);
  EXPECT_EQ(slots->size(), 3u);
  EXPECT_EQ(pages_->free_slots(), 37u);
  EXPECT_EQ(pages_->take_slots(caller(kA), 2, 2)->size(), 2u);
  EXPECT_TRUE(is_invalid_argument(pages_->take_slots(caller(kA), 1, 3).status()));
}

TEST_F(PagesTest, ARequestThatFindsNoSlotIsNotAnswered) {  // FP2
  begin({.slots = 1});
  const PageGrant a = take(kA, kP, kX, 1);
  ASSERT_TRUE(say(kA, version(kP, a.number, 70, slot(kA), kA)).ok());
  const uint64_t request = ++requests_;
  EXPECT_TRUE(pages_->take_slots(caller(kB), request, 1)->empty());
  pages_->write_ended(pages_->begin_writes(1)[0], true);
  const auto slots = pages_->take_slots(caller(kB), request, 1);
  ASSERT_EQ(slots->size(), 1u);
  EXPECT_EQ(*pages_->take_slots(caller(kB), request, 1), *slots);
}

TEST_F(PagesTest, UnusedSlotsOfAllServersLeaveRoomForPages) {  // FP5
  begin({.slots = 48});
  size_t given = 0;
  for (const NodeId server : {kA, kB, kC}) {
    const auto slots = pages_->take_slots(caller(server), ++requests_, 1'000);
    ASSERT_TRUE(slots.ok());
    EXPECT_GE(slots->size(), 1u);
    given += slots->size();
  }
  EXPECT_EQ(given, 48u / 4);
}

TEST_F(PagesTest, AWriteTakesOverWhatThereWasWhenItBegan) {  // FU17, FP2
  EXPECT_EQ(pages_->oldest(StreamId{1}), Lsn{UINT64_MAX});
  const PageGrant a = take(kA, kP, kX, 1);
  ASSERT_TRUE(say(kA, version(kP, a.number, 70, slot(kA), kA, false)).ok());
  ASSERT_TRUE(say(kA, version(kP, a.number, 80, slot(kA), kA, false)).ok());
  EXPECT_EQ(pages_->oldest(StreamId{1}), Lsn{700});
  const auto write = pages_->begin_writes(10).at(0);
  EXPECT_EQ(write.llsn, Llsn{80});
  EXPECT_EQ(pages_->oldest(StreamId{1}), Lsn{700});
  const uint64_t free = pages_->free_slots();
  ASSERT_TRUE(say(kA, version(kP, a.number, 90, slot(kA), kA)).ok());
  EXPECT_EQ(pages_->free_slots(), free - 1);  // what is being written is not free
  EXPECT_TRUE(pages_->begin_writes(10).empty());
  pages_->write_ended(write, true);
  EXPECT_EQ(pages_->free_slots(), free);
  EXPECT_EQ(pages_->oldest(StreamId{1}), Lsn{900});
  // A write that failed is begun again.
  const auto second = pages_->begin_writes(10).at(0);
  pages_->write_ended(second, false);
  EXPECT_EQ(pages_->oldest(StreamId{1}), Lsn{900});
  pages_->write_ended(pages_->begin_writes(10).at(0), true);
  EXPECT_EQ(pages_->oldest(StreamId{1}), Lsn{UINT64_MAX});
  EXPECT_EQ(pages_->dirty_pages(), 0u);
}

TEST_F(PagesTest, ADroppedSpaceHoldsNothingBack) {
  const PageGrant a = take(kA, kP, kX, 1);
  ASSERT_TRUE(say(kA, version(kP, a.number, 70, slot(kA), kA)).ok());
  const PageGrant q = take(kA, kQ, kX, 2);
  ASSERT_TRUE(say(kA, version(kQ, q.number, 71, slot(kA), kA, false)).ok());
  const auto write = pages_->begin_writes(1).at(0);
  pages_->forget_space(SpaceId{256});
  EXPECT_EQ(pages_->oldest(StreamId{1}), Lsn{UINT64_MAX});
  EXPECT_EQ(pages_->entries(), 1u);  // being written
  EXPECT_TRUE(pages_->begin_writes(10).empty());
  pages_->write_ended(write, false);
  pages_->trim(0);
  EXPECT_EQ(pages_->entries(), 0u);
  EXPECT_EQ(pages_->free_slots(), 8u);
}

TEST_F(PagesTest, ChangesOfSeveralStreamsCountEach) {  // FU17
  const PageGrant a = take(kA, kP, kX, 1);
  ASSERT_TRUE(say(kA, version(kP, a.number, 70, slot(kA), kA)).ok());
  const PageGrant b = take(kB, kP, kX, 1);
  ASSERT_TRUE(say(kB, version(kP, b.number, 71, slot(kB), kB)).ok());
  EXPECT_EQ(pages_->oldest(StreamId{1}), Lsn{700});
  EXPECT_EQ(pages_->oldest(StreamId{2}), Lsn{710});
}

TEST_F(PagesTest, WhatAFencedServerReadIsFreeWhatItWroteIsItsAdopters) {  // FP3
  const PageGrant p = take(kA, kP, kX, 1);
  ASSERT_TRUE(say(kA, version(kP, p.number, 70, slot(kA), kA, false)).ok());
  take(kA, kQ, kS, 2);
  ask(kB, kP, kX, 1);
  one<PageGiveUp>(kA);
  ask(kB, kQ, kX, 2);
  one<PageGiveUp>(kA);
  pages_->fence(kA);
  nothing();  // its lease may not be over
  pages_->release_fenced(kA);
  EXPECT_EQ(granted(kB).page, kQ);
  const auto dead = pages_->dead_pages(kA);
  ASSERT_EQ(dead.size(), 1u);
  EXPECT_EQ(dead[0].page, kP);
  EXPECT_EQ(dead[0].llsn, Llsn{70});
  EXPECT_TRUE(is_not_found(pages_->adopt(caller(kC), kB)));
  EXPECT_TRUE(is_fenced(pages_->adopt(caller(kA), kA)));
  ASSERT_TRUE(pages_->adopt(caller(kC), kA).ok());
  EXPECT_TRUE(is_in_use(pages_->adopt(caller(kB), kA)));
  ask(kB, kP, kX, 1, 0, true);  // not the adopter: it waits, as it did
  nothing();
  ask(kC, kP, kX, 1, 0, true);
  auto out = pages_->take_outgoing();
  ASSERT_EQ(out.size(), 1u);  // granted, before B that asked earlier; and not asked for it
  const auto& crossing = std::get<PageGrant>(out[0].message);
  EXPECT_EQ(out[0].server, kC);
  EXPECT_EQ(crossing.llsn, Llsn{70});
  // It has never heard of that grant: "not held" does not make it B's.
  give_up(kC, kP, crossing.number);
  nothing();
  ask(kC, kP, kX, 1, 0, true);
  out = pages_->take_outgoing();
  ASSERT_EQ(out.size(), 1u);
  const auto& redo = std::get<PageGrant>(out[0].message);
  PageReport made = version(kP, redo.number, 75, slot(kC), kA);
  ASSERT_TRUE(say(kC, made).ok());
  nothing();  // there may be more to redo
  ASSERT_TRUE(pages_->adoption_ended(caller(kC), kA).ok());
  const PageGrant b = granted(kB);
  EXPECT_EQ(b.llsn, Llsn{75});
  EXPECT_EQ(pages_->oldest(StreamId{1}), Lsn{700});
}

TEST_F(PagesTest, WhatWasNotChangedIsFreeWhenTheAdoptionEnds) {  // FP3
  take(kA, kP, kX, 1);
  ask(kB, kP, kS, 1);
  one<PageGiveUp>(kA);
  fence(kA);
  nothing();
  ASSERT_TRUE(pages_->joined(kA, 900).ok());  // another life of it
  const PageCaller next{kA, 900, kEpoch};
  ASSERT_TRUE(pages_->adopt(next, kA).ok());
  // One of an earlier life, or of somebody else, comes late.
  EXPECT_TRUE(is_fenced(pages_->adoption_ended(caller(kA), kA)));
  ASSERT_TRUE(pages_->adoption_ended(caller(kB), kA).ok());
  nothing();
  ASSERT_TRUE(pages_->adoption_ended(next, kA).ok());
  EXPECT_EQ(granted(kB).page, kP);
  EXPECT_TRUE(pages_->dead_pages(kA).empty());
}

TEST_F(PagesTest, AnAdopterThatDiesLeavesItAllToTheNext) {  // FP3
  take(kA, kP, kX, 1);
  take(kA, kQ, kX, 2);
  fence(kA);
  ASSERT_TRUE(pages_->adopt(caller(kB), kA).ok());
  ask(kB, kP, kX, 1, 0, true);
  granted(kB);
  fence(kB);
  EXPECT_EQ(pages_->dead_pages(kA).size(), 2u);
  EXPECT_EQ(pages_->dead_pages(kB).size(), 0u);
  ASSERT_TRUE(pages_->adopt(caller(kC), kA).ok());
  ask(kC, kP, kX, 1, 0, true);
  granted(kC);
  ask(kC, kQ, kX, 2, 0, true);
  granted(kC);
  // One that leaves in the middle leaves it all, too.
  pages_->left(kC, life(kC));
  EXPECT_EQ(pages_->dead_pages(kA).size(), 2u);
}

TEST_F(PagesTest, SlotsOfAFencedServerAreFreeOnceItsMappingIsGone) {  // FU14, FP2
  begin({.slots = 2});
  slot(kA);
  slot(kA);
  fence(kA);
  EXPECT_TRUE(pages_->take_slots(caller(kB), ++requests_, 1)->empty());
  pages_->mapping_gone(kA, life(kA) + 1);
  EXPECT_TRUE(pages_->take_slots(caller(kB), ++requests_, 1)->empty());
  pages_->mapping_gone(kA, life(kA));
  EXPECT_EQ(pages_->take_slots(caller(kB), ++requests_, 1)->size(), 1u);
}

TEST_F(PagesTest, WhoLeavesHasReportedEverything) {
  take(kA, kP, kX, 1);
  ask(kB, kP, kX, 1);
  one<PageGiveUp>(kA);
  pages_->left(kA, life(kA));
  granted(kB);
  EXPECT_TRUE(pages_->joined(kA, 900).ok());
}

TEST_F(PagesTest, WhoIsFencedWhileItWaitsIsWaitedForByNobody) {
  const PageGrant a = take(kA, kP, kS, 1);
  ask(kB, kP, kX, 1);
  one<PageGiveUp>(kA);
  ask(kC, kP, kS, 1);
  pages_->fence(kB);
  EXPECT_EQ(granted(kC).mode, kS);
  give_up(kA, kP, a.number);
}

// --- in the place of a memory node that is gone (FP6) ---

TEST_F(PagesTest, WhatServersHadIsTheirsUnderItsNumberAndNothingIsGrantedMeanwhile) {
  pages_->recover();
  const proto::HeldPage of_a[] = {{kP, 41, kX}, {kQ, 17, kS}};
  ASSERT_TRUE(pages_->holds(caller(kA), of_a).ok());
  ASSERT_TRUE(pages_->holds(caller(kA), of_a).ok()) << "said again";
  const proto::HeldPage of_b[] = {{kQ, 18, kS}};
  ASSERT_TRUE(pages_->holds(caller(kB), of_b).ok());
  const PageAsk asks[] = {{kP, kS, 7, false}};
  EXPECT_TRUE(is_peer_down(pages_->ask(caller(kB), asks, 0)));
  EXPECT_TRUE(is_peer_down(say(kA, {.page = kP, .number = 41, .gives_up = true})));
  EXPECT_TRUE(is_peer_down(pages_->take_slots(caller(kA), 1, 1).status()));
  pages_->heard_of(60);
  pages_->recovered();
  ask(kB, kP, kS, 7);
  auto out = pages_->take_outgoing();
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].server, kA);
  EXPECT_EQ(std::get<PageGiveUp>(out[0].message).number, 41u);
  const uint32_t in = slot(kA);
  ASSERT_TRUE(say(kA, version(kP, 41, 70, in, kA)).ok());
  out = pages_->take_outgoing();
  ASSERT_EQ(out.size(), 1u);
  const PageGrant grant = std::get<PageGrant>(out[0].message);
  EXPECT_EQ(grant.number, 61u) << "above all that anybody has heard of";
  EXPECT_EQ(grant.slot, in);
  EXPECT_TRUE(is_invalid_argument(pages_->holds(caller(kC), of_b))) << "it is too late";
}

TEST_F(PagesTest, TwoServersCannotHaveTheSamePageForWriting) {
  pages_->recover();
  const proto::HeldPage to_write[] = {{kQ, 5, kS}, {kP, 41, kX}};
  ASSERT_TRUE(pages_->holds(caller(kA), to_write).ok());
  const proto::HeldPage too[] = {{kP, 40, kS}};
  EXPECT_TRUE(is_invalid_argument(pages_->holds(caller(kB), too)));
  EXPECT_TRUE(is_fenced(pages_->holds({kB, 99, kEpoch}, too)));
  // Who dies having said so leaves what it had for writing to its adopter (FP3).
  pages_->fence(kA);
  pages_->release_fenced(kA);
  ASSERT_EQ(pages_->dead_pages(kA).size(), 1u);
  EXPECT_TRUE(is_invalid_argument(pages_->holds(caller(kB), too)));
  pages_->recovered();
}

}  // namespace
}  // namespace strata::fusion
