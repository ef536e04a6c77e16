// Goal: each rule of name_holds.h by hand, message by message (FC33-FC38).
#include "clients/fusion/name_holds.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace strata::clients {
namespace {

using proto::NameAsk;
using proto::NameMode;
using proto::NameReport;

constexpr auto kU = NameMode::kUse;
constexpr auto kS = NameMode::kShared;
constexpr auto kX = NameMode::kExclusive;

class Waiting final : public NameHolds::Request {
 public:
  using Request::Request;
  void answered() noexcept override { is_answered = true; }
  bool is_answered = false;
};

class NameHoldsTest : public ::testing::Test {
 protected:
  using Sent = std::vector<std::string>;
  std::unique_ptr<Waiting> acquire(NameMode mode, const std::string& name = "t") {
    auto request = std::make_unique<Waiting>(name, mode);
    if (holds_.acquire(request.get(), now_)) request->is_answered = true;
    return request;
  }
  void granted(NameMode mode, uint64_t ask, uint64_t number) {
    holds_.granted({"t", mode, ask, number}, now_);
  }
  void asked_back(NameMode mode, uint64_t number) { holds_.asked_back({"t", mode, number}); }
  // "U 1": asks; "- 1": takes it back; "5 none", "5 use": reports.
  Sent sent() {
    Sent texts;
    for (const NameAsk& ask : holds_.take_asks())
      texts.push_back((ask.mode == kU   ? "U "
                       : ask.mode == kX ? "X "
                       : ask.mode == kS ? "S "
                                        : "- ") +
                      std::to_string(ask.ask));
    for (const NameReport& report : holds_.take_reports())
      texts.push_back(std::to_string(report.number) + (report.keeps == kU ? " use" : " none"));
    return texts;
  }
  // The server's thread forgets the name, or cannot.
  bool gives_up(bool is_forgotten = true) {
    const auto name = holds_.take_ready();
    if (!name.has_value()) return false;
    holds_.gave_up(*name, is_forgotten, now_);
    return true;
  }
  uint64_t now_ = 1'000'000;
  NameHolds holds_{{.ask_again_us = 1000, .try_again_us = 100, .wanted_us = 5000}, [] {}};
};

TEST_F(NameHoldsTest, ThreadsShareALockToUseAName) {  // FC33
  const auto first = acquire(kU), second = acquire(kU);
  EXPECT_FALSE(first->is_answered);
  EXPECT_EQ(sent(), Sent{"U 1"});
  granted(kU, 1, 10);
  EXPECT_TRUE(first->is_answered && second->is_answered);
  EXPECT_TRUE(acquire(kU)->is_answered);
  EXPECT_EQ(sent(), Sent{});
}

TEST_F(NameHoldsTest, ThreadsShareASharedOneAndTheLastLetsItGo) {  // FC33
  const auto use = acquire(kU);
  granted(kU, 1, 10);
  sent();
  const auto first = acquire(kS);
  EXPECT_EQ(sent(), Sent{"S 2"});
  granted(kX, 2, 11);  // nobody has asked for that
  EXPECT_FALSE(first->is_answered);
  EXPECT_EQ(sent(), (Sent{"S 2", "11 none"}));
  granted(kS, 2, 12);
  EXPECT_TRUE(first->is_answered && holds_.has("t", kS) && !holds_.has("t", kX));
  EXPECT_TRUE(acquire(kS)->is_answered);
  // What was there to use goes when another server shares it as well, and does not come back here.
  asked_back(kU, 10);
  EXPECT_TRUE(gives_up());
  EXPECT_EQ(sent(), Sent{"10 none"});
  const auto waits = acquire(kU);
  EXPECT_FALSE(waits->is_answered);
  EXPECT_EQ(sent(), Sent{"U 3"});
  holds_.unlock("t", now_);
  EXPECT_EQ(sent(), Sent{});
  holds_.unlock("t", now_);
  EXPECT_EQ(sent(), Sent{"12 none"});
  holds_.unlock("t", now_);  // no thread has it
  EXPECT_EQ(sent(), Sent{});
  granted(kU, 3, 13);
  EXPECT_TRUE(waits->is_answered);
}

TEST_F(NameHoldsTest, GivesUpOnceItIsForgotten) {  // FC33, FC35
  const auto first = acquire(kU);
  granted(kU, 1, 10);
  sent();
  asked_back(kU, 10);
  asked_back(kU, 10);
  EXPECT_TRUE(acquire(kU)->is_answered);  // nobody forgets it yet
  const auto name = holds_.take_ready();
  ASSERT_TRUE(name.has_value());
  EXPECT_FALSE(holds_.take_ready().has_value());
  const auto late = acquire(kU);
  EXPECT_FALSE(late->is_answered);
  holds_.gave_up(*name, false, now_);  // it is in use
  EXPECT_TRUE(late->is_answered);
  EXPECT_EQ(sent(), Sent{});
  EXPECT_FALSE(gives_up());
  now_ += 200;
  holds_.repeat(now_);
  EXPECT_TRUE(gives_up());
  EXPECT_EQ(sent(), Sent{"10 none"});
  EXPECT_EQ(holds_.names(), 0u);
}

TEST_F(NameHoldsTest, WhatNobodyWantsAnyMoreStays) {  // FC53
  const auto first = acquire(kU);
  granted(kU, 1, 10);
  asked_back(kU, 10);
  EXPECT_TRUE(gives_up(false));
  for (int i = 0; i < 4; ++i) {
    now_ += 4000;
    holds_.repeat(now_);
    EXPECT_TRUE(gives_up(false)) << i;
    if (i < 3) asked_back(kU, 10);  // somebody waits still
  }
  now_ += 5000;
  holds_.repeat(now_);
  EXPECT_FALSE(gives_up());
  asked_back(kU, 10);
  EXPECT_TRUE(gives_up());
}

TEST_F(NameHoldsTest, WhoCameMeanwhileAsksAnew) {
  const auto first = acquire(kU);
  granted(kU, 1, 10);
  asked_back(kU, 10);
  sent();
  const auto name = holds_.take_ready();
  const auto late = acquire(kU);
  EXPECT_EQ(sent(), Sent{});
  holds_.gave_up(*name, true, now_);
  EXPECT_EQ(sent(), (Sent{"U 2", "10 none"}));
  granted(kU, 1, 10);  // again, late
  EXPECT_FALSE(late->is_answered);
  EXPECT_EQ(sent(), Sent{"10 none"});
  granted(kU, 2, 11);
  EXPECT_TRUE(late->is_answered);
}

TEST_F(NameHoldsTest, AGrantThatCrossesItsNotHeldIsRefused) {  // FC34
  const auto first = acquire(kU);
  EXPECT_EQ(sent(), Sent{"U 1"});
  asked_back(kU, 10);  // overtakes the grant
  EXPECT_EQ(sent(), (Sent{"U 1", "10 none"}));
  granted(kU, 1, 10);
  EXPECT_FALSE(first->is_answered);
  EXPECT_EQ(sent(), (Sent{"U 1", "10 none"}));
  granted(kU, 1, 12);
  EXPECT_TRUE(first->is_answered);
  granted(kU, 1, 12);
  EXPECT_EQ(sent(), Sent{});
}

TEST_F(NameHoldsTest, AnExclusiveNameIsOneThreads) {  // FC33
  const auto use = acquire(kU);
  granted(kU, 1, 10);
  const auto first = acquire(kX), second = acquire(kX);
  EXPECT_EQ(sent(), (Sent{"U 1", "X 2"}));
  EXPECT_TRUE(acquire(kU)->is_answered);
  granted(kX, 2, 11);
  EXPECT_TRUE(first->is_answered);
  EXPECT_FALSE(second->is_answered);
  EXPECT_TRUE(acquire(kU)->is_answered);
  asked_back(kX, 11);
  asked_back(kU, 10);
  EXPECT_FALSE(gives_up());
  EXPECT_EQ(sent(), Sent{});
  holds_.unlock("t", now_);
  EXPECT_EQ(sent(), (Sent{"X 3", "11 use"}));
  asked_back(kX, 11);  // that was lost
  EXPECT_EQ(sent(), Sent{"11 use"});
  asked_back(kU, 11);
  EXPECT_TRUE(gives_up());
  EXPECT_EQ(sent(), Sent{"11 none"});
  granted(kX, 3, 12);
  EXPECT_TRUE(second->is_answered);
}

TEST_F(NameHoldsTest, NoGrantIsHandedOutWhileTheNameIsForgotten) {  // FC36
  const auto use = acquire(kU);
  granted(kU, 1, 10);
  const auto exclusive = acquire(kX);
  asked_back(kU, 10);
  sent();
  const auto name = holds_.take_ready();
  granted(kX, 2, 11);  // who wanted it has gone
  EXPECT_FALSE(exclusive->is_answered);
  holds_.gave_up(*name, true, now_);
  EXPECT_TRUE(exclusive->is_answered);
  EXPECT_EQ(sent(), Sent{"10 none"});
  holds_.unlock("t", now_);
  EXPECT_EQ(sent(), Sent{"11 use"});
  EXPECT_TRUE(acquire(kU)->is_answered);
}

TEST_F(NameHoldsTest, WhoDoesNotWaitAnyMoreSaysSo) {  // FC37
  const auto exclusive = acquire(kX);
  const auto use = acquire(kU);
  EXPECT_EQ(sent(), Sent{"X 1"});
  EXPECT_TRUE(holds_.cancel(exclusive.get(), now_));
  EXPECT_FALSE(holds_.cancel(exclusive.get(), now_));
  EXPECT_EQ(sent(), (Sent{"- 1", "U 2"}));
  granted(kX, 1, 10);
  EXPECT_EQ(sent(), Sent{"10 none"});
  granted(kU, 2, 11);
  EXPECT_TRUE(use->is_answered);
  // It came while the name was being forgotten, and nobody waits for it then.
  const auto again = acquire(kX);
  asked_back(kU, 11);
  const auto name = holds_.take_ready();
  granted(kX, 3, 12);
  EXPECT_TRUE(holds_.cancel(again.get(), now_));
  sent();
  holds_.gave_up(*name, true, now_);
  EXPECT_EQ(sent(), (Sent{"11 none", "12 use"}));
}

TEST_F(NameHoldsTest, WhatIsLostIsSaidAgain) {
  const auto exclusive = acquire(kX);
  const auto other = acquire(kU, "u");
  sent();
  holds_.repeat(now_ + 500);
  EXPECT_EQ(sent(), Sent{});
  holds_.repeat(now_ + 1500);
  EXPECT_EQ(sent(), (Sent{"X 1", "U 2"}));
  granted(kX, 1, 10);
  holds_.unlock("t", now_);
  auto reports = holds_.take_reports();
  holds_.reports_failed(std::move(reports));
  EXPECT_EQ(sent(), Sent{"10 use"});
}

TEST_F(NameHoldsTest, NothingAfterTheEnd) {  // FC38
  const auto held = acquire(kX);
  granted(kX, 1, 10);
  const auto waits = acquire(kX);
  holds_.end(error_fenced());
  EXPECT_TRUE(waits->is_answered);
  EXPECT_TRUE(is_fenced(waits->status));
  holds_.unlock("t", now_);
  granted(kX, 1, 11);
  asked_back(kX, 11);
  holds_.repeat(now_ + 5000);
  EXPECT_EQ(sent(), Sent{});
  const auto late = acquire(kU);
  EXPECT_TRUE(is_fenced(late->status));
}

}  // namespace
}  // namespace strata::clients
