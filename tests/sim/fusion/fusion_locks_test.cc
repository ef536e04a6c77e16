// Goal: row locks as threads of two servers use them (FusionLocks) over the memory node's half keep
// what LockAuthority promises: turns, timeouts, KILL, NOWAIT, shared locks and ranges, also many of
// them, and what becomes of those who wait when their server ends. For TSan, too.
#include "clients/fusion/fusion_locks.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "clients/fusion/testing/memory_region.h"
#include "lock_pump.h"

namespace strata::sim {
namespace {

using clients::FusionLease;
using clients::FusionLocks;
using clients::FusionLocksOptions;
using clients::TitOwners;
using clients::TitReader;
using clients::TitRegion;
using clients::testing::MemoryRegion;

constexpr uint64_t kSlots = 64;
constexpr Epoch kEpoch{1};
constexpr uint64_t kForeverUs = 60'000'000;
const RowId kRow{IndexId{5}, "row"};

TrxId trx(uint8_t server, uint64_t sequence) { return make_trx_id(NodeId{server}, sequence); }

// Whoever is asked for a commit that is not durable makes it so.
class NoOwners final : public TitOwners {
 public:
  Status join(NodeId, OwnTransactions*) override { return ok_status(); }
  void leave(NodeId) noexcept override {}
  StatusOr<TrxLookup> read(TrxId id) override {
    on_read(id);
    return TrxLookup{TrxState::kCommitted, Cts{5}, Lsn{}};
  }
  StatusOr<TrxLookup> wait_decided(TrxId) override { return error_not_found(); }
  std::function<void(TrxId)> on_read = [](TrxId) {};
};

struct Server {
  Server(LockService* service, uint8_t id, const FusionLocksOptions& options = {})
      : reader(&lease, &owners, &tit),
        locks(NodeId{id}, 1, &reader, &tit, options),
        pump(&locks, service, kEpoch) {
    lease.granted(kEpoch, clients::boot_time_us(), 600'000'000);
    while (!locks.joined()) std::this_thread::yield();
  }
  void opens(Server* other, uint8_t id) {
    reader.opened(NodeId{id},
                  std::make_shared<MemoryRegion>(other->memory.data(), other->memory.size()),
                  kSlots);
  }
  void begin(TrxId id) { tit.claim(sequence_of(id), TrxState::kActive); }
  void end(TrxId id) {
    tit.set(sequence_of(id), TrxState::kCommitted, Cts{9});
    locks.release_shared(id);
    locks.holder_ended(id);
  }
  alignas(64) std::array<char, TitRegion::bytes_of(kSlots)> memory = {};
  TitRegion tit{memory.data(), kSlots};
  FusionLease lease;
  NoOwners owners;
  TitReader reader;
  FusionLocks locks;
  LockPump pump;
};

bool wait_until(const std::function<bool()>& condition) {
  const uint64_t deadline_us = monotonic_us() + kForeverUs;
  while (!condition()) {
    if (monotonic_us() > deadline_us) return false;
    std::this_thread::yield();
  }
  return true;
}

struct FusionLocksTest : ::testing::Test {
  FusionLocksTest() {
    one.opens(&two, 2);
    two.opens(&one, 1);
  }
  // Whether the transaction of server 1 is undecided, as server 2 reads it.
  std::function<bool()> held_at_one(TrxId id) {
    return [this, id] {
      const auto found = two.reader.read(id);
      return found.ok() &&
             (found->state == TrxState::kActive || found->state == TrxState::kCommitting);
    };
  }
  LockService service{kEpoch};
  Server one{&service, 1}, two{&service, 2};
};

TEST_F(FusionLocksTest, WaiterOfAnotherServerGetsTheTurnWhenTheHolderEnds) {
  one.begin(trx(1, 1));
  std::atomic<bool> got{false};
  std::thread waiter([&] {
    EXPECT_TRUE(
        two.locks.wait(trx(2, 1), trx(1, 1), kRow, kForeverUs, nullptr, held_at_one(trx(1, 1)))
            .ok());
    got.store(true);
  });
  ASSERT_TRUE(wait_until([&] { return one.locks.has_waiters(kRow); }));  // it is told
  EXPECT_NE(one.locks.describe(5), "");
  EXPECT_FALSE(got.load());
  one.end(trx(1, 1));
  waiter.join();
  EXPECT_TRUE(two.locks.has_waiters(kRow));  // it has the turn
  two.locks.settled(trx(2, 1), kRow, trx(2, 1));
  EXPECT_FALSE(two.locks.has_waiters(kRow));
  EXPECT_EQ(one.locks.counters().ends_told, 1u);
  EXPECT_EQ(two.locks.counters().notes, 0u);  // the word was enough
}

TEST_F(FusionLocksTest, TransactionsThatNobodyWaitsForAreNotTold) {
  for (uint64_t i = 1; i <= 200; ++i) {
    one.begin(trx(1, i));
    one.end(trx(1, i));
  }
  EXPECT_EQ(one.locks.counters().ends_told, 0u);
  EXPECT_EQ(one.locks.counters().batches, 1u);  // the report
}

TEST_F(FusionLocksTest, HolderThatCannotBeToldByItsTableIsToldByTheMemoryNode) {
  two.reader.closed(NodeId{1});
  std::atomic<bool> held{true};
  std::thread waiter([&] {
    EXPECT_TRUE(
        two.locks.wait(trx(2, 1), trx(1, 1), kRow, kForeverUs, nullptr, [&] { return held.load(); })
            .ok());
  });
  ASSERT_TRUE(wait_until([&] { return two.locks.counters().notes == 1; }));
  ASSERT_TRUE(wait_until([&] { return two.locks.counters().looks >= 2; }));
  held.store(false);
  one.locks.holder_ended(trx(1, 1));
  waiter.join();
}

// The outcome is shown as "ended" until it is durable: nobody who looks then may go on waiting.
TEST_F(FusionLocksTest, CommitThatIsNotDurableIsMadeSoByWhoWaitsForIt) {
  one.begin(trx(1, 1));
  one.tit.set_ended(1, Cts{9});
  one.locks.holder_ended(trx(1, 1));
  two.owners.on_read = [&](TrxId id) { one.tit.made_durable(sequence_of(id), Cts{9}); };
  EXPECT_TRUE(
      two.locks.wait(trx(2, 1), trx(1, 1), kRow, kForeverUs, nullptr, held_at_one(trx(1, 1))).ok());
}

TEST_F(FusionLocksTest, WaitEndsInTimeWhenKilledAndAtOnceWithoutTime) {
  one.begin(trx(1, 1));
  const auto held = held_at_one(trx(1, 1));
  EXPECT_TRUE(is_lock_wait_timeout(two.locks.wait(trx(2, 1), trx(1, 1), kRow, 0, nullptr, held)));
  EXPECT_EQ(two.locks.counters().waits, 0u);  // no message
  EXPECT_TRUE(
      is_lock_wait_timeout(two.locks.wait(trx(2, 1), trx(1, 1), kRow, 20'000, nullptr, held)));
  WaitInterrupt interrupt;
  std::thread killer([&] {
    EXPECT_TRUE(wait_until([&] { return two.locks.has_waiters(kRow); }));
    interrupt.interrupt();
  });
  EXPECT_TRUE(
      is_interrupted(two.locks.wait(trx(2, 1), trx(1, 1), kRow, kForeverUs, &interrupt, held)));
  killer.join();
  // Nobody is left, and the row is had without time once it is free.
  ASSERT_TRUE(wait_until([&] { return one.locks.describe(5).empty(); }));
  ASSERT_TRUE(wait_until([&] { return !one.locks.has_waiters(kRow); }));
  one.end(trx(1, 1));
  EXPECT_TRUE(two.locks.wait(trx(2, 1), trx(1, 1), kRow, 0, nullptr, held).ok());
}

TEST_F(FusionLocksTest, DeadlockOfTwoServersHasOneVictim) {
  const RowId other{IndexId{5}, "other"};
  one.begin(trx(1, 1));
  two.begin(trx(2, 1));
  std::atomic<int> victims{0}, told{0};
  for (Server* server : {&one, &two})  // FC59
    server->locks.on_deadlock(
        [&victims, own = server == &one ? NodeId{1} : NodeId{2}](DeadlockReport* report) {
          EXPECT_TRUE(node_of(report->victim) != own || victims == 0) << "the victim still waits";
          report->waits[0].waiter_owner.connection = 7;
        },
        [&](const DeadlockReport& report) {
          ASSERT_EQ(report.waits.size(), 2u);
          EXPECT_EQ(report.waits[0].holder, report.waits[1].waiter);
          EXPECT_EQ(report.waits[0].waiter_owner.connection, 7u);
          EXPECT_TRUE(report.victim == trx(1, 1) || report.victim == trx(2, 1));
          ++told;
        });
  std::thread first([&] {
    const Status status = one.locks.wait(trx(1, 1), trx(2, 1), other, kForeverUs, nullptr, [&] {
      const auto found = one.reader.read(trx(2, 1));
      return found.ok() && found->state == TrxState::kActive;
    });
    victims += is_deadlock(status) ? 1 : 0;
    one.end(trx(1, 1));
  });
  std::thread second([&] {
    const Status status =
        two.locks.wait(trx(2, 1), trx(1, 1), kRow, kForeverUs, nullptr, held_at_one(trx(1, 1)));
    victims += is_deadlock(status) ? 1 : 0;
    two.end(trx(2, 1));
  });
  first.join();
  second.join();
  EXPECT_EQ(victims.load(), 1);
  EXPECT_TRUE(wait_until([&] { return told == 2; })) << told;  // each server once
  for (Server* server : {&one, &two}) server->locks.on_deadlock(nullptr, nullptr);
}

TEST_F(FusionLocksTest, SharedLocksKeepWritersOfOtherServersOut) {
  EXPECT_FALSE(two.locks.index_has_shared(kRow.index));
  one.locks.add_shared(trx(1, 1), kRow);
  EXPECT_TRUE(two.locks.index_has_shared(kRow.index));  // before add_shared() has returned
  EXPECT_EQ(two.locks.shared_conflict(trx(2, 1), kRow), trx(1, 1));
  EXPECT_EQ(two.locks.shared_conflict(trx(2, 1), RowId{kRow.index, "free"}), TrxId{});
  EXPECT_TRUE(one.locks.holds_shared(trx(1, 1), kRow));
  EXPECT_TRUE(is_lock_wait_timeout(two.locks.wait_for_shared(trx(2, 1), kRow, 0, nullptr)));
  EXPECT_TRUE(is_lock_wait_timeout(two.locks.wait_for_shared(trx(2, 1), kRow, 20'000, nullptr)));
  std::thread writer(
      [&] { EXPECT_TRUE(two.locks.wait_for_shared(trx(2, 1), kRow, kForeverUs, nullptr).ok()); });
  ASSERT_TRUE(wait_until([&] { return !one.locks.describe(5).empty(); }));
  one.end(trx(1, 1));
  writer.join();
  EXPECT_FALSE(one.locks.holds_shared(trx(1, 1), kRow));
  // Registered in vain.
  one.locks.add_shared(trx(1, 2), kRow);
  one.locks.drop_shared(trx(1, 2), kRow);
  EXPECT_TRUE(two.locks.wait_for_shared(trx(2, 1), kRow, kForeverUs, nullptr).ok());
  // Of one's own server it is known without asking.
  two.locks.add_shared(trx(2, 7), kRow);
  EXPECT_EQ(two.locks.shared_conflict(trx(2, 1), kRow), trx(2, 7));
}

TEST_F(FusionLocksTest, RangesProtectOnceTheyAreSettledAndKeysAreTakenOut) {
  const IndexId index{9};
  const KeyRange range{"b", "m", false};
  EXPECT_TRUE(one.locks.add_range(trx(1, 1), index, range));
  EXPECT_FALSE(one.locks.add_range(trx(1, 1), index, range));
  EXPECT_FALSE(one.locks.protects(trx(1, 1), RowId{index, "c"}));
  one.locks.drop_range_key(trx(1, 1), RowId{index, "d"});
  one.locks.settle_range(trx(1, 1), index, {"b", "c\xff", false});
  EXPECT_TRUE(one.locks.protects(trx(1, 1), RowId{index, "c"}));
  EXPECT_TRUE(one.locks.range_settled(trx(1, 1), index, {"b", "c", false}));
  EXPECT_TRUE(two.locks.wait_for_shared(trx(2, 1), RowId{index, "d"}, kForeverUs, nullptr).ok());
  EXPECT_EQ(two.locks.shared_conflict(trx(2, 1), RowId{index, "e"}), trx(1, 1));
  one.end(trx(1, 1));
  EXPECT_TRUE(two.locks.wait_for_shared(trx(2, 1), RowId{index, "e"}, kForeverUs, nullptr).ok());
}

// FC19: many locks become one, of the whole index, and keys still go out of it one by one.
TEST(FusionLocksMany, BecomeTheWholeIndex) {
  LockService service{kEpoch};
  Server one(&service, 1, {.whole_after = 10}), two(&service, 2);
  const TrxId locker = trx(1, 1), writer = trx(2, 1);
  const IndexId index{3};
  const auto key = [](int i) { return "k" + std::to_string(100 + i); };
  for (int i = 0; i < 15; ++i) one.locks.add_shared(locker, RowId{index, key(i)});
  EXPECT_EQ(two.locks.shared_conflict(writer, RowId{index, "never read"}), locker);
  const uint64_t batches = one.locks.counters().batches;
  for (int i = 15; i < 50; ++i) one.locks.add_shared(locker, RowId{index, key(i)});
  EXPECT_TRUE(one.locks.add_range(locker, index, {"x", "z", false}) == false);
  EXPECT_EQ(one.locks.counters().batches, batches);  // all of it is held already
  one.locks.drop_shared(locker, RowId{index, key(3)});
  EXPECT_TRUE(two.locks.wait_for_shared(writer, RowId{index, key(3)}, kForeverUs, nullptr).ok());
  EXPECT_EQ(two.locks.shared_conflict(writer, RowId{index, key(4)}), locker);
  one.locks.add_shared(locker, RowId{index, key(3)});
  EXPECT_EQ(two.locks.shared_conflict(writer, RowId{index, key(3)}), locker);
  EXPECT_EQ(two.locks.shared_conflict(writer, RowId{IndexId{4}, key(3)}), TrxId{});
  one.end(locker);
  EXPECT_TRUE(two.locks.wait_for_shared(writer, RowId{index, key(4)}, kForeverUs, nullptr).ok());
}

TEST(FusionLocksEnd, NobodyWaitsForAServerThatHasEnded) {
  LockService service{kEpoch};
  Server one(&service, 1);
  std::thread waiter([&] {
    EXPECT_FALSE(
        one.locks.wait(trx(1, 2), trx(1, 1), kRow, kForeverUs, nullptr, [] { return true; }).ok());
  });
  ASSERT_TRUE(wait_until([&] { return one.locks.has_waiters(kRow); }));
  one.pump.stop();
  waiter.join();
  one.locks.add_shared(trx(1, 3), kRow);  // returns (MW6)
  EXPECT_EQ(one.locks.describe(5), "");
}

// FC18: a wake-up that was lost (here because nobody says it) is found by a poll, and counted.
TEST(FusionLocksPoll, FindsAWakeUpThatWasLost) {
  LockService service{kEpoch};
  Server one(&service, 1, {.poll_us = 5'000}), two(&service, 2);
  std::atomic<bool> held{true};
  std::thread waiter([&] {
    EXPECT_TRUE(
        one.locks.wait(trx(1, 2), trx(2, 1), kRow, kForeverUs, nullptr, [&] { return held.load(); })
            .ok());
  });
  ASSERT_TRUE(wait_until([&] { return one.locks.counters().looks >= 2; }));  // noted
  held.store(false);
  waiter.join();
  EXPECT_EQ(service.counters().polls_found, 1u);
}

// All rules together: a row has one owner, whoever gets it.
TEST(FusionLocksThreads, OneOwnerAtATimeAndNoWakeUpIsLost) {
  constexpr uint64_t kRounds = 60;
  LockService service{kEpoch};
  Server one(&service, 1), two(&service, 2);
  one.opens(&two, 2);
  two.opens(&one, 1);
  std::atomic<uint64_t> mark{0};  // the transaction that has written to the row
  std::atomic<uint64_t> sequences[3] = {};
  std::atomic<int> owners{0};
  std::mutex claims[3];
  const auto work = [&](Server* self, uint8_t id) {
    for (uint64_t round = 0; round < kRounds; ++round) {
      TrxId me;
      {
        const std::lock_guard lock(claims[id]);
        me = trx(id, ++sequences[id]);
        self->begin(me);
      }
      bool had_turn = false;
      for (;;) {
        const bool queue = !had_turn && self->locks.has_waiters(kRow);
        uint64_t before = mark.load();
        const auto held = [&] {
          const TrxId holder{before};
          Server* const of = node_of(holder) == NodeId{1} ? &one : &two;
          if (holder.is_zero()) return false;
          if (of != self) {
            const auto found = self->reader.read(holder);
            return found.ok() && found->state == TrxState::kActive;
          }
          return mark.load() == before;
        };
        const bool undecided = before != 0 && mark.load() == before;
        if (!undecided && !queue && mark.compare_exchange_strong(before, me.value)) break;
        const Status status = self->locks.wait(me, undecided ? TrxId{before} : TrxId{}, kRow,
                                               kForeverUs, nullptr, held);
        ASSERT_TRUE(status.ok()) << status;
        had_turn = true;
      }
      if (had_turn) self->locks.settled(me, kRow, me);
      EXPECT_EQ(owners.fetch_add(1), 0);
      owners.fetch_sub(1);
      mark.store(0);
      {
        const std::lock_guard lock(claims[id]);
        self->end(me);
      }
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back(work, &one, 1);
    threads.emplace_back(work, &two, 2);
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(service.counters().polls_found, 0u);
}

}  // namespace
}  // namespace strata::sim
