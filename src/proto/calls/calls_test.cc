// Goal: nodes of different builds are told apart call by call (MD2, MD3, RS7): what both lay out in
// the same way goes on, and nothing of another request reaches a handler. Method: two nodes of a
// simulated world; each method of methods.def served, and called by this build, by another one and
// by a caller that has forgotten to say.
#include "proto/calls/calls.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "base/diag.h"
#include "proto/calls/testing/other_build.h"
#include "proto/methods.h"
#include "transport/calls/channel.h"
#include "transport/calls/testing/connections.h"
#include "transport/sim/sim_world.h"

namespace strata::proto {
namespace {

using transport::CallOptions;
using transport::test::secret_of;

constexpr uint64_t kSecondUs = 1'000'000;

class Calls : public ::testing::Test {
 protected:
  Calls() {
    set_diag_sink([](Severity, std::string_view text) { logged += std::string(text) + "\n"; });
    logged.clear();
    world_.add_node();
    world_.add_node();
    server_ = std::make_unique<transport::RpcServer>(world_.world(1), secret_of('s'),
                                                     transport::ServerOptions{});
    for (const MethodTraits& method : all_methods())
      serve(server_.get(), method.method,
            [this](const transport::Request& request, transport::Responder responder) {
              ran_.insert(request.method);
              epoch_ = request.epoch;
              responder.reply("done");
            });
    EXPECT_TRUE(server_->listen("sim:1:1").ok());
    channel_ = std::make_unique<transport::Channel>(world_.world(0), secret_of('s'), "sim:1:1",
                                                    transport::ChannelOptions{});
  }
  ~Calls() override {
    channel_.reset();
    server_.reset();
    set_diag_sink(nullptr);
  }
  Status call(CallOptions call) {
    call.deadline_us = world_.now_us() + kSecondUs;
    call.wait_for_connection = true;
    Status result = error_internal("no answer");
    bool ended = false;
    channel_->call(call, "payload", [&](const transport::Reply& reply) {
      result = reply.status;
      EXPECT_TRUE(reply.answered);
      ended = true;
    });
    EXPECT_TRUE(world_.run_until([&] { return ended; }, 2 * kSecondUs));
    return result;
  }
  static std::string logged;
  transport::SimWorld world_{1};
  std::unique_ptr<transport::RpcServer> server_;
  std::unique_ptr<transport::Channel> channel_;
  std::set<uint16_t> ran_;
  uint64_t epoch_ = 0;
};
std::string Calls::logged;

TEST_F(Calls, ThoseOfTheSameBuildRun) {  // MD3
  for (const MethodTraits& method : all_methods()) {
    const CallOptions options = call_of(method.method, 1, Epoch{7});
    EXPECT_EQ(options.deadline_us, 1u);
    EXPECT_EQ(options.idempotent, may_repeat(method.method));
    EXPECT_EQ(options.layout, method.layout);
    EXPECT_TRUE(call(options).ok()) << method.name;
    EXPECT_EQ(epoch_, 7u);
  }
  EXPECT_EQ(ran_.size(), all_methods().size());
  EXPECT_EQ(server_->counters().other_layouts, 0u);
}

TEST_F(Calls, ThoseOfAnotherBuildAreRefusedAndNothingRuns) {  // RS7
  for (const MethodTraits& method : all_methods()) {
    const Status refused = call(testing::call_of_other_build(method.method, 1));
    EXPECT_TRUE(is_unsupported(refused)) << method.name << ": " << refused;
    const std::string told(refused.message());
    for (const std::string& part : {std::string(method.name), std::string("sim:1:1"),
                                    std::string("differently"), std::string("; to do: bring")})
      EXPECT_NE(told.find(part), std::string::npos) << told;
    EXPECT_EQ(server_->counters().of(method.method).errors, 1u);
  }
  EXPECT_TRUE(ran_.empty());
  EXPECT_EQ(server_->counters().other_layouts, all_methods().size());
  EXPECT_NE(logged.find("refused a call"), std::string::npos) << logged;
}

TEST_F(Calls, WhoForgetsToSayHowIsRefusedToo) {  // MD3
  for (const MethodTraits& method : all_methods()) {
    CallOptions options = call_of(method.method, 1);
    options.layout = 0;
    const Status refused = call(options);
    EXPECT_TRUE(is_unsupported(refused)) << method.name << ": " << refused;
    EXPECT_NE(refused.message().find("none told"), std::string::npos) << refused;
  }
  EXPECT_TRUE(ran_.empty());
}

// A rolling upgrade in which one call has changed: all others go on over the same connection.
TEST_F(Calls, OneThatHasChangedStopsNoOther) {
  EXPECT_TRUE(is_unsupported(call(testing::call_of_other_build(kFusionEvents, 1))));
  EXPECT_TRUE(call(call_of(kFusionRenew, 1)).ok());
  EXPECT_TRUE(is_unsupported(call(testing::call_of_other_build(kFusionEvents, 1))));
  EXPECT_TRUE(call(call_of(kLogAppend, 1)).ok());
  EXPECT_EQ(ran_, (std::set<uint16_t>{kFusionRenew, kLogAppend}));
  EXPECT_EQ(server_->counters().connections_opened, 1u);
}

}  // namespace
}  // namespace strata::proto
