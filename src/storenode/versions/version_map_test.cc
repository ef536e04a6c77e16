#include "storenode/versions/version_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <thread>

#include "storenode/versions/collector.h"
#include "storenode/versions/testing/test_pages.h"
#include "storenode/versions/version_store.h"

namespace strata::storenode {
namespace {

using testing::same_page;
using testing::test_page;

constexpr PageId kPage{300, 7};
constexpr uint64_t kMemory = 1u << 20;

Version version_at(uint64_t llsn, uint8_t flags = 0) {
  Version version;
  version.llsn = Llsn{llsn};
  version.flags = flags;
  return version;
}

class VersionMapTest : public ::testing::Test {
 protected:
  VersionMapTest() : disk_(make_sim_file_system()) { open(kMemory); }
  void open(uint64_t memory) {
    map_.reset();
    db_.reset();
    VersionDbOptions options;
    options.directory = "/versions";
    options.files = disk_.get();
    auto opened = VersionDb::open(options);
    ASSERT_TRUE(opened.ok()) << opened.status();
    db_ = *std::move(opened);
    map_ = std::make_unique<VersionMap>(db_.get(), memory);
    ASSERT_TRUE(map_->open().ok());
  }
  void add(PageId page, std::vector<Version> versions) {
    std::vector<VersionMap::NewVersion> added;
    for (const Version& version : versions) added.push_back({page, version});
    std::vector<PageId> pages;
    ASSERT_TRUE(map_->add(added, &pages).ok());
  }
  void store(PageId page, const std::vector<uint64_t>& llsns) {
    std::vector<VersionMap::MadeVersion> made;
    for (const uint64_t llsn : llsns) made.push_back({Llsn{llsn}, test_page(page, Llsn{llsn})});
    ASSERT_TRUE(map_->store(page, made, VersionMap::Trim::kNow).ok());
  }
  std::vector<Version> versions(PageId page) {
    std::vector<Version> copy;
    EXPECT_TRUE(
        map_->inspect(page, [&](VersionList list) { copy.assign(list.begin(), list.end()); }).ok());
    return copy;
  }
  std::vector<uint64_t> llsns(PageId page) {
    std::vector<uint64_t> all;
    for (const Version& version : versions(page)) all.push_back(version.llsn.value);
    return all;
  }
  // What RocksDB has.
  std::vector<uint64_t> written(PageId page) {
    std::vector<Version> read;
    EXPECT_TRUE(db_->read_versions(page, &read).ok());
    std::vector<uint64_t> all;
    for (const Version& version : read) all.push_back(version.llsn.value);
    return all;
  }
  Status stored(PageId page, uint64_t llsn) {
    alignas(8) char bytes[kPageBytes];
    return db_->read_page(page, Llsn{llsn}, bytes);
  }
  using Numbers = std::vector<uint64_t>;

  std::unique_ptr<SimFileSystem> disk_;
  std::unique_ptr<VersionDb> db_;
  std::unique_ptr<VersionMap> map_;
};

TEST(VersionLists, NewestAt) {
  const std::vector<Version> list{version_at(10), version_at(20), version_at(30)};
  EXPECT_EQ(newest_at(list, Llsn{9}), -1);
  EXPECT_EQ(newest_at(list, Llsn{10}), 0);
  EXPECT_EQ(newest_at(list, Llsn{29}), 1);
  EXPECT_EQ(newest_at(list, Llsn{100}), 2);
  EXPECT_EQ(newest_at({}, Llsn{100}), -1);
}

TEST(VersionLists, CollectableIsWhatLiesBeforeTheNewestAtTheHorizon) {  // VM4
  const std::vector<Version> all{version_at(10, kMaterialized), version_at(20, kMaterialized),
                                 version_at(30, kMaterialized)};
  EXPECT_EQ(collectable(all, Llsn{9}), 0u);
  EXPECT_EQ(collectable(all, Llsn{19}), 0u);
  EXPECT_EQ(collectable(all, Llsn{20}), 1u);
  EXPECT_EQ(collectable(all, Llsn{100}), 2u);
  // 30 is not stored yet and is made from 20.
  const std::vector<Version> pending{version_at(10, kMaterialized), version_at(20, kMaterialized),
                                     version_at(25), version_at(30)};
  EXPECT_EQ(collectable(pending, Llsn{100}), 1u);
  // 30 is made from nothing.
  const std::vector<Version> restart{version_at(10, kMaterialized), version_at(20),
                                     version_at(30, kRestartsChain), version_at(40)};
  EXPECT_EQ(collectable(restart, Llsn{100}), 2u);
  EXPECT_EQ(collectable(restart, Llsn{39}), 2u);
  EXPECT_EQ(collectable(restart, Llsn{29}), 0u);
}

TEST_F(VersionMapTest, ListsComeBackFromDiskWithWhatWasAddedMeanwhile) {
  add(kPage, {version_at(10), version_at(20)});
  EXPECT_EQ(llsns(kPage), (Numbers{10, 20}));
  add(kPage, {version_at(30)});
  EXPECT_EQ(llsns(kPage), (Numbers{10, 20, 30}));
  ASSERT_TRUE(map_->drop_memory().ok());
  add(kPage, {version_at(40)});  // nobody has it in memory now
  EXPECT_EQ(llsns(kPage), (Numbers{10, 20, 30, 40}));
  EXPECT_EQ(map_->counters().misses.load(), 2u);
}

TEST_F(VersionMapTest, MemoryIsBounded) {  // VM6
  open(64u << 10);
  for (uint32_t number = 0; number < 3000; ++number) {
    add(PageId{300, number}, {version_at(10), version_at(20)});
    EXPECT_EQ(llsns(PageId{300, number}).size(), 2u);
  }
  EXPECT_LE(map_->memory_bytes(), 64u << 10);
  EXPECT_GT(map_->memory_bytes(), 16u << 10);
  for (uint32_t number = 0; number < 3000; ++number)
    EXPECT_EQ(llsns(PageId{300, number}), (Numbers{10, 20}));
  EXPECT_LE(map_->memory_bytes(), 64u << 10);
}

// --- what is written, and when ---

TEST_F(VersionMapTest, WhatIsCollectedBeforeItsPageIsStoredIsNeverWritten) {  // VM7
  std::vector<Version> many;
  for (uint64_t llsn = 1; llsn <= 50; ++llsn) many.push_back(version_at(llsn));
  add(kPage, many);
  EXPECT_EQ(map_->unwritten(), 50u);
  EXPECT_TRUE(written(kPage).empty());
  ASSERT_TRUE(map_->raise_horizon(Llsn{49}).ok());
  store(kPage, {49});
  EXPECT_EQ(written(kPage), (Numbers{49}));
  EXPECT_EQ(llsns(kPage), (Numbers{49, 50}));
  EXPECT_TRUE(versions(kPage)[0].is(kOldestKept));
  EXPECT_EQ(map_->counters().written.load(), 1u);
  EXPECT_EQ(map_->counters().collected.load(), 48u);
  EXPECT_EQ(map_->unwritten(), 1u);
}

// What is gone must be known to be gone, or a crash makes a page that was collected one that was
// never there.
TEST_F(VersionMapTest, TheOldestKeptEntryIsWrittenEvenIfItsPageIsNotStored) {  // VM4
  add(kPage, {version_at(10), version_at(20, kRestartsChain), version_at(30)});
  ASSERT_TRUE(map_->raise_horizon(Llsn{30}).ok());
  ASSERT_TRUE(map_->trim(kPage).ok());
  EXPECT_EQ(llsns(kPage), (Numbers{20, 30}));
  EXPECT_EQ(written(kPage), (Numbers{20}));
  ASSERT_TRUE(db_->flush().ok());
  open(kMemory);
  ASSERT_EQ(llsns(kPage), (Numbers{20}));  // 30 is found in the log again
  EXPECT_TRUE(versions(kPage)[0].is(kOldestKept));
}

TEST_F(VersionMapTest, SettledEntriesAreWritten) {  // VM7
  add(kPage, {version_at(10), version_at(20), version_at(30)});
  ASSERT_TRUE(map_->settle(kPage, Llsn{20}).ok());
  ASSERT_TRUE(map_->settle(kPage, Llsn{20}).ok());
  EXPECT_EQ(map_->counters().written.load(), 2u);
  EXPECT_EQ(llsns(kPage), (Numbers{10, 20, 30}));
  ASSERT_TRUE(db_->flush().ok());
  open(kMemory);
  EXPECT_EQ(map_->unwritten(), 0u);
  EXPECT_EQ(llsns(kPage), (Numbers{10, 20}));
}

TEST_F(VersionMapTest, EntriesLeaveMemoryOnlyOnceTheyAreWritten) {  // VM6
  open(64u << 10);
  for (uint32_t number = 0; number < 3000; ++number)
    add(PageId{300, number}, {version_at(10), version_at(20)});
  EXPECT_LE(map_->memory_bytes(), 64u << 10);
  EXPECT_GT(map_->counters().settled.load(), 5000u);
  // A page's list need not be read to be added to, nor to be written.
  EXPECT_EQ(map_->counters().misses.load(), 0u);
  for (uint32_t number = 0; number < 3000; ++number) {
    add(PageId{300, number}, {version_at(30)});
    ASSERT_EQ(llsns(PageId{300, number}), (Numbers{10, 20, 30}));
  }
  EXPECT_LE(map_->memory_bytes(), 64u << 10);
}

// Many pages of all shards, in any order, some of them often: each has its versions, and is named
// once.
TEST_F(VersionMapTest, AStretchOfLogIsAddedByPage) {
  constexpr uint32_t kPages = 500;
  open(1u << 20);
  std::vector<VersionMap::NewVersion> added;
  for (uint64_t llsn = 1; llsn <= 3000; ++llsn)
    added.push_back({PageId{300, static_cast<uint32_t>(llsn * llsn % kPages)}, version_at(llsn)});
  std::vector<PageId> pages;
  ASSERT_TRUE(map_->add(added, &pages).ok());
  std::map<PageId, std::vector<Llsn>> expected;
  for (const VersionMap::NewVersion& one : added) expected[one.page].push_back(one.version.llsn);
  std::sort(pages.begin(), pages.end());
  ASSERT_EQ(pages.size(), expected.size());
  for (const auto& [page, llsns] : expected) {
    EXPECT_TRUE(std::binary_search(pages.begin(), pages.end(), page));
    std::vector<Llsn> found;
    ASSERT_TRUE(map_->inspect(page,
                              [&found = found](VersionList list) {
                                for (const Version& version : list) found.push_back(version.llsn);
                              })
                    .ok());
    EXPECT_EQ(found, llsns);
  }
}

TEST_F(VersionMapTest, WithoutRoomOnTheDiskNothingIsAddedAndNothingLost) {
  open(64u << 10);
  uint32_t pages = 0;
  const auto add_next = [&] {
    const PageId page{300, pages};
    std::vector<PageId> changed;
    const VersionMap::NewVersion one{page, version_at(10)};
    const Status added = map_->add({&one, 1}, &changed);
    if (added.ok()) ++pages;
    return added;
  };
  ASSERT_TRUE(add_next().ok());
  ASSERT_TRUE(map_->settle(PageId{300, 0}, Llsn{10}).ok());
  disk_->set_capacity(4096);
  ASSERT_FALSE(db_->flush().ok());  // RocksDB takes no more writes now
  while (add_next().ok()) ASSERT_LT(pages, 10'000u);
  EXPECT_LE(map_->memory_bytes(), 64u << 10);
  EXPECT_EQ(map_->unwritten() + 1, pages);
  for (uint32_t number = 0; number < pages; ++number)
    ASSERT_EQ(llsns(PageId{300, number}), (Numbers{10})) << number;
  disk_->set_capacity(1u << 30);
  ASSERT_TRUE(db_->try_resume().ok());
  while (pages < 3000) ASSERT_TRUE(add_next().ok());
  for (uint32_t number = 0; number < pages; ++number)
    ASSERT_EQ(llsns(PageId{300, number}), (Numbers{10})) << number;
}

TEST_F(VersionMapTest, SpacesInMemoryAreListed) {
  add(PageId{301, 1}, {version_at(10)});
  store(PageId{301, 1}, {10});
  add(PageId{300, 1}, {version_at(11)});
  add(PageId{302, 1}, {version_at(12)});
  EXPECT_TRUE(llsns(PageId{303, 1}).empty());
  const std::vector<SpaceId> all{SpaceId{300}, SpaceId{301}, SpaceId{302}};
  EXPECT_EQ(*map_->list_spaces(), all);
  ASSERT_TRUE(map_->drop_memory().ok());
  EXPECT_EQ(*map_->list_spaces(), all);
  const DroppedSpace dropped = map_->note_dropped(SpaceId{302}, Llsn{20});
  ASSERT_TRUE(map_->raise_horizon(Llsn{20}).ok());
  add(PageId{302, 2}, {version_at(13)});
  ASSERT_TRUE(map_->reclaim_space(dropped).ok());
  EXPECT_EQ(map_->list_spaces()->size(), 2u);
  EXPECT_EQ(map_->unwritten(), 0u);
  add(PageId{302, 3}, {version_at(21)});  // somebody who was late
  EXPECT_EQ(map_->unwritten(), 0u);
  EXPECT_TRUE(llsns(PageId{302, 3}).empty());
}

TEST_F(VersionMapTest, AStoredVersionCanBeReadAndStaysMarked) {  // VM2
  add(kPage, {version_at(10), version_at(20)});
  store(kPage, {20});
  EXPECT_FALSE(versions(kPage)[0].is(kMaterialized));
  EXPECT_TRUE(versions(kPage)[1].is(kMaterialized));
  ASSERT_TRUE(map_->drop_memory().ok());
  EXPECT_TRUE(versions(kPage)[1].is(kMaterialized));
  VersionStore store(db_.get(), 1u << 20);
  auto page = store.read(kPage, Llsn{20});
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_TRUE(same_page((*page)->bytes, test_page(kPage, Llsn{20})->bytes));
  ASSERT_TRUE(store.read(kPage, Llsn{20}).ok());
  EXPECT_EQ(store.cache().hits(), 1u);
  EXPECT_EQ(store.pages_read(), 1u);
  EXPECT_TRUE(is_not_found(store.read(kPage, Llsn{10}).status()));
}

TEST_F(VersionMapTest, AVersionThatIsNotInTheMapIsNotStored) {
  add(kPage, {version_at(10)});
  store(kPage, {9, 10, 11});
  EXPECT_EQ(llsns(kPage), (Numbers{10}));
  EXPECT_TRUE(is_not_found(stored(kPage, 9)));
  EXPECT_TRUE(is_not_found(stored(kPage, 11)));
}

TEST_F(VersionMapTest, TrimmingRemovesVersionsAndPagesAndSaysSo) {  // VM4
  add(kPage, {version_at(10), version_at(20), version_at(30), version_at(40)});
  store(kPage, {10, 20, 30, 40});
  ASSERT_TRUE(map_->raise_horizon(Llsn{35}).ok());
  EXPECT_EQ(llsns(kPage), (Numbers{10, 20, 30, 40}));
  ASSERT_TRUE(map_->trim(kPage).ok());
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(llsns(kPage), (Numbers{30, 40}));
    EXPECT_TRUE(versions(kPage)[0].is(kOldestKept));
    EXPECT_FALSE(versions(kPage)[1].is(kOldestKept));
    ASSERT_TRUE(map_->drop_memory().ok());
  }
  EXPECT_TRUE(is_not_found(stored(kPage, 10)));
  EXPECT_TRUE(is_not_found(stored(kPage, 20)));
  EXPECT_TRUE(stored(kPage, 30).ok());
  EXPECT_EQ(map_->counters().collected.load(), 2u);
}

TEST_F(VersionMapTest, TheHorizonNeverShrinksAndSurvives) {  // VM5
  ASSERT_TRUE(map_->raise_horizon(Llsn{35}).ok());
  ASSERT_TRUE(map_->raise_horizon(Llsn{20}).ok());
  EXPECT_EQ(map_->horizon(), Llsn{35});
  ASSERT_TRUE(db_->flush().ok());
  open(kMemory);
  EXPECT_EQ(map_->horizon(), Llsn{35});
}

TEST_F(VersionMapTest, AFailedStoreChangesNothing) {
  add(kPage, {version_at(10), version_at(20), version_at(30)});
  store(kPage, {10, 20});
  ASSERT_TRUE(map_->raise_horizon(Llsn{30}).ok());
  disk_->set_capacity(4096);
  ASSERT_FALSE(db_->flush().ok());  // RocksDB takes no more writes now
  const std::vector<VersionMap::MadeVersion> made{{Llsn{30}, test_page(kPage, Llsn{30})}};
  ASSERT_FALSE(map_->store(kPage, made, VersionMap::Trim::kNow).ok());
  EXPECT_EQ(llsns(kPage), (Numbers{10, 20, 30}));
  EXPECT_FALSE(versions(kPage)[2].is(kMaterialized));
  disk_->set_capacity(1u << 30);
  ASSERT_TRUE(db_->try_resume().ok());
  ASSERT_TRUE(map_->store(kPage, made, VersionMap::Trim::kNow).ok());
  EXPECT_EQ(llsns(kPage), (Numbers{30}));
}

TEST_F(VersionMapTest, ASpaceIsReclaimedOnlyBelowTheHorizonAndForGood) {
  const PageId other{301, 1};
  add(kPage, {version_at(10)});
  store(kPage, {10});
  add(other, {version_at(11)});
  store(other, {11});
  const DroppedSpace dropped = map_->note_dropped(SpaceId{300}, Llsn{20});
  EXPECT_EQ(map_->note_dropped(SpaceId{300}, Llsn{25}).llsn, Llsn{20});  // the first one counts
  ASSERT_TRUE(map_->raise_horizon(Llsn{19}).ok());
  EXPECT_TRUE(map_->reclaimable().empty());
  ASSERT_TRUE(map_->raise_horizon(Llsn{20}).ok());
  ASSERT_EQ(map_->reclaimable().size(), 1u);
  ASSERT_TRUE(map_->reclaim_space(dropped).ok());
  EXPECT_TRUE(map_->reclaimable().empty());
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(map_->reclaimed_at(SpaceId{300}), Llsn{20});
    EXPECT_TRUE(llsns(kPage).empty());
    EXPECT_TRUE(is_not_found(stored(kPage, 10)));
    store(kPage, {10});  // somebody who was late
    EXPECT_TRUE(is_not_found(stored(kPage, 10)));
    EXPECT_EQ(llsns(other), (Numbers{11}));
    ASSERT_TRUE(db_->flush().ok());
    open(kMemory);
  }
}

TEST_F(VersionMapTest, TheCollectorFindsEverythingTheHorizonLetsGo) {
  for (uint32_t number = 0; number < 50; ++number) {
    add(PageId{300, number}, {version_at(10), version_at(20), version_at(30)});
    store(PageId{300, number}, {10, 20});
  }
  Collector collector(db_.get(), map_.get());
  const auto sweep = [&] {
    for (;;) {
      auto more = collector.step(7);
      ASSERT_TRUE(more.ok()) << more.status();
      if (!*more) return;
    }
  };
  sweep();
  EXPECT_EQ(collector.pages_seen(), 0u);  // without a horizon there is nothing to do
  ASSERT_TRUE(map_->raise_horizon(Llsn{100}).ok());
  sweep();
  EXPECT_EQ(collector.pages_seen(), 50u);
  EXPECT_EQ(llsns(PageId{300, 3}), (Numbers{20, 30}));  // 30 is made from 20
  sweep();
  EXPECT_EQ(collector.pages_seen(), 50u);  // nothing new
  for (uint32_t number = 0; number < 50; ++number) {
    const std::vector<VersionMap::MadeVersion> made{
        {Llsn{30}, test_page(PageId{300, number}, Llsn{30})}};
    ASSERT_TRUE(map_->store(PageId{300, number}, made, VersionMap::Trim::kWhenWorthwhile).ok());
  }
  sweep();
  for (uint32_t number = 0; number < 50; ++number)
    EXPECT_EQ(llsns(PageId{300, number}), (Numbers{30}));
}

TEST_F(VersionMapTest, ThreadsSeeWholeLists) {
  open(8u << 10);  // lists come and go all the time
  constexpr uint32_t kPages = 40;
  constexpr uint64_t kVersions = 100;
  std::atomic<uint64_t> added{0};
  std::vector<std::thread> threads;
  threads.emplace_back([&] {
    for (uint64_t llsn = 1; llsn <= kVersions; ++llsn) {
      for (uint32_t number = 0; number < kPages; ++number)
        add(PageId{300, number}, {version_at(llsn)});
      added.store(llsn);
    }
  });
  for (uint32_t worker = 0; worker < 2; ++worker) {
    threads.emplace_back([&, worker] {
      for (uint64_t done = 0; done < kVersions; done = added.load())
        for (uint32_t number = worker; number < kPages; number += 2) {
          const uint64_t known = added.load();
          const std::vector<uint64_t> all = llsns(PageId{300, number});
          ASSERT_GE(all.size(), known);
          for (size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], i + 1);
          if (known != 0) store(PageId{300, number}, {known});
        }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (uint32_t number = 0; number < kPages; ++number)
    for (const Version& version : versions(PageId{300, number}))
      EXPECT_EQ(version.is(kMaterialized), stored(PageId{300, number}, version.llsn.value).ok());
}

// Whoever looks while older versions are being removed must not think that there never were any.
TEST_F(VersionMapTest, WhatIsBeingCollectedNeverLooksNeverWritten) {  // VM4
  constexpr uint64_t kVersions = 300;
  std::atomic<bool> done{false};
  std::thread reader([&] {
    while (!done.load()) {
      bool flagged = true;
      ASSERT_TRUE(map_->inspect(kPage,
                                [&](VersionList list) {
                                  if (!list.empty() && list.front().llsn > Llsn{1})
                                    flagged = list.front().is(kOldestKept);
                                })
                      .ok());
      ASSERT_TRUE(flagged);
    }
  });
  for (uint64_t llsn = 1; llsn <= kVersions; ++llsn) {
    add(kPage, {version_at(llsn)});
    ASSERT_TRUE(map_->raise_horizon(Llsn{llsn}).ok());
    store(kPage, {llsn});
  }
  done.store(true);
  reader.join();
  EXPECT_EQ(llsns(kPage), (Numbers{kVersions}));
}

}  // namespace
}  // namespace strata::storenode
