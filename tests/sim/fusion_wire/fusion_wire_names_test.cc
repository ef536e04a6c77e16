// Goal: names of tables, dropped spaces and rounds of page reuse of servers that are members
// (FusionMember) over a real memory node and sockets: what a kernel counts on (MW13-MW18,
// FC39-FC47), and what becomes of every wait when its time is over, its statement is killed, a
// server is fenced, is killed or leaves, or the memory node is silent or ends.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "base/testing/wait_until.h"
#include "clients/fusion/fusion_member.h"
#include "memnode/fusion/testing/fusion_node.h"

namespace strata::clients {
namespace {

using memnode::testing::FusionNode;
using memnode::testing::TestStream;
using strata::testing::wait_until;

constexpr uint64_t kForeverUs = 60'000'000;
const std::string kOrders = "shop.orders";

// What a kernel remembers, as a test says that it does.
class User final : public SchemaUser {
 public:
  Status give_up(Bytes, uint64_t) override {
    ++asked;
    return busy ? error_lock_wait_timeout() : ok_status();
  }
  Status leave_space(SpaceId space) override {
    if (stays) return error_peer_down("asked for by a test");
    const MutexLock lock(mutex);
    left.insert(space);
    return ok_status();
  }
  bool has_left(SpaceId space) {
    const MutexLock lock(mutex);
    return left.contains(space);
  }
  std::atomic<bool> busy{false}, stays{false};
  std::atomic<int> asked{0};
  Mutex mutex{LatchRank::kLeaf};
  std::set<SpaceId> left STRATA_GUARDED_BY(mutex);
};

class Operations final : public OwnOperations {
 public:
  [[nodiscard]] uint64_t mark() const noexcept override { return ++marks; }
  bool ended(uint64_t mark) noexcept override { return mark <= over; }
  mutable std::atomic<uint64_t> marks{0};
  std::atomic<uint64_t> over{0};
};

// A server: a member, and what there would be of its kernel.
class Server {
 public:
  Server(FusionNode* node, FusionMemberOptions options) : id(options.server) {
    options.join_us_max = 20'000'000;
    options.renew_us = 20'000;
    options.names.holds.ask_again_us = 100'000;
    options.names.try_us = 20'000;
    auto made = FusionMember::join(options, node->channel());
    EXPECT_TRUE(made.ok()) << made.status();
    if (!made.ok()) return;
    member = *std::move(made);
    const Status serves = member->serve();
    EXPECT_TRUE(serves.ok()) << serves;
  }
  ~Server() { close(); }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  // As a kernel does once it has recovered, and when it ends.
  void open() {
    join();
    const Status recovered = names()->has_recovered(id);
    EXPECT_TRUE(recovered.ok()) << recovered;
  }
  void join() {
    const Status joined = names()->join(id, &user);
    EXPECT_TRUE(joined.ok()) << joined;
    EXPECT_TRUE(member->page_reuse()->join(id, &operations).ok());
    is_open = joined.ok();
  }
  void close() {
    if (!std::exchange(is_open, false)) return;
    names()->leave(id);
    member->page_reuse()->leave(id);
  }
  [[nodiscard]] NameLocks* names() const { return member->names(); }
  Status use(uint64_t timeout_us = kForeverUs, WaitInterrupt* interrupt = nullptr) const {
    return names()->use(id, kOrders, timeout_us, interrupt);
  }
  Status lock(uint64_t timeout_us = kForeverUs, WaitInterrupt* interrupt = nullptr) const {
    return names()->lock(id, kOrders, timeout_us, interrupt);
  }
  void unlock() const { names()->unlock(id, kOrders); }
  [[nodiscard]] bool has(proto::NameMode mode) const { return names()->holds().has(kOrders, mode); }

  const NodeId id;
  User user;
  Operations operations;
  std::unique_ptr<FusionMember> member;
  bool is_open = false;
};

class FusionWireNamesTest : public ::testing::Test {
 protected:
  FusionWireNamesTest() {
    set_diag_sink([](Severity, std::string_view) {});
    node_.options.table_slots = 128;
  }
  ~FusionWireNamesTest() override {
    node_.stop();
    set_diag_sink(nullptr);
  }
  std::unique_ptr<Server> joined(uint8_t server, uint64_t life, bool alone = false) {
    FusionMemberOptions options;
    options.server = NodeId{server};
    options.life = life;
    options.alone = alone;
    auto made = std::make_unique<Server>(&node_, options);
    return made->member == nullptr ? nullptr : std::move(made);
  }
  std::unique_ptr<Server> opened(uint8_t server, uint64_t life) {
    auto made = joined(server, life);
    if (made != nullptr) made->open();
    return made;
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

TEST_F(FusionWireNamesTest, ATableIsForgottenBeforeAnotherServerChangesIt) {  // MW15, FC39
  node_.start();
  const auto a = opened(1, 77);
  const auto b = opened(2, 78);
  ASSERT_TRUE(a->use().ok());
  ASSERT_TRUE(b->use().ok());
  a->user.busy = true;  // a transaction of it has changed the table
  EXPECT_TRUE(is_lock_wait_timeout(b->lock(300'000)));
  EXPECT_GE(a->user.asked.load(), 1);
  EXPECT_TRUE(a->use().ok()) << "it has it again";
  std::thread changes([&] { EXPECT_TRUE(b->lock().ok()); });
  EXPECT_TRUE(wait_until([&] { return a->user.asked.load() >= 2; }));
  EXPECT_FALSE(b->has(proto::NameMode::kExclusive));
  a->user.busy = false;
  changes.join();
  EXPECT_FALSE(a->has(proto::NameMode::kUse));
  std::thread comes_back([&] { EXPECT_TRUE(a->use().ok()); });
  EXPECT_FALSE(a->has(proto::NameMode::kUse));
  b->unlock();
  comes_back.join();
  EXPECT_TRUE(b->use(0).ok()) << "who has changed it uses it: nobody is asked";
}

TEST_F(FusionWireNamesTest, AWaitEndsWithItsTimeItsStatementOrItsServersFence) {  // FC40, FC45
  node_.start();
  const auto a = opened(1, 77);
  const auto b = opened(2, 78);
  ASSERT_TRUE(a->lock().ok());
  EXPECT_TRUE(is_lock_wait_timeout(b->use(50'000)));
  WaitInterrupt kill;
  std::thread killed([&] { EXPECT_TRUE(is_interrupted(b->lock(kForeverUs, &kill))); });
  EXPECT_TRUE(wait_until([&] {  // it is asked for
    return node_.service()->status().name_locks.give_ups >= 1;
  }));
  kill.interrupt();
  killed.join();
  std::thread fenced([&] {
    const Status got = b->use();
    EXPECT_TRUE(is_fenced(got)) << got;
  });
  node_.service()->fence(NodeId{2});
  fenced.join();
  EXPECT_TRUE(is_fenced(b->lock()));
  a->unlock();
  EXPECT_TRUE(a->lock().ok()) << "nobody waits any more";
}

TEST_F(FusionWireNamesTest, WithoutALeaseNothingIsUsedAndAfterwardsEverythingGoesOn) {  // FC45
  node_.options.time.authority.lease_us = 1'000'000;
  node_.options.time.authority.renew_us = 50'000;
  node_.start();
  const auto a = opened(1, 77);
  ASSERT_TRUE(a->use().ok());
  node_.stream.will(TestStream::Does::kHolds);
  EXPECT_TRUE(wait_until([&] { return !a->member->lease()->valid(a->member->epoch()); }));
  EXPECT_TRUE(is_lease_lost(a->use(100'000)));
  EXPECT_FALSE(a->names()->lock(a->id, "shop.new", 200'000, nullptr).ok());
  EXPECT_FALSE(a->names()->space_dropped(a->id, SpaceId{300}).ok());
  node_.stream.will(TestStream::Does::kTakes);
  EXPECT_TRUE(wait_until([&] { return a->use().ok(); }));
  EXPECT_TRUE(a->lock().ok());
}

TEST_F(FusionWireNamesTest, TheEndOfTheMemoryNodeIsTheEndOfAllNames) {  // FC47
  node_.start(1);
  const auto a = opened(1, 77);
  ASSERT_TRUE(a->use().ok());
  node_.end_service();
  node_.serve(2);
  EXPECT_TRUE(wait_until([&] { return is_fenced(a->use()); }));
  EXPECT_TRUE(is_fenced(a->lock()));
  EXPECT_FALSE(a->names()->space_dropped(a->id, SpaceId{300}).ok());
}

TEST_F(FusionWireNamesTest, WhatAKilledServerWasChangingWaitsForItsNextLife) {  // FC41, NL4
  node_.start();
  auto a = opened(1, 77);
  const auto b = opened(2, 78);
  ASSERT_TRUE(a->lock().ok());
  std::atomic<bool> got{false};
  std::thread waits([&] {
    EXPECT_TRUE(b->use().ok());
    got = true;
  });
  a->member->stop();  // nothing is heard of it any more
  node_.service()->exited(NodeId{1}, 77);
  EXPECT_TRUE(is_gone(1));
  const auto next = joined(1, 79);
  next->join();  // what was begun is undone, but for what it ends under the name (MW23)
  EXPECT_TRUE(next->lock().ok()) << "ahead of who waits for it";
  next->unlock();
  EXPECT_FALSE(got);
  EXPECT_TRUE(next->names()->has_recovered(next->id).ok());
  waits.join();
  EXPECT_TRUE(next->use().ok());
}

TEST_F(FusionWireNamesTest, WhoLeavesKeepsNobodyWaiting) {
  node_.start();
  const auto a = opened(1, 77);
  const auto b = opened(2, 78);
  ASSERT_TRUE(a->lock().ok());
  std::thread waits([&] { EXPECT_TRUE(b->lock().ok()); });
  std::thread drops([&] { EXPECT_TRUE(b->names()->space_dropped(b->id, SpaceId{300}).ok()); });
  const auto round = b->member->page_reuse()->begin_round();
  ASSERT_TRUE(round.ok()) << round.status();
  a->close();  // as Kernel::shutdown() does
  ASSERT_TRUE(a->member->leave().ok());
  waits.join();
  drops.join();
  EXPECT_EQ(*b->member->page_reuse()->round_ended(*round), true);
}

TEST_F(FusionWireNamesTest, ADroppedSpaceIsLeftByAllBeforeItsFileGoes) {  // MW17, FC42
  node_.options.names.spaces.ask_again_us = 20'000;
  node_.start();
  const auto a = opened(1, 77);
  const auto b = opened(2, 78);
  const auto c = joined(3, 79);  // it recovers
  b->user.stays = true;          // it cannot leave it at first
  std::atomic<bool> left{false};
  std::thread drops([&] {
    const Status status = a->names()->space_dropped(a->id, SpaceId{300});
    EXPECT_TRUE(status.ok()) << status;
    left = true;
  });
  c->open();
  EXPECT_TRUE(wait_until([&] { return c->user.has_left(SpaceId{300}); }));
  EXPECT_FALSE(left);
  b->user.stays = false;
  drops.join();
  EXPECT_TRUE(b->user.has_left(SpaceId{300}));
  EXPECT_FALSE(a->user.has_left(SpaceId{300})) << "it has by itself";
  EXPECT_TRUE(wait_until([&] { return node_.service()->status().dropped_spaces == 0; }));
}

TEST_F(FusionWireNamesTest, ARoundEndsWithWhatWasUnderWayWhenItBegan) {  // MW13, FC43, FC44
  node_.start();
  const auto a = opened(1, 77);
  const auto b = opened(2, 78);
  const auto c = joined(3, 79);  // no operations yet
  PageReuse* const reuse = a->member->page_reuse();
  const auto round = reuse->begin_round();
  ASSERT_TRUE(round.ok()) << round.status();
  EXPECT_TRUE(wait_until([&] { return b->operations.marks.load() == 1; }));
  EXPECT_EQ(*reuse->round_ended(*round), false);
  b->operations.over = 1;
  EXPECT_TRUE(wait_until([&] { return *reuse->round_ended(*round); }));
  b->member->stop();
  const auto next = reuse->begin_round();
  ASSERT_TRUE(next.ok());
  EXPECT_EQ(*reuse->round_ended(*next), false);
  node_.service()->exited(NodeId{2}, 78);
  EXPECT_TRUE(wait_until([&] { return *reuse->round_ended(*next); })) << "gone, it has none";
}

TEST_F(FusionWireNamesTest, ManyNamesAtOnceGoInSeveralMessages) {  // FC46
  node_.start();
  const auto a = opened(1, 77);
  const auto b = opened(2, 78);
  constexpr int kThreads = 4, kNames = 150;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < kNames; ++i) {
        Server* const server = t % 2 == 0 ? a.get() : b.get();
        const std::string name = "t" + std::to_string((t / 2) * kNames + i);
        const Status used = server->names()->use(server->id, name, kForeverUs, nullptr);
        EXPECT_TRUE(used.ok()) << used;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(a->names()->holds().names(), 2u * kNames);
  // One server wants them all: what comes back at once does not fit into one message.
  threads.clear();
  for (int t = 0; t < 16; ++t)
    threads.emplace_back([&, t] {
      for (int i = t; i < 2 * kNames; i += 16) {
        const std::string name = "t" + std::to_string(i);
        const Status locked = b->names()->lock(b->id, name, kForeverUs, nullptr);
        EXPECT_TRUE(locked.ok()) << locked;
        b->names()->unlock(b->id, name);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(a->names()->holds().names(), 0u);
  EXPECT_EQ(node_.service()->status().name_news.untold, 0u);
}

}  // namespace
}  // namespace strata::clients
