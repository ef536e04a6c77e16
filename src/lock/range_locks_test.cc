// Goal: interval sets are what a set of single keys would be; ranges are found by writers as long
// as they are registered. Method: random adds and removes against an array of keys.
#include "lock/internal/range_locks.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>

#include "base/rng.h"

namespace strata::lock_internal {
namespace {

const IndexId kIndex{7};
TrxId trx(uint64_t n) { return make_trx_id(NodeId{1}, n); }

std::string key_of(size_t n) {
  std::string key(2, '\0');
  key[0] = static_cast<char>(n / 8);  // keys of different length that are prefixes of each other
  key[1] = static_cast<char>(n % 8);
  if (n % 8 == 0) key.pop_back();
  return key;
}

TEST(IntervalSet, IsWhatASetOfKeysWouldBe) {
  constexpr size_t kKeys = 64;
  const char* seed_text = std::getenv("STRATA_SEED");
  const uint64_t seed = seed_text != nullptr ? std::strtoull(seed_text, nullptr, 10) : 1;
  SCOPED_TRACE("STRATA_SEED=" + std::to_string(seed));
  Rng rng(seed);
  for (int round = 0; round < 300; ++round) {
    IntervalSet set;
    std::array<bool, kKeys> model{};
    bool model_end = false;  // whatever is above the last key
    for (int step = 0; step < 60; ++step) {
      const size_t from = rng.below(kKeys);
      const size_t to = from + rng.below(kKeys - from + 1);
      const bool infinite = rng.below(16) == 0;
      const bool add = rng.below(3) != 0;
      const std::string low = key_of(from);
      const std::string high = to < kKeys ? key_of(to) : std::string("\x7f");
      const KeyRange range{low, high, infinite};
      bool all = true;
      for (size_t i = from; i < (infinite ? kKeys : to); ++i) {
        all = all && model[i];
        model[i] = add;
      }
      if (infinite) {
        all = all && model_end;
        model_end = add;
      }
      ASSERT_EQ(set.covers(range), all);
      if (add) {
        ASSERT_EQ(set.add(range), !all);
      } else {
        set.remove(range);
      }
      size_t runs = 0;
      for (size_t i = 0; i < kKeys; ++i) {
        ASSERT_EQ(set.contains(key_of(i)), model[i]) << "key " << i << " step " << step;
        if (model[i] && (i == 0 || !model[i - 1])) ++runs;
      }
      ASSERT_EQ(set.contains("\x7f\x01"), model_end);
      ASSERT_LE(set.size(), runs + 1);  // touching ranges are one
    }
  }
}

TEST(RangeLocks, WritersFindOthersRangesUntilTheyAreGivenBack) {
  RangeLocks locks;
  EXPECT_TRUE(locks.none());
  EXPECT_TRUE(locks.conflict(trx(1), kIndex, "b").is_zero());
  auto added = locks.add(trx(1), kIndex, {"b", "d", false});
  EXPECT_TRUE(added.grew && added.first);
  added = locks.add(trx(1), kIndex, {"b", "c", false});
  EXPECT_FALSE(added.grew || added.first);
  added = locks.add(trx(2), kIndex, {"c", "", true});
  EXPECT_TRUE(added.first);
  EXPECT_TRUE(locks.conflict(trx(3), kIndex, "a").is_zero());
  EXPECT_EQ(locks.conflict(trx(3), kIndex, "b"), trx(1));
  EXPECT_TRUE(locks.conflict(trx(1), kIndex, "b").is_zero());  // its own
  EXPECT_EQ(locks.conflict(trx(1), kIndex, "c"), trx(2));
  EXPECT_EQ(locks.conflict(trx(3), kIndex, "zzz"), trx(2));
  EXPECT_TRUE(locks.conflict(trx(3), IndexId{8}, "c").is_zero());
  std::vector<TrxId> all;
  locks.holders_of(kIndex, "c", &all);
  EXPECT_EQ(all.size(), 2u);

  EXPECT_FALSE(locks.settled(trx(1), kIndex, Bytes("b")));
  locks.settle(trx(1), kIndex, {"b", "bb", false});
  EXPECT_TRUE(locks.settled(trx(1), kIndex, Bytes("b")));
  locks.drop_key(trx(1), kIndex, "c");
  EXPECT_EQ(locks.conflict(trx(2), kIndex, std::string("c\0", 2)), trx(1));
  EXPECT_TRUE(locks.conflict(trx(2), kIndex, "c").is_zero());

  EXPECT_EQ(locks.release(trx(1)).size(), 1u);
  EXPECT_TRUE(locks.release(trx(1)).empty());
  EXPECT_TRUE(locks.conflict(trx(2), kIndex, "b").is_zero());
  locks.release(trx(2));
  EXPECT_TRUE(locks.none());
}

}  // namespace
}  // namespace strata::lock_internal
