// Trees: splits, merges, cursors, estimates, check. Method: a small store on a simulated disk.
#include "btree/btree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <numeric>
#include <set>
#include <thread>

#include "base/clock.h"
#include "base/fault.h"
#include "base/testing/wait_until.h"
#include "btree/internal/descend.h"
#include "btree/testing/tree_driver.h"

namespace strata {
namespace {

using testing::be_key;
using testing::Model;
using testing::record_value;
using testing::TestStore;
using testing::TreeDriver;

constexpr SpaceId kSpace{256};

struct BTreeTest : ::testing::Test {
  explicit BTreeTest(uint32_t frames = 512, uint32_t writers = 0)
      : store({.frames = frames, .writers = writers}) {
    EXPECT_TRUE(store.spaces()->create(kSpace).ok());
    tree = std::make_unique<TreeDriver>(&store, TreeDriver::create(&store, kSpace, 7));
  }
  ~BTreeTest() override { disarm_faults(); }
  void put(const std::string& key, const std::string& payload) {
    const std::string value = record_value(payload);
    const Status status = tree->put(key, value);
    ASSERT_TRUE(status.ok()) << status;
    model[key] = value;
  }
  void erase(const std::string& key, bool merge = true) {
    bool found = false;
    const Status status = tree->erase(key, &found, nullptr, merge);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(found, model.erase(key) == 1);
  }
  double leaf_fill() {
    uint64_t bytes = 0;
    for (const auto& [key, value] : model) bytes += value.size() + 10;  // but for the keys
    return static_cast<double>(bytes) /
           (static_cast<double>(tree->check().leaf_pages) * (kPageBytes - kPageHeaderBytes));
  }
  TestStore store;
  std::unique_ptr<TreeDriver> tree;
  Model model;
};

TEST_F(BTreeTest, AnEmptyTreeHasNoRecords) {
  tree->expect_equals({});
  EXPECT_EQ(tree->check().height, 1u);
  EXPECT_FALSE(tree->get("x")->has_value());
  EXPECT_TRUE(tree->scan("x", false, false, 10)->empty());
}

TEST_F(BTreeTest, AscendingInsertsFillPages) {
  for (uint64_t i = 0; i < 30000; ++i) put(be_key(i), std::string(75, 'v'));
  tree->expect_equals(model);
  EXPECT_EQ(tree->check().height, 2u);
  EXPECT_GT(leaf_fill(), 0.92);
}

TEST_F(BTreeTest, DescendingInsertsFillPages) {
  for (uint64_t i = 20000; i-- > 0;) put(be_key(i), std::string(75, 'v'));
  tree->expect_equals(model);
  EXPECT_GT(leaf_fill(), 0.9);
}

TEST_F(BTreeTest, RunsInsideTheTreeFillPages) {
  // Ten groups, each filled in order, all at the same time.
  for (uint64_t i = 0; i < 3000; ++i)
    for (uint64_t group = 0; group < 10; ++group)
      put(be_key(group) + be_key(i), std::string(75, 'v'));
  tree->expect_equals(model);
  EXPECT_GT(leaf_fill(), 0.85);
}

TEST_F(BTreeTest, NearlyAscendingInsertsFillPages) {
  // Eight threads that append take numbers in turn and overtake one another.
  Rng rng(6);
  std::vector<uint64_t> waiting;
  for (uint64_t next = 0; next < 20000 || !waiting.empty();) {
    while (waiting.size() < 8 && next < 20000) waiting.push_back(next++);
    const size_t at = rng.below(waiting.size());
    put(be_key(waiting[at]), std::string(75, 'v'));
    waiting.erase(waiting.begin() + static_cast<ptrdiff_t>(at));
  }
  tree->expect_equals(model);
  EXPECT_GT(leaf_fill(), 0.8);
}

TEST_F(BTreeTest, RandomInsertsFillTwoThirds) {
  Rng rng(1);
  for (int i = 0; i < 20000; ++i) put(be_key(rng.next()), std::string(75, 'v'));
  tree->expect_equals(model);
  EXPECT_GT(leaf_fill(), 0.6);
}

TEST_F(BTreeTest, ErasingEverythingShrinksTheTreeToItsRoot) {
  Rng rng(2);
  for (const int order : {0, 1, 2}) {
    for (uint64_t i = 0; i < 20000; ++i) put(be_key(i), std::string(200, 'v'));
    EXPECT_EQ(tree->check().height, 2u);
    std::vector<std::string> keys;
    for (const auto& [key, value] : model) keys.push_back(key);
    if (order == 1) std::reverse(keys.begin(), keys.end());
    if (order == 2)
      for (size_t i = keys.size(); i > 1; --i) std::swap(keys[i - 1], keys[rng.below(i)]);
    for (const std::string& key : keys) erase(key);
    tree->expect_equals({});
    const TreeCheck check = tree->check();
    EXPECT_EQ(check.height, 1u) << "order " << order;
    EXPECT_TRUE(store.spaces()->reclaim().ok());
    EXPECT_EQ(store.spaces()->allocated_pages(kSpace)->size(), 1u);
  }
}

TEST_F(BTreeTest, MaximalKeysAndRecordsAlwaysFindRoom) {
  // Fences and keys of kMaxKeyBytes that differ only in their last bytes, records of
  // kMaxRecordBytes: the worst case of the README's arithmetic, on leaves and on inner pages.
  Rng rng(3);
  for (int i = 0; i < 1500; ++i) {
    std::string key(kMaxKeyBytes - 8, static_cast<char>('a' + rng.below(2)));
    key += be_key(rng.next());
    if (rng.one_in(4)) key.resize(1 + rng.below(kMaxKeyBytes));
    const size_t room = kMaxRecordBytes - key.size() - kRecordHeaderBytes;
    put(key, std::string(rng.one_in(2) ? room : rng.below(room), 'v'));
  }
  tree->expect_equals(model);
  EXPECT_GE(tree->check().height, 4u);
  while (!model.empty()) {
    auto at = model.lower_bound(std::string(1, static_cast<char>('a' + rng.below(2))));
    if (at == model.end()) at = model.begin();
    erase(std::string(at->first));
  }
  tree->expect_equals({});
}

TEST_F(BTreeTest, ReplacedValuesMayGrowAndShrink) {
  for (uint64_t i = 0; i < 300; ++i) put(be_key(i), "x");
  for (uint64_t i = 0; i < 300; ++i)
    put(be_key(i), std::string(kMaxRecordBytes - 8 - kRecordHeaderBytes, 'y'));
  tree->expect_equals(model);
  for (uint64_t i = 0; i < 300; ++i) put(be_key(i), "z");
  tree->expect_equals(model);
}

TEST_F(BTreeTest, TooLargeRecordsAreRefused) {
  EXPECT_TRUE(is_invalid_argument(tree->put(std::string(kMaxKeyBytes + 1, 'k'), record_value(""))));
  EXPECT_TRUE(is_invalid_argument(tree->put("k", record_value(std::string(kMaxRecordBytes, 'v')))));
  put("k", "v");
  EXPECT_TRUE(is_invalid_argument(tree->put("k", record_value(std::string(kMaxRecordBytes, 'v')))));
  tree->expect_equals(model);
}

TEST_F(BTreeTest, RightSiblingIsReachableBeforeTheParentKnowsIt) {  // BT2
  for (uint64_t i = 0; i < 2000; i += 2) put(be_key(i), std::string(75, 'v'));
  // The next split stops between its two mtrs.
  ASSERT_TRUE(arm_fault("split_between_mtrs:1:error"));
  Status status;
  uint64_t i = 1;
  for (; i < 2000 && status.ok(); i += 2) {
    const std::string value = record_value(std::string(75, 'w'));
    status = tree->put(be_key(i), value);
    if (status.ok()) model[be_key(i)] = value;
  }
  EXPECT_FALSE(status.ok());
  disarm_faults();
  EXPECT_EQ(tree->check().incomplete_splits, 1u);
  tree->expect_equals(model);
  // Readers leave it alone; the next writer who meets it completes it.
  EXPECT_EQ(tree->check().incomplete_splits, 1u);
  put(be_key(i - 2), "w");
  EXPECT_EQ(tree->check().incomplete_splits, 0u);
  tree->expect_equals(model);
}

TEST_F(BTreeTest, IncompleteSplitsOfInnerPagesAreCompletedToo) {
  // Long keys make inner pages split often; every split is interrupted.
  Rng rng(4);
  std::vector<std::string> keys;
  for (int i = 0; i < 600; ++i)
    keys.push_back(std::string(1000, static_cast<char>('a' + rng.below(20))) + be_key(rng.next()));
  int interrupted = 0;
  for (const std::string& key : keys) {
    for (;;) {
      ASSERT_TRUE(arm_fault("split_between_mtrs:1:error"));
      const Status status = tree->put(key, record_value(std::string(1500, 'v')));
      disarm_faults();
      if (status.ok()) break;
      ++interrupted;
      ASSERT_TRUE(tree->check().problems.empty());
    }
    model[key] = record_value(std::string(1500, 'v'));
  }
  EXPECT_GT(interrupted, 50);
  tree->expect_equals(model);
  EXPECT_GE(tree->check().height, 3u);
}

TEST_F(BTreeTest, AMergeNextToAnIncompleteSplitCompletesItFirst) {  // K5
  for (uint64_t i = 0; i < 2000; i += 2) put(be_key(i), std::string(75, 'v'));
  ASSERT_TRUE(arm_fault("split_between_mtrs:1:error"));
  uint64_t i = 1;
  while (tree->put(be_key(i), record_value(std::string(75, 'w'))).ok()) {
    model[be_key(i)] = record_value(std::string(75, 'w'));
    i += 2;
  }
  disarm_faults();
  const Model all = model;
  for (const auto& [key, value] : all) {
    erase(key);
    ASSERT_TRUE(tree->check().problems.empty());
  }
  tree->expect_equals({});
  EXPECT_EQ(tree->check().height, 1u);
}

TEST_F(BTreeTest, CursorMovesBothWaysAndKnowsTheEnds) {
  for (uint64_t i = 1; i <= 1000; ++i) put(be_key(10 * i), std::string(100, 'v'));
  Mtr mtr(store.pool(), store.log());
  TreeCursor cursor(tree->context(), tree->tree(), &mtr);
  ASSERT_TRUE(cursor.seek(be_key(15), LatchMode::kShared).ok());
  EXPECT_TRUE(cursor.on_record());
  EXPECT_TRUE(cursor.equals(be_key(20)));
  EXPECT_TRUE(cursor.leaf_covers(be_key(15)));
  ASSERT_TRUE(cursor.prev().ok());
  EXPECT_TRUE(cursor.equals(be_key(10)));
  ASSERT_TRUE(cursor.prev().ok());
  EXPECT_TRUE(cursor.at_end());
  EXPECT_FALSE(cursor.on_record());
  ASSERT_TRUE(cursor.seek(be_key(10001), LatchMode::kShared).ok());
  ASSERT_TRUE(cursor.settle().ok());
  EXPECT_TRUE(cursor.at_end());
  ASSERT_TRUE(cursor.prev().ok());
  EXPECT_TRUE(cursor.equals(be_key(10000)));
  ASSERT_TRUE(cursor.next().ok());
  EXPECT_TRUE(cursor.at_end());
  ASSERT_TRUE(cursor.seek_before(be_key(20), false).ok());
  EXPECT_TRUE(cursor.equals(be_key(10)));
  ASSERT_TRUE(cursor.seek_before(be_key(10), false).ok());
  EXPECT_TRUE(cursor.at_end());
  ASSERT_TRUE(cursor.seek_before({}, true).ok());
  EXPECT_TRUE(cursor.equals(be_key(10000)));
  EXPECT_EQ(mtr.page_count(), 1u);
  cursor.reset();
  EXPECT_EQ(mtr.page_count(), 0u);
}

TEST_F(BTreeTest, KeepLeftHoldsTheLeafWhileCoupling) {  // K6
  for (uint64_t i = 0; i < 1000; ++i) put(be_key(i), std::string(100, 'v'));
  Mtr mtr(store.pool(), store.log());
  ASSERT_TRUE(mtr.begin_write().ok());
  TreeCursor cursor(tree->context(), tree->tree(), &mtr);
  ASSERT_TRUE(cursor.seek(be_key(0), LatchMode::kExclusive).ok());
  MtrPage* first = cursor.leaf();
  while (cursor.leaf() == first) ASSERT_TRUE(cursor.next(/*keep_left=*/true).ok());
  EXPECT_EQ(mtr.page_count(), 2u);
  EXPECT_EQ(cursor.leaf()->guard.mode(), LatchMode::kExclusive);
}

TEST_F(BTreeTest, ASavedCursorFindsItsRecordAgain) {
  for (uint64_t i = 0; i < 3000; i += 3) put(be_key(i), std::string(100, 'v'));
  Mtr mtr(store.pool(), store.log());
  TreeCursor cursor(tree->context(), tree->tree(), &mtr);
  bool same = false;
  const auto seek_and_save = [&](uint64_t i) {
    ASSERT_TRUE(cursor.seek(be_key(i), LatchMode::kShared).ok());
    ASSERT_TRUE(cursor.settle().ok());
    cursor.save();
    EXPECT_EQ(mtr.page_count(), 0u);
  };
  seek_and_save(300);  // nothing changed
  ASSERT_TRUE(cursor.restore(LatchMode::kShared, &same).ok());
  EXPECT_TRUE(same);
  EXPECT_TRUE(cursor.equals(be_key(300)));

  seek_and_save(300);  // the page changed, the record is there
  put(be_key(298), "x");
  ASSERT_TRUE(cursor.restore(LatchMode::kShared, &same).ok());
  EXPECT_TRUE(same);
  EXPECT_TRUE(cursor.equals(be_key(300)));

  seek_and_save(300);  // the record is gone
  erase(be_key(300));
  ASSERT_TRUE(cursor.restore(LatchMode::kShared, &same).ok());
  EXPECT_FALSE(same);
  EXPECT_TRUE(cursor.equals(be_key(303)));

  seek_and_save(600);  // the page was split
  for (uint64_t i = 601; i < 900; i += 3) put(be_key(i), std::string(100, 'w'));
  ASSERT_TRUE(cursor.restore(LatchMode::kExclusive, &same).ok());
  EXPECT_TRUE(same);
  EXPECT_TRUE(cursor.equals(be_key(600)));

  seek_and_save(1500);  // the page is gone, and used again for something else
  const Model all = model;
  for (const auto& [key, value] : all)
    if (key > be_key(900) && key < be_key(2100)) erase(key);
  ASSERT_TRUE(store.spaces()->reclaim().ok());
  for (uint64_t i = 5000; i < 7000; ++i) put(be_key(i), std::string(100, 'v'));
  ASSERT_TRUE(cursor.restore(LatchMode::kShared, &same).ok());
  EXPECT_FALSE(same);
  EXPECT_TRUE(cursor.equals(model.upper_bound(be_key(1500))->first));

  seek_and_save(100000);  // past the end
  EXPECT_TRUE(cursor.saved_key().empty());
  ASSERT_TRUE(cursor.restore(LatchMode::kShared, &same).ok());
  EXPECT_TRUE(cursor.at_end());
  EXPECT_FALSE(same);
}

TEST_F(BTreeTest, ALeafToLookAtFirstIsAGuessOnly) {  // BT1
  for (uint64_t i = 0; i < 3000; i += 3) put(be_key(i), std::string(100, 'v'));
  const Model all = model;
  for (const auto& [key, value] : all)  // some pages are unlinked, and free again
    if (key > be_key(900) && key < be_key(1500)) erase(key);
  TreeDriver other(&store, TreeDriver::create(&store, kSpace, 8));
  ASSERT_TRUE(other.put(be_key(1), record_value("other")).ok());
  Mtr mtr(store.pool(), store.log());
  TreeCursor near(tree->context(), tree->tree(), &mtr);
  uint32_t guessed_right = 0;
  for (const uint64_t i : {0, 1, 600, 899, 1200, 1501, 2997, 5000}) {
    PageId leaf;
    std::string found;
    {
      Mtr plain(store.pool(), store.log());
      TreeCursor cursor(tree->context(), tree->tree(), &plain);
      ASSERT_TRUE(cursor.seek(be_key(i), LatchMode::kShared).ok());
      leaf = cursor.leaf()->id();
      if (cursor.on_record()) cursor.copy_key(&found);
    }
    for (uint32_t number = 0; number < 200;
         ++number) {  // of this tree, the other, none, and never written
      const PageId guess{kSpace.value, number};
      ASSERT_TRUE(near.seek_near(guess, be_key(i), LatchMode::kShared).ok()) << number;
      EXPECT_EQ(near.leaf()->id(), leaf);
      EXPECT_EQ(near.on_record(), !found.empty());
      std::string key;
      if (near.on_record()) near.copy_key(&key);
      EXPECT_EQ(key, found);
      EXPECT_EQ(mtr.page_count(), 1u);
      guessed_right += guess == leaf;
    }
  }
  EXPECT_EQ(guessed_right, 8u);
}

TEST_F(BTreeTest, AWriterCompletesTheSplitOfTheLeafItLooksAtFirst) {  // BT2
  for (uint64_t i = 0; i < 2000; i += 2) put(be_key(i), std::string(75, 'v'));
  ASSERT_TRUE(arm_fault("split_between_mtrs:1:error"));
  uint64_t i = 1;
  while (tree->put(be_key(i), record_value(std::string(75, 'w'))).ok()) i += 2;
  disarm_faults();
  ASSERT_EQ(tree->check().incomplete_splits, 1u);
  Mtr mtr(store.pool(), store.log());
  TreeCursor cursor(tree->context(), tree->tree(), &mtr);
  ASSERT_TRUE(cursor.seek(be_key(i), LatchMode::kShared).ok());
  const PageId leaf = cursor.leaf()->id();
  ASSERT_TRUE(cursor.seek_near(leaf, be_key(i), LatchMode::kShared).ok());
  cursor.reset();
  EXPECT_EQ(tree->check().incomplete_splits, 1u);
  ASSERT_TRUE(mtr.begin_write().ok());
  ASSERT_TRUE(cursor.seek_near(leaf, be_key(i), LatchMode::kExclusive).ok());
  cursor.reset();
  mtr.abandon();
  EXPECT_EQ(tree->check().incomplete_splits, 0u);
}

// BT11
TEST_F(BTreeTest, AWriterLatchesTheRootOfOneLeafOnce) {
  put(be_key(0), "value");
  const auto latches = [&] {
    const uint64_t before = store.pool()->counters().hits;
    Mtr mtr(store.pool(), store.log());
    EXPECT_TRUE(mtr.begin_write().ok());
    TreeCursor cursor(tree->context(), tree->tree(), &mtr);
    EXPECT_TRUE(cursor.seek(be_key(0), LatchMode::kExclusive).ok());
    EXPECT_TRUE(cursor.equals(be_key(0)));
    cursor.reset();
    mtr.abandon();
    return store.pool()->counters().hits - before;
  };
  latches();  // looks first
  EXPECT_EQ(latches(), 1u);
  for (uint32_t i = 1; tree->check().leaf_pages == 1; ++i) put(be_key(i), std::string(200, 'v'));
  latches();  // finds that it has grown
  EXPECT_EQ(latches(), 2u) << "the root shared, then the leaf";
  tree->expect_equals(model);
}

// BT10
struct ReadAheadTest : BTreeTest {
  ReadAheadTest() : BTreeTest(/*frames=*/2048, /*writers=*/1) {
    for (uint32_t i = 0; i < 9000; ++i) put(be_key(i), std::string(200, 'v'));
    leaves = tree->check().leaf_pages;
    EXPECT_GT(leaves, 100u);
  }
  // Nothing of the tree is in memory afterwards.
  void cool() {
    ASSERT_TRUE(store.pool()->write_back_below(store.log()->next_lsn()).ok());
    store.pool()->discard_space(kSpace);
  }
  uint64_t read() { return store.pool()->counters().reads; }
  uint64_t ahead() { return store.pool()->counters().read_ahead; }
  uint64_t leaves = 0;
};

TEST_F(ReadAheadTest, AScanReadsLeavesAheadAndEachOnce) {
  cool();
  const uint64_t read_before = read();
  Mtr mtr(store.pool(), store.log());
  TreeCursor cursor(tree->context(), tree->tree(), &mtr);
  ASSERT_TRUE(cursor.seek(be_key(0), LatchMode::kShared).ok());
  uint64_t passed = 0;
  uint64_t records = 0;
  for (PageId leaf; !cursor.at_end(); ++records) {
    ASSERT_TRUE(cursor.equals(be_key(records)));
    if (cursor.leaf()->id() != leaf) ++passed;
    leaf = cursor.leaf()->id();
    if (passed == 4) {  // past two: the first four were asked for
      ASSERT_TRUE(strata::testing::wait_until([&] { return ahead() >= 4; }));
    }
    ASSERT_TRUE(cursor.next().ok());
  }
  EXPECT_EQ(records, model.size());
  EXPECT_EQ(passed, leaves);
  EXPECT_GE(ahead(), 4u);
  const uint64_t inner_and_map = 8;
  EXPECT_LE(read() - read_before, leaves + inner_and_map);
}

TEST_F(ReadAheadTest, AShortScanReadsNothingMore) {
  cool();
  const uint64_t read_before = read();
  ASSERT_TRUE(tree->scan(be_key(4000), true, false, 100).ok());
  EXPECT_EQ(ahead(), 0u);
  EXPECT_LE(read() - read_before, 5u);
}

TEST_F(ReadAheadTest, LeavesAreListedInOrderOrNotAtAll) {
  std::vector<PageId> in_order;
  for (uint32_t i = 0; i < model.size(); ++i) {
    Mtr mtr(store.pool(), store.log());
    TreeCursor cursor(tree->context(), tree->tree(), &mtr);
    ASSERT_TRUE(cursor.seek(be_key(i), LatchMode::kShared).ok());
    if (in_order.empty() || in_order.back() != cursor.leaf()->id())
      in_order.push_back(cursor.leaf()->id());
  }
  std::array<PageId, 40> found;
  for (const uint32_t first : {0u, 3000u, 8990u}) {
    Mtr mtr(store.pool(), store.log());
    TreeCursor cursor(tree->context(), tree->tree(), &mtr);
    ASSERT_TRUE(cursor.seek(be_key(first), LatchMode::kShared).ok());
    auto at = std::find(in_order.begin(), in_order.end(), cursor.leaf()->id());
    const uint32_t count = btree_internal::leaves_from(tree->context(), tree->tree(), be_key(first),
                                                       found.size(), found.data());
    EXPECT_EQ(count, std::min<size_t>(found.size(), in_order.end() - at));
    EXPECT_TRUE(std::equal(found.begin(), found.begin() + count, at));
  }
  cool();
  EXPECT_EQ(btree_internal::leaves_from(tree->context(), tree->tree(), be_key(0), found.size(),
                                        found.data()),
            0u)
      << "reads nothing";
}

TEST_F(BTreeTest, PatchChangesBytesInPlace) {
  put("key", "0123456789");
  Mtr mtr(store.pool(), store.log());
  ASSERT_TRUE(mtr.begin_write().ok());
  TreeCursor cursor(tree->context(), tree->tree(), &mtr);
  ASSERT_TRUE(cursor.seek("key", LatchMode::kExclusive).ok());
  cursor.patch(kRecordHeaderBytes + 3, "abc");
  mtr.publish();
  EXPECT_EQ(record_payload(**tree->get("key")), "012abc6789");
}

TEST_F(BTreeTest, EstimatesAreExactNearbyAndCloseFarAway) {
  for (uint64_t i = 0; i < 50000; ++i) put(be_key(i), std::string(75, 'v'));
  const auto estimate = [&](uint64_t low, uint64_t high) {
    return static_cast<double>(
        *estimate_range(tree->context(), tree->tree(), be_key(low), be_key(high), false));
  };
  EXPECT_EQ(estimate(10, 60), 50);
  EXPECT_EQ(estimate(60, 10), 0);
  EXPECT_EQ(estimate(100, 260), 160);  // two leaves
  EXPECT_NEAR(estimate(0, 50000), 50000, 5000);
  EXPECT_NEAR(estimate(10000, 20000), 10000, 1000);
  EXPECT_NEAR(static_cast<double>(*estimate_range(tree->context(), tree->tree(), {}, {}, true)),
              50000, 5000);
  LeafSample sample;
  std::set<std::string> sampled;
  ASSERT_TRUE(
      sample_leaves(
          tree->context(), tree->tree(), 20, 1,
          [&](uint32_t, Bytes key, Bytes) { EXPECT_TRUE(sampled.insert(std::string(key)).second); },
          &sample)
          .ok());
  EXPECT_GT(sampled.size(), 2000u);
  EXPECT_LE(sample.visited, 20u);
  EXPECT_NEAR(static_cast<double>(sample.leaves), static_cast<double>(tree->check().leaf_pages),
              20);
}

// An index on a column of few values: every value's entries grow at the same time.
TEST_F(BTreeTest, EstimatesHoldInATreeGrownInManyPlaces) {
  const auto entry = [](uint64_t value, uint64_t row) { return be_key(value) + be_key(row); };
  for (uint64_t i = 0; i < 50000; ++i) put(entry(i % 100, i), "");
  const auto estimate = [&](uint64_t low, uint64_t high) {
    return static_cast<double>(
        *estimate_range(tree->context(), tree->tree(), be_key(low), be_key(high), false));
  };
  for (uint64_t value = 0; value < 99; ++value)
    EXPECT_NEAR(estimate(value, value + 1), 500, 250) << value;
  for (uint64_t value = 0; value < 80; value += 7)
    EXPECT_NEAR(estimate(value, value + 20), 10000, 3500) << value;
}

// Three levels, filled in random order, so that no two pages hold equally much.
TEST_F(BTreeTest, LargeRangesOfARandomlyGrownTreeAreEstimatedWithinATenth) {
  constexpr uint64_t kRows = 60000;
  Rng rng(7);
  std::vector<uint64_t> keys(kRows);
  std::iota(keys.begin(), keys.end(), 0);
  for (size_t i = kRows - 1; i > 0; --i) std::swap(keys[i], keys[rng.below(i + 1)]);
  for (const uint64_t key : keys) put(be_key(key) + std::string(120, 'k'), "");
  ASSERT_EQ(tree->check().height, 3u);
  for (uint64_t low = 0; low < kRows / 2; low += 2500) {
    for (const uint64_t rows : {kRows / 3, kRows / 2}) {
      const auto found = static_cast<double>(
          *estimate_range(tree->context(), tree->tree(), be_key(low), be_key(low + rows), false));
      EXPECT_NEAR(found / static_cast<double>(rows), 1, 0.1) << low << ", " << rows;
    }
  }
}

TEST_F(BTreeTest, ADroppedSpaceIsNotFound) {
  put("a", "b");
  ASSERT_TRUE(store.spaces()->drop(kSpace).ok());
  EXPECT_TRUE(is_not_found(tree->put("a", record_value("c"))));
  EXPECT_TRUE(is_not_found(tree->get("a").status()));
  EXPECT_TRUE(is_not_found(try_merge(tree->context(), tree->tree(), "a")));
  EXPECT_TRUE(is_not_found(make_room(tree->context(), tree->tree(), "a", 100)));
  TreeCheck check;
  EXPECT_TRUE(is_not_found(check_tree(tree->context(), tree->tree(), {}, &check)));
}

TEST_F(BTreeTest, ABrokenTreeIsReportedNotFollowedForEver) {
  for (uint64_t i = 0; i < 1000; ++i) put(be_key(i), std::string(100, 'v'));
  uint32_t child = kNoPage;
  {
    // The root's second child becomes a page of another index.
    Mtr mtr(store.pool(), store.log());
    ASSERT_TRUE(mtr.begin_write().ok());
    auto root = mtr.fix(tree->tree().root, LatchMode::kShared);
    child = (*root)->view().child(1);
    auto page = mtr.fix(PageId{kSpace.value, child}, LatchMode::kExclusive);
    alignas(8) char copy[kPageBytes];
    std::memcpy(copy, (*page)->page(), kPageBytes);
    header_of(copy)->index_id = 8;
    mtr.image(*page, copy);
    mtr.publish();
  }
  const std::string lost = be_key(200);
  const Status status = tree->get(lost).status();
  EXPECT_TRUE(is_corruption(status)) << status;
  EXPECT_NE(status.message().find("index 7"), std::string::npos) << status;
  EXPECT_NE(status.message().find(std::to_string(child)), std::string::npos) << status;
  EXPECT_FALSE(tree->check(false).problems.empty());
  EXPECT_TRUE(tree->get(be_key(0))->has_value());
}

TEST_F(BTreeTest, CheckFindsWhatDoesNotAgree) {
  for (uint64_t i = 0; i < 2000; ++i) put(be_key(i), std::string(100, 'v'));
  EXPECT_TRUE(tree->check().problems.empty());
  const auto change_child = [&](uint16_t slot, const std::function<void(Mtr*, MtrPage*)>& change) {
    Mtr mtr(store.pool(), store.log());
    ASSERT_TRUE(mtr.begin_write().ok());
    auto root = mtr.fix(tree->tree().root, LatchMode::kShared);
    auto page = mtr.fix(PageId{kSpace.value, (*root)->view().child(slot)}, LatchMode::kExclusive);
    change(&mtr, *page);
    mtr.publish();
  };
  uint32_t right = 0;
  change_child(2, [&](Mtr* mtr, MtrPage* page) {  // a broken link
    right = page->view().header()->right_sibling;
    mtr->set_right(page, right + 1);
  });
  EXPECT_FALSE(tree->check(false).problems.empty());
  change_child(2, [&](Mtr* mtr, MtrPage* page) { mtr->set_right(page, right); });
  EXPECT_TRUE(tree->check().problems.empty());
  change_child(3, [&](Mtr* mtr, MtrPage* page) {  // a high key that is too low
    mtr->truncate_right(page, 0, be_key(405), page->view().header()->right_sibling, 0);
  });
  EXPECT_FALSE(tree->check(false).problems.empty());
}

TEST_F(BTreeTest, AFullDiskFailsTheInsertAndLosesNothing) {
  store.fs()->set_capacity(24u << 20);
  Status status;
  uint64_t i = 0;
  for (; i < 200000 && status.ok(); ++i) {
    const std::string value = record_value(std::string(500, 'v'));
    status = tree->put(be_key(mix64(i)), value);
    if (status.ok()) model[be_key(mix64(i))] = value;
  }
  EXPECT_TRUE(is_no_space(status)) << status;
  tree->expect_equals(model);
  store.fs()->set_capacity(UINT64_MAX);
  // The log may have been the first to find the disk full: it looks again after a while.
  const std::string fine = record_value("fine");
  testing::wait_until([&] {
    status = tree->put("afterwards", fine);
    return !is_no_space(status);
  });
  ASSERT_TRUE(status.ok()) << status;
  model["afterwards"] = fine;
  tree->expect_equals(model);
}

struct ReplayTest : BTreeTest {
  ReplayTest() : BTreeTest(32) {}
};

// RD1, M2: replaying the whole log gives the bytes in the store.
TEST_F(ReplayTest, AReplayOfTheLogIsByteIdentical) {
  Rng rng(5);
  for (int i = 0; i < 6000; ++i) {
    const std::string key = be_key(rng.below(800)) + std::string(rng.below(300), 'k');
    if (rng.one_in(3)) {
      erase(key);
    } else {
      put(key, std::string(rng.below(rng.one_in(10) ? 3000 : 200), static_cast<char>(i)));
    }
    if (!model.empty() && rng.one_in(3)) {
      auto at = model.lower_bound(be_key(rng.below(800)));
      if (at != model.end()) erase(std::string(at->first));
    }
    if (rng.one_in(500)) store.log()->raise_image_floor();
    if (rng.one_in(100)) {
      EXPECT_TRUE(store.spaces()->reclaim().ok());
    }
  }
  tree->expect_equals(model);
  store.expect_replay_is_identical();
}

}  // namespace
}  // namespace strata
