// Goal: each rule of a server's clients of the memory node by hand (FU5, FU6, FU9, FU12, FC1-FC16).
// Method: a region whose operations end when the test says so, a clock of the test's.
#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "base/testing/wait_until.h"
#include "base/wait_interrupt.h"
#include "clients/fusion/fusion_lease.h"
#include "clients/fusion/horizon_client.h"
#include "clients/fusion/oracle_client.h"
#include "clients/fusion/reuse_client.h"
#include "clients/fusion/row_lock_client.h"
#include "clients/fusion/testing/memory_region.h"
#include "clients/fusion/timestamp_fetcher.h"
#include "clients/fusion/tit_reader.h"
#include "clients/fusion/tit_region.h"
#include "proto/fusion.h"

namespace strata::clients {
namespace {

using testing::MemoryRegion;

struct FixedLease final : LeaseCheck {
  Epoch now{1};
  bool held = true;
  [[nodiscard]] bool valid(Epoch epoch) const noexcept override { return held && epoch == now; }
  [[nodiscard]] Epoch epoch() const noexcept override { return now; }
};

TEST(FusionLease, IsCountedFromTheAskingAndBelongsToItsEpoch) {  // FC1, FC2
  uint64_t now = 1000;
  FusionLease lease([&now] { return now; });
  EXPECT_FALSE(lease.valid(Epoch{1}));
  lease.granted(Epoch{1}, 1000, 3200);
  now = 4099;
  EXPECT_TRUE(lease.valid(Epoch{1}));
  EXPECT_FALSE(lease.valid(Epoch{2}));
  now = 4100;
  EXPECT_FALSE(lease.valid(Epoch{1}));
  lease.granted(Epoch{1}, 4000, 3200);  // it may come back
  EXPECT_TRUE(lease.valid(Epoch{1}));
  lease.granted(Epoch{2}, 4050, 320);
  EXPECT_FALSE(lease.valid(Epoch{1}));
  EXPECT_TRUE(lease.valid(Epoch{2}));
  lease.granted(Epoch{1}, 4100, 99'000);  // an old reply
  EXPECT_FALSE(lease.valid(Epoch{1}));
  now = 4360;
  EXPECT_FALSE(lease.valid(Epoch{2}));
  lease.granted(Epoch{2}, 4355, 320);
  lease.end();
  EXPECT_FALSE(lease.valid(Epoch{2}));
}

// Begins fetches and ends them when the test says so.
class HeldRegion final : public transport::RemoteRegion {
 public:
  explicit HeldRegion(char* memory) : memory_(memory) {}
  Status run(absl::Span<transport::RegionOperation>, uint64_t) override { return error_internal(); }
  Status persist(uint64_t, uint64_t, uint64_t) override { return error_internal(); }
  void start(absl::Span<transport::RegionOperation> batch, uint64_t,
             transport::RegionDone done) override {
    held_.push_back({batch, std::move(done)});
  }
  [[nodiscard]] size_t held() const { return held_.size(); }
  void end_first(const Status& status = ok_status()) {
    Held first = std::move(held_.front());
    held_.pop_front();
    for (transport::RegionOperation& operation : first.batch)
      transport::apply_operation(&operation, memory_);
    first.done(status);
  }
  [[nodiscard]] bool truly_one_sided() const noexcept override { return true; }
  [[nodiscard]] uint64_t bytes() const noexcept override { return proto::kTimesBytes; }
  [[nodiscard]] uint64_t epoch() const noexcept override { return 0; }

 private:
  struct Held {
    absl::Span<transport::RegionOperation> batch;
    transport::RegionDone done;
  };
  char* const memory_;
  std::deque<Held> held_;
};

class FetcherTest : public ::testing::Test {
 protected:
  struct Asked final : TimestampFetcher::Request {
    Asked(TimestampFetcher* f, bool fresh) : Request(fresh), fetcher(f) { f->ask(this); }
    void answered() noexcept override { done = true; }
    void lead() noexcept override { fetcher->lead(); }
    TimestampFetcher* const fetcher;
    bool done = false;
  };
  FetcherTest() {
    set(100, 1000);
    fetcher_.use(region_, Epoch{1});
  }
  void set(uint64_t clock, uint64_t ceiling) {
    store_u64(memory_.data() + proto::kClockOffset, clock);
    store_u64(memory_.data() + proto::kCeilingOffset, ceiling);
  }
  std::unique_ptr<Asked> ask(bool fresh) { return std::make_unique<Asked>(&fetcher_, fresh); }

  alignas(64) std::array<char, proto::kTimesBytes> memory_ = {};
  std::shared_ptr<HeldRegion> region_ = std::make_shared<HeldRegion>(memory_.data());
  FixedLease lease_;
  TimestampFetcher fetcher_{&lease_, [] { return 0; }, 1000};
};

TEST_F(FetcherTest, AFetchServesWhoCameBeforeItBeganAndNobodyElse) {  // FU6
  const auto first = ask(false);
  EXPECT_EQ(region_->held(), 1u);
  std::vector<std::unique_ptr<Asked>> later;
  for (int i = 0; i < 10; ++i) later.push_back(ask(false));
  const auto commit = ask(true), another = ask(true);
  EXPECT_EQ(region_->held(), 1u);  // one under way
  set(120, 1000);                  // a commit of another server, which may be acknowledged by now
  region_->end_first();
  EXPECT_TRUE(first->done);
  EXPECT_EQ(first->value, Cts{120});
  for (const auto& view : later) EXPECT_FALSE(view->done);
  ASSERT_EQ(region_->held(), 1u);
  region_->end_first();
  for (const auto& view : later) {
    ASSERT_TRUE(view->done);
    EXPECT_EQ(view->value, Cts{122});
  }
  EXPECT_EQ(commit->value, Cts{121});
  EXPECT_EQ(another->value, Cts{122});
  EXPECT_EQ(region_->held(), 0u);
  EXPECT_EQ(fetcher_.counters().fetches.load(), 2u);
  EXPECT_EQ(fetcher_.counters().views.load(), 11u);
  EXPECT_EQ(fetcher_.counters().commits.load(), 2u);
}

TEST_F(FetcherTest, AValueCountsUnderTheLeaseOfTheEpochItWasFetchedUnder) {  // FU5
  const auto view = ask(false);
  // The memory node changes meanwhile, and the server has a lease from the next one already.
  auto next = std::make_shared<HeldRegion>(memory_.data());
  fetcher_.use(next, Epoch{2});
  lease_.now = Epoch{2};
  region_->end_first();
  EXPECT_TRUE(view->done);
  EXPECT_TRUE(is_lease_lost(view->status)) << view->status;
  const auto again = ask(false);
  EXPECT_EQ(region_->held(), 0u);
  next->end_first();
  EXPECT_TRUE(again->status.ok());
  fetcher_.use(region_, Epoch{1});  // late news
  const auto third = ask(true);
  EXPECT_EQ(next->held(), 1u);
  lease_.held = false;
  next->end_first();
  EXPECT_TRUE(is_lease_lost(third->status));
}

TEST_F(FetcherTest, CommitsAboveTheCeilingDoNotCountAndSnapshotsStayBelowIt) {  // FU5
  set(999, 1000);
  const auto first = ask(true);
  const auto second = ask(true), third = ask(true), view = ask(false);
  region_->end_first();
  EXPECT_EQ(first->value, Cts{1000});
  region_->end_first();
  EXPECT_TRUE(is_busy(second->status));
  EXPECT_TRUE(is_busy(third->status));
  EXPECT_TRUE(view->status.ok());
  EXPECT_EQ(view->value, Cts{1000});
  EXPECT_EQ(fetcher_.counters().above_ceiling.load(), 2u);
  set(load_u64(memory_.data()), 2000);
  const auto again = ask(true);
  region_->end_first();
  EXPECT_EQ(again->value, Cts{1003});  // 1001 and 1002 are nobody's (FC3)
}

TEST_F(FetcherTest, NumbersWhoseReplyWasLostAreNobodys) {  // FC3
  const auto lost = ask(true);
  region_->end_first(error_outcome_unknown());
  EXPECT_TRUE(is_outcome_unknown(lost->status));
  const auto next = ask(true);
  region_->end_first();
  EXPECT_EQ(next->value, Cts{102});
}

TEST_F(FetcherTest, AClockThatCannotBeIsDamage) {
  set(0, 1000);
  const auto zero = ask(false);
  region_->end_first();
  EXPECT_TRUE(is_corruption(zero->status));
  set(proto::kCtsMax, 1000);
  const auto full = ask(true);
  region_->end_first();
  EXPECT_TRUE(is_corruption(full->status));
  fetcher_.use(nullptr, Epoch{1});
  const auto none = ask(false);
  EXPECT_TRUE(is_peer_down(none->status));
}

class ClientsTest : public ::testing::Test {
 protected:
  ClientsTest() {
    set(100, 1000);
    store_u64(memory_.data() + proto::kHorizonOffset, 42);
  }
  void set(uint64_t clock, uint64_t ceiling) {
    store_u64(memory_.data() + proto::kClockOffset, clock);
    store_u64(memory_.data() + proto::kCeilingOffset, ceiling);
  }
  alignas(64) std::array<char, proto::kTimesBytes> memory_ = {};
  std::shared_ptr<MemoryRegion> region_ =
      std::make_shared<MemoryRegion>(memory_.data(), memory_.size());
  FixedLease lease_;
};

TEST_F(ClientsTest, OracleWaitsForTheCeilingAndForAMemoryNode) {
  OracleClient oracle(&lease_);
  uint64_t tries = 0;
  set(1000, 1000);
  region_->before = [&] {
    if (++tries == 5) set(load_u64(memory_.data()), 5000);
    return tries % 2 == 0 ? error_peer_down() : ok_status();
  };
  oracle.use(region_, Epoch{1});
  const auto cts = oracle.next();
  ASSERT_TRUE(cts.ok()) << cts.status();
  EXPECT_EQ(*cts, Cts{1003});
  EXPECT_EQ(tries, 5u);
  EXPECT_TRUE(oracle.is_remote());
}

TEST_F(ClientsTest, OracleGivesUpInTime) {  // FC5
  OracleClient oracle(&lease_, {.fetch_us_max = 1000, .wait_us_max = 20'000});
  oracle.use(region_, Epoch{1});
  lease_.held = false;
  EXPECT_TRUE(is_lease_lost(oracle.current().status()));
  lease_.held = true;
  EXPECT_TRUE(oracle.raise_to(Cts{100}).ok());
  EXPECT_TRUE(is_corruption(oracle.raise_to(Cts{101})));
}

TEST_F(ClientsTest, WhoRenewsTheLeaseDoesNotWaitForIt) {  // FC48
  OracleClient oracle(&lease_, {.wait_us_max = UINT64_MAX / 4});
  oracle.use(region_, Epoch{1});
  lease_.held = false;
  EXPECT_TRUE(is_lease_lost(oracle.current_at_once().status()));
  lease_.held = true;
  EXPECT_TRUE(oracle.current_at_once().ok());
}

TEST_F(ClientsTest, AStatementThatWaitsForATimestampCanBeInterrupted) {  // FC5
  OracleClient oracle(&lease_);
  WaitInterrupt interrupt;
  std::atomic<bool> ended{false};
  std::thread waiter([&] {
    const InterruptScope scope(&interrupt);
    EXPECT_TRUE(is_interrupted(oracle.current().status()));
    ended.store(true);
  });
  interrupt.interrupt();
  waiter.join();
  EXPECT_TRUE(ended.load());
}

TEST_F(ClientsTest, WhoWaitsForATimestampHearsThatTheServerHasEnded) {  // FC31
  OracleClient oracle(&lease_, {.wait_us_max = UINT64_MAX / 4});
  oracle.use(region_, Epoch{1});
  lease_.held = false;
  std::thread waiter([&] { EXPECT_TRUE(is_fenced(oracle.next().status())); });
  oracle.end(error_fenced("it is over"));
  waiter.join();
  EXPECT_TRUE(is_fenced(oracle.current().status()));
}

struct FixedViews final : OwnViews {
  Cts oldest{50};
  [[nodiscard]] Cts oldest_own_view() const override { return oldest; }
};

TEST_F(ClientsTest, HorizonIsReadUnderALeaseAndNeverGoesBack) {  // FU12, FC6
  HorizonClient horizon(&lease_);
  FixedViews views;
  EXPECT_TRUE(is_peer_down(horizon.join(NodeId{1}, &views)));
  EXPECT_FALSE(horizon.oldest_own_view().has_value());
  horizon.use(region_, Epoch{1});
  ASSERT_TRUE(horizon.join(NodeId{1}, &views).ok());
  EXPECT_EQ(horizon.known(), Cts{42});
  EXPECT_EQ(horizon.oldest_own_view(), Cts{50});
  horizon.heard(Cts{40});
  EXPECT_EQ(horizon.known(), Cts{42});
  horizon.heard(Cts{60});
  EXPECT_EQ(horizon.known(), Cts{60});
  EXPECT_EQ(*horizon.newest(), Cts{42});
  lease_.held = false;
  EXPECT_TRUE(is_lease_lost(horizon.newest().status()));
  horizon.leave(NodeId{1});
  EXPECT_FALSE(horizon.oldest_own_view().has_value());
}

// Another server's owner side: says what the test put there.
struct Owners final : TitOwners {
  std::map<uint64_t, TrxLookup> states;
  Status join(NodeId, OwnTransactions*) override { return ok_status(); }
  void leave(NodeId) noexcept override {}
  StatusOr<TrxLookup> read(TrxId id) override { return states[sequence_of(id)]; }
  StatusOr<TrxLookup> wait_decided(TrxId id) override { return states[sequence_of(id)]; }
};

class TitTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kSlots = 8;
  TitTest() { reader_.opened(NodeId{2}, region_, kSlots); }
  TrxState state_of(uint64_t sequence) {
    return reader_.read(make_trx_id(NodeId{2}, sequence))->state;
  }
  uint64_t calls() const { return reader_.counters().calls.load(); }

  alignas(64) std::array<char, TitRegion::bytes_of(kSlots)> memory_ = {};
  TitRegion tit_{memory_.data(), kSlots};
  std::shared_ptr<MemoryRegion> region_ =
      std::make_shared<MemoryRegion>(memory_.data(), memory_.size());
  FixedLease lease_;
  Owners owners_;
  TitReader reader_{&lease_, &owners_, nullptr};
};

TEST_F(TitTest, AnotherServersTransactionIsReadWithoutAskingIt) {  // FU9
  tit_.claim(5, TrxState::kActive);
  EXPECT_EQ(state_of(5), TrxState::kActive);
  tit_.set(5, TrxState::kPrepared, Cts{});
  EXPECT_EQ(state_of(5), TrxState::kPrepared);
  tit_.set(5, TrxState::kCommitting, Cts{});
  tit_.set(5, TrxState::kCommitting, Cts{77});
  const auto committing = reader_.read(make_trx_id(NodeId{2}, 5));
  EXPECT_EQ(committing->state, TrxState::kCommitting);
  EXPECT_EQ(committing->cts, Cts{77});
  tit_.set(5, TrxState::kCommitted, Cts{77});
  const auto committed = reader_.read(make_trx_id(NodeId{2}, 5));
  EXPECT_EQ(committed->state, TrxState::kCommitted);
  EXPECT_EQ(committed->cts, Cts{77});
  EXPECT_EQ(calls(), 0u);
  EXPECT_EQ(state_of(5 + kSlots), TrxState::kNone);  // not the one that is there
  EXPECT_EQ(calls(), 1u);
  tit_.claim(5 + kSlots, TrxState::kActive);
  EXPECT_EQ(state_of(5 + kSlots), TrxState::kActive);
  owners_.states[5] = {TrxState::kCommitted, Cts{77}, Lsn{}};
  EXPECT_EQ(state_of(5), TrxState::kCommitted);
  EXPECT_EQ(calls(), 2u);
}

TEST_F(TitTest, WhatIsNotDurableIsNotToldAsCommitted) {  // FC9, MW20
  tit_.claim(3, TrxState::kActive);
  tit_.set(3, TrxState::kCommitting, Cts{9});
  tit_.set_ended(3, Cts{9});
  EXPECT_EQ(state_of(3), TrxState::kCommitting);
  tit_.made_durable(3, Cts{9});
  EXPECT_EQ(state_of(3), TrxState::kCommitted);
  // Too late: the slot is another's.
  tit_.set_ended(3, Cts{9});
  tit_.claim(3 + kSlots, TrxState::kActive);
  tit_.made_durable(3, Cts{9});
  EXPECT_EQ(state_of(3 + kSlots), TrxState::kActive);
}

TEST_F(TitTest, WhoGoesByWhatIsCommittedNowAsksForACommitThatMayHaveBeenTold) {  // MW21
  tit_.claim(3, TrxState::kActive);
  const TrxId id = make_trx_id(NodeId{2}, 3);
  EXPECT_EQ(reader_.read_told(id)->state, TrxState::kActive);
  tit_.set(3, TrxState::kCommitting, Cts{9});
  EXPECT_EQ(reader_.read_told(id)->state, TrxState::kCommitting);
  EXPECT_EQ(calls(), 0u);
  tit_.set_ended(3, Cts{9});
  owners_.states[3] = {TrxState::kCommitted, Cts{9}, Lsn{}};
  EXPECT_EQ(reader_.read_told(id)->state, TrxState::kCommitted);
  EXPECT_EQ(calls(), 1u);
}

TEST_F(TitTest, AnUndecidedTransactionKeepsItsSlot) {  // FC7
  tit_.claim(1, TrxState::kActive);
  tit_.claim(1 + kSlots, TrxState::kActive);
  tit_.set(1 + kSlots, TrxState::kCommitted, Cts{5});
  EXPECT_EQ(state_of(1), TrxState::kActive);
  EXPECT_EQ(state_of(1 + kSlots), TrxState::kNone);
  EXPECT_EQ(calls(), 1u);
}

TEST_F(TitTest, AWordOfAnotherTransactionIsNotTakenForTheOneAskedFor) {  // FU9
  tit_.claim(2, TrxState::kActive);
  // As if the two words had been read at different times.
  store_u64(memory_.data() + 2 * sizeof(proto::TitSlot) + offsetof(proto::TitSlot, word),
            proto::tit_word(static_cast<uint8_t>(TrxState::kCommitted), Cts{8},
                            proto::tit_tag(2 + kSlots, kSlots)));
  EXPECT_EQ(state_of(2), TrxState::kNone);
  EXPECT_EQ(calls(), 1u);
}

TEST_F(TitTest, NobodyGoesByATableThatWasClosedOrWithoutALease) {  // FC8
  tit_.claim(4, TrxState::kPrepared);
  owners_.states[4] = {TrxState::kCommitted, Cts{6}, Lsn{}};
  EXPECT_EQ(state_of(4), TrxState::kPrepared);
  lease_.held = false;
  EXPECT_EQ(state_of(4), TrxState::kCommitted);
  lease_.held = true;
  // The fence is heeded while the slot is being read.
  region_->after = [this] {
    reader_.closed(NodeId{2});
    return ok_status();
  };
  EXPECT_EQ(state_of(4), TrxState::kCommitted);
  region_->after = [] { return ok_status(); };
  EXPECT_EQ(state_of(4), TrxState::kCommitted);
  reader_.opened(NodeId{2}, region_, kSlots);
  EXPECT_EQ(state_of(4), TrxState::kPrepared);
  region_->before = [] { return error_peer_down(); };
  EXPECT_EQ(state_of(4), TrxState::kCommitted);
}

TEST_F(TitTest, WhoWaitsSaysSoInTheSlotAndOnlyOfItsTransaction) {  // FC15, FC16
  tit_.claim(3, TrxState::kActive);
  EXPECT_FALSE(tit_.may_be_waited_for(3));
  EXPECT_TRUE(reader_.announce_waiter(make_trx_id(NodeId{2}, 3)));
  EXPECT_TRUE(tit_.may_be_waited_for(3));
  // A younger one that would have the slot is not shown, takes nothing away, and may be waited for
  // by who cannot say so.
  tit_.claim(3 + kSlots, TrxState::kActive);
  EXPECT_TRUE(tit_.may_be_waited_for(3));
  EXPECT_TRUE(tit_.may_be_waited_for(3 + kSlots));
  EXPECT_FALSE(reader_.announce_waiter(make_trx_id(NodeId{2}, 3 + kSlots)));
  // The next one in the slot is waited for by nobody.
  tit_.set(3, TrxState::kAborted, Cts{});
  tit_.claim(3 + 2 * kSlots, TrxState::kActive);
  EXPECT_FALSE(tit_.may_be_waited_for(3 + 2 * kSlots));
  // A commit that is not durable is made so: its locks are given up by now.
  tit_.set_ended(3 + 2 * kSlots, Cts{7});
  owners_.states[3 + 2 * kSlots] = {TrxState::kCommitted, Cts{7}, Lsn{}};
  EXPECT_TRUE(reader_.announce_waiter(make_trx_id(NodeId{2}, 3 + 2 * kSlots)));
  EXPECT_EQ(calls(), 1u);
  // A table that is closed meanwhile, or cannot be reached, tells nobody.
  region_->after = [this] {
    reader_.closed(NodeId{2});
    return ok_status();
  };
  EXPECT_FALSE(reader_.announce_waiter(make_trx_id(NodeId{2}, 3 + 2 * kSlots)));
  EXPECT_FALSE(reader_.announce_waiter(make_trx_id(NodeId{2}, 3 + 2 * kSlots)));
  EXPECT_FALSE(reader_.announce_waiter(make_trx_id(NodeId{4}, 1)));
}

// --- row locks, message by message ---

using proto::LockBatch;
using proto::LockEvent;
using proto::LockEventKind;
using proto::LockReply;
using proto::LockRequest;
using proto::LockRequestKind;

class RowLockClientTest : public ::testing::Test {
 protected:
  struct Call final : RowLockClient::Call {
    void changed() noexcept override { ++changes; }
    int changes = 0;
  };
  using State = RowLockClient::Call::State;
  static constexpr IndexId kIndex{4};
  static TrxId own(uint64_t sequence) { return make_trx_id(NodeId{1}, sequence); }
  static TrxId other(uint64_t sequence) { return make_trx_id(NodeId{2}, sequence); }

  RowLockClientTest() {
    client_.use(Epoch{1});
    EXPECT_EQ(said(), std::vector{LockRequestKind::kReported});
  }
  // What it says next, which arrives.
  std::vector<LockRequest> batch(std::vector<LockEvent> events = {}) {
    const auto next = client_.next_batch();
    if (!next.has_value()) return {};
    hear(next->number, std::move(events));
    return next->requests;
  }
  std::vector<LockRequestKind> said() {
    std::vector<LockRequestKind> kinds;
    for (const LockRequest& request : batch()) kinds.push_back(request.kind);
    return kinds;
  }
  void hear(uint64_t accepted, std::vector<LockEvent> events) {
    LockReply reply;
    reply.accepted = accepted;
    reply.active = true;
    reply.first_event = events_ + 1;
    events_ += events.size();
    reply.events = std::move(events);
    client_.heard(client_.poll().epoch, reply);
  }
  RowLockHints hints_;
  RowLockClient client_{NodeId{1}, 9, &hints_};
  uint64_t events_ = 0;
  const RowId row_{kIndex, "a"};
};

TEST_F(RowLockClientTest, BatchIsSentAgainUntilItIsAcceptedAndEventsCountOnce) {  // FW3
  Call call;
  client_.wait(&call, own(1), other(1), row_, false);
  const auto first = client_.next_batch();
  ASSERT_TRUE(first.has_value());
  client_.settled(own(9), row_, true);  // nothing: it has no turn
  const auto again = client_.next_batch();
  EXPECT_EQ(again->number, first->number);
  EXPECT_EQ(again->requests.size(), 1u);
  LockReply reply;
  reply.accepted = first->number;
  reply.active = true;
  reply.first_event = 1;
  reply.events.push_back({.kind = LockEventKind::kRegistered,
                          .number = call.number(),
                          .trx = other(1),
                          .ticket = 3,
                          .flag = true});
  client_.heard(Epoch{1}, reply);
  client_.heard(Epoch{1}, reply);
  client_.heard(Epoch{2}, reply);
  EXPECT_EQ(call.changes, 1);
  EXPECT_EQ(call.state, State::kLook);
  EXPECT_FALSE(call.told);
  EXPECT_EQ(client_.poll().heard, 1u);
  EXPECT_FALSE(client_.next_batch().has_value());
  client_.cancel(&call);
}

TEST_F(RowLockClientTest, LookThatIsOutOfDateSaysNothing) {  // FU26
  Call call;
  client_.wait(&call, own(1), other(1), row_, false);
  batch({{.kind = LockEventKind::kRegistered,
          .number = call.number(),
          .trx = other(1),
          .ticket = 3,
          .flag = true}});
  const uint64_t look = call.look;
  hear(2, {{.kind = LockEventKind::kLook, .number = call.number(), .trx = other(1)}});
  client_.looked(&call, look, true, true);  // from before its server was told
  EXPECT_EQ(call.state, State::kLook);
  EXPECT_TRUE(call.told);
  client_.looked(&call, call.look, true, false);
  EXPECT_EQ(call.state, State::kAsleep);
  EXPECT_EQ(said(), std::vector{LockRequestKind::kGone});
  client_.cancel(&call);
}

TEST_F(RowLockClientTest, HolderOfTheSameServerIsNotedAtOnce) {  // FU26
  Call call;
  client_.wait(&call, own(2), own(1), row_, false);
  EXPECT_EQ(call.state, State::kLook);
  EXPECT_TRUE(call.told);
  EXPECT_NE(hints_.of(own(1)).load(), 0u);
  client_.holder_ended(own(1), false);
  EXPECT_EQ(hints_.of(own(1)).load(), 0u);
  const auto requests = batch();  // in this order
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_EQ(requests[0].kind, LockRequestKind::kWait);
  EXPECT_TRUE(requests[0].announced);
  EXPECT_EQ(requests[1].kind, LockRequestKind::kEnded);
  client_.cancel(&call);
}

TEST_F(RowLockClientTest, TurnThatCrossesACancelIsNobodys) {  // FC12
  Call call;
  client_.wait(&call, own(2), other(1), row_, false);
  const uint64_t number = call.number();
  batch();
  client_.cancel(&call);
  EXPECT_FALSE(client_.has_waiters(row_));
  hear(2, {{.kind = LockEventKind::kGranted, .number = number, .ticket = 3}});
  EXPECT_FALSE(client_.has_turn(own(2), row_));
  EXPECT_EQ(said(), std::vector{LockRequestKind::kCancel});
}

TEST_F(RowLockClientTest, NewMemoryNodeIsToldEverything) {  // FC13
  Call waits, had, shared, dropped, adds, asks;
  client_.wait(&had, own(1), TrxId{}, row_, false);
  batch({{.kind = LockEventKind::kGranted, .number = had.number(), .ticket = 5}});
  EXPECT_TRUE(client_.has_turn(own(1), row_));
  client_.wait(&waits, own(2), other(1), RowId{kIndex, "b"}, false);
  batch({{.kind = LockEventKind::kRegistered, .number = waits.number(), .ticket = 6}});
  client_.add_shared(&shared, own(3), RowId{kIndex, "s"});
  client_.add_shared(&dropped, own(3), RowId{kIndex, "t"});
  batch({{.kind = LockEventKind::kConsult, .number = 1, .index = kIndex, .flag = true},
         {.kind = LockEventKind::kAdded, .number = shared.number()},
         {.kind = LockEventKind::kAdded, .number = dropped.number()}});
  client_.drop_shared(own(3), RowId{kIndex, "t"});
  client_.add_range(&adds, own(4), kIndex, {"m", "n", false});
  client_.ask_shared(&asks, own(5), row_);
  hear(5, {{.kind = LockEventKind::kRowQueued, .index = kIndex, .key = "q", .flag = true}});
  EXPECT_TRUE(client_.has_waiters(RowId{kIndex, "q"}));

  client_.use(Epoch{2});
  events_ = 0;
  EXPECT_FALSE(client_.has_waiters(RowId{kIndex, "q"}));
  EXPECT_NE(hints_.of(kIndex).load(), 0u);  // writers go on asking
  const auto report = client_.next_batch();
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->number, 1u);
  EXPECT_EQ(report->heard, 0u);
  std::vector<LockRequestKind> kinds;
  for (const LockRequest& request : report->requests) kinds.push_back(request.kind);
  EXPECT_EQ(kinds, (std::vector{LockRequestKind::kAddShared, LockRequestKind::kHasTurn,
                                LockRequestKind::kWait, LockRequestKind::kHeldConsult,
                                LockRequestKind::kReported, LockRequestKind::kAddRange,
                                LockRequestKind::kAskShared}));
  EXPECT_EQ(report->requests[0].key, "s");
  EXPECT_EQ(report->requests[0].number, 0u);  // nobody waits for the answer
  EXPECT_EQ(report->requests[1].ticket, 5u);
  EXPECT_EQ(report->requests[2].ticket, 6u);
  EXPECT_FALSE(report->requests[2].announced);
  EXPECT_EQ(report->requests[5].number, adds.number());
  client_.end();
  for (const Call* call : {&waits, &adds, &asks}) EXPECT_EQ(call->state, State::kEnded);
}

TEST_F(RowLockClientTest, ConfirmsWhatIsStillOn) {  // FQ4
  Call call;
  client_.wait(&call, own(2), other(1), row_, false);
  batch();
  const uint64_t number = call.number();
  hear(2, {{.kind = LockEventKind::kConfirm, .number = 8, .waits = {number}}});
  auto answer = batch();
  ASSERT_EQ(answer.size(), 1u);
  EXPECT_TRUE(answer[0].flag);
  client_.cancel(&call);
  hear(3, {{.kind = LockEventKind::kConfirm, .number = 9, .waits = {number}}});
  answer = batch();
  ASSERT_EQ(answer.size(), 2u);
  EXPECT_EQ(answer[0].kind, LockRequestKind::kCancel);  // before the answer
  EXPECT_FALSE(answer[1].flag);
}

TEST_F(RowLockClientTest, ManySharedLocksOfAnIndexAreReportedAsOne) {  // FC19
  Call call;
  for (int i = 0; i < 5; ++i) {
    client_.add_shared(&call, own(3), RowId{kIndex, std::string(1, static_cast<char>('a' + i))});
    batch({{.kind = LockEventKind::kAdded, .number = call.number()}});
  }
  EXPECT_EQ(client_.adds_in(own(3), kIndex), 5u);
  client_.add_range(&call, own(3), kIndex, {{}, {}, true});
  batch({{.kind = LockEventKind::kAdded, .number = call.number()}});
  EXPECT_TRUE(client_.has_whole(own(3), kIndex));
  client_.drop_range_key(own(3), RowId{kIndex, "c"});
  client_.use(Epoch{2});
  const auto report = client_.next_batch();
  std::vector<LockRequestKind> kinds;
  for (const LockRequest& request : report->requests) kinds.push_back(request.kind);
  EXPECT_EQ(kinds, (std::vector{LockRequestKind::kAddRange, LockRequestKind::kDropRangeKey,
                                LockRequestKind::kReported}));
  client_.release_shared(own(3));
  EXPECT_FALSE(client_.has_whole(own(3), kIndex));
  EXPECT_EQ(hints_.sharers.load(), 0u);
}

TEST(ReuseMarks, ARoundThatIsAskedForAgainIsReportedAgain) {  // FC43: by another memory node
  ReuseMarks marks;
  EXPECT_EQ(marks.due(nullptr), std::nullopt);
  marks.asked(7);
  EXPECT_EQ(marks.due(nullptr), 7u);
  marks.reported(7);
  EXPECT_TRUE(marks.is_idle());
  EXPECT_EQ(marks.due(nullptr), std::nullopt);
  marks.asked(7);
  EXPECT_FALSE(marks.is_idle());
  EXPECT_EQ(marks.due(nullptr), 7u);
  EXPECT_EQ(marks.due(nullptr), 7u) << "until it was answered";
  marks.reported(7);
  EXPECT_TRUE(marks.is_idle());
  marks.asked(8);
  marks.asked(6);  // late
  EXPECT_EQ(marks.due(nullptr), 7u);
  marks.reported(7);
  EXPECT_EQ(marks.due(nullptr), 8u);
}

}  // namespace
}  // namespace strata::clients
