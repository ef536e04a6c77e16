// Goal: MIR1-MIR5 (mirrored_pool.h), one case each. Method: two memory nodes and storage in memory
// that fail as the test says, under a MemoryPageSource; no threads, so that each thing happens when
// the test says.
#include "clients/memory/mirrored_pool.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <set>
#include <thread>

#include "base/diag.h"
#include "clients/memory/memory_page_source.h"
#include "clients/memory/testing/fake_pool.h"
#include "clients/memory/testing/fake_storage.h"

namespace strata::clients {
namespace {

using testing::FakeCopyNames;
using testing::FakeMemoryNode;
using testing::FakePool;
using testing::FakeStorage;
using testing::Fate;
using testing::llsn_of;
using testing::make_page;
using Backup = MirroredPool::Backup;

constexpr std::chrono::milliseconds kTimeout{200};

constexpr PageId page_of(uint32_t number) { return {300, number}; }

class Mirror : public ::testing::Test {
 protected:
  Mirror() {
    set_diag_sink([](Severity, std::string_view) {});
    open();
  }
  ~Mirror() override { set_diag_sink(nullptr); }

  void open() {
    source_.reset();
    mirror_.reset();
    storage_.new_life();
    names_.epoch = Epoch{++epoch_};
    for (size_t i = 0; i < 2; ++i) pools_[i] = std::make_unique<FakePool>(&nodes_[i], epoch_);
    MirrorOptions mirror;
    mirror.durable = [this] { return durable_; };
    mirror.timeout_us = std::chrono::microseconds(kTimeout).count();
    mirror.retry_us = 0;
    mirror_ = std::make_unique<MirroredPool>(
        mirror, std::array<RemotePool*, 2>{pools_[0].get(), pools_[1].get()}, &names_);
    MemoryPagesOptions options;
    options.durable = [this] { return durable_; };
    options.free_slots = 4;
    options.reserve_slots = 2;
    options.timeout_us = std::chrono::microseconds(kTimeout).count();
    options.pause_us = 1'000;
    options.new_pool_us = 0;
    options.keeps_up = false;
    auto opened = MemoryPageSource::open(options, mirror_.get(), mirror_->naming(), &storage_);
    ASSERT_TRUE(opened.ok()) << opened.status();
    source_ = *std::move(opened);
  }
  Status write(PageId id, uint64_t llsn, uint64_t first = 10) {
    const PageChanges changes{Lsn{first}, Lsn{first + 1}};
    bool ok = false;
    const Status status =
        source_->write_changed(&id, &changes, 1, make_page(id, Llsn{llsn}).data(), &ok);
    EXPECT_EQ(ok, status.ok()) << status;
    return status;
  }
  StatusOr<uint64_t> read(PageId id) {
    std::string page(kPageBytes, 'x');
    STRATA_RETURN_IF_ERROR(source_->read(id, Llsn{}, page.data()));
    EXPECT_EQ(page, make_page(id, llsn_of(page)));
    return llsn_of(page).value;
  }
  void down(size_t copy) {
    nodes_[copy].fate = [](const char*) { return Fate::kNotRun; };
  }
  void up(size_t copy) {
    nodes_[copy].fate = [](const char*) { return Fate::kFine; };
  }
  void lose(size_t copy) {
    nodes_[copy].lose();
    down(copy);
  }
  [[nodiscard]] bool is_dirty(size_t copy, PageId id) const {
    const auto slot = nodes_[copy].slot(id);
    return slot.has_value() && slot->dirty_from.has_value();
  }
  [[nodiscard]] NamedCopies named() const { return names_.now.value_or(NamedCopies{}); }

  Lsn durable_{1'000'000};
  FakeStorage storage_;
  FakeCopyNames names_;
  std::array<FakeMemoryNode, 2> nodes_{FakeMemoryNode(32, 2, &storage_),
                                       FakeMemoryNode(32, 2, &storage_)};
  uint64_t epoch_ = 0;
  std::array<std::unique_ptr<FakePool>, 2> pools_;
  std::unique_ptr<MirroredPool> mirror_;
  std::unique_ptr<MemoryPageSource> source_;
};

TEST_F(Mirror, BothHaveWhatIsPutAndOnlyTheUsedOneWritesIt) {  // MIR1, MIR3
  EXPECT_EQ(mirror_->backup(), Backup::kCounts);
  EXPECT_EQ(named().incarnations[1], nodes_[1].incarnation());
  ASSERT_TRUE(write(page_of(1), 5, 50).ok());
  storage_.put(page_of(2), make_page(page_of(2), Llsn{7}));
  EXPECT_EQ(*read(page_of(2)), 7u);
  source_->do_work();
  for (const FakeMemoryNode& node : nodes_) {
    EXPECT_EQ(node.llsn(page_of(1)), Llsn{5});
    EXPECT_EQ(node.llsn(page_of(2)), Llsn{7});
  }
  bool backup_wrote = false;
  nodes_[1].in_write = [&] { backup_wrote = true; };
  ASSERT_TRUE(source_->sync_below(Lsn{100}).ok());
  EXPECT_EQ(storage_.durable_llsn(page_of(1)), Llsn{5});
  EXPECT_FALSE(backup_wrote);
  EXPECT_FALSE(is_dirty(0, page_of(1)));
  EXPECT_FALSE(is_dirty(1, page_of(1)));
  ASSERT_TRUE(*source_->publish_memory_checkpoint({Lsn{90}, 3}));
  EXPECT_EQ(nodes_[0].checkpoint(), Lsn{90});
  EXPECT_EQ(nodes_[1].checkpoint(), Lsn{90});
  ASSERT_TRUE(source_->delete_space(SpaceId{300}).ok());
  EXPECT_EQ(nodes_[0].size() + nodes_[1].size(), 0u);
}

TEST_F(Mirror, AVersionThatIsNewerThanWhatStorageHasStaysDirtyInTheBackup) {  // MIR3
  ASSERT_TRUE(write(page_of(1), 5, 50).ok());
  bool again = false;
  storage_.after_sync = [&] {
    if (std::exchange(again, true)) return;
    EXPECT_TRUE(write(page_of(1), 6, 150).ok());
  };
  ASSERT_TRUE(source_->sync_below(Lsn{100}).ok());
  EXPECT_TRUE(is_dirty(0, page_of(1)));
  EXPECT_TRUE(is_dirty(1, page_of(1)));
}

TEST_F(Mirror, TheBackupTakesOverWithoutARestart) {  // MIR2
  ASSERT_TRUE(write(page_of(1), 5, 50).ok());
  ASSERT_TRUE(write(page_of(2), 6, 60).ok());
  ASSERT_TRUE(source_->sync_below(Lsn{55}).ok());
  lose(0);
  EXPECT_TRUE(write(page_of(3), 7, 70).ok());
  EXPECT_TRUE(source_->ended().ok());
  EXPECT_EQ(mirror_->switches(), 1u);
  EXPECT_EQ(named().used, 1u);
  EXPECT_EQ(named().incarnations[0], 0u);
  for (uint32_t i = 1; i <= 3; ++i) EXPECT_EQ(*read(page_of(i)), i + 4);
  EXPECT_EQ(storage_.reads, 0u);
  ASSERT_TRUE(source_->sync_below(Lsn{100}).ok());
  for (uint32_t i = 1; i <= 3; ++i)
    EXPECT_EQ(storage_.durable_llsn(page_of(i)), Llsn{uint64_t{i} + 4});
}

TEST_F(Mirror, AnIdleOneTakesOverAsWell) {  // MS9
  ASSERT_TRUE(write(page_of(1), 5, 50).ok());
  lose(0);
  source_->look_after_pool();
  EXPECT_EQ(named().used, 1u);
  EXPECT_TRUE(source_->ended().ok());
}

TEST_F(Mirror, WithoutTheRegistryNobodyTakesOver) {  // MIR2
  ASSERT_TRUE(write(page_of(1), 5, 50).ok());
  lose(0);
  names_.fails = true;
  EXPECT_FALSE(write(page_of(1), 6, 60).ok());
  EXPECT_EQ(named().used, 0u);
}

TEST_F(Mirror, ABackupThatMissesSomethingIsUnnamedFirst) {  // MIR1, MIR2
  for (const char* call : {"put", "drop", "stored", "checkpoint"}) {
    ASSERT_EQ(mirror_->backup(), Backup::kCounts) << call;
    ASSERT_TRUE(write(page_of(1), 5 + epoch_ * 10, 50).ok());
    bool failed = false;
    nodes_[1].fate = [&](const char* now) {
      failed = failed || std::string(now) == call;
      return failed ? Fate::kNotRun : Fate::kFine;
    };
    EXPECT_TRUE(write(page_of(2), 6 + epoch_ * 10, 60).ok());
    (void)source_->sync_below(Lsn{100});    // it may have to be asked again
    for (uint32_t i = 100; i < 140; ++i) {  // so many that some are dropped
      (void)source_->sync_below(Lsn{100});
      const uint64_t llsn = 6 + epoch_ * 10;
      EXPECT_TRUE(write(page_of(i), llsn, 60).ok());
      source_->evicted(page_of(i), make_page(page_of(i), Llsn{llsn}).data());
      source_->do_work();
    }
    EXPECT_TRUE(*source_->publish_memory_checkpoint({Lsn{90}, 0}));
    source_->do_work();
    EXPECT_TRUE(failed) << call;
    EXPECT_EQ(named().incarnations[1], 0u) << call;
    EXPECT_NE(named().incarnations[0], 0u) << call;
    EXPECT_TRUE(source_->ended().ok());
    // Another life begins with both.
    up(1);
    names_.now.reset();
    open();
  }
}

TEST_F(Mirror, ANewBackupCountsOnceStorageHasWhatWasThereBefore) {  // MIR4
  durable_ = Lsn{100};
  ASSERT_TRUE(write(page_of(1), 5, 50).ok());
  nodes_[1].lose();
  EXPECT_TRUE(write(page_of(2), 6, 60).ok());
  EXPECT_EQ(mirror_->backup(), Backup::kNone);
  source_->look_after_pool();
  EXPECT_EQ(mirror_->backup(), Backup::kJoining);
  durable_ = Lsn{200};
  ASSERT_TRUE(write(page_of(3), 7, 150).ok());
  EXPECT_EQ(nodes_[1].llsn(page_of(3)), Llsn{7});
  ASSERT_TRUE(source_->sync_below(Lsn{55}).ok());
  EXPECT_EQ(mirror_->backup(), Backup::kJoining) << "page 2 is not there";
  EXPECT_EQ(named().incarnations[1], 0u);
  ASSERT_TRUE(source_->sync_below(Lsn{120}).ok());
  EXPECT_EQ(mirror_->backup(), Backup::kCounts);
  EXPECT_EQ(named().incarnations[1], nodes_[1].incarnation());
  lose(0);
  EXPECT_EQ(*read(page_of(1)), 5u);
  EXPECT_TRUE(write(page_of(4), 8, 160).ok());
  EXPECT_EQ(*read(page_of(3)), 7u);
  EXPECT_EQ(*read(page_of(2)), 6u);
}

TEST_F(Mirror, WhatANewBackupWaitsForIsWrittenToStorageSoon) {  // MIR4
  durable_ = Lsn{100};
  ASSERT_TRUE(write(page_of(1), 5, 50).ok());
  nodes_[1].lose();
  EXPECT_TRUE(write(page_of(2), 6, 60).ok());
  source_->look_after_pool();
  ASSERT_EQ(mirror_->backup(), Backup::kJoining);
  source_->look_after_pool();
  EXPECT_EQ(mirror_->backup(), Backup::kCounts);
  EXPECT_EQ(storage_.durable_llsn(page_of(2)), Llsn{6});
}

TEST_F(Mirror, OneThatIsLostBeforeItsBackupCountsIsLost) {  // MIR4
  durable_ = Lsn{100};
  ASSERT_TRUE(write(page_of(1), 5, 50).ok());
  nodes_[1].lose();
  EXPECT_TRUE(write(page_of(2), 6, 60).ok());
  source_->look_after_pool();
  ASSERT_EQ(mirror_->backup(), Backup::kJoining);
  lose(0);
  EXPECT_FALSE(write(page_of(3), 7, 70).ok());
  EXPECT_TRUE(is_ended(source_->ended()));
}

TEST_F(Mirror, ALaterLifeBeginsAtTheBackupsCheckpointIfTheUsedOneIsLost) {
  ASSERT_TRUE(write(page_of(1), 5, 50).ok());
  ASSERT_TRUE(*source_->publish_memory_checkpoint({Lsn{90}, 3}));
  source_.reset();
  lose(0);
  open();
  EXPECT_EQ(named().used, 1u);
  ASSERT_TRUE(source_->memory_checkpoint().has_value());
  EXPECT_EQ(source_->memory_checkpoint()->lsn, Lsn{90});
  EXPECT_EQ(*read(page_of(1)), 5u);
}

TEST_F(Mirror, ALaterLifeDoesWithoutABackupThatMayHaveMissedSomething) {  // MIR5
  ASSERT_TRUE(write(page_of(1), 5, 50).ok());
  // Killed between the two.
  const std::string newer = make_page(page_of(1), Llsn{6});
  ASSERT_TRUE(pools_[0]->put({{page_of(1), true, Lsn{60}, Lsn{61}}}, newer, durable_).ok());
  open();
  EXPECT_EQ(mirror_->backup(), Backup::kNone);
  EXPECT_EQ(named().incarnations[1], 0u);
  EXPECT_EQ(*read(page_of(1)), 6u);
  source_->look_after_pool();
  EXPECT_EQ(mirror_->backup(), Backup::kJoining);
  EXPECT_EQ(nodes_[1].llsn(page_of(1)), Llsn{}) << "it is another content";
}

TEST_F(Mirror, WhatWasDroppedDoesNotComeBackFromTheBackup) {  // MIR1
  ASSERT_TRUE(write(page_of(1), 5, 50).ok());
  ASSERT_TRUE(source_->sync_below(Lsn{100}).ok());
  // Its drop gets lost on the way to the backup.
  bool lost = false;
  nodes_[1].fate = [&](const char* call) {
    return std::string(call) == "drop" && !std::exchange(lost, true) ? Fate::kLost : Fate::kFine;
  };
  source_->evicted(page_of(1), make_page(page_of(1), Llsn{5}).data());
  for (uint32_t i = 10; i < 40; ++i) ASSERT_TRUE(write(page_of(i), 6, 60).ok());
  source_->do_work();
  EXPECT_TRUE(lost);
  EXPECT_EQ(nodes_[0].llsn(page_of(1)), Llsn{});
  EXPECT_EQ(nodes_[1].llsn(page_of(1)), Llsn{});
}

// What is wrong with the used copy while a page is dropped from the backup is not the backup's
// fault: it takes over.
TEST_F(Mirror, AUsedCopyThatIsLostWhileTheBackupIsAttachedLeavesTheBackup) {  // MIR2
  ASSERT_TRUE(write(page_of(1), 5, 50).ok());
  ASSERT_TRUE(source_->sync_below(Lsn{100}).ok());
  bool drop_lost = false, content_lost = false;
  nodes_[1].fate = [&](const char* call) {
    return std::string(call) == "drop" && !std::exchange(drop_lost, true) ? Fate::kLost
                                                                          : Fate::kFine;
  };
  nodes_[0].fate = [&](const char* call) {
    if (drop_lost && std::string(call) == "lookup" && !std::exchange(content_lost, true))
      nodes_[0].lose();
    return Fate::kFine;
  };
  source_->evicted(page_of(1), make_page(page_of(1), Llsn{5}).data());
  for (uint32_t i = 10; i < 40; ++i) ASSERT_TRUE(write(page_of(i), 6, 60).ok());
  source_->do_work();
  EXPECT_TRUE(content_lost);
  EXPECT_TRUE(source_->ended().ok()) << source_->ended();
  EXPECT_EQ(mirror_->switches(), 1u);
  EXPECT_EQ(named().used, 1u);
  for (uint32_t i = 10; i < 40; ++i) EXPECT_EQ(*read(page_of(i)), 6u);
  EXPECT_EQ(*read(page_of(1)), 5u);
}

// Two threads tell the backup at once what is durable, and a third one's call fails meanwhile:
// nothing is forgotten to be told.
TEST_F(Mirror, WhatIsDurableIsToldToTheBackupWhoeverTellsItMeanwhile) {  // MIR3
  const std::vector<proto::PoolTarget> targets = {{"a", storage_.session()}};
  const auto flush_to_storage = [&](uint32_t page) {
    EXPECT_TRUE(write(page_of(page), 5, 50).ok());
    const auto reply = mirror_->write(Lsn{UINT64_MAX}, 64, targets);
    EXPECT_TRUE(reply.ok()) << reply.status();
    EXPECT_TRUE(storage_.sync().ok());
    return reply.ok() ? reply->report : 0;
  };
  const uint64_t first = flush_to_storage(1);
  int calls = 0;
  nodes_[1].fate = [&](const char* call) {
    if (std::string(call) != "stored") return Fate::kFine;
    const int number = ++calls;
    if (number == 3) return Fate::kNotRun;
    if (number == 1) {
      EXPECT_TRUE(mirror_->synced(flush_to_storage(2)).ok());
      EXPECT_FALSE(mirror_->synced(flush_to_storage(3)).ok());
    }
    return Fate::kFine;
  };
  EXPECT_TRUE(mirror_->synced(first).ok());
  EXPECT_EQ(calls, 4);
  for (uint32_t page = 1; page <= 3; ++page) {
    EXPECT_FALSE(is_dirty(0, page_of(page))) << page;
    EXPECT_FALSE(is_dirty(1, page_of(page))) << page;
  }
}

// The used copy takes pages for clean, the backup is lost before it is told, so the call is not OK.
TEST_F(Mirror, WhatTheUsedCopyHasCleanedIsKnownToBeCleanWhenTheBackupIsLost) {  // MIR2
  ASSERT_TRUE(write(page_of(1), 5, 50).ok());
  nodes_[1].fate = [&](const char* call) {
    if (std::string(call) == "stored") lose(1);
    return Fate::kFine;
  };
  ASSERT_TRUE(source_->sync_below(Lsn{100}).ok());
  EXPECT_EQ(mirror_->backup(), Backup::kNone);
  EXPECT_FALSE(is_dirty(0, page_of(1)));
  EXPECT_EQ(source_->directory().dirty(), 0u) << "its slot would never be freed";
  // Nothing is lost with the other one.
  lose(0);
  EXPECT_EQ(*read(page_of(1)), 5u);
  EXPECT_TRUE(write(page_of(2), 6, 200).ok());
  EXPECT_TRUE(source_->attachment().bypassed());
}

// Both copies were told the same, in the same order: slots and generations are the same in both.
TEST_F(Mirror, WhatCouldNotBeReadOfALostCopyIsNotDamagedInTheOther) {  // MS1, PAT2
  ASSERT_TRUE(write(page_of(1), 5, 50).ok());
  ASSERT_EQ(nodes_[0].slot(page_of(1))->number, nodes_[1].slot(page_of(1))->number);
  ASSERT_EQ(nodes_[0].slot(page_of(1))->generation, nodes_[1].slot(page_of(1))->generation);
  nodes_[0].lose();
  const auto found = read(page_of(1));
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(*found, 5u);
  EXPECT_EQ(mirror_->switches(), 1u);
  EXPECT_EQ(source_->counters().damaged_dirty, 0u);
  nodes_[1].flip_bit(page_of(1));
  EXPECT_TRUE(is_corruption(read(page_of(1)).status()));
}

// The call that found the used copy lost has said not_found, and by when the backup had taken over
// no time was left for another one.
TEST_F(Mirror, ALossThatTakesTooLongToHealIsNotToldAsAPageThatNeverWas) {  // PAT4
  ASSERT_TRUE(write(page_of(1), 5, 50).ok());
  open();  // its list has not been read: the memory node is asked about each page
  source_->look_after_pool();
  ASSERT_TRUE(source_->sync_below(Lsn{100}).ok());
  ASSERT_EQ(mirror_->backup(), Backup::kCounts);
  ASSERT_TRUE(write(page_of(2), 6, 110).ok());
  ASSERT_FALSE(source_->directory().complete());
  nodes_[0].lose();
  nodes_[1].fate = [](const char* call) {
    if (std::string(call) == "attach") std::this_thread::sleep_for(kTimeout);
    return Fate::kFine;
  };
  const Status late = read(page_of(2)).status();
  EXPECT_TRUE(may_be_repeated(late)) << late;
  EXPECT_EQ(mirror_->switches(), 1u);
  EXPECT_EQ(*read(page_of(2)), 6u);
  EXPECT_EQ(*read(page_of(1)), 5u);
}

}  // namespace
}  // namespace strata::clients
