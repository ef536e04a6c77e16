// Goal: names, dropped spaces and page reuse as threads of several servers use them (NameLocks,
// ReuseClient) over the memory node's half keep what SchemaChanges and PageReuse promise: nobody
// uses a table by an old definition, waits end with their time or their statement, servers come, go
// and are fenced. For TSan, too.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "base/wait_interrupt.h"
#include "clients/fusion/fusion_lease.h"
#include "names_node.h"

namespace strata::sim {
namespace {

constexpr Epoch kEpoch{1};
constexpr uint64_t kForeverUs = 600'000'000;
constexpr size_t kTables = 3;

std::string name_of(size_t table) { return "table" + std::to_string(table); }

// What is true of all tables.
struct World {
  struct Table {
    std::atomic<uint64_t> version{1};
    std::atomic<uint32_t> changers{0};
  };
  std::array<Table, kTables> tables;
};

// What a kernel remembers (engine/names.cc), and what it is at.
class FakeKernel final : public SchemaUser {
 public:
  FakeKernel(World* world, NodeId node, SchemaChanges* schema)
      : world_(world), node_(node), schema_(schema) {}

  Status use(size_t t, uint64_t timeout_us, WaitInterrupt* interrupt = nullptr) {
    {
      std::unique_lock lock(mutex_);
      Memory& memory = memory_[t];
      changed_.wait(lock, [&] { return !memory.loading && !memory.given_up; });
      ++memory.users;
      if (memory.known) return ok_status();
      memory.loading = true;
    }
    const Status status = schema_->use(node_, name_of(t), timeout_us, interrupt);
    const std::lock_guard lock(mutex_);
    Memory& memory = memory_[t];
    memory.loading = false;
    if (!status.ok())
      --memory.users;
    else
      load(t);
    changed_.notify_all();
    return status;
  }
  Status lock(size_t t, uint64_t timeout_us, WaitInterrupt* interrupt = nullptr) {
    {
      std::unique_lock lock(mutex_);
      Memory& memory = memory_[t];
      changed_.wait(lock, [&] { return !memory.loading && !memory.given_up; });
    }
    STRATA_RETURN_IF_ERROR(schema_->lock(node_, name_of(t), timeout_us, interrupt));
    const std::lock_guard lock(mutex_);
    load(t);
    ++memory_[t].users;
    return ok_status();
  }
  void change(size_t t) {
    World::Table& table = world_->tables[t];
    EXPECT_EQ(table.changers.fetch_add(1), 0u);  // MW: of one node, and of one thread of it
    check(t, true);
    std::this_thread::yield();
    {
      const std::lock_guard lock(mutex_);
      memory_[t].version = table.version.fetch_add(1) + 1;
    }
    EXPECT_EQ(table.changers.fetch_sub(1), 1u);
  }
  void unlock(size_t t) {
    schema_->unlock(node_, name_of(t));
    end_use(t);
  }
  void end_use(size_t t) {
    const std::lock_guard lock(mutex_);
    --memory_[t].users;
    changed_.notify_all();
  }
  void check(size_t t, bool changes = false) {
    const std::lock_guard lock(mutex_);
    EXPECT_TRUE(memory_[t].known);
    // A thread of this server may be changing it: it changes both under this mutex.
    EXPECT_EQ(memory_[t].version, world_->tables[t].version.load()) << changes;
  }
  void open_space(SpaceId space) {
    const std::lock_guard lock(mutex_);
    at_.insert(space);
  }
  bool is_at(SpaceId space) {
    const std::lock_guard lock(mutex_);
    return at_.contains(space);
  }

  Status give_up(Bytes name, uint64_t timeout_us) override {
    const size_t t = static_cast<size_t>(name.back() - '0');
    std::unique_lock lock(mutex_);
    Memory& memory = memory_[t];
    memory.given_up = true;
    const bool unused = changed_.wait_for(lock, std::chrono::microseconds(timeout_us),
                                          [&] { return memory.users == 0; });
    if (unused) memory.known = false;
    memory.given_up = false;
    changed_.notify_all();
    return unused ? ok_status() : error_lock_wait_timeout();
  }
  Status leave_space(SpaceId space) override {
    const std::lock_guard lock(mutex_);
    at_.erase(space);
    return ok_status();
  }

 private:
  struct Memory {
    bool known = false, loading = false, given_up = false;
    uint64_t version = 0;
    uint32_t users = 0;
  };
  void load(size_t t) {
    Memory& memory = memory_[t];
    if (memory.known) return;
    memory.known = true;
    memory.version = world_->tables[t].version.load();
  }
  World* const world_;
  const NodeId node_;
  SchemaChanges* const schema_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::array<Memory, kTables> memory_;
  std::set<SpaceId> at_;
};

class FakeOperations final : public OwnOperations {
 public:
  uint64_t begin() {
    const std::lock_guard lock(mutex_);
    running_.insert(++last_);
    return last_;
  }
  void end(uint64_t operation) {
    const std::lock_guard lock(mutex_);
    running_.erase(operation);
  }
  [[nodiscard]] uint64_t mark() const noexcept override {
    const std::lock_guard lock(mutex_);
    return last_;
  }
  bool ended(uint64_t mark) noexcept override {
    const std::lock_guard lock(mutex_);
    return running_.empty() || *running_.begin() > mark;
  }

 private:
  mutable std::mutex mutex_;
  std::set<uint64_t> running_;
  uint64_t last_ = 0;
};

struct Server {
  Server(NamesNode* of, World* world, uint8_t number, uint64_t its_life)
      : node(of),
        id(number),
        life(its_life),
        service(of, proto::NameCaller{id, life, kEpoch}),
        names({.holds = {}, .try_us = 2'000}, kEpoch, &lease, &service),
        reuse({.look_us = 1'000}, &service),
        kernel(world, id, &names) {
    lease.granted(kEpoch, clients::boot_time_us(), kForeverUs);
    node->joined(id, life, &names, &reuse);
    EXPECT_TRUE(names.join(id, &kernel).ok());
    EXPECT_TRUE(names.has_recovered(id).ok());
    EXPECT_TRUE(reuse.join(id, &operations).ok());
  }
  ~Server() {
    reuse.leave(id);
    names.leave(id);
    if (!is_fenced) node->ended(id, life, false);
  }
  void fence() {
    is_fenced = true;
    node->ended(id, life, true);
  }
  NamesNode* const node;
  const NodeId id;
  const uint64_t life;
  bool is_fenced = false;
  clients::FusionLease lease;
  NamesNode::Server service;
  clients::NameLocks names;
  clients::ReuseClient reuse;
  FakeKernel kernel;
  FakeOperations operations;
};

class NamesThreads : public ::testing::Test {
 protected:
  ~NamesThreads() override {
    servers_.clear();
    node_.stop();
  }
  Server* start(uint8_t id) {
    servers_[id] = nullptr;
    servers_[id] = std::make_unique<Server>(&node_, &world_, id, ++last_life_);
    return servers_[id].get();
  }
  // A thread's life: uses, changes and renames, with little patience.
  void work(Server* server, uint64_t seed, int count) {
    Rng rng(seed);
    FakeKernel& kernel = server->kernel;
    for (int done = 0; done < count;) {
      const size_t t = rng.below(kTables);
      const uint64_t patience_us = rng.one_in(8) ? 500 : 100'000;
      if (rng.one_in(6)) {
        const size_t second = t + 1;
        if (!kernel.lock(t, patience_us).ok()) continue;
        const bool both = second < kTables && kernel.lock(second, patience_us).ok();
        kernel.change(t);
        if (both) kernel.change(second);
        kernel.unlock(t);
        if (both) kernel.unlock(second);
      } else {
        if (!kernel.use(t, patience_us).ok()) continue;
        kernel.check(t);
        kernel.end_use(t);
      }
      ++done;
    }
  }
  World world_;
  NamesNode node_{kEpoch};
  uint64_t last_life_ = 0;
  std::map<uint8_t, std::unique_ptr<Server>> servers_;
};

TEST_F(NamesThreads, NobodyUsesAnOldDefinition) {
  const uint64_t seed = std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  for (uint8_t id = 1; id <= 3; ++id) start(id);
  for (int lives = 0; lives < 2; ++lives) {
    std::vector<std::thread> threads;
    for (uint8_t id = 1; id <= 3; ++id)
      for (uint64_t n = 0; n < 3; ++n)
        threads.emplace_back([&, id, n] {
          work(servers_[id].get(), seed + id * 10 + n + 100 * static_cast<uint64_t>(lives), 60);
        });
    for (std::thread& thread : threads) thread.join();
    start(2);  // leaves, and comes back
  }
  EXPECT_LE(node_.names(), kTables);
}

TEST_F(NamesThreads, WaitsEndWithTheirTimeOrTheirStatement) {
  Server* const a = start(1);
  Server* const b = start(2);
  ASSERT_TRUE(a->kernel.lock(0, kForeverUs).ok());
  EXPECT_TRUE(is_lock_wait_timeout(b->kernel.use(0, 1'000)));
  EXPECT_TRUE(is_lock_wait_timeout(b->kernel.lock(0, 1'000)));
  WaitInterrupt interrupt;
  std::thread waits(
      [&] { EXPECT_TRUE(is_interrupted(b->kernel.lock(0, kForeverUs, &interrupt))); });
  interrupt.interrupt();
  waits.join();
  std::thread gets([&] {
    ASSERT_TRUE(b->kernel.use(0, kForeverUs).ok());
    b->kernel.check(0);
    b->kernel.end_use(0);
  });
  a->kernel.change(0);
  a->kernel.unlock(0);
  gets.join();
}

TEST_F(NamesThreads, WhatIsInUseIsWaitedFor) {
  Server* const a = start(1);
  Server* const b = start(2);
  ASSERT_TRUE(a->kernel.use(0, kForeverUs).ok());
  EXPECT_TRUE(is_lock_wait_timeout(b->kernel.lock(0, 50'000)));
  a->kernel.check(0);
  std::thread changes([&] {
    ASSERT_TRUE(b->kernel.lock(0, kForeverUs).ok());
    b->kernel.change(0);
    b->kernel.unlock(0);
  });
  a->kernel.end_use(0);
  changes.join();
  ASSERT_TRUE(a->kernel.use(0, kForeverUs).ok());
  a->kernel.check(0);
  a->kernel.end_use(0);
}

TEST_F(NamesThreads, AFencedServerHasNothingAndItsChangeIsItsNextLifes) {  // NL4, FC45
  Server* const a = start(1);
  Server* const b = start(2);
  ASSERT_TRUE(a->kernel.use(1, kForeverUs).ok());
  a->kernel.end_use(1);
  ASSERT_TRUE(a->kernel.lock(0, kForeverUs).ok());
  a->fence();
  a->names.fenced(error_fenced());
  EXPECT_TRUE(is_fenced(a->kernel.lock(2, kForeverUs)));
  ASSERT_TRUE(b->kernel.lock(1, kForeverUs).ok());  // what it used is free
  b->kernel.unlock(1);
  EXPECT_TRUE(is_lock_wait_timeout(b->kernel.use(0, 10'000)));
  start(1);
  ASSERT_TRUE(b->kernel.use(0, kForeverUs).ok());
  b->kernel.end_use(0);
}

TEST_F(NamesThreads, NothingIsUsedWithoutALease) {  // FC45
  Server* const a = start(1);
  Server* const b = start(2);
  a->lease.end();
  const auto in_vain = [](auto&& wait) {
    Status status = wait();
    while (is_lock_wait_timeout(status)) status = wait();  // a slow machine: not even the name came
    EXPECT_TRUE(is_lease_lost(status)) << status;
  };
  in_vain([&] { return a->kernel.use(0, 20'000); });
  in_vain([&] { return a->kernel.lock(0, 20'000); });
  WaitInterrupt interrupt;
  std::thread waits([&] { EXPECT_TRUE(is_interrupted(a->kernel.use(0, kForeverUs, &interrupt))); });
  interrupt.interrupt();
  waits.join();
  ASSERT_TRUE(b->kernel.lock(0, kForeverUs).ok());  // who waited has left nothing behind
  b->kernel.unlock(0);
  // Who is patient goes on with the next lease.
  std::thread goes_on([&] {
    ASSERT_TRUE(a->kernel.lock(0, kForeverUs).ok());
    a->kernel.unlock(0);
  });
  a->lease.granted(kEpoch, clients::boot_time_us(), kForeverUs);
  goes_on.join();
  a->lease.end();
  std::thread ends([&] { EXPECT_TRUE(is_fenced(a->kernel.use(1, kForeverUs))); });
  a->fence();
  a->names.fenced(error_fenced());
  ends.join();
}

TEST_F(NamesThreads, ADroppedSpaceIsLeftByAll) {  // MW17
  Server* const a = start(1);
  Server* const b = start(2);
  Server* const c = start(3);
  for (uint32_t n = 300; n < 320; ++n) {
    const SpaceId space{n};
    b->kernel.open_space(space);
    c->kernel.open_space(space);
    ASSERT_TRUE(a->names.space_dropped(NodeId{1}, space).ok());
    EXPECT_FALSE(b->kernel.is_at(space) || c->kernel.is_at(space));
  }
  b->names.leave(NodeId{2});  // and does not say so
  std::thread drops([&] { EXPECT_TRUE(a->names.space_dropped(NodeId{1}, SpaceId{400}).ok()); });
  b->fence();
  drops.join();
}

TEST_F(NamesThreads, ARoundEndsWithTheOperationsOfBefore) {  // MW13
  Server* const a = start(1);
  Server* const b = start(2);
  const uint64_t long_one = b->operations.begin();
  const auto first = a->reuse.begin_round();
  ASSERT_TRUE(first.ok());
  const auto ended = [&](uint64_t round) {
    const auto over = a->reuse.round_ended(round);
    EXPECT_TRUE(over.ok());
    return over.ok() && *over;
  };
  EXPECT_FALSE(ended(*first));
  const uint64_t later_one = b->operations.begin();
  const auto second = a->reuse.begin_round();
  ASSERT_TRUE(second.ok());
  b->operations.end(long_one);
  while (!ended(*first)) std::this_thread::yield();
  EXPECT_FALSE(ended(*second));
  b->operations.end(later_one);
  while (!ended(*second)) std::this_thread::yield();
  const uint64_t never_ends = b->operations.begin();
  const auto third = a->reuse.begin_round();
  ASSERT_TRUE(third.ok());
  b->reuse.leave(NodeId{2});  // MW14
  while (!ended(*third)) std::this_thread::yield();
  b->operations.end(never_ends);
}

}  // namespace
}  // namespace strata::sim
