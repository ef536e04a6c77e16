// What RocksDB keeps for a page store: marks, damage, what a power loss leaves, a lost map.
#include "storenode/versions/version_db.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/rng.h"
#include "base/testing/wait_until.h"
#include "storenode/versions/device_errors.h"
#include "storenode/versions/internal/keys.h"
#include "storenode/versions/testing/raw_store.h"
#include "storenode/versions/testing/refusing_file_system.h"
#include "storenode/versions/testing/test_pages.h"

namespace strata::storenode {
namespace {

using testing::damage_map;
using testing::lose_pages;
using testing::PutRaw;
using testing::same_page;
using testing::test_page;
using testing::write_raw;

constexpr PageId kPage{300, 7};

Version version_at(uint64_t llsn, uint8_t flags = kMaterialized) {
  Version version;
  version.llsn = Llsn{llsn};
  version.prev_llsn = Llsn{llsn - 1};
  version.lsn = Lsn{llsn * 8};
  version.stream = StreamId{3};
  version.section_offset = 40;
  version.section_bytes = 77;
  version.section_crc32c = 0x1234;
  version.flags = flags;
  return version;
}

class VersionDbTest : public ::testing::Test {
 protected:
  VersionDbTest() : disk_(make_sim_file_system()) { open(); }
  VersionDbOptions options() {
    VersionDbOptions made;
    made.directory = "/versions";
    made.files = disk_.get();
    made.cluster_id = 99;
    return made;
  }
  void open() {
    auto opened = VersionDb::open(options());
    ASSERT_TRUE(opened.ok()) << opened.status();
    db_ = *std::move(opened);
  }
  void put(PageId page, uint64_t llsn) {
    VersionDb::Batch batch = db_->new_batch();
    batch.put_version(page, version_at(llsn));
    batch.put_page(page, Llsn{llsn}, test_page(page, Llsn{llsn})->bytes);
    ASSERT_TRUE(db_->write(&batch).ok());
  }
  void crash(uint64_t seed) {
    // What the old life still does while it is closed must not reach the disk of the new one.
    std::unique_ptr<SimFileSystem> next = disk_->fork();
    next->crash(seed);
    db_.reset();
    disk_ = std::move(next);
  }

  std::unique_ptr<SimFileSystem> disk_;
  std::unique_ptr<VersionDb> db_;
};

TEST_F(VersionDbTest, KeepsVersionsPagesAndMarksOverARestart) {
  put(kPage, 10);
  put(kPage, 20);
  put(PageId{300, 8}, 15);
  put(PageId{302, 1}, 16);
  VersionDb::Batch batch = db_->new_batch();
  const StreamMark mark{Lsn{800}, Llsn{20}};
  batch.put_mark(Mark::kScanned, StreamId{3}, mark);
  batch.put_dropped({SpaceId{400}, Llsn{12}, false});
  batch.put_horizon(Llsn{11});
  batch.put_broken({kPage, Llsn{20}, StreamId{3}, Lsn{160}});
  ASSERT_TRUE(db_->write(&batch).ok());
  ASSERT_TRUE(db_->flush().ok());
  db_.reset();
  open();

  std::vector<Version> versions;
  ASSERT_TRUE(db_->read_versions(kPage, &versions).ok());
  ASSERT_EQ(versions.size(), 2u);
  EXPECT_EQ(versions[1].llsn, Llsn{20});
  EXPECT_EQ(versions[1].prev_llsn, Llsn{19});
  EXPECT_EQ(versions[1].lsn, Lsn{160});
  EXPECT_EQ(versions[1].stream, StreamId{3});
  EXPECT_EQ(versions[1].section_offset, 40u);
  EXPECT_EQ(versions[1].section_bytes, 77u);
  EXPECT_EQ(versions[1].section_crc32c, 0x1234u);
  EXPECT_TRUE(versions[1].is(kMaterialized));
  alignas(8) char page[kPageBytes];
  ASSERT_TRUE(db_->read_page(kPage, Llsn{20}, page).ok());
  EXPECT_TRUE(same_page(page, test_page(kPage, Llsn{20})->bytes));
  EXPECT_TRUE(is_not_found(db_->read_page(kPage, Llsn{19}, page)));
  EXPECT_EQ(**db_->read_mark(Mark::kScanned, StreamId{3}), mark);
  EXPECT_FALSE(db_->read_mark(Mark::kReplayed, StreamId{3})->has_value());
  EXPECT_FALSE(db_->read_mark(Mark::kScanned, StreamId{4})->has_value());
  EXPECT_EQ(*db_->list_spaces(), (std::vector<SpaceId>{SpaceId{300}, SpaceId{302}}));
  ASSERT_EQ(db_->read_dropped()->size(), 1u);
  EXPECT_EQ(db_->read_dropped()->front().space, SpaceId{400});
  EXPECT_EQ(*db_->read_horizon(), Llsn{11});
  ASSERT_EQ(db_->read_broken()->size(), 1u);
  EXPECT_EQ(db_->read_broken()->front().page_id, kPage);
}

TEST_F(VersionDbTest, ScanVisitsEveryPageOnceInOrder) {
  for (uint32_t number = 0; number < 25; ++number)
    for (uint64_t llsn = 1; llsn <= number % 3 + 1; ++llsn) put(PageId{300, number}, llsn);
  std::vector<uint32_t> seen;
  std::optional<PageId> next = PageId{};
  while (next.has_value()) {
    auto step = db_->scan(*next, 4, [&](PageId page, const std::vector<Version>& versions) {
      EXPECT_EQ(versions.size(), page.number % 3 + 1);
      seen.push_back(page.number);
      return ok_status();
    });
    ASSERT_TRUE(step.ok()) << step.status();
    next = *step;
  }
  ASSERT_EQ(seen.size(), 25u);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
}

TEST_F(VersionDbTest, AnotherClusterOrLayoutIsRefused) {
  db_.reset();
  VersionDbOptions other = options();
  other.cluster_id = 98;
  EXPECT_TRUE(is_wrong_database(VersionDb::open(other).status()));
  other = options();
  other.layout = StoreLayout::kInPlace;
  EXPECT_TRUE(is_wrong_database(VersionDb::open(other).status()));
}

// VD1, VD2: the mark says how many pages were written before it.
TEST_F(VersionDbTest, PowerLossLeavesAPrefixOfTheBatches) {
  Rng rng(7);
  uint64_t durable = 0;
  for (uint64_t round = 0; round < 12; ++round) {
    SCOPED_TRACE(::testing::Message() << "round " << round);
    auto found = db_->read_mark(Mark::kReplayed, StreamId{1});
    ASSERT_TRUE(found.ok());
    const uint64_t begin = found->has_value() ? (*found)->lsn.value : 0;
    EXPECT_GE(begin, durable);
    alignas(8) char page[kPageBytes];
    for (uint64_t n = 1; n <= begin; ++n)
      ASSERT_TRUE(db_->read_page(PageId{300, static_cast<uint32_t>(n)}, Llsn{n}, page).ok()) << n;
    uint64_t n = begin;
    for (const uint64_t end = begin + 1 + rng.below(40); n < end;) {
      put(PageId{300, static_cast<uint32_t>(++n)}, n);
      VersionDb::Batch batch = db_->new_batch();
      batch.put_mark(Mark::kReplayed, StreamId{1}, {Lsn{n}, Llsn{n}});
      ASSERT_TRUE(db_->write(&batch).ok());
      if (!rng.one_in(10)) continue;
      ASSERT_TRUE(db_->flush().ok());
      durable = n;
    }
    crash(round);
    open();
  }
  EXPECT_GT(durable, 0u);
}

TEST_F(VersionDbTest, ALostMapIsRebuiltFromTheStoredPages) {  // VD5
  put(kPage, 10);
  put(kPage, 20);
  put(PageId{301, 1}, 30);
  VersionDb::Batch batch = db_->new_batch();
  batch.put_horizon(Llsn{12});
  ASSERT_TRUE(db_->write(&batch).ok());
  ASSERT_TRUE(db_->lose_map().ok());
  db_.reset();
  open();
  EXPECT_TRUE(db_->map_was_rebuilt());
  std::vector<Version> versions;
  ASSERT_TRUE(db_->read_versions(kPage, &versions).ok());
  ASSERT_EQ(versions.size(), 2u);
  EXPECT_TRUE(versions[0].is(kMaterialized));
  EXPECT_TRUE(versions[0].is(kOldestKept));  // older ones may have been collected
  EXPECT_FALSE(versions[1].is(kOldestKept));
  ASSERT_TRUE(db_->read_versions(PageId{301, 1}, &versions).ok());
  ASSERT_EQ(versions.size(), 1u);
  EXPECT_FALSE(versions[0].is(kOldestKept));  // above the horizon nothing is collected
  ASSERT_TRUE(db_->flush().ok());
  db_.reset();
  open();
  EXPECT_FALSE(db_->map_was_rebuilt());
}

// RocksDB's own checksum.
TEST_F(VersionDbTest, FlippedBitsInStoredPagesAreReported) {  // VD4
  put(kPage, 10);
  ASSERT_TRUE(db_->flush().ok());
  db_.reset();
  auto names = disk_->list("/versions");
  ASSERT_TRUE(names.ok());
  uint32_t blobs = 0;
  for (const std::string& name : *names) {
    if (!name.ends_with(".blob")) continue;
    disk_->flip_bit("/versions/" + name, uint64_t{5000} * 8);
    ++blobs;
  }
  ASSERT_EQ(blobs, 1u);
  open();
  alignas(8) char page[kPageBytes];
  const Status status = db_->read_page(kPage, Llsn{10}, page);
  EXPECT_TRUE(is_corruption(status)) << status;
  EXPECT_NE(status.message().find("page 300:7 at llsn 10"), std::string::npos) << status;
}

// Writes until compaction has met what was damaged: from then on nothing is taken.
void write_until_refused(VersionDb* db) {
  uint64_t llsn = 10;
  EXPECT_TRUE(strata::testing::wait_until([&] {
    ++llsn;
    VersionDb::Batch batch = db->new_batch();
    batch.put_page(kPage, Llsn{llsn}, test_page(kPage, Llsn{llsn})->bytes);
    const bool refused = is_corruption(db->write(&batch)) || is_corruption(db->flush());
    EXPECT_EQ(db->is_damaged(), refused);
    return refused;
  }));
}

TEST_F(VersionDbTest, DamageThatCompactionMeetsStopsWritesAndIsSaid) {  // VD6
  for (uint32_t i = 1; i <= 8; ++i) put(PageId{300, i}, i);
  ASSERT_TRUE(db_->flush().ok());
  db_.reset();
  for (const std::string& path : testing::files_of(disk_.get(), "/versions", ".blob"))
    disk_->flip_bit(path, uint64_t{5000} * 8);
  open();
  EXPECT_FALSE(db_->is_damaged());
  write_until_refused(db_.get());
}

TEST_F(VersionDbTest, AFileOfPagesThatCompactionMissesStopsWritesAndIsSaid) {  // VD6
  for (uint32_t i = 1; i <= 8; ++i) put(PageId{300, i}, i);
  ASSERT_TRUE(db_->flush().ok());
  db_.reset();
  lose_pages(disk_.get(), "/versions");
  open();
  EXPECT_FALSE(db_->is_damaged());
  write_until_refused(db_.get());
}

TEST_F(VersionDbTest, PagesOfAFileThatIsGoneAreDamagedAndCanBeWrittenAgain) {  // VD4
  put(kPage, 10);
  put(kPage, 20);
  ASSERT_TRUE(db_->flush().ok());
  db_.reset();
  lose_pages(disk_.get(), "/versions");
  open();
  alignas(8) char page[kPageBytes];
  const Status status = db_->read_page(kPage, Llsn{20}, page);
  EXPECT_TRUE(is_corruption(status)) << status;
  EXPECT_NE(status.message().find("page 300:7 at llsn 20"), std::string::npos) << status;
  EXPECT_FALSE(db_->is_damaged());  // VD6: it is a page's
  put(kPage, 20);
  EXPECT_TRUE(db_->read_page(kPage, Llsn{20}, page).ok());
  ASSERT_TRUE(db_->flush().ok());
  EXPECT_TRUE(db_->read_page(kPage, Llsn{20}, page).ok());
}

// --- a disk that refuses (VD7) ---

class RefusingDiskTest : public VersionDbTest {
 protected:
  void reopen(uint64_t device_errors_us = 0) {
    db_.reset();
    VersionDbOptions made = options();
    made.files = &refusing_;
    made.device_errors_us = device_errors_us;
    auto opened = VersionDb::open(made);
    opened_ = opened.status();
    if (opened.ok()) db_ = *std::move(opened);
  }
  void TearDown() override { db_.reset(); }
  Status read_map() {
    std::vector<Version> versions;
    return db_->read_versions(kPage, &versions);
  }
  testing::RefusingFileSystem refusing_{disk_.get()};
  Status opened_;
};

TEST_F(RefusingDiskTest, APageThatCannotBeReadIsDamagedAndCanBeWrittenAgain) {
  put(kPage, 10);
  ASSERT_TRUE(db_->flush().ok());
  reopen();
  refusing_.reads_of = ".blob";
  alignas(8) char page[kPageBytes];
  const Status status = db_->read_page(kPage, Llsn{10}, page);
  EXPECT_TRUE(is_corruption(status)) << status;
  EXPECT_NE(status.message().find("page 300:7 at llsn 10"), std::string::npos) << status;
  EXPECT_GE(refusing_.reads, 3u) << "it was tried again";
  EXPECT_FALSE(db_->is_damaged());
  put(kPage, 10);
  EXPECT_TRUE(db_->read_page(kPage, Llsn{10}, page).ok());
}

TEST_F(RefusingDiskTest, APageThatCanBeReadAtTheNextTryIsNotDamaged) {
  put(kPage, 10);
  ASSERT_TRUE(db_->flush().ok());
  reopen();
  refusing_.reads_max = 2;
  refusing_.reads_of = ".blob";
  alignas(8) char page[kPageBytes];
  EXPECT_TRUE(db_->read_page(kPage, Llsn{10}, page).ok());
  EXPECT_EQ(refusing_.reads, 2u);
}

// Not at once, not for other errors, and not if it goes well in between.
TEST_F(RefusingDiskTest, AMapThatGoesOnRefusingToBeReadCountsAsDamaged) {
  put(kPage, 10);
  ASSERT_TRUE(db_->flush().ok());
  reopen();
  const auto refuse = [&](const std::string& error, uint32_t times) {
    refusing_.error = error;
    refusing_.reads_of = ".sst";
    for (uint32_t i = 0; i < times; ++i) {
      const Status status = read_map();
      EXPECT_TRUE(is_io_error(status)) << status;
    }
    refusing_.reads_of = "";
  };
  refuse("Too many open files", 20);
  EXPECT_FALSE(db_->is_damaged());
  refuse("Input/output error", DeviceErrors::kTriesMin - 1);
  EXPECT_FALSE(db_->is_damaged());
  EXPECT_TRUE(read_map().ok());
  reopen();  // nothing is cached
  refuse("Input/output error", DeviceErrors::kTriesMin - 1);
  EXPECT_FALSE(db_->is_damaged());
  refuse("Input/output error", 1);
  EXPECT_TRUE(db_->is_damaged());
}

TEST_F(RefusingDiskTest, ADiskThatGoesOnRefusingToBeWrittenCountsAsDamaged) {
  reopen();
  refusing_.writes_of = ".blob";
  put(kPage, 10);
  for (uint32_t i = 0; i < DeviceErrors::kTriesMin; ++i) {
    EXPECT_FALSE(db_->is_damaged());
    EXPECT_TRUE(is_io_error(db_->flush()));
    (void)db_->try_resume();  // as whoever tries again does; here it cannot help
  }
  EXPECT_TRUE(db_->is_damaged());
  EXPECT_GT(refusing_.writes, 0u);
}

TEST_F(RefusingDiskTest, AFolderThatCannotBeReadIsDamagedButNotAtTheFirstTry) {
  put(kPage, 10);
  ASSERT_TRUE(db_->flush().ok());
  refusing_.reads_of = "CURRENT";
  refusing_.reads_max = 2;
  reopen();
  EXPECT_TRUE(opened_.ok()) << opened_;
  EXPECT_EQ(refusing_.reads, 2u);
  refusing_.reads_max = UINT64_MAX;
  reopen();
  EXPECT_TRUE(is_corruption(opened_)) << opened_;
  EXPECT_NE(opened_.message().find("copies it from another storage node"), std::string::npos);
  refusing_.error = "Too many open files";
  reopen();
  EXPECT_TRUE(is_io_error(opened_)) << opened_;
}

TEST(DeviceErrors, LastOnlyAfterTheirTime) {  // DE1
  DeviceErrors errors(1000);
  for (uint64_t now = 0; now < 1000; now += 10) EXPECT_FALSE(errors.failed(7, now));
  errors.succeeded(8);
  EXPECT_TRUE(errors.failed(7, 1000));
  EXPECT_FALSE(errors.failed(8, 1000)) << "another place";
  errors.succeeded(7);
  EXPECT_FALSE(errors.failed(7, 5000)) << "it began anew";
  EXPECT_FALSE(errors.failed(7, 9000)) << "too few tries";
  EXPECT_FALSE(errors.failed(7, 9001));
  EXPECT_TRUE(errors.failed(7, 9002));
}

// Each way to read the map meets it, and says it each time.
TEST_F(VersionDbTest, DamageOfTheMapIsSaidByWhoeverReadsIt) {  // VD6
  constexpr uint32_t kPages = 600;
  for (uint32_t number = 0; number < kPages; ++number) {
    VersionDb::Batch batch = db_->new_batch();
    batch.put_version(PageId{300 + number, number}, version_at(number + 1, 0));
    ASSERT_TRUE(db_->write(&batch).ok());
  }
  ASSERT_TRUE(db_->flush().ok());
  db_.reset();
  ASSERT_GT(damage_map(disk_.get(), "/versions"), 1u);
  const auto visit_all = [](PageId, const std::vector<Version>&) { return ok_status(); };
  const std::vector<std::function<Status()>> reads{
      [&] {
        std::vector<Version> versions;
        Status worst;
        for (uint32_t number = 0; number < kPages; ++number) {
          const Status status = db_->read_versions(PageId{300 + number, number}, &versions);
          if (!status.ok()) {
            worst = status;
          } else {
            EXPECT_EQ(versions.size(), 1u);
          }
        }
        return worst;
      },
      [&] { return db_->scan(PageId{}, kPages, visit_all).status(); },
      [&] { return db_->list_pages(PageId{}, kPages).status(); },
      [&] { return db_->list_spaces().status(); },
  };
  for (size_t i = 0; i < reads.size(); ++i) {
    SCOPED_TRACE(::testing::Message() << "read " << i);
    open();
    EXPECT_FALSE(db_->is_damaged());
    for (int tried = 0; tried < 2; ++tried) {
      const Status status = reads[i]();
      EXPECT_TRUE(is_corruption(status)) << status;
      EXPECT_TRUE(db_->is_damaged());
    }
    db_.reset();
  }
}

// What RocksDB takes for whole.
TEST_F(VersionDbTest, EntriesOfMapAndMarksThatDoNotDecodeAreSaid) {  // VD6
  using internal::version_key;
  const auto visit_all = [](PageId, const std::vector<Version>&) { return ok_status(); };
  std::vector<Version> versions;
  struct Case {
    const char* family;
    std::string key;
    std::function<Status()> read;
  };
  const std::vector<Case> cases{
      {"default", internal::mark_key(Mark::kScanned, StreamId{3}),
       [&] { return db_->read_mark(Mark::kScanned, StreamId{3}).status(); }},
      {"default", internal::dropped_key(SpaceId{4}), [&] { return db_->read_dropped().status(); }},
      {"default", internal::broken_key(kPage), [&] { return db_->read_broken().status(); }},
      {"default", internal::horizon_key(), [&] { return db_->read_horizon().status(); }},
      {"map", version_key(kPage, Llsn{10}), [&] { return db_->read_versions(kPage, &versions); }},
      {"map", version_key(kPage, Llsn{10}),
       [&] { return db_->scan(PageId{}, 10, visit_all).status(); }},
      {"map", "too short", [&] { return db_->list_pages(PageId{}, 10).status(); }},
      {"map", "too short", [&] { return db_->list_spaces().status(); }},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(::testing::Message() << one.family << ": " << one.key);
    db_.reset();
    disk_ = make_sim_file_system();
    open();
    put(PageId{299, 1}, 10);
    ASSERT_TRUE(db_->flush().ok());
    db_.reset();
    ASSERT_NO_FATAL_FAILURE(write_raw(disk_.get(), "/versions", [&one](const PutRaw& write) {
      write(one.family, one.key, "not a value of ours");
    }));
    open();
    EXPECT_FALSE(db_->is_damaged());
    const Status status = one.read();
    EXPECT_TRUE(is_corruption(status)) << status;
    EXPECT_TRUE(db_->is_damaged());
  }
}

// Ours: whatever RocksDB thinks of them.
TEST_F(VersionDbTest, WrongPagesAreReported) {  // VD4
  put(kPage, 10);
  put(kPage, 20);
  put(kPage, 30);
  ASSERT_TRUE(db_->flush().ok());
  db_.reset();
  std::string damaged(test_page(kPage, Llsn{10})->bytes, kPageBytes);
  damaged[9000] ^= 1;
  const PageRef other = test_page(PageId{300, 8}, Llsn{20});
  const PageRef older = test_page(kPage, Llsn{29});
  ASSERT_NO_FATAL_FAILURE(write_raw(disk_.get(), "/versions", [&](const PutRaw& write) {
    const auto key = [](uint64_t llsn) { return internal::version_key(kPage, Llsn{llsn}); };
    write("pages", key(10), damaged);
    write("pages", key(20), {other->bytes, kPageBytes});
    write("pages", key(30), {older->bytes, kPageBytes});
  }));
  open();
  alignas(8) char page[kPageBytes];
  for (const uint64_t llsn : {10, 20, 30}) {
    const Status status = db_->read_page(kPage, Llsn{llsn}, page);
    EXPECT_TRUE(is_corruption(status)) << status;
    EXPECT_NE(status.message().find("page 300:7 at llsn " + std::to_string(llsn)),
              std::string::npos)
        << status;
  }
}

TEST_F(VersionDbTest, AFolderThatLostAFileIsReportedAtTheStart) {
  put(kPage, 10);
  ASSERT_TRUE(db_->flush().ok());
  db_.reset();
  const auto names = disk_->list("/versions");
  for (const std::string& name : *names) {
    if (!name.ends_with(".sst")) continue;
    ASSERT_TRUE(disk_->remove("/versions/" + name).ok());
  }
  const Status status = VersionDb::open(options()).status();
  EXPECT_TRUE(is_corruption(status)) << status;
  EXPECT_NE(status.message().find("/versions"), std::string::npos);
}

TEST_F(VersionDbTest, AFullDiskIsSaidAndGotOver) {
  disk_->set_capacity(64u << 10);
  for (uint32_t i = 1; i <= 20; ++i) put(PageId{300, i}, i);
  EXPECT_FALSE(db_->flush().ok());
  disk_->set_capacity(1u << 30);
  ASSERT_TRUE(db_->try_resume().ok());
  ASSERT_TRUE(db_->flush().ok());
  crash(1);
  open();
  alignas(8) char page[kPageBytes];
  for (uint32_t i = 1; i <= 20; ++i)
    EXPECT_TRUE(db_->read_page(PageId{300, i}, Llsn{i}, page).ok()) << i;
}

}  // namespace
}  // namespace strata::storenode
