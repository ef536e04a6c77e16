// Goal: no schedule of kills, pauses, cuts, lost replies and takeovers lets two memory nodes
// answer, gives a timestamp twice, makes a view miss what was acknowledged before it, change its
// mind, or lose what it may still read (FS1-FS6). And each rule is needed: with one broken some
// seed shows it. STRATA_SEED=n replays one, STRATA_ROUNDS=n runs so many.
#include "fusion_sim.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <random>

#include "base/diag.h"

namespace strata::sim {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr uint64_t kSeeds = 60;
#else
constexpr uint64_t kSeeds = 1000;
#endif
constexpr uint64_t kMutationSeedsMax = 3000;

TEST(FusionSim, ServersAndMemoryNodesKeepTheirPromises) {
  set_diag_sink([](Severity, std::string_view) {});
  const char* fixed = std::getenv("STRATA_SEED");
  const char* rounds = std::getenv("STRATA_ROUNDS");
  std::random_device entropy;
  const uint64_t first = fixed != nullptr ? std::strtoull(fixed, nullptr, 10) : entropy();
  uint64_t count = fixed != nullptr ? 1 : kSeeds;
  if (rounds != nullptr) count = std::strtoull(rounds, nullptr, 10);
  std::printf("seeds %llu to %llu\n", static_cast<unsigned long long>(first),
              static_cast<unsigned long long>(first + count - 1));
  FusionSim::Counts sum;
  for (uint64_t seed = first; seed < first + count && !::testing::Test::HasFailure(); ++seed) {
    FusionSim sim(seed, FusionMutation::kNone);
    EXPECT_EQ(sim.run(), "") << "STRATA_SEED=" << seed;
    const FusionSim::Counts& counts = sim.counts();
    sum.commits += counts.commits;
    sum.views += counts.views;
    sum.takeovers += counts.takeovers;
    sum.fences += counts.fences;
    sum.adopted += counts.adopted;
    sum.pauses += counts.pauses;
    sum.kills += counts.kills;
    sum.fetches += counts.fetches;
    sum.served += counts.served;
  }
  const auto per_seed = [count](uint64_t n) {
    return static_cast<double>(n) / static_cast<double>(count);
  };
  std::printf(
      "per seed: %.0f commits, %.0f views, %.1f takeovers, %.1f fences, %.1f adopted, %.1f pauses, "
      "%.1f kills, %.2f fetches per request\n",
      per_seed(sum.commits), per_seed(sum.views), per_seed(sum.takeovers), per_seed(sum.fences),
      per_seed(sum.adopted), per_seed(sum.pauses), per_seed(sum.kills),
      static_cast<double>(sum.fetches) / static_cast<double>(sum.served));
  if (count >= 100 && !::testing::Test::HasFailure()) {  // the schedules do what they are for
    EXPECT_GT(sum.commits, 100 * count);
    EXPECT_GT(sum.views, 100 * count);
    EXPECT_GT(sum.takeovers, 3 * count);
    EXPECT_GT(sum.fences, count);
    EXPECT_GT(sum.adopted, count / 2);
  }
}

struct Broken {
  FusionMutation rule;
  uint64_t first_seed =
      1;  // a little below the first that shows it, which may change with the code
};

class FusionSimMutation : public ::testing::TestWithParam<Broken> {};

TEST_P(FusionSimMutation, IsFound) {
  set_diag_sink([](Severity, std::string_view) {});
  const uint64_t first = GetParam().first_seed;
  for (uint64_t seed = first; seed < first + kMutationSeedsMax; ++seed) {
    FusionSim sim(seed, GetParam().rule);
    const std::string failure = sim.run();
    if (failure.empty()) continue;
    std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed), failure.c_str());
    return;
  }
  ADD_FAILURE() << "no seed shows it";
}

INSTANTIATE_TEST_SUITE_P(All, FusionSimMutation,
                         ::testing::Values(Broken{FusionMutation::kValueOfAnotherEpoch},
                                           Broken{FusionMutation::kMarkAfterFetch},
                                           Broken{FusionMutation::kSuccessorWithoutWait},
                                           Broken{FusionMutation::kLeaseFromTheReply, 60},
                                           Broken{FusionMutation::kHorizonBeforeRecord, 15},
                                           Broken{FusionMutation::kCeilingBeforeRecord, 350},
                                           Broken{FusionMutation::kTablesStayOpen},
                                           Broken{FusionMutation::kScanBeforeClock, 85}));

}  // namespace
}  // namespace strata::sim
