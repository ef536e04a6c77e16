// The promises of page_source.h as local files keep them: on a simulated disk, and on a real one
// with direct I/O.
#include "pagefile/local_page_source.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <array>
#include <functional>
#include <string>

#include "base/aligned.h"
#include "base/diag.h"
#include "base/fault.h"
#include "io/device_error.h"
#include "pagefile/double_write.h"
#include "pagefile/testing/test_pages.h"

namespace strata {
namespace {

using testing::check_page;
using testing::fill_page;
using testing::PageVersion;

constexpr SpaceId kSpace{300};

class LocalPageSourceTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam()) {
      auto sim = make_sim_file_system();
      sim_ = sim.get();
      fs_ = std::move(sim);
      directory_ = "/data";
    } else {
      char name[] = "/tmp/strata_pages_XXXXXX";
      ASSERT_NE(mkdtemp(name), nullptr);
      directory_ = name;
      fs_ = make_posix_file_system();
    }
    open();
  }
  void TearDown() override {
    disarm_faults();
    source_.reset();
    if (GetParam()) return;
    auto names = fs_->list(directory_);
    for (const std::string& name : *names) (void)fs_->remove(directory_ + "/" + name);
    ::rmdir(directory_.c_str());
  }
  void open() {
    auto source = open_local_page_source(fs_.get(), {.directory = directory_, .direct_io = true});
    ASSERT_TRUE(source.ok()) << source.status();
    source_ = std::move(*source);
  }
  Status write(PageId id, uint64_t version) {
    fill_page(bytes_, id, version, PageVersion{version, 0});
    seal_page(bytes_);
    return source_->write(id, bytes_);
  }
  void expect(PageId id, uint64_t version) {
    const Status status = source_->read(id, Llsn{}, bytes_);
    ASSERT_TRUE(status.ok()) << status;
    PageVersion v;
    EXPECT_EQ(check_page(bytes_, id, &v), "");
    EXPECT_EQ(v.version, version);
  }
  static PageId page(uint32_t number) { return PageId{kSpace.value, number}; }

  std::unique_ptr<FileSystem> fs_;
  SimFileSystem* sim_ = nullptr;
  std::string directory_;
  std::unique_ptr<PageSource> source_;
  alignas(4096) char bytes_[kPageBytes];
};
INSTANTIATE_TEST_SUITE_P(SimAndPosix, LocalPageSourceTest, ::testing::Bool());

// What a real disk cannot be told to do.
class SimulatedPageSourceTest : public LocalPageSourceTest {};
INSTANTIATE_TEST_SUITE_P(Sim, SimulatedPageSourceTest, ::testing::Values(true));

TEST_P(LocalPageSourceTest, ABatchReadsEachPageAsItIs) {
  ASSERT_TRUE(source_->create_space(kSpace).ok());
  for (const uint32_t number : {1u, 2u, 3u, 5u, 6u}) ASSERT_TRUE(write(page(number), number).ok());
  {  // 2 is damaged; 6, the last one, is cut
    auto file = fs_->open(directory_ + "/space-0000012c.pages", {});
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_TRUE((*file)->write_at(2 * kPageBytes + 5000, "x", 1).ok());
    ASSERT_TRUE((*file)->truncate(6 * kPageBytes + 4096).ok());
  }
  const std::array<PageId, 9> ids{page(1), page(2), page(3),        page(4), page(5),
                                  page(6), page(7), PageId{301, 0}, page(1)};
  const AlignedBytes pages(ids.size() * kPageBytes, 4096);
  std::array<Status, ids.size()> results;
  source_->read_batch(ids.data(), ids.size(), pages.get(), results.data());
  for (const size_t i : {0, 2, 4, 8}) {
    ASSERT_TRUE(results[i].ok()) << i << results[i];
    PageVersion version;
    EXPECT_EQ(check_page(pages.get() + i * kPageBytes, ids[i], &version), "");
    EXPECT_EQ(version.version, ids[i].number);
  }
  for (const size_t i : {3, 6, 7}) EXPECT_TRUE(is_not_found(results[i])) << i << results[i];
  for (const size_t i : {1, 5}) {
    EXPECT_TRUE(is_corruption(results[i])) << i << results[i];
    const std::string name = "page " + std::to_string(ids[i].number);
    EXPECT_NE(results[i].message().find(name), std::string::npos) << results[i];
  }
}

TEST_P(LocalPageSourceTest, WritesReadsAndFindsNothingWhereNothingWasWritten) {
  EXPECT_TRUE(is_not_found(source_->read(page(0), Llsn{}, bytes_)));  // no file
  ASSERT_TRUE(source_->create_space(kSpace).ok());
  ASSERT_TRUE(source_->create_space(kSpace).ok());
  EXPECT_TRUE(is_not_found(source_->read(page(3), Llsn{}, bytes_)));  // beyond the end
  ASSERT_TRUE(write(page(7), 5).ok());
  expect(page(7), 5);
  EXPECT_TRUE(is_not_found(source_->read(page(3), Llsn{}, bytes_)));  // a hole
  EXPECT_TRUE(source_->read(page(7), Llsn{5}, bytes_).ok());
  EXPECT_TRUE(is_corruption(source_->read(page(7), Llsn{6}, bytes_)));  // older than asked for
  alignas(4096) char unaligned[kPageBytes + 64];  // for direct I/O; headers need 8
  EXPECT_TRUE(source_->read(page(7), Llsn{}, unaligned + 64).ok());
  EXPECT_EQ(check_page(unaligned + 64, page(7)), "");
  EXPECT_TRUE(source_->sync().ok());
}

TEST_P(LocalPageSourceTest, RunsOfNeighboursLandWhereTheyBelong) {
  ASSERT_TRUE(source_->create_space(kSpace).ok());
  char* run = static_cast<char*>(std::aligned_alloc(4096, 8 * kPageBytes));
  for (uint32_t i = 0; i < 8; ++i) {
    fill_page(run + i * kPageBytes, page(10 + i), 1, PageVersion{i, 0});
    seal_page(run + i * kPageBytes);
  }
  PageId ids[8];
  for (uint32_t i = 0; i < 8; ++i) ids[i] = page(10 + i);
  bool ok[8];
  EXPECT_TRUE(source_->write_batch(ids, 8, run, ok).ok());
  EXPECT_EQ(std::count(ok, ok + 8, true), 8);
  std::free(run);
  for (uint32_t i = 0; i < 8; ++i) expect(page(10 + i), i);
}

// Pages anywhere in several files, one of which is gone: the others land.
TEST_P(LocalPageSourceTest, ABatchLandsInEveryFileThatIsThere) {
  constexpr uint32_t kSpaces = 12;
  constexpr uint32_t kLost = 305;
  for (uint32_t i = 0; i < kSpaces; ++i)
    if (300 + i != kLost) {
      ASSERT_TRUE(source_->create_space(SpaceId{300 + i}).ok());
    }
  const AlignedBytes pages(kWriteBatchPages * kPageBytes, 4096);
  std::vector<PageId> ids;
  for (uint32_t space = 300; space < 300 + kSpaces; ++space)
    for (const uint32_t number : {3u, 4u, 70u + space, 900u}) ids.push_back({space, number});
  for (uint64_t version = 1; version <= 3; ++version) {
    for (size_t i = 0; i < ids.size(); ++i) {
      fill_page(pages.get() + i * kPageBytes, ids[i], version, PageVersion{version + i, 0});
      seal_page(pages.get() + i * kPageBytes);
    }
    bool ok[kWriteBatchPages];
    EXPECT_TRUE(is_not_found(
        source_->write_batch(ids.data(), static_cast<uint32_t>(ids.size()), pages.get(), ok)));
    for (size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(ok[i], ids[i].space != kLost);
      if (ok[i]) expect(ids[i], version + i);
    }
    ASSERT_TRUE(source_->sync().ok());
  }
}

TEST_P(LocalPageSourceTest, DamageNamesFileAndPage) {
  ASSERT_TRUE(source_->create_space(kSpace).ok());
  ASSERT_TRUE(write(page(2), 1).ok());
  {
    const auto file = fs_->open(directory_ + "/space-0000012c.pages", {});
    ASSERT_TRUE((*file)->write_at(2 * uint64_t{kPageBytes} + 9000, "damage", 6).ok());
  }
  const Status status = source_->read(page(2), Llsn{}, bytes_);
  EXPECT_TRUE(is_corruption(status));
  EXPECT_NE(status.message().find(directory_ + "/space-0000012c.pages: page 2"), std::string::npos)
      << status;
  ASSERT_TRUE(write(page(2), 3).ok());
  expect(page(2), 3);
}

TEST_P(LocalPageSourceTest, PageOfAnotherPlaceIsDamage) {
  ASSERT_TRUE(source_->create_space(kSpace).ok());
  fill_page(bytes_, page(1), 1, PageVersion{1, 0});
  seal_page(bytes_);
  ASSERT_TRUE(source_->write(page(2), bytes_).ok());
  EXPECT_TRUE(is_corruption(source_->read(page(2), Llsn{}, bytes_)));
}

TEST_P(LocalPageSourceTest, GrowsAheadAndListsAndDeletes) {
  for (const uint32_t id : {0u, 300u, 0xfffffff0u})
    ASSERT_TRUE(source_->create_space(SpaceId{id}).ok());
  EXPECT_TRUE(source_->grow_space(kSpace, 1).ok());
  EXPECT_TRUE(source_->grow_space(kSpace, 1000).ok());
  EXPECT_TRUE(source_->grow_space(kSpace, 10).ok());
  ASSERT_TRUE(write(page(999), 1).ok());
  static int warnings;
  warnings = 0;
  set_diag_sink([](Severity, std::string_view) { ++warnings; });
  { auto foreign = fs_->open(directory_ + "/space-0000012C.pages", {.create = true}); }
  { auto foreign = fs_->open(directory_ + "/README", {.create = true}); }
  auto spaces = source_->list_spaces();
  set_diag_sink(nullptr);
  ASSERT_TRUE(spaces.ok());
  EXPECT_EQ(*spaces, (std::vector<SpaceId>{SpaceId{0}, SpaceId{300}, SpaceId{0xfffffff0u}}));
  EXPECT_EQ(warnings, 2);
  EXPECT_TRUE(*source_->space_exists(kSpace));
  ASSERT_TRUE(source_->delete_space(kSpace).ok());
  ASSERT_TRUE(source_->delete_space(kSpace).ok());
  EXPECT_FALSE(*source_->space_exists(kSpace));
  EXPECT_TRUE(is_not_found(source_->read(page(999), Llsn{}, bytes_)));
  EXPECT_TRUE(is_not_found(write(page(1), 1)));
  EXPECT_TRUE(source_->sync().ok());
}

TEST_P(SimulatedPageSourceTest, FullDiskIsAnErrorThatPasses) {
  ASSERT_TRUE(source_->create_space(kSpace).ok());
  sim_->set_capacity((40 + DoubleWrite::kPagesMin) * kPageBytes);
  EXPECT_TRUE(source_->grow_space(kSpace, 30).ok());  // no room for a whole step, but for this
  EXPECT_TRUE(is_no_space(source_->grow_space(kSpace, 50)));
  EXPECT_TRUE(write(page(29), 1).ok());
  EXPECT_TRUE(is_no_space(write(page(60), 1)));
  sim_->set_capacity(uint64_t{1} << 40);
  EXPECT_TRUE(source_->grow_space(kSpace, 50).ok());
  EXPECT_TRUE(write(page(60), 1).ok());
}

TEST_P(SimulatedPageSourceTest, SyncedPagesAndSpacesSurvivePowerLoss) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const SpaceId space{400 + static_cast<uint32_t>(seed)};
    ASSERT_TRUE(source_->create_space(space).ok());
    ASSERT_TRUE(source_->grow_space(space, 20).ok());
    for (uint32_t i = 0; i < 10; ++i) ASSERT_TRUE(write(PageId{space.value, i}, 1).ok());
    ASSERT_TRUE(source_->sync().ok());
    for (uint32_t i = 5; i < 15; ++i) ASSERT_TRUE(write(PageId{space.value, i}, 2).ok());
    sim_->crash(seed);
    EXPECT_FALSE(source_->read(PageId{space.value, 1}, Llsn{}, bytes_).ok());  // dead handles
    open();
    for (uint32_t i = 0; i < 5; ++i) expect(PageId{space.value, i}, 1);
    for (uint32_t i = 5; i < 15; ++i) {
      const Status status = source_->read(PageId{space.value, i}, Llsn{}, bytes_);
      EXPECT_TRUE(status.ok() || is_corruption(status) || (i >= 10 && is_not_found(status)))
          << status;
    }
  }
}

// A file system whose syncs fail on demand.
class FailingSyncs final : public FileSystem {
 public:
  explicit FailingSyncs(FileSystem* inner) : inner_(inner) {}
  class FailingFile final : public File {
   public:
    FailingFile(std::unique_ptr<File> inner, FailingSyncs* fs)
        : inner_(std::move(inner)), fs_(fs) {}
    Status read_at(uint64_t o, void* d, size_t n, size_t* got) override {
      return inner_->read_at(o, d, n, got);
    }
    Status write_at(uint64_t o, const void* d, size_t n) override {
      return inner_->write_at(o, d, n);
    }
    Status sync_data() override {
      const bool copies = path().ends_with("double-write.pages");
      ++(copies ? fs_->syncs_of_copies : fs_->syncs);
      const bool fails = copies ? fs_->fail_copies : fs_->fail;
      return fails ? error_peer_down("fdatasync: by order") : inner_->sync_data();
    }
    StatusOr<uint64_t> size() override { return inner_->size(); }
    Status allocate(uint64_t bytes) override { return inner_->allocate(bytes); }
    Status truncate(uint64_t bytes) override { return inner_->truncate(bytes); }
    [[nodiscard]] const std::string& path() const override { return inner_->path(); }

   private:
    std::unique_ptr<File> inner_;
    FailingSyncs* fs_;
  };
  StatusOr<std::unique_ptr<File>> open(const std::string& path, OpenOptions options) override {
    auto file = inner_->open(path, options);
    if (!file.ok()) return file.status();
    return std::unique_ptr<File>(std::make_unique<FailingFile>(std::move(*file), this));
  }
  Status make_directory(const std::string& path) override { return inner_->make_directory(path); }
  Status remove(const std::string& path) override { return inner_->remove(path); }
  Status rename(const std::string& from, const std::string& to) override {
    return inner_->rename(from, to);
  }
  StatusOr<bool> exists(const std::string& path) override { return inner_->exists(path); }
  StatusOr<std::vector<std::string>> list(const std::string& d) override { return inner_->list(d); }
  Status sync_directory(const std::string& path) override { return inner_->sync_directory(path); }
  StatusOr<std::unique_ptr<FileLock>> lock_file(const std::string& path) override {
    return inner_->lock_file(path);
  }

  FileSystem* inner_;
  bool fail = false;
  bool fail_copies = false;
  int syncs = 0;
  int syncs_of_copies = 0;
};

TEST(LocalPageSourceFiles, StayFewAndAreSyncedBeforeTheyAreClosed) {  // LP2
  auto sim = make_sim_file_system();
  FailingSyncs fs(sim.get());
  auto source =
      open_local_page_source(&fs, {.directory = "/data", .direct_io = true, .open_files = 8});
  ASSERT_TRUE(source.ok());
  alignas(4096) static char bytes[kPageBytes];
  constexpr uint32_t kSpaces = 50;
  for (uint32_t space = 300; space < 300 + kSpaces; ++space) {
    ASSERT_TRUE((*source)->create_space(SpaceId{space}).ok());
    fill_page(bytes, PageId{space, 0}, 1, PageVersion{1, 0});
    seal_page(bytes);
    ASSERT_TRUE((*source)->write(PageId{space, 0}, bytes).ok());
  }
  EXPECT_GE(fs.syncs, static_cast<int>(kSpaces) - 8);  // those that had to close
  ASSERT_TRUE((*source)->sync().ok());
  EXPECT_EQ(fs.syncs, static_cast<int>(kSpaces));
  EXPECT_EQ(fs.syncs_of_copies, static_cast<int>(kSpaces) + 1);
  sim->crash(7);
  auto again = open_local_page_source(sim.get(), {.directory = "/data", .open_files = 8});
  ASSERT_TRUE(again.ok());
  for (uint32_t space = 300; space < 300 + kSpaces; ++space)
    EXPECT_TRUE((*again)->read(PageId{space, 0}, Llsn{1}, bytes).ok());
  set_diag_sink([](Severity, std::string_view) {});
  ASSERT_TRUE((*again)->sync().ok());
  set_diag_sink(nullptr);
}

TEST(LocalPageSourceSync, TouchesOnlyWrittenFiles) {  // LP2
  auto sim = make_sim_file_system();
  FailingSyncs fs(sim.get());
  auto source = open_local_page_source(&fs, {.directory = "/data", .direct_io = true});
  ASSERT_TRUE(source.ok());
  alignas(4096) static char bytes[kPageBytes];
  for (uint32_t space = 300; space < 303; ++space) {
    ASSERT_TRUE((*source)->create_space(SpaceId{space}).ok());
    fill_page(bytes, PageId{space, 0}, 1, PageVersion{1, 0});
    seal_page(bytes);
    ASSERT_TRUE((*source)->write(PageId{space, 0}, bytes).ok());
  }
  fs.syncs = 0;
  ASSERT_TRUE((*source)->sync().ok());
  EXPECT_EQ(fs.syncs, 3);
  ASSERT_TRUE((*source)->write(PageId{302, 0}, bytes).ok());
  ASSERT_TRUE((*source)->sync().ok());
  ASSERT_TRUE((*source)->sync().ok());
  EXPECT_EQ(fs.syncs, 4);
}

// The disk loses what the failed sync was to write; a second sync that ends well would not notice.
TEST(LocalPageSourceSync, WhatAFailedSyncWasToWriteIsWrittenAgain) {  // LP3, DW7, DW8
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    auto disk = make_sim_file_system();
    static std::string said;
    said.clear();
    set_diag_sink([](Severity, std::string_view line) { said.append(line).append("\n"); });
    auto source = open_local_page_source(disk.get(), {.directory = "/data", .direct_io = true});
    ASSERT_TRUE(source.ok());
    alignas(4096) static char bytes[kPageBytes];
    const auto write = [&source](uint32_t number, uint64_t version) {
      const PageId id{300, number};
      fill_page(bytes, id, version, PageVersion{version, 0});
      seal_page(bytes);
      return (*source)->write(id, bytes);
    };
    const auto version = [](PageSource* from, uint32_t number) {
      PageVersion v;
      const PageId id{300, number};
      EXPECT_TRUE(from->read(id, Llsn{}, bytes).ok());
      EXPECT_EQ(check_page(bytes, id, &v), "");
      return v.version;
    };
    ASSERT_TRUE((*source)->create_space(SpaceId{300}).ok());
    for (uint32_t n = 0; n < 20; ++n) ASSERT_TRUE(write(n, 1).ok());
    ASSERT_TRUE((*source)->sync().ok());
    for (uint32_t n = 0; n < 20; ++n) ASSERT_TRUE(write(n, 2).ok());
    for (uint32_t n = 0; n < 5; ++n) ASSERT_TRUE(write(n, 3).ok());
    const auto expected = [](uint32_t n) { return n < 5 ? 3u : 2u; };
    disk->fail_syncs("/space-", seed);
    EXPECT_TRUE(is_device_error((*source)->sync()));
    EXPECT_TRUE(is_device_error((*source)->sync()));
    for (uint32_t n = 0; n < 20; ++n) EXPECT_EQ(version(source->get(), n), expected(n));
    disk->fail_syncs("", 0);
    ASSERT_TRUE(write(19, 4).ok());
    ASSERT_TRUE((*source)->sync().ok());
    EXPECT_NE(said.find("a data file could not be synced"), std::string::npos) << said;
    EXPECT_NE(said.find("can be synced again"), std::string::npos) << said;
    disk->crash(seed);
    source->reset();
    auto again = open_local_page_source(disk.get(), {.directory = "/data", .direct_io = true});
    ASSERT_TRUE(again.ok());
    for (uint32_t n = 0; n < 20; ++n)
      EXPECT_EQ(version(again->get(), n), n == 19 ? 4 : expected(n));
  }
  set_diag_sink(nullptr);
}

TEST(LocalPageSourceSync, WithoutDurableCopiesNothingIsWrittenInPlace) {  // DW1, DW5
  auto sim = make_sim_file_system();
  FailingSyncs fs(sim.get());
  alignas(4096) static char bytes[kPageBytes];
  const PageId id{300, 0};
  const auto write = [&id](PageSource* source, uint64_t version) {
    fill_page(bytes, id, version, PageVersion{version, 0});
    seal_page(bytes);
    return source->write(id, bytes);
  };
  const auto version = [&id](PageSource* source) {
    PageVersion v;
    EXPECT_TRUE(source->read(id, Llsn{}, bytes).ok());
    EXPECT_EQ(check_page(bytes, id, &v), "");
    return v.version;
  };
  set_diag_sink([](Severity, std::string_view) {});
  {
    auto source = open_local_page_source(&fs, {.directory = "/data", .direct_io = true});
    ASSERT_TRUE(source.ok());
    ASSERT_TRUE((*source)->create_space(SpaceId{300}).ok());
    ASSERT_TRUE(write(source->get(), 1).ok());
    fs.fail_copies = true;
    const Status status = write(source->get(), 2);
    EXPECT_TRUE(is_peer_down(status));
    EXPECT_NE(status.message().find("double-write.pages could not be synced"), std::string::npos);
    EXPECT_EQ(version(source->get()), 1u);
    fs.fail_copies = false;
    EXPECT_TRUE(write(source->get(), 3).ok());  // with copies of its own
    EXPECT_EQ(version(source->get()), 3u);
    EXPECT_TRUE((*source)->sync().ok());  // what is in place may be made durable
  }
  fs.fail_copies = true;
  EXPECT_FALSE(open_local_page_source(&fs, {.directory = "/data", .direct_io = true}).ok());
  fs.fail_copies = false;
  auto again = open_local_page_source(&fs, {.directory = "/data", .direct_io = true});
  set_diag_sink(nullptr);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(version(again->get()), 3u);
  EXPECT_TRUE(write(again->get(), 4).ok());
}

}  // namespace
}  // namespace strata
