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
#include "fusion_cluster.h"

namespace strata::testing {
namespace {

using engine::Isolation;
using engine::LockMode;
using engine::Session;
using engine::TableRef;
using engine::testing::environment;
using engine::testing::Row;
using engine::testing::Rows;

constexpr uint64_t kCounters = 8;  // rows that all servers add to
constexpr uint64_t kRowsPerServer = 150;

Status create_table(FusionServer* server) {
  auto session = server->kernel()->new_session();
  session->begin(Isolation::kRepeatableRead);
  STRATA_RETURN_IF_ERROR(session->create_table(engine::testing::table_spec("t"), nullptr));
  STRATA_ASSIGN_OR_RETURN(const TableRef table, session->open_table("test", "t"));
  for (uint64_t id = 1; id <= kCounters; ++id)
    STRATA_RETURN_IF_ERROR(engine::testing::insert(session.get(), table, id, Row{id, 0, "", ""}));
  return session->commit();
}

StatusOr<Rows> all_rows(FusionServer* server, uint32_t index = 0) {
  auto session = server->kernel()->new_session();
  STRATA_ASSIGN_OR_RETURN(const TableRef table, session->open_table("test", "t"));
  session->begin(Isolation::kRepeatableRead);
  auto rows = engine::testing::scan(session.get(), table, index);
  STRATA_RETURN_IF_ERROR(session->rollback());
  return rows;
}

// What servers do, and what was committed of it. A server's own rows lie between those of the
// others, in the same leaves; counters are added to by all.
class Work {
 public:
  explicit Work(uint64_t seed) : seed_(seed) {}

  // Until `stop`; with `cut_off` the last transaction is under way for ever.
  void run(FusionServer* server, size_t who, const std::atomic<bool>* stop, bool cut_off) {
    Rng rng(seed_ * 1000 + ++runs_);
    auto session = server->kernel()->new_session();
    session->set_lock_wait_timeout_us(20'000'000);
    const auto table = session->open_table("test", "t");
    ASSERT_TRUE(table.ok()) << table.status();
    while (!::testing::Test::HasFailure()) {
      const bool last = stop->load();
      const Status status = transaction(session.get(), *table, who, last && cut_off, &rng);
      if (last && cut_off) {
        engine::testing::bury(std::move(session));
        return;
      }
      ASSERT_TRUE(status.ok()) << status << ", server " << who;
      if (last) return;
    }
  }

  // Every index of every server that runs shows just that.
  void verify(FusionCluster* cluster) {
    Rows expected;
    for (const auto& [who, rows] : rows_) expected.insert(rows.begin(), rows.end());
    for (uint64_t id = 1; id <= kCounters; ++id)
      expected[id] = Row{id, static_cast<uint32_t>(counters_[id].load()), "", ""};
    for (const auto& server : cluster->servers) {
      if (!server->runs()) continue;
      for (const uint32_t index : {0u, 1u, 2u}) {
        const auto rows = all_rows(server.get(), index);
        ASSERT_TRUE(rows.ok()) << rows.status();
        EXPECT_EQ(rows->size(), expected.size());
        EXPECT_TRUE(*rows == expected) << "through index " << index << " of " << server->folder();
      }
      auto session = server->kernel()->new_session();
      engine::testing::expect_consistent(server->kernel(), *session->open_table("test", "t"));
    }
  }
  [[nodiscard]] uint64_t commits() const { return commits_.load(); }

 private:
  Status transaction(Session* session, const TableRef& table, size_t who, bool cut_off, Rng* rng) {
    std::map<uint64_t, uint32_t> added;
    Rows after;
    {
      const std::lock_guard lock(mutex_);
      after = rows_[who];
    }
    session->begin(Isolation::kRepeatableRead);
    Status status;
    for (uint64_t n = 1 + rng->below(6); n > 0 && status.ok(); --n)
      status = rng->one_in(4) ? add(session, table, rng, &added)
                              : change(session, table, who, rng, &after);
    if (cut_off) return ok_status();
    if (status.ok() && !rng->one_in(6)) {
      STRATA_RETURN_IF_ERROR(session->commit());
      ++commits_;
      for (const auto& [id, amount] : added) counters_[id] += amount;
      const std::lock_guard lock(mutex_);
      rows_[who] = std::move(after);
      return ok_status();
    }
    STRATA_RETURN_IF_ERROR(session->rollback());
    return is_deadlock(status) || is_lock_wait_timeout(status) ? ok_status() : status;
  }
  static Status add(Session* session, const TableRef& table, Rng* rng,
                    std::map<uint64_t, uint32_t>* added) {
    const uint64_t id = 1 + rng->below(kCounters);
    const auto amount = static_cast<uint32_t>(1 + rng->below(9));
    STRATA_ASSIGN_OR_RETURN(const Row before,
                            engine::testing::get_row(session, table, id, LockMode::kExclusive));
    Row row = before;
    row.group += amount;
    STRATA_RETURN_IF_ERROR(engine::testing::update(session, table, id, before, id, row));
    (*added)[id] += amount;
    return ok_status();
  }
  static Status change(Session* session, const TableRef& table, size_t who, Rng* rng, Rows* rows) {
    const uint64_t id = 100 + rng->below(kRowsPerServer) * 8 + who;
    const auto found = rows->find(id);
    if (found != rows->end() && rng->one_in(4)) {
      STRATA_RETURN_IF_ERROR(engine::testing::remove(session, table, id, found->second));
      rows->erase(found);
      return ok_status();
    }
    Row row{id * 1000 + rng->below(1000), static_cast<uint32_t>(rng->below(50)),
            std::string(rng->below(rng->one_in(20) ? 3000 : 300), 'x'), ""};
    if (rng->one_in(40)) row.blob.assign(rng->below(30000), 'b');
    STRATA_RETURN_IF_ERROR(
        found == rows->end() ? engine::testing::insert(session, table, id, row)
                             : engine::testing::update(session, table, id, found->second, id, row));
    (*rows)[id] = row;
    return ok_status();
  }

  const uint64_t seed_;
  std::atomic<uint64_t> runs_{0}, commits_{0};
  std::mutex mutex_;
  std::map<size_t, Rows> rows_;
  std::atomic<uint64_t> counters_[kCounters + 1] = {};
};

// All that run, for so many more commits.
void work_for(FusionCluster* cluster, Work* work, uint64_t commits, size_t victim = SIZE_MAX) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (size_t i = 0; i < cluster->servers.size(); ++i)
    if (cluster->servers[i]->runs())
      threads.emplace_back(
          [=, &stop] { work->run(cluster->servers[i].get(), i, &stop, i == victim); });
  const uint64_t until = work->commits() + commits;
  while (work->commits() < until && !::testing::Test::HasFailure())
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

class FusionNodes : public ::testing::Test {
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
  FusionCluster cluster_;
};

TEST_F(FusionNodes, ThreeServersWriteTheSameTableAtOnce) {  // FUN1
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

TEST_F(FusionNodes, OneOfThoseThatStartAtOnceMakesTheDatabase) {  // CM9
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
TEST_F(FusionNodes, WhatWasBegunByWhoeverDiedIsMadeAgain) {
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
TEST_F(FusionNodes, WhoIsKilledGoesOnInItsPlaceAndNothingIsLost) {  // FUN1, FUN3
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

TEST_F(FailedStarts, WithoutTheRegistry) {
  late_->before_join = [](registry::SimRegistry* registry) { registry->set_connected(false); };
  const Status failed = late_->start();
  EXPECT_TRUE(is_peer_down(failed)) << failed;
  expect_names(failed, "registry");
  expect_nothing_is_left();
  EXPECT_EQ(cluster_.memory->members(), 1u);
  expect_it_can_join();
}

TEST_F(FailedStarts, WithoutAQuorumOfStorageNodes) {
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

TEST_F(FailedStarts, FromACopyOfAFolderInUse) {
  std::filesystem::copy(cluster_.servers[0]->folder(), late_->folder(),
                        std::filesystem::copy_options::recursive);
  const Status failed = late_->start();
  EXPECT_TRUE(is_in_use(failed)) << failed;
  expect_nothing_is_left();
  EXPECT_EQ(cluster_.memory->members(), 1u);
  const auto rows = all_rows(cluster_.servers[0].get());
  EXPECT_TRUE(rows.ok()) << rows.status() << ": whose folder it is goes on";
}

TEST_F(FailedStarts, WithoutAMemoryNodeThatAnswers) {
  cluster_.memory->end_service();
  const Status failed = late_->start();
  EXPECT_TRUE(may_be_repeated(failed)) << failed;
  expect_names(failed, "memory node");
  expect_nothing_is_left();
  // FUN5: the one that ran had its authority, and hears that there is none any more.
  FusionServer* const first = cluster_.servers[0].get();
  EXPECT_TRUE(wait_until([&] { return !first->node()->may_answer(); }));
  EXPECT_FALSE(all_rows(first).ok());
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
TEST_F(FusionNodes, TablesThatOneMakesAndDropsAreSoForAll) {  // MW15-MW17
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
TEST_F(FusionNodes, WhatAKilledServerWasChangingIsUndoneBeforeOthersGetIt) {  // NL4, FC41
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

TEST_F(FusionNodes, WhoIsFencedAnswersNothingAndComesBack) {  // FUN5
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

TEST_F(FusionNodes, TheRegistryMayBeAwayWhileServersRun) {  // FUN2
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

}  // namespace
}  // namespace strata::testing
