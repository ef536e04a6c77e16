// Goal: whatever the network and the nodes do, calls end once, in time and truly (CA1, CH1-CH3,
// RS1-RS3). Method: four nodes, each a server with channels to the others, make random calls while
// connections are cut at any byte, links are blocked and slow, nodes pause, die and come back. An
// oracle knows of each call what its handler did and how it ended. One seed per world, printed;
// STRATA_SEED=n replays one, STRATA_ROUNDS=n runs more. Everything is in virtual time (SW1), so a
// replay is exact.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <vector>

#include "base/diag.h"
#include "base/testing/sanitized.h"
#include "transport/calls/channel.h"
#include "transport/calls/rpc_server.h"
#include "transport/sim/sim_world.h"

namespace strata::transport {
namespace {

constexpr uint32_t kNodes = 4;
enum Method : uint16_t { kEcho = 1, kEchoLater = 2, kFail = 3, kThrowAway = 4, kMethods };
constexpr uint16_t kUnknownMethod = 9;

Secret secret() {
  std::array<char, Secret::kBytes> bytes;
  bytes.fill('s');
  return Secret(bytes);
}

struct Call {
  uint16_t method = 0;
  uint64_t channel = 0;  // number of the Channel object
  uint64_t deadline_us = 0;
  std::string payload;
  bool idempotent = false;
  int ran = 0;
  bool ended = false;
  bool may_not_run = false;  // it was said that it had not run and would not
};

std::string address_of(uint32_t node) { return "sim:" + std::to_string(node) + ":1"; }

class Model {
 public:
  explicit Model(uint64_t seed) : world_(seed, random_faults(seed)), rng_(seed ^ 0x5eed) {
    for (uint32_t n = 0; n < kNodes; n++) {
      world_.add_node();
      nodes_.emplace_back();
    }
    for (uint32_t n = 0; n < kNodes; n++) start(n);
  }

  ~Model() { nodes_.clear(); }

  void run() {
    for (int i = 0; i < 800 && !::testing::Test::HasFailure(); i++) {
      world_.run_for(rng_.below(4'000));
      for (uint64_t n = rng_.below(6); n > 0; n--) make_call();
      if (rng_.one_in(12)) misfortune();
    }
    calm_down();
  }

  uint64_t trace = 0;
  uint64_t oks = 0, unknowns = 0, unsent = 0, calls = 0;

 private:
  struct Node {
    std::unique_ptr<RpcServer> server;
    std::vector<std::unique_ptr<Channel>> channels;  // by peer
    std::vector<uint64_t> channel_numbers;
    uint64_t paused_until_us = 0;
  };

  static SimFaults random_faults(uint64_t seed) {
    Rng rng(seed);
    SimFaults faults;
    faults.delay_us_max = 20 + rng.below(3000);
    faults.lose_one_in = rng.one_in(2) ? 50 + static_cast<uint32_t>(rng.below(500)) : 0;
    faults.cut_one_in = rng.one_in(2) ? 100 + static_cast<uint32_t>(rng.below(2000)) : 0;
    faults.window_bytes = 200u << rng.below(10);
    return faults;
  }

  void start(uint32_t n) {
    const World world = world_.world(n);
    Node& node = nodes_[n];
    node.paused_until_us = 0;
    ServerOptions options;
    options.requests_in_progress_max = 1 + static_cast<uint32_t>(rng_.below(40));
    options.output_bytes_max = 1000u << rng_.below(10);
    node.server = std::make_unique<RpcServer>(world, secret(), options);
    for (uint16_t method = kEcho; method < kMethods; method++) {
      node.server->handle(method, [this, world](const Request& request, Responder responder) {
        handle(world, request, std::move(responder));
      });
    }
    const auto listening = node.server->listen(address_of(n));
    ASSERT_TRUE(listening.ok()) << listening.status();
    for (uint32_t peer = 0; peer < kNodes; peer++) {
      ChannelOptions channel_options;
      if (rng_.one_in(4))
        channel_options.link_model = std::make_shared<LinkModel>(*link_speed("10g"));
      if (rng_.one_in(4)) channel_options.waiting_bytes_max = 2000;
      node.channels.push_back(
          std::make_unique<Channel>(world, secret(), address_of(peer), std::move(channel_options)));
      node.channel_numbers.push_back(next_channel_++);
    }
  }

  void make_call() {
    const auto from = static_cast<uint32_t>(rng_.below(kNodes));
    const auto to = static_cast<uint32_t>(rng_.below(kNodes));
    if (nodes_[from].server == nullptr) return;
    const uint64_t id = next_call_++;
    calls++;
    Call& call = calls_[id];
    call.method = rng_.one_in(30) ? kUnknownMethod
                                  : static_cast<uint16_t>(kEcho + rng_.below(kMethods - kEcho));
    call.channel = nodes_[from].channel_numbers[to];
    call.idempotent = rng_.one_in(3);
    append_u64(&call.payload, id);
    call.payload.append(rng_.below(rng_.one_in(10) ? 20'000 : 100), static_cast<char>(id));
    CallOptions options;
    options.method = call.method;
    options.epoch = id * 3;
    options.deadline_us = world_.now_us() + 1 + rng_.below(rng_.one_in(3) ? 3'000 : 2'000'000);
    options.idempotent = call.idempotent;
    options.wait_for_connection = rng_.one_in(2);
    call.deadline_us = options.deadline_us;
    nodes_[from].channels[to]->call(
        options, call.payload, [this, id, from](const Reply& reply) { on_end(id, from, reply); });
  }

  void handle(const World& world, const Request& request, Responder responder) {
    ASSERT_GE(request.payload.size(), 8u);
    const uint64_t id = load_u64(request.payload.data());
    note(id, 1);
    ASSERT_TRUE(calls_.contains(id));
    Call& call = calls_.at(id);
    EXPECT_EQ(request.payload, call.payload);
    EXPECT_EQ(request.method, call.method);
    EXPECT_EQ(request.epoch, id * 3);
    EXPECT_NE(request.channel_id, 0u);
    EXPECT_EQ(++call.ran, 1) << "RS1: call " << id << " ran twice";
    EXPECT_FALSE(call.may_not_run) << "CA1: call " << id << " ran although it was said not to have";
    uint64_t& last = last_run_[call.channel];
    EXPECT_GT(id, last) << "CH1: order of a channel";
    last = id;
    if (call.method == kEcho) return responder.reply(std::string(request.payload), id * 5);
    if (call.method == kFail)
      return responder.fail(error_duplicate_key("no " + std::to_string(id)));
    if (call.method == kThrowAway) return;
    world.executor->run_at(
        world.executor->now_ns() + rng_.below(30'000'000),
        [responder = std::move(responder), id, payload = std::string(request.payload)]() mutable {
          responder.reply(std::move(payload), id * 5);
        });
  }

  void on_end(uint64_t id, uint32_t from, const Reply& reply) {
    Call& call = calls_.at(id);
    note(id, static_cast<uint64_t>(reply.status.code()) + 10);
    EXPECT_FALSE(call.ended) << "CH2";
    call.ended = true;
    // A paused node cannot act; it must as soon as it wakes up.
    EXPECT_LE(world_.now_us(), std::max(call.deadline_us, nodes_[from].paused_until_us)) << "CH2";
    if (reply.answered) {
      EXPECT_EQ(call.ran, call.method == kUnknownMethod ? 0 : 1) << "answered, so it ran";
      if (call.method == kEcho || call.method == kEchoLater) {
        EXPECT_EQ(reply.payload, call.payload) << "another call's reply";
        EXPECT_EQ(reply.epoch, id * 5);
        EXPECT_TRUE(reply.status.ok());
        oks++;
      } else if (call.method == kFail) {
        EXPECT_EQ(reply.status.code(), StatusCode::kAlreadyExists);
        EXPECT_EQ(reply.status.message(), "no " + std::to_string(id));
      } else if (call.method == kThrowAway) {
        EXPECT_EQ(reply.status.code(), StatusCode::kInternal);
      } else {
        EXPECT_TRUE(is_unsupported(reply.status)) << reply.status;
      }
      return;
    }
    EXPECT_FALSE(reply.status.ok());
    if (is_outcome_unknown(reply.status)) {
      EXPECT_FALSE(call.idempotent);
      unknowns++;
      return;
    }
    const bool known =
        is_peer_down(reply.status) || is_timed_out(reply.status) || is_no_space(reply.status);
    EXPECT_TRUE(known) << reply.status;
    if (call.idempotent) return;
    unsent++;
    call.may_not_run = true;
    EXPECT_EQ(call.ran, 0) << "said not to have run: " << reply.status;
  }

  void misfortune() {
    const auto a = static_cast<uint32_t>(rng_.below(kNodes));
    const auto b = static_cast<uint32_t>(rng_.below(kNodes));
    switch (rng_.below(10)) {
      case 0:
        return world_.cut_connections(a, b);
      case 1:
        return world_.set_blocked(a, b, true);
      case 2:
        return world_.set_partitioned(a, b, !rng_.one_in(3));
      case 3:
        world_.set_partitioned(a, b, false);
        return world_.set_extra_delay(a, b, rng_.one_in(2) ? rng_.below(100'000) : 0);
      case 4: {
        if (nodes_[a].server == nullptr) return;
        const uint64_t us = rng_.below(rng_.one_in(3) ? 3'000'000 : 20'000);
        nodes_[a].paused_until_us = std::max(nodes_[a].paused_until_us, world_.now_us() + us);
        return world_.pause(a, us);
      }
      case 5:
        return kill(a);
      default:
        return heal();
    }
  }

  void kill(uint32_t n) {
    if (nodes_[n].server == nullptr) return;
    world_.kill(n, rng_.one_in(2) ? SimWorld::Death::kProcess : SimWorld::Death::kMachine);
    nodes_[n] = Node();
    // Calls of its channels end with it, without a word.
    if (rng_.one_in(2)) revive(n);
  }

  void revive(uint32_t n) {
    world_.restart(n);
    start(n);
  }

  void heal() {
    for (uint32_t a = 0; a < kNodes; a++) {
      if (nodes_[a].server == nullptr) revive(a);
      for (uint32_t b = 0; b < kNodes; b++) {
        world_.set_blocked(a, b, false);
        world_.set_extra_delay(a, b, 0);
      }
    }
  }

  // Everything heals; then every call has ended and every node reaches every other.
  void calm_down() {
    world_.set_faults({});
    heal();
    world_.run_for(6'000'000);
    int reached = 0;
    for (uint32_t a = 0; a < kNodes; a++) {
      for (uint32_t b = 0; b < kNodes; b++) {
        const uint64_t id = next_call_++;
        Call& call = calls_[id];
        call.method = kEcho;
        call.channel = nodes_[a].channel_numbers[b];
        append_u64(&call.payload, id);
        call.deadline_us = world_.now_us() + 3'000'000;
        const CallOptions options{.method = kEcho,
                                  .epoch = id * 3,
                                  .deadline_us = call.deadline_us,
                                  .wait_for_connection = true};
        nodes_[a].channels[b]->call(options, call.payload, [&, id, a](const Reply& reply) {
          on_end(id, a, reply);
          reached += reply.status.ok() ? 1 : 0;
        });
      }
    }
    world_.run_for(4'000'000);
    EXPECT_EQ(reached, static_cast<int>(kNodes * kNodes));
    for (const Node& node : nodes_) {
      EXPECT_EQ(node.server->in_progress(), 0u);
      EXPECT_EQ(node.server->connections(), kNodes);
    }
    EXPECT_EQ(world_.connections(), kNodes * kNodes);
    for (const auto& [id, call] : calls_) {
      bool alive = false;
      for (const Node& node : nodes_)
        for (const uint64_t number : node.channel_numbers) alive |= number == call.channel;
      if (alive) {
        EXPECT_TRUE(call.ended) << "CH2: call " << id;
      }
    }
  }

  void note(uint64_t id, uint64_t what) {
    trace = mix64(trace ^ mix64(id) ^ mix64(what << 32) ^ world_.now_us());
  }

  SimWorld world_;
  Rng rng_;
  std::vector<Node> nodes_;
  std::map<uint64_t, Call> calls_;
  std::map<uint64_t, uint64_t> last_run_;  // by channel
  uint64_t next_call_ = 1;
  uint64_t next_channel_ = 1;
};

uint64_t environment_number(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

TEST(RpcModel, CallsEndOnceInTimeAndTruly) {
  set_diag_sink([](Severity, std::string_view) {});
  const uint64_t first = environment_number("STRATA_SEED", 1);
  const uint64_t rounds =
      environment_number("STRATA_ROUNDS", strata::testing::fewer_if_sanitized(60, 24));
  uint64_t calls = 0, oks = 0, unknowns = 0, unsent = 0;
  for (uint64_t seed = first; seed < first + rounds; seed++) {
    SCOPED_TRACE("STRATA_SEED=" + std::to_string(seed));
    Model model(seed);
    model.run();
    calls += model.calls;
    oks += model.oks;
    unknowns += model.unknowns;
    unsent += model.unsent;
    if (::testing::Test::HasFailure()) break;
  }
  std::printf("%llu calls: %llu ok, %llu unknown, %llu not sent\n",
              static_cast<unsigned long long>(calls), static_cast<unsigned long long>(oks),
              static_cast<unsigned long long>(unknowns), static_cast<unsigned long long>(unsent));
  if (rounds < 20) return;
  // The faults did happen, and did not prevent everything.
  EXPECT_GT(oks, calls / 10);
  EXPECT_GT(unknowns, calls / 100);
  EXPECT_GT(unsent, calls / 100);
}

TEST(RpcModel, TheSameSeedIsTheSameRun) {
  set_diag_sink([](Severity, std::string_view) {});
  Model one(7), two(7), other(8);
  one.run();
  two.run();
  other.run();
  EXPECT_EQ(one.trace, two.trace);  // SW1
  EXPECT_NE(one.trace, other.trace);
}

}  // namespace
}  // namespace strata::transport
