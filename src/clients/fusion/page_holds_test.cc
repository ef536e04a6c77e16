// Goal: each rule of page_holds.h and page_slots.h by hand, at exact steps (FU18, FU19, FH1-FH5,
// FH7).
#include "clients/fusion/page_holds.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>

#include "clients/fusion/page_slots.h"

namespace strata::clients {
namespace {

using proto::PageAsk;
using proto::PageGrant;
using proto::PageMode;
using proto::PageReport;

constexpr PageId kP{256, 7}, kQ{256, 8};
constexpr auto kS = PageMode::kShared;
constexpr auto kX = PageMode::kExclusive;

class Thread final : public PageHolds::Request {
 public:
  using Request::Request;
  void answered() noexcept override { ++answers; }
  uint32_t answers = 0;
};

class PageHoldsTest : public ::testing::Test {
 protected:
  explicit PageHoldsTest(uint32_t late_max = 0)
      : holds_({.cohort_max = 3, .late_max = late_max}, [this] { ++work_; }) {
    holds_.serve(true);
  }

  Thread* thread(PageId page, PageMode mode) {
    threads_.push_back(std::make_unique<Thread>(page, mode));
    return threads_.back().get();
  }
  // Waits.
  Thread* wait(PageId page, PageMode mode) {
    Thread* const t = thread(page, mode);
    EXPECT_FALSE(holds_.acquire(t, now_));
    return t;
  }
  bool has(PageId page, PageMode mode) { return holds_.acquire(thread(page, mode), now_); }
  PageAsk asked() {
    const auto asks = holds_.take_asks();
    EXPECT_EQ(asks.size(), 1u);
    return asks.empty() ? PageAsk{} : asks[0];
  }
  void grant(const PageAsk& ask, uint64_t number, PageMode mode) {
    holds_.granted({.page = ask.page, .ask = ask.ask, .number = number, .mode = mode});
  }
  // Has it, nobody uses it.
  void hold(PageId page, PageMode mode, uint64_t number) {
    Thread* const t = wait(page, mode);
    grant(asked(), number, mode);
    ASSERT_EQ(t->answers, 1u);
    holds_.release(page);
  }

  uint64_t now_ = 0;
  uint32_t work_ = 0;
  std::vector<std::unique_ptr<Thread>> threads_;
  PageHolds holds_;
};

TEST_F(PageHoldsTest, WhatIsHeldCostsNoMessage) {  // FU18
  Thread* const first = wait(kP, kX);
  const PageAsk ask = asked();
  EXPECT_EQ(ask.mode, kX);
  EXPECT_EQ(first->answers, 0u);
  grant(ask, 5, kX);
  EXPECT_EQ(first->answers, 1u);
  EXPECT_TRUE(first->status.ok());
  holds_.release(kP);
  EXPECT_TRUE(has(kP, kS));
  EXPECT_TRUE(has(kP, kX));
  EXPECT_TRUE(holds_.try_acquire(kP, kX));
  EXPECT_TRUE(holds_.take_asks().empty());
  EXPECT_TRUE(holds_.take_ready(10).empty());
  EXPECT_EQ(holds_.counters().held.load(), 3u);
}

TEST_F(PageHoldsTest, AThreadMoreAsksNoSecondTime) {
  wait(kP, kS);
  wait(kP, kS);
  const PageAsk ask = asked();
  EXPECT_EQ(ask.mode, kS);
  EXPECT_FALSE(holds_.try_acquire(kP, kS));
}

TEST_F(PageHoldsTest, IsGivenUpWhenTheLastReferenceGoes) {  // FU18
  hold(kP, kX, 5);
  EXPECT_TRUE(has(kP, kX));
  EXPECT_TRUE(has(kP, kS));
  holds_.asked_back({kP, 5});
  EXPECT_TRUE(holds_.take_ready(10).empty());
  holds_.release(kP);
  EXPECT_TRUE(holds_.take_ready(10).empty());
  holds_.release(kP);
  const auto ready = holds_.take_ready(10);
  ASSERT_EQ(ready.size(), 1u);
  EXPECT_EQ(ready[0].number, 5u);
  EXPECT_EQ(ready[0].mode, kX);
  Thread* const late = wait(kP, kS);
  EXPECT_TRUE(holds_.take_asks().empty());  // not before it is given up
  holds_.given_up(kP, now_);
  grant(asked(), 9, kS);
  EXPECT_EQ(late->answers, 1u);
}

TEST_F(PageHoldsTest, NobodyGetsWhatIsWantedBack) {  // FH7
  hold(kP, kX, 5);
  EXPECT_TRUE(has(kP, kS));
  holds_.asked_back({kP, 5});
  wait(kP, kS);
  EXPECT_FALSE(holds_.try_acquire(kP, kS));
  EXPECT_FALSE(holds_.seems_held(kP, kS));
}

class LatePageHoldsTest : public PageHoldsTest {
 protected:
  LatePageHoldsTest() : PageHoldsTest(2) {}
};

TEST_F(LatePageHoldsTest, SoManyMoreUseWhatIsWantedBackUntilItIsTaken) {  // FH7
  hold(kP, kX, 5);
  EXPECT_TRUE(has(kP, kX));
  holds_.asked_back({kP, 5});
  holds_.release(kP);
  EXPECT_TRUE(has(kP, kX));  // nobody has taken it yet
  EXPECT_TRUE(holds_.take_ready(10).empty());
  EXPECT_TRUE(holds_.try_acquire(kP, kS));
  Thread* const third = wait(kP, kX);
  EXPECT_FALSE(holds_.try_acquire(kP, kS));
  holds_.release(kP);
  EXPECT_TRUE(holds_.take_ready(10).empty());
  holds_.release(kP);
  EXPECT_EQ(third->answers, 0u);
  EXPECT_EQ(holds_.take_ready(10).size(), 1u);
  EXPECT_EQ(holds_.counters().late.load(), 2u);
  holds_.given_up(kP, now_);
  grant(asked(), 8, kX);  // behind whoever wanted it
  EXPECT_EQ(third->answers, 1u);
  holds_.asked_back({kP, 8});
  EXPECT_TRUE(holds_.try_acquire(kP, kX));  // counted anew for each grant
}

TEST_F(LatePageHoldsTest, NobodyUsesWhatIsBeingGivenUp) {  // FH7
  hold(kP, kX, 5);
  holds_.asked_back({kP, 5});
  EXPECT_EQ(holds_.take_ready(10).size(), 1u);
  EXPECT_FALSE(holds_.try_acquire(kP, kS));
  wait(kP, kS);
  holds_.give_up_failed(kP);
  EXPECT_TRUE(holds_.try_acquire(kP, kS));
}

TEST_F(LatePageHoldsTest, AWriterWaitsForSoManyReadersMore) {  // FU19, FH7
  hold(kP, kS, 5);
  EXPECT_TRUE(has(kP, kS));
  Thread* const writer = wait(kP, kX);
  EXPECT_TRUE(has(kP, kS));
  EXPECT_TRUE(has(kP, kS));
  wait(kP, kS);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(holds_.take_ready(10).empty());
    holds_.release(kP);
  }
  EXPECT_EQ(holds_.take_ready(10).size(), 1u);
  EXPECT_EQ(writer->answers, 0u);
}

TEST_F(PageHoldsTest, AFreshGrantIsUsedOnceBeforeItIsTakenBack) {  // FU18, FH7
  std::vector<Thread*> waiting;
  for (int i = 0; i < 5; ++i) waiting.push_back(wait(kP, kX));
  grant(asked(), 5, kX);
  const auto served = [&] {
    uint32_t count = 0;
    for (const Thread* t : waiting) count += t->answers;
    return count;
  };
  EXPECT_EQ(served(), 3u);  // a cohort
  holds_.asked_back({kP, 5});
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(holds_.take_ready(10).empty());
    holds_.release(kP);
  }
  EXPECT_EQ(served(), 3u);
  EXPECT_EQ(holds_.take_ready(10).size(), 1u);
  holds_.given_up(kP, now_);
  grant(asked(), 8, kX);  // a new ask for the others
  EXPECT_EQ(served(), 5u);
}

TEST_F(PageHoldsTest, WhatNobodyWantsBackServesAllWhoWait) {
  std::vector<Thread*> waiting;
  for (int i = 0; i < 5; ++i) waiting.push_back(wait(kP, kX));
  grant(asked(), 5, kX);
  holds_.release(kP);
  for (const Thread* t : waiting) EXPECT_EQ(t->answers, 1u);
}

TEST_F(PageHoldsTest, WhoWantsToWriteGivesUpWhatIsHeldForReading) {  // FU19
  hold(kP, kS, 5);
  EXPECT_TRUE(has(kP, kS));
  Thread* const writer = wait(kP, kX);
  Thread* const reader = wait(kP, kS);  // behind the writer
  EXPECT_TRUE(holds_.take_ready(10).empty());
  holds_.release(kP);
  EXPECT_EQ(holds_.take_ready(10).size(), 1u);
  holds_.given_up(kP, now_);
  const PageAsk ask = asked();
  EXPECT_EQ(ask.mode, kX);
  grant(ask, 6, kX);
  EXPECT_EQ(writer->answers, 1u);
  EXPECT_EQ(reader->answers, 1u);
}

TEST_F(PageHoldsTest, AWriterThatCameAfterTheAskGetsItsOwn) {  // FU19
  Thread* const reader = wait(kP, kS);
  Thread* const writer = wait(kP, kX);
  grant(asked(), 5, kS);
  EXPECT_EQ(reader->answers, 1u);
  EXPECT_EQ(writer->answers, 0u);
  holds_.release(kP);
  EXPECT_EQ(holds_.take_ready(10).size(), 1u);
  holds_.given_up(kP, now_);
  EXPECT_EQ(asked().mode, kX);
}

TEST_F(PageHoldsTest, AGrantThatComesAfterItsNotHeldIsNotUsed) {  // FH1, FU13
  Thread* const t = wait(kP, kX);
  const PageAsk ask = asked();
  holds_.asked_back({kP, 5});  // has overtaken the grant
  const auto said = holds_.take_not_held();
  ASSERT_EQ(said.size(), 1u);
  EXPECT_EQ(said[0].number, 5u);
  EXPECT_TRUE(said[0].gives_up);
  EXPECT_FALSE(said[0].changed);
  EXPECT_EQ(asked().ask, ask.ask);  // again
  grant(ask, 5, kX);
  EXPECT_EQ(t->answers, 0u);
  EXPECT_EQ(holds_.take_not_held().size(), 1u);
  holds_.take_asks();
  grant(ask, 7, kX);
  EXPECT_EQ(t->answers, 1u);
}

TEST_F(PageHoldsTest, GrantsThatNobodyWaitsForAreSentBack) {  // FH1
  grant({kP, kX, 77}, 5, kX);
  EXPECT_EQ(holds_.take_not_held().size(), 1u);
  wait(kP, kX);
  grant({kP, kX, 77}, 6, kX);  // of another ask
  EXPECT_EQ(holds_.take_not_held().size(), 1u);
}

TEST_F(PageHoldsTest, AGrantThatComesTwiceIsNotSentBack) {  // FH1
  wait(kP, kX);
  const PageAsk ask = asked();
  grant(ask, 5, kX);
  grant(ask, 5, kX);
  holds_.asked_back({kP, 5});
  holds_.release(kP);
  ASSERT_EQ(holds_.take_ready(10).size(), 1u);
  grant(ask, 5, kX);  // "not held" now would lose the version that is being put
  holds_.asked_back({kP, 5});
  EXPECT_TRUE(holds_.take_not_held().empty());
}

TEST_F(PageHoldsTest, VersionsAreReportedUntilThatIsAnswered) {  // FH2
  hold(kP, kX, 5);
  ASSERT_TRUE(holds_.put(
      {.page = kP, .llsn = Llsn{70}, .slot = 3, .first = Lsn{10}, .end = Lsn{20}}, Epoch{}));
  const auto report = holds_.unreported(kP);
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->number, 5u);
  EXPECT_TRUE(report->changed);
  EXPECT_FALSE(report->gives_up);
  EXPECT_EQ(holds_.version(kP).llsn, Llsn{70});
  EXPECT_EQ(holds_.version(kP).slot, 3u);
  EXPECT_EQ(holds_.all_unreported().size(), 1u);
  holds_.reported(*report);
  EXPECT_TRUE(holds_.all_unreported().empty());
  EXPECT_FALSE(holds_.unreported(kP).has_value());
  holds_.asked_back({kP, 5});
  ASSERT_EQ(holds_.take_ready(10).size(), 1u);
  EXPECT_FALSE(holds_.last_report(kP).changed);
  ASSERT_TRUE(holds_.put({.page = kP, .llsn = Llsn{80}, .slot = 4}, Epoch{}));
  EXPECT_TRUE(holds_.last_report(kP).changed);
  EXPECT_TRUE(holds_.last_report(kP).gives_up);
  EXPECT_EQ(holds_.last_report(kP).number, 5u);
}

TEST_F(PageHoldsTest, WhatCouldNotBeGivenUpIsHeldAndReadyAgain) {
  hold(kP, kX, 5);
  holds_.asked_back({kP, 5});
  ASSERT_EQ(holds_.take_ready(10).size(), 1u);
  EXPECT_TRUE(holds_.is_giving_up(kP));
  holds_.give_up_failed(kP);
  EXPECT_FALSE(holds_.is_giving_up(kP));
  wait(kP, kS);  // it is wanted back still
  EXPECT_EQ(holds_.take_ready(10).size(), 1u);
}

TEST_F(PageHoldsTest, NothingIsGivenUpBeforeItServes) {  // PL3
  holds_.serve(false);
  hold(kP, kX, 5);
  holds_.asked_back({kP, 5});
  EXPECT_TRUE(holds_.take_ready(10).empty());
  EXPECT_TRUE(has(kP, kX));  // the log goes on
  EXPECT_TRUE(holds_.try_acquire(kP, kX));
  holds_.release(kP);
  holds_.release(kP);
  EXPECT_TRUE(holds_.take_ready(10).empty());
  holds_.serve(true);
  EXPECT_EQ(holds_.take_ready(10).size(), 1u);
}

TEST_F(PageHoldsTest, WhatWasForgottenIsGivenUpUnlessSomebodyHasIt) {
  hold(kP, kX, 5);
  EXPECT_TRUE(has(kP, kS));
  holds_.forget(kP);
  EXPECT_TRUE(has(kP, kS));
  holds_.release(kP);
  holds_.release(kP);
  holds_.forget(kP);
  EXPECT_EQ(holds_.take_ready(10).size(), 1u);
}

TEST_F(PageHoldsTest, WhoIsCancelledIsNotAnswered) {
  Thread* const first = wait(kP, kX);
  Thread* const second = wait(kP, kX);
  Thread* const third = wait(kP, kX);
  EXPECT_TRUE(holds_.cancel(second));
  EXPECT_TRUE(holds_.cancel(third));
  wait(kP, kX);
  grant(asked(), 5, kX);
  EXPECT_EQ(first->answers, 1u);
  EXPECT_EQ(second->answers + third->answers, 0u);
  EXPECT_EQ(threads_.back()->answers, 1u);
  EXPECT_FALSE(holds_.cancel(first));
}

TEST_F(PageHoldsTest, AskedAgainAfterAWhile) {
  wait(kP, kX);
  const PageAsk ask = asked();
  holds_.repeat(499'999);
  EXPECT_TRUE(holds_.take_asks().empty());
  holds_.repeat(500'000);
  EXPECT_EQ(asked().ask, ask.ask);
  holds_.repeat(500'001);
  EXPECT_TRUE(holds_.take_asks().empty());
}

TEST_F(PageHoldsTest, WhoWaitsAtTheEndIsTold) {  // FH3
  hold(kQ, kX, 5);
  Thread* const first = wait(kP, kX);
  Thread* const second = wait(kP, kX);
  holds_.end(error_fenced());
  EXPECT_TRUE(is_fenced(first->status) && is_fenced(second->status));
  EXPECT_EQ(first->answers + second->answers, 2u);
  EXPECT_TRUE(has(kQ, kS));
  EXPECT_TRUE(is_fenced(threads_.back()->status));
  EXPECT_FALSE(holds_.try_acquire(kQ, kS));
  EXPECT_TRUE(holds_.take_asks().empty());
  holds_.release(kQ);  // whoever had it
}

TEST(PageSlots, AVersionIsWhatWasAskedForOrNothing) {  // FH5
  std::vector<char> page(kPageBytes);
  header_of(page.data())->format = kPageFormat;
  header_of(page.data())->type = static_cast<uint8_t>(PageType::kTree);
  header_of(page.data())->space = kP.space;
  header_of(page.data())->number = kP.number;
  header_of(page.data())->llsn = 70;
  seal_page(page.data());
  EXPECT_TRUE(PageSlots::check(page.data(), kP, Llsn{70}).ok());
  EXPECT_FALSE(PageSlots::check(page.data(), kQ, Llsn{70}).ok());
  EXPECT_FALSE(PageSlots::check(page.data(), kP, Llsn{71}).ok());
  page[9000] ^= 1;
  EXPECT_FALSE(PageSlots::check(page.data(), kP, Llsn{70}).ok());
  PageSlots slots;
  slots.add({4, 9});
  EXPECT_EQ(slots.free(), 2u);
  EXPECT_TRUE(slots.take().has_value() && slots.take().has_value());
  EXPECT_FALSE(slots.take().has_value());
}

TEST_F(PageHoldsTest, AnotherMemoryNodeIsToldWhatThereIs) {  // FH11
  constexpr PageId kR{256, 9}, kT{256, 10};
  hold(kP, kX, 5);
  ASSERT_TRUE(holds_.put({.page = kP, .llsn = Llsn{70}, .slot = 3}, Epoch{}));
  hold(kQ, kX, 6);
  holds_.asked_back({kQ, 6});
  ASSERT_EQ(holds_.take_ready(10).size(), 1u);  // it is being given up, and somebody wants it
  Thread* const again = wait(kQ, kS);
  hold(kT, kS, 8);
  holds_.asked_back({kT, 8});
  ASSERT_EQ(holds_.take_ready(10).size(), 1u);  // so is this one, and nobody does
  Thread* const asks = wait(kR, kS);
  const PageAsk before = asked();
  const auto held = holds_.renew(Epoch{9}, now_);
  ASSERT_EQ(held.size(), 1u);
  EXPECT_EQ(held[0], (proto::HeldPage{kP, 5, kX}));
  EXPECT_EQ(holds_.last_number(), 8u);
  EXPECT_FALSE(holds_.unreported(kP).has_value());
  EXPECT_EQ(holds_.version(kP).llsn, Llsn{70}) << "in storage, by the log";
  EXPECT_EQ(holds_.version(kP).slot, proto::kNoPageSlot);
  EXPECT_FALSE(holds_.put({.page = kP, .llsn = Llsn{80}, .slot = 4}, Epoch{})) << "the old pool";
  EXPECT_TRUE(holds_.put({.page = kP, .llsn = Llsn{80}, .slot = 4}, Epoch{9}));
  // Late grants of the old memory node answer nothing, and nothing is said of them to the new one,
  // which may give the same number to somebody.
  holds_.granted({.page = kR, .ask = before.ask, .number = 9, .mode = kS}, Epoch{});
  EXPECT_EQ(holds_.last_number(), 8u);
  EXPECT_TRUE(holds_.take_not_held().empty());
  grant(before, 9, kS);
  EXPECT_EQ(asks->answers, 0u);
  std::map<PageId, PageAsk> now;
  for (const PageAsk& ask : holds_.take_asks()) now[ask.page] = ask;
  ASSERT_EQ(now.size(), 2u);
  EXPECT_GT(now[kR].ask, before.ask);
  grant(now[kR], 10, kS);
  grant(now[kQ], 11, kS);
  EXPECT_EQ(asks->answers, 1u);
  EXPECT_EQ(again->answers, 1u);
}

}  // namespace
}  // namespace strata::clients
