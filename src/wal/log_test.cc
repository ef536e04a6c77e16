#include "wal/log.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/fault.h"
#include "base/testing/wait_until.h"
#include "base/wait_interrupt.h"
#include "wal/log_reader.h"
#include "wal/testing/test_sink.h"

namespace strata {
namespace {

constexpr LogOptions kSmall{.buffer_bytes = 16384, .node = NodeId{1}};
constexpr Lsn kStart{4096};

uint64_t count_groups(LogSink* sink, Lsn start, Lsn* end) {
  LogReader reader(sink, start);
  redo::GroupView group;
  for (;;) {
    const StatusOr<bool> more = reader.next(&group);
    EXPECT_TRUE(more.ok()) << more.status();
    if (!more.ok() || !*more) break;
  }
  *end = reader.end_lsn();
  return reader.group_count();
}

TEST(Log, LlsnIsTheEndPlusABiasThatOnlyGrows) {  // W1
  TestSink sink;
  Log log(kSmall, &sink, kStart, 100);
  LogReservation a = *write_test_group(&log, "a");
  EXPECT_EQ(a.start, kStart);
  EXPECT_EQ(a.llsn.value, a.end.value + 100);
  LogReservation b = *write_test_group(&log, "b", Llsn{1000000});
  EXPECT_EQ(b.start, a.end);
  EXPECT_EQ(b.llsn.value, 1000001u);
  LogReservation c = *write_test_group(&log, "c");
  EXPECT_EQ(c.llsn.value, b.llsn.value + (c.end.value - b.end.value));
  log.observe_llsn(Llsn{5000000});
  EXPECT_EQ(log.last_llsn().value, 5000000u);
  LogReservation d = *write_test_group(&log, "d");
  EXPECT_GT(d.llsn.value, 5000000u);
  log.observe_llsn(Llsn{7});
  EXPECT_EQ(log.last_llsn(), d.llsn);
}

TEST(Log, ReserveRefusesWhenTheImageFloorMoved) {
  TestSink sink;
  Log log(kSmall, &sink, kStart, 0);
  const Lsn floor = log.image_floor();
  EXPECT_EQ(floor, kStart);
  ASSERT_TRUE(write_test_group(&log, "x").ok());
  EXPECT_EQ(log.raise_image_floor(), log.next_lsn());
  LogReservation r;
  ASSERT_TRUE(log.reserve_capacity(64, false).ok());
  const Lsn next = log.next_lsn();
  EXPECT_FALSE(log.reserve(64, floor, Llsn{}, &r));
  EXPECT_EQ(log.next_lsn(), next);
  log.return_capacity(64);
}

TEST(Log, PersistMakesGroupsReadable) {
  TestSink sink;
  Log log(kSmall, &sink, kStart, 0);
  Lsn end;
  for (int i = 0; i < 5; i++) end = write_test_group(&log, std::string(100, 'p'))->end;
  EXPECT_EQ(log.durable_lsn(), kStart);
  ASSERT_TRUE(log.persist(end).ok());
  EXPECT_EQ(log.durable_lsn(), end);
  EXPECT_EQ(sink.sync_count_.load(), 1u);
  sink.crash_to_durable();
  Lsn found;
  EXPECT_EQ(count_groups(&sink, kStart, &found), 5u);
  EXPECT_EQ(found, end);
}

TEST(Log, AFullRingPersistsToMakeRoom) {  // W6: 100 x the ring passes through it
  TestSink sink;
  Log log(kSmall, &sink, kStart, 0);
  uint64_t groups = 0;
  while (log.next_lsn().value < 100 * kSmall.buffer_bytes) {
    ASSERT_TRUE(write_test_group(&log, std::string(groups % 3000, 'r')).ok());
    groups++;
  }
  ASSERT_TRUE(log.persist(log.next_lsn()).ok());
  Lsn found;
  EXPECT_EQ(count_groups(&sink, kStart, &found), groups);
  EXPECT_EQ(found, log.next_lsn());
}

TEST(Log, CreditsHeldByOthersAreWaitedFor) {
  TestSink sink;
  Log log(kSmall, &sink, kStart, 0);
  ASSERT_TRUE(log.reserve_capacity(8192, false).ok());
  ASSERT_TRUE(log.reserve_capacity(8192, false).ok());
  std::atomic<bool> got{false};
  std::thread waiter([&] {
    EXPECT_TRUE(log.reserve_capacity(4096, false).ok());
    got = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_FALSE(got.load());
  log.return_capacity(8192);
  waiter.join();
  EXPECT_TRUE(got.load());
}

TEST(Log, PersistWaitsForGroupsBeforeIt) {  // W4
  TestSink sink;
  Log log(kSmall, &sink, kStart, 0);
  ASSERT_TRUE(log.reserve_capacity(1024, false).ok());
  LogReservation first;
  const uint32_t bytes = test_group_bytes(10);
  ASSERT_TRUE(log.reserve(bytes, log.image_floor(), Llsn{}, &first));
  const Lsn end = write_test_group(&log, "second")->end;
  std::atomic<bool> done{false};
  std::thread committer([&] {
    EXPECT_TRUE(log.persist(end).ok());
    done = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(done.load());
  EXPECT_EQ(log.durable_lsn(), kStart);
  log.copy(first, make_test_group(first, std::string(10, 'f')));
  log.complete(first);
  committer.join();
  EXPECT_EQ(log.durable_lsn(), end);
}

TEST(Log, WaitersOfOneSyncShareTheNext) {  // group commit: 8 committers, far fewer syncs
  TestSink sink;
  Log log(kSmall, &sink, kStart, 0);
  sink.hold_sync_ = true;
  std::vector<std::thread> threads;
  std::atomic<int> reserved{0};
  for (int i = 0; i < 8; i++) {
    threads.emplace_back([&] {
      const Lsn end = write_test_group(&log, "g")->end;
      reserved++;
      EXPECT_TRUE(log.persist(end).ok());
    });
  }
  while (reserved.load() != 8) std::this_thread::yield();
  sink.hold_sync_ = false;
  for (std::thread& t : threads) t.join();
  EXPECT_LE(sink.sync_count_.load(), 2u);
  EXPECT_EQ(log.durable_lsn(), log.next_lsn());
}

TEST(Log, WhoMayBeInterruptedLeadsNoBatch) {  // W10
  TestSink sink;
  Log log(kSmall, &sink, kStart, 0);
  WaitInterrupt interrupt;
  const InterruptScope scope(&interrupt);
  // Nobody else is there: a thread of the log does it.
  const Lsn first = write_test_group(&log, "first")->end;
  ASSERT_TRUE(log.persist(first).ok());
  EXPECT_EQ(log.durable_lsn(), first);
  sink.hold_sync_ = true;
  const Lsn second = write_test_group(&log, "second")->end;
  // Interrupted before the wait, and while it goes on; the batch goes on without them.
  interrupt.interrupt();
  EXPECT_TRUE(is_interrupted(log.persist(second)));
  interrupt.clear();
  const uint64_t waits = log.counters().waits.load();
  std::thread committer([&] { EXPECT_TRUE(log.persist(second).ok()); });
  std::thread killer([&] {
    EXPECT_TRUE(testing::wait_until([&] { return log.counters().waits > waits; }));
    interrupt.interrupt();
  });
  EXPECT_TRUE(is_interrupted(log.persist(second)));
  killer.join();
  EXPECT_EQ(log.durable_lsn(), first);
  EXPECT_TRUE(log.persist(first).ok()) << "what is durable needs no wait";
  std::thread reader([&] {
    WaitInterrupt never;
    const InterruptScope own(&never);
    EXPECT_TRUE(log.persist(second).ok());
  });
  sink.hold_sync_ = false;
  committer.join();
  reader.join();
  EXPECT_EQ(log.durable_lsn(), second);
}

TEST(Log, AWaitForTheFullRingIsInterrupted) {  // W10
  TestSink sink;
  Log log(kSmall, &sink, kStart, 0);
  WaitInterrupt interrupt;
  sink.hold_sync_ = true;
  std::thread writer([&] {
    const InterruptScope scope(&interrupt);
    Status status;
    while (status.ok()) status = write_test_group(&log, std::string(1000, 'r')).status();
    EXPECT_TRUE(is_interrupted(status)) << status;
  });
  EXPECT_TRUE(testing::wait_until([&] { return log.counters().waits > 0; }));
  interrupt.interrupt();
  writer.join();
  sink.hold_sync_ = false;
  EXPECT_TRUE(log.persist(log.next_lsn()).ok());
}

TEST(Log, AFailedSyncPoisons) {  // W5
  TestSink sink;
  Log log(kSmall, &sink, kStart, 0);
  const Lsn first = write_test_group(&log, "durable")->end;
  ASSERT_TRUE(log.persist(first).ok());
  const Lsn second = write_test_group(&log, "lost")->end;
  sink.fail_sync_ = true;
  EXPECT_TRUE(is_ended(log.persist(second)));
  EXPECT_TRUE(log.poisoned());
  sink.fail_sync_ = false;  // the disk "recovers": nobody knows what was lost
  EXPECT_TRUE(is_ended(log.persist(second)));
  EXPECT_TRUE(is_ended(log.reserve_capacity(64, true)));
  EXPECT_EQ(log.durable_lsn(), first);
}

TEST(Log, SaysWhatEndedIt) {  // W5
  TestSink sink;
  Log log(kSmall, &sink, kStart, 0);
  const Lsn end = write_test_group(&log, "lost")->end;
  sink.fail_sync_ = true;
  const Status failed = log.persist(end);
  EXPECT_NE(failed.message().find("sync failed by test"), std::string::npos) << failed;
}

// A sync that takes long is waited for; changes are refused with its reason, the end of a
// transaction is not; and afterwards nothing is left of it.
TEST(Log, WhileTheSinkIsLateOnlyEndsOfTransactionsGetRoom) {  // W8
  TestSink sink;
  Log log(kSmall, &sink, kStart, 0);
  const Lsn end = write_test_group(&log, "waits")->end;
  sink.hold_sync_ = sink.late_ = true;
  Status waited;
  std::thread waiter([&] { waited = log.persist(end); });
  const Status refused = log.reserve_capacity(64, /*urgent=*/false);
  EXPECT_EQ(refused.code(), StatusCode::kUnavailable);
  EXPECT_EQ(refused.message(), "late by test");
  EXPECT_TRUE(log.reserve_capacity(64, /*urgent=*/true).ok());
  log.return_capacity(64);
  sink.hold_sync_ = sink.late_ = false;
  waiter.join();
  EXPECT_TRUE(waited.ok()) << waited;
  EXPECT_FALSE(log.poisoned());
  EXPECT_TRUE(write_test_group(&log, "again").ok());
}

TEST(Log, AFailedAppendPoisonsEveryWaiter) {
  TestSink sink;
  Log log(kSmall, &sink, kStart, 0);
  sink.fail_append_ = true;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; i++)
    threads.emplace_back([&] {
      const StatusOr<LogReservation> r = write_test_group(&log, "x");
      if (!r.ok()) return;
      EXPECT_TRUE(is_ended(log.persist(r->end)));
    });
  for (std::thread& t : threads) t.join();
  EXPECT_TRUE(log.poisoned());
}

TEST(Log, FaultPointsFailTheBatch) {
  for (const char* point : {"wal_before_write", "wal_after_write", "wal_after_sync"}) {
    TestSink sink;
    Log log(kSmall, &sink, kStart, 0);
    ASSERT_TRUE(arm_fault(std::string(point) + ":1:error"));
    const Lsn end = write_test_group(&log, "x")->end;
    EXPECT_TRUE(is_ended(log.persist(end))) << point;
    disarm_faults();
  }
}

TEST(Log, AFullDiskFailsReservationsAndKeepsRoomForUrgentOnes) {  // W7
  TestSink sink;
  sink.capacity_ = 4 * kSmall.buffer_bytes;
  Log log(kSmall, &sink, kStart, 0);
  Status status;
  while ((status = write_test_group(&log, std::string(200, 'n')).status()).ok()) {
  }
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_FALSE(log.poisoned());
  ASSERT_TRUE(log.persist(log.next_lsn()).ok());
  int urgent = 0;
  while (write_test_group(&log, std::string(200, 'u'), Llsn{}, true).ok()) urgent++;
  EXPECT_GE(urgent, 10);
  ASSERT_TRUE(log.persist(log.next_lsn()).ok()) << "what was admitted has its room";
  sink.capacity_ = UINT64_MAX;  // an operator frees space
  EXPECT_TRUE(testing::wait_until([&log] { return write_test_group(&log, "again").ok(); }));
}

// What was made of the reserve is for those it is kept for, and all goes on by itself.
TEST(Log, OnlyUrgentCallersUseTheReserve) {  // W9
  TestSink sink;
  sink.capacity_ = 4 * kSmall.buffer_bytes;
  sink.reserve_ = 2 * kSmall.buffer_bytes;
  Log log(kSmall, &sink, kStart, 0);
  std::atomic<int> told = 0;
  log.on_no_room([&told] { ++told; });
  EXPECT_TRUE(log.room_state().ok());
  while (write_test_group(&log, std::string(200, 'n')).ok()) {
  }
  EXPECT_EQ(log.room_state().code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(testing::wait_until([&told] { return told > 0; }));  // by the log's own thread
  uint64_t urgent_bytes = 0;
  while (write_test_group(&log, std::string(200, 'u'), Llsn{}, true).ok()) {
    urgent_bytes += 200;
    ASSERT_TRUE(log.persist(log.next_lsn()).ok());
    EXPECT_FALSE(write_test_group(&log, std::string(200, 'n')).ok());
  }
  EXPECT_GT(urgent_bytes, kSmall.buffer_bytes);
  sink.capacity_ = UINT64_MAX;
  EXPECT_TRUE(testing::wait_until([&log] { return log.room_state().ok(); })) << "nobody asked";
  EXPECT_TRUE(write_test_group(&log, "again").ok());
  log.on_no_room(nullptr);
}

TEST(Log, TheLogBehindAFloorIsReadableWithItsBias) {  // LR4
  TestSink sink;
  Log log(kSmall, &sink, kStart, 7);
  ASSERT_TRUE(write_test_group(&log, "before").ok());
  uint64_t bias = 0;
  const Lsn floor = log.raise_image_floor(&bias);
  EXPECT_EQ(bias, 7u);
  ASSERT_TRUE(write_test_group(&log, "behind").ok());
  log.observe_llsn(Llsn{log.last_llsn().value + 1000});
  ASSERT_TRUE(write_test_group(&log, "behind, with a larger bias").ok());
  ASSERT_TRUE(log.persist(log.next_lsn()).ok());
  LogReader reader(&sink, floor, bias);
  redo::GroupView group;
  for (int i = 0; i < 2; ++i) {
    const StatusOr<bool> more = reader.next(&group);
    EXPECT_TRUE(more.ok() && *more) << i;
  }
  log.raise_image_floor(&bias);
  EXPECT_EQ(bias, 1007u);
}

TEST(Log, TicketsWrap) {  // 3 x the ticket ring without any persist in between
  TestSink sink;
  Log log({.buffer_bytes = 1u << 23, .node = NodeId{1}}, &sink, kStart, 0);
  for (int i = 0; i < 3 * 16384; i++) ASSERT_TRUE(write_test_group(&log, "t").ok());
  log.wait_completed(log.next_lsn());
  ASSERT_TRUE(log.persist(log.next_lsn()).ok());
}

// --- LogReader over damaged logs ---

// Six groups of 600 bytes payload; groups 0..3 durable before 4 and 5 were reserved.
struct DamagedLog : ::testing::Test {
  void SetUp() override {
    Log log(kSmall, &sink, kStart, 40);
    for (int i = 0; i < 6; i++) {
      groups.push_back(*write_test_group(&log, std::string(600, static_cast<char>('a' + i))));
      if (i != 3) continue;
      ASSERT_TRUE(log.persist(log.next_lsn()).ok());
    }
    ASSERT_TRUE(log.persist(log.next_lsn()).ok());
  }
  void flip(Lsn at) { sink.bytes()[at.value - kStart.value] ^= 4; }
  StatusOr<uint64_t> scan(LogReader* reader) {
    redo::GroupView group;
    for (;;) {
      STRATA_ASSIGN_OR_RETURN(const bool more, reader->next(&group));
      if (!more) return reader->group_count();
    }
  }
  TestSink sink;
  std::vector<LogReservation> groups;
};

TEST_F(DamagedLog, WholeLogReadsToItsEnd) {
  LogReader reader(&sink, kStart, 40);
  EXPECT_EQ(*scan(&reader), 6u);
  EXPECT_EQ(reader.end_lsn(), groups[5].end);
  EXPECT_EQ(reader.bias(), 40u);
}

TEST_F(DamagedLog, BitFlipInTheMiddleIsCorruption) {  // LR2
  for (int i = 0; i < 4; i++) {
    for (const uint64_t offset : {0, 5, 17, 30, 333}) {
      flip(Lsn{groups[i].start.value + offset});
      LogReader reader(&sink, kStart, 40);
      const Status status = scan(&reader).status();
      EXPECT_EQ(status.code(), StatusCode::kDataLoss) << "group " << i << " byte " << offset;
      flip(Lsn{groups[i].start.value + offset});
    }
  }
}

TEST_F(DamagedLog, BitFlipInTheTailIsTheEnd) {
  for (int i = 4; i < 6; i++) {
    flip(Lsn{groups[i].start.value + 100});
    LogReader reader(&sink, kStart, 40);
    EXPECT_EQ(*scan(&reader), static_cast<uint64_t>(i));
    EXPECT_EQ(reader.end_lsn(), groups[i].start);
    flip(Lsn{groups[i].start.value + 100});
  }
}

// A power loss can leave any bytes in a group that was not durable: also a length beyond the room.
TEST_F(DamagedLog, AGarbageLengthInTheTailIsTheEnd) {  // LR5
  store_u32(sink.bytes().data() + (groups[5].start.value - kStart.value) + 4, 1u << 20);
  LogReader reader(&sink, kStart, 40);
  const StatusOr<uint64_t> count = scan(&reader);
  ASSERT_TRUE(count.ok()) << count.status();
  EXPECT_EQ(*count, 5u);
}

TEST_F(DamagedLog, AGroupCutOffByTheEndOfTheRoomIsCorruption) {  // LR5
  sink.bytes().resize(groups[5].start.value - kStart.value + 300);
  LogReader reader(&sink, kStart, 40);
  EXPECT_EQ(scan(&reader).status().code(), StatusCode::kDataLoss);
}

TEST_F(DamagedLog, AStreamsTornEndIsNoLossAndIsCutOff) {  // LR3, LR5
  sink.stream_ = true;
  sink.bytes().resize(groups[5].start.value - kStart.value + 300);
  LogReader reader(&sink, kStart, 40);
  ASSERT_EQ(*scan(&reader), 5u);
  ASSERT_TRUE(reader.erase_tail().ok());
  EXPECT_EQ(sink.room_end(), groups[4].end);
  // What was durable must be there in a stream too.
  flip(Lsn{groups[1].start.value + 5});
  LogReader again(&sink, kStart, 40);
  EXPECT_EQ(scan(&again).status().code(), StatusCode::kDataLoss);
}

TEST_F(DamagedLog, GroupsBehindTheEndAreErased) {  // LR3
  flip(Lsn{groups[4].start.value + 100});
  sink.crash_to_durable();
  flip(Lsn{groups[4].start.value + 100});
  LogReader reader(&sink, kStart, 40);
  ASSERT_EQ(*scan(&reader), 4u);
  ASSERT_TRUE(reader.erase_tail().ok());
  sink.crash_to_durable();
  {  // a new life writes a group of the very length of group 4, then crashes
    Log log(kSmall, &sink, reader.end_lsn(), reader.bias());
    ASSERT_TRUE(log.persist(write_test_group(&log, std::string(600, 'n'))->end).ok());
  }
  LogReader again(&sink, kStart, 40);
  EXPECT_EQ(*scan(&again), 5u) << "group 5 of the old life must not follow";
}

TEST_F(DamagedLog, AGroupWithASmallerBiasDoesNotCount) {  // LR4
  LogReader reader(&sink, kStart, 41);
  EXPECT_EQ(scan(&reader).status().code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace strata
