// Goal: what a server that was killed has left is recovered by another one, while the rest goes on:
// its rows are free again, what it had committed is there and the rest is not, and it comes back in
// its place whenever it likes (ADP1-ADP7, CM11, PLC3, PLC4). Method: as fusion_nodes_test; a
// supervisor tells the memory node of each process that ends, so that no test waits for a lease;
// logs of those that are fenced are sealed. STRATA_SEED chooses the work, STRATA_ROUNDS how long it
// goes on.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/rng.h"
#include "base/testing/sanitized.h"
#include "base/testing/wait_until.h"
#include "fusion_work.h"

namespace strata::testing {
namespace {

using engine::testing::environment;

// As wait_until(), for what many things come before.
template <typename Condition>
bool wait_long(const Condition& condition) {
  for (int i = 0; i < 12; ++i)
    if (wait_until(condition)) return true;
  return false;
}

// Where an adopter stands still until it is let go on.
class Gate {
 public:
  // In the adopter's thread: true once it may go on.
  void pass() {
    reached_ = true;
    while (!open_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  [[nodiscard]] bool reached() const { return reached_; }
  void open() { open_ = true; }

 private:
  std::atomic<bool> reached_{false}, open_{false};
};

class FusionTakeover : public ::testing::TestWithParam<const char*> {
 protected:
  explicit FusionTakeover(uint64_t lease_us = kNoLeaseEndsUs) {
    cluster_.memory->seals = true;
    cluster_.memory->set_lease_us(lease_us);
    cluster_.memory->start();
  }
  FusionServer* add() {
    FusionServer* const server = cluster_.add();
    server->adopts = true;
    return server;
  }
  void start_with_table(size_t servers) {
    for (size_t i = 0; i < servers && !HasFailure(); ++i) {
      FusionServer* const server = add();
      const Status status = server->start();
      ASSERT_TRUE(status.ok()) << status;
      if (i != 0) continue;
      const Status made = create_table(server);
      ASSERT_TRUE(made.ok()) << made;
    }
  }
  FusionServer* server(size_t i) { return cluster_.servers[i].get(); }
  // `i`'s process ends, and its supervisor sees it.
  void kill(size_t i) {
    const NodeId number = server(i)->node()->number();
    server(i)->die();
    cluster_.memory->exited(number);
  }
  [[nodiscard]] bool is_settled(NodeId number) {
    const auto registry = cluster_.around.sim.store().connect();
    cluster::Places places(registry.get(), cluster_.around.keys);
    const auto unsettled = places.unsettled(registry->now_us() + kCallUs);
    EXPECT_TRUE(unsettled.ok()) << unsettled.status();
    if (!unsettled.ok()) return false;
    return std::none_of(unsettled->begin(), unsettled->end(),
                        [&](const auto& one) { return one.place.number == number; });
  }
  [[nodiscard]] uint64_t adoptions() {
    uint64_t done = 0;
    for (const auto& one : cluster_.servers)
      if (one->adopter() != nullptr) done += one->adopter()->counters().done;
    return done;
  }
  // A transaction that has added to the counters from `first` to `last` and is left open.
  std::unique_ptr<Session> open_transaction(size_t i, uint64_t first, uint64_t last) {
    auto session = server(i)->kernel()->new_session();
    session->begin(Isolation::kRepeatableRead);
    for (uint64_t id = first; id <= last; ++id) {
      const Status added = add_to(session.get(), id, 1000);
      EXPECT_TRUE(added.ok()) << added;
    }
    return session;
  }
  static Status add_to(Session* session, uint64_t id, uint32_t amount) {
    STRATA_ASSIGN_OR_RETURN(const TableRef table, session->open_table("test", "t"));
    STRATA_ASSIGN_OR_RETURN(const Row before,
                            engine::testing::get_row(session, table, id, LockMode::kExclusive));
    Row row = before;
    row.group += amount;
    return engine::testing::update(session, table, id, before, id, row);
  }
  Status update(size_t i, uint64_t id, uint32_t amount, uint64_t wait_us = 60'000'000) {
    auto session = server(i)->kernel()->new_session();
    session->set_lock_wait_timeout_us(wait_us);
    session->begin(Isolation::kRepeatableRead);
    const Status added = add_to(session.get(), id, amount);
    if (added.ok()) return session->commit();
    session->rollback().IgnoreError();  // what is told is why it did not work
    return added;
  }
  void expect_counter(size_t i, uint64_t id, uint32_t value) {
    const auto rows = all_rows(server(i));
    ASSERT_TRUE(rows.ok()) << rows.status();
    EXPECT_EQ(rows->at(id).group, value) << "counter " << id << " on server " << i + 1;
  }
  // Server `i` comes back in its place, and sees what all see.
  void come_back(size_t i, NodeId number) {
    const Status back = server(i)->start();
    ASSERT_TRUE(back.ok()) << back;
    EXPECT_EQ(server(i)->node()->number(), number);
  }

  FusionCluster cluster_{GetParam()};
};

TEST_P(FusionTakeover, ASurvivorGoesOnWithTheRowsOfOneThatWasKilled) {  // ADP1, ADP3
  start_with_table(2);
  ASSERT_FALSE(HasFailure());
  ASSERT_TRUE(update(1, 1, 5).ok());
  ASSERT_TRUE(update(1, 4, 5).ok());
  engine::testing::bury(open_transaction(1, 1, 3));
  std::thread waits([this] {  // for the row, from before
    const Status updated = update(0, 1, 1);
    EXPECT_TRUE(updated.ok()) << updated;
  });
  kill(1);
  waits.join();
  for (const uint64_t id : {2u, 3u, 4u}) {
    const Status updated = update(0, id, 1);
    EXPECT_TRUE(updated.ok()) << updated;
  }
  EXPECT_TRUE(wait_long([&] { return adoptions() == 1; }));
  expect_counter(0, 1, 6);
  expect_counter(0, 2, 1);
  expect_counter(0, 3, 1);
  expect_counter(0, 4, 6);
  EXPECT_TRUE(is_settled(NodeId{2}));
  EXPECT_FALSE(cluster_.stream_is_held(NodeId{2}));
  EXPECT_EQ(cluster_.memory->members(), 1u);
  // PLC3: nobody of it is left, so that it need not wait.
  const auto places = cluster_.places();
  ASSERT_EQ(places.size(), 2u);
  EXPECT_TRUE(places[1].place.adopter.empty());
  come_back(1, NodeId{2});
  Work work(1);
  expect_counter(1, 1, 6);
  EXPECT_TRUE(update(1, 1, 1).ok());
  expect_counter(0, 1, 7);
}

TEST_P(FusionTakeover, WhoLeavesInOrderIsNotAdopted) {  // PLC4
  start_with_table(2);
  ASSERT_FALSE(HasFailure());
  const uint64_t looked = server(0)->adopter()->counters().looks;
  ASSERT_TRUE(server(1)->stop().ok());
  EXPECT_TRUE(is_settled(NodeId{2}));
  EXPECT_TRUE(wait_until([&] { return server(0)->adopter()->counters().looks > looked + 1; }) ||
              server(0)->adopter()->counters().looks > looked);
  EXPECT_EQ(server(0)->adopter()->counters().failed, 0u);
  come_back(1, NodeId{2});
}

TEST_P(FusionTakeover, OneOfTwoSurvivorsDoesIt) {  // ADP1
  start_with_table(4);
  ASSERT_FALSE(HasFailure());
  Work work(2);
  for (int round = 0; round < 3; ++round) {
    engine::testing::bury(open_transaction(1, 1, 2));
    const uint64_t before = adoptions();
    kill(1);
    EXPECT_TRUE(update(0, 1, 1).ok());
    EXPECT_TRUE(update(2, 2, 1).ok());
    EXPECT_TRUE(wait_long([&] { return is_settled(NodeId{2}) && adoptions() > before; }));
    come_back(1, NodeId{2});
  }
  expect_counter(3, 1, 3);
  expect_counter(3, 2, 3);
}

// The adopter's process ends in the middle, before or after it has recovered the place.
TEST_P(FusionTakeover, AnAdopterThatDiesIsFollowedByAnotherOne) {  // ADP2
  start_with_table(3);
  ASSERT_FALSE(HasFailure());
  uint32_t rounds = 0;
  for (const bool after : {false, true}) {
    ASSERT_TRUE(update(1, 3, 1).ok());
    for (size_t i = 0; i < 3; ++i)  // every server holds some
      engine::testing::bury(open_transaction(i, 2 * i + 4, 2 * i + 4));
    engine::testing::bury(open_transaction(1, 1, 2));
    Gate gate;
    std::atomic<size_t> first{SIZE_MAX};
    for (const size_t i : {0u, 2u}) {
      const auto stand_still = [&, i](clients::FusionNode*) {
        size_t nobody = SIZE_MAX;
        if (!first.compare_exchange_strong(nobody, i)) return ok_status();
        gate.pass();
        return error_interrupted("killed by the test");
      };
      (after ? server(i)->after_recovery : server(i)->before_recovery) = stand_still;
    }
    kill(1);
    ASSERT_TRUE(wait_long([&] { return gate.reached(); }));
    const size_t adopter = first;
    std::thread ends([&] { server(adopter)->die(); });
    gate.open();
    ends.join();
    cluster_.memory->exited(NodeId{static_cast<uint8_t>(adopter + 1)});
    cluster_.memory->exited(NodeId{2});
    const size_t last = 2 - adopter;
    for (const uint64_t id : {uint64_t{1}, uint64_t{2}, uint64_t{6}, 2 * adopter + 4}) {
      const Status updated = update(last, id, 1);
      EXPECT_TRUE(updated.ok()) << updated;
    }
    EXPECT_TRUE(wait_long([&] {
      return is_settled(NodeId{2}) && is_settled(NodeId{static_cast<uint8_t>(adopter + 1)});
    }));
    ++rounds;
    for (const uint64_t id : {1u, 2u, 3u, 6u}) expect_counter(last, id, rounds);
    // The last one's transaction is open still: its process ends, too, and it adopts nobody.
    kill(last);
    for (const size_t i : {1u, 0u, 2u}) {
      server(i)->before_recovery = server(i)->after_recovery = nullptr;
      come_back(i, NodeId{static_cast<uint8_t>(i + 1)});
    }
  }
  for (size_t i = 0; i < 3; ++i)
    for (const uint64_t id : {1u, 2u, 3u, 6u}) expect_counter(i, id, 2);
}

TEST_P(FusionTakeover, AServerThatComesBackWaitsForItsAdopter) {  // ADP4
  start_with_table(2);
  ASSERT_FALSE(HasFailure());
  engine::testing::bury(open_transaction(1, 1, 2));
  Gate gate;
  server(0)->before_recovery = [&gate](clients::FusionNode*) {
    gate.pass();
    return ok_status();
  };
  kill(1);
  EXPECT_TRUE(wait_long([&] { return gate.reached(); }));
  std::atomic<bool> is_back{false};
  std::thread comes([&] {
    come_back(1, NodeId{2});
    is_back = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // whatever it does meanwhile
  EXPECT_FALSE(is_back);
  gate.open();
  comes.join();
  EXPECT_EQ(adoptions(), 1u);
  EXPECT_TRUE(update(1, 1, 1).ok());
  EXPECT_TRUE(update(0, 2, 1).ok());
  expect_counter(0, 1, 1);
  expect_counter(1, 2, 1);
}

TEST_P(FusionTakeover, AServerThatComesBackAtOnceIsFirstOrNotAndAllIsThere) {  // ADP4
  start_with_table(3);
  ASSERT_FALSE(HasFailure());
  for (uint32_t round = 1; round <= 4; ++round) {
    engine::testing::bury(open_transaction(1, 1, 2));
    kill(1);
    come_back(1, NodeId{2});
    ASSERT_FALSE(HasFailure());
    for (size_t i = 0; i < 3; ++i) {
      const Status updated = update(i, 1 + round % 2, 1);
      EXPECT_TRUE(updated.ok()) << updated;
    }
  }
  expect_counter(0, 1, 6);
  expect_counter(1, 2, 6);
}

TEST_P(FusionTakeover, WhoStartsAloneAdoptsAllOthers) {  // ADP7: after everything was killed
  start_with_table(3);
  ASSERT_FALSE(HasFailure());
  for (size_t i = 0; i < 3; ++i) ASSERT_TRUE(update(i, i + 1, 1).ok());
  for (size_t i = 0; i < 3; ++i) engine::testing::bury(open_transaction(i, i * 2 + 3, i * 2 + 4));
  for (size_t i = 0; i < 3; ++i) kill(i);
  for (uint8_t number = 1; number <= 3; ++number)  // lives that adopters had
    cluster_.memory->exited(NodeId{number});
  come_back(1, NodeId{2});
  for (uint64_t id = 1; id <= 8; ++id) {
    const Status updated = update(1, id, 1);
    EXPECT_TRUE(updated.ok()) << updated;
  }
  for (uint64_t id = 1; id <= 8; ++id) expect_counter(1, id, id <= 3 ? 2 : 1);
  EXPECT_TRUE(wait_long([&] { return is_settled(NodeId{1}) && is_settled(NodeId{3}); }));
  come_back(2, NodeId{3});
  come_back(0, NodeId{1});
  expect_counter(0, 1, 2);
}

TEST_P(FusionTakeover, PreparedTransactionsWaitForTheirServer) {  // ADP3
  start_with_table(2);
  ASSERT_FALSE(HasFailure());
  auto prepared = open_transaction(1, 1, 1);
  ASSERT_TRUE(prepared->prepare("xid-1").ok());
  engine::testing::bury(std::move(prepared));
  engine::testing::bury(open_transaction(1, 2, 2));
  kill(1);
  EXPECT_TRUE(update(0, 2, 1).ok());
  EXPECT_TRUE(wait_long([&] { return is_settled(NodeId{2}); }));
  const Status locked = update(0, 1, 1, 100'000);
  EXPECT_TRUE(is_lock_wait_timeout(locked)) << locked;
  come_back(1, NodeId{2});
  ASSERT_EQ(server(1)->kernel()->prepared_transactions().size(), 1u);
  ASSERT_TRUE(server(1)->kernel()->commit_by_xid("xid-1").ok());
  EXPECT_TRUE(update(0, 1, 1).ok());
  expect_counter(1, 1, 1001);
  expect_counter(1, 2, 1);
}

// A server's shutdown does not wait for what its adopter does.
TEST_P(FusionTakeover, AShutdownLeavesAPlaceToTheNextAdopter) {  // ADP6
  start_with_table(3);
  ASSERT_FALSE(HasFailure());
  engine::testing::bury(open_transaction(1, 1, 2));
  Gate gate;
  server(2)->before_recovery = [&gate](clients::FusionNode*) {
    gate.pass();
    return ok_status();  // and its kernel is opened after the flag was raised
  };
  kill(1);
  EXPECT_TRUE(wait_long([&] { return gate.reached(); }));
  std::thread stops([this] {
    const Status stopped = server(2)->stop();
    EXPECT_TRUE(stopped.ok()) << stopped;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // most likely it was told by then
  gate.open();
  stops.join();
  server(2)->before_recovery = nullptr;
  cluster_.memory->exited(NodeId{2});
  EXPECT_TRUE(update(0, 1, 1).ok());
  EXPECT_TRUE(update(0, 2, 1).ok());
  EXPECT_TRUE(wait_long([&] { return is_settled(NodeId{2}); }));
  come_back(1, NodeId{2});
  come_back(2, NodeId{3});
  expect_counter(2, 1, 1);
}

TEST_P(FusionTakeover, TheRegistryMayComeBackLater) {  // ADP5
  start_with_table(2);
  ASSERT_FALSE(HasFailure());
  engine::testing::bury(open_transaction(1, 1, 1));
  cluster_.around.sim.store().set_up(false);
  server(1)->die();
  cluster_.memory->exited(NodeId{2});
  ASSERT_TRUE(wait_until([&] { return server(0)->adopter()->counters().looks >= 2; }));
  EXPECT_EQ(adoptions(), 0u);
  cluster_.around.sim.store().set_up(true);
  const Status updated = update(0, 1, 1);
  EXPECT_TRUE(updated.ok()) << updated;
  expect_counter(0, 1, 1);
}

// Leases that end: servers that are fenced and do not know it yet.
class FusionTakeoverOfTheLiving : public FusionTakeover {
 protected:
  FusionTakeoverOfTheLiving() : FusionTakeover(8'000'000) {}
};

// FUN5: what it has acknowledged is there, and nothing that it does later counts.
TEST_P(FusionTakeoverOfTheLiving, WhoIsFencedWhileItWorksDoesNoHarm) {
  start_with_table(2);
  ASSERT_FALSE(HasFailure());
  auto open = open_transaction(1, 1, 2);
  std::atomic<uint32_t> acknowledged{0};
  std::atomic<bool> refused{false};
  std::thread works([&] {
    for (uint64_t n = 0; n < 100'000 && !refused; ++n) {
      const Status updated = update(1, 5, 1);
      if (updated.ok())
        ++acknowledged;
      else
        refused = true;
    }
  });
  EXPECT_TRUE(wait_long([&] { return acknowledged > 20; }));
  cluster_.memory->service()->fence(NodeId{2});
  const Status updated = update(0, 1, 1);
  EXPECT_TRUE(updated.ok()) << updated;
  works.join();
  EXPECT_TRUE(refused);
  EXPECT_FALSE(server(1)->node()->may_answer());
  const Status late = open->commit();
  EXPECT_FALSE(late.ok());
  const auto rows = all_rows(server(0));
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ(rows->at(1).group, 1u);
  EXPECT_EQ(rows->at(2).group, 0u);
  // One commit may have become durable whose answer was not told any more.
  EXPECT_GE(rows->at(5).group, acknowledged);
  EXPECT_LE(rows->at(5).group, acknowledged + 1);
  EXPECT_TRUE(update(0, 5, 1).ok());
  engine::testing::bury(std::move(open));
  kill(1);
  come_back(1, NodeId{2});
  expect_counter(1, 5, rows->at(5).group + 1);
  EXPECT_TRUE(update(1, 2, 1).ok());
}

// A join that the memory node has heard counts even where whoever asked for it has died: only its
// lease ends such a life.
class FusionTakeoverWithLeases : public FusionTakeover {
 protected:
  FusionTakeoverWithLeases() : FusionTakeover(fewer_if_sanitized(8'000'000, 24'000'000)) {}
};

// Servers are killed at random moments, also while they adopt, come back in any order, and work
// goes on all the time.
TEST_P(FusionTakeoverWithLeases, NothingIsLostHoweverTheyDie) {
  const uint64_t seed = environment("STRATA_SEED", 42);
  const uint64_t rounds = environment("STRATA_ROUNDS", fewer_if_sanitized(8, 3));
  SCOPED_TRACE("STRATA_SEED=" + std::to_string(seed));
  std::printf("STRATA_SEED=%llu\n", static_cast<unsigned long long>(seed));
  Rng rng(seed);
  constexpr size_t kServers = 4;
  start_with_table(kServers);
  ASSERT_FALSE(HasFailure());
  Work work(seed);
  std::vector<std::atomic<bool>> ends(kServers);
  std::vector<std::thread> threads(kServers);
  const auto begin_work = [&](size_t i, bool cut_off) {
    ends[i] = false;
    threads[i] = std::thread([&, i, cut_off] { work.run(server(i), i, &ends[i], cut_off); });
  };
  const auto work_on = [&](uint64_t commits) {
    const uint64_t until = work.commits() + commits;
    return wait_long([&] { return work.commits() >= until || HasFailure(); });
  };
  uint64_t kills = 0;
  for (uint64_t round = 0; round < rounds && !HasFailure(); ++round) {
    // One or two of them die, the second one while the first one is being adopted, perhaps by it.
    std::vector<size_t> order(kServers);
    for (size_t i = 0; i < kServers; ++i) order[i] = i;
    for (size_t i = kServers; i > 1; --i) std::swap(order[i - 1], order[rng.below(i)]);
    const size_t victims = 1 + rng.below(2);
    for (size_t i = 0; i < kServers; ++i) {
      const bool dies = i == order[0] || (victims == 2 && i == order[1]);
      begin_work(i, dies);
    }
    ASSERT_TRUE(work_on(20 + rng.below(30)));
    std::vector<NodeId> numbers;
    for (size_t k = 0; k < victims; ++k) {
      const size_t victim = order[k];
      ends[victim] = true;
      threads[victim].join();
      if (HasFailure()) break;
      numbers.push_back(server(victim)->node()->number());
      kill(victim);
      for (const NodeId number : numbers)  // a life that it had for that one has ended, too
        if (k != 0) cluster_.memory->exited(number);
      ++kills;
      if (k + 1 < victims) std::this_thread::sleep_for(std::chrono::milliseconds(rng.below(400)));
    }
    if (!HasFailure()) {
      const uint64_t until = work.commits() + 20;
      EXPECT_TRUE(wait_long([&] { return work.commits() >= until || HasFailure(); }));
      const bool at_once = rng.one_in(3);
      for (size_t k = 0; k < victims && !HasFailure(); ++k) {
        EXPECT_TRUE(at_once || wait_long([&] { return is_settled(numbers[k]); }));
        come_back(order[k], numbers[k]);
      }
    }
    for (size_t i = 0; i < kServers; ++i) ends[i] = true;
    for (std::thread& thread : threads)
      if (thread.joinable()) thread.join();
    if (HasFailure()) return;
    work.verify(&cluster_);
  }
  std::printf("%llu commits, %llu kills, %llu adoptions by those that are there\n",
              static_cast<unsigned long long>(work.commits()),
              static_cast<unsigned long long>(kills), static_cast<unsigned long long>(adoptions()));
}

INSTANTIATE_TEST_SUITE_P(Profiles, FusionTakeover, ::testing::Values(kFusion, kFusionReplayed),
                         profile_of);
INSTANTIATE_TEST_SUITE_P(Profiles, FusionTakeoverOfTheLiving,
                         ::testing::Values(kFusion, kFusionReplayed), profile_of);
INSTANTIATE_TEST_SUITE_P(Profiles, FusionTakeoverWithLeases,
                         ::testing::Values(kFusion, kFusionReplayed), profile_of);

}  // namespace
}  // namespace strata::testing
