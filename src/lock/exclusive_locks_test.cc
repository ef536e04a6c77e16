#include "lock/internal/exclusive_locks.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "base/rng.h"
#include "lock/internal/row_hash.h"

namespace strata::lock_internal {
namespace {

RowId row_of(Bytes key) { return RowId{IndexId{1}, key}; }

TEST(ExclusiveLocks, OneHolderPerRow) {
  ExclusiveLocks locks;
  HeldRows first, second;
  const RowId row = row_of("a");
  const uint64_t hash = hash_row(row);
  EXPECT_FALSE(locks.any_in(row.index));
  EXPECT_TRUE(locks.add(&first, TrxId{1}, row, hash).is_zero());
  EXPECT_TRUE(locks.any_in(row.index));
  EXPECT_EQ(locks.add(&second, TrxId{2}, row, hash), TrxId{1});
  EXPECT_EQ(locks.add(&first, TrxId{1}, row, hash), TrxId{1});
  EXPECT_EQ(first.size(), 1u);
  EXPECT_EQ(second.size(), 0u);
  EXPECT_FALSE(locks.drop(&second, row, hash));
  EXPECT_EQ(locks.holder_of(row, hash), TrxId{1});
  EXPECT_TRUE(locks.drop(&first, row, hash));
  EXPECT_TRUE(locks.holder_of(row, hash).is_zero());
  EXPECT_FALSE(locks.any_in(row.index));
}

TEST(ExclusiveLocks, ASavepointKeepsWhatWasTakenBefore) {  // L11
  ExclusiveLocks locks;
  HeldRows held;
  const RowId row = row_of("a");
  const RowId other = row_of("b");
  locks.add(&held, TrxId{1}, row, hash_row(row));
  held.mark_savepoint();
  locks.drop_last(&held, row, hash_row(row));
  EXPECT_EQ(held.size(), 1u);
  locks.add(&held, TrxId{1}, other, hash_row(other));
  locks.drop_last(&held, row, hash_row(row));
  EXPECT_EQ(held.size(), 2u) << "only the last one";
  locks.drop_last(&held, other, hash_row(other));
  EXPECT_EQ(held.size(), 1u);
  locks.release(&held);
  EXPECT_TRUE(locks.holder_of(row, hash_row(row)).is_zero());
}

// Against a map, with hashes that collide in chain and in full.
TEST(ExclusiveLocks, AgainstAMap) {
  const uint64_t seed = 7;
  Rng rng(seed);
  ExclusiveLocks locks;
  std::vector<HeldRows> held(5);
  std::map<std::string, uint64_t> oracle;
  for (int step = 0; step < 50000; ++step) {
    const auto t = static_cast<size_t>(rng.below(held.size()));
    const TrxId trx{t + 1};
    const std::string key = "key" + std::to_string(rng.below(300));
    const RowId row = row_of(key);
    const uint64_t hash = (hash_row(row) % 7) << 12;
    const auto at = oracle.find(key);
    const TrxId before{at == oracle.end() ? 0 : at->second};
    ASSERT_EQ(locks.holder_of(row, hash), before) << "seed " << seed << ", step " << step;
    if (rng.one_in(2)) {
      ASSERT_EQ(locks.add(&held[t], trx, row, hash), before);
      if (before.is_zero()) oracle[key] = trx.value;
    } else if (rng.one_in(40)) {
      locks.release(&held[t]);
      std::erase_if(oracle, [&](const auto& entry) { return entry.second == trx.value; });
    } else {
      ASSERT_EQ(locks.drop(&held[t], row, hash), before == trx && !before.is_zero());
      if (before == trx) oracle.erase(key);
    }
  }
  size_t sum = 0;
  for (const HeldRows& rows : held) sum += rows.size();
  EXPECT_EQ(sum, oracle.size());
}

}  // namespace
}  // namespace strata::lock_internal
