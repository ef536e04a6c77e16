// Runs of rows against a map of keys: who holds what, after adding, extending, trimming, releasing.
#include "lock/internal/exclusive_runs.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>

#include "base/rng.h"

namespace strata::lock_internal {
namespace {

constexpr IndexId kIndex{7};

std::string key_of(uint64_t n) {
  char text[8];
  std::snprintf(text, sizeof(text), "%05u", static_cast<unsigned>(n));
  return text;
}

class ExclusiveRunsTest : public ::testing::Test {
 protected:
  HeldRun* add(HeldRows* held, uint64_t holder, uint64_t low, uint64_t high) {
    return runs_.add(held, TrxId{holder}, kIndex, key_of(low), key_of(high), now_, &had_);
  }
  TrxId holder_of(uint64_t n, Cts written = Cts{}) {
    return runs_.holder_of(RowId{kIndex, key_of(n)}, written);
  }
  ExclusiveRuns runs_;
  bool had_ = false;
  Cts now_{100};
};

TEST_F(ExclusiveRunsTest, HoldsWhatIsBetweenItsEnds) {
  HeldRows held;
  EXPECT_FALSE(runs_.any_in(kIndex));
  ASSERT_NE(add(&held, 1, 10, 20), nullptr);
  EXPECT_TRUE(runs_.any_in(kIndex));
  EXPECT_EQ(holder_of(9), TrxId{});
  EXPECT_EQ(holder_of(10), TrxId{1});
  EXPECT_EQ(holder_of(15), TrxId{1});
  EXPECT_EQ(holder_of(20), TrxId{1});
  EXPECT_EQ(holder_of(21), TrxId{});
  EXPECT_EQ(runs_.holder_of(RowId{IndexId{8}, key_of(15)}, Cts{}), TrxId{});
  EXPECT_TRUE(held.last_run_holds(RowId{kIndex, key_of(20)}, Cts{1}));
  EXPECT_FALSE(held.last_run_holds(RowId{kIndex, key_of(21)}, Cts{1}));
  runs_.release(&held);
  EXPECT_EQ(holder_of(15), TrxId{});
  EXPECT_FALSE(runs_.any_in(kIndex));
}

TEST_F(ExclusiveRunsTest, NoTwoRunsShareAKey) {
  HeldRows mine;
  HeldRows yours;
  HeldRun* const run = add(&mine, 1, 10, 20);
  EXPECT_EQ(add(&yours, 2, 5, 10), nullptr);
  EXPECT_EQ(add(&yours, 2, 20, 30), nullptr);
  EXPECT_EQ(add(&yours, 2, 5, 30), nullptr);
  EXPECT_EQ(add(&yours, 2, 12, 13), nullptr);
  EXPECT_FALSE(had_);
  ASSERT_NE(add(&yours, 2, 30, 40), nullptr);
  EXPECT_FALSE(runs_.extend(run, key_of(30), now_));
  EXPECT_EQ(holder_of(25), TrxId{});
  EXPECT_TRUE(runs_.extend(run, key_of(29), now_));
  EXPECT_EQ(holder_of(25), TrxId{1});
  EXPECT_EQ(add(&mine, 1, 12, 29), nullptr);
  EXPECT_TRUE(had_);
  EXPECT_EQ(add(&mine, 1, 5, 12), nullptr);  // part of it only
  EXPECT_FALSE(had_);
  runs_.release(&mine);
  runs_.release(&yours);
}

TEST_F(ExclusiveRunsTest, WhatWasWrittenLaterIsNotHeld) {
  HeldRows held;
  HeldRun* const run = add(&held, 1, 10, 20);
  EXPECT_EQ(holder_of(15, Cts{100}), TrxId{1});
  EXPECT_EQ(holder_of(15, Cts{101}), TrxId{});
  EXPECT_FALSE(held.last_run_holds(RowId{kIndex, key_of(15)}, Cts{101}));
  EXPECT_FALSE(held.last_run_holds(RowId{kIndex, key_of(15)}, Cts{})) << "not certain";
  now_ = Cts{110};
  EXPECT_TRUE(runs_.extend(run, key_of(25), now_));
  EXPECT_EQ(holder_of(15, Cts{101}), TrxId{1});
  now_ = Cts{120};
  EXPECT_EQ(add(&held, 1, 12, 14), nullptr);
  EXPECT_TRUE(had_);
  EXPECT_EQ(holder_of(12, Cts{120}), TrxId{1});
  runs_.release(&held);
}

TEST_F(ExclusiveRunsTest, WhatIsTrimmedIsFree) {
  HeldRows mine;
  HeldRows yours;
  HeldRun* const run = add(&mine, 1, 10, 20);
  runs_.trim(run, key_of(12));
  EXPECT_EQ(holder_of(12), TrxId{1});
  EXPECT_EQ(holder_of(13), TrxId{});
  EXPECT_NE(add(&yours, 2, 13, 20), nullptr);
  runs_.release(&mine);
  EXPECT_EQ(holder_of(13), TrxId{2});
  runs_.release(&yours);
}

TEST_F(ExclusiveRunsTest, AgreesWithAMapOfKeys) {
  const char* const given = std::getenv("STRATA_SEED");
  const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 1;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  constexpr uint64_t kKeys = 200;
  Rng rng(seed);
  std::array<HeldRows, 4> held;
  std::map<uint64_t, uint64_t> holders;
  struct Last {
    HeldRun* run;
    uint64_t low, high;
  };
  std::array<std::optional<Last>, 4> last;
  for (int step = 0; step < 20000; ++step) {
    const uint64_t who = rng.below(held.size());
    const uint64_t low = rng.below(kKeys);
    const uint64_t high = std::min(low + rng.below(20), kKeys - 1);
    const uint64_t what = rng.below(10);
    const auto free_between = [&](uint64_t a, uint64_t b) {
      const auto it = holders.lower_bound(a);
      return it == holders.end() || it->first > b;
    };
    if (what < 5) {
      const bool free = free_between(low, high);
      HeldRun* const run = add(&held[who], who + 1, low, high);
      ASSERT_EQ(run != nullptr, free) << "step " << step;
      if (run == nullptr) continue;
      for (uint64_t k = low; k <= high; ++k) holders[k] = who + 1;
      last[who] = Last{run, low, high};
    } else if (what < 7 && last[who]) {
      const uint64_t to = std::min(last[who]->high + rng.below(10), kKeys - 1);
      const bool free = to == last[who]->high || free_between(last[who]->high + 1, to);
      ASSERT_EQ(runs_.extend(last[who]->run, key_of(to), now_), free) << "step " << step;
      if (!free) continue;
      for (uint64_t k = last[who]->high; k <= to; ++k) holders[k] = who + 1;
      last[who]->high = to;
    } else if (what < 9 && last[who]) {
      const uint64_t to = last[who]->low + rng.below(last[who]->high - last[who]->low + 1);
      runs_.trim(last[who]->run, key_of(to));
      for (uint64_t k = to + 1; k <= last[who]->high; ++k) holders.erase(k);
      last[who]->high = to;
    } else if (what == 9) {
      runs_.release(&held[who]);
      last[who].reset();
      std::erase_if(holders, [who](const auto& entry) { return entry.second == who + 1; });
    }
    const uint64_t k = rng.below(kKeys);
    const auto it = holders.find(k);
    ASSERT_EQ(holder_of(k), it == holders.end() ? TrxId{} : TrxId{it->second}) << "step " << step;
  }
  for (HeldRows& rows : held) runs_.release(&rows);
}

}  // namespace
}  // namespace strata::lock_internal
