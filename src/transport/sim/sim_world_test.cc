// Goal: the simulated network keeps TCP's promises, and only those (SW2, SW3); time and pauses.
// Method: raw streams, many seeds.
#include "transport/sim/sim_world.h"

#include <gtest/gtest.h>

#include <array>

namespace strata::transport {
namespace {

// An end of a stream that writes what it is told and keeps what it gets.
class Peer final : public StreamEvents {
 public:
  void start(std::unique_ptr<Stream> s) {
    stream = std::move(s);
    stream->start(this);
  }
  void say(const std::string& bytes) {
    to_write += bytes;
    write();
  }
  void on_open() override {
    opened = true;
    write();
  }
  void on_bytes(Bytes bytes) override { got.append(bytes); }
  void on_writable() override {
    stuck = false;
    write();
  }
  void on_closed(const Status& why) override {
    EXPECT_FALSE(closed) << "twice";
    closed = true;
    reason = why;
  }
  std::unique_ptr<Stream> stream;
  std::string got, to_write;
  size_t written = 0;
  bool opened = false, closed = false, stuck = false;
  Status reason;

 private:
  void write() {
    while (opened && !closed && !stuck && !to_write.empty()) {
      const Bytes piece = to_write;
      const size_t taken = stream->write(absl::MakeSpan(&piece, 1), -1);
      stuck = taken < to_write.size();
      written += taken;
      to_write.erase(0, taken);
    }
  }
};

class Two {
 public:
  explicit Two(uint64_t seed, const SimFaults& faults = {}) : world(seed, faults) {
    a = world.add_node();
    b = world.add_node();
    listener = *world.world(b).network->listen(
        "sim:1:5", [this](std::unique_ptr<Stream> stream) { server.start(std::move(stream)); });
    client.start(world.world(a).network->connect("sim:1:5"));
  }
  SimWorld world;
  uint32_t a = 0, b = 0;
  std::unique_ptr<Listener> listener;
  Peer client, server;
};

TEST(SimWorld, BytesArriveWholeAndInOrder) {
  for (uint64_t seed = 1; seed <= 50; seed++) {
    SimFaults faults;
    faults.lose_one_in = 5;
    faults.window_bytes = 100;
    Two two(seed, faults);
    std::string said;
    for (int i = 0; i < 40; i++) {
      const std::string piece(two.world.rng().below(300), static_cast<char>('a' + i % 26));
      said += piece;
      two.client.say(piece);
      two.world.run_for(two.world.rng().below(1000));
    }
    two.server.say("and back");
    ASSERT_TRUE(
        two.world.run_until([&] { return two.server.got.size() == said.size(); }, 60'000'000));
    EXPECT_EQ(two.server.got, said);
    ASSERT_TRUE(two.world.run_until([&] { return two.client.got == "and back"; }, 10'000'000));
    two.client.stream.reset();
    ASSERT_TRUE(two.world.run_until([&] { return two.server.closed; }, 10'000'000));
  }
}

TEST(SimWorld, ACutConnectionDeliversAPrefixAndIsTold) {
  int partial = 0;
  for (uint64_t seed = 1; seed <= 100; seed++) {
    SimFaults faults;
    faults.cut_one_in = 10;
    Two two(seed, faults);
    std::string said;
    for (int i = 0; i < 100; i++) {
      const std::string piece(50, static_cast<char>('a' + i % 26));
      said += piece;
      two.client.say(piece);
      two.world.run_for(100);
    }
    ASSERT_TRUE(
        two.world.run_until([&] { return two.server.closed && two.client.closed; }, 10'000'000));
    EXPECT_TRUE(said.starts_with(two.server.got));
    EXPECT_LE(two.server.got.size(), two.client.written);
    partial += two.server.got.size() % 50 != 0 ? 1 : 0;
    two.client.stream.reset();
    two.server.stream.reset();
    EXPECT_EQ(two.world.connections(), 0u);
  }
  EXPECT_GT(partial, 20) << "at any byte";
}

TEST(SimWorld, APartitionHoldsBytesBack) {
  Two two(1);
  two.world.run_for(10'000);
  two.world.set_blocked(two.a, two.b, true);
  two.client.say("held");
  two.server.say("free");
  two.world.run_for(1'000'000);
  EXPECT_EQ(two.server.got, "");
  EXPECT_EQ(two.client.got, "free");
  two.world.set_blocked(two.a, two.b, false);
  two.world.run_for(1'000'000);
  EXPECT_EQ(two.server.got, "held");
  two.world.set_blocked(two.a, two.b, true);
  two.client.say("never");
  two.world.run_for(6'000'000);
  EXPECT_TRUE(two.client.closed) << "undelivered for too long";
  EXPECT_FALSE(two.server.closed) << "has heard nothing of it";
}

TEST(SimWorld, WhoWritesToADeadMachineLearnsItOnceItIsUp) {
  Two two(3);
  two.world.run_for(10'000);
  two.world.kill(two.b, SimWorld::Death::kMachine);
  two.world.run_for(3'000'000);
  EXPECT_FALSE(two.client.closed);
  two.client.say("hello?");
  two.world.run_for(1'000'000);
  EXPECT_FALSE(two.client.closed);
  two.world.restart(two.b);
  two.world.run_for(1'000'000);
  EXPECT_TRUE(two.client.closed);
  two.listener.reset();
}

TEST(SimWorld, AKilledProcessIsToldToItsPeersAndRunsNoMore) {
  for (uint64_t seed = 1; seed <= 20; seed++) {
    Two two(seed);
    two.world.run_for(10'000);
    bool ran = false;
    two.world.world(two.b).executor->run_at(20'000'000'000, [&] { ran = true; });
    two.world.world(two.b).executor->post([&] { ran = true; });
    two.world.kill(two.b, SimWorld::Death::kProcess);
    two.client.say("x");
    ASSERT_TRUE(two.world.run_until([&] { return two.client.closed; }, 1'000'000));
    two.world.run_for(30'000'000);
    EXPECT_FALSE(ran);  // SW3
    EXPECT_EQ(two.server.got, "");
    Peer again;  // and nobody listens there
    again.start(two.world.world(two.a).network->connect("sim:1:5"));
    ASSERT_TRUE(two.world.run_until([&] { return again.closed; }, 1'000'000));
    EXPECT_FALSE(again.opened);
    two.listener.reset();
  }
}

TEST(SimWorld, APausedNodeFindsEverythingInOrderWhenItWakes) {
  Two two(1);
  two.world.run_for(10'000);
  std::vector<int> ran;
  Executor* const executor = two.world.world(two.b).executor;
  const auto id = executor->run_at(executor->now_ns() + 3'000'000, [&] { ran.push_back(9); });
  executor->run_at(executor->now_ns() + 2'000'000, [&] { ran.push_back(2); });
  executor->run_at(executor->now_ns() + 1'000'000, [&] {
    ran.push_back(1);
    executor->cancel(id);
  });
  two.world.pause(two.b, 500'000);
  two.client.say("while you slept");
  two.world.run_for(499'000);
  EXPECT_TRUE(ran.empty());
  EXPECT_EQ(two.server.got, "");
  two.world.run_for(10'000);
  EXPECT_EQ(ran, (std::vector<int>{1, 2}));
  EXPECT_EQ(two.server.got, "while you slept");
}

TEST(SimWorld, ConnectingWaitsForAPartitionToEnd) {
  Two two(1);
  two.world.set_partitioned(two.a, two.b, true);
  two.world.run_for(3'000'000);
  EXPECT_FALSE(two.client.opened || two.client.closed);
  two.world.set_partitioned(two.a, two.b, false);
  two.world.run_for(1'000'000);
  EXPECT_TRUE(two.client.opened && two.server.opened);
}

}  // namespace
}  // namespace strata::transport
