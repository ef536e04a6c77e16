// A page that a power loss tears while it is written in place is there again after a restart, in
// the version last written or the one before; a ring that is full waits for nothing but syncs.
#include "pagefile/double_write.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <thread>

#include "base/aligned.h"
#include "base/diag.h"
#include "base/fault.h"
#include "base/rng.h"
#include "base/testing/sanitized.h"
#include "pagefile/local_page_source.h"
#include "pagefile/testing/test_pages.h"

namespace strata {
namespace {

using testing::check_page;
using testing::fill_page;
using testing::PageVersion;

constexpr uint32_t kSpace = 300;
constexpr uint32_t kFar = 5000;  // a page beyond the end of the space's file

class DoubleWriteTest : public ::testing::Test {
 protected:
  DoubleWriteTest() : disk_(make_sim_file_system()), page_(kPageBytes, 4096) {
    set_diag_sink([](Severity, std::string_view) {});
    open();
    EXPECT_TRUE(source_->create_space(SpaceId{kSpace}).ok());
  }
  ~DoubleWriteTest() override {
    disarm_faults();
    set_diag_sink(nullptr);
  }
  void open() {
    source_.reset();
    auto source = open_local_page_source(
        disk_.get(),
        {.directory = "/data", .direct_io = true, .double_write_pages = DoubleWrite::kPagesMin});
    ASSERT_TRUE(source.ok()) << source.status();
    source_ = std::move(*source);
  }
  Status write(uint32_t number, uint64_t version) {
    const PageId id{kSpace, number};
    fill_page(page_.get(), id, version, PageVersion{version, 0});
    seal_page(page_.get());
    return source_->write(id, page_.get());
  }
  Status write_batch(uint32_t first, uint32_t count, uint64_t version) {
    const AlignedBytes pages(size_t{count} * kPageBytes, 4096);
    PageId ids[DoubleWrite::kBatchPagesMax];
    for (uint32_t i = 0; i < count; ++i) {
      ids[i] = PageId{kSpace, first + i};
      char* const page = pages.get() + size_t{i} * kPageBytes;
      fill_page(page, ids[i], version, PageVersion{version, 0});
      seal_page(page);
    }
    return source_->write_batch(ids, count, pages.get(), ok_);
  }
  // No file grows any more.
  void fill_disk() { disk_->set_capacity(1); }
  void mend_disk() { disk_->set_capacity(UINT64_MAX); }
  // 0: never written.
  StatusOr<uint64_t> version(uint32_t number) {
    const PageId id{kSpace, number};
    const Status status = source_->read(id, Llsn{}, page_.get());
    if (is_not_found(status)) return 0;
    STRATA_RETURN_IF_ERROR(status);
    PageVersion v;
    EXPECT_EQ(check_page(page_.get(), id, &v), "");
    return v.version;
  }
  void tear(uint32_t number) {
    disk_->flip_bit("/data/space-0000012c.pages", (uint64_t{number} * kPageBytes + 9000) * 8);
  }

  std::unique_ptr<SimFileSystem> disk_;
  std::unique_ptr<PageSource> source_;
  AlignedBytes page_;
  bool ok_[DoubleWrite::kBatchPagesMax] = {};
};

TEST_F(DoubleWriteTest, ATornPageComesBackAsItWasLastWritten) {
  ASSERT_TRUE(write(3, 1).ok());
  ASSERT_TRUE(write(3, 2).ok());
  tear(3);
  EXPECT_TRUE(is_corruption(version(3).status()));
  open();
  EXPECT_EQ(*version(3), 2u);
}

TEST_F(DoubleWriteTest, AWriteThatStoppedHalfWayIsMadeGood) {
  ASSERT_TRUE(write(3, 1).ok());
  ASSERT_TRUE(arm_fault("page_write_half:1:error"));
  EXPECT_FALSE(write(3, 2).ok());
  disarm_faults();
  EXPECT_EQ(*version(3), 2u);  // its copy (DW8): what is in its place is torn
  open();
  EXPECT_EQ(*version(3), 2u);
}

TEST_F(DoubleWriteTest, TheCopiesOfOneLifeDoNotRepairPagesOfTheNext) {  // DW4
  ASSERT_TRUE(write(3, 1).ok());
  open();
  tear(3);
  open();
  EXPECT_TRUE(is_corruption(version(3).status()));
}

TEST_F(DoubleWriteTest, OpeningWhatWasClosedWellChangesNothing) {
  for (uint32_t n = 0; n < 300; ++n) ASSERT_TRUE(write(n, 1).ok());
  ASSERT_TRUE(source_->sync().ok());
  source_.reset();
  const auto content = [this] {
    std::string bytes(4u << 20, '\0');
    size_t got = 0;
    const auto file = disk_->open("/data/double-write.pages", {});
    EXPECT_TRUE((*file)->read_at(0, bytes.data(), bytes.size(), &got).ok());
    bytes.resize(got);
    return bytes;
  };
  const std::string before = content();
  EXPECT_EQ(before.size(), size_t{DoubleWrite::kPagesMin} * kPageBytes);
  open();
  source_.reset();
  EXPECT_TRUE(content() == before);
  tear(3);
  open();
  EXPECT_TRUE(is_corruption(version(3).status()));
}

TEST_F(DoubleWriteTest, CopiesOfSpacesThatAreGoneAreLeftAlone) {
  ASSERT_TRUE(write(3, 1).ok());
  ASSERT_TRUE(source_->delete_space(SpaceId{kSpace}).ok());
  open();
  EXPECT_EQ(*version(3), 0u);
}

// What the last life wrote without a sync is durable before its copies go: a power loss right after
// a restart finds no torn page (DW4).
TEST_F(DoubleWriteTest, ARestartAfterAKillSyncsWhatTheLastLifeWrote) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    for (uint32_t n = 0; n < 20; ++n) ASSERT_TRUE(write(n, seed * 2).ok());
    ASSERT_TRUE(source_->sync().ok());
    for (uint32_t n = 0; n < 20; ++n) ASSERT_TRUE(write(n, seed * 2 + 1).ok());
    open();  // killed, no power lost
    disk_->crash(seed);
    open();
    for (uint32_t n = 0; n < 20; ++n) EXPECT_EQ(*version(n), seed * 2 + 1);
  }
}

TEST_F(DoubleWriteTest, APageThatCannotBeWrittenDoesNotStopTheOthers) {
  ASSERT_TRUE(source_->grow_space(SpaceId{kSpace}, 1100).ok());
  fill_disk();
  for (uint64_t round = 1; round <= 3; ++round) {
    EXPECT_TRUE(is_no_space(write(kFar, round)));
    // The ring is filled up to what is kept for trying again.
    uint32_t written = 0;
    while (written < 1000 && write(10 + written, round).ok()) ++written;
    EXPECT_GE(written, DoubleWrite::kPagesMin - DoubleWrite::kBatchPagesMax - 1);
    EXPECT_LT(written, 1000u);
    const Status full = write(10, 5);
    EXPECT_TRUE(is_no_space(full));
    EXPECT_NE(full.message().find("mend the disk"), std::string::npos) << full;
  }
  mend_disk();
  ASSERT_TRUE(write(kFar, 9).ok());
  for (uint32_t n = 0; n < 500; ++n) ASSERT_TRUE(write(10 + n, 6).ok());
  EXPECT_EQ(*version(kFar), 9u);
}

// Whoever could not write them may never come again: a storage node that is out of sync hears of
// other pages first.
TEST_F(DoubleWriteTest, PagesThatFailedAreWrittenOnceTheDiskWorksAgain) {  // DW6
  ASSERT_TRUE(source_->grow_space(SpaceId{kSpace}, 1100).ok());
  ASSERT_TRUE(write(5, 1).ok());
  fill_disk();
  uint32_t failed = 0;
  while (failed < 1000 && write(kFar + failed, 7).message().find("holds pages that cannot") ==
                              std::string_view::npos)
    ++failed;
  EXPECT_GE(failed, DoubleWrite::kPagesMin - DoubleWrite::kBatchPagesMax - 1);
  EXPECT_LT(failed, 1000u);
  EXPECT_TRUE(is_no_space(write(5, 2)));
  mend_disk();
  for (uint32_t n = 0; n < 500; ++n) ASSERT_TRUE(write(10 + n, 6).ok());
  for (uint32_t n = 0; n < failed; ++n) EXPECT_EQ(*version(kFar + n), 7u) << n;
  // Their copies are gone only now that they are durable.
  disk_->crash(1);
  open();
  for (uint32_t n = 0; n < failed; ++n) EXPECT_EQ(*version(kFar + n), 7u) << n;
}

// A whole batch fails, the ring fills up behind it, and the disk works again.
TEST_F(DoubleWriteTest, AWholeBatchThatFailedFindsRoomToBeTriedAgain) {
  ASSERT_TRUE(source_->grow_space(SpaceId{kSpace}, 1100).ok());
  fill_disk();
  EXPECT_FALSE(write_batch(kFar, 64, 2).ok());
  EXPECT_EQ(std::count(ok_, ok_ + 64, true), 0);
  uint32_t written = 0;
  while (written < 1000 && write(100 + written, 1).ok()) ++written;
  EXPECT_LT(written, 1000u);
  mend_disk();
  EXPECT_TRUE(write_batch(kFar, 64, 3).ok());
  EXPECT_EQ(std::count(ok_, ok_ + 64, true), 64);
  for (uint32_t n = 0; n < 500; ++n) ASSERT_TRUE(write(100 + n, 3).ok());
  for (uint32_t n = 0; n < 64; ++n) EXPECT_EQ(*version(kFar + n), 3u);
}

// The same pages are written by their owners and, from their copies, by whoever needs room.
TEST_F(DoubleWriteTest, ADiskThatFillsUpNowAndThenUnderManyThreads) {  // DW6
  constexpr uint64_t kRounds = strata::testing::fewer_if_sanitized(200, 40);
  constexpr uint32_t kPages = 12;
  std::atomic<uint32_t> at_work{4};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([this, t, &at_work] {
      const AlignedBytes page(kPageBytes, 4096);
      for (uint64_t round = 1; round <= kRounds; ++round)
        for (uint32_t n = 0; n < kPages; ++n) {
          // A new place each time: it needs room on the disk.
          const auto number = static_cast<uint32_t>(kFar + ((round / 8) * 4 + t) * kPages + n);
          const PageId id{kSpace, number};
          fill_page(page.get(), id, round, PageVersion{round, 0});
          seal_page(page.get());
          bool ok = false;
          (void)source_->write_batch(&id, 1, page.get(), &ok);
        }
      --at_work;
    });
  }
  for (bool full = true; at_work != 0; full = !full) {
    full ? fill_disk() : mend_disk();
    std::this_thread::yield();
  }
  for (std::thread& thread : threads) thread.join();
  mend_disk();
  for (uint32_t t = 0; t < 4; ++t)
    for (uint32_t n = 0; n < kPages; ++n) {
      const auto number = static_cast<uint32_t>(kFar + ((kRounds / 8) * 4 + t) * kPages + n);
      ASSERT_TRUE(write(number, kRounds + 1).ok());
      EXPECT_EQ(*version(number), kRounds + 1);
    }
}

TEST_F(DoubleWriteTest, ADroppedSpaceReleasesWhatFailedInIt) {
  ASSERT_TRUE(write(1, 1).ok());
  ASSERT_TRUE(arm_fault("page_write_half:1:error"));
  EXPECT_FALSE(write(1, 2).ok());
  disarm_faults();
  ASSERT_TRUE(source_->delete_space(SpaceId{kSpace}).ok());
  ASSERT_TRUE(source_->create_space(SpaceId{kSpace}).ok());
  for (uint32_t n = 0; n < 500; ++n) ASSERT_TRUE(write(10 + n, 1).ok());
}

// As a storage node meets them that copies, and is sent pages of spaces it does not have yet.
TEST_F(DoubleWriteTest, PagesOfASpaceThatIsNotThereKeepNoRoom) {
  const PageId id{kSpace + 1, 3};
  for (uint64_t n = 1; n <= 500; ++n) {
    fill_page(page_.get(), id, n, PageVersion{n, 0});
    seal_page(page_.get());
    ASSERT_TRUE(is_not_found(source_->write(id, page_.get())));
  }
  ASSERT_TRUE(source_->create_space(SpaceId{kSpace + 1}).ok());
  ASSERT_TRUE(source_->write(id, page_.get()).ok());
}

TEST_F(DoubleWriteTest, WithNoRoomOnTheDiskTheRingStaysSmall) {
  source_.reset();
  auto source = open_local_page_source(disk_.get(), {.directory = "/data", .direct_io = true});
  ASSERT_TRUE(source.ok());
  source_ = std::move(*source);
  ASSERT_TRUE(source_->grow_space(SpaceId{kSpace}, 700).ok());
  disk_->set_capacity(1);  // nothing more
  for (uint32_t n = 0; n < 600; ++n) ASSERT_TRUE(write(n, 7).ok()) << n;
  tear(599);
  open();
  EXPECT_EQ(*version(599), 7u);
}

TEST_F(DoubleWriteTest, ManyThreadsAndASmallRing) {
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 6; ++t) {
    threads.emplace_back([this, t] {
      Rng rng(t + 1);
      const AlignedBytes pages(64 * kPageBytes, 4096);
      for (uint64_t round = 1; round <= 30; ++round) {
        const auto count = static_cast<uint32_t>(1 + rng.below(64));
        PageId ids[64];
        bool ok[64];
        for (uint32_t i = 0; i < count; ++i) {
          ids[i] = PageId{kSpace, t * 64 + i};
          fill_page(pages.get() + size_t{i} * kPageBytes, ids[i], round, PageVersion{round, 0});
          seal_page(pages.get() + size_t{i} * kPageBytes);
        }
        ASSERT_TRUE(source_->write_batch(ids, count, pages.get(), ok).ok());
        ASSERT_EQ(std::count(ok, ok + count, true), count);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (uint32_t t = 0; t < 6; ++t) EXPECT_GE(*version(t * 64), 1u);
}

// Random writes, syncs, kills, power losses, full disks and syncs that fail and lose what they were
// to write: every page reads as a version between the last synced one and the last one written,
// whole; while the source is open, as what was last written.
TEST(DoubleWriteModel, NoPowerLossLeavesATornPage) {
  set_diag_sink([](Severity, std::string_view) {});
  const AlignedBytes pages(64 * kPageBytes, 4096);
  uint64_t restored = 0;
  uint64_t failed = 0;
  uint64_t failed_syncs = 0;
  constexpr uint64_t kSeeds = strata::testing::kThreadSanitizer
                                  ? 5  // it has one thread
                                  : strata::testing::fewer_if_sanitized(60, 20);
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Rng rng(seed);
    auto disk = make_sim_file_system();
    struct State {
      uint64_t synced = 0, done = 0, written = 0;  // done: what a write that ended well wrote
    };
    std::map<uint32_t, State> states;
    std::unique_ptr<PageSource> source;
    const auto open = [&] {
      source.reset();
      auto opened = open_local_page_source(
          disk.get(),
          {.directory = "/data", .direct_io = true, .double_write_pages = DoubleWrite::kPagesMin});
      ASSERT_TRUE(opened.ok()) << opened.status();
      source = std::move(*opened);
    };
    const auto note_synced = [&states] {
      for (auto& [number, state] : states) state.synced = state.done;
    };
    open();
    ASSERT_TRUE(source->create_space(SpaceId{kSpace}).ok());
    uint64_t next_version = 1;
    bool full = false;     // the disk: what lies behind the end of the file cannot be written
    bool failing = false;  // its syncs
    bool doubted = false;  // since the last good sync one has failed
    for (int step = 0; step < 60; ++step) {
      if (rng.one_in(6)) {
        full = !full;
        disk->set_capacity(full ? 1 : UINT64_MAX);
      }
      if (rng.one_in(8)) {
        failing = !failing;
        const char* const parts[] = {"/space-", "/double-write", "/"};
        disk->fail_syncs(failing ? parts[rng.below(3)] : "", rng.next());
      }
      const uint64_t what = rng.below(10);
      if (what < 7) {
        const auto count = static_cast<uint32_t>(1 + rng.below(rng.one_in(3) ? 64 : 5));
        auto number = static_cast<uint32_t>(rng.below(300));
        PageId ids[64];
        bool ok[64];
        for (uint32_t i = 0; i < count; ++i, number += 1 + rng.below(3)) {
          ids[i] = PageId{kSpace, number};
          states[number].written = next_version;
          fill_page(pages.get() + size_t{i} * kPageBytes, ids[i], next_version,
                    PageVersion{next_version, 0});
          seal_page(pages.get() + size_t{i} * kPageBytes);
          ++next_version;
        }
        const Status status = source->write_batch(ids, count, pages.get(), ok);
        ASSERT_TRUE(status.ok() || full || failing) << status;
        doubted = doubted || failing;  // it may have needed room, and synced for it
        for (uint32_t i = 0; i < count; ++i) {
          State& state = states[ids[i].number];
          if (ok[i]) state.done = state.written;
          failed += !ok[i];
        }
      } else if (what == 7) {
        const Status status = source->sync();
        ASSERT_TRUE(status.ok() || failing || full) << status;
        doubted = !status.ok();
        failed_syncs += !status.ok();
        if (status.ok()) note_synced();
        for (const auto& [number, state] : states) {
          const PageId id{kSpace, number};
          if (state.done == 0) continue;
          const Status found = source->read(id, Llsn{}, pages.get());
          ASSERT_TRUE(found.ok()) << found << ": page " << number << ", step " << step;
          PageVersion v;
          ASSERT_EQ(check_page(pages.get(), id, &v), "");
          ASSERT_GE(v.version, state.done);
          ASSERT_LE(v.version, state.written);
        }
      } else {
        failing = false;
        disk->fail_syncs("", 0);
        if (what == 8) disk->crash(rng.next());
        open();
        char* const page = pages.get();
        for (auto& [number, state] : states) {
          const PageId id{kSpace, number};
          const Status status = source->read(id, Llsn{}, page);
          if (is_not_found(status)) {
            ASSERT_EQ(state.synced, 0u) << "page " << number;
            state.done = state.written = 0;
            continue;
          }
          ASSERT_TRUE(status.ok()) << status;
          PageVersion v;
          ASSERT_EQ(check_page(page, id, &v), "");
          ASSERT_GE(v.version, state.synced);
          ASSERT_LE(v.version, state.written);
          if (what == 9 && !doubted) {
            ASSERT_GE(v.version, state.done);
          }
          restored += v.version < state.done;
          state.done = state.written = v.version;
        }
        note_synced();
        doubted = false;
      }
    }
  }
  EXPECT_GT(failed_syncs, kSeeds / 2);
  EXPECT_GT(restored, kSeeds * 5 / 3);  // the power losses did lose writes
  EXPECT_GT(failed, kSeeds * 10);
  set_diag_sink(nullptr);
}

}  // namespace
}  // namespace strata
