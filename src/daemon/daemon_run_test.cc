// A daemon from its start to its end, in a process of its own: what it says, to whom, in which
// order, and with which code it ends.
#include <gtest/gtest.h>

#include <regex>

#include "daemon/run.h"
#include "daemon/testing/child.h"

namespace strata::daemon {
namespace {

using testing::Child;

struct Behaviour {
  std::optional<Failure> prepare = std::nullopt;
  Status open = ok_status();
  bool waits_in_open = false;  // until it is stopped
  bool hangs_in_stop = false;
};

// Says on standard error what it is told to do.
class ScriptedDaemon final : public Daemon, public StatusSource {
 public:
  explicit ScriptedDaemon(Behaviour behaviour) : behaviour_(std::move(behaviour)) {}
  ~ScriptedDaemon() override { log_event(Level::kInfo, "gone"); }
  std::optional<Failure> prepare() override { return behaviour_.prepare; }
  [[nodiscard]] std::vector<Field> about() const override { return {{"name", "x"}}; }
  StatusOr<std::string> open(const Surroundings& around) override {
    if (behaviour_.waits_in_open) {
      log_event(Level::kInfo, "waiting");
      around.stop->wait();
      return error_interrupted("stopped while waiting");
    }
    STRATA_RETURN_IF_ERROR(behaviour_.open);
    if (around.files == nullptr || around.disk_for_tests || around.descriptors.rpc == 0)
      return error_internal("it has not what it needs");
    return "tcp:127.0.0.1:7";
  }
  [[nodiscard]] const StatusSource* status() const override { return this; }
  void stop() override {
    log_event(Level::kInfo, "stops");
    for (; behaviour_.hangs_in_stop;) ::pause();
  }
  [[nodiscard]] Status health() const override { return ok_status(); }
  [[nodiscard]] std::string metrics() const override { return ""; }
  [[nodiscard]] std::string status_json() const override { return ""; }

 private:
  const Behaviour behaviour_;
};

int run(const Behaviour& behaviour, const RunOptions& options) {
  return run_daemon(options, std::make_unique<ScriptedDaemon>(behaviour));
}

const RunOptions kLogged{.program = "scripted", .log = Level::kInfo, .http = HostPort{}};
const RunOptions kQuiet{.program = "scripted"};

std::string event_of(const std::string& line) { return line.substr(line.find(' ') + 1); }

RunOptions with_http() {
  RunOptions options = kLogged;
  options.http = HostPort{"127.0.0.1", 0};
  return options;
}

TEST(RunDaemon, SaysReadyWhenItServesAndStopsInGoodOrder) {  // DM7, DM9
  Child child([] { return run({}, with_http()); });
  const std::regex ready(R"(ready address=127\.0\.0\.1:7 http=127\.0\.0\.1:[1-9]\d*)");
  const std::string said = child.line();
  EXPECT_TRUE(std::regex_match(said, ready)) << said;
  EXPECT_EQ(event_of(child.error_line()), "info starting name=x");
  EXPECT_EQ(event_of(child.error_line()), "info " + said);
  child.signal(SIGTERM);
  EXPECT_EQ(event_of(child.error_line()), "info stopping signal=15");
  EXPECT_EQ(event_of(child.error_line()), "info stops");
  EXPECT_EQ(event_of(child.error_line()), "info stopped");
  EXPECT_EQ(event_of(child.error_line()), "info gone");
  EXPECT_EQ(child.rest(), "");
  EXPECT_EQ(child.ended(), 0);
}

TEST(RunDaemon, AStartThatIsStoppedIsACleanEnd) {  // DM8
  Child child([] { return run({.waits_in_open = true}, with_http()); });
  EXPECT_EQ(event_of(child.error_line()), "info starting name=x");
  EXPECT_EQ(event_of(child.error_line()), "info waiting");
  child.signal(SIGINT);
  EXPECT_EQ(event_of(child.error_line()), "info stopping signal=2");
  EXPECT_EQ(event_of(child.error_line()), "info stopped reason=\"while starting\"");
  EXPECT_EQ(child.rest(), "") << "it was never ready";
  EXPECT_EQ(child.ended(), 0);
}

TEST(RunDaemon, WhatFailsIsSaidWithItsRemedy) {
  struct Case {
    Behaviour behaviour;
    const char* event;
    int exit_code;
  };
  const Case cases[] = {
      {{.prepare = Failure{"no_secret", error_invalid_argument("why; to do: this")}},
       "no_secret",
       kFailed},
      {{.prepare = failure_of("no_registry", error_invalid_argument("why; to do: this"))},
       "no_registry",
       kUsage},
      {{.open = error_in_use("why; to do: this")}, "start_failed", kFailed},
      {{.open = error_invalid_argument("why; to do: this")}, "start_failed", kUsage},
      {{.open = error_interrupted("why; to do: this")}, "start_failed", kFailed},
  };
  for (const Case& one : cases) {
    Child child([&] { return run(one.behaviour, with_http()); });
    EXPECT_EQ(child.rest(), "");
    const std::string wanted = std::string("error ") + one.event + " reason=\"why; to do: this\"";
    std::string line = event_of(child.error_line());
    if (line == "info starting name=x") line = event_of(child.error_line());
    EXPECT_EQ(line, wanted);
    EXPECT_EQ(child.ended(), one.exit_code) << one.event;
  }
}

TEST(RunDaemon, AnAddressForHttpThatCannotBeIsSaid) {
  RunOptions options = kLogged;
  options.http = HostPort{"192.168.255.254", 1};  // not of this machine
  Child child([&] { return run({}, options); });
  EXPECT_NE(child.error_rest().find(" error no_http reason="), std::string::npos);
  EXPECT_EQ(child.rest(), "");
  EXPECT_NE(child.ended(), 0);
}

TEST(RunDaemon, WithoutALogOnlyFailuresAreSaid) {
  Child good([] { return run({}, kQuiet); });
  EXPECT_EQ(good.line(), "ready address=127.0.0.1:7");
  good.signal(SIGTERM);
  EXPECT_EQ(good.error_rest(), "");
  EXPECT_EQ(good.ended(), 0);
  Child bad([] { return run({.open = error_in_use("why; to do: this")}, kQuiet); });
  EXPECT_EQ(bad.error_rest(), "scripted: why; to do: this\n");
  EXPECT_EQ(bad.rest(), "");
  EXPECT_EQ(bad.ended(), kFailed);
}

TEST(RunDaemon, AStopEndsInTime) {  // DM10
  RunOptions options = kQuiet;
  options.stop_us_max = 50'000;
  Child child([&] { return run({.hangs_in_stop = true}, options); });
  EXPECT_EQ(child.line(), "ready address=127.0.0.1:7");
  child.signal(SIGTERM);
  const std::string said = child.error_rest();
  EXPECT_EQ(said.find("scripted: it did not stop within 50000 us"), 0u) << said;
  EXPECT_EQ(child.ended(), kFailed);
}

TEST(RunDaemon, ASecondSignalEndsAStopThatHangs) {
  Child child([] { return run({.hangs_in_stop = true}, kQuiet); });
  EXPECT_EQ(child.line(), "ready address=127.0.0.1:7");
  child.signal(SIGTERM);
  child.signal(SIGINT);
  EXPECT_EQ(child.ended(), kSecondSignal);
}

}  // namespace
}  // namespace strata::daemon
