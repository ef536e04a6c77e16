// Goal: what a memory node does with names of tables, dropped spaces and rounds of page reuse that
// servers call it for: who is told what, when, and what becomes of it when a server is fenced,
// leaves, or does not listen (FV1, FV4-FV6, FV10). Method: real sockets, servers that make their
// calls by hand.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "base/testing/wait_until.h"
#include "memnode/fusion/testing/fusion_node.h"

namespace strata::memnode {
namespace {

using proto::NameMode;
using proto::NameNews;
using strata::testing::wait_until;
using testing::FusionNode;
using testing::WireServer;

const std::string kOrders = "shop.orders";
const std::string kOther = "shop.other";

class FusionServiceNamesTest : public ::testing::Test {
 protected:
  FusionServiceNamesTest() {
    set_diag_sink([](Severity, std::string_view) {});
  }
  ~FusionServiceNamesTest() override {
    node_.stop();
    set_diag_sink(nullptr);
  }
  WireServer joined(uint8_t id, uint64_t life, bool alone = false) {
    WireServer made(&node_, id, life);
    const Status status = made.join(alone);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(made.renew().ok());
    return made;
  }
  // The next news, once there are some.
  static NameNews wait_news(WireServer* server) {
    for (int tries = 0; tries < 100; ++tries) {
      auto reply = server->events(200'000);
      EXPECT_TRUE(reply.ok()) << reply.status();
      if (!reply.ok()) return {};
      if (!reply->names.empty()) return std::move(reply->names);
    }
    ADD_FAILURE() << "there is nothing to be heard";
    return {};
  }
  static proto::NameGrant wait_grant(WireServer* server) {
    for (int tries = 0; tries < 100; ++tries) {
      const NameNews news = wait_news(server);
      if (!news.grants.empty()) return news.grants.front();
    }
    ADD_FAILURE() << "nothing is granted";
    return {};
  }
  static proto::NameGrant granted(WireServer* server, const std::string& name, NameMode mode,
                                  uint64_t ask) {
    EXPECT_TRUE(server->ask_name(name, mode, ask).ok());
    const proto::NameGrant grant = wait_grant(server);
    EXPECT_EQ(grant.name, name);
    EXPECT_EQ(grant.ask, ask);
    EXPECT_EQ(grant.mode, mode);
    return grant;
  }
  [[nodiscard]] bool is_there(uint8_t id) const {
    for (const auto& there : node_.service()->status().servers)
      if (there.server.value == id) return true;
    return false;
  }
  bool is_gone(uint8_t id) {
    return wait_until([&] { return !is_there(id); });
  }
  FusionNode node_;
};

TEST_F(FusionServiceNamesTest, ANameGoesFromThoseWhoUseItToWhoChangesItAndBack) {
  node_.start();
  WireServer a = joined(1, 77);
  WireServer b = joined(2, 78);
  const proto::NameGrant of_a = granted(&a, kOrders, NameMode::kUse, 1);
  const proto::NameGrant of_b = granted(&b, kOrders, NameMode::kUse, 7);
  EXPECT_TRUE(wait_until([&] { return node_.service()->status().names == 1; }));
  ASSERT_TRUE(a.ask_name(kOrders, NameMode::kExclusive, 2).ok());
  const NameNews wanted = wait_news(&b);
  ASSERT_EQ(wanted.give_ups.size(), 1u);
  EXPECT_EQ(wanted.give_ups[0].number, of_b.number);
  EXPECT_EQ(wanted.give_ups[0].mode, NameMode::kUse);
  ASSERT_TRUE(b.report_name(kOrders, of_b.number, NameMode::kNone).ok());
  const proto::NameGrant exclusive = wait_grant(&a);
  EXPECT_EQ(exclusive.mode, NameMode::kExclusive);
  EXPECT_GT(exclusive.number, of_a.number);
  ASSERT_TRUE(b.ask_name(kOrders, NameMode::kUse, 8).ok());
  EXPECT_TRUE(b.events(20'000)->names.grants.empty());
  // b is granted it as soon as it is said: a call of b's that waits is answered by a's report.
  ASSERT_TRUE(a.report_name(kOrders, exclusive.number, NameMode::kUse).ok());
  EXPECT_EQ(wait_grant(&b).ask, 8u);
  EXPECT_EQ(node_.service()->status().name_news.untold, 0u);
}

TEST_F(FusionServiceNamesTest, WhoDoesNotWaitAnyMoreIsNotGrantedIt) {
  node_.start();
  WireServer a = joined(1, 77);
  WireServer b = joined(2, 78);
  const proto::NameGrant of_a = granted(&a, kOrders, NameMode::kExclusive, 1);
  ASSERT_TRUE(b.ask_name(kOrders, NameMode::kUse, 1).ok());
  ASSERT_TRUE(b.ask_name(kOrders, NameMode::kNone, 1).ok());
  ASSERT_TRUE(a.report_name(kOrders, of_a.number, NameMode::kNone).ok());
  EXPECT_TRUE(wait_until([&] { return node_.service()->status().names == 0; }));
  EXPECT_TRUE(b.events(0)->names.grants.empty());
}

TEST_F(FusionServiceNamesTest, WhatIsOfAnotherEpochOrLifeIsRefusedAndCounted) {  // FV1
  node_.start(5);
  WireServer a = joined(1, 77);
  const auto all_fail = [&](WireServer* who, const std::function<bool(const Status&)>& is_so) {
    EXPECT_TRUE(is_so(who->ask_name(kOrders, NameMode::kUse, 1)));
    EXPECT_TRUE(is_so(who->report_name(kOrders, 1, NameMode::kNone)));
    EXPECT_TRUE(is_so(who->names_adopted(NodeId{2})));
    EXPECT_TRUE(is_so(who->space_dropped(300).status()));
    EXPECT_TRUE(is_so(who->left_space(300)));
    EXPECT_TRUE(is_so(who->begin_round().status()));
    EXPECT_TRUE(is_so(who->round_ended(1).status()));
    EXPECT_TRUE(is_so(who->report_round(1)));
  };
  const auto fenced = [](const Status& status) { return is_fenced(status); };
  WireServer old = a;
  old.caller.epoch = Epoch{4};
  all_fail(&old, [](const Status& status) { return is_withdrawn(status); });
  old.caller.epoch = Epoch{6};  // this memory node is the old one
  all_fail(&old, [](const Status& status) { return is_peer_down(status); });
  old.caller.epoch = Epoch{5};
  old.caller.life = 76;
  all_fail(&old, fenced);
  old.caller.life = 77;
  old.caller.server = NodeId{2};
  all_fail(&old, fenced);
  EXPECT_EQ(node_.counters().stale_calls.load(), 4u * 8u);
  const FusionStatus status = node_.service()->status();
  EXPECT_EQ(status.names + status.dropped_spaces + status.reuse_rounds, 0u);
  granted(&a, kOrders, NameMode::kUse, 1);  // none of this was anybody's end
}

TEST_F(FusionServiceNamesTest, WhatMakesNoSenseIsRefusedAndCounted) {
  node_.options.names.spaces.of_server_max = 1;
  node_.start();
  WireServer a = joined(1, 77);
  WireServer b = joined(2, 78);
  const auto bad = [&] { return node_.counters().bad_requests.load(); };
  const uint64_t before = bad();
  EXPECT_TRUE(is_invalid_argument(a.ask_name(kOrders, static_cast<NameMode>(3), 1)));
  EXPECT_TRUE(is_invalid_argument(a.ask_name(kOrders, NameMode::kUse, 0)));
  EXPECT_TRUE(is_invalid_argument(
      a.ask_name(std::string(proto::kNameBytesMax + 1, 'n'), NameMode::kUse, 1)));
  EXPECT_TRUE(is_invalid_argument(a.report_name(kOrders, 0, NameMode::kNone)));
  EXPECT_TRUE(is_invalid_argument(a.report_name(kOrders, 1, NameMode::kExclusive)));
  EXPECT_TRUE(is_invalid_argument(a.names_adopted(NodeId{0})));
  EXPECT_TRUE(is_invalid_argument(a.round_ended(0).status()));
  EXPECT_TRUE(is_invalid_argument(a.round_ended(1).status())) << "there has been none";
  EXPECT_TRUE(is_invalid_argument(a.report_round(1)));
  EXPECT_EQ(bad() - before, 9u);
  // What is nobody's changes nothing.
  EXPECT_TRUE(a.report_name(kOrders, 5, NameMode::kNone).ok());
  EXPECT_TRUE(a.names_adopted(NodeId{2}).ok()) << "b is not dead";
  EXPECT_TRUE(a.left_space(300).ok());
  EXPECT_EQ(*a.space_dropped(300), false);
  EXPECT_EQ(a.space_dropped(301).status().code(), error_busy("").code());
}

TEST_F(FusionServiceNamesTest,
       WhatDoesNotFitIsThrownAwayAndSaidAgainWhenItIsAskedForAgain) {  // FV6
  node_.options.names.said_max = 1;
  node_.options.names.names.ask_again_us = 20'000;
  node_.start();
  WireServer a = joined(1, 77);
  WireServer b = joined(2, 78);
  ASSERT_TRUE(a.ask_name(kOrders, NameMode::kUse, 1).ok());
  ASSERT_TRUE(a.ask_name(kOther, NameMode::kUse, 2).ok());
  EXPECT_TRUE(wait_until([&] { return node_.service()->status().name_news.untold == 1; }));
  const NameNews first = wait_news(&a);
  ASSERT_EQ(first.grants.size(), 1u);
  EXPECT_EQ(first.grants[0].name, kOrders);
  const proto::NameGrant second = granted(&a, kOther, NameMode::kUse, 2);
  // Both are wanted back, again and again, by which one more is told as soon as one was heard.
  ASSERT_TRUE(b.ask_name(kOrders, NameMode::kExclusive, 1).ok());
  ASSERT_TRUE(b.ask_name(kOther, NameMode::kExclusive, 2).ok());
  for (const uint64_t number : {first.grants[0].number, second.number}) {
    EXPECT_TRUE(wait_until([&] {
      const auto reply = a.events(200'000);
      EXPECT_TRUE(reply.ok());
      if (!reply.ok()) return true;
      EXPECT_LE(reply->names.give_ups.size(), 1u);
      return !reply->names.give_ups.empty() && reply->names.give_ups[0].number == number;
    })) << "nobody tells it to give up "
        << number;
    const std::string& name = number == second.number ? kOther : kOrders;
    ASSERT_TRUE(a.report_name(name, number, NameMode::kNone).ok());
    EXPECT_EQ(wait_grant(&b).name, name);
  }
}

TEST_F(FusionServiceNamesTest, WhatIsSaidAgainToWhoDoesNotListenIsToldOnce) {  // FV10
  node_.options.names.names.ask_again_us = 1'000;
  node_.options.names.spaces.ask_again_us = 1'000;
  node_.options.names.reuse.ask_again_us = 1'000;
  node_.start();
  WireServer a = joined(1, 77);
  WireServer b = joined(2, 78);
  granted(&a, kOrders, NameMode::kUse, 1);
  ASSERT_TRUE(b.ask_name(kOrders, NameMode::kExclusive, 1).ok());
  ASSERT_TRUE(b.space_dropped(300).ok());
  ASSERT_EQ(*b.begin_round(), 1u);
  ASSERT_EQ(*b.begin_round(), 2u);
  const uint64_t asked = node_.service()->status().name_locks.give_ups;
  EXPECT_TRUE(
      wait_until([&] { return node_.service()->status().name_locks.give_ups >= asked + 5; }));
  const NameNews news = wait_news(&a);
  EXPECT_EQ(news.give_ups.size(), 1u);
  EXPECT_EQ(news.leave.size(), 1u);
  EXPECT_EQ(news.reuse_round, 2u);
}

TEST_F(FusionServiceNamesTest, ManyNewsComeInSeveralMessages) {  // FN3
  node_.start();
  WireServer a = joined(1, 77);
  const size_t names = size_t{proto::kFusionNamesMax} + 10;
  for (size_t i = 0; i < names; ++i)
    ASSERT_TRUE(a.ask_name("t" + std::to_string(i), NameMode::kUse, i + 1).ok());
  EXPECT_EQ(wait_news(&a).grants.size(), proto::kFusionNamesMax);
  EXPECT_EQ(wait_news(&a).grants.size(), 10u);
}

// --- the end of a server ---

TEST_F(FusionServiceNamesTest,
       WhatAFencedServerWasChangingIsNobodysUntilItsNextLifeSaysSo) {  // FV4
  node_.options.join_us_max = 300'000;
  node_.start();
  WireServer a = joined(1, 77);
  WireServer b = joined(2, 78);
  const proto::NameGrant changed = granted(&a, kOrders, NameMode::kExclusive, 1);
  granted(&a, kOther, NameMode::kUse, 2);
  ASSERT_TRUE(b.ask_name(kOrders, NameMode::kUse, 1).ok());
  ASSERT_TRUE(b.ask_name(kOther, NameMode::kExclusive, 2).ok());
  node_.service()->exited(NodeId{1}, 77);
  EXPECT_TRUE(wait_until([&] { return node_.counters().fenced.load() == 1; }));
  EXPECT_TRUE(is_fenced(a.report_name(kOrders, changed.number, NameMode::kNone)));
  EXPECT_TRUE(b.events(20'000)->names.grants.empty()) << "b has not heard of the fence";
  EXPECT_TRUE(is_there(1));
  ASSERT_TRUE(b.renew().ok());
  ASSERT_TRUE(b.renew().ok());
  EXPECT_TRUE(is_gone(1));
  EXPECT_EQ(wait_grant(&b).name, kOther) << "what it used goes with its lease";
  EXPECT_TRUE(b.names_adopted(NodeId{2}).ok());
  EXPECT_TRUE(b.events(20'000)->names.grants.empty());
  WireServer next = joined(1, 79);
  EXPECT_TRUE(b.events(20'000)->names.grants.empty()) << "what it did is not undone yet";
  ASSERT_TRUE(next.ask_name(kOrders, NameMode::kUse, 1).ok());
  EXPECT_EQ(wait_grant(&next).name, kOrders) << "for itself: it ends what was under way (NL4)";
  EXPECT_TRUE(b.events(20'000)->names.grants.empty());
  ASSERT_TRUE(next.names_adopted(NodeId{1}).ok());
  EXPECT_EQ(wait_grant(&b).name, kOrders);
  EXPECT_TRUE(next.names_adopted(NodeId{1}).ok()) << "said again it changes nothing";
}

TEST_F(FusionServiceNamesTest, AWaiterThatIsFencedIsWaitedForNoMore) {  // FV4
  node_.start();
  WireServer a = joined(1, 77);
  WireServer b = joined(2, 78);
  WireServer c = joined(3, 79);
  const proto::NameGrant of_a = granted(&a, kOrders, NameMode::kUse, 1);
  ASSERT_TRUE(b.ask_name(kOrders, NameMode::kExclusive, 1).ok());
  ASSERT_TRUE(c.ask_name(kOrders, NameMode::kUse, 1).ok());
  EXPECT_TRUE(c.events(0)->names.grants.empty()) << "b is before it";
  node_.service()->exited(NodeId{2}, 78);
  EXPECT_EQ(wait_grant(&c).name, kOrders);
  EXPECT_TRUE(a.report_name(kOrders, of_a.number, NameMode::kNone).ok());
}

TEST_F(FusionServiceNamesTest, WhoLeavesGivesAllBackAtOnce) {
  node_.start();
  WireServer a = joined(1, 77);
  WireServer b = joined(2, 78);
  granted(&a, kOrders, NameMode::kExclusive, 1);
  ASSERT_TRUE(b.ask_name(kOrders, NameMode::kUse, 1).ok());
  EXPECT_EQ(*b.space_dropped(300), false);
  const uint64_t round = *b.begin_round();
  EXPECT_EQ(*b.round_ended(round), false);
  ASSERT_TRUE(a.leave().ok());
  const NameNews news = wait_news(&b);
  EXPECT_EQ(news.grants.size(), 1u);
  EXPECT_EQ(news.left.size(), 1u);
  EXPECT_EQ(*b.space_dropped(300), true);
  EXPECT_EQ(*b.round_ended(round), true);
  EXPECT_TRUE(is_fenced(a.ask_name(kOther, NameMode::kUse, 2)));
  EXPECT_TRUE(wait_until([&] { return b.renew().ok() && !is_there(1); }));
  WireServer next = joined(1, 80);
  EXPECT_EQ(granted(&next, kOrders, NameMode::kUse, 1).mode, NameMode::kUse);
}

// --- dropped spaces ---

TEST_F(FusionServiceNamesTest, ASpaceIsLeftOnceAllHaveSaidSoOrAreGone) {
  node_.start();
  WireServer a = joined(1, 77);
  WireServer b = joined(2, 78);
  WireServer c = joined(3, 79);
  EXPECT_EQ(*a.space_dropped(300), false);
  const NameNews told = wait_news(&b);
  ASSERT_EQ(told.leave.size(), 1u);
  EXPECT_EQ(told.leave[0].space, SpaceId{300});
  WireServer late = joined(4, 80);
  ASSERT_TRUE(b.left_space(300).ok());
  EXPECT_EQ(*a.space_dropped(300), false) << "c is still at it";
  node_.service()->exited(NodeId{3}, 79);
  EXPECT_TRUE(wait_until([&] { return node_.counters().fenced.load() == 1; }));
  EXPECT_EQ(*a.space_dropped(300), false) << "c's lease may go on";
  for (WireServer* server : {&a, &b, &late})
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(server->renew().ok());
  EXPECT_TRUE(is_gone(3));
  const NameNews left = wait_news(&a);
  ASSERT_EQ(left.left.size(), 1u);
  EXPECT_EQ(left.left[0].space, SpaceId{300});
  EXPECT_EQ(*a.space_dropped(300), true);
  EXPECT_TRUE(wait_until([&] { return node_.service()->status().dropped_spaces == 0; }));
}

// --- rounds of page reuse ---

TEST_F(FusionServiceNamesTest, ARoundEndsOnceAllWhoWereThereHaveReportedIt) {
  node_.start();
  WireServer a = joined(1, 77);
  WireServer b = joined(2, 78);
  const uint64_t round = *a.begin_round();
  EXPECT_EQ(wait_news(&b).reuse_round, round);
  EXPECT_EQ(*a.round_ended(round), false);
  WireServer late = joined(3, 79);
  ASSERT_TRUE(b.report_round(round).ok());
  EXPECT_EQ(*a.round_ended(round), true) << "the third came later";
  const uint64_t next = *b.begin_round();
  EXPECT_GT(next, round);
  EXPECT_EQ(wait_news(&a).reuse_round, next);
  EXPECT_EQ(wait_news(&late).reuse_round, next);
  ASSERT_TRUE(late.report_round(next).ok());
  node_.service()->exited(NodeId{1}, 77);
  EXPECT_TRUE(wait_until([&] { return node_.counters().fenced.load() == 1; }));
  EXPECT_EQ(*b.round_ended(next), false) << "what it read it read under its lease";
  for (WireServer* server : {&b, &late})
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(server->renew().ok());
  EXPECT_TRUE(is_gone(1));
  EXPECT_EQ(*b.round_ended(next), true);
}

}  // namespace
}  // namespace strata::memnode
