// What RocksDB keeps for a page store: marks, damage, what a power loss leaves, a lost map.
#include "storenode/versions/version_db.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "base/testing/wait_until.h"
#include "rocksdb/db.h"
#include "storenode/versions/internal/keys.h"
#include "storenode/versions/rocks_file_system.h"
#include "storenode/versions/testing/test_pages.h"

namespace strata::storenode {
namespace {

using testing::same_page;
using testing::test_page;

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

class SilentLogger final : public rocksdb::Logger {
 public:
  using Logger::Logv;
  void Logv(const char*, va_list) override {}
};

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
  EXPECT_TRUE(is_fenced(VersionDb::open(other).status()));
  other = options();
  other.layout = StoreLayout::kInPlace;
  EXPECT_TRUE(is_fenced(VersionDb::open(other).status()));
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

TEST_F(VersionDbTest, DamageThatCompactionMeetsStopsWritesAndIsSaid) {
  for (uint32_t i = 1; i <= 8; ++i) put(PageId{300, i}, i);
  ASSERT_TRUE(db_->flush().ok());
  db_.reset();
  const auto names = disk_->list("/versions");
  ASSERT_TRUE(names.ok());
  for (const std::string& name : *names)
    if (name.ends_with(".blob")) disk_->flip_bit("/versions/" + name, uint64_t{5000} * 8);
  open();
  EXPECT_FALSE(db_->stopped_by_damage());
  uint64_t llsn = 10;
  EXPECT_TRUE(strata::testing::wait_until([&] {
    ++llsn;
    VersionDb::Batch batch = db_->new_batch();
    batch.put_page(kPage, Llsn{llsn}, test_page(kPage, Llsn{llsn})->bytes);
    const bool refused = is_corruption(db_->write(&batch)) || is_corruption(db_->flush());
    EXPECT_EQ(db_->stopped_by_damage(), refused);
    return refused;
  }));
}

// Ours: whatever RocksDB thinks of them.
TEST_F(VersionDbTest, WrongPagesAreReported) {  // VD4
  put(kPage, 10);
  put(kPage, 20);
  put(kPage, 30);
  ASSERT_TRUE(db_->flush().ok());
  db_.reset();
  {
    const auto env = make_rocks_env(disk_.get());
    rocksdb::DBOptions plain;
    plain.env = env.get();
    plain.info_log = std::make_shared<SilentLogger>();
    std::vector<rocksdb::ColumnFamilyDescriptor> families;
    for (const char* name : {"default", "map", "pages"})
      families.emplace_back(name, rocksdb::ColumnFamilyOptions());
    std::vector<rocksdb::ColumnFamilyHandle*> handles;
    rocksdb::DB* raw = nullptr;
    ASSERT_TRUE(rocksdb::DB::Open(plain, "/versions", families, &handles, &raw).ok());
    const std::unique_ptr<rocksdb::DB> db(raw);
    std::string damaged(test_page(kPage, Llsn{10})->bytes, kPageBytes);
    damaged[9000] ^= 1;
    const PageRef other = test_page(PageId{300, 8}, Llsn{20});
    const PageRef older = test_page(kPage, Llsn{29});
    const auto bytes = [](const PageRef& page) { return rocksdb::Slice(page->bytes, kPageBytes); };
    const auto key = [](uint64_t llsn) { return internal::version_key(kPage, Llsn{llsn}); };
    ASSERT_TRUE(db->Put({}, handles[2], key(10), damaged).ok());
    ASSERT_TRUE(db->Put({}, handles[2], key(20), bytes(other)).ok());
    ASSERT_TRUE(db->Put({}, handles[2], key(30), bytes(older)).ok());
    ASSERT_TRUE(db->Flush({}, handles).ok());
    for (rocksdb::ColumnFamilyHandle* handle : handles)
      ASSERT_TRUE(db->DestroyColumnFamilyHandle(handle).ok());
  }
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
