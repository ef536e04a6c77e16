// Goal: each rule of names.h by hand, at exact steps (NL1-NL5).
#include "fusion/names/names.h"

#include <gtest/gtest.h>

#include <optional>

namespace strata::fusion {
namespace {

using proto::NameAsk;
using proto::NameCaller;
using proto::NameGiveUp;
using proto::NameGrant;
using proto::NameMode;
using proto::NameReport;

constexpr NodeId kA{1}, kB{2}, kC{3};
constexpr auto kU = NameMode::kUse;
constexpr auto kS = NameMode::kShared;
constexpr auto kX = NameMode::kExclusive;
constexpr Epoch kEpoch{4};

class NamesTest : public ::testing::Test {
 protected:
  NamesTest() { begin({}); }
  ~NamesTest() override { EXPECT_EQ(names_->check(), ""); }
  void begin(const NamesOptions& options) {
    names_.emplace(options, kEpoch);
    for (const NodeId server : {kA, kB, kC}) ASSERT_TRUE(names_->joined(server, life(server)).ok());
  }
  static uint64_t life(NodeId server) { return 100u + server.value; }
  static NameCaller caller(NodeId server) { return {server, life(server), kEpoch}; }
  void ask(NodeId server, const std::string& name, NameMode mode, uint64_t number) {
    const NameAsk asks[] = {{name, mode, number}};
    ASSERT_TRUE(names_->ask(caller(server), asks, 0).ok());
    EXPECT_EQ(names_->check(), "");
  }
  void report(NodeId server, const std::string& name, uint64_t number,
              NameMode keeps = NameMode::kNone) {
    const NameReport reports[] = {{name, number, keeps}};
    ASSERT_TRUE(names_->report(caller(server), reports, 0).ok());
    EXPECT_EQ(names_->check(), "");
  }
  // What is sent next, as text: "1 t U:5 ask 7" or "2 t gives up X:5".
  std::vector<std::string> sent() {
    std::vector<std::string> texts;
    for (const Names::Outgoing& out : names_->take_outgoing()) {
      EXPECT_EQ(out.life, life(out.server));
      std::string text = std::to_string(out.server.value) + " ";
      const auto mode = [](NameMode m) { return m == kX ? "X:" : m == kS ? "S:" : "U:"; };
      if (const auto* grant = std::get_if<NameGrant>(&out.message))
        text += grant->name + " " + mode(grant->mode) + std::to_string(grant->number) + " ask " +
                std::to_string(grant->ask);
      else if (const auto* back = std::get_if<NameGiveUp>(&out.message))
        text += back->name + " gives up " + mode(back->mode) + std::to_string(back->number);
      texts.push_back(text);
    }
    return texts;
  }
  using Sent = std::vector<std::string>;
  std::optional<Names> names_;
};

TEST_F(NamesTest, ManyShareANameAndNobodyUsesItMeanwhile) {  // NL1
  ask(kA, "t", kU, 1);
  ask(kB, "t", kU, 1);
  sent();
  ask(kA, "t", kS, 2);
  EXPECT_EQ(sent(), Sent{"2 t gives up U:2"}) << "its own does not matter";
  report(kB, "t", 2);
  EXPECT_EQ(sent(), Sent{"1 t S:3 ask 2"});
  // The second has what the first has, once that uses it no more.
  ask(kC, "t", kS, 4);
  EXPECT_EQ(sent(), Sent{"1 t gives up U:1"});
  report(kA, "t", 1);
  EXPECT_EQ(sent(), Sent{"3 t S:4 ask 4"});
  ask(kB, "t", kU, 5);
  EXPECT_EQ(sent(), (Sent{"1 t gives up X:3", "3 t gives up X:4"}));
  EXPECT_EQ(names_->describe("t"), "held by 1 S:3 asked 3 S:4 asked, waited for by 2U:5");
  report(kA, "t", 3, kU);  // no server of ours: nothing is left of a shared one
  EXPECT_EQ(sent(), Sent{});
  ask(kA, "t", kS, 6);  // behind the one who wants to use it
  EXPECT_EQ(sent(), Sent{});
  report(kC, "t", 4);
  EXPECT_EQ(sent(), (Sent{"2 t U:5 ask 5", "2 t gives up U:5"}));
  report(kB, "t", 5);
  EXPECT_EQ(sent(), Sent{"1 t S:6 ask 6"});
}

TEST_F(NamesTest, AKilledServersShareIsDeadUntilItsPlaceIsAdopted) {  // NL4
  ask(kA, "t", kS, 1);
  ask(kB, "t", kU, 1);
  sent();
  names_->fence(kA);
  names_->release_fenced(kA);
  EXPECT_EQ(sent(), Sent{});
  ASSERT_TRUE(names_->adopt(caller(kC), kA).ok());
  ASSERT_TRUE(names_->adoption_ended(caller(kC), kA, 0).ok());
  EXPECT_EQ(sent(), Sent{"2 t U:2 ask 1"});
}

TEST_F(NamesTest, KilledServersSharesAreDeadBesideEachOther) {  // NL1, NL4
  ask(kA, "t", kS, 1);
  ask(kB, "t", kS, 1);
  sent();
  for (const NodeId server : {kA, kB}) {
    names_->fence(server);
    names_->release_fenced(server);
    EXPECT_EQ(names_->check(), "");
  }
  ask(kC, "t", kS, 1);
  EXPECT_EQ(sent(), Sent{});
  ASSERT_TRUE(names_->adopt(caller(kC), kA).ok());
  ASSERT_TRUE(names_->adoption_ended(caller(kC), kA, 0).ok());
  EXPECT_EQ(sent(), Sent{});
  ASSERT_TRUE(names_->adopt(caller(kC), kB).ok());
  ASSERT_TRUE(names_->adoption_ended(caller(kC), kB, 0).ok());
  EXPECT_EQ(sent(), Sent{"3 t S:3 ask 1"});
}

// MW23 in dict/schema_changes.h
TEST_F(NamesTest, ADeadNameIsItsPlacesNextLifesAheadOfWhoWaits) {  // NL4
  ask(kA, "t", kX, 1);
  ask(kB, "t", kX, 1);
  ask(kC, "t", kU, 1);
  sent();
  names_->fence(kA);
  names_->release_fenced(kA);
  for (const uint64_t next : {900u, 901u}) {  // the first one is killed with it
    ASSERT_TRUE(names_->joined(kA, next).ok());
    const NameCaller again{kA, next, kEpoch};
    ASSERT_TRUE(names_->adopt(again, kA).ok());
    const NameAsk asks[] = {{"t", kX, 1}};
    ASSERT_TRUE(names_->ask(again, asks, 0).ok());
    EXPECT_EQ(names_->check(), "");
    const auto out = names_->take_outgoing();
    ASSERT_GE(out.size(), 1u);
    EXPECT_EQ(out[0].life, next);
    const auto* const grant = std::get_if<NameGrant>(&out[0].message);
    ASSERT_NE(grant, nullptr);
    if (next == 900) {
      names_->fence(kA);
      names_->release_fenced(kA);
      EXPECT_EQ(names_->check(), "");
      EXPECT_EQ(sent(), Sent{});
      continue;
    }
    const NameReport reports[] = {{"t", grant->number, NameMode::kNone}};
    ASSERT_TRUE(names_->report(again, reports, 0).ok());
    EXPECT_EQ(sent(), Sent{}) << "it has not recovered";
    ASSERT_TRUE(names_->adoption_ended(again, kA, 0).ok());
    EXPECT_EQ(sent(), (Sent{"2 t X:4 ask 1", "2 t gives up X:4"}));
  }
}

TEST_F(NamesTest, ManyUseANameOneHasItExclusively) {  // NL1
  ask(kA, "t", kU, 1);
  ask(kB, "t", kU, 1);
  EXPECT_EQ(sent(), (Sent{"1 t U:1 ask 1", "2 t U:2 ask 1"}));
  ask(kC, "t", kX, 5);
  EXPECT_EQ(sent(), (Sent{"1 t gives up U:1", "2 t gives up U:2"}));
  report(kA, "t", 1);
  EXPECT_EQ(sent(), Sent{});
  report(kB, "t", 2);
  EXPECT_EQ(sent(), Sent{"3 t X:3 ask 5"});
  ask(kA, "t", kU, 2);
  EXPECT_EQ(sent(), Sent{"3 t gives up X:3"});
  report(kC, "t", 3, kU);
  EXPECT_EQ(sent(), Sent{"1 t U:4 ask 2"});
  EXPECT_EQ(names_->describe("t"), "held by 3 U:3 1 U:4, waited for by");
}

TEST_F(NamesTest, WhoUsesANameGetsItExclusivelyBeside) {  // NL1, NL2
  ask(kA, "t", kU, 1);
  ask(kB, "t", kU, 1);
  ask(kA, "t", kX, 2);
  EXPECT_EQ(sent(), (Sent{"1 t U:1 ask 1", "2 t U:2 ask 1", "2 t gives up U:2"}));
  report(kB, "t", 2);
  EXPECT_EQ(sent(), Sent{"1 t X:3 ask 2"});
  report(kA, "t", 3);  // never heard of it: what it uses stays
  EXPECT_EQ(names_->describe("t"), "held by 1 U:1, waited for by");
  ask(kA, "t", kX, 3);
  EXPECT_EQ(sent(), Sent{"1 t X:4 ask 3"});
  report(kA, "t", 1);  // an earlier one that it had given up before the grant came
  EXPECT_EQ(names_->describe("t"), "held by 1 X:4, waited for by");
  report(kA, "t", 4, kU);
  EXPECT_EQ(names_->describe("t"), "held by 1 U:4, waited for by");
  report(kA, "t", 4, kU);  // twice
  report(kA, "t", 1);      // and late
  EXPECT_EQ(names_->describe("t"), "held by 1 U:4, waited for by");
  report(kA, "t", 4);
  EXPECT_EQ(names_->names(), 0u);  // NL5
}

TEST_F(NamesTest, ThoseWhoComeLaterWait) {  // NL3
  ask(kA, "t", kU, 1);
  ask(kB, "t", kX, 1);
  ask(kC, "t", kU, 1);
  EXPECT_EQ(sent(), (Sent{"1 t U:1 ask 1", "1 t gives up U:1"}));
  ask(kB, "t", NameMode::kNone, 1);  // B does not wait any more
  EXPECT_EQ(sent(), Sent{"3 t U:2 ask 1"});
  ask(kB, "t", NameMode::kNone, 1);
  EXPECT_EQ(sent(), Sent{});
}

TEST_F(NamesTest, AsksAgainAndAnswersAgain) {  // NL2, NL3
  ask(kA, "t", kU, 3);
  ask(kA, "t", kU, 3);  // the grant was lost
  ask(kA, "t", kU, 2);  // late
  EXPECT_EQ(sent(), (Sent{"1 t U:1 ask 3", "1 t U:1 ask 3"}));
  ask(kB, "t", kX, 1);
  EXPECT_EQ(sent(), Sent{"1 t gives up U:1"});
  names_->tick(100'000);
  EXPECT_EQ(sent(), Sent{});
  names_->tick(300'000);
  EXPECT_EQ(sent(), Sent{"1 t gives up U:1"});
  // It does not know of its grant: it waits behind B, and says so of what it has.
  ask(kA, "t", kU, 4);
  report(kA, "t", 1);
  EXPECT_EQ(sent(), (Sent{"2 t X:2 ask 1", "2 t gives up X:2"}));
  report(kB, "t", 2, kU);
  EXPECT_EQ(sent(), Sent{"1 t U:3 ask 4"});
}

TEST_F(NamesTest, AServerThatForgotWhatItHasIsAskedForIt) {  // NL2
  ask(kA, "t", kU, 1);
  ask(kA, "t", kX, 2);
  EXPECT_EQ(sent(), (Sent{"1 t U:1 ask 1", "1 t X:2 ask 2"}));
  ask(kA, "t", kX, 3);
  EXPECT_EQ(sent(), Sent{"1 t gives up X:2"});
  report(kA, "t", 2);
  EXPECT_EQ(sent(), Sent{"1 t X:3 ask 3"});
  ask(kA, "t", kU, 4);
  EXPECT_EQ(sent(), Sent{"1 t gives up U:1"});
  report(kA, "t", 1);
  EXPECT_EQ(sent(), Sent{"1 t U:4 ask 4"});
}

TEST_F(NamesTest, WhatAFencedServerChangesStaysItsPlaces) {  // NL4
  ask(kA, "used", kU, 1);
  ask(kA, "changed", kX, 2);
  ask(kB, "used", kX, 1);
  ask(kB, "changed", kU, 2);
  ask(kA, "waited", kU, 3);
  ask(kA, "waited", kX, 4);
  sent();
  names_->fence(kA);
  const NameReport late[] = {{"used", 1, NameMode::kNone}};
  EXPECT_TRUE(is_fenced(names_->report(caller(kA), late, 0)));
  EXPECT_EQ(sent(), Sent{});
  names_->tick(1'000'000);
  EXPECT_EQ(sent(), Sent{});  // it is asked for nothing any more
  names_->release_fenced(kA);
  EXPECT_EQ(sent(), Sent{"2 used X:5 ask 1"});
  EXPECT_EQ(names_->dead_names(kA), (std::vector<std::string>{"changed", "waited"}));
  EXPECT_TRUE(is_not_found(names_->adopt(caller(kB), kC)));
  ASSERT_TRUE(names_->adopt(caller(kB), kA).ok());
  EXPECT_TRUE(is_in_use(names_->adopt(caller(kC), kA)));
  const std::string changed[] = {"changed", "another"};
  ASSERT_TRUE(names_->release_dead(caller(kC), kA, changed, 0).ok());  // is not the adopter
  EXPECT_EQ(sent(), Sent{});
  ASSERT_TRUE(names_->release_dead(caller(kB), kA, changed, 0).ok());
  EXPECT_EQ(sent(), Sent{"2 changed U:6 ask 2"});
  // The adopter is fenced as well: the place's own next life goes on.
  names_->fence(kB);
  names_->release_fenced(kB);
  ASSERT_TRUE(names_->joined(kA, 900).ok());
  const NameCaller next{kA, 900, kEpoch};
  ASSERT_TRUE(names_->adopt(next, kA).ok());
  ASSERT_TRUE(names_->adoption_ended(next, kA, 0).ok());
  ASSERT_TRUE(names_->adoption_ended(next, kA, 0).ok());
  EXPECT_EQ(names_->dead_names(kA), Sent{});
  EXPECT_EQ(names_->dead_names(kB), Sent{"used"});
}

TEST_F(NamesTest, WhoLeavesHasNothing) {
  ask(kA, "t", kX, 1);
  ask(kB, "t", kX, 1);
  sent();
  names_->left(kA, 7);  // another life
  EXPECT_EQ(sent(), Sent{});
  names_->left(kA, life(kA));
  EXPECT_EQ(sent(), Sent{"2 t X:2 ask 1"});
  names_->left(kB, life(kB));
  EXPECT_EQ(names_->names(), 0u);
}

TEST_F(NamesTest, OldNamesAreAskedBack) {  // NL5
  begin({.names_max = 2});
  ask(kA, "a", kU, 1);
  ask(kA, "b", kX, 2);
  ask(kB, "c", kU, 1);
  EXPECT_EQ(sent(), (Sent{"1 a U:1 ask 1", "1 b X:2 ask 2", "1 a gives up U:1", "2 c U:3 ask 1"}));
  report(kA, "a", 1);
  EXPECT_EQ(names_->names(), 2u);
}

TEST_F(NamesTest, WhatNoServerSaysIsRefused) {
  const NameAsk no_mode[] = {{"t", static_cast<NameMode>(3), 1}};
  EXPECT_TRUE(is_invalid_argument(names_->ask(caller(kA), no_mode, 0)));
  const NameAsk no_number[] = {{"t", kU, 0}};
  EXPECT_TRUE(is_invalid_argument(names_->ask(caller(kA), no_number, 0)));
  const NameAsk long_name[] = {{std::string(2000, 'x'), kU, 1}};
  EXPECT_TRUE(is_invalid_argument(names_->ask(caller(kA), long_name, 0)));
  const NameReport keeps_all[] = {{"t", 1, kX}};
  EXPECT_TRUE(is_invalid_argument(names_->report(caller(kA), keeps_all, 0)));
  const NameAsk good[] = {{"t", kU, 1}};
  EXPECT_TRUE(is_fenced(names_->ask({kA, 5, kEpoch}, good, 0)));
  EXPECT_TRUE(is_fenced(names_->ask({kA, life(kA), Epoch{9}}, good, 0)));
  EXPECT_TRUE(is_in_use(names_->joined(kA, 5)));
  EXPECT_TRUE(names_->joined(kA, life(kA)).ok());
}

// --- in the place of a memory node that is gone (NL9) ---

TEST_F(NamesTest, WhatServersHadIsTheirsUnderItsNumberAndNothingIsGrantedMeanwhile) {
  names_->recover();
  const proto::HeldName of_a[] = {{"t", 4, 9}, {"u", 5, 0}};
  ASSERT_TRUE(names_->holds(caller(kA), of_a).ok());
  ASSERT_TRUE(names_->holds(caller(kA), of_a).ok()) << "said again";
  const proto::HeldName of_b[] = {{"u", 6, 0}};
  ASSERT_TRUE(names_->holds(caller(kB), of_b).ok());
  const proto::HeldName also[] = {{"t", 7, 0}};
  EXPECT_TRUE(is_invalid_argument(names_->holds(caller(kB), also)));
  const NameAsk asks[] = {{"t", kU, 3}};
  EXPECT_TRUE(is_peer_down(names_->ask(caller(kB), asks, 0)));
  names_->heard_of(20);
  names_->recovered();
  ask(kB, "t", kU, 3);
  EXPECT_EQ(sent(), Sent{"1 t gives up X:9"});
  report(kA, "t", 9, kU);
  EXPECT_EQ(sent(), Sent{"2 t U:21 ask 3"});
}

TEST_F(NamesTest, WhatServersShareTheySayToo) {  // NL9
  names_->recover();
  const proto::HeldName shared[] = {{"t", 0, 4, true}};
  ASSERT_TRUE(names_->holds(caller(kA), shared).ok());
  const proto::HeldName used[] = {{"t", 5, 0}}, alone[] = {{"t", 0, 5}},
                        nothing[] = {{"u", 5, 0, true}};
  for (const auto* const wrong : {used, alone, nothing})
    EXPECT_TRUE(is_invalid_argument(names_->holds(caller(kB), {wrong, 1})));
  const proto::HeldName also[] = {{"t", 0, 6, true}};
  ASSERT_TRUE(names_->holds(caller(kB), also).ok());
  names_->recovered();
  EXPECT_EQ(names_->check(), "");
  EXPECT_EQ(names_->describe("t"), "held by 1 S:4 2 S:6, waited for by");
  ask(kC, "t", kU, 1);
  EXPECT_EQ(sent(), (Sent{"1 t gives up X:4", "2 t gives up X:6"}));
  report(kA, "t", 4);
  report(kB, "t", 6);
  EXPECT_EQ(sent(), Sent{"3 t U:7 ask 1"});
}

TEST_F(NamesTest, WhatADeadServerHadNobodyGetsBeforeItsPlaceIsAdopted) {
  names_->recover();
  const proto::HeldName of_a[] = {{"u", 5, 0}};
  ASSERT_TRUE(names_->holds(caller(kA), of_a).ok());
  names_->fence(kC);
  names_->release_fenced(kC);
  names_->lost(kC);
  names_->recovered();
  ask(kB, "u", kU, 1);
  EXPECT_EQ(sent(), Sent{"2 u U:6 ask 1"}) << "the dead one cannot have had it exclusively";
  ask(kB, "t", kU, 2);
  EXPECT_EQ(sent(), Sent{});
  ASSERT_TRUE(names_->adopt(caller(kA), kC).ok());
  ASSERT_TRUE(names_->adoption_ended(caller(kA), kC, 0).ok());
  EXPECT_EQ(sent(), Sent{"2 t U:7 ask 2"});
}

}  // namespace
}  // namespace strata::fusion
