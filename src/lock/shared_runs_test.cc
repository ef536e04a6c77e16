// Runs of rows held shared against sets of keys: who holds what, after adding, extending, trimming,
// releasing; holders do not keep one another out.
#include "lock/internal/shared_runs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <set>
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

class SharedRunsTest : public ::testing::Test {
 protected:
  HeldRun* add(HeldRows* held, uint64_t holder, uint64_t low, uint64_t high) {
    return runs_.add(held, TrxId{holder}, kIndex, key_of(low), key_of(high), &had_);
  }
  bool holds(uint64_t holder, uint64_t n) {
    return runs_.holds(TrxId{holder}, RowId{kIndex, key_of(n)});
  }
  TrxId conflict(uint64_t self, uint64_t n) {
    return runs_.conflict(TrxId{self}, RowId{kIndex, key_of(n)});
  }
  void release(HeldRows* held) {
    runs_.release(held, [this](IndexId index) { released_ += index == kIndex ? 1 : 0; });
  }
  SharedRuns runs_;
  bool had_ = false;
  int released_ = 0;
};

TEST_F(SharedRunsTest, HoldersShareWhatIsBetweenTheirEnds) {
  HeldRows mine;
  HeldRows yours;
  EXPECT_FALSE(runs_.any_in(kIndex));
  ASSERT_NE(add(&mine, 1, 10, 20), nullptr);
  ASSERT_NE(add(&yours, 2, 15, 30), nullptr);
  EXPECT_TRUE(runs_.any_in(kIndex));
  EXPECT_FALSE(holds(1, 9) || holds(1, 21) || holds(2, 14) || holds(3, 15));
  EXPECT_TRUE(holds(1, 10) && holds(1, 20) && holds(2, 15) && holds(2, 30));
  EXPECT_EQ(conflict(1, 12), TrxId{});
  EXPECT_EQ(conflict(1, 17), TrxId{2});
  EXPECT_EQ(conflict(2, 17), TrxId{1});
  EXPECT_EQ(runs_.conflict(TrxId{3}, RowId{IndexId{8}, key_of(15)}), TrxId{});
  std::vector<TrxId> all;
  runs_.holders_of(RowId{kIndex, key_of(17)}, &all);
  EXPECT_EQ(all, (std::vector<TrxId>{TrxId{1}, TrxId{2}}));
  release(&mine);
  EXPECT_EQ(conflict(2, 17), TrxId{});
  release(&yours);
  EXPECT_FALSE(runs_.any_in(kIndex));
  EXPECT_EQ(released_, 2) << "the index of each run is told";
}

TEST_F(SharedRunsTest, ARunOfOnesOwnIsInTheWay) {
  HeldRows mine;
  HeldRun* const run = add(&mine, 1, 10, 20);
  EXPECT_EQ(add(&mine, 1, 12, 20), nullptr);
  EXPECT_TRUE(had_);
  EXPECT_EQ(add(&mine, 1, 5, 12), nullptr);
  EXPECT_FALSE(had_);
  HeldRun* const next = add(&mine, 1, 30, 40);
  ASSERT_NE(next, nullptr);
  EXPECT_FALSE(runs_.extend(run, key_of(30)));
  EXPECT_TRUE(runs_.extend(run, key_of(29)));
  EXPECT_TRUE(holds(1, 25));
  runs_.trim(run, key_of(12));
  EXPECT_FALSE(holds(1, 13));
  runs_.drop(&mine, next);
  EXPECT_FALSE(holds(1, 35));
  EXPECT_EQ(mine.shared_run_count(), 1u);
  release(&mine);
}

TEST_F(SharedRunsTest, AgreesWithSetsOfKeys) {
  const char* const given = std::getenv("STRATA_SEED");
  const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 1;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  constexpr uint64_t kKeys = 200;
  Rng rng(seed);
  std::array<HeldRows, 4> held;
  std::array<std::set<uint64_t>, 4> keys;
  struct Last {
    HeldRun* run;
    uint64_t low, high;
  };
  std::array<std::optional<Last>, 4> last;
  for (int step = 0; step < 20000; ++step) {
    const uint64_t who = rng.below(held.size());
    std::set<uint64_t>& own = keys[who];
    const uint64_t low = rng.below(kKeys);
    const uint64_t high = std::min(low + rng.below(20), kKeys - 1);
    const uint64_t what = rng.below(10);
    const auto free_between = [&](uint64_t a, uint64_t b) {
      const auto it = own.lower_bound(a);
      return it == own.end() || *it > b;
    };
    if (what < 5) {
      const bool free = free_between(low, high);
      HeldRun* const run = add(&held[who], who + 1, low, high);
      ASSERT_EQ(run != nullptr, free) << "step " << step;
      if (run == nullptr) continue;
      for (uint64_t k = low; k <= high; ++k) own.insert(k);
      last[who] = Last{run, low, high};
    } else if (what < 7 && last[who]) {
      const uint64_t to = std::min(last[who]->high + rng.below(10), kKeys - 1);
      const bool free = to == last[who]->high || free_between(last[who]->high + 1, to);
      ASSERT_EQ(runs_.extend(last[who]->run, key_of(to)), free) << "step " << step;
      if (!free) continue;
      for (uint64_t k = last[who]->high; k <= to; ++k) own.insert(k);
      last[who]->high = to;
    } else if (what < 9 && last[who]) {
      const uint64_t to = last[who]->low + rng.below(last[who]->high - last[who]->low + 1);
      runs_.trim(last[who]->run, key_of(to));
      for (uint64_t k = to + 1; k <= last[who]->high; ++k) own.erase(k);
      last[who]->high = to;
    } else if (what == 9) {
      release(&held[who]);
      last[who].reset();
      own.clear();
    }
    const uint64_t k = rng.below(kKeys);
    bool others = false;
    for (uint64_t other = 0; other < keys.size(); ++other) {
      ASSERT_EQ(holds(other + 1, k), keys[other].count(k) != 0) << "step " << step;
      others = others || (other != who && keys[other].count(k) != 0);
    }
    ASSERT_EQ(!conflict(who + 1, k).is_zero(), others) << "step " << step;
  }
  for (HeldRows& rows : held) release(&rows);
}

}  // namespace
}  // namespace strata::lock_internal
