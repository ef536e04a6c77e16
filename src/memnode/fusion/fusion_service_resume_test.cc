// Goal: a memory node in the place of one that is gone hears what servers have, whatever of that is
// said twice, late or never, and gives nobody what somebody else may have (FV11). Method: servers
// that make their calls by hand, over sockets.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/testing/wait_until.h"
#include "memnode/fusion/testing/fusion_node.h"

namespace strata::memnode {
namespace {

using proto::NameMode;
using proto::PageMode;
using strata::testing::wait_until;
using testing::FusionNode;
using testing::WireServer;

constexpr PageId kPage{300, 4};
constexpr PageId kOther{300, 5};
const std::string kOrders = "shop/orders";

class FusionServiceResumeTest : public ::testing::Test {
 protected:
  FusionServiceResumeTest() {
    set_diag_sink([](Severity, std::string_view) {});
    node_.options.resume_us_max = 60'000'000;  // nobody is too late because the machine is busy
  }
  ~FusionServiceResumeTest() override {
    node_.stop();
    set_diag_sink(nullptr);
  }
  WireServer joined(uint8_t id, uint64_t life) {
    WireServer server(&node_, id, life);
    const Status joined = server.join();
    EXPECT_TRUE(joined.ok()) << joined;
    return server;
  }
  void lose(uint64_t next_epoch) {
    node_.end_service();
    node_.recovers = true;
    node_.serve(next_epoch);
  }
  // Until the memory node is ready for it.
  static Status resume(WireServer* server) {
    Status status;
    EXPECT_TRUE(wait_until([&] {
      status = server->resume();
      return !is_peer_down(status);
    }));
    return status;
  }
  bool have_all_spoken() {
    return wait_until([&] { return node_.service()->status().recovery.heard_all; });
  }
  uint64_t granted(WireServer* server, PageId page, PageMode mode, uint64_t ask) {
    std::vector<proto::PageGrant> grants;
    EXPECT_TRUE(wait_until([&] {
      const auto got = server->ask(page, mode, ask);
      if (got.ok()) grants = *got;
      return got.ok() || !is_peer_down(got.status());
    }));
    return grants.size() == 1 ? grants[0].number : 0;
  }
  bool is_granted_name(WireServer* server, uint64_t ask) {
    const auto events = server->events(20'000);
    if (!events.ok()) return false;
    for (const proto::NameGrant& grant : events->names.grants)
      if (grant.ask == ask) return true;
    return false;
  }
  FusionNode node_;
};

TEST_F(FusionServiceResumeTest, WhoDoesNotHearThatItWasHeardSaysItAgain) {
  node_.start(1);
  WireServer a = joined(1, 77);
  WireServer b = joined(2, 78);
  const uint64_t number = granted(&a, kPage, PageMode::kExclusive, 1);
  ASSERT_NE(number, 0u);
  lose(2);
  ASSERT_TRUE(resume(&a).ok());
  for (int times = 0; times < 3; ++times) {
    ASSERT_TRUE(a.resume().ok());
    ASSERT_TRUE(a.say_pages({{kPage, number, PageMode::kExclusive}}).ok());
    ASSERT_TRUE(a.end_resume(number + 10).ok());
  }
  a.go_on();
  EXPECT_TRUE(wait_until([&] { return a.renew().ok(); })) << "before the others have spoken";
  EXPECT_TRUE(is_peer_down(a.ask(kOther, PageMode::kShared, 2).status()));
  EXPECT_TRUE(is_fenced(a.resume())) << "it has gone on already";
  ASSERT_TRUE(resume(&b).ok());
  ASSERT_TRUE(b.end_resume(0).ok());
  b.go_on();
  EXPECT_EQ(node_.counters().resumed.load(), 2u);
  ASSERT_TRUE(have_all_spoken());
  node_.service()->recovered();
  EXPECT_EQ(granted(&b, kPage, PageMode::kShared, 1), 0u) << "it is a's still";
  EXPECT_GT(granted(&b, kOther, PageMode::kShared, 2), number + 10);
}

TEST_F(FusionServiceResumeTest, WhoWasThereBeforeSaysNothingUnderTheOldEpoch) {  // FC56
  node_.start(1);
  WireServer a = joined(1, 77);
  lose(2);
  ASSERT_TRUE(resume(&a).ok());
  ASSERT_TRUE(a.end_resume(0).ok());
  EXPECT_TRUE(is_withdrawn(a.answer({1, ok_status(), {}})));
  EXPECT_TRUE(is_withdrawn(a.report({{kPage, 1, true}})));
}

TEST_F(FusionServiceResumeTest, ItMayDieWhileItHearsThem) {
  node_.start(1);
  WireServer a = joined(1, 77);
  WireServer b = joined(2, 78);
  const uint64_t number = granted(&a, kPage, PageMode::kExclusive, 1);
  lose(2);
  ASSERT_TRUE(resume(&a).ok());
  ASSERT_TRUE(a.say_pages({{kPage, number, PageMode::kExclusive}}).ok());
  ASSERT_TRUE(a.end_resume(number).ok());
  a.go_on();
  lose(3);
  EXPECT_TRUE(is_withdrawn(a.renew().status()));
  for (WireServer* server : {&a, &b}) {
    ASSERT_TRUE(resume(server).ok());
    if (server == &a) {
      ASSERT_TRUE(a.say_pages({{kPage, number, PageMode::kExclusive}}).ok());
    }
    ASSERT_TRUE(server->end_resume(number).ok());
    server->go_on();
  }
  ASSERT_TRUE(have_all_spoken());
  node_.service()->recovered();
  EXPECT_EQ(granted(&b, kPage, PageMode::kExclusive, 1), 0u);
}

TEST_F(FusionServiceResumeTest, WhoWasFencedBeforeMayHaveHadNamesUntilItsPlaceIsSettled) {  // NL9
  node_.start(1);
  WireServer a = joined(1, 77);
  ASSERT_TRUE(a.ask_name(kOrders, NameMode::kUse, 1).ok());
  ASSERT_TRUE(wait_until([&] { return is_granted_name(&a, 1); }));
  WireServer c = joined(3, 79);
  ASSERT_TRUE(c.ask_name("shop/changed", NameMode::kExclusive, 1).ok());
  ASSERT_TRUE(wait_until([&] { return is_granted_name(&c, 1); }));
  node_.service()->fence(NodeId{3});
  node_.service()->exited(NodeId{3}, 79);
  ASSERT_TRUE(wait_until([&] { return node_.service()->status().servers.size() == 1; }));
  node_.unsettled = {NodeId{1}, NodeId{3}};
  lose(2);
  ASSERT_TRUE(resume(&a).ok());
  ASSERT_TRUE(a.say_names({{kOrders, 1, 0}}).ok());
  ASSERT_TRUE(a.end_resume(20).ok());
  a.go_on();
  ASSERT_TRUE(have_all_spoken());
  node_.service()->recovered();
  ASSERT_TRUE(wait_until([&] { return a.ask_name("shop/changed", NameMode::kUse, 2).ok(); }));
  EXPECT_FALSE(is_granted_name(&a, 2)) << "nobody knows what became of it";
  WireServer next = joined(3, 80);
  ASSERT_TRUE(next.ask_name(kOrders, NameMode::kUse, 1).ok());
  EXPECT_TRUE(wait_until([&] { return is_granted_name(&next, 1); })) << "a has that";
  EXPECT_FALSE(is_granted_name(&a, 2));
  ASSERT_TRUE(next.names_adopted(NodeId{3}).ok());
  EXPECT_TRUE(wait_until([&] { return is_granted_name(&a, 2); }));
}

}  // namespace
}  // namespace strata::memnode
