// Goal: MS1-MS8 (memory_page_source.h) and PAT1-PAT4 (pool_attachment.h), one case each. Method: a
// memory node and storage in memory that fail as the test says; no threads, so that each thing
// happens when the test says (do_work()).
#include "clients/memory/memory_page_source.h"

#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <thread>

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

constexpr PageId page_of(uint32_t number) { return {300, number}; }

class MemoryPages : public ::testing::Test {
 protected:
  MemoryPages() {
    set_diag_sink([](Severity, std::string_view) {});
    open();
  }
  ~MemoryPages() override { set_diag_sink(nullptr); }

  void open() {
    source_.reset();
    storage_.new_life();
    pool_ = std::make_unique<FakePool>(&node_, ++epoch_);
    auto opened = MemoryPageSource::open(options(), pool_.get(), naming_.of(0), &storage_);
    ASSERT_TRUE(opened.ok()) << opened.status();
    source_ = *std::move(opened);
  }
  MemoryPagesOptions options() {
    MemoryPagesOptions options;
    options.durable = [this] { return durable_; };
    options.free_slots = 4;
    options.reserve_slots = 2;
    options.timeout_us = 200'000;
    options.pause_us = 1'000;
    options.new_pool_us = 0;
    options.remote_addresses = remote_addresses_;
    options.keeps_up = false;
    return options;
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
  void evict(PageId id, uint64_t llsn) {
    std::string page = make_page(id, Llsn{llsn});
    header_of(page.data())->crc32c ^= 77;  // an old one
    source_->evicted(id, page.data());
  }
  void flush() { ASSERT_TRUE(source_->sync_below(Lsn{UINT64_MAX}).ok()); }

  Lsn durable_{1'000'000};
  bool remote_addresses_ = true;
  FakeStorage storage_;
  FakeNames naming_;
  FakeMemoryNode node_{32, 2, &storage_};
  uint64_t epoch_ = 0;
  std::unique_ptr<FakePool> pool_;
  std::unique_ptr<MemoryPageSource> source_;
};

// --- reading ---

TEST_F(MemoryPages, AWrittenPageIsReadFromItsSlot) {  // MS1
  ASSERT_TRUE(write(page_of(1), 5).ok());
  EXPECT_EQ(*read(page_of(1)), 5u);
  EXPECT_EQ(storage_.reads, 0u);
  EXPECT_EQ(node_.lookups, 0u);
  EXPECT_EQ(source_->counters().from_pool, 1u);
}

TEST_F(MemoryPages, APageOfStorageIsRegisteredAndThenReadFromThePool) {  // MS5
  storage_.put(page_of(1), make_page(page_of(1), Llsn{7}));
  EXPECT_EQ(*read(page_of(1)), 7u);
  EXPECT_EQ(node_.llsn(page_of(1)), Llsn{});
  source_->do_work();
  EXPECT_EQ(node_.llsn(page_of(1)), Llsn{7});
  EXPECT_EQ(*read(page_of(1)), 7u);
  EXPECT_EQ(storage_.reads, 1u);
  EXPECT_TRUE(is_not_found(read(page_of(2)).status()));
}

TEST_F(MemoryPages, AnEvictedPageIsRegisteredSealedAnew) {  // MS5
  storage_.put(page_of(1), make_page(page_of(1), Llsn{7}));
  evict(page_of(1), 7);
  source_->do_work();
  EXPECT_EQ(*read(page_of(1)), 7u);
  EXPECT_EQ(storage_.reads, 0u);
}

TEST_F(MemoryPages, AStagedCopyIsVoidOncePagesAreWritten) {
  storage_.put(page_of(1), make_page(page_of(1), Llsn{7}));
  EXPECT_EQ(*read(page_of(1)), 7u);
  node_.fate = [](const char*) { return Fate::kFine; };
  // Full for the moment, so that the page is written past the pool.
  for (uint32_t i = 10; i < 40; ++i) ASSERT_TRUE(write(page_of(i), 3).ok());
  ASSERT_TRUE(write(page_of(1), 8).ok());
  EXPECT_EQ(storage_.llsn(page_of(1)), Llsn{8});
  flush();
  for (uint32_t i = 10; i < 40; ++i) evict(page_of(i), 3);
  source_->do_work();  // drops, so that there is room; registers nothing
  source_->do_work();
  EXPECT_NE(node_.llsn(page_of(1)), Llsn{7});
  EXPECT_EQ(*read(page_of(1)), 8u);
}

TEST_F(MemoryPages, ACopyFromBeforeAWriteIsNotRegisteredOnceThereIsRoom) {
  storage_.put(page_of(1), make_page(page_of(1), Llsn{7}));
  EXPECT_EQ(*read(page_of(1)), 7u);  // staged
  const SpaceId other{301};
  for (uint32_t i = 0; i < 30; ++i) ASSERT_TRUE(write({other.value, i}, 3).ok());
  ASSERT_TRUE(write(page_of(1), 8).ok());  // past the full pool
  ASSERT_EQ(storage_.llsn(page_of(1)), Llsn{8});
  ASSERT_TRUE(source_->delete_space(other).ok());
  source_->do_work();
  EXPECT_NE(node_.llsn(page_of(1)), Llsn{7});
  EXPECT_EQ(*read(page_of(1)), 8u);
}

TEST_F(MemoryPages, ASlotWithAnotherContentIsLookedUp) {
  ASSERT_TRUE(write(page_of(1), 5).ok());
  flush();
  node_.move(page_of(1));
  EXPECT_EQ(*read(page_of(1)), 5u);
  EXPECT_EQ(source_->counters().mismatches, 3u);
  EXPECT_EQ(source_->counters().lookups, 1u);
  EXPECT_EQ(storage_.reads, 0u);
}

TEST_F(MemoryPages, ADamagedCleanPageComesFromStorage) {
  ASSERT_TRUE(write(page_of(1), 5).ok());
  flush();
  node_.flip_bit(page_of(1));
  EXPECT_EQ(*read(page_of(1)), 5u);
  EXPECT_EQ(source_->counters().damaged_clean, 1u);
  EXPECT_EQ(storage_.reads, 1u);
  EXPECT_FALSE(node_.slot(page_of(1)).has_value());
  source_->do_work();
  EXPECT_EQ(*read(page_of(1)), 5u);
  EXPECT_EQ(storage_.reads, 1u);
}

TEST_F(MemoryPages, ADamagedDirtyPageIsReported) {
  storage_.put(page_of(1), make_page(page_of(1), Llsn{4}));
  ASSERT_TRUE(write(page_of(1), 5).ok());
  node_.flip_bit(page_of(1));
  EXPECT_TRUE(is_corruption(read(page_of(1)).status()));
  EXPECT_EQ(source_->counters().damaged_dirty, 1u);
  EXPECT_EQ(storage_.reads, 0u);
}

TEST_F(MemoryPages, ADirtyPageThatIsGoneIsNeverReadFromStorage) {
  storage_.put(page_of(1), make_page(page_of(1), Llsn{4}));
  ASSERT_TRUE(write(page_of(1), 5).ok());
  node_.forget(page_of(1));
  EXPECT_TRUE(is_corruption(read(page_of(1)).status()));
  EXPECT_TRUE(is_corruption(read(page_of(1)).status()));
  EXPECT_EQ(storage_.reads, 0u);
}

TEST_F(MemoryPages, ABatchIsOneCallToStorageAndOneBatchOfGets) {
  for (uint32_t i = 0; i < 8; ++i) ASSERT_TRUE(write(page_of(i), 5 + i).ok());
  for (uint32_t i = 8; i < 12; ++i) storage_.put(page_of(i), make_page(page_of(i), Llsn{5 + i}));
  std::vector<PageId> ids;
  for (uint32_t i = 13; i-- > 0;) ids.push_back(page_of(i));
  const AlignedBytes pages(ids.size() * size_t{kPageBytes});
  std::vector<Status> results(ids.size());
  int done = 0;
  source_->start_read_batch(ids.data(), 13, pages.get(), results.data(), [&] { ++done; });
  EXPECT_EQ(done, 1);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i].number == 12) {
      EXPECT_TRUE(is_not_found(results[i]));
      continue;
    }
    EXPECT_TRUE(results[i].ok()) << results[i];
    EXPECT_EQ(std::string(pages.get() + i * kPageBytes, kPageBytes),
              make_page(ids[i], Llsn{5 + ids[i].number}));
  }
  EXPECT_EQ(storage_.batches, 1u);
  EXPECT_EQ(node_.batches, 1u);
  source_->read_batch(ids.data() + 5, 8, pages.get(), results.data());
  EXPECT_EQ(storage_.batches, 1u);
}

TEST_F(MemoryPages, WithoutRemoteAddressesEveryReadAsks) {
  remote_addresses_ = false;
  open();
  ASSERT_TRUE(write(page_of(1), 5).ok());
  EXPECT_EQ(*read(page_of(1)), 5u);
  EXPECT_EQ(*read(page_of(1)), 5u);
  EXPECT_EQ(node_.lookups, 2u);
}

// --- a later life ---

TEST_F(MemoryPages, ALaterLifeFindsThePoolAndItsCheckpoint) {  // PAT2
  ASSERT_TRUE(write(page_of(1), 5).ok());
  ASSERT_TRUE(source_->publish_memory_checkpoint({Lsn{50}, 3}).ok());
  const uint64_t incarnation = node_.incarnation();
  open();
  EXPECT_EQ(node_.incarnation(), incarnation);
  ASSERT_TRUE(source_->memory_checkpoint().has_value());
  EXPECT_EQ(source_->memory_checkpoint()->lsn, Lsn{50});
  EXPECT_EQ(source_->memory_checkpoint()->llsn_bias, 3u);
  EXPECT_FALSE(source_->directory().complete());
  EXPECT_EQ(*read(page_of(1)), 5u);  // asks
  EXPECT_EQ(node_.lookups, 1u);
  EXPECT_TRUE(is_not_found(read(page_of(2)).status()));
  EXPECT_EQ(node_.lookups, 2u);
  source_->do_work();
  EXPECT_TRUE(source_->directory().complete());
  EXPECT_TRUE(is_not_found(read(page_of(2)).status()));
  EXPECT_EQ(node_.lookups, 2u);
}

TEST_F(MemoryPages, APoolThatTheRegistryDoesNotNameCountsForNothing) {
  ASSERT_TRUE(write(page_of(1), 5).ok());
  ASSERT_TRUE(source_->publish_memory_checkpoint({Lsn{50}, 3}).ok());
  naming_.now[0].reset();
  open();
  EXPECT_FALSE(source_->memory_checkpoint().has_value());
  EXPECT_TRUE(source_->directory().complete());
  EXPECT_EQ(node_.size(), 0u);
  EXPECT_EQ(naming_.now[0], node_.incarnation());
}

TEST_F(MemoryPages, AFoundPoolMayBeDiscarded) {
  ASSERT_TRUE(write(page_of(1), 5).ok());
  ASSERT_TRUE(source_->publish_memory_checkpoint({Lsn{50}, 3}).ok());
  open();
  ASSERT_TRUE(source_->discard_pool().ok());
  EXPECT_FALSE(source_->memory_checkpoint().has_value());
  EXPECT_EQ(node_.size(), 0u);
  EXPECT_EQ(naming_.now[0], node_.incarnation());
  EXPECT_TRUE(is_not_found(read(page_of(1)).status()));
  ASSERT_TRUE(write(page_of(1), 6).ok());
  EXPECT_EQ(*read(page_of(1)), 6u);
}

TEST_F(MemoryPages, ANamedPoolThatDoesNotAnswerIsUnnamedFirst) {  // PAT2
  ASSERT_TRUE(write(page_of(1), 5).ok());
  node_.fate = [](const char*) { return Fate::kNotRun; };
  open();
  EXPECT_FALSE(naming_.now[0].has_value());
  EXPECT_TRUE(source_->attachment().bypassed());
  EXPECT_FALSE(source_->memory_checkpoint().has_value());
  ASSERT_TRUE(write(page_of(2), 6).ok());
  EXPECT_EQ(storage_.llsn(page_of(2)), Llsn{6});
  node_.fate = [](const char*) { return Fate::kFine; };
  source_->do_work();
  EXPECT_TRUE(source_->attachment().attached());
  EXPECT_EQ(naming_.now[0], node_.incarnation());
  EXPECT_FALSE(node_.slot(page_of(1)).has_value());
}

TEST_F(MemoryPages, ALaterUserEndsThisOne) {
  ASSERT_TRUE(write(page_of(1), 5).ok());
  FakePool later(&node_, epoch_ + 1);
  ASSERT_TRUE(later.attach(0, false, 0).ok());
  EXPECT_TRUE(is_fenced(write(page_of(1), 6)));
  EXPECT_TRUE(is_fenced(source_->ended()));
  EXPECT_TRUE(is_fenced(read(page_of(2)).status()));
  EXPECT_EQ(storage_.direct_writes, 0u);
}

// --- what readers are told (PAT4) ---

// Its process was started again, so that the first call finds nobody attached; by when that is put
// right the reader has no time left.
TEST_F(MemoryPages, ANodeThatIsBackTooLateIsNotToldAsAPageThatNeverWas) {
  ASSERT_TRUE(write(page_of(1), 5).ok());
  open();
  ASSERT_FALSE(source_->directory().complete());
  node_.fate = [&](const char* call) {
    if (std::string(call) == "attach")
      std::this_thread::sleep_for(std::chrono::microseconds(options().timeout_us));
    return Fate::kFine;
  };
  node_.restart();
  const Status late = read(page_of(1)).status();
  EXPECT_TRUE(may_be_repeated(late)) << late;
  node_.restart();
  std::string page(kPageBytes, 'x');
  Status result;
  const PageId id = page_of(1);
  source_->read_batch(&id, 1, page.data(), &result);
  EXPECT_TRUE(may_be_repeated(result)) << result;
  node_.restart();
  const Status written = write(page_of(1), 6);
  EXPECT_TRUE(may_be_repeated(written)) << written;
  EXPECT_TRUE(source_->ended().ok());
  EXPECT_EQ(*read(page_of(1)), 5u);
  EXPECT_EQ(storage_.reads, 0u);
}

TEST_F(MemoryPages, WhatBecameOfTheMemoryOfTheNodeIsNotToldOfThePage) {
  ASSERT_TRUE(write(page_of(1), 5).ok());
  const PageId id = page_of(1);
  std::string page(kPageBytes, 'x');
  for (const Status& fault : {error_withdrawn("the region"), error_not_found("no such region"),
                              error_fenced("another one"), error_peer_down("no answer")}) {
    node_.get_fault = [&](PageId) { return fault; };
    Status result;
    source_->read_batch(&id, 1, page.data(), &result);
    EXPECT_TRUE(may_be_repeated(result)) << result;
    result = read(id).status();
    EXPECT_TRUE(may_be_repeated(result)) << result;
  }
  node_.get_fault = [](PageId) { return ok_status(); };
  EXPECT_EQ(*read(id), 5u);
  EXPECT_EQ(storage_.reads, 0u);
}

TEST(ToldAbove, NothingThatMeansSomethingOfAPageOrEndsARight) {
  for (const Status& why : {error_not_found(), error_corruption(), error_conflict(),
                            error_out_of_range(), error_fenced(), error_withdrawn(), error_ended()})
    EXPECT_TRUE(is_peer_down(told_above(why))) << why;
  for (const Status& why : {ok_status(), error_timed_out(), error_outcome_unknown(), error_busy(),
                            error_interrupted(), error_wrong_secret(), error_no_space()})
    EXPECT_EQ(told_above(why), why);
  EXPECT_EQ(told_above(error_not_found("no pool")).message(), "the memory node's pool: no pool");
}

// --- writing ---

TEST_F(MemoryPages, WithoutASlotAPageIsWrittenPastAFullPool) {  // MS2
  uint32_t number = 0;
  while (storage_.direct_writes == 0 && number < 100) ASSERT_TRUE(write(page_of(number++), 5).ok());
  EXPECT_EQ(number, 31u);  // 2 slots are the node's
  EXPECT_EQ(storage_.llsn(page_of(30)), Llsn{5});
  EXPECT_EQ(*read(page_of(30)), 5u);
  ASSERT_TRUE(write(page_of(3), 6).ok());  // one with a slot goes into the reserve
  EXPECT_EQ(storage_.direct_writes, 1u);
  EXPECT_EQ(*read(page_of(3)), 6u);
}

TEST_F(MemoryPages, APageWithASlotIsNeverWrittenPastThePool) {
  class NoReserve final : public RemotePool {  // all slots are taken, the reserve as well
   public:
    explicit NoReserve(FakePool* pool) : pool_(pool) {}
    StatusOr<AttachedPool> attach(uint64_t i, bool f, uint64_t d) override {
      return pool_->attach(i, f, d);
    }
    StatusOr<proto::PoolListReply> list(uint32_t from) override { return pool_->list(from); }
    StatusOr<std::vector<proto::PoolPutReply::Taken>> put(
        const std::vector<proto::PoolImage>& images, Bytes pages, Lsn durable) override {
      if (!full) return pool_->put(images, pages, durable);
      return std::vector<proto::PoolPutReply::Taken>(images.size(), {error_no_space(), 0, 0});
    }
    StatusOr<std::vector<proto::PoolLookupReply::Found>> lookup(
        const std::vector<PageId>& pages) override {
      return pool_->lookup(pages);
    }
    StatusOr<std::vector<Status>> drop(const std::vector<PageId>& pages) override {
      return pool_->drop(pages);
    }
    Status forget_space(SpaceId space) override { return pool_->forget_space(space); }
    StatusOr<proto::PoolWriteReply> write(Lsn b, uint32_t m,
                                          const std::vector<proto::PoolTarget>& t) override {
      return pool_->write(b, m, t);
    }
    StatusOr<proto::PoolWriteAgainReply> write_again(uint32_t from,
                                                     const proto::PoolTarget& t) override {
      return pool_->write_again(from, t);
    }
    StatusOr<proto::PoolSyncedReply> synced(uint64_t report) override {
      return pool_->synced(report);
    }
    Status stored(const std::vector<StoredPage>& pages) override { return pool_->stored(pages); }
    Status checkpoint(Lsn lsn, uint64_t bias) override { return pool_->checkpoint(lsn, bias); }
    void read_slots(absl::Span<SlotRead> reads) override { pool_->read_slots(reads); }
    bool full = false;

   private:
    FakePool* const pool_;
  };
  FakePool inner(&node_, ++epoch_);
  NoReserve pool(&inner);
  source_.reset();
  source_ = *MemoryPageSource::open(options(), &pool, naming_.of(0), &storage_);
  ASSERT_TRUE(write(page_of(1), 5).ok());
  pool.full = true;
  const PageId ids[] = {page_of(1), page_of(2)};
  const PageChanges changes[] = {{Lsn{10}, Lsn{11}}, {Lsn{12}, Lsn{13}}};
  const std::string pages = make_page(ids[0], Llsn{6}) + make_page(ids[1], Llsn{7});
  bool ok[2] = {true, true};
  EXPECT_TRUE(is_busy(source_->write_changed(ids, changes, 2, pages.data(), ok)));
  EXPECT_FALSE(ok[0]);
  EXPECT_TRUE(ok[1]);
  EXPECT_EQ(storage_.llsn(page_of(1)), Llsn{});
  EXPECT_EQ(storage_.llsn(page_of(2)), Llsn{7});
  source_.reset();
}

TEST_F(MemoryPages, ALostReplyIsFollowedByAnotherAttachmentAndALookup) {  // PAT1
  for (const Fate fate : {Fate::kReplyLost, Fate::kLost, Fate::kLate}) {
    const uint64_t attaches = node_.attaches, lookups = node_.lookups;
    int lost = 0;
    node_.fate = [&](const char* call) {
      return std::string(call) == "put" && lost++ == 0 ? fate : Fate::kFine;
    };
    const PageId id = page_of(static_cast<uint32_t>(fate));
    ASSERT_TRUE(write(id, 5).ok());
    EXPECT_EQ(node_.attaches, attaches + 1);
    EXPECT_EQ(node_.lookups, lookups + 1);
    EXPECT_FALSE(node_.has_late());
    EXPECT_EQ(*read(id), 5u);
  }
  EXPECT_EQ(storage_.direct_writes + storage_.reads, 0u);
}

TEST_F(MemoryPages, ARestartedNodeIsAttachedAgainWithItsContent) {
  ASSERT_TRUE(write(page_of(1), 5).ok());
  node_.restart();
  ASSERT_TRUE(write(page_of(2), 6).ok());
  EXPECT_EQ(*read(page_of(1)), 5u);
  EXPECT_EQ(storage_.direct_writes, 0u);
}

TEST_F(MemoryPages, WritesWaitForANodeThatIsAwayForAMoment) {
  ASSERT_TRUE(write(page_of(1), 5).ok());
  int away = 5;
  node_.fate = [&](const char*) { return away-- > 0 ? Fate::kNotRun : Fate::kFine; };
  ASSERT_TRUE(write(page_of(2), 6).ok());
  EXPECT_EQ(storage_.direct_writes, 0u);
  EXPECT_TRUE(source_->attachment().attached());
}

TEST_F(MemoryPages, MappedReadsGoOnWhileTheNodeIsAway) {
  ASSERT_TRUE(write(page_of(1), 5).ok());
  node_.fate = [](const char*) { return Fate::kNotRun; };
  EXPECT_EQ(*read(page_of(1)), 5u);
}

TEST_F(MemoryPages, LostDirtyPagesEndTheSource) {  // PAT3
  storage_.put(page_of(1), make_page(page_of(1), Llsn{4}));
  ASSERT_TRUE(write(page_of(1), 5).ok());
  node_.lose();
  EXPECT_TRUE(ends_right(write(page_of(2), 6)));
  EXPECT_TRUE(ends_right(source_->ended()));
  EXPECT_NE(source_->ended().message().find("restart this server"), std::string::npos);
  EXPECT_TRUE(ends_right(read(page_of(1)).status()));
  EXPECT_TRUE(ends_right(source_->sync()));
  EXPECT_TRUE(ends_right(source_->sync_below(Lsn{5})));
  EXPECT_EQ(storage_.direct_writes, 0u);
}

TEST_F(MemoryPages, ALostCleanPoolIsBypassedAndAnotherOneTakesItsPlace) {  // MS8, PAT2
  ASSERT_TRUE(write(page_of(1), 5).ok());
  flush();
  node_.lose();
  node_.fate = [](const char* call) {
    return std::string(call) == "attach" ? Fate::kNotRun : Fate::kFine;
  };
  ASSERT_TRUE(write(page_of(2), 6).ok());
  EXPECT_TRUE(source_->attachment().bypassed());
  EXPECT_FALSE(naming_.now[0].has_value());
  EXPECT_EQ(*read(page_of(1)), 5u);
  EXPECT_EQ(*read(page_of(2)), 6u);
  EXPECT_TRUE(source_->sync_below(Lsn{100}).ok());
  EXPECT_EQ(storage_.durable_llsn(page_of(2)), Llsn{6});
  EXPECT_FALSE(*source_->publish_memory_checkpoint({Lsn{5}, 0})) << "storage has it";
  node_.fate = [](const char*) { return Fate::kFine; };
  source_->do_work();
  EXPECT_TRUE(source_->attachment().attached());
  ASSERT_TRUE(write(page_of(1), 7).ok());
  EXPECT_EQ(node_.llsn(page_of(1)), Llsn{7});
  EXPECT_EQ(*read(page_of(1)), 7u);
}

TEST_F(MemoryPages, APoolStaysInUseWhileTheRegistryNamesItAndCannotBeAsked) {  // PAT2
  ASSERT_TRUE(write(page_of(1), 5).ok());
  flush();
  node_.lose();
  naming_.fails = true;
  EXPECT_TRUE(is_peer_down(write(page_of(2), 6)));
  EXPECT_EQ(storage_.direct_writes, 0u);
  EXPECT_TRUE(source_->ended().ok());
  naming_.fails = false;
  EXPECT_TRUE(write(page_of(2), 6).ok());
  EXPECT_EQ(storage_.llsn(page_of(2)), Llsn{6});
}

// --- checkpoints ---

TEST_F(MemoryPages, DirectWritesAreSyncedBeforeACheckpointInMemory) {  // MS3
  ASSERT_TRUE(write(page_of(1), 5).ok());
  ASSERT_TRUE(source_->publish_memory_checkpoint({Lsn{5}, 0}).ok());
  EXPECT_EQ(storage_.syncs, 0u);
  for (uint32_t i = 2; i < 40; ++i) ASSERT_TRUE(write(page_of(i), 5).ok());
  ASSERT_GT(storage_.direct_writes, 0u);
  storage_.fault = [](const char* call) {
    return std::string(call) == "sync" ? error_peer_down("away") : ok_status();
  };
  EXPECT_FALSE(source_->publish_memory_checkpoint({Lsn{6}, 0}).ok());
  EXPECT_EQ(node_.checkpoint(), Lsn{5});
  storage_.fault = [](const char*) { return ok_status(); };
  ASSERT_TRUE(source_->publish_memory_checkpoint({Lsn{6}, 0}).ok());
  EXPECT_EQ(storage_.durable_llsn(page_of(39)), Llsn{5});
  EXPECT_EQ(node_.checkpoint(), Lsn{6});
  const uint64_t syncs = storage_.syncs;
  ASSERT_TRUE(source_->publish_memory_checkpoint({Lsn{7}, 0}).ok());
  EXPECT_EQ(storage_.syncs, syncs);
}

TEST_F(MemoryPages, ACheckpointInStorageHasEverythingBelowItThere) {  // MS4
  for (uint32_t i = 0; i < 20; ++i) ASSERT_TRUE(write(page_of(i), 5, 100 + i).ok());
  ASSERT_TRUE(source_->sync_below(Lsn{110}).ok());
  for (uint32_t i = 0; i < 10; ++i) EXPECT_EQ(storage_.durable_llsn(page_of(i)), Llsn{5});
  EXPECT_EQ(storage_.durable_llsn(page_of(15)), Llsn{});
  EXPECT_GE(node_.oldest(), Lsn{110});
  EXPECT_EQ(source_->directory().dirty(), 10u);
}

TEST_F(MemoryPages, WhatIsChangedDuringTheSyncStaysDirty) {
  ASSERT_TRUE(write(page_of(1), 5, 100).ok());
  bool changed = false;
  storage_.fault = [&](const char* call) {
    if (std::string(call) == "sync" && !std::exchange(changed, true)) {
      EXPECT_TRUE(write(page_of(1), 6, 120).ok());
    }
    return ok_status();
  };
  ASSERT_TRUE(source_->sync_below(Lsn{110}).ok());
  EXPECT_EQ(node_.oldest(), Lsn{120});
  EXPECT_EQ(source_->directory().dirty(), 1u);
}

TEST_F(MemoryPages, OnlyReportsReceivedBeforeTheSyncMakePagesClean) {
  ASSERT_TRUE(write(page_of(1), 5, 100).ok());
  storage_.after_sync = [&] {
    storage_.after_sync = nullptr;
    ASSERT_TRUE(write(page_of(2), 6, 105).ok());
    // Another thread's grant: written, reported, and not durable.
    const uint64_t session = storage_.session();
    ASSERT_TRUE(pool_->write(Lsn{UINT64_MAX}, 64, {{"a", session}, {"b", session}}).ok());
  };
  ASSERT_TRUE(source_->sync_below(Lsn{110}).ok());
  EXPECT_EQ(storage_.durable_llsn(page_of(2)), Llsn{6});
}

TEST_F(MemoryPages, WhatTheJudgeOfStorageDoesNotCountIsWrittenAgain) {  // WN1
  ASSERT_TRUE(write(page_of(1), 5, 100).ok());
  storage_.judge_refuses = true;
  EXPECT_TRUE(is_peer_down(source_->sync_below(Lsn{110})));
  ASSERT_TRUE(node_.slot(page_of(1)).has_value());
  EXPECT_EQ(node_.slot(page_of(1))->written, 0u);
  EXPECT_EQ(node_.oldest(), Lsn{100});
  ASSERT_TRUE(source_->sync_below(Lsn{110}).ok());
  EXPECT_EQ(source_->counters().flushed, 1u);
}

TEST_F(MemoryPages, AStorageNodeThatMissedSomethingLeavesPagesDirty) {
  ASSERT_TRUE(write(page_of(1), 5, 100).ok());
  storage_.second_node_fails = true;
  EXPECT_TRUE(is_busy(source_->sync_below(Lsn{110})));
  EXPECT_EQ(source_->directory().dirty(), 1u);
  EXPECT_EQ(node_.oldest(), Lsn{100});
  storage_.second_node_fails = false;
  EXPECT_TRUE(source_->sync_below(Lsn{110}).ok());
}

TEST_F(MemoryPages, ARestartedStorageIsToldAgainWhatTheNodeWrote) {  // WN4
  ASSERT_TRUE(write(page_of(1), 5, 100).ok());
  bool restarted = false;
  storage_.fault = [&](const char* call) {
    if (std::string(call) == "sync" && !std::exchange(restarted, true)) {
      storage_.restart();
      return error_peer_down("restarted");
    }
    return ok_status();
  };
  EXPECT_FALSE(source_->sync_below(Lsn{110}).ok());
  EXPECT_EQ(storage_.llsn(page_of(1)), Llsn{});
  EXPECT_EQ(node_.oldest(), Lsn{100});
  ASSERT_TRUE(source_->sync_below(Lsn{110}).ok());
  EXPECT_EQ(storage_.durable_llsn(page_of(1)), Llsn{5});
}

TEST_F(MemoryPages, AWriteWhoseReplyIsLostIsDoneAgain) {  // contract of delegated calls
  for (const Fate fate : {Fate::kReplyLost, Fate::kLost, Fate::kLate}) {
    const PageId id = page_of(static_cast<uint32_t>(fate));
    ASSERT_TRUE(write(id, 5, 100).ok());
    int lost = 0;
    node_.fate = [&](const char* call) {
      return std::string(call) == "write" && lost++ == 0 ? fate : Fate::kFine;
    };
    const uint64_t session = storage_.session();
    EXPECT_FALSE(source_->sync_below(Lsn{110}).ok());
    EXPECT_GT(storage_.session(), session);  // what comes late is refused
    ASSERT_TRUE(source_->sync_below(Lsn{110}).ok());
    EXPECT_EQ(storage_.durable_llsn(id), Llsn{5});
  }
  EXPECT_TRUE(source_->attachment().attached());
}

// --- slots ---

TEST_F(MemoryPages, SlotsAreKeptFreeByDroppingTheColdest) {  // MS6
  for (uint32_t i = 0; i < 26; ++i) storage_.put(page_of(i), make_page(page_of(i), Llsn{5}));
  for (uint32_t i = 0; i < 26; ++i) {
    EXPECT_EQ(*read(page_of(i)), 5u);
    source_->do_work();
  }
  for (uint32_t i = 0; i < 26; ++i) evict(page_of(i), 5);
  source_->do_work();
  EXPECT_GE(node_.free(), 6u);
  EXPECT_GT(source_->counters().dropped, 0u);
  for (uint32_t i = 0; i < 26; ++i) EXPECT_EQ(*read(page_of(i)), 5u);
}

TEST_F(MemoryPages, ManyDirtyPagesAreWrittenToStorageByTheNode) {  // MS6
  for (uint32_t i = 0; i < 15; ++i) ASSERT_TRUE(write(page_of(i), 5).ok());
  source_->do_work();
  EXPECT_EQ(source_->counters().grants, 0u);
  for (uint32_t i = 15; i < 20; ++i) ASSERT_TRUE(write(page_of(i), 5).ok());
  source_->do_work();
  EXPECT_GT(source_->counters().flushed, 15u);
  EXPECT_EQ(source_->directory().dirty(), 0u);
  EXPECT_EQ(storage_.durable_llsn(page_of(3)), Llsn{5});
  // Dirty ones out of use are written before they are dropped.
  for (uint32_t i = 15; i < 30; ++i) ASSERT_TRUE(write(page_of(i), 6).ok());
  for (uint32_t i = 0; i < 30; ++i) evict(page_of(i), i < 15 ? 5 : 6);
  source_->do_work();
  EXPECT_GE(node_.free(), 6u);
  for (uint32_t i = 0; i < 30; ++i) EXPECT_EQ(*read(page_of(i)), i < 15 ? 5u : 6u);
}

TEST_F(MemoryPages, ADroppedPageIsReadWithTheLlsnItHad) {
  for (uint32_t i = 0; i < 26; ++i) ASSERT_TRUE(write(page_of(i), 5).ok());
  flush();
  for (uint32_t i = 0; i < 26; ++i) evict(page_of(i), 5);
  source_->do_work();
  uint32_t gone = 0;
  while (gone < 26 && node_.slot(page_of(gone)).has_value()) ++gone;
  ASSERT_LT(gone, 26u);
  storage_.put(page_of(gone), make_page(page_of(gone), Llsn{4}));  // it lost a write
  EXPECT_TRUE(is_corruption(read(page_of(gone)).status()));
}

// --- spaces ---

TEST_F(MemoryPages, NothingOfADroppedSpaceStaysOrComesLater) {  // MS7
  ASSERT_TRUE(write(page_of(1), 5).ok());
  storage_.put(page_of(2), make_page(page_of(2), Llsn{5}));
  EXPECT_EQ(*read(page_of(2)), 5u);  // staged
  ASSERT_TRUE(source_->delete_space(SpaceId{300}).ok());
  source_->do_work();
  EXPECT_EQ(node_.size(), 0u);
  EXPECT_EQ(source_->directory().size(), 0u);
  EXPECT_EQ(storage_.llsn(page_of(2)), Llsn{});
  ASSERT_TRUE(source_->sync_below(Lsn{1000}).ok());
  EXPECT_EQ(storage_.llsn(page_of(1)), Llsn{});
  EXPECT_FALSE(storage_.late_write_to_deleted);
}

TEST_F(MemoryPages, PagesOfUnknownChangesGoToStorageWithTheNextCheckpoint) {
  ASSERT_TRUE(source_->write(page_of(1), make_page(page_of(1), Llsn{5}).data()).ok());
  EXPECT_EQ(*read(page_of(1)), 5u);
  ASSERT_TRUE(source_->sync_below(Lsn{2}).ok());
  EXPECT_EQ(storage_.durable_llsn(page_of(1)), Llsn{5});
}

}  // namespace
}  // namespace strata::clients
