// Goal: a program that waits for memory is helped soon and again, and ended only when that changes
// nothing (FM49). Method: looks at moments of the test's own. What needs the kernel is in
// tests/e2e/test_farmem_swap.py.
#include "farmem/swap/stuck.h"

#include <gtest/gtest.h>

namespace strata::farmem {
namespace {

constexpr uint64_t kLookUs = 200'000;

// A watch, a clock, and the kernel's count of swapped pages.
struct Watched {
  StuckWatch watch;
  uint64_t now_us = 1'000'000;
  uint64_t swapped = 40;
  uint64_t swapped_by_taking = 16;
  uint32_t taken = 0;

  WhenStuck look(bool waits) {
    now_us += kLookUs;
    const WhenStuck answer = watch.look(now_us, waits, swapped);
    if (answer != WhenStuck::kTakePages) return answer;
    ++taken;
    swapped += swapped_by_taking;
    watch.has_taken(now_us, swapped);
    return answer;
  }
  // So many looks until it is ended; 0: it is not.
  int looks_to_the_end(int most) {
    for (int i = 1; i <= most; ++i)
      if (look(true) == WhenStuck::kEnd) return i;
    return 0;
  }
};

TEST(StuckWatch, LeavesAProgramAloneThatDoesNotWait) {
  Watched w;
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(w.look(false), WhenStuck::kNothing);
    EXPECT_EQ(w.look(i % 2 == 0), WhenStuck::kNothing);  // waits at one look, not at the next
  }
}

TEST(StuckWatch, TakesPagesAtTheSecondLook) {
  Watched w;
  EXPECT_EQ(w.look(true), WhenStuck::kNothing);
  EXPECT_EQ(w.look(true), WhenStuck::kTakePages);
}

TEST(StuckWatch, EndsAfterAllTriesWithGrowingPauses) {
  Watched w;
  const auto looks = static_cast<uint64_t>(w.looks_to_the_end(1000));
  EXPECT_EQ(w.taken, StuckWatch::kTries);
  EXPECT_EQ((looks - 1) * kLookUs, StuckWatch::kEndsAfterUs);
  EXPECT_GT(StuckWatch::kEndsAfterUs, 5'000'000u);
  EXPECT_LT(StuckWatch::kEndsAfterUs, 20'000'000u);
}

TEST(StuckWatch, WhatTakingSwapsIsNotTheProgramGettingOn) {
  Watched w;
  w.swapped_by_taking = 0;
  const int looks = w.looks_to_the_end(1000);
  Watched other;
  other.swapped_by_taking = 16;
  EXPECT_EQ(other.looks_to_the_end(1000), looks);
}

TEST(StuckWatch, BeginsAgainWhenAPageWasSwappedForTheProgram) {
  Watched w;
  for (int round = 0; round < 50; ++round) {
    EXPECT_EQ(w.looks_to_the_end(20), 0);
    ++w.swapped;
  }
  EXPECT_GE(w.taken, 50u);
}

TEST(StuckWatch, BeginsAgainWhenItNoLongerWaits) {
  Watched w;
  for (int round = 0; round < 50; ++round) {
    EXPECT_EQ(w.looks_to_the_end(20), 0);
    EXPECT_EQ(w.look(false), WhenStuck::kNothing);
  }
}

// A machine on which even looks come late: time alone ends nothing.
TEST(StuckWatch, LateLooksStillTakePagesFirst) {
  Watched w;
  for (uint32_t i = 0; i <= StuckWatch::kTries; ++i) {
    EXPECT_NE(w.look(true), WhenStuck::kEnd);
    w.now_us += 60'000'000;
  }
  EXPECT_EQ(w.look(true), WhenStuck::kEnd);
  EXPECT_EQ(w.taken, StuckWatch::kTries);
}

}  // namespace
}  // namespace strata::farmem
