// Goal: programs under the preloaded library behave as they would on the emulated machine, where
// theory says how that is. Method: testing/probe.cc is run with the library; what it says is
// compared with formulas. On a machine that is busy with something else runs are late: the library
// knows (TD4), and such a run is repeated, and at last skipped, never failed. Programs that use an
// eighth of a core go before others where that is allowed.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "dilate/node_file.h"

namespace strata::dilate {
namespace {

constexpr double kLateShareMax = 0.03;
constexpr double kAllowed = 0.05;
constexpr int kTries = 2;
constexpr unsigned kSecondsMax = 20;

using Said = std::map<std::string, double>;
using Variables = std::map<std::string, std::string>;

struct Outcome {
  int status = -1;
  std::string text;
  Said said;
};

std::string scratch(const std::string& name) {
  return testing::TempDir() + "strata-dilate-" + std::to_string(::getpid()) + "-" + name;
}

// An emulated node: its file, gone afterwards.
class Node {
 public:
  Node(const std::string& name, const std::string& factor, int cores)
      : path_(scratch(name)),
        variables_{{"STRATA_DILATE_FACTOR", factor},
                   {"STRATA_DILATE_CORES", std::to_string(cores)},
                   {"STRATA_DILATE_SHARED", path_},
                   {"LD_PRELOAD", STRATA_DILATE_LIBRARY}} {}
  ~Node() { ::unlink(path_.c_str()); }
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  [[nodiscard]] const Variables& variables() const { return variables_; }
  [[nodiscard]] uint64_t counted(std::atomic<uint64_t> NodeState::*counter) const {
    const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    EXPECT_GE(fd, 0) << path_;
    if (fd < 0) return 0;
    void* const memory = ::mmap(nullptr, sizeof(NodeState), PROT_READ, MAP_SHARED, fd, 0);
    ::close(fd);
    EXPECT_NE(memory, MAP_FAILED);
    const uint64_t value = (static_cast<const NodeState*>(memory)->*counter).load();
    ::munmap(memory, sizeof(NodeState));
    return value;
  }
  [[nodiscard]] double late_share() const {
    return static_cast<double>(counted(&NodeState::late_ns)) /
           std::max(1.0, static_cast<double>(counted(&NodeState::booked_ns)));
  }

 private:
  std::string path_;
  Variables variables_;
};

// A program that runs; what it writes is in a file.
class Running {
 public:
  Running(const std::string& name, const Variables& variables, std::vector<std::string> words)
      : out_(scratch(name + ".out")) {
    words.insert(words.begin(), STRATA_DILATE_PROBE);
    pid_ = ::fork();
    if (pid_ == 0) run(variables, words);
  }

  Outcome end() {
    Outcome outcome;
    ::waitpid(pid_, &outcome.status, 0);
    std::ifstream file(out_);
    std::stringstream text;
    text << file.rdbuf();
    outcome.text = text.str();
    std::string key;
    for (double value = 0; text >> key >> value;) outcome.said[key] = value;
    ::unlink(out_.c_str());
    return outcome;
  }

 private:
  void run(const Variables& variables, std::vector<std::string>& words) const {
    const int file = ::open(out_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ::dup2(file, STDOUT_FILENO);
    ::dup2(file, STDERR_FILENO);
    for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    const sched_param first{.sched_priority = 1};
    static_cast<void>(::sched_setscheduler(0, SCHED_FIFO, &first));  // not every user may
    ::alarm(kSecondsMax);  // of real time: set before the library is there
    ::execv(arguments[0], arguments.data());
    ::_exit(127);
  }

  std::string out_;
  pid_t pid_ = -1;
};

Outcome run(const Variables& variables, const std::vector<std::string>& words) {
  return Running(words[0], variables, words).end();
}

// Until a measurement is not void. None: the machine is too busy.
template <class Measure>
auto measured(Measure&& measure) -> decltype(measure()) {
  for (int i = 0; i < kTries; i++)
    if (auto found = measure()) return found;
  return std::nullopt;
}
#define STRATA_SKIP_IF_VOID(found) \
  if (!(found)) GTEST_SKIP() << "the machine is too busy: every run was late"

// Transactions a second of a closed loop with exponential times and k processors.
double closed_loop(int clients, int cores, double service_s, double pause_s) {
  double weight = 1;
  double weights = 1;
  double rate = 0;
  for (int n = 1; n <= clients; n++) {
    const double served = std::min(n, cores) / service_s;
    weight *= (clients - n + 1) / pause_s / served;
    weights += weight;
    rate += weight * served;
  }
  return rate / weights;
}

TEST(KnownAnswers, TheFormulaGivesWhatIsWrittenOfIt) {
  EXPECT_NEAR(closed_loop(1, 1, 200e-6, 300e-6), 2000, 1);
  EXPECT_NEAR(closed_loop(2, 1, 200e-6, 300e-6), 3448, 1);
  EXPECT_NEAR(closed_loop(4, 1, 200e-6, 300e-6), 4760, 1);
}

void expect_closed_loop(int clients, int cores) {
  const auto said = measured([&]() -> std::optional<Said> {
    const Node node("loop", "8", cores);
    Outcome outcome = run(node.variables(), {"loop", std::to_string(clients), "200", "300", "0.6"});
    EXPECT_EQ(outcome.status, 0) << outcome.text;
    if (outcome.status != 0 || node.late_share() > kLateShareMax) return std::nullopt;
    // What there is beside the bursts is work of the node, too: by the library's own count.
    const double cpu_us = static_cast<double>(node.counted(&NodeState::cpu_ns)) / 1e3;
    const double service_us = cpu_us / outcome.said.at("cycles");
    EXPECT_GE(service_us, outcome.said.at("service_us") * 0.98);
    if (service_us > outcome.said.at("service_us") * 1.3) return std::nullopt;
    outcome.said["service_us"] = service_us;
    return outcome.said;
  });
  STRATA_SKIP_IF_VOID(said);
  const double theory =
      closed_loop(clients, cores, said->at("service_us") / 1e6, said->at("pause_us") / 1e6);
  EXPECT_NEAR(said->at("rate") / theory, 1, kAllowed)
      << said->at("rate") << " instead of " << theory << " with services of "
      << said->at("service_us") << " us and pauses of " << said->at("pause_us") << " us";
}
TEST(KnownAnswers, OneClientIsSlowedDownAndNotOnlyCapped) { expect_closed_loop(1, 1); }
TEST(KnownAnswers, FourClientsQueueForOneCore) { expect_closed_loop(4, 1); }
TEST(KnownAnswers, FourClientsQueueForTwoCores) { expect_closed_loop(4, 2); }

TEST(KnownAnswers, EveryWayToWaitTakesEmulatedTime) {
  constexpr double kFactor = 6;
  constexpr double kWaitS = 0.04;
  const auto said = measured([&]() -> std::optional<Said> {
    const Node node("sleeps", "6", 4);
    const Outcome outcome = run(node.variables(), {"sleeps"});
    EXPECT_EQ(outcome.status, 0) << outcome.text;
    if (outcome.status != 0) return std::nullopt;
    for (const auto& [name, value] : outcome.said)
      if (name.ends_with(".real") &&
          value > (name.starts_with("real_") ? 1 : kFactor) * kWaitS + 0.1)
        return std::nullopt;
    return outcome.said;
  });
  STRATA_SKIP_IF_VOID(said);
  ASSERT_GE(said->size(), 3 * 27u);
  for (const auto& [name, value] : *said) {
    const bool is_real = name.starts_with("real_");
    const bool by_real_clock = name.ends_with(".real");
    const double expected =
        kWaitS * (is_real ? (by_real_clock ? 1 : 1 / kFactor) : (by_real_clock ? kFactor : 1));
    EXPECT_GE(value, expected * 0.995) << name;
    EXPECT_LE(value, expected + (by_real_clock ? 0.1 : 0.1 / kFactor)) << name;
  }
}

TEST(KnownAnswers, TwoNodesThatCallEachOtherTakeTheSumOfTheirTimes) {
  constexpr int kCycles = 250;
  const std::string cycles = std::to_string(kCycles);
  const auto ratio = measured([&]() -> std::optional<double> {
    const Node caller("caller", "8", 1);
    const Node server("server", "8", 1);
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
    Running serving("serve", server.variables(), {"serve", std::to_string(ends[0]), cycles, "150"});
    Running calling("call", caller.variables(), {"call", std::to_string(ends[1]), cycles, "100"});
    ::close(ends[0]);
    ::close(ends[1]);
    const Outcome called = calling.end();
    const Outcome served = serving.end();
    EXPECT_EQ(called.status, 0) << called.text;
    EXPECT_EQ(served.status, 0) << served.text;
    if (called.status != 0 || served.status != 0) return std::nullopt;
    if (caller.late_share() > kLateShareMax || server.late_share() > kLateShareMax)
      return std::nullopt;
    const auto cpu_ns = caller.counted(&NodeState::cpu_ns) + server.counted(&NodeState::cpu_ns);
    return called.said.at("cycle_us") / (static_cast<double>(cpu_ns) / 1e3 / kCycles);
  });
  STRATA_SKIP_IF_VOID(ratio);
  // Whoever waits goes to sleep while the other works already: that part of its time is not added.
  EXPECT_NEAR(*ratio, 1, 2 * kAllowed);
}

TEST(KnownAnswers, AModelledLinkTakesItsOwnTimeAndSleeps) {
  constexpr double kLinkUs = 300 + 100;  // there and back, and the time that the bytes take
  const auto cycle_us = measured([&]() -> std::optional<double> {
    const Node node("link", "8", 1);
    const Outcome outcome = run(node.variables(), {"link", "10g", "125000", "100"});
    EXPECT_EQ(outcome.status, 0) << outcome.text;
    if (outcome.status != 0) return std::nullopt;
    // A tenth of what a wait by yielding would be charged.
    EXPECT_LT(static_cast<double>(node.counted(&NodeState::cpu_ns)) / 100 / 1e3, 48);
    const double found_us = outcome.said.at("cycle_us");
    return found_us > 2 * kLinkUs ? std::nullopt : std::optional(found_us);
  });
  STRATA_SKIP_IF_VOID(cycle_us);
  EXPECT_GE(*cycle_us, kLinkUs);
  EXPECT_LE(*cycle_us, kLinkUs * (1 + 2 * kAllowed));
}

TEST(Preload, ALongBurstIsChargedWhileItLasts) {
  const auto found = measured([]() -> std::optional<std::pair<Said, uint64_t>> {
    const Node node("burst", "4", 1);
    const Outcome outcome = run(node.variables(), {"burst", "50000"});
    EXPECT_EQ(outcome.status, 0) << outcome.text;
    if (outcome.status != 0 || outcome.said.at("elapsed_us") > 70'000) return std::nullopt;
    return std::pair{outcome.said, node.counted(&NodeState::slices)};
  });
  STRATA_SKIP_IF_VOID(found);
  EXPECT_GE(found->second, 4u);  // every 5 ms and up to a tick of the kernel's
  EXPECT_GE(found->first.at("elapsed_us"), 35'000);
}

TEST(Preload, ChildrenAndThreadsAreChargedWhateverTheyBlock) {
  const Node node("children", "2", 2);
  const Outcome outcome = run(node.variables(), {"children"});
  ASSERT_EQ(outcome.status, 0) << outcome.text;
  EXPECT_EQ(outcome.said.at("child"), 0) << outcome.text;
  EXPECT_EQ(outcome.said.at("shell"), 7) << outcome.text;
  EXPECT_GE(node.counted(&NodeState::programs), 2u);
  EXPECT_GE(node.counted(&NodeState::cpu_ns), 29'000'000u);
  EXPECT_LE(node.counted(&NodeState::cpu_ns), 80'000'000u);
  EXPECT_GE(node.counted(&NodeState::slices), 3u);
}

TEST(Preload, WithoutSettingsNothingChanges) {
  const Outcome outcome = run({{"LD_PRELOAD", STRATA_DILATE_LIBRARY}}, {"children"});
  EXPECT_EQ(outcome.status, 0) << outcome.text;
  EXPECT_EQ(outcome.said.at("shell"), 7) << outcome.text;
  const Outcome computed = run({{"LD_PRELOAD", STRATA_DILATE_LIBRARY}}, {"burst", "1000"});
  EXPECT_GE(computed.said.at("elapsed_us"), 1000);
}

TEST(Preload, WrongSettingsEndTheProgramWithOneLine) {
  const auto refused = [](const std::string& name, const std::string& value) {
    const Node node("wrong", "2", 1);
    Variables variables = node.variables();
    variables[name] = value;
    const Outcome outcome = run(variables, {"burst", "1"});
    EXPECT_EQ(WEXITSTATUS(outcome.status), 78);
    EXPECT_EQ(std::count(outcome.text.begin(), outcome.text.end(), '\n'), 1) << outcome.text;
    EXPECT_NE(outcome.text.find(name), std::string::npos) << outcome.text;
  };
  refused("STRATA_DILATE_FACTOR", "fast");
  refused("STRATA_DILATE_CORES", "0");
  refused("STRATA_DILATE_ORIGIN", "today");
  refused("STRATA_DILATE_SHARED", "/nowhere/at/all");
  refused("STRATA_DILATE_SHARED", "/etc/passwd");
}

}  // namespace
}  // namespace strata::dilate
