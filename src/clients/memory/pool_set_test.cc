// Goal: PST1-PST5 (pool_set.h), one case each. Method: two memory nodes and storage in memory that
// fail as the test says; no threads, so that each thing happens when the test says.
#include "clients/memory/pool_set.h"

#include <gtest/gtest.h>

#include <array>

#include "base/clock.h"
#include "base/diag.h"
#include "clients/memory/testing/fake_pool.h"
#include "clients/memory/testing/fake_storage.h"

namespace strata::clients {
namespace {

using testing::FakeMemoryNode;
using testing::FakeNames;
using testing::FakePool;
using testing::FakeStorage;
using testing::Fate;
using testing::llsn_of;
using testing::make_page;

// Page n is in place n % 2.
PageId page_of(uint32_t n) {
  for (uint32_t number = n * 1000;; number += 16)
    if (place_of({300, number}, 2) == n % 2) return {300, number};
}

class Pools : public ::testing::Test {
 protected:
  Pools() {
    set_diag_sink([](Severity, std::string_view) {});
    open();
  }
  ~Pools() override { set_diag_sink(nullptr); }

  void open() {
    set_.reset();
    storage_.new_life();
    names_.epoch = Epoch{++epoch_};
    std::vector<PoolSet::Member> members;
    for (size_t i = 0; i < 2; ++i) {
      pools_[i] = std::make_unique<FakePool>(&nodes_[i], epoch_);
      members.push_back({pools_[i].get(), names_.of(i)});
    }
    MemoryPagesOptions options;
    options.durable = [] { return Lsn{1'000'000}; };
    options.free_slots = 4;
    options.reserve_slots = 2;
    options.timeout_us = 20'000;
    options.pause_us = 1'000;
    options.new_pool_us = 0;
    options.keeps_up = false;
    auto opened = PoolSet::open(options, members, &storage_);
    ASSERT_TRUE(opened.ok()) << opened.status();
    set_ = *std::move(opened);
  }
  Status write(const std::vector<PageId>& ids, uint64_t llsn, uint64_t first = 10) {
    std::string pages;
    for (const PageId id : ids) pages += make_page(id, Llsn{llsn});
    const std::vector<PageChanges> changes(ids.size(), {Lsn{first}, Lsn{first + 1}});
    std::array<bool, kWriteBatchPages> ok{};
    const Status status = set_->write_changed(
        ids.data(), changes.data(), static_cast<uint32_t>(ids.size()), pages.data(), ok.data());
    for (size_t i = 0; i < ids.size() && status.ok(); ++i) EXPECT_TRUE(ok[i]);
    return status;
  }
  StatusOr<uint64_t> read(PageId id) {
    std::string page(kPageBytes, 'x');
    STRATA_RETURN_IF_ERROR(set_->read(id, Llsn{}, page.data()));
    EXPECT_EQ(page, make_page(id, llsn_of(page)));
    return llsn_of(page).value;
  }
  void down(size_t place) {
    nodes_[place].fate = [](const char*) { return Fate::kNotRun; };
  }
  void up(size_t place) {
    nodes_[place].fate = [](const char*) { return Fate::kFine; };
  }

  FakeStorage storage_;
  FakeNames names_{2};
  std::array<FakeMemoryNode, 2> nodes_{FakeMemoryNode(32, 2, &storage_),
                                       FakeMemoryNode(32, 2, &storage_)};
  uint64_t epoch_ = 0;
  std::array<std::unique_ptr<FakePool>, 2> pools_;
  std::unique_ptr<PoolSet> set_;
};

TEST(Places, StayAsTheyWereAndAreEvenlyUsed) {  // PST1
  // What registry records of earlier releases say of their pools holds: these never change.
  EXPECT_EQ(place_of({300, 0}, 1), 0u);
  std::string first;
  for (uint32_t i = 0; i < 32; ++i) first += static_cast<char>('0' + place_of({300, i * 16}, 3));
  EXPECT_EQ(first, "22200101020200100211000000221111");
  EXPECT_EQ(place_of({300, 31}, 3), place_of({300, 16}, 3)) << "read together";
  std::array<uint32_t, 5> pages{};
  for (uint32_t i = 0; i < 50'000; ++i) ++pages[place_of({7 + i % 3, i * 4}, 5)];
  for (const uint32_t count : pages) EXPECT_NEAR(count, 10'000, 500);
}

TEST_F(Pools, EachPageIsInItsPlaceAndBatchesGoToAll) {  // PST1
  const std::vector<PageId> ids = {page_of(1), page_of(2), page_of(3), page_of(4)};
  ASSERT_TRUE(write(ids, 5).ok());
  for (uint32_t n = 1; n <= 4; ++n) {
    EXPECT_EQ(nodes_[n % 2].llsn(page_of(n)), Llsn{5});
    EXPECT_EQ(nodes_[1 - n % 2].llsn(page_of(n)), Llsn{});
    EXPECT_EQ(*read(page_of(n)), 5u);
  }
  // Two of storage, in the order of places that the call had.
  storage_.put(page_of(5), make_page(page_of(5), Llsn{7}));
  storage_.put(page_of(6), make_page(page_of(6), Llsn{8}));
  const std::array<PageId, 5> batch = {page_of(1), page_of(4), page_of(5), page_of(6), page_of(7)};
  const AlignedBytes pages(batch.size() * kPageBytes);
  std::array<Status, 5> results;
  nodes_[0].batches = nodes_[1].batches = storage_.batches = 0;
  bool done = false;
  set_->start_read_batch(batch.data(), batch.size(), pages.get(), results.data(),
                         [&] { done = true; });
  ASSERT_TRUE(done);
  const std::array<uint64_t, 4> wanted = {5, 5, 7, 8};
  for (size_t i = 0; i < wanted.size(); ++i) {
    ASSERT_TRUE(results[i].ok()) << results[i];
    EXPECT_EQ(std::string(pages.get() + i * kPageBytes, kPageBytes),
              make_page(batch[i], Llsn{wanted[i]}));
  }
  EXPECT_TRUE(is_not_found(results[4]));
  EXPECT_EQ(nodes_[0].batches + nodes_[1].batches + storage_.batches, 3u);
  set_->do_work();
  EXPECT_EQ(nodes_[1].llsn(page_of(5)), Llsn{7});
  EXPECT_EQ(nodes_[0].llsn(page_of(6)), Llsn{8});
}

TEST_F(Pools, ACheckpointInMemoryIsTheLeastOfAll) {  // PST2
  ASSERT_TRUE(write({page_of(1), page_of(2)}, 5, 50).ok());
  ASSERT_TRUE(*set_->publish_memory_checkpoint({Lsn{100}, 3}));
  // The second note of two is not made.
  nodes_[1].fate = [](const char* call) {
    return std::string(call) == "checkpoint" ? Fate::kNotRun : Fate::kFine;
  };
  EXPECT_FALSE(set_->publish_memory_checkpoint({Lsn{200}, 4}).ok());
  EXPECT_EQ(nodes_[0].checkpoint(), Lsn{200});
  up(1);
  open();
  ASSERT_TRUE(set_->memory_checkpoint().has_value());
  EXPECT_EQ(set_->memory_checkpoint()->lsn, Lsn{100});
}

TEST_F(Pools, WhatOneLostPoolHadMakesTheNotesOfOthersVoid) {  // PST2, MPR4
  ASSERT_TRUE(write({page_of(1), page_of(2)}, 5, 50).ok());
  ASSERT_TRUE(*set_->publish_memory_checkpoint({Lsn{100}, 0}));
  nodes_[1].lose();
  open();
  EXPECT_EQ(set_->memory_checkpoint(), std::nullopt);
  EXPECT_EQ(*read(page_of(2)), 5u) << "the other one is warm";
  EXPECT_EQ(storage_.reads, 0u);
  // Killed before it has made the lost pages again, with the lost pool unnamed and not there.
  nodes_[1].lose();
  down(1);
  open();
  open();
  EXPECT_EQ(names_.now[1], std::nullopt);
  EXPECT_EQ(set_->memory_checkpoint(), std::nullopt) << "page 1 would be lost";
  // Once it has, its own note counts.
  ASSERT_TRUE(write({page_of(1)}, 5, 50).ok());
  EXPECT_EQ(storage_.llsn(page_of(1)), Llsn{5});
  ASSERT_TRUE(*set_->publish_memory_checkpoint({Lsn{100}, 0}));
  open();
  ASSERT_TRUE(set_->memory_checkpoint().has_value());
  EXPECT_EQ(set_->memory_checkpoint()->lsn, Lsn{100});
}

TEST_F(Pools, WhatWentPastOnePoolIsSyncedBeforeAnotherNotesACheckpoint) {  // PST2
  nodes_[1].lose();
  down(1);
  EXPECT_TRUE(write({page_of(1)}, 5).ok());
  EXPECT_EQ(storage_.durable_llsn(page_of(1)), Llsn{});
  bool synced_first = false;
  nodes_[0].fate = [&](const char* call) {
    if (std::string(call) == "checkpoint")
      synced_first = storage_.durable_llsn(page_of(1)) == Llsn{5};
    return Fate::kFine;
  };
  ASSERT_TRUE(*set_->publish_memory_checkpoint({Lsn{100}, 0}));
  EXPECT_TRUE(synced_first);
}

TEST_F(Pools, ACheckpointInStorageHasThePagesOfEveryPool) {  // PST3
  ASSERT_TRUE(write({page_of(1), page_of(2)}, 5, 50).ok());
  ASSERT_TRUE(set_->sync_below(Lsn{100}).ok());
  EXPECT_EQ(storage_.durable_llsn(page_of(1)), Llsn{5});
  EXPECT_EQ(storage_.durable_llsn(page_of(2)), Llsn{5});
  ASSERT_TRUE(write({page_of(1), page_of(2)}, 6, 110).ok());
  down(1);
  EXPECT_FALSE(set_->sync_below(Lsn{200}).ok());
}

TEST_F(Pools, ALostCleanPoolIsGoneAroundAndTheOtherStaysWarm) {  // PST4
  ASSERT_TRUE(write({page_of(1), page_of(2)}, 5).ok());
  ASSERT_TRUE(set_->sync_below(Lsn{100}).ok());
  ASSERT_TRUE(write({page_of(2)}, 6, 150).ok());
  nodes_[1].lose();
  down(1);
  EXPECT_EQ(*read(page_of(1)), 5u);
  EXPECT_TRUE(write({page_of(1), page_of(2)}, 7, 200).ok());
  EXPECT_TRUE(set_->ended().ok());
  EXPECT_EQ(storage_.llsn(page_of(1)), Llsn{7});
  EXPECT_EQ(nodes_[0].llsn(page_of(2)), Llsn{7});
  EXPECT_EQ(names_.now[1], std::nullopt);
  EXPECT_EQ(names_.losses, std::vector<PoolLoss>{PoolLoss::kNothing});
  ASSERT_TRUE(*set_->publish_memory_checkpoint({Lsn{300}, 0}));
  open();
  ASSERT_TRUE(set_->memory_checkpoint().has_value()) << "of the other one, as nothing was lost";
  up(1);
  set_->do_work();
  EXPECT_TRUE(names_.now[1].has_value());
  ASSERT_TRUE(write({page_of(1)}, 8, 310).ok());
  EXPECT_EQ(nodes_[1].llsn(page_of(1)), Llsn{8});
}

// One that comes back after the registry was asked to forget it, and nobody has heard whether it
// did. The next life would do without its pages, and believe the checkpoint of the other pool.
TEST_F(Pools, APoolThatMayBeUnnamedIsNamedAgainBeforeItIsUsed) {  // PAT2, PST2
  ASSERT_TRUE(write({page_of(1), page_of(2)}, 5, 50).ok());
  ASSERT_TRUE(set_->sync_below(Lsn{100}).ok());
  down(1);
  names_.reply_lost = true;
  EXPECT_FALSE(write({page_of(1)}, 6, 150).ok());
  EXPECT_EQ(names_.now[1], std::nullopt);
  up(1);
  EXPECT_FALSE(write({page_of(1)}, 6, 150).ok()) << "it may still be unnamed";
  names_.reply_lost = false;
  ASSERT_TRUE(write({page_of(1)}, 6, 150).ok());
  EXPECT_EQ(nodes_[1].llsn(page_of(1)), Llsn{6});
  EXPECT_EQ(names_.now[1], nodes_[1].incarnation());
  ASSERT_TRUE(*set_->publish_memory_checkpoint({Lsn{200}, 0}));
  open();
  ASSERT_TRUE(set_->memory_checkpoint().has_value());
  EXPECT_EQ(set_->memory_checkpoint()->lsn, Lsn{200});
  EXPECT_EQ(*read(page_of(1)), 6u) << "its change is not in the log that is redone";
}

TEST_F(Pools, ALostDirtyPoolEndsAll) {  // PST4
  ASSERT_TRUE(write({page_of(1), page_of(2)}, 5).ok());
  nodes_[1].lose();
  EXPECT_FALSE(write({page_of(1)}, 6).ok());
  EXPECT_TRUE(is_ended(set_->ended()));
  EXPECT_FALSE(set_->publish_memory_checkpoint({Lsn{300}, 0}).ok());
  EXPECT_EQ(nodes_[0].checkpoint(), Lsn{}) << "nothing is promised any more";
}

TEST_F(Pools, AnIdleNodeThatIsLostIsNoticed) {  // MS9
  ASSERT_TRUE(write({page_of(1)}, 5).ok());
  nodes_[1].lose();
  EXPECT_TRUE(set_->ended().ok());
  set_->look_after_pools();
  EXPECT_TRUE(is_ended(set_->ended()));
}

TEST_F(Pools, AnIdleNodeHasSomeTimeToComeBack) {  // MS9
  ASSERT_TRUE(write({page_of(1)}, 5).ok());
  down(1);
  const uint64_t begun_us = monotonic_us();
  set_->look_after_pools();
  EXPECT_TRUE(set_->ended().ok()) << "nobody waits for it";
  up(1);
  set_->look_after_pools();
  down(1);
  while (set_->ended().ok() && monotonic_us() - begun_us < 10'000'000) set_->look_after_pools();
  EXPECT_TRUE(is_ended(set_->ended()));
  EXPECT_GE(monotonic_us() - begun_us, 80'000u);
}

TEST_F(Pools, AStorageNodeIsToldAgainByAll) {  // PST5
  ASSERT_TRUE(write({page_of(1), page_of(2)}, 5, 50).ok());
  // Both have written, and storage has not synced it.
  storage_.fault = [](const char* call) {
    return std::string(call) == "sync" ? error_peer_down("not now") : ok_status();
  };
  EXPECT_FALSE(set_->sync_below(Lsn{100}).ok());
  const uint64_t session = storage_.session();
  ASSERT_TRUE(pools_[1]->write(Lsn{100}, 64, {{"a", session}, {"b", session}}).ok());
  storage_.fault = [](const char*) { return ok_status(); };
  storage_.restart();
  EXPECT_EQ(storage_.llsn(page_of(1)), Llsn{});
  EXPECT_EQ(storage_.llsn(page_of(2)), Llsn{});
  ASSERT_TRUE(storage_.sync().ok());
  EXPECT_EQ(storage_.durable_llsn(page_of(1)), Llsn{5});
  EXPECT_EQ(storage_.durable_llsn(page_of(2)), Llsn{5});
  // One that cannot tell it leaves it without everything.
  storage_.restart();
  down(1);
  EXPECT_FALSE(storage_.sync().ok());
}

TEST_F(Pools, NothingOfADroppedSpaceStaysInAnyPool) {
  ASSERT_TRUE(write({page_of(1), page_of(2)}, 5).ok());
  ASSERT_TRUE(set_->delete_space(SpaceId{300}).ok());
  EXPECT_EQ(nodes_[0].size() + nodes_[1].size(), 0u);
  EXPECT_FALSE(storage_.late_write_to_deleted);
}

}  // namespace
}  // namespace strata::clients
