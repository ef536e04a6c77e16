// Goal: no schedule of messages, crashes and pauses loses or changes an acknowledged byte (QS1-QS4,
// RC1-RC3, WR1-WR4, LG1-LG10). Method: log_quorum_sim.h, a thousand seeds (fewer with sanitizers).
// STRATA_SEED=n replays one, STRATA_ROUNDS=n runs so many.
#include "log_quorum_sim.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <random>

#include "base/diag.h"

namespace strata::sim {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr uint64_t kSeeds = 100;
#else
constexpr uint64_t kSeeds = 1000;
#endif

LogQuorumConfig config_of(uint64_t seed) {
  constexpr std::pair<uint32_t, uint32_t> kShapes[] = {{3, 2}, {3, 2}, {6, 4}, {5, 3}, {3, 3}};
  LogQuorumConfig config;
  const auto [replicas, quorum] = kShapes[seed % 5];
  config.replicas = replicas;
  config.write_quorum = quorum;
  config.drop_of_1000 = seed % 3 == 0 ? 0 : 30;
  config.delay_us_max = seed % 7 == 0 ? 10'000 : 1'000;
  config.faults_until_us = 150'000;
  return config;
}

TEST(LogQuorumSim, NoScheduleLosesAnAcknowledgedByte) {
  set_diag_sink([](Severity, std::string_view) {});
  const char* fixed = std::getenv("STRATA_SEED");
  const char* rounds = std::getenv("STRATA_ROUNDS");
  std::random_device entropy;
  const uint64_t first = fixed != nullptr ? std::strtoull(fixed, nullptr, 10) : entropy();
  const uint64_t count =
      rounds != nullptr ? std::strtoull(rounds, nullptr, 10) : (fixed != nullptr ? 1 : kSeeds);
  std::printf("seeds %llu to %llu\n", static_cast<unsigned long long>(first),
              static_cast<unsigned long long>(first + count - 1));
  LogQuorumSim::Counts sum;
  for (uint64_t seed = first; seed < first + count && !HasFailure(); ++seed) {
    LogQuorumSim sim(seed, config_of(seed));
    const std::string failure = sim.run();
    EXPECT_EQ(failure, "") << "STRATA_SEED=" << seed;
    sum.acknowledged_bytes += sim.counts().acknowledged_bytes;
    sum.recoveries += sim.counts().recoveries;
    sum.fenced += sim.counts().fenced;
    sum.crashes += sim.counts().crashes;
    sum.reads += sim.counts().reads;
  }
  // The schedules do what they are for.
  if (count >= 100 && !HasFailure()) {
    EXPECT_GT(sum.acknowledged_bytes / count, 500u);
    EXPECT_GT(sum.recoveries, count);
    EXPECT_GT(sum.fenced, count);
    EXPECT_GT(sum.crashes, count);
  }
  std::printf(
      "per seed: %.0f bytes acknowledged, %.1f recoveries, %.1f fenced, %.1f crashes, "
      "%.1f reads\n",
      static_cast<double>(sum.acknowledged_bytes) / static_cast<double>(count),
      static_cast<double>(sum.recoveries) / static_cast<double>(count),
      static_cast<double>(sum.fenced) / static_cast<double>(count),
      static_cast<double>(sum.crashes) / static_cast<double>(count),
      static_cast<double>(sum.reads) / static_cast<double>(count));
}

TEST(LogQuorumSim, ASeedRepeatsItself) {
  set_diag_sink([](Severity, std::string_view) {});
  uint64_t bytes[2];
  for (uint64_t& b : bytes) {
    LogQuorumSim sim(4711, config_of(4711));
    EXPECT_EQ(sim.run(), "");
    b = sim.counts().acknowledged_bytes;
  }
  EXPECT_EQ(bytes[0], bytes[1]);
}

}  // namespace
}  // namespace strata::sim
