// Random changes of the map, horizons, dropped spaces and power losses against a plain map. After a
// power loss and a scan of the log from the replayed mark on, the map is what it was after one of
// the operations since the last flush, and what the log brought later (VM7).
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <set>

#include "base/rng.h"
#include "base/testing/sanitized.h"
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

constexpr StreamId kStream{1};

// A section of the log, which survives everything. It lies at the lsn that is its index.
struct Section {
  PageId page;
  Version version;
};

struct Truth {
  std::map<PageId, std::map<uint64_t, uint8_t>> pages;  // llsn -> flags
  std::map<uint32_t, uint64_t> dropped;                 // space -> llsn
  std::map<uint32_t, uint64_t> reclaimed;
  uint64_t horizon = 0;
  size_t log_end = 0;  // sections it knows
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

// Entries in memory are not collected by the sweep, but when their page is stored: until then the
// map may have more than it needs.
Truth trimmed(Truth truth) {
  for (auto& [page, versions] : truth.pages) trim(&versions, truth.horizon);
  std::erase_if(truth.pages, [](const auto& page) { return page.second.empty(); });
  return truth;
}

class MapRun {
 public:
  explicit MapRun(uint64_t seed)
      : rng_(seed), disk_(make_sim_file_system()), memory_(rng_.one_in(2) ? 4u << 10 : 64u << 10) {
    open();
  }

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
    map_ = std::make_unique<VersionMap>(db_.get(), memory_);
    ASSERT_TRUE(map_->open().ok());
    collector_ = std::make_unique<Collector>(db_.get(), map_.get());
  }

  PageId random_page() {
    return {kFirstSpace + static_cast<uint32_t>(rng_.below(kSpaces)),
            static_cast<uint32_t>(rng_.below(kPagesPerSpace))};
  }

  void step() {
    switch (rng_.below(18)) {
      case 0:
        truth_.horizon = std::max(truth_.horizon, newest_ - rng_.below(newest_ / 4 + 1));
        ASSERT_TRUE(map_->raise_horizon(Llsn{truth_.horizon}).ok());
        break;
      case 1:
        sweep();
        break;
      case 2:
        drop_or_reclaim();
        break;
      case 3:
        ASSERT_TRUE(map_->drop_memory().ok());
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
      case 12:
        raise_mark();
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
      version.llsn = Llsn{newest_ += 1 + rng_.below(3)};
      version.lsn = Lsn{log_.size()};
      version.stream = kStream;
      if (truth_.pages[page].empty() || rng_.one_in(5)) version.flags = kRestartsChain;
      truth_.pages[page][version.llsn.value] = version.flags;
      added.push_back({page, version});
      log_.push_back({page, version});
    }
    enter(added);
    truth_.log_end = log_.size();
  }

  // As quick scan does (IN2).
  void enter(const std::vector<VersionMap::NewVersion>& added) {
    if (log_.size() > marked_to_) {
      marked_to_ = log_.size() + rng_.below(20);
      put_mark(Mark::kScanned, marked_to_);
    }
    std::vector<PageId> pages;
    ASSERT_TRUE(map_->add(added, &pages).ok());
    std::set<PageId> expected;
    for (const VersionMap::NewVersion& one : added)
      if (!map_->is_reclaimed(SpaceId{one.page.space})) expected.insert(one.page);
    EXPECT_EQ(std::set<PageId>(pages.begin(), pages.end()), expected);
    EXPECT_EQ(pages.size(), expected.size()) << "each once";
  }
  void put_mark(Mark mark, uint64_t lsn) {
    VersionDb::Batch batch = db_->new_batch();
    batch.put_mark(mark, kStream, {Lsn{lsn}, Llsn{}});
    ASSERT_TRUE(db_->write(&batch).ok());
  }
  uint64_t mark_of(Mark mark) {
    auto found = db_->read_mark(mark, kStream);
    EXPECT_TRUE(found.ok()) << found.status();
    return found.ok() && found->has_value() ? (*found)->lsn.value : 0;
  }

  // As a worker does that could not make a page (VM7).
  void raise_mark() {
    const uint64_t from = mark_of(Mark::kReplayed);
    const uint64_t to = from + rng_.below(log_.size() - from + 1);
    for (uint64_t lsn = from; lsn < to; ++lsn)
      ASSERT_TRUE(map_->settle(log_[lsn].page, log_[lsn].version.llsn).ok());
    put_mark(Mark::kReplayed, to);
  }

  // As quick scan does after a start (IN3).
  void scan_again() {
    const uint64_t known_to = mark_of(Mark::kScanned);
    marked_to_ = known_to;
    for (uint64_t lsn = mark_of(Mark::kReplayed); lsn < log_.size(); ++lsn) {
      const auto& [page, version] = log_[lsn];
      if (map_->is_reclaimed(SpaceId{page.space})) continue;
      bool known = false;
      const auto look = [&](VersionList list) {
        const ptrdiff_t at = newest_at(list, version.llsn);
        known =
            at >= 0 ? list[at].llsn == version.llsn : !list.empty() && list.front().is(kOldestKept);
      };
      if (lsn < known_to) {
        ASSERT_TRUE(map_->inspect(page, look).ok());
      }
      if (!known) enter({{page, version}});
    }
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
    const bool all = rng_.one_in(2);
    if (all) {
      ASSERT_TRUE(map_->drop_memory().ok());
    }
    for (;;) {
      auto more = collector_->step(1 + static_cast<uint32_t>(rng_.below(5)));
      ASSERT_TRUE(more.ok()) << more.status();
      if (!*more) break;
    }
    for (auto& [page, versions] : truth_.pages) trim(&versions, truth_.horizon);
    check();
    if (!all) return;
    Truth found;
    read_all(&found);
    EXPECT_EQ(found.pages, trimmed(truth_).pages);
  }

  void drop_or_reclaim() {
    const uint32_t space = kFirstSpace + static_cast<uint32_t>(rng_.below(kSpaces));
    if (rng_.one_in(8) && truth_.dropped.try_emplace(space, newest_ + 1).second) {
      VersionDb::Batch batch = db_->new_batch();
      batch.put_dropped(map_->note_dropped(SpaceId{space}, Llsn{++newest_}));
      ASSERT_TRUE(db_->write(&batch).ok());
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
    scan_again();
    Truth found;
    read_all(&found);
    for (auto it = since_flush_.rbegin(); it != since_flush_.rend(); ++it) {
      with_later_log(&*it);
      if (trimmed(*it) != trimmed(found)) continue;
      truth_ = *it;
      since_flush_ = {truth_};
      return;
    }
    FAIL() << "the map is as it never was, of " << since_flush_.size() << " states";
  }

  void with_later_log(Truth* truth) {
    for (; truth->log_end < log_.size(); ++truth->log_end) {
      const auto& [page, version] = log_[truth->log_end];
      if (truth->reclaimed.count(page.space) == 0)
        truth->pages[page][version.llsn.value] = version.flags;
    }
  }

  void read_all(Truth* found) {
    for (uint32_t space = kFirstSpace; space < kFirstSpace + kSpaces; ++space) {
      for (uint32_t number = 0; number < kPagesPerSpace; ++number) {
        const PageId page{space, number};
        ASSERT_TRUE(map_->inspect(page,
                                  [&](VersionList list) {
                                    for (const Version& version : list)
                                      found->pages[page][version.llsn.value] =
                                          version.flags & static_cast<uint8_t>(~kUnwritten);
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
    found->log_end = log_.size();
  }

  void check() {
    Truth found;
    read_all(&found);
    EXPECT_EQ(trimmed(found).pages, trimmed(truth_).pages);
    EXPECT_EQ(found.dropped, truth_.dropped);
    EXPECT_EQ(found.reclaimed, truth_.reclaimed);
    EXPECT_EQ(found.horizon, truth_.horizon);
    alignas(8) char bytes[kPageBytes];
    for (const auto& [page, versions] : found.pages) {
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
  const uint64_t memory_;
  std::unique_ptr<VersionDb> db_;
  std::unique_ptr<VersionMap> map_;
  std::unique_ptr<Collector> collector_;
  std::vector<Section> log_;
  uint64_t marked_to_ = 0;
  uint64_t newest_ = 0;  // llsn
  Truth truth_;
  std::vector<Truth> since_flush_;
};

TEST(VersionMapModel, IsWhatAPlainMapIs) {
  const uint64_t first = number_from("STRATA_SEED", 1);
  const uint64_t rounds = number_from("STRATA_ROUNDS", strata::testing::fewer_if_sanitized(20, 8));
  for (uint64_t seed = first; seed < first + rounds; ++seed) {
    SCOPED_TRACE(::testing::Message() << "STRATA_SEED=" << seed);
    MapRun run(seed);
    run.run(300);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace strata::storenode
