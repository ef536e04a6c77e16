// Goal: each promise of row_waits.h by itself. Method: threads that are known to wait (the
// registered waiter count is polled by the test only) and explicit ends of holders.
#include "lock/row_waits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "base/clock.h"

namespace strata {
namespace {

constexpr uint64_t kLong = 20000000;
const RowId kRow{IndexId{7}, "row-1"};
const RowId kOther{IndexId{7}, "row-2"};
TrxId trx(uint64_t n) { return make_trx_id(NodeId{1}, n); }

size_t waiter_count(const RowWaits& waits) {
  const std::string s = waits.describe(10000);
  return static_cast<size_t>(std::count(s.begin(), s.end(), '\n'));
}
void wait_until_waiting(const RowWaits& waits, size_t n) {
  const uint64_t end = monotonic_us() + kLong;
  while (waiter_count(waits) != n) {
    ASSERT_LT(monotonic_us(), end);
    std::this_thread::yield();
  }
}

struct WaitingThread {
  Status result = error_internal();
  std::atomic<bool> done{false};
  std::thread thread;
  WaitingThread(RowWaits& waits, TrxId self, TrxId holder, RowId row, uint64_t timeout = kLong,
                WaitInterrupt* interrupt = nullptr)
      : thread([this, &waits, self, holder, row, timeout, interrupt] {
          result = waits.wait(self, holder, row, timeout, interrupt, [] { return true; });
          done = true;
        }) {}
  ~WaitingThread() {
    if (thread.joinable()) thread.join();
  }
  Status join() {
    thread.join();
    return result;
  }
};

TEST(RowWaits, ReturnsAtOnceWhenTheHolderHasEnded) {
  RowWaits waits;
  EXPECT_TRUE(waits.wait(trx(2), trx(1), kRow, kLong, nullptr, [] { return false; }).ok());
  EXPECT_FALSE(waits.has_waiters(kRow));
  waits.settled(trx(2), kRow, trx(2));  // nothing to settle: no effect
  EXPECT_FALSE(waits.has_waiters(kRow));
}

TEST(RowWaits, NoWaitFailsAtOnceAndLeavesNothing) {
  RowWaits waits;
  const Status s = waits.wait(trx(2), trx(1), kRow, 0, nullptr, [] { return true; });
  EXPECT_TRUE(is_lock_wait_timeout(s));
  EXPECT_FALSE(waits.has_waiters(kRow));
}

TEST(RowWaits, TimeoutLeavesTheQueue) {
  RowWaits waits;
  const uint64_t start = monotonic_us();
  const Status s = waits.wait(trx(2), trx(1), kRow, 20000, nullptr, [] { return true; });
  EXPECT_TRUE(is_lock_wait_timeout(s));
  EXPECT_GE(monotonic_us() - start, 20000u);
  EXPECT_FALSE(waits.has_waiters(kRow));
  EXPECT_EQ(waits.counters().timeouts, 1u);
}

TEST(RowWaits, OnlyTheHeadWakesAndTheRestFollowsTheNextHolder) {  // L1
  RowWaits waits;
  WaitingThread a(waits, trx(2), trx(1), kRow);
  wait_until_waiting(waits, 1);
  WaitingThread b(waits, trx(3), trx(1), kRow);
  wait_until_waiting(waits, 2);
  WaitingThread c(waits, trx(4), trx(1), kRow);
  wait_until_waiting(waits, 3);
  waits.holder_ended(trx(1));
  EXPECT_TRUE(a.join().ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(b.done);
  EXPECT_TRUE(waits.has_waiters(kRow));
  waits.settled(trx(2), kRow, trx(2));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(b.done);
  waits.holder_ended(trx(2));
  EXPECT_TRUE(b.join().ok());
  EXPECT_FALSE(c.done);
  waits.settled(trx(3), kRow, TrxId{});  // did not want it after all
  EXPECT_TRUE(c.join().ok());
  waits.settled(trx(4), kRow, trx(4));
  EXPECT_FALSE(waits.has_waiters(kRow));
}

TEST(RowWaits, GrantedTransactionThatEndsWithoutSettlingPassesTheTurn) {  // L5
  RowWaits waits;
  WaitingThread a(waits, trx(2), trx(1), kRow);
  wait_until_waiting(waits, 1);
  WaitingThread b(waits, trx(3), trx(1), kRow);
  wait_until_waiting(waits, 2);
  waits.holder_ended(trx(1));
  EXPECT_TRUE(a.join().ok());
  waits.holder_ended(trx(2));
  EXPECT_TRUE(b.join().ok());
  waits.holder_ended(trx(3));
  EXPECT_FALSE(waits.has_waiters(kRow));
}

TEST(RowWaits, RetrierThatMeetsABargerIsFirstInLineAgain) {  // L5
  RowWaits waits;
  WaitingThread a(waits, trx(2), trx(1), kRow);
  wait_until_waiting(waits, 1);
  WaitingThread b(waits, trx(3), trx(1), kRow);
  wait_until_waiting(waits, 2);
  waits.holder_ended(trx(1));
  EXPECT_TRUE(a.join().ok());
  WaitingThread again(waits, trx(2), trx(9), kRow);
  wait_until_waiting(waits, 2);
  waits.holder_ended(trx(9));
  EXPECT_TRUE(again.join().ok());
  EXPECT_FALSE(b.done);
  waits.settled(trx(2), kRow, trx(2));
  waits.holder_ended(trx(2));
  EXPECT_TRUE(b.join().ok());
  waits.settled(trx(3), kRow, trx(3));
}

TEST(RowWaits, InterruptEndsTheWaitAndIsSticky) {
  RowWaits waits;
  WaitInterrupt interrupt;
  {
    WaitingThread a(waits, trx(2), trx(1), kRow, kLong, &interrupt);
    wait_until_waiting(waits, 1);
    interrupt.interrupt();
    EXPECT_TRUE(is_interrupted(a.join()));
  }
  EXPECT_TRUE(
      is_interrupted(waits.wait(trx(2), trx(1), kRow, kLong, &interrupt, [] { return true; })));
  interrupt.clear();
  EXPECT_TRUE(is_lock_wait_timeout(
      waits.wait(trx(2), trx(1), kRow, 1000, &interrupt, [] { return true; })));
}

TEST(RowWaits, TheNewcomerThatClosesACycleIsTheVictim) {  // L3
  RowWaits waits;
  WaitingThread a(waits, trx(1), trx(2), kOther);  // 1 -> 2
  wait_until_waiting(waits, 1);
  EXPECT_TRUE(is_deadlock(waits.wait(trx(2), trx(1), kRow, kLong, nullptr, [] { return true; })));
  EXPECT_FALSE(a.done);
  waits.holder_ended(trx(2));
  EXPECT_TRUE(a.join().ok());
  waits.settled(trx(1), kOther, trx(1));
  EXPECT_EQ(waits.counters().deadlocks, 1u);
}

TEST(RowWaits,
     ACycleThroughTheQueueOrderIsFound) {  // L3: 3 waits behind 2, 2 waits for 1, 1 wants 3's row
  RowWaits waits;
  WaitingThread two(waits, trx(2), trx(1), kRow);
  wait_until_waiting(waits, 1);
  WaitingThread three(waits, trx(3), trx(1), kRow);
  wait_until_waiting(waits, 2);
  EXPECT_TRUE(is_deadlock(waits.wait(trx(1), trx(3), kOther, kLong, nullptr, [] { return true; })));
  waits.holder_ended(trx(1));
  EXPECT_TRUE(two.join().ok());
  waits.settled(trx(2), kRow, trx(2));
  waits.holder_ended(trx(2));
  EXPECT_TRUE(three.join().ok());
  waits.settled(trx(3), kRow, trx(3));
}

TEST(RowWaits, ACycleThatFormsBehindARetrierLosesAWaiter) {  // L3, second sentence
  RowWaits waits;
  const RowId third{IndexId{7}, "row-3"};
  WaitingThread w(waits, trx(2), trx(1), kRow);
  wait_until_waiting(waits, 1);
  WaitingThread x(waits, trx(3), trx(1), kRow);  // 3 holds `third`
  wait_until_waiting(waits, 2);
  waits.holder_ended(trx(1));
  EXPECT_TRUE(w.join().ok());
  WaitingThread barger(waits, trx(9), trx(3), third);  // 9 took kRow in between, and wants `third`
  wait_until_waiting(waits, 2);
  WaitingThread again(waits, trx(2), trx(9), kRow);  // now 3 waits for 9 too: 3 -> 9 -> 3
  EXPECT_TRUE(is_deadlock(x.join()));
  EXPECT_FALSE(again.done);
  waits.holder_ended(trx(3));  // rolled back
  EXPECT_TRUE(barger.join().ok());
  waits.settled(trx(9), third, trx(9));
  waits.holder_ended(trx(9));
  EXPECT_TRUE(again.join().ok());
  waits.settled(trx(2), kRow, trx(2));
  EXPECT_EQ(waits.counters().deadlocks, 1u);
}

TEST(RowWaits, SharedLocksAreSeenAndReleased) {
  RowWaits waits;
  EXPECT_FALSE(waits.index_has_shared(kRow.index));
  waits.add_shared(trx(1), kRow);
  waits.add_shared(trx(1), kRow);  // once is enough
  waits.add_shared(trx(2), kRow);
  EXPECT_TRUE(waits.index_has_shared(kRow.index));
  EXPECT_EQ(waits.shared_conflict(trx(1), kRow), trx(2));
  EXPECT_TRUE(waits.shared_conflict(trx(1), kOther).is_zero());
  waits.release_shared(trx(2));
  EXPECT_TRUE(waits.shared_conflict(trx(1), kRow).is_zero());
  EXPECT_EQ(waits.shared_conflict(trx(3), kRow), trx(1));
  waits.drop_shared(trx(1), kRow);
  EXPECT_FALSE(waits.index_has_shared(kRow.index));
  waits.release_shared(trx(1));
}

TEST(RowWaits, AWriterWaitsForAllSharedHoldersInTheGraph) {  // L3 with several holders
  RowWaits waits;
  waits.add_shared(trx(1), kRow);
  waits.add_shared(trx(2), kRow);
  WaitingThread writer(waits, trx(3), trx(1), kRow);  // names only one of them
  wait_until_waiting(waits, 1);
  EXPECT_TRUE(is_deadlock(waits.wait(trx(2), trx(3), kOther, kLong, nullptr, [] { return true; })));
  waits.release_shared(trx(1));
  waits.holder_ended(trx(1));
  EXPECT_TRUE(writer.join().ok());
  waits.settled(trx(3), kRow, trx(3));
}

TEST(RowWaits, AnOwnerWaitsForSharedHoldersBesideTheRowsQueue) {
  RowWaits waits;
  waits.add_shared(trx(1), kRow);
  waits.add_shared(trx(2), kRow);
  WaitingThread follower(waits, trx(4), trx(3), kRow);  // 3 has marked the row
  wait_until_waiting(waits, 1);
  EXPECT_TRUE(is_lock_wait_timeout(waits.wait_for_shared(trx(3), kRow, 1000, nullptr)));
  Status owner_status;
  std::thread owner([&] { owner_status = waits.wait_for_shared(trx(3), kRow, kLong, nullptr); });
  wait_until_waiting(waits, 2);
  // Every shared holder is an edge, whichever the owner waits for first.
  EXPECT_TRUE(is_deadlock(waits.wait(trx(2), trx(3), kOther, kLong, nullptr, [] { return true; })));
  EXPECT_TRUE(is_deadlock(waits.wait(trx(1), trx(4), kOther, kLong, nullptr, [] { return true; })));
  for (uint64_t n : {1, 2}) {
    waits.release_shared(trx(n));
    waits.holder_ended(trx(n));
  }
  owner.join();
  EXPECT_TRUE(owner_status.ok());
  EXPECT_FALSE(follower.done);
  waits.holder_ended(trx(3));
  EXPECT_TRUE(follower.join().ok());
  waits.settled(trx(4), kRow, trx(4));
}

TEST(RowWaits, TwoUpgradersAreADeadlockWithOneVictim) {
  RowWaits waits;
  waits.add_shared(trx(1), kRow);
  waits.add_shared(trx(2), kRow);
  WaitingThread one(waits, trx(1), trx(2), kRow);
  wait_until_waiting(waits, 1);
  EXPECT_TRUE(is_deadlock(waits.wait(trx(2), trx(1), kRow, kLong, nullptr, [] { return true; })));
  waits.release_shared(trx(2));
  waits.holder_ended(trx(2));
  EXPECT_TRUE(one.join().ok());
  waits.settled(trx(1), kRow, trx(1));
}

TEST(RowWaits, AnUpgraderGoesBeforeWritersItBlocks) {  // L5
  RowWaits waits;
  waits.add_shared(trx(1), kRow);
  waits.add_shared(trx(2), kRow);
  WaitingThread writer(waits, trx(3), trx(1), kRow);
  wait_until_waiting(waits, 1);
  WaitingThread upgrader(waits, trx(1), trx(2), kRow);
  wait_until_waiting(waits, 2);
  waits.release_shared(trx(2));
  waits.holder_ended(trx(2));
  EXPECT_TRUE(upgrader.join().ok());
  EXPECT_FALSE(writer.done);
  waits.settled(trx(1), kRow, trx(1));
  waits.release_shared(trx(1));
  waits.holder_ended(trx(1));
  EXPECT_TRUE(writer.join().ok());
  waits.settled(trx(3), kRow, trx(3));
}

TEST(RowWaits, WaitersBehindATimedOutHeadLookForThemselves) {
  RowWaits waits;
  WaitingThread head(waits, trx(2), trx(1), kRow, 50000);
  wait_until_waiting(waits, 1);
  WaitingThread next(waits, trx(3), trx(1), kRow);
  EXPECT_TRUE(is_lock_wait_timeout(head.join()));
  EXPECT_TRUE(next.join().ok());
  waits.settled(trx(3), kRow, TrxId{});
  EXPECT_FALSE(waits.has_waiters(kRow));
}

TEST(RowWaits, AWriterWaitsForEveryRangeAroundItsRecord) {  // L7
  RowWaits waits;
  EXPECT_FALSE(waits.index_has_shared(kRow.index));  // L9
  EXPECT_TRUE(waits.add_range(trx(1), kRow.index, {"row-0", "row-2", false}));
  EXPECT_TRUE(waits.add_range(trx(2), kRow.index, {"row-1", "", true}));
  waits.add_shared(trx(3), kRow);
  EXPECT_TRUE(waits.index_has_shared(kRow.index));
  EXPECT_TRUE(is_lock_wait_timeout(waits.wait_for_shared(trx(4), kRow, 0, nullptr)));
  std::atomic<bool> done{false};
  std::thread writer([&] {
    EXPECT_TRUE(waits.wait_for_shared(trx(4), kRow, kLong, nullptr).ok());
    done = true;
  });
  for (const uint64_t holder : {3, 1, 2}) {
    wait_until_waiting(waits, 1);
    EXPECT_FALSE(done);
    waits.release_shared(trx(holder));
    waits.holder_ended(trx(holder));
  }
  writer.join();
  EXPECT_FALSE(waits.index_has_shared(kRow.index));
}

TEST(RowWaits, ARangeTakenBackAtOneKeyLetsItsWriterGoOn) {  // L8
  RowWaits waits;
  waits.add_range(trx(1), kRow.index, {"row-0", "row-9", false});
  std::thread writer(
      [&] { EXPECT_TRUE(waits.wait_for_shared(trx(4), kRow, kLong, nullptr).ok()); });
  wait_until_waiting(waits, 1);
  EXPECT_FALSE(waits.protects(trx(1), kRow));
  waits.drop_range_key(trx(1), kRow);
  writer.join();
  EXPECT_TRUE(is_lock_wait_timeout(waits.wait_for_shared(trx(4), kOther, 0, nullptr)));
  waits.settle_range(trx(1), kRow.index, {"row-2", "row-9", false});
  EXPECT_TRUE(waits.protects(trx(1), kOther));
  waits.release_shared(trx(1));
}

TEST(RowWaits, CyclesThroughRangesAreFound) {  // L3, L7
  RowWaits waits;
  waits.add_range(trx(1), kRow.index, {"row-0", "row-9", false});
  waits.add_range(trx(2), kRow.index, {"row-0", "row-9", false});
  // Both insert into what the other has read.
  std::thread first([&] { EXPECT_TRUE(waits.wait_for_shared(trx(1), kRow, kLong, nullptr).ok()); });
  wait_until_waiting(waits, 1);
  EXPECT_TRUE(is_deadlock(waits.wait_for_shared(trx(2), kOther, kLong, nullptr)));
  waits.release_shared(trx(2));
  waits.holder_ended(trx(2));
  first.join();
  // A reader that wants a row whose owner waits for the reader's range, and for another one first.
  waits.add_range(trx(3), kRow.index, {"row-0", "row-9", false});
  std::thread owner([&] { EXPECT_TRUE(waits.wait_for_shared(trx(4), kRow, kLong, nullptr).ok()); });
  wait_until_waiting(waits, 1);
  EXPECT_TRUE(is_deadlock(waits.wait(trx(3), trx(4), kOther, kLong, nullptr, [] { return true; })));
  for (const uint64_t holder : {1, 3}) {
    waits.release_shared(trx(holder));
    waits.holder_ended(trx(holder));
  }
  owner.join();
  EXPECT_EQ(waits.counters().deadlocks, 2u);
}

TEST(RowWaits, AWriterWaitsForEverySharedRunAroundItsRow) {  // L20
  RowWaits waits;
  HeldRows first, second;
  const RowWaits::Run run = waits.add_shared_run(&first, trx(1), kRow.index, "row-0", "row-9");
  ASSERT_TRUE(run.held);
  EXPECT_TRUE(waits.add_shared_run(&first, trx(1), kRow.index, "row-2", "row-3").held);
  EXPECT_TRUE(waits.add_shared_run(&second, trx(2), kRow.index, "row-0", "row-1").held);
  EXPECT_TRUE(waits.index_has_shared(kRow.index));
  EXPECT_TRUE(waits.shared_run_holds(trx(1), kRow));
  EXPECT_FALSE(waits.protects(trx(1), kRow)) << "a key in it without a record is nobody's";
  EXPECT_TRUE(waits.shared_conflict(trx(4), kRow, false).is_zero());
  EXPECT_TRUE(waits.wait_for_shared(trx(4), kRow, 0, nullptr, false).ok());
  EXPECT_TRUE(is_lock_wait_timeout(waits.wait_for_shared(trx(4), kRow, 0, nullptr)));
  std::atomic<bool> done{false};
  std::thread writer([&] {
    EXPECT_TRUE(waits.wait_for_shared(trx(4), kRow, kLong, nullptr).ok());
    done = true;
  });
  wait_until_waiting(waits, 1);
  waits.release_exclusive(&second);
  waits.holder_ended(trx(2));
  wait_until_waiting(waits, 1);
  EXPECT_FALSE(done);
  waits.trim_run(run.taken, "row-0");  // who waits for the rest is woken
  writer.join();
  waits.release_exclusive(&first);
  EXPECT_FALSE(waits.index_has_shared(kRow.index));
}

TEST(RowWaits, CyclesThroughSharedRunsAreFound) {  // L3, L20
  RowWaits waits;
  HeldRows first, second;
  waits.add_shared_run(&first, trx(1), kRow.index, "row-0", "row-9");
  waits.add_shared_run(&second, trx(2), kRow.index, "row-0", "row-9");
  // Both change what the other has locked.
  std::thread writer(
      [&] { EXPECT_TRUE(waits.wait_for_shared(trx(1), kRow, kLong, nullptr).ok()); });
  wait_until_waiting(waits, 1);
  EXPECT_TRUE(is_deadlock(waits.wait_for_shared(trx(2), kOther, kLong, nullptr)));
  waits.release_exclusive(&second);
  waits.holder_ended(trx(2));
  writer.join();
  waits.release_exclusive(&first);
  EXPECT_EQ(waits.counters().deadlocks, 1u);
}

}  // namespace
}  // namespace strata
