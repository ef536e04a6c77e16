// Random changes of the map, horizons, dropped spaces and power losses against a plain map. After a
// power loss the map is what it was after one of the operations since the last flush.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "base/rng.h"
#include "storenode/versions/collector.h"
#include "storenode/versions/testing/test_pages.h"
#include "storenode/versions/version_map.h"

namespace strata::storenode {
namespace {

using testing::same_page;
using testing::test_page;

uint64_t number_from(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

constexpr uint32_t kSpaces = 4;
constexpr uint32_t kPagesPerSpace = 6;
constexpr uint32_t kFirstSpace = 300;

struct Truth {
  std::map<PageId, std::map<uint64_t, uint8_t>> pages;  // llsn -> flags
  std::map<uint32_t, uint64_t> dropped;                 // space -> llsn
  std::map<uint32_t, uint64_t> reclaimed;
  uint64_t newest = 0;
  uint64_t horizon = 0;
  bool operator==(const Truth&) const = default;
};

// What VM4 says, written down independently.
void trim(std::map<uint64_t, uint8_t>* versions, uint64_t horizon) {
  auto keep = versions->end();
  for (auto it = versions->begin(); it != versions->end() && it->first <= horizon; ++it)
    if (it == versions->begin() || (it->second & (kMaterialized | kRestartsChain)) != 0) keep = it;
  if (keep == versions->end() || keep == versions->begin()) return;
  versions->erase(versions->begin(), keep);
  versions->begin()->second |= kOldestKept;
}

class MapRun {
 public:
  explicit MapRun(uint64_t seed) : rng_(seed), disk_(make_sim_file_system()) { open(); }

  void run(uint32_t steps) {
    since_flush_.push_back(truth_);
    for (uint32_t i = 0; i < steps && !::testing::Test::HasFatalFailure(); ++i) {
      SCOPED_TRACE(::testing::Message() << "step " << i);
      step();
    }
    check();
  }

 private:
  void open() {
    map_.reset();
    db_.reset();
    VersionDbOptions options;
    options.directory = "/versions";
    options.files = disk_.get();
    auto opened = VersionDb::open(options);
    ASSERT_TRUE(opened.ok()) << opened.status();
    db_ = *std::move(opened);
    map_ = std::make_unique<VersionMap>(db_.get(), 4u << 10);
    ASSERT_TRUE(map_->open().ok());
    collector_ = std::make_unique<Collector>(db_.get(), map_.get());
  }

  PageId random_page() {
    return {kFirstSpace + static_cast<uint32_t>(rng_.below(kSpaces)),
            static_cast<uint32_t>(rng_.below(kPagesPerSpace))};
  }

  void step() {
    switch (rng_.below(16)) {
      case 0:
        truth_.horizon =
            std::max(truth_.horizon, truth_.newest - rng_.below(truth_.newest / 4 + 1));
        ASSERT_TRUE(map_->raise_horizon(Llsn{truth_.horizon}).ok());
        break;
      case 1:
        sweep();
        break;
      case 2:
        drop_or_reclaim();
        break;
      case 3:
        map_->drop_memory();
        break;
      case 4:
        if (rng_.one_in(3)) crash();
        return;
      case 5:
        if (!rng_.one_in(3)) return;
        ASSERT_TRUE(db_->flush().ok());
        since_flush_.clear();
        break;
      case 6:
        check();
        return;
      case 7:
      case 8:
      case 9:
      case 10:
      case 11:
        store();
        break;
      default:
        add();
    }
    since_flush_.push_back(truth_);
  }

  void add() {
    std::vector<VersionMap::NewVersion> added;
    for (uint64_t count = 1 + rng_.below(8); count > 0; --count) {
      const PageId page = random_page();
      if (truth_.reclaimed.count(page.space) != 0) continue;
      Version version;
      version.llsn = Llsn{truth_.newest += 1 + rng_.below(3)};
      if (truth_.pages[page].empty() || rng_.one_in(5)) version.flags = kRestartsChain;
      truth_.pages[page][version.llsn.value] = version.flags;
      added.push_back({page, version});
    }
    VersionDb::Batch batch = db_->new_batch();
    ASSERT_TRUE(map_->add(added, &batch).ok());
  }

  void store() {
    const PageId page = random_page();
    std::vector<VersionMap::MadeVersion> made;
    auto& versions = truth_.pages[page];
    for (auto& [llsn, flags] : versions) {
      if (rng_.one_in(2)) continue;
      made.push_back({Llsn{llsn}, test_page(page, Llsn{llsn})});
      flags |= kMaterialized;
    }
    trim(&versions, truth_.horizon);
    ASSERT_TRUE(map_->store(page, made, VersionMap::Trim::kNow).ok());
  }

  void sweep() {
    for (;;) {
      auto more = collector_->step(1 + static_cast<uint32_t>(rng_.below(5)));
      ASSERT_TRUE(more.ok()) << more.status();
      if (!*more) break;
    }
    for (auto& [page, versions] : truth_.pages) trim(&versions, truth_.horizon);
    check();
  }

  void drop_or_reclaim() {
    const uint32_t space = kFirstSpace + static_cast<uint32_t>(rng_.below(kSpaces));
    if (rng_.one_in(8) && truth_.dropped.try_emplace(space, truth_.newest + 1).second) {
      VersionDb::Batch batch = db_->new_batch();
      batch.put_dropped(map_->note_dropped(SpaceId{space}, Llsn{++truth_.newest}));
      ASSERT_TRUE(map_->add({}, &batch).ok());
      since_flush_.push_back(truth_);
    }
    for (const DroppedSpace& dropped : map_->reclaimable()) {
      EXPECT_LE(dropped.llsn.value, truth_.horizon);
      EXPECT_EQ(dropped.llsn.value, truth_.dropped.at(dropped.space.value));
      ASSERT_TRUE(map_->reclaim_space(dropped).ok());
      truth_.reclaimed[dropped.space.value] = dropped.llsn.value;
      std::erase_if(truth_.pages,
                    [&](const auto& it) { return it.first.space == dropped.space.value; });
      since_flush_.push_back(truth_);
    }
  }

  void crash() {
    // What the old life still does while it is closed must not reach the disk of the new one.
    std::unique_ptr<SimFileSystem> next = disk_->fork();
    next->crash(rng_.next());
    collector_.reset();
    map_.reset();
    db_.reset();
    disk_ = std::move(next);
    open();
    Truth found;
    read_all(&found);
    for (auto it = since_flush_.rbegin(); it != since_flush_.rend(); ++it) {
      std::erase_if(it->pages, [](const auto& page) { return page.second.empty(); });
      found.newest = it->newest;
      if (*it != found) continue;
      truth_ = found;
      since_flush_ = {truth_};
      return;
    }
    FAIL() << "the map is as it never was, of " << since_flush_.size() << " states";
  }

  void read_all(Truth* found) {
    for (uint32_t space = kFirstSpace; space < kFirstSpace + kSpaces; ++space) {
      for (uint32_t number = 0; number < kPagesPerSpace; ++number) {
        const PageId page{space, number};
        ASSERT_TRUE(map_->inspect(page,
                                  [&](VersionList list) {
                                    for (const Version& version : list)
                                      found->pages[page][version.llsn.value] = version.flags;
                                  })
                        .ok());
      }
    }
    auto dropped = db_->read_dropped();
    ASSERT_TRUE(dropped.ok());
    for (const DroppedSpace& one : *dropped) {
      found->dropped[one.space.value] = one.llsn.value;
      if (one.reclaimed) found->reclaimed[one.space.value] = one.llsn.value;
    }
    found->horizon = map_->horizon().value;
  }

  void check() {
    Truth found;
    read_all(&found);
    std::erase_if(truth_.pages, [](const auto& page) { return page.second.empty(); });
    EXPECT_EQ(found.pages, truth_.pages);
    EXPECT_EQ(found.dropped, truth_.dropped);
    EXPECT_EQ(found.reclaimed, truth_.reclaimed);
    EXPECT_EQ(found.horizon, truth_.horizon);
    alignas(8) char bytes[kPageBytes];
    for (const auto& [page, versions] : truth_.pages) {
      for (const auto& [llsn, flags] : versions) {
        const Status status = db_->read_page(page, Llsn{llsn}, bytes);
        if ((flags & kMaterialized) == 0) {
          EXPECT_TRUE(is_not_found(status));
        } else {
          ASSERT_TRUE(status.ok()) << status;
          EXPECT_TRUE(same_page(bytes, test_page(page, Llsn{llsn})->bytes));
        }
      }
    }
  }

  Rng rng_;
  std::unique_ptr<SimFileSystem> disk_;
  std::unique_ptr<VersionDb> db_;
  std::unique_ptr<VersionMap> map_;
  std::unique_ptr<Collector> collector_;
  Truth truth_;
  std::vector<Truth> since_flush_;
};

TEST(VersionMapModel, IsWhatAPlainMapIs) {
  const uint64_t first = number_from("STRATA_SEED", 1);
  const uint64_t rounds = number_from("STRATA_ROUNDS", 20);
  for (uint64_t seed = first; seed < first + rounds; ++seed) {
    SCOPED_TRACE(::testing::Message() << "STRATA_SEED=" << seed);
    MapRun run(seed);
    run.run(300);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace strata::storenode
