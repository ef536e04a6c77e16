// CP1 to CP3 step by step; what a crash makes of them is pool_model_test.cc's subject.
#include "bufpool/checkpointer.h"

#include <thread>

#include "base/diag.h"
#include "base/fault.h"
#include "base/testing/wait_until.h"
#include "bufpool/pool_test_support.h"

namespace strata {
namespace {

using testing::PoolHarness;
using testing::tiny_pool;
using testing::wait_until;

PageId page(uint32_t number) { return PageId{300, number}; }

struct CheckpointHarness : PoolHarness {
  explicit CheckpointHarness(CheckpointerOptions options, uint32_t frames = 64,
                             bool replays = false, bool memory_tier = false)
      : PoolHarness(tiny_pool(frames)) {
    set_diag_sink([](Severity, std::string_view) { ++messages; });
    messages = 0;
    ControlData data;
    data.profile = "monolithic";
    data.checkpoint_lsn = Lsn{4096};
    auto made = ControlFile::create(fs.get(), "/control", data);
    EXPECT_TRUE(made.ok()) << made.status();
    control = std::move(*made);
    source.replays = replays;
    source.memory_tier = memory_tier;
    checkpointer = std::make_unique<Checkpointer>(options, pool.get(), log.get(), control.get());
  }
  ~CheckpointHarness() {
    checkpointer.reset();
    disarm_faults();
    set_diag_sink(nullptr);
  }
  std::unique_ptr<SimFileSystem> fs = make_sim_file_system();
  std::unique_ptr<ControlFile> control;
  std::unique_ptr<Checkpointer> checkpointer;
  static inline std::atomic<int> messages{0};
};

TEST(Checkpointer, WritesEverythingBelowTheFloorAndMovesTheStart) {  // CP1
  CheckpointHarness h({.background = false});
  for (uint32_t i = 0; i < 10; ++i) h.make(page(i));
  const Lsn next = h.log->next_lsn();
  ASSERT_TRUE(h.checkpointer->run_once().ok());
  EXPECT_EQ(h.checkpointer->last_checkpoint(), next);
  EXPECT_EQ(h.log->image_floor(), next);  // CP2
  EXPECT_EQ(h.pool->dirty_count(), 0u);
  EXPECT_EQ(h.sink.begin_lsn(), next);
  EXPECT_FALSE(h.control->data().clean_shutdown);
  EXPECT_EQ(h.control->data().checkpoint_count, 1u);
  ASSERT_TRUE(h.checkpointer->run_once(/*clean_shutdown=*/true).ok());
  auto reopened = ControlFile::open(h.fs.get(), "/control");
  ASSERT_TRUE(reopened.ok());
  EXPECT_TRUE((*reopened)->data().clean_shutdown);
  EXPECT_EQ((*reopened)->data().checkpoint_lsn, next);
}

TEST(Checkpointer, OverASourceThatReplaysTheStartMovesAndNothingIsWritten) {  // CP6
  CheckpointHarness h({.mark_interval_us = 1000}, /*frames=*/64, /*replays=*/true);
  const Lsn floor = h.log->image_floor();
  for (uint32_t round = 0; round < 3; ++round) {
    for (uint32_t i = 0; i < 10; ++i) h.make(page(10 * round + i));
    const Lsn next = h.log->next_lsn();
    ASSERT_TRUE(wait_until([&] { return h.checkpointer->last_checkpoint() == next; }));
    EXPECT_LE(next.value, h.sink.durable());
  }
  h.checkpointer->stop();  // its thread writes the control data
  EXPECT_EQ(h.control->data().checkpoint_lsn, h.log->next_lsn());
  EXPECT_EQ(h.pool->dirty_count(), 30u);
  EXPECT_EQ(h.pool->counters().writes, 0u);
  EXPECT_EQ(h.log->image_floor(), floor) << "a mark asks for no images";
  ASSERT_TRUE(h.checkpointer->run_once().ok());
  EXPECT_EQ(h.log->image_floor(), h.log->next_lsn());
}

TEST(Checkpointer, NeverStartsRedoBeyondTheDurableLog) {
  CheckpointHarness h({.background = false});
  h.make(page(1));
  h.pool->discard_space(SpaceId{300});  // its group need not be persisted for a write
  ASSERT_TRUE(h.checkpointer->run_once().ok());
  EXPECT_LE(h.checkpointer->last_checkpoint().value, h.sink.durable());
}

TEST(Checkpointer, FailureLeavesTheOldOneInForceAndIsReportedOnce) {  // CP3
  CheckpointHarness h({.background = false});
  h.make(page(1));
  h.write_hook = [](PageId, const char*) { return error_no_space("by order"); };
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(is_no_space(h.checkpointer->run_once()));
  EXPECT_EQ(h.messages, 2);  // the page, the checkpoint
  EXPECT_EQ(h.checkpointer->last_checkpoint(), Lsn{4096});
  EXPECT_EQ(h.control->data().checkpoint_lsn, Lsn{4096});
  EXPECT_EQ(h.sink.begin_lsn(), Lsn{0});
  h.write_hook = nullptr;
  for (const char* point : {"checkpoint_before_sync", "checkpoint_before_publish"}) {
    ASSERT_TRUE(arm_fault(std::string(point) + ":1:error"));
    EXPECT_FALSE(h.checkpointer->run_once().ok());
    EXPECT_EQ(h.control->data().checkpoint_lsn, Lsn{4096});
  }
  EXPECT_TRUE(h.checkpointer->run_once().ok());
  EXPECT_EQ(h.messages, 4);
}

TEST(Checkpointer, StartsByItselfAfterSomeLogOrSomeTime) {
  for (const bool by_time : {false, true}) {
    CheckpointHarness h({.log_bytes = by_time ? 1u << 30 : 1000u,
                         .interval_us = by_time ? 20'000u : 1'000'000'000u});
    for (uint32_t i = 0; i < 30; ++i) h.make(page(i));
    EXPECT_TRUE(wait_until([&] {
      if (!by_time) h.modify(page(0));  // it goes at the pace of the log (CP4)
      return h.checkpointer->last_checkpoint() > Lsn{4096};
    }));
  }
}

TEST(Checkpointer, PublishesTheBiasOfItsFloor) {  // CP1
  CheckpointHarness h({.background = false});
  h.make(page(1));
  std::atomic<int> writes{0};
  h.write_hook = [&](PageId, const char*) {
    if (writes++ == 0) h.log->observe_llsn(Llsn{h.log->last_llsn().value + 1'000'000});
    return ok_status();
  };
  ASSERT_TRUE(h.checkpointer->run_once().ok());
  EXPECT_EQ(h.control->data().llsn_bias, 0u);
  ASSERT_TRUE(h.checkpointer->run_once().ok());
  EXPECT_EQ(h.control->data().llsn_bias, 1'000'000u);
}

TEST(Checkpointer, TheBiasIsExactWhileOthersAppend) {  // CP1
  CheckpointHarness h({.background = false}, 256);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (uint32_t i = 0; !stop; ++i) i < 100 ? h.make(page(i)) : h.modify(page(i % 100));
  });
  const uint64_t end_us = monotonic_us() + 5'000'000;
  for (int i = 0; i < 50 || (i < 2000 && monotonic_us() < end_us); ++i) {
    ASSERT_TRUE(h.checkpointer->run_once().ok());
    ASSERT_EQ(h.control->data().llsn_bias, 0u);
  }
  stop = true;
  writer.join();
}

TEST(Checkpointer, TakesItsTimeUnlessSomebodyWaits) {  // CP4
  constexpr uint32_t kPages = 1024;
  for (const bool waited_for : {false, true}) {
    CheckpointHarness h({.log_bytes = 1u << 20, .interval_us = 600'000}, kPages + 64);
    std::atomic<uint64_t> first_us{0}, last_us{0};
    h.write_hook = [&](PageId, const char*) {
      last_us = monotonic_us();
      uint64_t none = 0;
      first_us.compare_exchange_strong(none, last_us.load());
      return ok_status();
    };
    for (uint32_t i = 0; i < kPages; ++i) h.make(page(i));
    while (h.log->next_lsn().value < 4096 + (1u << 20)) h.modify(page(0));
    if (waited_for) {
      EXPECT_TRUE(wait_until([&] { return first_us > 0; }));
      EXPECT_TRUE(h.checkpointer->run_once().ok());
    }
    EXPECT_TRUE(wait_until([&] { return h.pool->dirty_count() == 0; }));
    if (!waited_for) {
      EXPECT_GT(last_us - first_us, 150'000u);  // of the 300,000 that it may take
    }
  }
}

TEST(Checkpointer, WritersWaitWhileTheLogIsTooLong) {
  CheckpointHarness h({.log_bytes = 1000, .interval_us = 1'000'000'000});
  for (uint32_t i = 0; i < 500; ++i) {
    ASSERT_TRUE(h.checkpointer->wait_for_log_room(nullptr).ok());
    i < 40 ? h.make(page(i)) : h.modify(page(i % 40));
    EXPECT_LE(h.log->next_lsn().value - h.checkpointer->last_checkpoint().value, 4100u);
  }
}

TEST(Checkpointer, WaitingWritersCanBeInterrupted) {
  std::atomic<bool> stuck{true};
  CheckpointHarness h({.log_bytes = 1000, .interval_us = 1'000'000'000});
  h.write_hook = [&stuck](PageId, const char*) {
    EXPECT_TRUE(wait_until([&stuck] { return !stuck.load(); }));
    return ok_status();
  };
  WaitInterrupt interrupt;
  interrupt.interrupt();  // sticky: it comes before the wait
  Status status;
  for (uint32_t i = 0; i < 500 && status.ok(); ++i) {
    i < 10 ? h.make(page(i)) : h.modify(page(i % 10));
    status = h.checkpointer->wait_for_log_room(&interrupt);
  }
  EXPECT_TRUE(is_interrupted(status)) << status;
  stuck = false;
  EXPECT_TRUE(h.checkpointer->wait_for_log_room(nullptr).ok());
}

TEST(Checkpointer, WaitingWritersHearThatCheckpointsFail) {
  CheckpointHarness h({.log_bytes = 1000, .interval_us = 1'000'000'000});
  h.write_hook = [](PageId, const char*) { return error_no_space("by order"); };
  Status status;
  for (uint32_t i = 0; i < 500 && status.ok(); ++i) {
    i < 10 ? h.make(page(i)) : h.modify(page(i % 10));
    status = h.checkpointer->wait_for_log_room(nullptr);
  }
  EXPECT_TRUE(is_no_space(status)) << status;
}

// CP7, MC1, MC2: what is in the memory tier is in storage below the same place, and only then the
// log goes.
TEST(Checkpointer, OfTwoTiersTheLogGoesByTheOneInStorage) {
  CheckpointHarness h({.background = false}, 64, false, /*memory_tier=*/true);
  Lsn published, durable;
  h.source.on_memory_checkpoint([&](const MemoryCheckpoint& at) {
    published = at.lsn;
    durable = h.log->durable_lsn();
    return ok_status();
  });
  for (uint32_t i = 0; i < 10; ++i) h.make(page(i));
  const Lsn next = h.log->next_lsn();
  ASSERT_TRUE(h.checkpointer->run_once().ok());
  EXPECT_EQ(published, next);
  EXPECT_GE(durable, next);
  EXPECT_EQ(h.pool->dirty_count(), 0u);
  EXPECT_EQ(h.checkpointer->last_memory_checkpoint(), next);
  EXPECT_EQ(h.source.synced_below, std::vector<Lsn>{next});
  EXPECT_EQ(h.checkpointer->last_checkpoint(), next);
  EXPECT_EQ(h.sink.begin_lsn(), next);
}

TEST(Checkpointer, ACleanEndLeavesStorageAsItIsWhileThereIsTheMemory) {  // CP7
  CheckpointHarness h({.background = false}, 64, false, /*memory_tier=*/true);
  h.make(page(1));
  ASSERT_TRUE(h.checkpointer->run_once(/*clean_shutdown=*/true).ok());
  EXPECT_EQ(h.source.in_memory->lsn, h.log->next_lsn());
  EXPECT_TRUE(h.source.synced_below.empty());
  EXPECT_EQ(h.checkpointer->last_checkpoint(), Lsn{4096});
  h.modify(page(1));
  h.source.on_memory_checkpoint(
      [](const MemoryCheckpoint&) { return error_peer_down("no answer"); });
  EXPECT_FALSE(h.checkpointer->run_once(/*clean_shutdown=*/true).ok());
  h.source.on_memory_checkpoint(nullptr);
  h.source.memory_kept = false;  // it is gone: the source has given everything to storage
  ASSERT_TRUE(h.checkpointer->run_once(/*clean_shutdown=*/true).ok());
  EXPECT_EQ(h.source.synced_below, std::vector<Lsn>{h.log->next_lsn()});
  EXPECT_EQ(h.checkpointer->last_checkpoint(), h.log->next_lsn());
}

TEST(Checkpointer, TheMemoryTierFollowsByItself) {  // MC1, MC3
  CheckpointHarness h({.log_bytes = 1u << 30, .memory_interval_us = 1000}, 64, false, true);
  std::atomic<uint64_t> at{0};
  std::atomic<int> refusals{2};
  h.source.on_memory_checkpoint([&](const MemoryCheckpoint& checkpoint) {
    if (refusals.fetch_sub(1) > 0) return error_peer_down("by order");
    at = checkpoint.lsn.value;
    return ok_status();
  });
  h.make(page(1));
  const uint64_t next = h.log->next_lsn().value;
  EXPECT_TRUE(wait_until([&] { return at == next; }));
  EXPECT_EQ(h.checkpointer->last_checkpoint(), Lsn{4096}) << "storage has its own pace";
  EXPECT_EQ(h.sink.begin_lsn(), Lsn{}) << "no log is cut off (MC2)";
  h.checkpointer->stop();
  EXPECT_EQ(h.messages, 2) << "once when it failed, once when it worked again";
}

TEST(Checkpointer, ManyThreadsOneCheckpointAtATime) {
  CheckpointHarness h({.log_bytes = 5000, .interval_us = 10'000});
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&h, t] {
      for (uint32_t i = 0; i < 500; ++i) {
        const PageId id = page(t * 10 + i % 10);
        ASSERT_TRUE(h.checkpointer->wait_for_log_room(nullptr).ok());
        ASSERT_TRUE(h.log->reserve_capacity(PoolHarness::kGroupBytes, false).ok());
        auto guard = i < 10 ? h.pool->fix_new(id) : h.pool->fix(id, LatchMode::kExclusive);
        ASSERT_TRUE(guard.ok());
        LogReservation r;
        while (!h.log->reserve(PoolHarness::kGroupBytes, h.log->image_floor(),
                               Llsn{header_of(guard->page())->llsn}, &r)) {
        }
        h.log->copy(r, std::string(PoolHarness::kGroupBytes, 'g'));
        testing::fill_page(guard->mutable_page(), id, r.llsn.value,
                           testing::PageVersion{i, r.end.value});
        h.pool->note_modified(*guard, r.start, r.end, false);
        h.log->complete(r);
        guard->release();
        if (i % 100 == 0) {
          ASSERT_TRUE(h.checkpointer->run_once().ok());
        }
      }
    });
  }
  for (std::thread& t : threads) t.join();
  ASSERT_TRUE(h.checkpointer->run_once().ok());
  EXPECT_EQ(h.pool->dirty_count(), 0u);
}

}  // namespace
}  // namespace strata
