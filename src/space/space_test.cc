// Spaces and page allocation. Method: a whole small store on a simulated disk, crashed where it
// matters.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <thread>

#include "base/clock.h"
#include "base/rng.h"
#include "space/internal/epochs.h"
#include "space/map_page.h"
#include "space/testing/test_store.h"

namespace strata {
namespace {

using testing::TestStore;
constexpr SpaceId kSpace{256};

struct SpaceTest : ::testing::Test {
  void SetUp() override {
    const Status created = store.spaces()->create(kSpace);
    ASSERT_TRUE(created.ok()) << created;
  }
  // Takes a page and makes an undo page of it.
  uint32_t take(SpaceId space = kSpace) {
    EXPECT_TRUE(store.spaces()->ensure_room(space, 1).ok());
    Mtr mtr(store.pool(), store.log());
    EXPECT_TRUE(mtr.begin_write().ok());
    const StatusOr<uint32_t> number = store.spaces()->allocate(&mtr, space);
    EXPECT_TRUE(number.ok()) << number.status();
    if (!number.ok()) return kNoPage;
    const StatusOr<MtrPage*> page = mtr.fix_new(PageId{space.value, *number});
    EXPECT_TRUE(page.ok()) << page.status();
    mtr.init_plain(*page, PageType::kUndo, IndexId{}, 0);
    mtr.publish();
    return *number;
  }
  Status give_back(uint32_t number, bool retire) {
    Mtr mtr(store.pool(), store.log());
    STRATA_RETURN_IF_ERROR(mtr.begin_write());
    STRATA_ASSIGN_OR_RETURN(MtrPage * page,
                            mtr.fix(PageId{kSpace.value, number}, LatchMode::kExclusive));
    STRATA_RETURN_IF_ERROR(retire ? store.spaces()->retire(&mtr, page)
                                  : store.spaces()->free(&mtr, page));
    mtr.publish();
    if (retire) store.spaces()->note_retired(PageId{kSpace.value, number});
    return ok_status();
  }
  bool allocated(uint32_t number) {
    const StatusOr<bool> is = store.spaces()->is_allocated(PageId{kSpace.value, number});
    EXPECT_TRUE(is.ok()) << is.status();
    return is.ok() && *is;
  }
  void restart(bool reclaim_pending) {
    ASSERT_TRUE(store.persist_all().ok());
    store.crash(1);
    const Status recovered = store.recover();
    ASSERT_TRUE(recovered.ok()) << recovered;
    const Status opened = store.spaces()->open(kSpace, reclaim_pending);
    ASSERT_TRUE(opened.ok()) << opened;
  }
  TestStore store;
};

// A map whose last write the disk lost.
TEST_F(SpaceTest, AMapThatOffersThePageAtWorkIsCorruption) {
  const uint32_t number = take();
  {
    Mtr mtr(store.pool(), store.log());
    ASSERT_TRUE(mtr.begin_write().ok());
    const StatusOr<MtrPage*> map =
        mtr.fix(PageId{kSpace.value, map_page_number(0)}, LatchMode::kExclusive);
    ASSERT_TRUE(map.ok());
    char used[8];
    store_u64(used, 0b11);
    mtr.write(*map, extent_offset(0) + kExtentUsedOffset, Bytes(used, 8));
    mtr.publish();
  }
  Mtr mtr(store.pool(), store.log());
  ASSERT_TRUE(mtr.begin_write().ok());
  ASSERT_TRUE(mtr.fix(PageId{kSpace.value, number}, LatchMode::kExclusive).ok());
  EXPECT_TRUE(is_corruption(store.spaces()->allocate(&mtr, kSpace).status()));
}

TEST_F(SpaceTest, PagesAreHandedOutOnceAndInOrder) {
  for (uint32_t expected = 2; expected < 200; ++expected) EXPECT_EQ(take(), expected);
  EXPECT_EQ(*store.spaces()->used_pages(kSpace), 200u);
  const auto pages = store.spaces()->allocated_pages(kSpace);
  ASSERT_TRUE(pages.ok());
  EXPECT_EQ(pages->size(), 198u);
  EXPECT_EQ(pages->front(), 2u);
  EXPECT_TRUE(allocated(199));
  EXPECT_FALSE(allocated(200));
}

TEST_F(SpaceTest, AFreedPageIsUsedAgainWithALargerLlsn) {  // SP3
  for (int i = 0; i < 10; ++i) take();
  const PageId id{kSpace.value, 5};
  uint64_t llsn = 0;
  {
    const auto guard = store.pool()->fix(id, LatchMode::kShared);
    llsn = header_of(guard->page())->llsn;
  }
  ASSERT_TRUE(give_back(5, false).ok());
  EXPECT_FALSE(allocated(5));
  EXPECT_TRUE(is_corruption(give_back(5, false)));
  EXPECT_EQ(take(), 5u);
  const auto guard = store.pool()->fix(id, LatchMode::kShared);
  EXPECT_GT(header_of(guard->page())->llsn, llsn);
}

TEST_F(SpaceTest, ARetiredPageWaitsForOperationsThatMayKnowIt) {  // SP2
  const uint32_t page = take();
  {
    const SpaceManager::EpochGuard reader(store.spaces());
    ASSERT_TRUE(give_back(page, true).ok());
    for (int i = 0; i < 10; ++i) EXPECT_TRUE(store.spaces()->reclaim().ok());
    EXPECT_NE(take(), page);
    EXPECT_FALSE(allocated(page));
  }
  EXPECT_TRUE(store.spaces()->reclaim().ok());
  EXPECT_EQ(take(), page);
}

TEST_F(SpaceTest, PendingPagesAreFreeAfterACrash) {  // SP2
  const uint32_t page = take();
  const uint32_t kept = take();
  ASSERT_TRUE(give_back(page, true).ok());
  restart(false);
  EXPECT_NE(take(), page);
  EXPECT_TRUE(allocated(kept));
  restart(true);
  EXPECT_EQ(take(), page);
  EXPECT_NE(take(), kept);
}

TEST_F(SpaceTest, AllocationsSurviveACrash) {
  std::set<uint32_t> pages;
  for (int i = 0; i < 300; ++i) pages.insert(take());
  for (uint32_t page = 10; page < 100; page += 7) {
    ASSERT_TRUE(give_back(page, false).ok());
    pages.erase(page);
  }
  restart(true);
  const auto found = store.spaces()->allocated_pages(kSpace);
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(std::set<uint32_t>(found->begin(), found->end()), pages);
  EXPECT_EQ(*store.spaces()->used_pages(kSpace), pages.size() + 2);
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(pages.insert(take()).second);
}

TEST_F(SpaceTest, ANewMapIsMadeWhenTheLastOneIsFull) {
  // Fills the map without making pages: all of its bits are written by hand.
  {
    Mtr mtr(store.pool(), store.log());
    ASSERT_TRUE(mtr.begin_write().ok());
    auto map = mtr.fix(PageId{kSpace.value, 1}, LatchMode::kExclusive);
    ASSERT_TRUE(map.ok());
    for (uint32_t e = 0; e + 1 < kExtentsPerMap; ++e) {
      char raw[8];
      store_u64(raw, ~uint64_t{0});
      mtr.write(*map, static_cast<uint16_t>(extent_offset(e) + kExtentUsedOffset), Bytes(raw, 8));
    }
    mtr.publish();
  }
  restart(true);
  std::vector<uint32_t> pages;
  for (int i = 0; i < 200; ++i) pages.push_back(take());
  EXPECT_EQ(pages[0], kPagesPerMap - 64);
  EXPECT_EQ(pages[63], kPagesPerMap - 1);
  EXPECT_EQ(pages[64], kPagesPerMap);      // the page before the second map
  EXPECT_EQ(pages[65], kPagesPerMap + 2);  // the one behind it
  ASSERT_TRUE(give_back(pages[3], false).ok());
  EXPECT_EQ(take(), pages[3]);
  restart(true);
  EXPECT_TRUE(allocated(pages[199]));
  EXPECT_EQ(take(), pages[199] + 1);
  // Several pages in one mtr, the map changing in between.
  ASSERT_TRUE(give_back(pages[10], false).ok());
  ASSERT_TRUE(give_back(pages[11], false).ok());
  Mtr mtr(store.pool(), store.log());
  ASSERT_TRUE(mtr.begin_write().ok());
  std::vector<uint32_t> taken;
  for (int i = 0; i < 4; ++i) {
    auto number = store.spaces()->allocate(&mtr, kSpace);
    ASSERT_TRUE(number.ok()) << number.status();
    mtr.init_plain(*mtr.fix_new(PageId{kSpace.value, *number}), PageType::kUndo, IndexId{}, 0);
    taken.push_back(*number);
  }
  mtr.publish();
  EXPECT_EQ(taken[0], pages[10]);
  EXPECT_EQ(taken[1], pages[11]);
  EXPECT_EQ(taken[2], pages[199] + 2);
  store.expect_replay_is_identical();
}

TEST_F(SpaceTest, HeaderSlotsAreKeptAndOnlyRaised) {
  SpaceManager* spaces = store.spaces();
  const auto raise = [&](uint64_t value) {
    Mtr mtr(store.pool(), store.log());
    ASSERT_TRUE(mtr.begin_write().ok());
    ASSERT_TRUE(spaces->raise_slot(&mtr, kSpace, HeaderSlot::kAutoIncrement, value).ok());
    mtr.publish();
  };
  EXPECT_EQ(*spaces->read_slot(kSpace, HeaderSlot::kAutoIncrement), 0u);
  raise(10);
  raise(7);
  EXPECT_EQ(*spaces->read_slot(kSpace, HeaderSlot::kAutoIncrement), 10u);
  {
    Mtr mtr(store.pool(), store.log());
    ASSERT_TRUE(mtr.begin_write().ok());
    ASSERT_TRUE(spaces->write_slot(&mtr, kSpace, HeaderSlot::kRowId, 3).ok());
    ASSERT_TRUE(spaces->write_slot(&mtr, kSpace, HeaderSlot::kAutoIncrement, 4).ok());
    mtr.publish();
  }
  restart(true);
  EXPECT_EQ(*store.spaces()->read_slot(kSpace, HeaderSlot::kAutoIncrement), 4u);
  EXPECT_EQ(*store.spaces()->read_slot(kSpace, HeaderSlot::kRowId), 3u);
}

TEST_F(SpaceTest, ADroppedSpaceIsNotFound) {
  const uint32_t page = take();
  ASSERT_TRUE(give_back(take(), true).ok());
  SpaceManager* spaces = store.spaces();
  ASSERT_TRUE(spaces->drop(kSpace).ok());
  EXPECT_FALSE(spaces->is_live(kSpace));
  EXPECT_TRUE(is_not_found(spaces->drop(kSpace)));
  EXPECT_TRUE(is_not_found(spaces->ensure_room(kSpace, 1)));
  EXPECT_TRUE(is_not_found(spaces->is_allocated(PageId{kSpace.value, page}).status()));
  EXPECT_TRUE(spaces->reclaim().ok());
  EXPECT_TRUE(store.checkpoint().ok());
  EXPECT_TRUE(spaces->delete_file(kSpace).ok());
  EXPECT_TRUE(is_not_found(spaces->open(kSpace, true)));
}

TEST_F(SpaceTest, AForeignHeaderIsRefused) {
  ASSERT_TRUE(store.spaces()->create(SpaceId{300}).ok());
  Mtr mtr(store.pool(), store.log());
  ASSERT_TRUE(mtr.begin_write().ok());
  auto header = mtr.fix(PageId{300, 0}, LatchMode::kExclusive);
  char raw[4];
  store_u32(raw, 301);
  mtr.write(*header, kHeaderSpaceOffset, Bytes(raw, 4));
  mtr.publish();
  EXPECT_TRUE(is_corruption(store.spaces()->open(SpaceId{300}, true)));
  EXPECT_TRUE(is_not_found(store.spaces()->open(SpaceId{999}, true)));
}

TEST_F(SpaceTest, AFullDiskFailsBeforeTheAllocation) {  // SP4
  store.fs()->set_capacity(20u << 20);
  Status status;
  for (int i = 0; i < 2000 && status.ok(); ++i) {
    status = store.spaces()->ensure_room(kSpace, 8);
    if (status.ok()) take();
  }
  EXPECT_TRUE(is_no_space(status)) << status;
  store.fs()->set_capacity(UINT64_MAX);
  EXPECT_TRUE(store.spaces()->ensure_room(kSpace, 8).ok());
  EXPECT_NE(take(), kNoPage);
}

TEST_F(SpaceTest, ThreadsNeverShareAPage) {
  constexpr int kThreads = 8;
  constexpr int kRounds = 300;
  std::vector<std::atomic<int>> owner(20000);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      Rng rng(static_cast<uint64_t>(t));
      std::vector<uint32_t> mine;
      for (int i = 0; i < kRounds; ++i) {
        if (mine.size() < 3 || rng.one_in(2)) {
          const uint32_t page = take();
          EXPECT_EQ(owner[page].exchange(t + 1), 0) << page;
          mine.push_back(page);
        } else {
          const size_t at = rng.below(mine.size());
          const uint32_t page = mine[at];
          mine.erase(mine.begin() + static_cast<ptrdiff_t>(at));
          EXPECT_EQ(owner[page].exchange(0), t + 1);
          EXPECT_TRUE(give_back(page, rng.one_in(2)).ok());
        }
        if (rng.one_in(10)) {
          EXPECT_TRUE(store.spaces()->reclaim().ok());
        }
      }
    });
  for (std::thread& t : threads) t.join();
  std::set<uint32_t> expected;
  for (uint32_t i = 0; i < owner.size(); ++i)
    if (owner[i] != 0) expected.insert(i);
  restart(true);
  const auto pages = store.spaces()->allocated_pages(kSpace);
  ASSERT_TRUE(pages.ok());
  EXPECT_EQ(std::set<uint32_t>(pages->begin(), pages->end()), expected);
}

TEST(Epochs, NothingPassesWhileAReaderIsInside) {  // EP1
  space_internal::Epochs epochs;
  const uint32_t ticket = epochs.enter();
  const uint64_t mark = epochs.retire_mark();
  epochs.advance(mark);
  EXPECT_FALSE(epochs.passed(mark));
  epochs.leave(ticket);
  epochs.advance(mark);
  EXPECT_TRUE(epochs.passed(mark));
}

// Goal: EP1 under real races. Readers hold on to the object they found; a retired object is
// poisoned once its mark has passed.
TEST(Epochs, AReaderNeverSeesWhatWasReclaimed) {
  space_internal::Epochs epochs;
  constexpr int kObjects = 64;
  std::vector<std::atomic<int>> alive(kObjects);
  for (auto& a : alive) a = 1;
  std::atomic<int> current{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> readers;
  for (int t = 0; t < 3; ++t)
    readers.emplace_back([&] {
      while (!stop) {
        const uint32_t ticket = epochs.enter();
        const int object = current.load();
        for (int i = 0; i < 20; ++i) EXPECT_EQ(alive[static_cast<size_t>(object)].load(), 1);
        epochs.leave(ticket);
      }
    });
  std::vector<std::pair<int, uint64_t>> retired;
  int next = 1;
  int reclaimed = 0;
  const uint64_t deadline = monotonic_us() + 3000000;
  while (reclaimed < 1000 && monotonic_us() < deadline) {
    const bool waiting =
        std::any_of(retired.begin(), retired.end(), [&](const auto& r) { return r.first == next; });
    if (!waiting && next != current) {
      const int old = current.exchange(next);
      retired.emplace_back(old, epochs.retire_mark());
    }
    next = (next + 1) % kObjects;
    epochs.advance(epochs.retire_mark());
    std::this_thread::yield();
    for (size_t j = 0; j < retired.size();) {
      if (!epochs.passed(retired[j].second)) {
        ++j;
        continue;
      }
      const auto object = static_cast<size_t>(retired[j].first);
      alive[object] = 0;
      std::this_thread::yield();
      alive[object] = 1;
      ++reclaimed;
      retired.erase(retired.begin() + static_cast<ptrdiff_t>(j));
    }
  }
  stop = true;
  for (std::thread& t : readers) t.join();
  EXPECT_GT(reclaimed, 0);
}

}  // namespace
}  // namespace strata
