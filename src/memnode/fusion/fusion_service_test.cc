// Goal: each rule of what a memory node does for several servers (FV1-FV9), and that whatever comes
// over the wire harms nobody. Method: real sockets, servers that make their calls by hand, a stream
// and a storage that fail or keep silent.
#include "memnode/fusion/fusion_service.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <thread>

#include "base/rng.h"
#include "base/testing/wait_until.h"
#include "memnode/fusion/testing/fusion_node.h"

namespace strata::memnode {
namespace {

using proto::LockEventKind;
using proto::LockRequest;
using proto::LockRequestKind;
using proto::PageMode;
using strata::testing::wait_until;
using testing::fusion_page;
using testing::FusionNode;
using testing::TestStream;
using testing::WireServer;

constexpr PageId kPage{300, 7};
constexpr PageId kOther{300, 8};
constexpr uint32_t kLongUs = 9'000'000;  // nobody is to wait for so long

class FusionServiceTest : public ::testing::Test {
 protected:
  FusionServiceTest() {
    set_diag_sink([](Severity, std::string_view) {});
  }
  ~FusionServiceTest() override {
    node_.stop();
    set_diag_sink(nullptr);
  }
  WireServer server(uint8_t id, uint64_t life) { return {&node_, id, life}; }
  WireServer joined(uint8_t id, uint64_t life, bool alone = false) {
    WireServer made(&node_, id, life);
    const Status status = made.join(alone);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(made.renew().ok());
    return made;
  }
  // Grants and what is wanted back, until there is some.
  static proto::FusionEventsReply wait_events(WireServer* server) {
    for (int tries = 0; tries < 100; ++tries) {
      auto reply = server->events(200'000);
      EXPECT_TRUE(reply.ok()) << reply.status();
      if (!reply.ok()) return {};
      if (!reply->grants.empty() || !reply->give_ups.empty() || !reply->questions.empty())
        return *std::move(reply);
    }
    ADD_FAILURE() << "there is nothing to be heard";
    return {};
  }
  // Takes the first one of the kind.
  static proto::LockEvent wait_lock_event(WireServer* server, LockEventKind kind) {
    for (int tries = 0; tries < 100; ++tries) {
      const auto found =
          std::find_if(server->inbox.begin(), server->inbox.end(),
                       [kind](const proto::LockEvent& event) { return event.kind == kind; });
      if (found != server->inbox.end()) {
        const proto::LockEvent event = *found;
        server->inbox.erase(found);
        return event;
      }
      const auto reply = server->lock_events(200'000);
      EXPECT_TRUE(reply.ok()) << reply.status();
      if (!reply.ok()) return {};
    }
    ADD_FAILURE() << "no such event";
    return {};
  }
  bool is_gone(uint8_t id) {
    return wait_until([&] {
      for (const auto& there : node_.service()->status().servers)
        if (there.server.value == id) return false;
      return true;
    });
  }
  // The page's newest version, put into a slot that was taken for it.
  static proto::PageReport version(WireServer* server, const proto::PageGrant& grant, uint64_t llsn,
                                   uint64_t request, bool gives_up) {
    const auto slots = server->take_slots(request, 1);
    EXPECT_TRUE(slots.ok() && slots->size() == 1) << slots.status();
    if (!slots.ok() || slots->empty()) return {};
    server->put(grant.page, llsn, slots->front());
    proto::PageReport report{grant.page, grant.number, gives_up, true, Llsn{llsn}, slots->front()};
    report.stream = StreamId{server->caller.server.value};
    report.first = Lsn{llsn * 100};
    report.end = Lsn{llsn * 100 + 50};
    return report;
  }
  FusionNode node_;
};

// --- joining and leases ---

TEST_F(FusionServiceTest, WhoJoinsGetsRegionsALeaseAndTheOthersTables) {  // FV3
  node_.start(5);
  WireServer a = joined(1, 77);
  EXPECT_EQ(a.caller.epoch, Epoch{5});
  EXPECT_EQ(a.joined.slots, 64u);
  EXPECT_EQ(a.joined.table.slots, 128u);
  const auto renewed = a.renew();
  ASSERT_TRUE(renewed.ok()) << renewed.status();
  EXPECT_GT(renewed->reply.lease_us, 30'000'000u);
  EXPECT_LE(renewed->reply.lease_us, 60'000'000u);
  EXPECT_TRUE(renewed->servers.empty()) << "it has heard that list already";
  WireServer b = server(2, 78);
  ASSERT_TRUE(b.join().ok());
  const auto first = b.renew();
  ASSERT_TRUE(first.ok());
  ASSERT_EQ(first->servers.size(), 2u);
  EXPECT_EQ(first->servers[0], (proto::FusionServer{NodeId{1}, 77, a.joined.table}));
  EXPECT_EQ(a.renew()->servers.size(), 2u);
  // The clock is there, and may be used; tables are each server's, and read by all.
  const auto times = b.open(a.joined.times);
  ASSERT_NE(times, nullptr);
  const uint64_t deadline_us = monotonic_us() + 20'000'000;
  const auto before = times->fetch_add(proto::kClockOffset, 2, deadline_us);
  ASSERT_TRUE(before.ok());
  EXPECT_EQ(*a.open(a.joined.times)->fetch_add(proto::kClockOffset, 0, deadline_us), *before + 2);
  EXPECT_TRUE(wait_until([&] { return node_.service()->status().ceiling > *before + 2; }));
  ASSERT_TRUE(a.open(a.joined.table.region)->fetch_add(16, 7, deadline_us).ok());
  EXPECT_EQ(
      *b.open(a.joined.table.region, transport::RegionPath::kCalls)->fetch_add(16, 0, deadline_us),
      7u);
}

TEST_F(FusionServiceTest, ThePlacementThatAllFollowIsThatOfTheLast) {  // FV16
  node_.start();
  EXPECT_EQ(node_.service()->placement_followed(), UINT64_MAX) << "nobody reads";
  const auto all_follow = [&](uint64_t generation) {
    return wait_until([&] { return node_.service()->placement_followed() == generation; });
  };
  WireServer a = server(1, 77);
  ASSERT_TRUE(a.join().ok());
  EXPECT_EQ(node_.service()->placement_followed(), 0u) << "it has said nothing, and may read";
  a.placement = 3;
  ASSERT_TRUE(a.renew().ok());
  EXPECT_TRUE(all_follow(3));
  WireServer b = server(2, 78);
  b.placement = 2;
  ASSERT_TRUE(b.join().ok());
  ASSERT_TRUE(b.renew().ok());
  a.placement = 4;
  ASSERT_TRUE(a.renew().ok());
  EXPECT_TRUE(all_follow(2));
  ASSERT_TRUE(b.leave().ok());  // it counts until all have heard of that
  EXPECT_TRUE(wait_until([&] {
    EXPECT_TRUE(a.renew().ok());
    return node_.service()->placement_followed() == 4;
  }));
}

TEST_F(FusionServiceTest, TheHorizonIsTheOldestViewOfAllAndBoundsAreTold) {
  node_.start();
  WireServer a = joined(1, 77);
  WireServer b = joined(2, 78);
  const auto times = a.open(a.joined.times);
  ASSERT_TRUE(times->fetch_add(proto::kClockOffset, 100, monotonic_us() + 20'000'000).ok());
  ASSERT_TRUE(a.renew(50, 12).ok());
  ASSERT_TRUE(b.renew(40, 9).ok());
  EXPECT_TRUE(wait_until([&] { return node_.service()->status().horizon == 40; }));
  const auto heard = a.renew(60, 13);
  ASSERT_TRUE(heard.ok());
  EXPECT_EQ(heard->reply.horizon, Cts{40});
  ASSERT_EQ(heard->reply.bounds.size(), 2u);
  EXPECT_EQ(heard->reply.bounds[1].bound, 9u);
  EXPECT_TRUE(is_invalid_argument(a.renew(1u << 30).status())) << "nobody has such a view";
}

TEST_F(FusionServiceTest, WhatIsOfAnotherEpochOrLifeIsRefusedAndCounted) {  // FV1
  node_.start(5);
  WireServer a = joined(1, 77);
  ASSERT_EQ(node_.counters().stale_calls.load(), 0u);
  const auto all_fail = [&](WireServer* who, const auto& is_so) {
    EXPECT_TRUE(is_so(who->renew().status()));
    EXPECT_TRUE(is_so(who->ask(kPage, PageMode::kShared, 1).status()));
    EXPECT_TRUE(is_so(who->report({{kPage, 1, true}})));
    EXPECT_TRUE(is_so(who->take_slots(1, 1).status()));
    EXPECT_TRUE(is_so(who->adopt(NodeId{2}).status()));
    EXPECT_TRUE(is_so(who->adoption_ended(NodeId{2})));
    EXPECT_TRUE(is_so(who->write_back(1, 10, 0).status()));
    EXPECT_TRUE(is_so(who->forget_space(300)));
    EXPECT_TRUE(is_so(who->events(0).status()));
    EXPECT_TRUE(is_so(who->ask_owner(make_trx_id(NodeId{1}, 5), false, 0).status()));
    EXPECT_TRUE(is_so(who->answer({1, ok_status(), {}})));
    EXPECT_TRUE(is_so(who->locks(1, {{.kind = LockRequestKind::kReported}}).status()));
    EXPECT_TRUE(is_so(who->lock_events(0).status()));
    EXPECT_TRUE(is_so(who->leave()));
  };
  WireServer old = a;
  old.caller.epoch = Epoch{4};
  all_fail(&old, is_withdrawn);  // it may ask to go on
  old.caller.epoch = Epoch{6};   // this memory node is the old one
  all_fail(&old, is_peer_down);
  old.caller.epoch = Epoch{5};
  old.caller.life = 76;
  all_fail(&old, is_fenced);
  old.caller.life = 77;
  old.caller.server = NodeId{2};
  all_fail(&old, is_fenced);
  EXPECT_EQ(node_.counters().stale_calls.load(), 4u * 14u);
  EXPECT_TRUE(a.ask(kPage, PageMode::kShared, 1).ok()) << "none of this was anybody's end";
}

TEST_F(FusionServiceTest, WithoutTheAuthorityNothingIsAnswered) {  // FV1, FU2
  node_.options.time.authority.lease_us = 500'000;
  node_.options.time.authority.renew_us = 20'000;
  node_.start();
  WireServer a = joined(1, 77);
  ASSERT_TRUE(a.ask(kPage, PageMode::kShared, 1).ok());
  node_.stream.will(TestStream::Does::kHolds);
  EXPECT_TRUE(
      wait_until([&] { return is_peer_down(a.ask(kOther, PageMode::kShared, 2).status()); }));
  EXPECT_TRUE(is_peer_down(a.renew().status()));
  EXPECT_GE(node_.counters().calls_unready.load(), 2u);
  // It comes back; nobody could renew meanwhile, so nobody is fenced for that.
  node_.stream.will(TestStream::Does::kTakes);
  EXPECT_TRUE(wait_until([&] { return a.renew().ok(); }));
  EXPECT_TRUE(a.ask(kOther, PageMode::kShared, 2).ok());
  EXPECT_EQ(node_.counters().expired.load(), 0u);
}

TEST_F(FusionServiceTest, ADeposedMemoryNodeEndsAllThatWaits) {  // FV5
  node_.start();
  WireServer a = joined(1, 77);
  std::thread waits([&] { EXPECT_TRUE(is_withdrawn(a.events(kLongUs).status())); });
  WireServer same = a;
  ASSERT_TRUE(same.locks(1, {{.kind = LockRequestKind::kReported}}).ok());
  std::thread also_waits([&] { EXPECT_TRUE(is_withdrawn(same.lock_events(kLongUs).status())); });
  node_.stream.will(TestStream::Does::kIsSealed);
  waits.join();
  also_waits.join();
  WireServer late = server(2, 78);
  EXPECT_TRUE(is_withdrawn(late.join()));
  EXPECT_TRUE(is_withdrawn(a.ask(kPage, PageMode::kShared, 1).status()));
}

TEST_F(FusionServiceTest, ASuccessorFencesWhomItDoesNotKnowAndGoesOnWithTheClock) {
  node_.start(1);
  WireServer a = joined(1, 77);
  const auto times = a.open(a.joined.times);
  ASSERT_TRUE(times->fetch_add(proto::kClockOffset, 100, monotonic_us() + 20'000'000).ok());
  const uint64_t ceiling = node_.service()->status().ceiling;
  node_.end_service();
  EXPECT_TRUE(is_peer_down(a.ask(kPage, PageMode::kShared, 1).status())) << "nobody serves";
  node_.serve(2);
  EXPECT_TRUE(wait_until([&] { return node_.service()->status().serves; }));
  EXPECT_TRUE(is_withdrawn(a.ask(kPage, PageMode::kShared, 1).status()));
  EXPECT_TRUE(is_fenced(a.resume())) << "nor does this one hear what it has";
  EXPECT_TRUE(is_not_found(transport::open_remote_region(node_.channel(), a.joined.times,
                                                         transport::RegionPath::kMapped,
                                                         monotonic_us() + 20'000'000)
                               .status()));
  WireServer next = joined(1, 78);
  EXPECT_EQ(next.caller.epoch, Epoch{2});
  EXPECT_GE(node_.service()->status().clock, ceiling);
}

TEST_F(FusionServiceTest, OnlyWhoShowsTheTenantsTokenJoins) {
  Tenants tenants({{"one", "secret-1", 8u << 20}, {"two", "secret-2", 8u << 20}}, 64u << 20);
  node_.tenants = &tenants;
  node_.start();
  WireServer a = server(1, 77);
  EXPECT_TRUE(is_invalid_argument(a.join(false, "nobody's")));
  EXPECT_TRUE(is_invalid_argument(a.join(false, "secret-2")));
  EXPECT_TRUE(a.join(false, "secret-1").ok());
  EXPECT_GE(tenants.uses()[0].used_bytes, 64u * kPageBytes);
  node_.end_service();
  EXPECT_EQ(tenants.uses()[0].used_bytes, 0u);
}

// --- the end of a server ---

TEST_F(FusionServiceTest, WhoDoesNotRenewIsFencedAndItsNextLifeAdoptsItsPages) {  // FV4
  node_.options.time.authority.lease_us = 1'000'000;
  node_.options.time.authority.renew_us = 50'000;
  node_.start();
  std::atomic<bool> stop{false};
  WireServer b = joined(2, 78);
  WireServer beats = b;
  std::thread keeps([&] {
    while (!stop) {
      EXPECT_TRUE(beats.renew().ok());
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  });
  WireServer a = joined(1, 77);
  const auto got = a.ask(kPage, PageMode::kExclusive, 1);
  ASSERT_TRUE(got.ok() && got->size() == 1);
  ASSERT_TRUE(b.ask(kPage, PageMode::kExclusive, 1)->empty());
  EXPECT_TRUE(is_gone(1));  // it says nothing any more
  EXPECT_TRUE(is_fenced(a.ask(kOther, PageMode::kShared, 2).status()));
  EXPECT_EQ(node_.counters().expired.load(), 1u);
  EXPECT_TRUE(b.events(100'000)->grants.empty()) << "the dead one's log is not redone";
  WireServer next = joined(1, 79);
  WireServer next_beats = next;
  std::thread keeps_too([&] {
    while (!stop) {
      EXPECT_TRUE(next_beats.renew().ok());
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  });
  EXPECT_EQ(*next.adopt(NodeId{1}), std::vector<PageId>{kPage});
  const auto redo = next.ask(kPage, PageMode::kExclusive, 1, true);
  ASSERT_TRUE(redo.ok() && redo->size() == 1);
  EXPECT_EQ(*next.adopt(NodeId{1}), std::vector<PageId>{kPage}) << "it may ask again";
  ASSERT_TRUE(next.report({version(&next, redo->front(), 9, 1, true)}).ok());
  ASSERT_TRUE(next.adoption_ended(NodeId{1}).ok());
  const auto granted = wait_events(&b).grants;
  ASSERT_EQ(granted.size(), 1u);
  EXPECT_EQ(granted[0].llsn, Llsn{9});
  EXPECT_EQ(b.get(granted[0].slot), fusion_page(kPage, 9));
  stop = true;
  keeps.join();
  keeps_too.join();
}

TEST_F(FusionServiceTest, NothingIsReleasedBeforeTheOthersHaveHeardOfTheFence) {  // FV4, FU4
  node_.options.join_us_max = 300'000;
  node_.start();
  WireServer a = joined(1, 77);
  WireServer b = joined(2, 78);
  ASSERT_EQ(a.ask(kPage, PageMode::kShared, 1)->size(), 1u);
  ASSERT_TRUE(b.ask(kPage, PageMode::kExclusive, 1)->empty());
  node_.service()->exited(NodeId{1}, 77);
  EXPECT_TRUE(wait_until([&] { return node_.counters().fenced.load() == 1; }));
  WireServer next = server(1, 79);
  EXPECT_TRUE(is_in_use(next.join())) << "and that is said in time";
  const auto events = b.events(0);
  ASSERT_TRUE(events.ok());
  EXPECT_TRUE(events->grants.empty());
  ASSERT_EQ(b.renew()->reply.fences.size(), 1u);  // it is told, and has not said that it has heard
  EXPECT_TRUE(is_in_use(next.join()));
  ASSERT_TRUE(b.renew().ok());
  EXPECT_TRUE(next.join().ok());
  EXPECT_EQ(wait_events(&b).grants.size(), 1u);
}

TEST_F(FusionServiceTest, AFencedServersLogIsSealedFirst) {  // FV4
  Mutex mutex{LatchRank::kLeaf};
  std::deque<absl::AnyInvocable<void(const Status&)>> asked;
  node_.seal = [&](NodeId server, uint64_t life, absl::AnyInvocable<void(const Status&)> done) {
    EXPECT_EQ(server, NodeId{1});
    EXPECT_EQ(life, 77u);
    const MutexLock lock(mutex);
    asked.push_back(std::move(done));
  };
  const auto seals = [&] {
    const MutexLock lock(mutex);
    return asked.size();
  };
  node_.start();
  WireServer a = joined(1, 77);
  node_.service()->exited(NodeId{1}, 77);
  EXPECT_TRUE(wait_until([&] { return seals() == 1; }));
  asked[0](error_peer_down("asked for by a test"));
  EXPECT_TRUE(wait_until([&] { return seals() == 2; })) << "it is tried again";
  EXPECT_EQ(node_.counters().released.load(), 0u);
  asked[1](ok_status());
  EXPECT_TRUE(is_gone(1));
  EXPECT_EQ(node_.counters().released.load(), 1u);
}

TEST_F(FusionServiceTest, WhoLeavesGivesAllBackAndItsNextLifeWaitsForTheReadersOfItsTable) {
  node_.options.join_us_max = 300'000;
  node_.start();
  WireServer a = joined(1, 77);
  WireServer b = joined(2, 78);
  ASSERT_EQ(a.ask(kPage, PageMode::kExclusive, 1)->size(), 1u);
  ASSERT_TRUE(b.ask(kPage, PageMode::kExclusive, 1)->empty());
  ASSERT_TRUE(a.leave().ok());
  EXPECT_EQ(wait_events(&b).grants.size(), 1u) << "its pages are anybody's at once";
  EXPECT_TRUE(is_fenced(a.renew().status()));
  WireServer next = server(1, 79);
  EXPECT_TRUE(is_in_use(next.join()));
  const auto heard = b.renew();
  ASSERT_EQ(heard->servers.size(), 1u) << "the table is gone";
  ASSERT_TRUE(b.renew().ok());
  EXPECT_TRUE(next.join().ok());
  EXPECT_TRUE(is_not_found(next.adopt(NodeId{1}).status())) << "it left nothing";
  EXPECT_EQ(node_.counters().fenced.load(), 0u);
}

TEST_F(FusionServiceTest, WhoIsAloneTakesItsPlaceOverAtOnceAndSlotsAreFreeLater) {  // FV7
  node_.options.join_us_max = 300'000;
  node_.start();
  WireServer a = joined(1, 77);
  const uint64_t free = node_.options.pages.slots;
  ASSERT_EQ(a.take_slots(1, 10)->size(), 10u);
  ASSERT_EQ(a.ask(kPage, PageMode::kExclusive, 1)->size(), 1u);
  WireServer next = server(1, 79);
  ASSERT_TRUE(next.join(true).ok()) << "its lease would go on for a minute";
  EXPECT_EQ(*next.adopt(NodeId{1}), std::vector<PageId>{kPage});
  EXPECT_TRUE(wait_until([&] { return node_.service()->status().free_slots == free; }));
  EXPECT_TRUE(is_fenced(a.renew().status()));
  EXPECT_TRUE(is_in_use(server(1, 77).join())) << "a life that has ended does not come back";
}

TEST_F(FusionServiceTest, WhoAsksToJoinAndIsGoneIsNotLetIn) {  // FV15
  node_.options.join_us_max = 60'000'000;
  node_.start();
  WireServer a = joined(1, 77);
  {
    const proto::FusionJoinRequest request{NodeId{1}, 78, false, {}};
    WireServer gone(&node_, 1, 78);  // that ends its connection: killed, or its time is up
    EXPECT_FALSE(gone.call(proto::kFusionJoin, proto::encode(request), 50'000).ok());
  }
  ASSERT_TRUE(a.leave().ok());
  WireServer next(&node_, 1, 79);
  EXPECT_TRUE(next.join().ok()) << "nobody is waited for";
  EXPECT_EQ(node_.counters().joined.load(), 2u);
}

TEST_F(FusionServiceTest, SlotsOfWhoMayStillBeThereAreNobodys) {  // FV7
  node_.options.slot_wait_us = 0;
  node_.start();
  WireServer a = joined(1, 77);
  ASSERT_EQ(a.take_slots(1, 10)->size(), 10u);
  ASSERT_TRUE(a.leave().ok());
  EXPECT_TRUE(is_gone(1));
  EXPECT_TRUE(is_fenced(server(1, 77).join())) << "a life that has ended does not come back";
  WireServer next = joined(1, 79);
  const uint64_t others = node_.options.pages.slots - 10;
  EXPECT_TRUE(wait_until([&] { return node_.service()->status().free_slots == others; }));
}

// --- pages ---

TEST_F(FusionServiceTest, APageGoesFromServerToServerAndToStorage) {
  node_.start();
  WireServer a = joined(1, 77);
  WireServer b = joined(2, 78);
  const auto first = a.ask(kPage, PageMode::kExclusive, 1);
  ASSERT_TRUE(first.ok() && first->size() == 1);
  EXPECT_FALSE(first->front().known);
  ASSERT_TRUE(b.ask(kPage, PageMode::kShared, 4)->empty());
  const auto wanted = wait_events(&a).give_ups;
  ASSERT_EQ(wanted.size(), 1u);
  EXPECT_EQ(wanted[0].number, first->front().number);
  ASSERT_TRUE(a.report({version(&a, first->front(), 70, 1, true)}).ok());
  const auto granted = wait_events(&b).grants;
  ASSERT_EQ(granted.size(), 1u);
  EXPECT_EQ(granted[0].ask, 4u);
  EXPECT_TRUE(granted[0].known);
  EXPECT_EQ(granted[0].llsn, Llsn{70});
  EXPECT_EQ(b.get(granted[0].slot), fusion_page(kPage, 70));
  EXPECT_EQ(*a.write_back(1, UINT64_MAX, kLongUs), Lsn{UINT64_MAX});
  EXPECT_EQ(node_.store.llsn_of(kPage), 70u);
}

TEST_F(FusionServiceTest, WhoAsksMayWaitForItsGrantInThatCall) {  // FV12
  node_.start();
  WireServer a = joined(1, 77);
  WireServer b = joined(2, 78);
  const auto first = a.ask(kPage, PageMode::kExclusive, 1, false, kLongUs);
  ASSERT_EQ(first->size(), 1u) << "nobody has it: that is said at once";
  EXPECT_TRUE(b.ask(kPage, PageMode::kShared, 4, false, 20'000)->empty()) << "not within its time";
  std::thread waits([&] {
    WireServer same = b;
    const auto granted = same.ask(kPage, PageMode::kShared, 4, false, kLongUs);
    ASSERT_TRUE(granted.ok() && granted->size() == 1) << granted.status();
    EXPECT_EQ(granted->front().ask, 4u);
    EXPECT_EQ(same.get(granted->front().slot), fusion_page(kPage, 70));
  });
  ASSERT_EQ(wait_events(&a).give_ups.size(), 1u);
  // The one that waits has come in: it was asked for again.
  EXPECT_TRUE(wait_until([&] { return node_.counters().asks_waiting.load() == 2; }));
  ASSERT_TRUE(a.report({version(&a, first->front(), 70, 1, true)}).ok());
  waits.join();
  EXPECT_TRUE(b.events(20'000)->grants.empty()) << "and nobody else hears of it";
}

TEST_F(FusionServiceTest, AnAskThatComesAgainGetsTheGrantInThePlaceOfTheFirstOne) {  // FV12
  node_.start();
  WireServer a = joined(1, 77);
  WireServer b = joined(2, 78);
  const auto first = a.ask(kPage, PageMode::kExclusive, 1);
  ASSERT_EQ(first->size(), 1u);
  std::thread before([&] {
    WireServer same = b;
    const auto granted = same.ask(kPage, PageMode::kShared, 4, false, kLongUs);
    EXPECT_TRUE(granted.ok() && granted->empty()) << granted.status();
  });
  EXPECT_TRUE(wait_until([&] { return node_.counters().asks_waiting.load() == 1; }));
  std::thread again([&] {
    WireServer same = b;
    const auto granted = same.ask(kPage, PageMode::kShared, 4, false, kLongUs);
    EXPECT_TRUE(granted.ok() && granted->size() == 1) << granted.status();
  });
  before.join();
  EXPECT_TRUE(wait_until([&] { return node_.counters().asks_waiting.load() == 2; }));
  ASSERT_TRUE(a.report({{kPage, first->front().number, true}}).ok());
  again.join();
}

TEST_F(FusionServiceTest, WhoIsFencedWaitsForNoGrant) {  // FV12, FV5
  node_.start();
  WireServer a = joined(1, 77);
  WireServer b = joined(2, 78);
  ASSERT_EQ(a.ask(kPage, PageMode::kExclusive, 1)->size(), 1u);
  std::thread wait(
      [&] { EXPECT_TRUE(is_fenced(b.ask(kPage, PageMode::kShared, 4, false, kLongUs).status())); });
  EXPECT_TRUE(wait_until([&] { return node_.counters().asks_waiting.load() == 1; }));
  node_.service()->fence(NodeId{2});
  wait.join();
  std::thread other([&] {
    EXPECT_TRUE(is_withdrawn(a.ask(kPage, PageMode::kShared, 2, false, kLongUs).status()));
  });
  EXPECT_TRUE(wait_until([&] { return node_.counters().asks_waiting.load() == 2; }));
  node_.end_service();
  other.join();
}

TEST_F(FusionServiceTest, AGrantThatIsLostIsToldAgainWhenItIsAskedForAgain) {  // FV6
  node_.options.said_max = 0;
  node_.start();
  WireServer a = joined(1, 77);
  WireServer b = joined(2, 78);
  const auto first = a.ask(kPage, PageMode::kExclusive, 1);
  ASSERT_TRUE(b.ask(kPage, PageMode::kShared, 4)->empty());
  ASSERT_TRUE(a.report({{kPage, first->front().number, true}}).ok());
  EXPECT_TRUE(wait_until([&] { return node_.counters().pages_untold.load() >= 2; }));
  EXPECT_TRUE(b.events(0)->grants.empty());
  EXPECT_EQ(b.ask(kPage, PageMode::kShared, 4)->size(), 1u);
}

TEST_F(FusionServiceTest, WhatStorageDoesNotTakeStaysAndItsWriterIsToldInTime) {
  node_.start();
  node_.store.will_fail(true);
  WireServer a = joined(1, 77);
  const auto first = a.ask(kPage, PageMode::kExclusive, 1);
  ASSERT_TRUE(a.report({version(&a, first->front(), 70, 1, false)}).ok());
  EXPECT_EQ(*a.write_back(1, 7'001, 100'000), Lsn{7'000});
  EXPECT_GE(node_.counters().writes_failed.load(), 1u);
  EXPECT_EQ(node_.service()->status().dirty_pages, 1u);
  node_.store.will_fail(false);
  EXPECT_EQ(*a.write_back(1, 7'001, kLongUs), Lsn{UINT64_MAX});
  EXPECT_EQ(node_.store.llsn_of(kPage), 70u);
}

TEST_F(FusionServiceTest, WhoWaitsForASlotGetsOneOnceStorageHasTakenAPage) {  // FV5
  node_.options.pages.slots = 1;
  node_.start();
  node_.store.will_fail(true);
  WireServer a = joined(1, 77);
  WireServer b = joined(2, 78);
  const auto first = a.ask(kPage, PageMode::kExclusive, 1);
  ASSERT_TRUE(a.report({version(&a, first->front(), 70, 1, false)}).ok());
  EXPECT_TRUE(b.take_slots(1, 4)->empty());
  EXPECT_TRUE(b.take_slots(1, 4, 20'000)->empty());
  std::thread wait([&] {
    const auto slots = b.take_slots(1, 4, kLongUs);  // not answered yet: its number is as before
    ASSERT_TRUE(slots.ok()) << slots.status();
    EXPECT_EQ(slots->size(), 1u);
  });
  EXPECT_EQ(*a.write_back(1, 7'001, 50'000), Lsn{7'000});
  node_.store.will_fail(false);
  wait.join();
  EXPECT_EQ(node_.store.llsn_of(kPage), 70u);
}

TEST_F(FusionServiceTest, WhoIsFencedWaitsForNoSlot) {  // FV5
  node_.options.pages.slots = 1;
  node_.start();
  WireServer a = joined(1, 77);
  WireServer b = joined(2, 78);
  ASSERT_EQ(a.take_slots(1, 1)->size(), 1u);
  std::thread wait([&] { EXPECT_TRUE(is_fenced(b.take_slots(1, 1, kLongUs).status())); });
  node_.service()->fence(NodeId{2});
  wait.join();
}

TEST_F(FusionServiceTest, ASlotThatHasSomethingElseIsNotWritten) {  // FV8
  node_.start();
  WireServer a = joined(1, 77);
  const auto first = a.ask(kPage, PageMode::kExclusive, 1);
  proto::PageReport report = version(&a, first->front(), 70, 1, false);
  a.put(kOther, 70, report.slot);
  ASSERT_TRUE(a.report({report}).ok());
  EXPECT_EQ(*a.write_back(1, 7'001, 100'000), Lsn{7'000});
  EXPECT_GE(node_.counters().slots_damaged.load(), 1u);
  EXPECT_EQ(node_.store.llsn_of(kPage) + node_.store.llsn_of(kOther), 0u);
  a.put(kPage, 70, report.slot);
  EXPECT_EQ(*a.write_back(1, 7'001, kLongUs), Lsn{UINT64_MAX});
}

TEST_F(FusionServiceTest, AHotPageIsWrittenOnceUnlessSomebodyWaits) {  // FV13
  node_.options.write_age_us = 300'000;
  node_.start();
  WireServer a = joined(1, 77);
  const auto first = a.ask(kPage, PageMode::kExclusive, 1);
  const auto changed = [&](uint64_t llsn) {
    ASSERT_TRUE(a.report({version(&a, first->front(), llsn, llsn, false)}).ok());
  };
  for (uint64_t llsn = 70; llsn < 80; ++llsn) changed(llsn);
  EXPECT_TRUE(wait_until([&] { return node_.store.llsn_of(kPage) == 79; })) << "in the end it is";
  EXPECT_LE(node_.counters().pages_written, 3u) << "ten versions on a machine however slow";
  changed(80);
  EXPECT_EQ(*a.write_back(1, 8'001, kLongUs), Lsn{UINT64_MAX});
  EXPECT_EQ(node_.store.llsn_of(kPage), 80u);
}

TEST_F(FusionServiceTest, NothingOfAForgottenSpaceIsOnItsWay) {
  node_.start();
  node_.store.hold(true);
  WireServer a = joined(1, 77);
  const auto first = a.ask(kPage, PageMode::kExclusive, 1);
  ASSERT_TRUE(a.report({version(&a, first->front(), 70, 1, true)}).ok());
  std::atomic<bool> forgotten{false};
  WireServer same = a;
  std::thread forgets([&] {
    EXPECT_TRUE(same.forget_space(300).ok());
    forgotten = true;
  });
  EXPECT_TRUE(wait_until([&] { return node_.service()->status().dirty_pages == 0; }));
  EXPECT_FALSE(forgotten);
  node_.store.hold(false);
  forgets.join();
}

// --- waiting ---

TEST_F(FusionServiceTest, WhoWaitsIsAnsweredAtItsTimeAndANewerCallEndsTheOlder) {  // FV5
  node_.start();
  WireServer a = joined(1, 77);
  ASSERT_TRUE(a.locks(1, {{.kind = LockRequestKind::kReported}}).ok());
  EXPECT_TRUE(a.events(20'000)->grants.empty());
  EXPECT_TRUE(a.lock_events(20'000)->events.empty());
  WireServer same = a;
  std::atomic<int> ended{0};
  std::thread events([&] {
    EXPECT_TRUE(same.events(kLongUs).ok());
    ++ended;
  });
  WireServer also_same = a;
  std::thread lock_events([&] {
    EXPECT_TRUE(also_same.lock_events(kLongUs).ok());
    ++ended;
  });
  for (const uint64_t until_us = monotonic_us() + 5'000'000; ended < 2;) {
    ASSERT_LT(monotonic_us(), until_us);
    EXPECT_TRUE(a.events(5'000).ok());
    EXPECT_TRUE(a.lock_events(5'000).ok());
  }
  events.join();
  lock_events.join();
}

TEST_F(FusionServiceTest, WhenTheServiceStopsEverybodyIsAnswered) {  // FV5
  node_.start();
  node_.store.will_fail(true);
  WireServer a = joined(1, 77);
  WireServer b = joined(2, 78);
  ASSERT_TRUE(a.locks(1, {{.kind = LockRequestKind::kReported}}).ok());
  const auto first = a.ask(kPage, PageMode::kExclusive, 1);
  ASSERT_TRUE(a.report({version(&a, first->front(), 70, 1, false)}).ok());
  WireServer copies[] = {a, a, a, a, server(1, 99)};
  // One that comes when it is too late hears that nobody serves.
  const auto is_told = [](const Status& status) {
    return is_withdrawn(status) || is_peer_down(status);
  };
  std::vector<std::thread> waits;
  waits.emplace_back([&] { EXPECT_TRUE(is_told(copies[0].events(kLongUs).status())); });
  waits.emplace_back([&] { EXPECT_TRUE(is_told(copies[1].lock_events(kLongUs).status())); });
  waits.emplace_back(
      [&] { EXPECT_TRUE(is_told(copies[2].write_back(1, 7'001, kLongUs).status())); });
  waits.emplace_back([&] {
    EXPECT_TRUE(is_told(copies[3].ask_owner(make_trx_id(NodeId{2}, 5), true, kLongUs).status()));
  });
  waits.emplace_back([&] {
    const Status late = copies[4].join();
    EXPECT_TRUE(is_told(late) || is_in_use(late)) << late;
  });
  EXPECT_TRUE(wait_until([&] { return node_.counters().questions.load() == 1; }));
  node_.end_service();
  for (std::thread& thread : waits) thread.join();
}

// --- transactions ---

TEST_F(FusionServiceTest, QuestionsGoToTheTransactionsServerAndAnswersBack) {  // FV9
  node_.start();
  WireServer a = joined(1, 77);
  WireServer b = joined(2, 78);
  const TrxId trx = make_trx_id(NodeId{2}, 5);
  WireServer asks = a;
  const proto::TrxOutcome outcome{4, Cts{1421}, Lsn{9000}};
  std::thread asker([&] {
    const auto got = asks.ask_owner(trx, true, kLongUs);
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_EQ(*got, outcome);
  });
  const auto questions = wait_events(&b).questions;
  ASSERT_EQ(questions.size(), 1u);
  EXPECT_EQ(questions[0].trx, trx);
  EXPECT_TRUE(questions[0].decided);
  EXPECT_TRUE(a.answer({questions[0].number, ok_status(), {5, {}, {}}}).ok()) << "not its to say";
  EXPECT_TRUE(b.answer({questions[0].number, ok_status(), outcome}).ok());
  asker.join();
  EXPECT_TRUE(b.answer({questions[0].number, ok_status(), outcome}).ok());
  EXPECT_EQ(node_.counters().answers_late.load(), 2u);

  std::thread unlucky([&] {
    EXPECT_TRUE(is_peer_down(asks.ask_owner(trx, false, kLongUs).status()))
        << "that the other one has ended is not this one's end";
  });
  const auto again = wait_events(&b).questions;
  ASSERT_EQ(again.size(), 1u);
  EXPECT_TRUE(b.answer({again[0].number, error_fenced("asked for by a test"), {}}).ok());
  unlucky.join();

  EXPECT_TRUE(is_timed_out(a.ask_owner(trx, false, 20'000).status())) << "nobody answers";
  EXPECT_TRUE(is_not_found(a.ask_owner(make_trx_id(NodeId{9}, 5), false, 20'000).status()));
}

// FV9
TEST_F(FusionServiceTest, WhoAsksAServerThatIsFencedAsksAgainAndHearsThatNobodyOwnsThePlace) {
  node_.start();
  WireServer a = joined(1, 77);
  WireServer b = joined(2, 78);
  const TrxId trx = make_trx_id(NodeId{2}, 5);
  WireServer asks = a;
  std::thread asker(
      [&] { EXPECT_TRUE(is_peer_down(asks.ask_owner(trx, true, kLongUs).status())); });
  EXPECT_TRUE(wait_until([&] { return node_.counters().questions.load() == 1; }));
  node_.service()->exited(NodeId{2}, 78);
  asker.join();
  EXPECT_TRUE(is_not_found(a.ask_owner(trx, true, kLongUs).status()));
  ASSERT_TRUE(a.renew().ok());
  ASSERT_TRUE(a.renew().ok());
  EXPECT_TRUE(is_gone(2));
  EXPECT_TRUE(is_not_found(a.ask_owner(trx, true, kLongUs).status()));
}

// --- row locks ---

TEST_F(FusionServiceTest, AWaiterHearsOfItsTurnAndOfADeadlock) {
  node_.start();
  WireServer a = joined(1, 77);
  WireServer b = joined(2, 78);
  ASSERT_TRUE(a.locks(1, {{.kind = LockRequestKind::kReported}})->active);
  ASSERT_TRUE(b.locks(1, {{.kind = LockRequestKind::kReported}})->active);
  const TrxId first = make_trx_id(NodeId{1}, 5), second = make_trx_id(NodeId{2}, 9);
  LockRequest wait{.kind = LockRequestKind::kWait, .number = 1, .trx = second, .holder = first};
  wait.index = IndexId{17};
  wait.key = "row";
  ASSERT_TRUE(b.locks(2, {wait}).ok());
  const proto::LockEvent place = wait_lock_event(&b, LockEventKind::kRegistered);
  EXPECT_EQ(place.number, 1u);
  EXPECT_TRUE(place.flag) << "to make sure, and look";
  ASSERT_TRUE(b.locks(2, {wait}).ok()) << "the same batch again means nothing";
  LockRequest back = wait;
  back.number = 4;
  back.trx = first;
  back.holder = second;
  back.key = "other row";
  ASSERT_TRUE(a.locks(2, {back}).ok());
  const proto::LockEvent asked_a = wait_lock_event(&a, LockEventKind::kConfirm);
  const proto::LockEvent asked_b = wait_lock_event(&b, LockEventKind::kConfirm);
  ASSERT_TRUE(
      a.locks(3, {{.kind = LockRequestKind::kConfirmed, .number = asked_a.number, .flag = true}})
          .ok());
  ASSERT_TRUE(
      b.locks(3, {{.kind = LockRequestKind::kConfirmed, .number = asked_b.number, .flag = true}})
          .ok());
  EXPECT_EQ(wait_lock_event(&a, LockEventKind::kVictim).number, 4u);
  ASSERT_TRUE(a.locks(4, {{.kind = LockRequestKind::kEnded, .trx = first}}).ok());
  EXPECT_EQ(wait_lock_event(&b, LockEventKind::kGranted).number, 1u);
}

TEST_F(FusionServiceTest, ASharedLockCountsOnceEverybodysWritersAsk) {  // FQ5
  node_.start();
  WireServer a = joined(1, 77);
  WireServer b = joined(2, 78);
  ASSERT_TRUE(a.locks(1, {{.kind = LockRequestKind::kReported}}).ok());
  ASSERT_TRUE(b.locks(1, {{.kind = LockRequestKind::kReported}}).ok());
  LockRequest add{
      .kind = LockRequestKind::kAddShared, .number = 3, .trx = make_trx_id(NodeId{1}, 5)};
  add.index = IndexId{17};
  add.key = "row";
  ASSERT_TRUE(a.locks(2, {add}).ok());
  const proto::LockEvent on_a = wait_lock_event(&a, LockEventKind::kConsult);
  const proto::LockEvent on_b = wait_lock_event(&b, LockEventKind::kConsult);
  const auto heard = [](const proto::LockEvent& event) {
    return LockRequest{
        .kind = LockRequestKind::kConsultHeard, .number = event.number, .index = event.index};
  };
  ASSERT_TRUE(a.locks(3, {heard(on_a)}).ok());
  EXPECT_TRUE(a.lock_events(20'000)->events.empty());
  ASSERT_TRUE(b.locks(2, {heard(on_b)}).ok());
  EXPECT_EQ(wait_lock_event(&a, LockEventKind::kAdded).number, 3u);
}

TEST_F(FusionServiceTest, AWaiterLooksAgainWhenTheHoldersServerHasGone) {  // FQ7
  node_.start();
  WireServer a = joined(1, 77);
  WireServer b = joined(2, 78);
  ASSERT_TRUE(a.locks(1, {{.kind = LockRequestKind::kReported}}).ok());
  ASSERT_TRUE(b.locks(1, {{.kind = LockRequestKind::kReported}}).ok());
  LockRequest wait{.kind = LockRequestKind::kWait,
                   .number = 1,
                   .trx = make_trx_id(NodeId{2}, 9),
                   .holder = make_trx_id(NodeId{1}, 5)};
  wait.index = IndexId{17};
  wait.key = "row";
  wait.announced = true;
  ASSERT_TRUE(b.locks(2, {wait}).ok());
  EXPECT_FALSE(wait_lock_event(&b, LockEventKind::kRegistered).flag);
  ASSERT_TRUE(a.leave().ok());
  EXPECT_TRUE(wait_lock_event(&b, LockEventKind::kRegistered).flag);
}

TEST_F(FusionServiceTest, EventsThatDoNotFitIntoOneReplyComeWithTheNext) {  // FN3
  node_.options.locks.events_max = 3;
  node_.start();
  WireServer a = joined(1, 77);
  ASSERT_TRUE(a.locks(1, {{.kind = LockRequestKind::kReported}}).ok());
  std::vector<LockRequest> asks;
  for (uint64_t number = 1; number <= 10; ++number) {
    LockRequest ask{.kind = LockRequestKind::kAskShared, .number = number};
    ask.trx = make_trx_id(NodeId{1}, 5);
    asks.push_back(ask);
  }
  auto reply = a.locks(2, asks);
  uint64_t heard = 0;
  for (int tries = 0; reply.ok() && heard < 10 && tries < 10; ++tries) {
    EXPECT_LE(reply->events.size(), 3u);
    EXPECT_EQ(reply->active, reply->first_event + reply->events.size() > 10);
    for (const proto::LockEvent& event : reply->events) EXPECT_EQ(event.number, ++heard);
    if (heard < 10) reply = a.lock_events(kLongUs);
  }
  EXPECT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(heard, 10u);
}

// --- garbage ---

TEST_F(FusionServiceTest, WhateverComesOverTheWireHarmsNobody) {
  node_.start();
  WireServer a = joined(1, 77);
  WireServer b = joined(2, 78);
  ASSERT_EQ(a.ask(kPage, PageMode::kExclusive, 1)->size(), 1u);
  Rng rng(17);
  std::string head;
  append_u8(&head, 1);
  append_u64(&head, 77);
  append_u64(&head, a.caller.epoch.value);
  for (int i = 0; i < 1500; ++i) {
    const auto method = static_cast<uint16_t>(96 + rng.below(23));
    if (method == proto::kFusionLeave || method == proto::kFusionJoin) continue;
    std::string request = rng.one_in(4) ? std::string() : head;
    if (rng.one_in(3)) {  // a list, and what may be in it
      append_u32(&request, static_cast<uint32_t>(rng.below(4)));
    }
    for (uint64_t bytes = rng.below(120); bytes > 0; --bytes)
      request.push_back(rng.one_in(2) ? '\0' : static_cast<char>(rng.next()));
    // Whatever the answer is; some are told to wait.
    a.call(method, request, 5'000).status().IgnoreError();
  }
  EXPECT_GT(node_.counters().bad_requests.load(), 500u);
  EXPECT_TRUE(b.renew().ok());
  EXPECT_TRUE(b.ask(kOther, PageMode::kExclusive, 1).ok());
}

}  // namespace
}  // namespace strata::memnode
