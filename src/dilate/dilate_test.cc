// Goal: the pure parts do what their headers promise. Method: by hand, with times that are easy to
// compute, and files in a temporary folder.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "dilate/account.h"
#include "dilate/dilated_clock.h"
#include "dilate/node_file.h"
#include "dilate/settings.h"
#include "dilate/virtual_cores.h"

namespace strata::dilate {
namespace {

constexpr Factor kEight{8000};

TEST(DilatedClock, RunsSlowerFromItsOriginOn) {  // TD1
  const DilatedClock clock{kEight, 1'000};
  EXPECT_EQ(clock.shown(1'000), 1'000);
  EXPECT_EQ(clock.shown(9'000), 2'000);
  EXPECT_EQ(clock.shown(200), 900);  // before it, too
  EXPECT_EQ(clock.real_of(2'000), 9'000);
  const DilatedClock real{Factor{1000}, 77};
  EXPECT_EQ(real.shown(1'234'567), 1'234'567);
}

TEST(DilatedClock, WhoeverSleepsUntilThenReadsThenAfterwards) {  // TD2
  uint64_t seed = 1;
  for (int i = 0; i < 100'000; i++) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    const DilatedClock clock{Factor{1000 + (seed >> 40) % 900'000},
                             static_cast<int64_t>(seed >> 4 & 0xffffffffffff)};
    const auto wanted = clock.origin_ns + static_cast<int64_t>(seed >> 20) - (1 << 20);
    const int64_t real = clock.real_of(wanted);
    ASSERT_GE(clock.shown(real), wanted);
    ASSERT_LT(clock.shown(real - 1), wanted);
  }
}

TEST(DilatedClock, WhatIsTooFarAwayIsAsFarAsThereIs) {
  const DilatedClock clock{Factor{kFactorMilliMax}, 0};
  EXPECT_EQ(clock.real_of(INT64_MAX), INT64_MAX);
  EXPECT_EQ(stretched(INT64_MAX / 2, kEight), INT64_MAX);
  EXPECT_EQ(stretched(-1, kEight), -1);
  EXPECT_EQ(stretched(1, Factor{1500}), 2);
  EXPECT_EQ(shrunk(17, kEight), 2);
}

TEST(VirtualCores, TheOneThatIsFreeFirstIsTaken) {  // TD3
  std::array<std::atomic<int64_t>, 2> free_at{};
  const VirtualCores cores(free_at);
  EXPECT_EQ(cores.book(100, 50), 150);
  EXPECT_EQ(cores.book(100, 10), 110);
  EXPECT_EQ(cores.book(100, 10), 120);  // behind the shorter one
  EXPECT_EQ(cores.book(500, 10), 510);  // nothing is booked in the past
}

TEST(Account, OwesItsCpuTimeStretchedLessWhatHasPassed) {  // TD5
  NodeState node{};
  node.cores = 1;
  Account account;
  account.begin(1'000'000, 0);
  account.charge(100'000, 100'000, kEight, &node);
  EXPECT_EQ(account.due_ns, 1'800'000);
  EXPECT_EQ(account.sleep_until(1'100'000), 1'800'000);
  EXPECT_EQ(account.sleep_until(1'795'000), 0);
  EXPECT_EQ(node.booked_ns.load(), 800'000u);
  EXPECT_EQ(node.cpu_ns.load(), 100'000u);
}

TEST(Account, SmallDebtsAndLateSleepsMoveTheNextCharge) {  // TD6
  NodeState node{};
  node.cores = 1;
  Account account;
  account.begin(0, 0);
  for (int i = 1; i <= 100; i++) account.charge(1'000, i * 1'000, kEight, &node);
  EXPECT_EQ(account.due_ns, 800'000);
  account.woke(850'000, 100'000);  // late
  account.charge(10'000, 110'000, kEight, &node);
  EXPECT_EQ(account.due_ns, 880'000);
  EXPECT_EQ(node.late_ns.load(), 0u);
}

TEST(Account, LatenessIsCountedWhereItIsLost) {  // TD4
  NodeState node{};
  node.cores = 1;
  Account account;
  account.begin(0, 0);
  account.charge(100'000, 100'000, kEight, &node);  // due at 800'000
  account.waited(830'000, 835'000, &node);          // no wait: it may still catch up
  EXPECT_EQ(node.late_ns.load(), 0u);
  account.waited(840'000, 2'000'000, &node);
  EXPECT_EQ(node.late_ns.load(), 40'000u);
  EXPECT_EQ(account.due_ns, 2'000'000);
  account.bound_lateness(2'000'000 + kCarriedNsMax + 500, &node);
  EXPECT_EQ(node.late_ns.load(), 40'500u);
  EXPECT_EQ(node.late_ns_max.load(), 40'000u);
}

TEST(Account, AnotherThreadsClockIsNoDebt) {  // TD10
  Account account;
  account.begin(0, 5'000'000);
  EXPECT_LT(account.used_ns(40'000, 500), 0);
  EXPECT_EQ(account.used_ns(5'000'200, 500), 0);
  EXPECT_EQ(account.used_ns(5'010'000, 500), 9'500);
}

TEST(Settings, WithoutAFactorNothingIsDilated) {
  const Reading reading = read_settings({.cores = "nonsense"});
  EXPECT_FALSE(reading.settings.has_value());
  EXPECT_EQ(reading.problem, "");
}

TEST(Settings, AreReadWholeOrRefused) {
  const Reading good =
      read_settings({.factor = "2.5", .cores = "4", .shared = "/tmp/x", .origin = "12:34"});
  ASSERT_TRUE(good.settings.has_value()) << good.problem;
  EXPECT_EQ(good.settings->factor.milli, 2500u);
  EXPECT_EQ(good.settings->cores, 4u);
  EXPECT_EQ(good.settings->origin->realtime_ns, 34);
  for (const char* factor : {"0.5", "1001", "x", "-3", "2.", ".5", "1.2345", "8 ", "1e2"})
    EXPECT_NE(read_settings({.factor = factor, .cores = "1"}).problem, "") << factor;
  for (const char* cores : {"0", "65", "", "two", "1.5", "-1"})
    EXPECT_NE(read_settings({.factor = "2", .cores = cores}).problem, "") << cores;
  EXPECT_NE(read_settings({.factor = "2"}).problem, "");
  for (const char* origin : {"", "1", "1:", ":1", "1:2:3", "-1:5"})
    EXPECT_NE(read_settings({.factor = "2", .cores = "1", .origin = origin}).problem, "") << origin;
}

class NodeFile : public testing::Test {
 protected:
  NodeFile() { settings_.shared = testing::TempDir() + "dilate-" + std::to_string(::getpid()); }
  ~NodeFile() override { ::unlink(settings_.shared.c_str()); }
  Settings settings_{.factor = kEight, .cores = 2, .shared = "", .origin = {}};
};

TEST_F(NodeFile, IsMadeOnceAndSharedByAll) {  // TD7
  const MappedNode first = map_node(settings_, {100, 200});
  ASSERT_NE(first.state, nullptr) << first.problem;
  const pid_t child = ::fork();
  if (child == 0) {
    const MappedNode second = map_node(settings_, {999, 999});
    if (second.state != nullptr) second.state->free_at_ns[1] = second.state->origin_monotonic_ns;
    ::_exit(second.state == nullptr ? 1 : 0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(first.state->free_at_ns[1].load(), 100);
}

TEST_F(NodeFile, OfAnotherNodeIsRefused) {  // TD7
  ASSERT_NE(map_node(settings_, {1, 2}).state, nullptr);
  Settings other = settings_;
  other.cores = 3;
  EXPECT_NE(map_node(other, {1, 2}).problem, "");
  other = settings_;
  other.origin = Origin{5, 6};
  EXPECT_NE(map_node(other, {1, 2}).problem, "");
  std::ofstream(settings_.shared) << "something else";
  EXPECT_NE(map_node(settings_, {1, 2}).problem, "");
  std::ofstream(settings_.shared) << std::string(sizeof(NodeState), 'x');
  EXPECT_NE(map_node(settings_, {1, 2}).problem, "");
}

}  // namespace
}  // namespace strata::dilate
