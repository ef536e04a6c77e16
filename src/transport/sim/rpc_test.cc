// Goal: the promises of channels and servers one by one, at exact times (CA1, CH1-CH4, RS1-RS4,
// ML1). Method: two nodes of a simulated world.
#include <gtest/gtest.h>

#include <vector>

#include "base/diag.h"
#include "transport/calls/channel.h"
#include "transport/calls/rpc_server.h"
#include "transport/calls/testing/connections.h"
#include "transport/sim/sim_world.h"

namespace strata::transport {
namespace {

constexpr uint16_t kEcho = 1, kKeep = 2, kBig = 3;
constexpr uint64_t kSecond = 1'000'000;  // us

struct Outcome {
  bool ended = false;
  bool answered = false;
  Status status;
  std::string payload;
  uint64_t at_us = 0;
};

class Rpc : public testing::Test {
 protected:
  Rpc() : world_(1, SimFaults{.delay_us_min = 100, .delay_us_max = 100, .short_write_one_in = 0}) {
    set_diag_sink([](Severity, std::string_view) { logged++; });
    logged = 0;
    world_.add_node();
    world_.add_node();
    start_server({});
  }
  void start_server(ServerOptions options) {
    server_.reset();
    server_ =
        std::make_unique<RpcServer>(world_.world(1), test::secret_of('s'), std::move(options));
    server_->handle(kEcho, [this](const Request& request, Responder responder) {
      ran_.emplace_back(request.payload);
      responder.reply(std::string(request.payload));
    });
    server_->handle(kKeep, [this](const Request& request, Responder responder) {
      ran_.emplace_back(request.payload);
      kept_.push_back(std::move(responder));
    });
    server_->handle(kBig, [](const Request& request, Responder responder) {
      responder.reply(std::string(load_u64(request.payload.data()), 'b'));
    });
    ASSERT_TRUE(server_->listen("sim:1:1").ok());
  }
  std::unique_ptr<Channel> channel(ChannelOptions options = {}, char secret = 's') {
    return std::make_unique<Channel>(world_.world(0), test::secret_of(secret), "sim:1:1",
                                     std::move(options),
                                     [this](bool connected, uint64_t life, const Status&) {
                                       connected_ = connected;
                                       changes_++;
                                       if (connected) server_life_ = life;
                                     });
  }
  // An outcome that is filled in later.
  std::shared_ptr<Outcome> call(Channel* channel, uint16_t method, const std::string& payload,
                                uint64_t timeout_us = kSecond, bool wait = true) {
    auto outcome = std::make_shared<Outcome>();
    CallOptions options;
    options.method = method;
    options.deadline_us = world_.now_us() + timeout_us;
    options.wait_for_connection = wait;
    channel->call(options, payload, [this, outcome](const Reply& reply) {
      EXPECT_FALSE(outcome->ended);
      *outcome = {true, reply.answered, reply.status, std::string(reply.payload), world_.now_us()};
    });
    EXPECT_FALSE(outcome->ended) << "CH2: never inside call()";
    return outcome;
  }
  static int logged;
  SimWorld world_;
  std::unique_ptr<RpcServer> server_;
  std::vector<std::string> ran_;
  std::vector<Responder> kept_;
  bool connected_ = false;
  int changes_ = 0;
  uint64_t server_life_ = 0;
};
int Rpc::logged = 0;

TEST_F(Rpc, CallsAndReplies) {
  const auto c = channel();
  const auto first = call(c.get(), kEcho, "first");
  const auto second = call(c.get(), kEcho, std::string(300'000, 'x'));
  world_.run_for(100'000);
  ASSERT_TRUE(first->ended && second->ended);
  EXPECT_EQ(first->payload, "first");
  EXPECT_EQ(second->payload.size(), 300'000u);
  EXPECT_EQ(server_->counters().of(kEcho).operations, 2u);
  EXPECT_EQ(c->counters().of(kEcho).operations, 2u);
  EXPECT_EQ(c->counters().of(kEcho).bytes_out, server_->counters().of(kEcho).bytes_in);
  EXPECT_EQ(c->counters().of(kEcho).bytes_in, server_->counters().of(kEcho).bytes_out);
}

TEST_F(Rpc, DeadlineBeforeAndAfterSending) {
  const auto c = channel();
  const auto early = call(c.get(), kEcho, "early", 150);  // connecting takes longer
  world_.run_for(kSecond / 10);
  EXPECT_TRUE(is_timed_out(early->status));
  const uint64_t begin_us = world_.now_us();
  const auto late = call(c.get(), kKeep, "late", 50'000);
  world_.run_for(kSecond);
  EXPECT_EQ(late->status.code(), StatusCode::kUnknown);
  EXPECT_EQ(late->at_us, begin_us + 50'000);
  EXPECT_EQ(ran_, std::vector<std::string>{"late"});
  kept_.clear();  // the answer comes when nobody waits for it
  world_.run_for(kSecond);
  EXPECT_EQ(c->counters().late_replies, 1u);
  EXPECT_TRUE(connected_);
}

TEST_F(Rpc, ALostConnectionTellsSentFromUnsent) {
  ChannelOptions options;
  const auto c = channel(options);
  world_.run_for(10'000);
  const auto sent = call(c.get(), kKeep, "sent", 10 * kSecond);
  world_.run_for(10'000);
  world_.set_partitioned(0, 1, true);
  const auto lost = call(c.get(), kKeep, "lost", 10 * kSecond);  // handed over, never arrives
  // More than the network takes: the rest of it never left.
  const auto big = call(c.get(), kEcho, std::string(8u << 20, 'x'), 10 * kSecond, false);
  const auto behind = call(c.get(), kEcho, "behind", 10 * kSecond, false);
  const auto patient = call(c.get(), kEcho, "patient", 10 * kSecond, true);
  world_.run_for(2 * kSecond);  // no sign of life for one second
  EXPECT_FALSE(connected_);
  EXPECT_EQ(sent->status.code(), StatusCode::kUnknown);
  EXPECT_EQ(lost->status.code(), StatusCode::kUnknown);
  EXPECT_EQ(big->status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(behind->status.code(), StatusCode::kUnavailable);
  EXPECT_FALSE(patient->ended);
  EXPECT_EQ(c->counters().refused(Refusal::kNoSignOfLife), 1u);
  world_.set_partitioned(0, 1, false);
  world_.run_for(4 * kSecond);
  EXPECT_TRUE(connected_);
  EXPECT_EQ(patient->payload, "patient");
  EXPECT_EQ(ran_, (std::vector<std::string>{"sent", "patient"}));
}

TEST_F(Rpc, HeartbeatsNoticeASilentPeerWithinASecond) {
  const auto c = channel();
  world_.run_for(10 * kSecond);
  EXPECT_TRUE(connected_);
  EXPECT_EQ(changes_, 1);
  const uint64_t begin_us = world_.now_us();
  world_.set_blocked(1, 0, true);
  ASSERT_TRUE(world_.run_until([&] { return !connected_; }, 2 * kSecond));
  EXPECT_LE(world_.now_us() - begin_us, kSecond + 1000);
  ASSERT_TRUE(world_.run_until([&] { return server_->connections() == 0; }, 2 * kSecond));
}

TEST_F(Rpc, AnotherLifeOfTheServerIsSeen) {
  const auto c = channel();
  world_.run_for(10'000);
  const uint64_t first_life = server_life_;
  const auto sent = call(c.get(), kKeep, "sent", 5 * kSecond);
  world_.run_for(10'000);
  world_.kill(1, SimWorld::Death::kProcess);
  server_.reset();
  kept_.clear();
  world_.run_for(10'000);
  EXPECT_EQ(sent->status.code(), StatusCode::kUnknown);
  const auto refused = call(c.get(), kEcho, "refused", 5 * kSecond, false);
  world_.run_for(10'000);
  EXPECT_EQ(refused->status.code(), StatusCode::kUnavailable);
  world_.restart(1);
  start_server({});
  ASSERT_TRUE(world_.run_until([&] { return connected_; }, 2 * kSecond));
  EXPECT_NE(server_life_, first_life);
}

TEST_F(Rpc, ANewConnectionOfAChannelReplacesTheOldOne) {
  const auto c = channel();
  world_.run_for(10'000);
  const auto old = call(c.get(), kKeep, "old", 20 * kSecond);
  world_.run_for(10'000);
  // The client gives up; the server knows nothing of it until the new connection is there (RS2).
  world_.set_blocked(1, 0, true);
  world_.pause(1, 3 * kSecond);
  ASSERT_TRUE(world_.run_until([&] { return !connected_; }, 2 * kSecond));
  EXPECT_EQ(old->status.code(), StatusCode::kUnknown);
  world_.set_blocked(1, 0, false);
  ASSERT_TRUE(world_.run_until([&] { return connected_; }, 5 * kSecond));
  world_.run_for(kSecond / 2);
  EXPECT_EQ(server_->connections(), 1u);
  kept_.clear();  // answers to the old connection go nowhere (RS3)
  world_.run_for(kSecond / 2);
  EXPECT_TRUE(connected_);
  EXPECT_EQ(c->counters().late_replies, 0u);
}

TEST_F(Rpc, AWrongSecretNeverConnects) {
  const auto c = channel({}, 'x');
  const auto outcome = call(c.get(), kEcho, "x", 3 * kSecond, false);
  world_.run_for(3 * kSecond);
  EXPECT_TRUE(is_wrong_secret(outcome->status)) << outcome->status;
  EXPECT_EQ(changes_, 0);
  EXPECT_TRUE(ran_.empty());
  EXPECT_GT(c->counters().refused(Refusal::kWrongSecret), 1u) << "and it keeps trying";
  EXPECT_LT(c->counters().refused(Refusal::kWrongSecret), 20u) << "with growing pauses";
  EXPECT_EQ(server_->connections(), 0u);
}

TEST_F(Rpc, TooManyWaitingCallsAreRefused) {
  ChannelOptions options;
  options.waiting_bytes_max = 10'000;
  const auto c = channel(options);
  const auto first = call(c.get(), kKeep, std::string(8000, 'x'));
  const auto second = call(c.get(), kKeep, std::string(8000, 'y'));
  world_.run_for(10'000);
  EXPECT_FALSE(first->ended);
  EXPECT_EQ(second->status.code(), StatusCode::kResourceExhausted);
  kept_.clear();
  world_.run_for(10'000);
  EXPECT_EQ(first->status.code(), StatusCode::kInternal) << "thrown away: RS3";
  const auto third = call(c.get(), kEcho, std::string(8000, 'z'));
  world_.run_for(10'000);
  EXPECT_TRUE(third->status.ok() && third->ended);
}

TEST_F(Rpc, WhatCannotBeCarriedIsRefused) {
  ChannelOptions options;
  options.limits.payload_bytes_max = 1000;
  const auto c = channel(options);
  const auto outcome = call(c.get(), kEcho, std::string(1001, 'x'));
  world_.run_for(10'000);
  EXPECT_EQ(outcome->status.code(), StatusCode::kInvalidArgument);
  std::string wanted(8, '\0');
  store_u64(wanted.data(), (16u << 20) + 1);
  const auto d = channel();
  const auto too_big = call(d.get(), kBig, wanted);
  const auto unknown = call(d.get(), 200, "");
  world_.run_for(10'000);
  EXPECT_TRUE(too_big->answered);
  EXPECT_EQ(too_big->status.code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(unknown->answered);
  EXPECT_TRUE(is_unsupported(unknown->status));
  for (const char* part : {"sim:1:1", "call 200", "; to do: "})
    EXPECT_NE(unknown->status.message().find(part), std::string::npos) << unknown->status;
}

TEST_F(Rpc, WhoLaysAMethodOutDifferentlyIsRefusedBeforeItIsRead) {  // RS7
  server_ = std::make_unique<RpcServer>(world_.world(1), test::secret_of('s'), ServerOptions{});
  const auto run = [this](const Request& request, Responder responder) {
    ran_.emplace_back(request.payload);
    responder.reply("");
  };
  server_->handle(kEcho, run, {"echo", 0x1234});
  server_->handle(kBig, run);
  ASSERT_TRUE(server_->listen("sim:1:1").ok());
  const auto c = channel();
  const auto asked = [&](uint16_t method, uint16_t layout) {
    auto outcome = std::make_shared<Outcome>();
    CallOptions options;
    options.method = method;
    options.deadline_us = world_.now_us() + kSecond;
    options.wait_for_connection = true;
    options.layout = layout;
    c->call(options, "payload", [outcome](const Reply& reply) {
      *outcome = {true, reply.answered, reply.status, std::string(reply.payload), 0};
    });
    world_.run_for(kSecond);
    EXPECT_TRUE(outcome->answered);
    return outcome->status;
  };
  EXPECT_TRUE(asked(kEcho, 0x1234).ok());
  EXPECT_TRUE(asked(kBig, 0).ok()) << "nothing is declared of it";
  EXPECT_EQ(ran_.size(), 2u);
  const int logged_before = logged;
  const Status other = asked(kEcho, 0x00ab);
  EXPECT_TRUE(is_unsupported(other)) << other;
  for (const char* part :
       {"sim:1:1", "call 1 (echo)", "1234 there", "00ab at the caller", "; to do: "})
    EXPECT_NE(other.message().find(part), std::string::npos) << other;
  EXPECT_EQ(logged, logged_before + 1);
  EXPECT_NE(asked(kEcho, 0).message().find("none told"), std::string::npos);
  EXPECT_TRUE(is_unsupported(asked(kBig, 7)));
  EXPECT_EQ(ran_.size(), 2u);
  EXPECT_EQ(server_->counters().other_layouts, 3u);
  EXPECT_EQ(server_->counters().of(kEcho).errors, 2u);
  EXPECT_TRUE(asked(kEcho, 0x1234).ok()) << "the connection goes on";
  EXPECT_EQ(server_->counters().connections_opened, 1u);
}

TEST_F(Rpc, AServerThatHasEnoughToDoReadsNoMore) {
  ServerOptions options;
  options.requests_in_progress_max = 3;
  start_server(options);
  const auto c = channel();
  std::vector<std::shared_ptr<Outcome>> outcomes;
  for (int i = 0; i < 10; i++) {
    outcomes.push_back(call(c.get(), kKeep, std::to_string(i), 60 * kSecond));
    world_.run_for(10'000);
  }
  EXPECT_EQ(ran_.size(), 3u);
  world_.run_for(5 * kSecond);
  EXPECT_TRUE(connected_) << "heartbeats come from a server that reads nothing; and it waits";
  while (!kept_.empty()) {
    std::vector<Responder> kept = std::exchange(kept_, {});
    for (Responder& responder : kept) responder.reply("done");
    world_.run_for(100'000);
  }
  for (size_t i = 0; i < outcomes.size(); i++) {
    EXPECT_EQ(ran_[i], std::to_string(i));
    EXPECT_EQ(outcomes[i]->payload, "done");
  }
}

// A peer that connects and says nothing, or what it is given to say.
struct Mute final : public StreamEvents {
  Mute(const World& world, std::string says) : says_(std::move(says)) {
    stream_ = world.network->connect("sim:1:1");
    stream_->start(this);
  }
  void on_open() override {
    const Bytes bytes = says_;
    if (!bytes.empty()) stream_->write({&bytes, 1}, -1);
  }
  void on_bytes(Bytes) override {}
  void on_writable() override {}
  void on_closed(const Status&) override { closed = true; }
  bool closed = false;

 private:
  const std::string says_;
  std::unique_ptr<Stream> stream_;
};

TEST_F(Rpc, ConnectionsAreLimited) {
  start_server({.connections_max = 2});
  const auto a = channel();
  const auto b = channel();
  world_.run_for(kSecond);
  EXPECT_EQ(server_->connections(), 2u);
  const auto d = channel();
  const auto refused = call(d.get(), kEcho, "x", kSecond, false);
  world_.run_for(kSecond);
  EXPECT_FALSE(refused->status.ok());
  EXPECT_EQ(server_->connections(), 2u);
  EXPECT_GT(server_->counters().refused(Refusal::kTooMany), 0u);
  const auto kept = call(a.get(), kEcho, "kept");
  world_.run_for(kSecond);
  EXPECT_TRUE(kept->status.ok()) << "RS5: an authenticated peer is not evicted";
  EXPECT_LE(logged, 8) << "refusals are logged at a limited rate";
  EXPECT_GT(logged, 0);
}

TEST_F(Rpc, ASilentPeerIsClosedInTime) {
  Mute silent(world_.world(0), "");
  world_.run_for(1'900'000);
  EXPECT_FALSE(silent.closed);
  world_.run_for(200'000);
  EXPECT_TRUE(silent.closed);
  EXPECT_EQ(server_->counters().refused(Refusal::kHandshakeTime), 1u);
}

// RS5: all places of the handshake are taken, by peers that come again as soon as they are thrown
// out, with nothing or half of a frame to say. A real one gets in at once all the same.
TEST_F(Rpc, SilentPeersDoNotKeepOthersOut) {
  constexpr uint32_t kPlaces = 8;
  start_server({.connections_max = 12, .unauthenticated_max = kPlaces});
  std::vector<std::unique_ptr<Mute>> crowd;
  const auto come_again = [&] {
    for (auto& one : crowd)
      if (one->closed) one = std::make_unique<Mute>(world_.world(0), "");
  };
  for (uint32_t i = 0; i < 2 * kPlaces; i++)
    crowd.push_back(std::make_unique<Mute>(world_.world(0), i % 2 == 0 ? "" : "STR"));
  world_.run_for(10'000);
  EXPECT_EQ(server_->connections(), kPlaces);
  const auto real = channel();
  const uint64_t began_us = world_.now_us();
  while (!connected_ && world_.now_us() < began_us + kSecond) {
    world_.run_for(1000);
    come_again();
  }
  EXPECT_TRUE(connected_);
  EXPECT_LT(world_.now_us() - began_us, 10'000u) << "at its first try";
  const auto answered = call(real.get(), kEcho, "x");
  for (int i = 0; i < 100; i++) {
    world_.run_for(1000);
    come_again();
  }
  EXPECT_TRUE(answered->status.ok() && answered->ended);
  EXPECT_LE(server_->connections(), 12u);
  EXPECT_GT(server_->counters().refused(Refusal::kTooMany), kPlaces);
}

TEST_F(Rpc, AChannelMayBeDestroyedInItsOwnCallbacks) {
  auto c = channel();
  bool called = false, called_again = false;
  CallOptions options{.method = kEcho, .deadline_us = world_.now_us() + kSecond};
  options.wait_for_connection = true;
  c->call(options, "x", [&](const Reply&) {
    called = true;
    c.reset();
  });
  c->call(options, "y", [&](const Reply&) { called_again = true; });
  world_.run_for(2 * kSecond);
  EXPECT_TRUE(called);
  EXPECT_FALSE(called_again);
  EXPECT_EQ(world_.connections(), 0u);
}

// A page of 16 KiB read over the modelled RDMA link takes what the papers measure, 8 us.
TEST(LinkSpeeds, APageOverRdmaTakesEightMicroseconds) {
  const auto speed = link_speed("rdma25g");
  ASSERT_TRUE(speed.ok());
  LinkModel link(*speed);
  EXPECT_NEAR(static_cast<double>(link.round_trip(0, 0, 16'384)), 8'285, 10);
  EXPECT_FALSE(link_speed("rdma").ok());
}

TEST_F(Rpc, ALinkModelAddsWhatTheRealPathDidNotTake) {
  ChannelOptions options;
  options.link_model = std::make_shared<LinkModel>(LinkSpeed{10'000'000, 1'000'000'000});
  const auto c = channel(options);
  world_.run_for(10'000);
  // The real path takes 200 us of the 10 ms.
  uint64_t begin_us = world_.now_us();
  const auto one = call(c.get(), kEcho, "x");
  world_.run_for(kSecond);
  EXPECT_NEAR(static_cast<double>(one->at_us - begin_us), 10'000, 10);
  // A megabyte each way at 1 GB/s; the server's own 50 ms count in addition.
  begin_us = world_.now_us();
  const auto two = call(c.get(), kKeep, std::string(1'000'000, 'x'));
  world_.run_for(50'000);
  kept_.clear();
  world_.run_for(kSecond);
  // They began when the request was really there, after a few milliseconds.
  EXPECT_GE(two->at_us - begin_us, 50'000u + 11'000u - 5'000u);
  EXPECT_LE(two->at_us - begin_us, 50'000u + 11'000u);
  // Ten at once share the bandwidth.
  begin_us = world_.now_us();
  std::vector<std::shared_ptr<Outcome>> many;
  for (int i = 0; i < 10; i++) many.push_back(call(c.get(), kEcho, std::string(100'000, 'x')));
  world_.run_for(kSecond);
  EXPECT_NEAR(static_cast<double>(many.back()->at_us - begin_us), 10'000 + 1'000 + 100, 300);
  // The deadline holds in modelled time.
  const auto late = call(c.get(), kEcho, "x", 9'000);
  world_.run_for(kSecond);
  EXPECT_EQ(late->status.code(), StatusCode::kUnknown);
}

}  // namespace
}  // namespace strata::transport
