// Goal: a server that is a member (FusionMember) over a real memory node and sockets keeps what its
// kernel counts on: FC20-FC32, FC60, FV14, and what becomes of every call when a peer is gone, the
// lease is lost, the memory node is silent or ends, or the statement is killed.
#include "clients/fusion/fusion_member.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/testing/wait_until.h"
#include "memnode/fusion/testing/fusion_node.h"
#include "proto/calls/calls.h"
#include "proto/methods.h"

namespace strata::clients {
namespace {

using memnode::testing::FusionNode;
using memnode::testing::TestStream;
using strata::testing::wait_until;

constexpr uint64_t kForeverUs = 60'000'000;
constexpr uint64_t kSlots = 128;
const RowId kRow{IndexId{5}, "row"};
const RowId kOtherRow{IndexId{5}, "other row"};

TrxId trx(uint8_t server, uint64_t sequence) { return make_trx_id(NodeId{server}, sequence); }

// A server's transactions, as a test says that they are.
class Transactions final : public OwnTransactions {
 public:
  StatusOr<TrxLookup> own_state(uint64_t sequence) override { return on_state(sequence); }
  StatusOr<TrxLookup> own_outcome(uint64_t sequence) override { return on_outcome(sequence); }
  [[nodiscard]] uint64_t own_bound() const noexcept override { return bound.load(); }
  std::function<StatusOr<TrxLookup>(uint64_t)> on_state = [](uint64_t) {
    return TrxLookup{TrxState::kActive, Cts{}, Lsn{}};
  };
  std::function<StatusOr<TrxLookup>(uint64_t)> on_outcome = [](uint64_t) {
    return TrxLookup{TrxState::kCommitted, Cts{7}, Lsn{}};
  };
  std::atomic<uint64_t> bound{3};
};

class Views final : public OwnViews {
 public:
  [[nodiscard]] Cts oldest_own_view() const override { return Cts{oldest.load()}; }
  std::atomic<uint64_t> oldest{1};
};

class FusionMemberTest : public ::testing::Test {
 protected:
  FusionMemberTest() {
    set_diag_sink([](Severity, std::string_view) {});
    node_.options.table_slots = kSlots;
  }
  ~FusionMemberTest() override {
    node_.stop();
    set_diag_sink(nullptr);
  }
  static FusionMemberOptions options_of(uint8_t server, uint64_t life) {
    FusionMemberOptions options;
    options.server = NodeId{server};
    options.life = life;
    options.join_us_max = 20'000'000;
    options.renew_us = 20'000;
    options.owners.wait_us = 200'000;
    return options;
  }
  std::unique_ptr<FusionMember> joined(const FusionMemberOptions& options) {
    auto made = FusionMember::join(options, node_.channel());
    EXPECT_TRUE(made.ok()) << made.status();
    if (!made.ok()) return nullptr;
    const Status serves = (*made)->serve();
    EXPECT_TRUE(serves.ok()) << serves;
    return *std::move(made);
  }
  std::unique_ptr<FusionMember> joined(uint8_t server, uint64_t life) {
    return joined(options_of(server, life));
  }
  // Each has opened the other's table.
  static bool know_each_other(FusionMember* a, FusionMember* b) {
    return wait_until([&] {
      return a->counters().tables_opened.load() > 0 && b->counters().tables_opened.load() > 0;
    });
  }
  bool is_gone(uint8_t id) {
    return wait_until([&] {
      for (const auto& there : node_.service()->status().servers)
        if (there.server.value == id) return false;
      return true;
    });
  }
  FusionNode node_;
};

// --- time, views, transactions ---

TEST_F(FusionMemberTest, TimestampsGrowOverAllServersAndTheHorizonIsHeard) {
  node_.start();
  const auto a = joined(1, 77);
  const auto b = joined(2, 78);
  Cts last{};
  for (int i = 0; i < 50; ++i) {
    for (FusionMember* member : {a.get(), b.get()}) {
      const auto next = member->timestamps()->next();
      ASSERT_TRUE(next.ok()) << next.status();
      EXPECT_GT(*next, last);
      last = *next;
    }
  }
  EXPECT_GE(*a->timestamps()->current(), last);
  Views of_a, of_b;
  of_a.oldest = 30;
  of_b.oldest = 20;
  ASSERT_TRUE(a->horizon()->join(NodeId{1}, &of_a).ok());
  ASSERT_TRUE(b->horizon()->join(NodeId{2}, &of_b).ok());
  EXPECT_TRUE(wait_until([&] { return a->horizon()->known() == Cts{20}; }));
  EXPECT_EQ(*b->horizon()->newest(), Cts{20});
  of_b.oldest = 60;
  EXPECT_TRUE(wait_until([&] { return b->horizon()->known() == Cts{30}; }));
  a->horizon()->leave(NodeId{1});
  b->horizon()->leave(NodeId{2});
}

TEST_F(FusionMemberTest, ATransactionOfAnotherServerIsReadInItsTableAndItsServerIsAskedOtherwise) {
  node_.start();
  const auto a = joined(1, 77);
  const auto b = joined(2, 78);
  ASSERT_TRUE(know_each_other(a.get(), b.get()));
  Transactions of_a;
  ASSERT_TRUE(a->owners()->join(NodeId{1}, &of_a).ok());
  PublishedSlots* const slots = a->others()->published();
  ASSERT_NE(slots, nullptr);
  slots->claim(5, TrxState::kActive);
  const auto active = b->others()->read(trx(1, 5));
  ASSERT_TRUE(active.ok()) << active.status();
  EXPECT_EQ(active->state, TrxState::kActive);
  slots->set(5, TrxState::kCommitting, Cts{40});
  EXPECT_EQ(b->others()->read(trx(1, 5))->state, TrxState::kCommitting);
  EXPECT_EQ(b->owners()->counters().asked.load(), 0u) << "nobody was asked";
  const auto outcome = b->others()->wait_decided(trx(1, 5));
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->state, TrxState::kCommitted);
  EXPECT_EQ(outcome->cts, Cts{7});
  of_a.on_state = [](uint64_t sequence) {
    EXPECT_EQ(sequence, 4u);
    return TrxLookup{TrxState::kAborted, Cts{}, Lsn{9}};
  };
  const auto older = b->others()->read(trx(1, 4));  // which the table does not show
  ASSERT_TRUE(older.ok()) << older.status();
  EXPECT_EQ(older->state, TrxState::kAborted);
  EXPECT_EQ(older->commit_lsn, Lsn{9});
  Views views;
  ASSERT_TRUE(a->horizon()->join(NodeId{1}, &views).ok());
  EXPECT_TRUE(wait_until([&] { return b->others()->bound(NodeId{1}) == 3; }));
  a->horizon()->leave(NodeId{1});
  a->owners()->leave(NodeId{1});
}

TEST_F(FusionMemberTest, WhoIsNotReadyOwnsNothingAndWhoCannotSayIsAskedAgain) {  // FC23, FC24
  node_.start();
  const auto a = joined(1, 77);
  FusionMemberOptions options = options_of(2, 78);
  options.owners.read_us_max = 300'000;
  const auto b = joined(options);
  EXPECT_TRUE(is_not_found(b->owners()->read(trx(1, 4)).status()));
  EXPECT_TRUE(is_not_found(b->owners()->read(trx(9, 4)).status()));
  EXPECT_TRUE(is_not_found(b->owners()->wait_decided(trx(9, 4)).status()));
  Transactions of_a;
  ASSERT_TRUE(a->owners()->join(NodeId{1}, &of_a).ok());
  std::atomic<bool> decided{false};
  of_a.on_state = [&](uint64_t) -> StatusOr<TrxLookup> {
    if (!decided) return error_fenced("the other one's own trouble");
    return TrxLookup{TrxState::kCommitted, Cts{7}, Lsn{}};
  };
  EXPECT_TRUE(is_peer_down(b->owners()->read(trx(1, 4)).status()));
  EXPECT_GE(b->owners()->counters().asked_again.load(), 1u);
  decided = true;
  EXPECT_EQ(b->owners()->read(trx(1, 4))->state, TrxState::kCommitted);
  a->owners()->leave(NodeId{1});
  EXPECT_TRUE(is_not_found(b->owners()->read(trx(1, 4)).status()));
}

TEST_F(FusionMemberTest, AWaitForAnOutcomeEndsWithItTheStatementTheServerOrTheLease) {  // FC24
  node_.options.time.authority.lease_us = 1'500'000;
  node_.options.time.authority.renew_us = 50'000;
  node_.start();
  auto a = joined(1, 77);
  FusionMemberOptions options = options_of(2, 78);
  options.owners.lease_us_max = 500'000;
  const auto b = joined(options);
  Transactions of_a;
  Mutex mutex{LatchRank::kLeaf};
  CondVar changed;
  bool decided = false;
  std::atomic<int> asked{0};
  of_a.on_outcome = [&](uint64_t) {
    MutexLock lock(mutex);
    ++asked;
    while (!decided) changed.wait(lock);
    return TrxLookup{TrxState::kCommitted, Cts{7}, Lsn{}};
  };
  ASSERT_TRUE(a->owners()->join(NodeId{1}, &of_a).ok());
  // It takes longer than one call may wait: it is asked again.
  std::thread waits([&] {
    const auto outcome = b->owners()->wait_decided(trx(1, 5));
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    EXPECT_EQ(outcome->cts, Cts{7});
  });
  EXPECT_TRUE(wait_until([&] { return asked >= 2; }));
  // KILL
  WaitInterrupt interrupt;
  std::thread killed([&] {
    const InterruptScope scope(&interrupt);
    EXPECT_TRUE(is_interrupted(b->owners()->wait_decided(trx(1, 6)).status()));
  });
  EXPECT_TRUE(wait_until([&] { return asked >= 3; }));
  interrupt.interrupt();
  killed.join();
  {
    const MutexLock lock(mutex);
    decided = true;
    changed.notify_all();
  }
  waits.join();
  // The other one is killed: its place is nobody's in the end.
  a->owners()->leave(NodeId{1});
  a->stop();
  const uint64_t before = node_.counters().questions.load();
  std::thread until_gone(
      [&] { EXPECT_TRUE(is_not_found(b->owners()->wait_decided(trx(1, 7)).status())); });
  EXPECT_TRUE(wait_until([&] { return node_.counters().questions.load() > before; }));
  node_.service()->exited(NodeId{1}, 77);
  until_gone.join();
  EXPECT_TRUE(is_gone(1));
  // Nobody answers any more, and the lease runs out.
  const auto c = joined(3, 79);
  c->stop();
  std::thread without_lease([&] {
    const auto outcome = b->owners()->wait_decided(trx(3, 7));
    EXPECT_TRUE(is_lease_lost(outcome.status())) << outcome.status();
  });
  node_.stream.will(TestStream::Does::kHolds);
  without_lease.join();
  node_.stream.will(TestStream::Does::kTakes);
}

// --- row locks ---

TEST_F(FusionMemberTest, AWaiterGetsItsTurnWhenAnotherServersTransactionEnds) {  // FU26
  node_.start();
  const auto a = joined(1, 77);
  const auto b = joined(2, 78);
  ASSERT_TRUE(know_each_other(a.get(), b.get()));
  Transactions of_a;
  ASSERT_TRUE(a->owners()->join(NodeId{1}, &of_a).ok());
  PublishedSlots* const slots = a->others()->published();
  for (uint64_t sequence = 5; sequence < 25; ++sequence) {
    slots->claim(sequence, TrxState::kActive);
    std::atomic<bool> held{true};
    std::thread waiter([&] {
      const Status got = b->locks()->wait(trx(2, sequence), trx(1, sequence), kRow, kForeverUs,
                                          nullptr, [&] { return held.load(); });
      EXPECT_TRUE(got.ok()) << got;
      b->locks()->settled(trx(2, sequence), kRow, trx(2, sequence));
      b->locks()->holder_ended(trx(2, sequence));
    });
    if (sequence % 2 == 0) {  // in time, or at any moment
      EXPECT_TRUE(
          wait_until([&] { return node_.service()->status().locks.waits >= sequence - 4; }));
    }
    held = false;
    slots->set(sequence, TrxState::kAborted, Cts{});
    a->locks()->holder_ended(trx(1, sequence));
    waiter.join();
  }
  EXPECT_EQ(node_.service()->status().locks.polls_found, 0u);
  EXPECT_TRUE(is_lock_wait_timeout(
      b->locks()->wait(trx(2, 99), trx(1, 99), kOtherRow, 30'000, nullptr, [] { return true; })));
  a->owners()->leave(NodeId{1});
}

TEST_F(FusionMemberTest, ADeadlockOverTwoServersHasOneVictim) {  // FQ4
  node_.start();
  const auto a = joined(1, 77);
  const auto b = joined(2, 78);
  std::atomic<bool> a_holds{true}, b_holds{true};
  std::atomic<int> victims{0};
  const auto wait = [&](FusionMember* member, TrxId waiter, TrxId holder, RowId row,
                        std::atomic<bool>* held, std::atomic<bool>* own) {
    const Status got = member->locks()->wait(waiter, holder, row, kForeverUs, nullptr,
                                             [held] { return held->load(); });
    if (is_deadlock(got)) {
      ++victims;
    } else {
      EXPECT_TRUE(got.ok()) << got;
    }
    *own = false;  // it rolls back, or commits
    member->locks()->holder_ended(waiter);
  };
  std::thread first([&] { wait(a.get(), trx(1, 5), trx(2, 9), kRow, &b_holds, &a_holds); });
  std::thread second([&] { wait(b.get(), trx(2, 9), trx(1, 5), kOtherRow, &a_holds, &b_holds); });
  first.join();
  second.join();
  EXPECT_EQ(victims, 1);
}

TEST_F(FusionMemberTest, SharedLocksAndRangesCountOnAllServers) {
  node_.start();
  const auto a = joined(1, 77);
  const auto b = joined(2, 78);
  a->locks()->add_shared(trx(1, 5), kRow);
  EXPECT_TRUE(b->locks()->index_has_shared(kRow.index));
  EXPECT_EQ(b->locks()->shared_conflict(trx(2, 9), kRow), trx(1, 5));
  EXPECT_TRUE(b->locks()->shared_conflict(trx(2, 9), kOtherRow).is_zero());
  const std::string low = "m", high = "p";
  EXPECT_TRUE(a->locks()->add_range(trx(1, 5), kRow.index, KeyRange{low, high, false}));
  EXPECT_EQ(b->locks()->shared_conflict(trx(2, 9), kOtherRow), trx(1, 5)) << "other row";
  std::thread waiter(
      [&] { EXPECT_TRUE(b->locks()->wait_for_shared(trx(2, 9), kRow, kForeverUs, nullptr).ok()); });
  EXPECT_TRUE(wait_until([&] { return node_.service()->status().locks.waits == 1; }));
  EXPECT_NE(b->locks()->describe(10), "");
  a->locks()->release_shared(trx(1, 5));
  waiter.join();
}

// FC28, FN3: more than one message has room for, and larger.
TEST(RowLockMessages, WhatDoesNotFitIntoOneGoesInSeveralInItsOrder) {
  class Asks final : public RowLockClient::Call {
   public:
    void changed() noexcept override {}
  };
  RowLockHints hints;
  RowLockClient client(NodeId{1}, 77, &hints);
  client.use(Epoch{1});
  constexpr size_t kCount = 6'000;
  std::vector<std::unique_ptr<Asks>> calls;
  for (size_t i = 0; i < kCount; ++i) {
    calls.push_back(std::make_unique<Asks>());
    const std::string key(i < 2'000 ? 3'500 : 10, 'k');
    client.add_shared(calls.back().get(), trx(1, 5), RowId{IndexId{6}, key + std::to_string(i)});
  }
  uint64_t last = 0;
  size_t messages = 0;
  while (const auto batch = client.next_batch()) {
    ++messages;
    EXPECT_EQ(batch->number, messages);
    const std::string bytes = proto::encode(*batch);
    EXPECT_LE(bytes.size(), proto::kLockMessageBytesMax + 100);
    EXPECT_TRUE(proto::decode_row_locks(bytes).ok());
    for (const proto::LockRequest& request : batch->requests) {
      if (request.kind != proto::LockRequestKind::kAddShared) continue;
      EXPECT_EQ(request.number, last + 1);
      last = request.number;
    }
    client.heard(Epoch{1}, {.accepted = batch->number});
  }
  EXPECT_EQ(last, kCount);
  EXPECT_GE(messages, 3u);
  client.end();
}

// --- leases ---

TEST_F(FusionMemberTest, ASilentMemoryNodeEndsTheLeaseAndNothingElse) {  // FC31
  node_.options.time.authority.lease_us = 1'000'000;
  node_.options.time.authority.renew_us = 50'000;
  node_.start();
  FusionMemberOptions options = options_of(1, 77);
  std::atomic<int> ended{0};
  options.ended = [&](const Status&) { ++ended; };
  const auto a = joined(options);
  ASSERT_TRUE(a->timestamps()->next().ok());
  node_.stream.will(TestStream::Does::kHolds);
  EXPECT_TRUE(wait_until([&] { return !a->lease()->valid(a->epoch()); }));
  EXPECT_TRUE(a->status().ok());
  EXPECT_FALSE(a->horizon()->newest().ok());
  std::thread waits([&] { EXPECT_TRUE(a->timestamps()->next().ok()) << "it waits for a lease"; });
  node_.stream.will(TestStream::Does::kTakes);
  waits.join();
  EXPECT_TRUE(wait_until([&] { return a->lease()->valid(a->epoch()); }));
  EXPECT_EQ(ended, 0);
}

TEST_F(FusionMemberTest, WhoIsFencedHasNothingFromThenOnAndTellsItsOwnerOnce) {  // FC31
  node_.start();
  FusionMemberOptions options = options_of(1, 77);
  std::atomic<int> ended{0};
  options.ended = [&](const Status& why) {
    EXPECT_TRUE(is_fenced(why)) << why;
    ++ended;
  };
  const auto a = joined(options);
  const auto b = joined(2, 78);
  ASSERT_TRUE(know_each_other(a.get(), b.get()));
  std::thread waiter([&] {
    const Status got =
        a->locks()->wait(trx(1, 5), trx(2, 9), kRow, kForeverUs, nullptr, [] { return true; });
    EXPECT_TRUE(is_lease_lost(got)) << got;
  });
  EXPECT_TRUE(wait_until([&] { return node_.service()->status().locks.waits == 1; }));
  node_.service()->fence(NodeId{1});
  waiter.join();
  EXPECT_TRUE(wait_until([&] { return ended == 1; }));
  EXPECT_TRUE(is_fenced(a->status()));
  EXPECT_FALSE(a->lease()->valid(a->epoch()));
  EXPECT_FALSE(a->horizon()->newest().ok());
  EXPECT_TRUE(is_fenced(a->renew()));
  EXPECT_TRUE(is_fenced(a->leave()));
  EXPECT_TRUE(wait_until([&] { return b->counters().tables_closed.load() == 1; }));
  EXPECT_EQ(ended, 1);
  EXPECT_TRUE(b->status().ok());
}

TEST_F(FusionMemberTest, TheEndOfTheMemoryNodesEpochIsTheEndOfItsServers) {  // FC31
  node_.start(1);
  FusionMemberOptions options = options_of(1, 77);
  std::atomic<int> ended{0};
  options.ended = [&](const Status&) { ++ended; };
  const auto a = joined(options);
  node_.end_service();
  node_.serve(2);
  EXPECT_TRUE(wait_until([&] { return ended == 1; }));
  EXPECT_FALSE(a->status().ok());
  const auto next = joined(1, 78);
  EXPECT_EQ(next->epoch(), Epoch{2});
  EXPECT_TRUE(next->timestamps()->next().ok());
}

// --- coming and going ---

TEST_F(FusionMemberTest, WhoLeavesIsReadNoMoreAndItsNextLifeIsRead) {  // FC30, FC32
  node_.start();
  auto a = joined(1, 77);
  const auto b = joined(2, 78);
  ASSERT_TRUE(know_each_other(a.get(), b.get()));
  a->others()->published()->claim(5, TrxState::kPrepared);
  ASSERT_EQ(b->others()->read(trx(1, 5))->state, TrxState::kPrepared);
  ASSERT_TRUE(a->leave().ok());
  EXPECT_FALSE(a->lease()->valid(a->epoch()));
  EXPECT_TRUE(wait_until([&] { return b->counters().tables_closed.load() == 1; }));
  EXPECT_TRUE(is_gone(1));
  EXPECT_TRUE(is_not_found(b->others()->read(trx(1, 5)).status()));
  auto next = joined(1, 79);
  next->others()->published()->claim(5, TrxState::kCommitting);
  EXPECT_TRUE(wait_until([&] { return b->counters().tables_opened.load() == 2; }));
  EXPECT_EQ(b->others()->read(trx(1, 5))->state, TrxState::kCommitting);
}

TEST_F(FusionMemberTest, WhoJoinsWhileAnEarlierProcessIsThereWaitsUnlessItIsAlone) {
  node_.start();
  auto a = joined(1, 77);
  FusionMemberOptions options = options_of(1, 79);
  options.join_us_max = 300'000;
  const auto refused = FusionMember::join(options, node_.channel());
  EXPECT_TRUE(is_in_use(refused.status()) || is_timed_out(refused.status()) ||
              is_outcome_unknown(refused.status()))
      << refused.status();
  EXPECT_TRUE(a->status().ok());
  a->stop();
  options.alone = true;
  options.join_us_max = 20'000'000;
  const auto next = joined(options);
  EXPECT_TRUE(next->timestamps()->next().ok());
}

TEST_F(FusionMemberTest, WhoJoinsWhereNobodyServesIsToldInTimeOrWhenItIsInterrupted) {
  node_.start();
  node_.end_service();
  FusionMemberOptions options = options_of(1, 77);
  options.join_us_max = 200'000;
  EXPECT_TRUE(may_be_repeated(FusionMember::join(options, node_.channel()).status()));
  options.join_us_max = kForeverUs;
  WaitInterrupt interrupt;
  std::atomic<bool> joins{false};
  std::thread killed([&] {
    const InterruptScope scope(&interrupt);
    joins = true;
    EXPECT_TRUE(is_interrupted(FusionMember::join(options, node_.channel()).status()));
  });
  EXPECT_TRUE(wait_until([&] { return joins.load(); }));
  interrupt.interrupt();
  killed.join();
}

// A memory node of another build: the layout of one call is another one. In place of the lease's
// end, which comes too late to say why, the server ends with that cause.
TEST_F(FusionMemberTest, AMemoryNodeOfAnotherBuildIsSaidToBeOne) {  // FC64
  for (const uint16_t other : {proto::kFusionJoin, proto::kFusionRenew, proto::kRowLocks,
                               proto::kRowLockEvents, proto::kFusionEvents}) {
    FusionNode node;
    node.options.table_slots = kSlots;
    node.other_layouts = {other};
    node.start();
    FusionMemberOptions options = options_of(1, 77);
    std::atomic<int> ended{0};
    options.ended = [&](const Status&) { ++ended; };
    const uint64_t begun_us = monotonic_us();
    auto member = FusionMember::join(options, node.channel());
    Status why = member.status();
    if (member.ok()) {
      why = (*member)->serve();
      if (why.ok()) wait_until([&] { return !(*member)->status().ok(); });
      if (why.ok()) why = (*member)->status();
      EXPECT_EQ(ended, 1);
    }
    EXPECT_TRUE(is_unsupported(why)) << other << ": " << why;
    EXPECT_NE(why.message().find(proto::traits_of(other).name), std::string::npos) << why;
    EXPECT_LT(monotonic_us(), begun_us + options.join_us_max) << other;
    member = why;
    node.stop();
  }
}

TEST_F(FusionMemberTest, WhoWasLetInAndCannotBeginLeavesAgain) {  // FC62
  node_.start();                                                  // with leases of a minute
  FusionMemberOptions options = options_of(1, 77);
  options.open_us_max = 0;
  EXPECT_FALSE(FusionMember::join(options, node_.channel()).ok());
  EXPECT_TRUE(is_gone(1));
  EXPECT_EQ(node_.counters().expired.load(), 0u);
  EXPECT_EQ(node_.counters().left.load(), 1u);
  EXPECT_NE(joined(1, 78), nullptr);
}

TEST_F(FusionMemberTest, WithoutAMappingItsTransactionsAreAskedFor) {
  node_.start();
  FusionMemberOptions options = options_of(1, 77);
  options.path = transport::RegionPath::kCalls;
  const auto a = joined(options);
  const auto b = joined(2, 78);
  ASSERT_TRUE(know_each_other(a.get(), b.get()));
  EXPECT_EQ(a->others()->published(), nullptr);
  ASSERT_TRUE(a->timestamps()->next().ok());
  Transactions of_a;
  ASSERT_TRUE(a->owners()->join(NodeId{1}, &of_a).ok());
  EXPECT_EQ(b->others()->read(trx(1, 5))->state, TrxState::kActive);
  b->others()->published()->claim(9, TrxState::kPrepared);
  EXPECT_EQ(a->others()->read(trx(2, 9))->state, TrxState::kPrepared) << "tables are read by calls";
  a->owners()->leave(NodeId{1});
}

TEST_F(FusionMemberTest, PagesAreThereOnlyIfTheMemoryNodeSharesThem) {
  node_.options.pages.slots = 0;
  node_.start();
  auto a = FusionMember::join(options_of(1, 77), node_.channel());
  ASSERT_TRUE(a.ok());
  EXPECT_TRUE(is_unsupported((*a)->make_pages({}, nullptr).status()));
}

// --- its line (FC60, FV14) ---

TEST_F(FusionMemberTest, WhoseProcessIsGoneIsNotWaitedFor) {
  node_.start();  // with leases of a minute
  auto a = joined(1, 77);
  const auto b = joined(2, 78);
  EXPECT_TRUE(wait_until([&] { return node_.counters().lines.load() == 2; }));
  EXPECT_TRUE(wait_until([&] { return a->counters().lines.load() == 1; }));
  a->stop();
  EXPECT_TRUE(b->renew().ok());
  EXPECT_EQ(node_.counters().lines_ended.load(), 0u) << "it may still use what it has";
  a.reset();  // as its kernel ends the process
  EXPECT_TRUE(is_gone(1));
  EXPECT_EQ(node_.counters().lines_ended.load(), 1u);
  EXPECT_EQ(node_.counters().expired.load(), 0u);
  const auto next = joined(1, 79);
  EXPECT_TRUE(wait_until([&] { return next->counters().lines.load() == 1; }));
  EXPECT_TRUE(next->leave().ok());
}

TEST_F(FusionMemberTest, ALineOfSomebodyElseOfAnotherLifeOrEpochEndsNobody) {
  node_.start(5);
  const auto a = joined(1, 77);
  const auto channel = node_.channel();
  const auto offer = [&](transport::KeptConnection* line, uint64_t life, const std::string& end,
                         Epoch epoch = Epoch{5}) {
    const auto call = proto::call_of(proto::kFusionLine, monotonic_us() + 20'000'000);
    transport::BlockingReply reply;
    return channel->call_on(
        line, call, proto::encode(proto::FusionLineRequest{{NodeId{1}, life, epoch}, end}), &reply);
  };
  const auto line = [&] { return *channel->keep_connection(monotonic_us() + 20'000'000); };
  auto passed_on = line(), earlier = line(), before = line(), later = line();
  EXPECT_TRUE(is_unsupported(offer(passed_on.get(), 77, "tcp:10.0.0.7:4711")));
  EXPECT_TRUE(is_unsupported(offer(passed_on.get(), 77, "")));
  EXPECT_TRUE(is_fenced(offer(earlier.get(), 76, earlier->own_end())));
  // What the server said while it went on from one memory node to the next.
  EXPECT_TRUE(is_withdrawn(offer(before.get(), 77, before->own_end(), Epoch{4})));
  EXPECT_TRUE(is_peer_down(offer(later.get(), 77, later->own_end(), Epoch{6})));
  before.reset();
  later.reset();
  passed_on.reset();
  earlier.reset();
  EXPECT_TRUE(wait_until([&] { return node_.counters().lines_ended.load() == 1; }));
  EXPECT_TRUE(a->renew().ok());
  EXPECT_EQ(node_.counters().fenced.load(), 0u);
}

TEST_F(FusionMemberTest, ALineGoesToTheNextMemoryNode) {
  node_.start(1);
  auto a = joined(1, 77);
  const auto b = joined(2, 78);
  EXPECT_TRUE(wait_until([&] { return node_.counters().lines.load() == 2; }));
  node_.end_service();
  node_.recovers = true;
  node_.options.resume_us_max = 60'000'000;
  node_.serve(2);
  EXPECT_TRUE(wait_until([&] { return node_.service()->status().recovery.heard_all; }));
  node_.service()->recovered();
  EXPECT_TRUE(wait_until([&] { return node_.counters().lines.load() == 2; }));
  EXPECT_EQ(node_.counters().fenced.load(), 0u) << "the lines to the one before are nothing here";
  a.reset();
  EXPECT_TRUE(is_gone(1));
  EXPECT_EQ(node_.counters().expired.load(), 0u);
}

// --- another memory node (FC51) ---

TEST_F(FusionMemberTest, ServersGoOnAtTheNextMemoryNodeWithAllThatTheyHave) {
  node_.start(1);
  FusionMemberOptions of_a = options_of(1, 77);
  std::atomic<int> ended{0};
  of_a.ended = [&](const Status&) { ++ended; };
  of_a.durable = [] { return Lsn{4711}; };
  const auto a = joined(of_a);
  const auto b = joined(2, 78);
  const auto gone = joined(3, 79);
  ASSERT_TRUE(know_each_other(a.get(), b.get()));
  Transactions of_b;
  ASSERT_TRUE(b->owners()->join(NodeId{2}, &of_b).ok());
  const Cts before = *a->timestamps()->next();
  a->locks()->add_shared(trx(1, 5), kRow);
  std::atomic<bool> held{true};
  std::thread waiter([&] {  // for a transaction of a's, which ends under the next memory node
    const Status got = b->locks()->wait(trx(2, 9), trx(1, 6), kOtherRow, kForeverUs, nullptr,
                                        [&] { return held.load(); });
    EXPECT_TRUE(got.ok()) << got;
  });
  EXPECT_TRUE(wait_until([&] { return node_.service()->status().locks.waits == 1; }));
  gone->stop();
  node_.end_service();
  node_.recovers = true;
  node_.options.resume_us_max = 3'000'000;
  node_.serve(2);
  EXPECT_TRUE(wait_until([&] { return node_.counters().resumed.load() == 2; }));
  // The memory node counts an answer before its server has it, and may still have a lease then.
  EXPECT_TRUE(wait_until([&] { return a->epoch() == Epoch{2} && b->epoch() == Epoch{2}; }));
  EXPECT_TRUE(wait_until([&] { return a->has_lease() && b->has_lease(); })) << "before the rest";
  EXPECT_GT(*a->timestamps()->next(), before);
  // Nobody joins, and no row is anybody's, before all have spoken.
  FusionMemberOptions late = options_of(4, 80);
  late.join_us_max = 100'000;
  EXPECT_FALSE(FusionMember::join(late, node_.channel()).ok());
  EXPECT_FALSE(node_.service()->status().recovery.heard_all);
  EXPECT_TRUE(wait_until([&] { return node_.service()->status().recovery.heard_all; }));
  EXPECT_EQ(node_.counters().expired.load(), 1u);
  EXPECT_EQ(node_.service()->status().recovery.durable.at(NodeId{1}), Lsn{4711});
  node_.service()->recovered();
  held = false;
  a->locks()->holder_ended(trx(1, 6));
  waiter.join();
  // What it held shared it still does.
  EXPECT_TRUE(
      wait_until([&] { return b->locks()->shared_conflict(trx(2, 8), kRow) == trx(1, 5); }));
  a->locks()->release_shared(trx(1, 5));
  EXPECT_TRUE(wait_until([&] { return b->locks()->shared_conflict(trx(2, 8), kRow) == TrxId{}; }));
  EXPECT_EQ(a->others()->read(trx(2, 9))->state, TrxState::kActive);
  EXPECT_EQ(ended, 0);
  EXPECT_TRUE(a->leave().ok());
  EXPECT_TRUE(b->leave().ok());
}

TEST_F(FusionMemberTest, WhatTheMemoryNodeBeforeHadAskedIsNoAnswerToTheNextOne) {  // FC56
  node_.start(1);
  const auto a = joined(1, 77);
  const auto b = joined(2, 78);
  Transactions of_a;
  std::array<std::atomic<bool>, 2> asked{}, decided{};
  of_a.on_outcome = [&](uint64_t sequence) -> StatusOr<TrxLookup> {
    const size_t which = sequence - 5;
    asked[which] = true;
    EXPECT_TRUE(wait_until([&] { return decided[which].load(); }));
    return TrxLookup{TrxState::kCommitted, Cts{50 + which}, Lsn{}};
  };
  ASSERT_TRUE(a->owners()->join(NodeId{1}, &of_a).ok());
  WaitInterrupt killed;
  std::thread first([&] {  // the first question of the first memory node
    const InterruptScope scope(&killed);
    EXPECT_TRUE(is_interrupted(b->owners()->wait_decided(trx(1, 5)).status()));
  });
  EXPECT_TRUE(wait_until([&] { return asked[0].load(); }));
  killed.interrupt();
  first.join();
  node_.end_service();
  node_.recovers = true;
  node_.options.resume_us_max = 60'000'000;
  node_.serve(2);
  EXPECT_TRUE(wait_until([&] { return node_.service()->status().recovery.heard_all; }));
  node_.service()->recovered();
  std::thread second([&] {  // the first question of the second one
    const auto outcome = b->owners()->wait_decided(trx(1, 6));
    EXPECT_TRUE(outcome.ok() && outcome->cts == Cts{51}) << "of another transaction";
  });
  EXPECT_TRUE(wait_until([&] { return asked[1].load(); }));
  const uint64_t stale = node_.counters().stale_calls.load();
  decided[0] = true;
  EXPECT_TRUE(wait_until([&] { return node_.counters().stale_calls.load() > stale; }));
  decided[1] = true;
  second.join();
  a->owners()->leave(NodeId{1});
}

}  // namespace
}  // namespace strata::clients
