// Goal: a pool keeps its promises (PSL1-PSL9), and so do headers (PH1-PH3). Method: each by hand,
// on a small pool; for headers every prefix of the stores of a change, and every flipped bit.
#include "memnode/pool/pool.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "base/rng.h"
#include "memnode/pool/slot_header.h"
#include "memnode/pool/slot_heap.h"
#include "memnode/pool/testing/pool_memory.h"

namespace strata::memnode {
namespace {

using test::Memory;
using test::page_of;
using test::put;

constexpr uint32_t kSlots = 32;  // four of them in reserve
constexpr PageId kPage{300, 1};

PageId other(uint32_t number) { return {301, number}; }

class Pools : public ::testing::Test {
 protected:
  Pools() : memory_(kSlots), pool_(std::make_unique<Pool>(options(), memory_.get())) {}
  ~Pools() override { pool_->check(); }
  static PoolOptions options() { return {.slots = kSlots}; }
  Status recover() {
    auto recovered = Pool::recover(options(), memory_.get());
    if (!recovered.ok()) return recovered.status();
    pool_ = *std::move(recovered);
    return ok_status();
  }
  // The page is dirty from there, for the pool, for its header, and as the oldest one.
  void expect_dirty_from(PageId id, Lsn from) {
    const auto slot = pool_->lookup(id);
    ASSERT_TRUE(slot.has_value());
    EXPECT_EQ(slot->dirty, from != kNeverChanged);
    const auto header = read_header(memory_.header(slot->number));
    ASSERT_TRUE(header.ok());
    EXPECT_EQ(header->dirty_from, from);
    EXPECT_EQ(pool_->oldest_dirty(), from);
  }
  // Dirty from 10, and being written.
  std::vector<Pool::Write> written_page(Llsn llsn = Llsn{5}, Lsn first = Lsn{10}) {
    EXPECT_TRUE(put(pool_.get(), kPage, llsn, first).ok());
    auto writes = pool_->take_writes(kNeverChanged, 64);
    EXPECT_EQ(writes.size(), 1u);
    return writes;
  }
  Memory memory_;
  std::unique_ptr<Pool> pool_;
};

TEST_F(Pools, PSL1AnImageGoesIntoAnotherSlotThanTheOneBeforeIt) {
  const auto first = put(pool_.get(), kPage, Llsn{5});
  ASSERT_TRUE(first.ok());
  Pool::Slot there;
  const auto filling = pool_->begin_fill(kPage, Llsn{6}, false, Lsn(), &there);
  ASSERT_TRUE(filling.ok());
  EXPECT_NE(*filling, first->number);
  pool_->fill(*filling, page_of(kPage, Llsn{6}).data());
  EXPECT_EQ(pool_->lookup(kPage)->llsn, Llsn{5}) << "until the new one is whole";
  EXPECT_EQ(memory_.header(first->number).generation, first->generation);
  EXPECT_EQ(Bytes(memory_.page(first->number), kPageBytes), page_of(kPage, Llsn{5}));
  const auto second = pool_->publish(*filling);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(pool_->lookup(kPage)->llsn, Llsn{6});
  EXPECT_EQ(pool_->page_at(second->number), kPage);
  EXPECT_EQ(pool_->page_at(first->number), std::nullopt);
  EXPECT_EQ(pool_->page_at(kSlots), std::nullopt);
  EXPECT_EQ(pool_->counts().free, kSlots - 1);
  EXPECT_EQ(pool_->counts().replaced, 1u);
}

TEST_F(Pools, PSL1AnAbandonedImageLeavesTheOneThatIsThere) {
  ASSERT_TRUE(put(pool_.get(), kPage, Llsn{5}, Lsn{10}).ok());
  Pool::Slot there;
  const auto filling = pool_->begin_fill(kPage, Llsn{6}, true, Lsn{20}, &there);
  ASSERT_TRUE(filling.ok());
  pool_->abandon(*filling);
  EXPECT_EQ(pool_->lookup(kPage)->llsn, Llsn{5});
  expect_dirty_from(kPage, Lsn{10});
}

TEST_F(Pools, PSL2AGenerationNeverStandsForTwoContents) {
  std::set<std::pair<uint32_t, uint64_t>> seen;
  std::vector<uint64_t> before(kSlots, 0);
  for (uint64_t llsn = 1; llsn <= 200; llsn++) {
    const auto slot = put(pool_.get(), kPage, Llsn{llsn});
    ASSERT_TRUE(slot.ok());
    EXPECT_EQ(slot->generation % 2, 0u);
    EXPECT_EQ(memory_.header(slot->number).generation, slot->generation);
    EXPECT_TRUE(seen.emplace(slot->number, slot->generation).second);
    EXPECT_GT(slot->generation, before[slot->number]);
    before[slot->number] = slot->generation;
    if (llsn % 3 == 0) {
      ASSERT_TRUE(pool_->drop(kPage).ok());
      EXPECT_EQ(memory_.header(slot->number).generation, slot->generation + 1) << "odd: free";
    }
    if (llsn == 100) {
      ASSERT_TRUE(recover().ok());
    }
    if (llsn == 150) {
      pool_ = std::make_unique<Pool>(options(), memory_.get());  // all of it is discarded
    }
  }
}

TEST_F(Pools, PSL3AnImageTakesAPagesPlaceOnlyWithALargerLlsn) {
  ASSERT_TRUE(put(pool_.get(), kPage, Llsn{5}).ok());
  EXPECT_TRUE(is_conflict(put(pool_.get(), kPage, Llsn{4}, Lsn{1}).status()));
  EXPECT_EQ(pool_->counts().rejected, 1u);
  expect_dirty_from(kPage, kNeverChanged);
  // Two at once: the larger one is whole first.
  Pool::Slot there;
  const auto six = pool_->begin_fill(kPage, Llsn{6}, true, Lsn{60}, &there);
  const auto seven = pool_->begin_fill(kPage, Llsn{7}, true, Lsn{70}, &there);
  ASSERT_TRUE(six.ok());
  ASSERT_TRUE(seven.ok());
  pool_->fill(*six, page_of(kPage, Llsn{6}).data());
  pool_->fill(*seven, page_of(kPage, Llsn{7}).data());
  ASSERT_TRUE(pool_->publish(*seven).ok());
  EXPECT_TRUE(is_conflict(pool_->publish(*six).status()));
  EXPECT_EQ(pool_->lookup(kPage)->llsn, Llsn{7});
  EXPECT_EQ(pool_->counts().filling, 0u);
}

TEST_F(Pools, PSL3AnEqualImageOnlyLowersDirtyFrom) {
  const auto slot = put(pool_.get(), kPage, Llsn{5}, Lsn{50});
  ASSERT_TRUE(slot.ok());
  Pool::Slot there;
  EXPECT_TRUE(is_duplicate_key(pool_->begin_fill(kPage, Llsn{5}, true, Lsn{60}, &there).status()));
  expect_dirty_from(kPage, Lsn{50});
  EXPECT_TRUE(is_duplicate_key(pool_->begin_fill(kPage, Llsn{5}, true, Lsn{40}, &there).status()));
  EXPECT_EQ(there.number, slot->number);
  EXPECT_EQ(there.generation, slot->generation);
  expect_dirty_from(kPage, Lsn{40});
  EXPECT_TRUE(is_duplicate_key(pool_->begin_fill(kPage, Llsn{5}, false, Lsn(), &there).status()));
  expect_dirty_from(kPage, Lsn{40});
}

TEST_F(Pools, PSL3OfTwoEqualImagesThatAreFilledAtOnceOneStays) {
  Pool::Slot there;
  const auto a = pool_->begin_fill(kPage, Llsn{5}, true, Lsn{50}, &there);
  const auto b = pool_->begin_fill(kPage, Llsn{5}, true, Lsn{40}, &there);
  ASSERT_TRUE(a.ok());
  ASSERT_TRUE(b.ok());
  pool_->fill(*a, page_of(kPage, Llsn{5}).data());
  pool_->fill(*b, page_of(kPage, Llsn{5}).data());
  ASSERT_TRUE(pool_->publish(*a).ok());
  const auto second = pool_->publish(*b);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->number, *a);
  expect_dirty_from(kPage, Lsn{40});
}

TEST_F(Pools, ImagesThatNobodyMayPutAreRefused) {
  EXPECT_TRUE(is_invalid_argument(put(pool_.get(), kPage, Llsn{0}).status()));
  EXPECT_TRUE(is_invalid_argument(put(pool_.get(), kPage, Llsn{1}, Lsn{0}).status()));
  EXPECT_TRUE(
      is_invalid_argument(put(pool_.get(), kPage, Llsn{1}, Lsn{(1ull << 48) - 1}).status()));
  EXPECT_TRUE(is_invalid_argument(put(pool_.get(), kPage, Llsn{1}, Lsn{1ull << 60}).status()));
  EXPECT_TRUE(put(pool_.get(), kPage, Llsn{1}, Lsn{(1ull << 48) - 2}).ok());
}

TEST_F(Pools, PSL4ADirtyImageThatIsReplacedLeavesItsDirtyFrom) {
  ASSERT_TRUE(put(pool_.get(), kPage, Llsn{5}, Lsn{10}).ok());
  ASSERT_TRUE(put(pool_.get(), kPage, Llsn{6}, Lsn{20}).ok());
  expect_dirty_from(kPage, Lsn{10});
  ASSERT_TRUE(put(pool_.get(), kPage, Llsn{7}, Lsn{5}).ok());
  expect_dirty_from(kPage, Lsn{5});
}

TEST_F(Pools, PSL4ACleanImageOverADirtyOneIsDirty) {
  ASSERT_TRUE(put(pool_.get(), kPage, Llsn{5}, Lsn{10}).ok());
  ASSERT_TRUE(put(pool_.get(), kPage, Llsn{6}).ok());
  expect_dirty_from(kPage, Lsn{10});
}

TEST_F(Pools, PSL4BehindAnImageThatIsBeingWrittenTheOlderOneCountsUntilItIsSynced) {
  const auto writes = written_page();
  ASSERT_TRUE(put(pool_.get(), kPage, Llsn{6}, Lsn{20}).ok());
  expect_dirty_from(kPage, Lsn{10});
  const uint64_t report = pool_->wrote(writes);
  expect_dirty_from(kPage, Lsn{10});
  pool_->synced(report - 1);
  expect_dirty_from(kPage, Lsn{10});
  pool_->synced(report);
  expect_dirty_from(kPage, Lsn{20});
  EXPECT_EQ(pool_->counts().dirty, 1u);
}

TEST_F(Pools, PSL4BehindAWrittenImageTheOlderOneCountsUntilItIsSynced) {
  const uint64_t report = pool_->wrote(written_page());
  ASSERT_TRUE(put(pool_.get(), kPage, Llsn{6}, Lsn{20}).ok());
  expect_dirty_from(kPage, Lsn{10});
  pool_->synced(report);
  expect_dirty_from(kPage, Lsn{20});
}

TEST_F(Pools, PSL4AFailedWriteOfAReplacedImageCountsForGood) {
  const auto writes = written_page();
  ASSERT_TRUE(put(pool_.get(), kPage, Llsn{6}, Lsn{20}).ok());
  pool_->failed(writes);
  pool_->synced(UINT64_MAX);
  expect_dirty_from(kPage, Lsn{10});
  const uint64_t report = pool_->wrote(pool_->take_writes(kNeverChanged, 64));
  expect_dirty_from(kPage, Lsn{10});
  pool_->synced(report);
  expect_dirty_from(kPage, kNeverChanged);
}

TEST_F(Pools, PSL4APageThatIsPutAllTheTimeStillBecomesYounger) {
  // Each time the image before it was written, and the sync lags behind by two writes.
  uint64_t llsn = 1;
  ASSERT_TRUE(put(pool_.get(), kPage, Llsn{llsn}, Lsn{10}).ok());
  std::vector<uint64_t> reports;
  for (uint64_t round = 1; round <= 20; round++) {
    reports.push_back(pool_->wrote(pool_->take_writes(kNeverChanged, 64)));
    ASSERT_TRUE(put(pool_.get(), kPage, Llsn{++llsn}, Lsn{10 + 10 * round}).ok());
    pool_->check();
    if (round < 3) continue;
    pool_->synced(reports[round - 3]);
    EXPECT_GE(pool_->oldest_dirty().value, 10 * (round > 4 ? round - 4 : 1)) << round;
  }
}

TEST_F(Pools, PSL5OnlyASyncOfItsReportCleansAPage) {
  const auto writes = written_page();
  pool_->synced(UINT64_MAX);
  expect_dirty_from(kPage, Lsn{10});
  const uint64_t report = pool_->wrote(writes);
  EXPECT_EQ(report, pool_->last_report());
  EXPECT_EQ(pool_->counts().written, 1u);
  expect_dirty_from(kPage, Lsn{10});
  EXPECT_TRUE(is_busy(pool_->drop(kPage)));
  pool_->synced(report);
  expect_dirty_from(kPage, kNeverChanged);
  EXPECT_EQ(pool_->counts().clean, 1u);
  EXPECT_EQ(pool_->unclean(), 0u);
}

TEST_F(Pools, PSL5TheLlsnThatWasWrittenIsCleanedAndNoOther) {
  const auto writes = written_page();
  ASSERT_TRUE(put(pool_.get(), kPage, Llsn{6}, Lsn{20}).ok());
  pool_->synced(pool_->wrote(writes));
  EXPECT_TRUE(pool_->lookup(kPage)->dirty);
  const auto again = pool_->take_writes(kNeverChanged, 64);
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].llsn, Llsn{6});
  pool_->failed(again);
}

TEST_F(Pools, PSL5WhatSomebodyElseHasStoredIsClean) {
  ASSERT_TRUE(put(pool_.get(), kPage, Llsn{5}, Lsn{10}).ok());
  pool_->stored(kPage, Llsn{4});
  pool_->stored(other(1), Llsn{9});
  expect_dirty_from(kPage, Lsn{10});
  pool_->stored(kPage, Llsn{5});
  expect_dirty_from(kPage, kNeverChanged);
  EXPECT_TRUE(pool_->take_writes(kNeverChanged, 64).empty());
  // One that is being written here waits for that.
  ASSERT_TRUE(put(pool_.get(), kPage, Llsn{6}, Lsn{20}).ok());
  const auto writes = pool_->take_writes(kNeverChanged, 64);
  pool_->stored(kPage, Llsn{6});
  expect_dirty_from(kPage, Lsn{20});
  pool_->failed(writes);
  pool_->stored(kPage, Llsn{7});
  expect_dirty_from(kPage, kNeverChanged);
  pool_->check();
  ASSERT_TRUE(pool_->drop(kPage).ok());
}

TEST_F(Pools, PSL5WrittenIsDirtyAgainForANewUser) {
  const uint64_t report = pool_->wrote(written_page());
  ASSERT_TRUE(put(pool_.get(), other(1), Llsn{3}, Lsn{30}).ok());
  const auto writes = pool_->take_writes(kNeverChanged, 64);
  ASSERT_TRUE(put(pool_.get(), other(1), Llsn{4}, Lsn{40}).ok());
  pool_->wrote(writes);
  pool_->doubt_written();
  pool_->synced(UINT64_MAX);
  expect_dirty_from(kPage, Lsn{10});
  EXPECT_EQ(pool_->counts().dirty, 2u);
  EXPECT_GE(pool_->last_report(), report);
  uint32_t next = 0;
  EXPECT_TRUE(pool_->written_since_sync(0, 64, &next).empty());
  EXPECT_EQ(next, kSlots);
  const auto all = pool_->take_writes(kNeverChanged, 64);
  ASSERT_EQ(all.size(), 2u);
  pool_->synced(pool_->wrote(all));
  EXPECT_EQ(pool_->oldest_dirty(), kNeverChanged);
}

TEST_F(Pools, PSL6OnlyCleanPagesAreDropped) {
  EXPECT_EQ(pool_->drop(kPage).code(), StatusCode::kNotFound);
  const auto writes = written_page();
  EXPECT_TRUE(is_busy(pool_->drop(kPage)));
  pool_->failed(writes);
  EXPECT_TRUE(is_busy(pool_->drop(kPage)));
  pool_->synced(pool_->wrote(pool_->take_writes(kNeverChanged, 64)));
  EXPECT_TRUE(pool_->drop(kPage).ok());
  EXPECT_EQ(pool_->lookup(kPage), std::nullopt);
  EXPECT_EQ(pool_->counts().free, kSlots);
  EXPECT_EQ(pool_->counts().dropped, 1u);
}

TEST_F(Pools, PSL6WhatIsBeingWrittenKeepsItsSlotAndItsBytes) {
  const auto writes = written_page();
  for (uint64_t llsn = 6; llsn < 100; llsn++)
    ASSERT_TRUE(put(pool_.get(), kPage, Llsn{llsn}, Lsn{20}).ok());
  EXPECT_EQ(pool_->counts().leaving, 1u);
  EXPECT_EQ(Bytes(pool_->bytes_of(writes[0].slot), kPageBytes), page_of(kPage, Llsn{5}));
  EXPECT_EQ(memory_.header(writes[0].slot).generation % 2, 1u) << "nobody finds it";
  pool_->wrote(writes);
  EXPECT_EQ(pool_->counts().leaving, 0u);
  EXPECT_EQ(pool_->counts().free, kSlots - 1);
}

TEST_F(Pools, PSL6AForgottenSpaceIsGoneAndItsWritesEndByThemselves) {
  const auto writes = written_page();
  ASSERT_TRUE(put(pool_.get(), PageId{300, 2}, Llsn{1}, Lsn{1}).ok());
  ASSERT_TRUE(put(pool_.get(), PageId{300, 3}, Llsn{1}).ok());
  ASSERT_TRUE(put(pool_.get(), other(1), Llsn{1}, Lsn{70}).ok());
  Pool::Slot there;
  const auto filling = pool_->begin_fill(PageId{300, 4}, Llsn{1}, true, Lsn{2}, &there);
  ASSERT_TRUE(filling.ok());
  EXPECT_TRUE(pool_->writes_of(SpaceId{300}));
  EXPECT_FALSE(pool_->writes_of(SpaceId{301}));
  pool_->forget_space(SpaceId{300});
  pool_->forget_space(SpaceId{999});
  pool_->check();
  for (uint32_t number = 1; number <= 4; number++)
    EXPECT_EQ(pool_->lookup(PageId{300, number}), std::nullopt);
  EXPECT_EQ(pool_->oldest_dirty(), Lsn{70});
  EXPECT_TRUE(pool_->writes_of(SpaceId{300}));
  pool_->fill(*filling, page_of(PageId{300, 4}, Llsn{1}).data());
  EXPECT_TRUE(is_conflict(pool_->publish(*filling).status()));
  pool_->wrote(writes);
  EXPECT_FALSE(pool_->writes_of(SpaceId{300}));
  EXPECT_EQ(pool_->counts().free, kSlots - 1);
}

TEST_F(Pools, PSL7OneWriteOfAPageIsUnderWay) {
  const auto writes = written_page();
  EXPECT_TRUE(pool_->take_writes(kNeverChanged, 64).empty());
  ASSERT_TRUE(put(pool_.get(), kPage, Llsn{6}, Lsn{20}).ok());
  EXPECT_TRUE(pool_->take_writes(kNeverChanged, 64).empty()) << "the older image is being written";
  pool_->failed(writes);
  EXPECT_EQ(pool_->take_writes(kNeverChanged, 64).size(), 1u);
}

TEST_F(Pools, PSL7AlsoOfAPageOfASpaceThatWasForgotten) {
  const auto writes = written_page();
  pool_->forget_space(SpaceId{300});
  ASSERT_TRUE(put(pool_.get(), kPage, Llsn{9}, Lsn{90}).ok());
  EXPECT_TRUE(pool_->take_writes(kNeverChanged, 64).empty());
  expect_dirty_from(kPage, Lsn{90});
  pool_->failed(writes);
  expect_dirty_from(kPage, Lsn{90});
  EXPECT_EQ(pool_->take_writes(kNeverChanged, 64).size(), 1u);
}

TEST_F(Pools, WritesAreTakenOldestFirstAndSortedByPage) {
  for (uint32_t number = 1; number <= 8; number++)
    ASSERT_TRUE(put(pool_.get(), other(number), Llsn{1}, Lsn{100 - 10 * number}).ok());
  EXPECT_EQ(pool_->oldest_dirty(), Lsn{20});
  EXPECT_TRUE(pool_->take_writes(Lsn{20}, 64).empty());
  const auto writes = pool_->take_writes(Lsn{40}, 64);
  ASSERT_EQ(writes.size(), 2u);
  EXPECT_EQ(writes[0].id, other(7));
  EXPECT_EQ(writes[1].id, other(8));
  pool_->failed(writes);
  EXPECT_EQ(pool_->take_writes(kNeverChanged, 1).at(0).id, other(8));
}

TEST_F(Pools, PSL8APageThatHasASlotNeverWaits) {
  uint32_t pages = 0;
  for (;; pages++) {
    const Status status = put(pool_.get(), other(pages), Llsn{1}, Lsn{1}).status();
    if (status.ok()) continue;
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
    break;
  }
  EXPECT_EQ(pages, kSlots - 4);
  // Everything that may be written is being written, and all of it is replaced, some of it twice.
  const auto writes = pool_->take_writes(kNeverChanged, 64);
  EXPECT_EQ(writes.size(), 2u);
  EXPECT_TRUE(pool_->take_writes(kNeverChanged, 64).empty());
  for (uint64_t llsn = 2; llsn < 5; llsn++)
    for (uint32_t page = 0; page < pages; page++)
      ASSERT_TRUE(put(pool_.get(), other(page), Llsn{llsn}, Lsn{1}).ok());
  EXPECT_EQ(pool_->counts().free, 2u);
  pool_->wrote(writes);
  EXPECT_EQ(pool_->counts().free, 4u);
}

TEST_F(Pools, PSL8AReplacementOfADroppedPageDoesNotKeepTheReserve) {
  for (uint32_t number = 0; number < kSlots - 4; number++)
    ASSERT_TRUE(put(pool_.get(), other(number), Llsn{1}).ok());
  Pool::Slot there;
  const auto filling = pool_->begin_fill(other(0), Llsn{2}, true, Lsn{5}, &there);
  ASSERT_TRUE(filling.ok());
  ASSERT_TRUE(pool_->drop(other(0)).ok());
  ASSERT_TRUE(put(pool_.get(), other(1000), Llsn{1}).status().code() ==
              StatusCode::kResourceExhausted);
  pool_->fill(*filling, page_of(other(0), Llsn{2}).data());
  EXPECT_TRUE(pool_->publish(*filling).ok()) << "the slot that was dropped is there for it";
  const auto next = pool_->begin_fill(other(1), Llsn{2}, true, Lsn{5}, &there);
  ASSERT_TRUE(next.ok());
  ASSERT_TRUE(pool_->drop(other(1)).ok());
  const auto last = pool_->begin_fill(other(2), Llsn{2}, true, Lsn{5}, &there);
  ASSERT_TRUE(last.ok());
  pool_->fill(*next, page_of(other(1), Llsn{2}).data());
  EXPECT_EQ(pool_->publish(*next).status().code(), StatusCode::kResourceExhausted);
  pool_->abandon(*last);
  EXPECT_EQ(pool_->counts().free, 5u);
}

// PSL9. What is persisted is what the test says, so that each step is seen.
class PersistentPool : public ::testing::Test {
 protected:
  ~PersistentPool() override { pool_.check(); }
  void persist() { pool_.persisted(); }
  // Every slot that can be filled now, while an image of the page is to be replaced.
  std::set<uint32_t> fillable(PageId id, Llsn above) {
    std::set<uint32_t> slots;
    Pool::Slot there;
    for (uint64_t llsn = above.value + 1;; llsn++) {
      const auto slot = pool_.begin_fill(id, Llsn{llsn}, true, Lsn{10}, &there);
      if (!slot.ok()) break;
      slots.insert(*slot);
    }
    for (const uint32_t slot : slots) pool_.abandon(slot);
    return slots;
  }
  bool published(uint32_t slot) { return read_header(memory_.header(slot))->published; }

  static constexpr uint32_t kFew = 16;
  Memory memory_{kFew};
  Pool pool_{{.slots = kFew, .persistent = true}, memory_.get()};
};

TEST_F(PersistentPool, PSL9ASlotIsFilledAgainOnceItsBeingFreeIsDurable) {
  const auto first = put(&pool_, kPage, Llsn{1}, Lsn{10});
  ASSERT_TRUE(first.ok());
  persist();
  const auto second = put(&pool_, kPage, Llsn{2}, Lsn{10});
  ASSERT_TRUE(second.ok());
  EXPECT_TRUE(published(first->number)) << "the second one may not be durable";
  EXPECT_FALSE(fillable(kPage, Llsn{2}).contains(first->number));
  EXPECT_EQ(pool_.held(), 1u);
  persist();  // the second one is durable
  EXPECT_FALSE(published(first->number));
  EXPECT_FALSE(fillable(kPage, Llsn{2}).contains(first->number)) << "that it is free is not";
  EXPECT_EQ(pool_.held(), 1u);
  persist();
  EXPECT_TRUE(fillable(kPage, Llsn{2}).contains(first->number));
  EXPECT_EQ(pool_.held(), 0u);
}

TEST_F(PersistentPool, PSL9SoIsOneWhoseWriteIsUnderWay) {
  const auto first = put(&pool_, kPage, Llsn{1}, Lsn{10});
  ASSERT_TRUE(first.ok());
  persist();
  const auto writes = pool_.take_writes(kNeverChanged, 1);
  ASSERT_EQ(writes.size(), 1u);
  ASSERT_TRUE(put(&pool_, kPage, Llsn{2}, Lsn{20}).ok());
  EXPECT_TRUE(published(first->number));
  persist();
  EXPECT_FALSE(published(first->number));
  pool_.failed(writes);
  EXPECT_FALSE(fillable(kPage, Llsn{2}).contains(first->number));
  persist();
  EXPECT_TRUE(fillable(kPage, Llsn{2}).contains(first->number));
}

TEST_F(PersistentPool, PSL9APageGoesForGoodOnceNoOlderImageOfItCanComeBack) {
  ASSERT_TRUE(put(&pool_, kPage, Llsn{1}, Lsn{10}).ok());
  persist();
  EXPECT_EQ(pool_.unsettled(), 0u);
  ASSERT_TRUE(put(&pool_, kPage, Llsn{2}, Lsn{10}).ok());
  EXPECT_EQ(pool_.unsettled(), 1u);
  persist();
  EXPECT_EQ(pool_.unsettled(), 1u) << "on the medium the older one's header is as it was";
  pool_.stored(kPage, Llsn{2});
  EXPECT_DEATH((void)pool_.drop(kPage), "unsettled");
  EXPECT_DEATH(pool_.forget_space(SpaceId{kPage.space}), "unsettled");
  persist();
  EXPECT_EQ(pool_.unsettled(), 0u);
  EXPECT_TRUE(pool_.drop(kPage).ok());
  // Its slot is free, but not durably so.
  EXPECT_EQ(fillable(other(1), Llsn{0}).size(), kFew - 2u - 1u);
  persist();
  EXPECT_EQ(fillable(other(1), Llsn{0}).size(), kFew - 2u);
}

TEST_F(PersistentPool, PSL9WhatIsFoundMayHaveOlderImagesUntilItIsPersisted) {
  ASSERT_TRUE(put(&pool_, kPage, Llsn{2}).ok());
  Memory copy(kFew);
  for (uint32_t slot = 0; slot < kFew; slot++) copy.header(slot) = memory_.header(slot);
  std::memcpy(copy.pages(), memory_.pages(), memory_.page_bytes());
  const auto found = Pool::recover({.slots = kFew, .persistent = true}, copy.get());
  ASSERT_TRUE(found.ok());
  EXPECT_NE((*found)->unsettled(), 0u);
  (*found)->persisted();
  EXPECT_EQ((*found)->unsettled(), 0u);
  EXPECT_TRUE((*found)->drop(kPage).ok());
}

TEST_F(Pools, WhatWasWrittenSinceTheSyncIsToldInPieces) {
  for (uint32_t number = 0; number < 4; number++) {
    ASSERT_TRUE(put(pool_.get(), other(number), Llsn{1}, Lsn{1}).ok());
    pool_->wrote(pool_->take_writes(kNeverChanged, 64));
  }
  // What is in its place holds what was written.
  ASSERT_TRUE(put(pool_.get(), other(0), Llsn{2}, Lsn{2}).ok());
  ASSERT_TRUE(put(pool_.get(), other(10), Llsn{1}, Lsn{1}).ok());
  std::set<std::pair<PageId, Llsn>> found;
  uint32_t calls = 0;
  for (uint32_t from = 0; from < kSlots; calls++) {
    for (const Pool::Write& write : pool_->written_since_sync(from, 2, &from))
      EXPECT_TRUE(found.emplace(write.id, write.llsn).second);
    ASSERT_LT(calls, 10u);
  }
  EXPECT_EQ(
      found,
      (std::set<std::pair<PageId, Llsn>>{
          {other(0), Llsn{2}}, {other(1), Llsn{1}}, {other(2), Llsn{1}}, {other(3), Llsn{1}}}));
  uint32_t next = 0;
  EXPECT_TRUE(pool_->written_since_sync(kSlots + 5, 2, &next).empty());
  EXPECT_EQ(next, kSlots);
}

// --- what an earlier process left --------------------------------------------------------------

TEST_F(Pools, RecoveryFindsEveryPageAndTakesWrittenForDirty) {
  const uint64_t report = pool_->wrote(written_page());
  ASSERT_TRUE(put(pool_.get(), other(1), Llsn{7}).ok());
  Pool::Slot there;
  ASSERT_TRUE(pool_->begin_fill(other(2), Llsn{7}, true, Lsn{1}, &there).ok());
  const auto before = pool_->lookup(kPage);
  ASSERT_TRUE(recover().ok());
  EXPECT_EQ(pool_->lookup(kPage)->number, before->number);
  EXPECT_EQ(pool_->lookup(kPage)->generation, before->generation);
  EXPECT_FALSE(pool_->lookup(other(1))->dirty);
  EXPECT_EQ(pool_->lookup(other(2)), std::nullopt);
  pool_->synced(report);
  expect_dirty_from(kPage, Lsn{10});
}

TEST_F(Pools, OfTwoSlotsOfOnePageTheLargerLlsnStaysWithTheLesserDirtyFrom) {
  for (const bool newer_first : {true, false}) {
    Memory memory(kSlots);
    { const Pool begun(options(), memory.get()); }
    const uint32_t newer = newer_first ? 3 : 5, older = newer_first ? 5 : 3;
    std::memcpy(memory.page(newer), page_of(kPage, Llsn{9}).data(), kPageBytes);
    std::memcpy(memory.page(older), page_of(kPage, Llsn{8}).data(), kPageBytes);
    publish_header(&memory.header(newer), kPage, Llsn{9}, Lsn{90});
    publish_header(&memory.header(older), kPage, Llsn{8}, Lsn{80});
    auto recovered = Pool::recover(options(), memory.get());
    ASSERT_TRUE(recovered.ok()) << recovered.status();
    EXPECT_EQ((*recovered)->lookup(kPage)->number, newer);
    EXPECT_EQ((*recovered)->oldest_dirty(), Lsn{80});
    EXPECT_EQ(read_header(memory.header(newer))->dirty_from, Lsn{80});
    EXPECT_FALSE(read_header(memory.header(older))->published);
    (*recovered)->check();
  }
}

TEST_F(Pools, OneDamagedPageOrHeaderIsDataLoss) {
  const auto slot = put(pool_.get(), kPage, Llsn{5}, Lsn{10});
  ASSERT_TRUE(slot.ok());
  memory_.page(slot->number)[9000] ^= 1;
  EXPECT_EQ(recover().code(), StatusCode::kDataLoss);
  memory_.page(slot->number)[9000] ^= 1;
  EXPECT_TRUE(recover().ok());
  std::memset(memory_.page(slot->number), 0, kPageBytes);
  EXPECT_EQ(recover().code(), StatusCode::kDataLoss) << "a page of zeroes";
  std::memcpy(memory_.page(slot->number), page_of(kPage, Llsn{4}).data(), kPageBytes);
  EXPECT_EQ(recover().code(), StatusCode::kDataLoss) << "another image";
  std::memcpy(memory_.page(slot->number), page_of(kPage, Llsn{5}).data(), kPageBytes);
  EXPECT_TRUE(recover().ok());
  memory_.header(7).reserved = 1;
  EXPECT_EQ(recover().code(), StatusCode::kDataLoss);
  memory_.header(7).reserved = 0;
  memory_.header(7) = SlotHeader();
  EXPECT_EQ(recover().code(), StatusCode::kDataLoss) << "zeroes are no header";
  pool_ = std::make_unique<Pool>(options(), memory_.get());
  EXPECT_TRUE(recover().ok());
}

// --- headers -----------------------------------------------------------------------------------

SlotHeader published(Lsn dirty_from = Lsn{10}) {
  SlotHeader header;
  begin_header(&header);
  publish_header(&header, kPage, Llsn{5}, dirty_from);
  return header;
}

// PH1: whatever is read from it is what was there, or it is called damaged.
TEST(SlotHeaders, OneOrTwoFlippedBitsAreDamage) {
  SlotHeader again = published();
  free_header(&again);
  SlotHeader begun;
  begin_header(&begun);
  for (const SlotHeader& good : {published(), published(kNeverChanged), again, begun}) {
    const auto is = read_header(good);
    ASSERT_TRUE(is.ok());
    // Other bits of a free one mean nothing.
    const auto harmless = [&](const SlotHeader& bad) {
      const auto said = read_header(bad);
      if (!said.ok()) return true;
      return !is->published && !said->published && said->generation == is->generation;
    };
    for (uint32_t a = 0; a < 512; a++) {
      SlotHeader one = good;
      reinterpret_cast<char*>(&one)[a / 8] ^= static_cast<char>(1 << a % 8);
      EXPECT_TRUE(harmless(one)) << a;
      for (uint32_t b = a + 1; b < 512; b++) {
        SlotHeader two = one;
        reinterpret_cast<char*>(&two)[b / 8] ^= static_cast<char>(1 << b % 8);
        EXPECT_TRUE(harmless(two)) << a << " " << b;
      }
    }
  }
}

TEST(SlotHeaders, SayWhatTheyWereTold) {
  SlotHeader header;
  EXPECT_FALSE(read_header(header).ok()) << "zeroes are none";
  begin_header(&header);
  EXPECT_FALSE(read_header(header)->published);
  for (const Lsn from : {Lsn{1}, Lsn{(1ull << 48) - 2}, kNeverChanged}) {
    publish_header(&header, kPage, Llsn{77}, from);
    const auto content = read_header(header);
    ASSERT_TRUE(content.ok());
    EXPECT_TRUE(content->published);
    EXPECT_EQ(content->id, kPage);
    EXPECT_EQ(content->llsn, Llsn{77});
    EXPECT_EQ(content->dirty_from, from);
    set_dirty_from(&header, Lsn{42});
    EXPECT_EQ(read_header(header)->dirty_from, Lsn{42});
    free_header(&header);
    EXPECT_FALSE(read_header(header)->published);
  }
  header.generation = UINT64_MAX;
  EXPECT_FALSE(read_header(header).ok());
  begin_header(&header);
  EXPECT_EQ(header.generation, 1u);
}

// PH2: a process that is killed leaves some of a change's stores, the first ones.
TEST(SlotHeaders, AreUnderstoodAfterEveryStore) {
  SlotHeader begun;
  begin_header(&begun);
  SlotHeader used = published();
  free_header(&used);
  for (const SlotHeader& free : {begun, used}) {
    SlotHeader after = free;
    publish_header(&after, PageId{400, 9}, Llsn{6}, Lsn{60});
    SlotHeader now = free;
    const auto expect_free = [&](uint64_t generation) {
      const auto content = read_header(now);
      ASSERT_TRUE(content.ok());
      EXPECT_FALSE(content->published);
      EXPECT_EQ(content->generation, generation);
      SlotHeader freed = now;
      free_header(&freed);
      ASSERT_TRUE(read_header(freed).ok());
      EXPECT_FALSE(read_header(freed)->published);
      EXPECT_EQ(freed.generation, generation);
    };
    now.page = after.page;
    expect_free(free.generation);
    now.llsn = after.llsn;
    expect_free(free.generation);
    now.crc32c = after.crc32c;
    expect_free(free.generation);
    now.generation = after.generation;
    expect_free(free.generation + 2);
    now.dirty_from = after.dirty_from;
    EXPECT_TRUE(read_header(now)->published);
    SlotHeader freed = now;
    free_header(&freed);
    now.dirty_from = freed.dirty_from;
    expect_free(freed.generation);
    now.generation = freed.generation;
    expect_free(freed.generation);
  }
}

TEST(SlotHeap, IsASortedSet) {
  constexpr uint32_t kMany = 200;
  Rng rng(3);
  SlotHeap heap(kMany);
  std::set<std::pair<uint64_t, uint32_t>> model;
  std::vector<uint64_t> keys(kMany);
  for (int round = 0; round < 20'000; round++) {
    const auto slot = static_cast<uint32_t>(rng.below(kMany));
    model.erase({keys[slot], slot});
    if (rng.one_in(3)) {
      heap.remove(slot);
    } else {
      keys[slot] = rng.below(100);
      heap.put(slot, keys[slot]);
      model.emplace(keys[slot], slot);
    }
    ASSERT_EQ(heap.size(), model.size());
    ASSERT_EQ(heap.empty(), model.empty());
    if (!model.empty()) {
      ASSERT_EQ(heap.least(), model.begin()->first);
      ASSERT_EQ(heap.key_of(heap.first()), heap.least());
    }
    if (round % 100 == 0) heap.check();
  }
}

}  // namespace
}  // namespace strata::memnode
