// Goal: servers that are each one of several (clients/compute/fusion_node.h) write the same tables:
// one of those that start at once makes the database, whoever is killed goes on in its own place,
// whoever comes later finds everything, and a start that fails leaves nothing behind (CM9, CM10,
// FUN1-FUN5). Method: servers with kernels over sockets, on real storage nodes, with a memory node
// in the same process (fusion_cluster.h); an oracle of what was committed. STRATA_SEED chooses the
// work, STRATA_ROUNDS how long it goes on.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "base/rng.h"
#include "base/testing/wait_until.h"
#include "fusion_work.h"

namespace strata::testing {
namespace {

using engine::testing::environment;

class FusionNodes : public ::testing::TestWithParam<const char*> {
 protected:
  FusionNodes() { cluster_.memory->start(); }
  FusionServer* started() {
    FusionServer* const server = cluster_.add();
    const Status status = server->start();
    EXPECT_TRUE(status.ok()) << status;
    return server;
  }
  void start_with_table(size_t servers) {
    for (size_t i = 0; i < servers && !HasFailure(); ++i) {
      FusionServer* const server = started();
      if (i != 0 || HasFailure()) continue;
      const Status made = create_table(server);
      ASSERT_TRUE(made.ok()) << made;
    }
  }
  FusionCluster cluster_{GetParam()};
};

TEST_P(FusionNodes, ThreeServersWriteTheSameTableAtOnce) {  // FUN1
  const uint64_t seed = environment("STRATA_SEED", 42);
  SCOPED_TRACE("STRATA_SEED=" + std::to_string(seed));
  start_with_table(3);
  ASSERT_FALSE(HasFailure());
  Work work(seed);
  work_for(&cluster_, &work, 300);
  ASSERT_FALSE(HasFailure());
  work.verify(&cluster_);
  for (const auto& server : cluster_.servers) {
    const Status stopped = server->stop();
    EXPECT_TRUE(stopped.ok()) << stopped;
  }
  EXPECT_TRUE(wait_until([&] { return cluster_.memory->members() == 0; }));
  for (uint8_t number = 1; number <= 3; ++number)
    EXPECT_FALSE(cluster_.stream_is_held(NodeId{number}));
  // All again, in their places.
  for (size_t i = 0; i < 3; ++i) {
    const Status started = cluster_.servers[2 - i]->start();
    ASSERT_TRUE(started.ok()) << started;
    EXPECT_EQ(cluster_.servers[2 - i]->node()->number().value, 3 - i);
  }
  work.verify(&cluster_);
}

TEST_P(FusionNodes, OneOfThoseThatStartAtOnceMakesTheDatabase) {  // CM9
  constexpr size_t kServers = 4;
  std::vector<std::thread> starting;
  std::atomic<uint32_t> founders{0};
  for (size_t i = 0; i < kServers; ++i) {
    FusionServer* const server = cluster_.add();
    server->change_seams = [&founders](engine::KernelSeams* seams) {
      if (!seams->attach) ++founders;
    };
    starting.emplace_back([server] {
      const Status started = server->start();
      EXPECT_TRUE(started.ok()) << started;
    });
  }
  for (std::thread& thread : starting) thread.join();
  ASSERT_FALSE(HasFailure());
  EXPECT_EQ(founders.load(), 1u);
  std::set<uint8_t> numbers;
  for (const auto& server : cluster_.servers) numbers.insert(server->node()->number().value);
  EXPECT_EQ(numbers, (std::set<uint8_t>{1, 2, 3, 4}));
  const auto places = cluster_.places();
  ASSERT_EQ(places.size(), kServers);
  std::set<uint64_t> folders;
  for (const auto& place : places) folders.insert(place.place.folder);
  EXPECT_EQ(folders.size(), kServers);
}

// A control record that is never written: the database, or the place, is made but for that.
class NoControl final : public ControlStore {
 public:
  explicit NoControl(ControlStore* real) : real_(real) {}
  [[nodiscard]] const ControlData& data() const noexcept override { return real_->data(); }
  Status publish(const ControlData&) override { return error_peer_down("asked for by a test"); }

 private:
  ControlStore* const real_;
};

// CM9: whoever dies while it makes the database, or its place, does so again, or somebody else.
TEST_P(FusionNodes, WhatWasBegunByWhoeverDiedIsMadeAgain) {
  FusionServer* const first = cluster_.add();
  FusionServer* const second = cluster_.add();
  std::unique_ptr<NoControl> none;
  const auto fail = [&none](engine::KernelSeams* seams) {
    none = std::make_unique<NoControl>(seams->control);
    seams->control = none.get();
  };
  for (FusionServer* const server : {first, second, first, second}) {
    server->change_seams = fail;
    const Status failed = server->start();
    ASSERT_TRUE(is_peer_down(failed)) << failed;
    EXPECT_FALSE(server->node()->compute()->database_exists());
    EXPECT_EQ(server->node()->number(), cluster::kFirstPlace);
    server->die();
    cluster_.memory->exited(cluster::kFirstPlace);
    server->change_seams = nullptr;
    // Its stream's lease goes on, which the next one need not be kept waiting for by this test.
    cluster_.around.sim.leap(11'000'000);
  }
  const Status made = second->start();
  ASSERT_TRUE(made.ok()) << made;
  EXPECT_EQ(second->node()->number(), cluster::kFirstPlace);
  ASSERT_TRUE(create_table(second).ok());
  // A place that is only added.
  for (int i = 0; i < 2; ++i) {
    first->change_seams = fail;
    const Status failed = first->start();
    ASSERT_TRUE(is_peer_down(failed)) << failed;
    EXPECT_EQ(first->node()->number(), NodeId{2});
    first->die();
    first->change_seams = nullptr;
  }
  const Status added = first->start();
  ASSERT_TRUE(added.ok()) << added;
  EXPECT_EQ(first->node()->number(), NodeId{2});
  Work work(7);
  work_for(&cluster_, &work, 60);
  ASSERT_FALSE(HasFailure());
  work.verify(&cluster_);
}

// Servers are killed in the middle of transactions, and come back in their folders, while the
// others go on; some leave in order, some come later.
TEST_P(FusionNodes, WhoIsKilledGoesOnInItsPlaceAndNothingIsLost) {  // FUN1, FUN3
  const uint64_t seed = environment("STRATA_SEED", 42);
  const uint64_t rounds = environment("STRATA_ROUNDS", 6);
  SCOPED_TRACE("STRATA_SEED=" + std::to_string(seed));
  std::printf("STRATA_SEED=%llu\n", static_cast<unsigned long long>(seed));
  Rng rng(seed);
  start_with_table(3);
  ASSERT_FALSE(HasFailure());
  Work work(seed);
  uint64_t kills = 0, stops = 0;
  for (uint64_t round = 0; round < rounds && !HasFailure(); ++round) {
    const size_t running = cluster_.servers.size();
    const size_t victim = rng.below(running);
    const bool one_more = running < 5 && rng.one_in(2);
    const uint64_t commits = 40 + rng.below(60);
    std::vector<std::atomic<bool>> ends(running);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < running; ++i)
      threads.emplace_back([&, i, server = cluster_.servers[i].get()] {
        work.run(server, i, &ends[i], i == victim);
      });
    for (const uint64_t until = work.commits() + commits; work.commits() < until && !HasFailure();)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    ends[victim] = true;
    threads[victim].join();
    FusionServer* const killed = cluster_.servers[victim].get();
    const NodeId number = killed->node()->number();
    killed->die();
    const Status back = killed->start();
    EXPECT_TRUE(back.ok()) << back;
    if (back.ok()) {
      EXPECT_EQ(killed->node()->number(), number);
    }
    ++kills;
    if (one_more) started();
    for (std::atomic<bool>& end : ends) end = true;
    for (std::thread& thread : threads)
      if (thread.joinable()) thread.join();
    if (HasFailure()) return;
    work.verify(&cluster_);
    if (rng.one_in(2)) {
      FusionServer* const leaver = cluster_.servers[rng.below(cluster_.servers.size())].get();
      const Status stopped = leaver->stop();
      EXPECT_TRUE(stopped.ok()) << stopped;
      const Status again = leaver->start();
      EXPECT_TRUE(again.ok()) << again;
      ++stops;
    }
  }
  std::printf("%llu commits, %llu kills, %llu stops, %zu servers\n",
              static_cast<unsigned long long>(work.commits()),
              static_cast<unsigned long long>(kills), static_cast<unsigned long long>(stops),
              cluster_.servers.size());
}

// FUN4, CM10: what is left behind by a start that failed.
class FailedStarts : public FusionNodes {
 protected:
  // Of a database that is there, beside a server that runs.
  void SetUp() override {
    start_with_table(1);
    ASSERT_FALSE(HasFailure());
    late_ = cluster_.add();
    late_->start_timeout_us = 2'000'000;
  }
  void expect_nothing_is_left() {
    EXPECT_EQ(cluster_.places().size(), 1u);
    EXPECT_FALSE(cluster_.stream_is_held(NodeId{2}));
  }
  void expect_it_can_join() {
    late_->start_timeout_us = 60'000'000;
    late_->before_join = nullptr;
    const Status joined = late_->start();
    ASSERT_TRUE(joined.ok()) << joined;
    EXPECT_EQ(late_->node()->number(), NodeId{2});
    EXPECT_EQ(cluster_.memory->members(), 2u);
    Work work(3);
    work_for(&cluster_, &work, 40);
    ASSERT_FALSE(HasFailure());
    work.verify(&cluster_);
  }
  static void expect_names(const Status& status, const std::string& words) {
    EXPECT_NE(status.message().find(words), std::string_view::npos) << status;
  }
  FusionServer* late_ = nullptr;
};

TEST_P(FailedStarts, WithoutTheRegistry) {
  late_->before_join = [](registry::SimRegistry* registry) { registry->set_connected(false); };
  const Status failed = late_->start();
  EXPECT_TRUE(is_peer_down(failed)) << failed;
  expect_names(failed, "registry");
  expect_nothing_is_left();
  EXPECT_EQ(cluster_.memory->members(), 1u);
  expect_it_can_join();
}

TEST_P(FailedStarts, WithoutAQuorumOfStorageNodes) {
  cluster_.storage[0]->stop();
  cluster_.storage[2]->stop();
  const Status failed = late_->start();
  EXPECT_TRUE(may_be_repeated(failed)) << failed;
  expect_names(failed, "storage node");
  expect_nothing_is_left();
  EXPECT_TRUE(wait_until([&] { return cluster_.memory->members() == 1; }));
  cluster_.storage[0]->start();
  cluster_.storage[2]->start();
  expect_it_can_join();
}

TEST_P(FailedStarts, FromACopyOfAFolderInUse) {
  std::filesystem::copy(cluster_.servers[0]->folder(), late_->folder(),
                        std::filesystem::copy_options::recursive);
  const Status failed = late_->start();
  EXPECT_TRUE(is_in_use(failed)) << failed;
  expect_nothing_is_left();
  EXPECT_EQ(cluster_.memory->members(), 1u);
  const auto rows = all_rows(cluster_.servers[0].get());
  EXPECT_TRUE(rows.ok()) << rows.status() << ": whose folder it is goes on";
}

TEST_P(FailedStarts, WithoutAMemoryNodeThatAnswers) {
  cluster_.memory->end_service();
  const Status failed = late_->start();
  EXPECT_TRUE(may_be_repeated(failed)) << failed;
  expect_names(failed, "memory node");
  expect_nothing_is_left();
  // FUN6: the one that ran waits for another one, and has not ended.
  const Status first = cluster_.servers[0]->node()->member()->status();
  EXPECT_TRUE(first.ok()) << first;
}

TEST(FusionNodesWithoutMemory, NoMemoryNodeWasEverThere) {
  FusionCluster cluster;
  FusionServer* const server = cluster.add();
  server->start_timeout_us = 1'000'000;
  const Status failed = server->start();
  EXPECT_TRUE(is_peer_down(failed)) << failed;
  EXPECT_NE(failed.message().find("memory node"), std::string_view::npos) << failed;
  EXPECT_TRUE(cluster.places().empty());
  EXPECT_FALSE(cluster.stream_is_held(cluster::kFirstPlace));
  cluster.memory->start();
  server->start_timeout_us = 60'000'000;
  const Status started = server->start();
  EXPECT_TRUE(started.ok()) << started;
}

// --- definitions of tables ---

// What one makes, empties, renames or drops is so for all at their next look, and nothing of what
// the others have written meanwhile is lost.
TEST_P(FusionNodes, TablesThatOneMakesAndDropsAreSoForAll) {  // MW15-MW17
  start_with_table(3);
  ASSERT_FALSE(HasFailure());
  std::vector<std::unique_ptr<Session>> sessions;
  for (const auto& server : cluster_.servers) sessions.push_back(server->kernel()->new_session());
  const auto change = [&](size_t who, const std::function<Status(Session*)>& what) {
    Session* const session = sessions[who].get();
    session->begin(Isolation::kRepeatableRead);
    const Status status = what(session);
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_TRUE(session->commit().ok());
  };
  for (size_t round = 0; round < 6 && !HasFailure(); ++round) {
    const size_t maker = round % 3, other = (round + 1) % 3, dropper = (round + 2) % 3;
    change(maker,
           [](Session* s) { return s->create_table(engine::testing::table_spec("new"), nullptr); });
    for (size_t i = 0; i < 3; ++i)
      change(i, [&](Session* s) -> Status {
        STRATA_ASSIGN_OR_RETURN(const TableRef table, s->open_table("test", "new"));
        return engine::testing::insert(s, table, i + 1, Row{i + 1, 0, "", ""});
      });
    for (size_t i = 0; i < 3; ++i)
      change(i, [](Session* s) -> Status {
        STRATA_ASSIGN_OR_RETURN(const TableRef table, s->open_table("test", "new"));
        EXPECT_EQ(engine::testing::scan(s, table, 0)->size(), 3u);
        return ok_status();
      });
    change(other, [](Session* s) {
      TableRef fresh;
      return s->truncate_table("test", "new", &fresh);
    });
    change(dropper, [](Session* s) -> Status {
      STRATA_ASSIGN_OR_RETURN(const TableRef table, s->open_table("test", "new"));
      EXPECT_EQ(engine::testing::scan(s, table, 0)->size(), 0u);
      return engine::testing::insert(s, table, 9, Row{9, 0, "", ""});
    });
    change(maker, [](Session* s) { return s->rename_table("test", "new", "test", "old"); });
    change(dropper, [](Session* s) -> Status {
      EXPECT_TRUE(is_not_found(s->open_table("test", "new").status()));
      return s->drop_table("test", "old");
    });
    for (size_t i = 0; i < 3; ++i)
      EXPECT_TRUE(is_not_found(sessions[i]->open_table("test", "old").status()));
  }
  // Their files go once all have left them.
  EXPECT_TRUE(wait_until([&] { return cluster_.memory->service()->status().dropped_spaces == 0; }));
  EXPECT_GE(cluster_.memory->service()->status().name_locks.give_ups, 6u);
}

// A server is killed in the middle of a DROP: nobody gets the table before its next life has undone
// that, and then it is as it was.
TEST_P(FusionNodes, WhatAKilledServerWasChangingIsUndoneBeforeOthersGetIt) {  // NL4, FC41
  start_with_table(2);
  ASSERT_FALSE(HasFailure());
  FusionServer* const killed = cluster_.servers[0].get();
  FusionServer* const other = cluster_.servers[1].get();
  ASSERT_EQ(all_rows(other)->size(), kCounters);
  {
    auto session = killed->kernel()->new_session();
    session->begin(Isolation::kRepeatableRead);
    ASSERT_TRUE(session->drop_table("test", "t").ok());
    engine::testing::bury(std::move(session));
  }
  std::atomic<bool> has_it{false};
  std::thread waits([&] {
    auto session = other->kernel()->new_session();
    session->set_lock_wait_timeout_us(kNoLeaseEndsUs);
    const auto table = session->open_table("test", "t");
    EXPECT_TRUE(table.ok()) << table.status();
    has_it = true;
  });
  const NodeId number = killed->node()->number();
  killed->die();
  cluster_.memory->exited(number);
  EXPECT_TRUE(wait_until([&] { return cluster_.memory->members() == 1; }));
  {
    auto session = other->kernel()->new_session();
    session->set_lock_wait_timeout_us(200'000);
    EXPECT_TRUE(is_lock_wait_timeout(session->open_table("test", "t").status()));
  }
  EXPECT_FALSE(has_it);
  const Status back = killed->start();
  ASSERT_TRUE(back.ok()) << back;
  waits.join();
  for (FusionServer* const server : {other, killed}) {
    const auto rows = all_rows(server);
    ASSERT_TRUE(rows.ok()) << rows.status();
    EXPECT_EQ(rows->size(), kCounters);
  }
}

// CM9: the registry may be away for longer than a lease while there is no place yet.
TEST(FusionNodesWithoutMemory, WhoseLeaseEndsWhileItWaitsForAPlaceGetsAnother) {
  FusionCluster cluster;
  static std::atomic<bool> waits;  // a sink has nothing of its own
  waits = false;
  set_diag_sink([](Severity, std::string_view text) {
    if (text.find("waiting for a place") != std::string_view::npos) waits = true;
  });
  FusionServer* const server = cluster.add();
  std::atomic<registry::SimRegistry*> connection{nullptr};
  server->before_join = [&connection](registry::SimRegistry* registry) { connection = registry; };
  Status started;
  std::thread starting([&] { started = server->start(); });
  EXPECT_TRUE(wait_until([&] { return waits.load(); }));
  connection.load()->set_connected(false);
  cluster.around.sim.leap(11'000'000);
  connection.load()->set_connected(true);
  cluster.memory->start();
  starting.join();
  set_diag_sink([](Severity, std::string_view) {});
  ASSERT_TRUE(started.ok()) << started;
  EXPECT_TRUE(cluster.stream_is_held(cluster::kFirstPlace));
  EXPECT_TRUE(server->node()->trouble().ok()) << server->node()->trouble();
}

TEST_P(FusionNodes, WhoIsFencedAnswersNothingAndComesBack) {  // FUN5
  start_with_table(2);
  ASSERT_FALSE(HasFailure());
  FusionServer* const fenced = cluster_.servers[1].get();
  cluster_.memory->service()->fence(fenced->node()->number());
  EXPECT_TRUE(wait_until([&] { return !fenced->node()->may_answer(); }));
  EXPECT_TRUE(wait_until([&] { return is_fenced(fenced->node()->why_silent()); }));
  const auto rows = all_rows(fenced);
  EXPECT_TRUE(is_fenced(rows.status()) || is_lease_lost(rows.status())) << rows.status();
  EXPECT_TRUE(is_fenced(fenced->node()->trouble()));
  fenced->die();
  const Status back = fenced->start();
  ASSERT_TRUE(back.ok()) << back;
  EXPECT_EQ(fenced->node()->number(), NodeId{2});
  Work work(5);
  work_for(&cluster_, &work, 40);
  work.verify(&cluster_);
}

TEST_P(FusionNodes, TheRegistryMayBeAwayWhileServersRun) {  // FUN2
  start_with_table(2);
  ASSERT_FALSE(HasFailure());
  for (const auto& server : cluster_.servers) server->registry()->set_connected(false);
  cluster_.around.sim.leap(11'000'000);  // their leases there end
  Work work(6);
  work_for(&cluster_, &work, 100);
  ASSERT_FALSE(HasFailure());
  work.verify(&cluster_);
  for (const auto& server : cluster_.servers) server->registry()->set_connected(true);
  for (const auto& server : cluster_.servers) {
    EXPECT_TRUE(wait_until([&] { return server->node()->trouble().ok(); }));
    const Status stopped = server->stop();
    EXPECT_TRUE(stopped.ok()) << stopped;
  }
}

INSTANTIATE_TEST_SUITE_P(Profiles, FusionNodes, ::testing::Values(kFusion, kFusionReplayed),
                         profile_of);
INSTANTIATE_TEST_SUITE_P(Profiles, FailedStarts, ::testing::Values(kFusion, kFusionReplayed),
                         profile_of);

}  // namespace
}  // namespace strata::testing
