// Goal: servers that write the same tables outlive their memory node (FV11 of memnode/fusion, FTM6
// of memnode/host, FC51 of clients/fusion, FUN6 of clients/compute): transactions go on by
// themselves when it is back, or another one is there, no statement fails, and nothing that was
// committed is lost or there twice. So if a server dies with it, and if it dies again while it
// hears what servers have. Method: real memory nodes, storage nodes and servers with kernels in one
// process over sockets, the registry in memory; an oracle of what was committed. STRATA_SEED
// chooses the work and what is killed when, STRATA_ROUNDS how often.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/rng.h"
#include "base/testing/wait_until.h"
#include "fusion_memory.h"
#include "fusion_work.h"

namespace strata::testing {
namespace {

using engine::testing::environment;

class FusionMemoryLost : public ::testing::TestWithParam<const char*> {
 protected:
  ~FusionMemoryLost() override {
    for (const auto& server : cluster_.servers) kill(server.get());
  }
  void start_memory() { memory_.start(); }
  void kill_memory() { memory_.kill(); }
  // As if it was killed: its threads do not wait for pages that nobody can give them at the moment.
  static void kill(FusionServer* server) {
    if (server->runs()) server->node()->pages()->fenced(error_fenced("it was killed"));
    server->die();
  }
  [[nodiscard]] memnode::FusionHostStatus status() { return memory_.status(); }
  [[nodiscard]] bool serves() { return memory_.serves(); }
  void start_all(size_t servers) {
    start_memory();
    ASSERT_TRUE(wait_until([&] { return serves(); })) << status().why;
    for (size_t i = 0; i < servers; ++i) {
      const Status started = cluster_.add()->start();
      ASSERT_TRUE(started.ok()) << started;
      if (i != 0) continue;
      const Status made = create_table(cluster_.servers[0].get());
      ASSERT_TRUE(made.ok()) << made;
    }
  }
  void wait_for_commits(Work* work, uint64_t commits) {
    for (const uint64_t until = work->commits() + commits;
         work->commits() < until && !HasFailure();)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }

  FusionCluster cluster_{GetParam()};
  RealMemoryNode memory_{&cluster_};
};

TEST_P(FusionMemoryLost, ServersGoOnAndNothingIsLost) {
  const uint64_t seed = environment("STRATA_SEED", 42);
  const uint64_t rounds = environment("STRATA_ROUNDS", 6);
  SCOPED_TRACE("STRATA_SEED=" + std::to_string(seed));
  std::printf("STRATA_SEED=%llu\n", static_cast<unsigned long long>(seed));
  Rng rng(seed);
  start_all(3);
  ASSERT_FALSE(HasFailure());
  Work work(seed);
  uint64_t kills = 0, servers_killed = 0;
  for (uint64_t round = 0; round < rounds && !HasFailure(); ++round) {
    const bool with_server = rng.one_in(3);
    const size_t victim = with_server ? rng.below(3) : SIZE_MAX;
    std::vector<std::atomic<bool>> ends(3);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < 3; ++i)
      threads.emplace_back([&, i, server = cluster_.servers[i].get()] {
        work.run(server, i, &ends[i], i == victim);
      });
    wait_for_commits(&work, 20 + rng.below(100));
    if (with_server) {
      ends[victim] = true;
      threads[victim].join();
    }
    kill_memory();
    ++kills;
    const bool while_it_hears = rng.one_in(2);
    if (with_server && !while_it_hears) kill(cluster_.servers[victim].get());
    start_memory();
    if (with_server && while_it_hears) {
      std::this_thread::sleep_for(std::chrono::microseconds(rng.below(400'000)));
      kill(cluster_.servers[victim].get());
    }
    servers_killed += with_server ? 1 : 0;
    for (uint64_t again = rng.below(3); again > 0; --again) {  // in the middle of what it does then
      std::this_thread::sleep_for(std::chrono::microseconds(rng.below(400'000)));
      kill_memory();
      ++kills;
      start_memory();
    }
    if (with_server) {
      const Status back = cluster_.servers[victim]->start();
      EXPECT_TRUE(back.ok()) << back;
    }
    wait_for_commits(&work, 60);
    for (std::atomic<bool>& end : ends) end = true;
    for (std::thread& thread : threads)
      if (thread.joinable()) thread.join();
    if (HasFailure()) break;
    work.verify(&cluster_);
    EXPECT_TRUE(wait_until([&] { return serves(); })) << status().why;
  }
  std::printf("%llu commits, %llu memory nodes killed, %llu servers with them\n",
              static_cast<unsigned long long>(work.commits()),
              static_cast<unsigned long long>(kills),
              static_cast<unsigned long long>(servers_killed));
  for (const auto& server : cluster_.servers) {
    if (HasFailure()) break;
    const Status stopped = server->stop();
    EXPECT_TRUE(stopped.ok()) << stopped;
  }
}

INSTANTIATE_TEST_SUITE_P(Profiles, FusionMemoryLost, ::testing::Values(kFusion, kFusionReplayed),
                         profile_of);

}  // namespace
}  // namespace strata::testing
