// Goal: no schedule of kills, pauses, cuts, fences and lost, late and repeated messages lets a
// server use a table by an old definition, be at a space that is gone, or read a page that is
// something else (NY1-NY6). And each rule is needed: with one broken some seed shows it.
// STRATA_SEED=n replays one, STRATA_ROUNDS=n runs so many.
#include "names_sim.h"

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
constexpr uint64_t kMutationSeedsMax = 300;

TEST(NamesSim, DefinitionsSpacesAndPagesAreNobodysWhoHasAnOldOne) {
  set_diag_sink([](Severity, std::string_view) {});
  const char* fixed = std::getenv("STRATA_SEED");
  const char* rounds = std::getenv("STRATA_ROUNDS");
  std::random_device entropy;
  const uint64_t first = fixed != nullptr ? std::strtoull(fixed, nullptr, 10) : entropy();
  uint64_t count = fixed != nullptr ? 1 : kSeeds;
  if (rounds != nullptr) count = std::strtoull(rounds, nullptr, 10);
  std::printf("seeds %llu to %llu\n", static_cast<unsigned long long>(first),
              static_cast<unsigned long long>(first + count - 1));
  NamesSim::Counts sum;
  for (uint64_t seed = first; seed < first + count && !::testing::Test::HasFailure(); ++seed) {
    NamesSim sim(seed, NamesMutation::kNone);
    EXPECT_EQ(sim.run(), "") << "STRATA_SEED=" << seed;
    const NamesSim::Counts& counts = sim.counts();
    sum.uses += counts.uses;
    sum.changes += counts.changes;
    sum.given_up += counts.given_up;
    sum.in_use += counts.in_use;
    sum.not_held += counts.not_held;
    sum.timeouts += counts.timeouts;
    sum.drops += counts.drops;
    sum.rounds += counts.rounds;
    sum.fences += counts.fences;
    sum.undone += counts.undone;
    sum.dead += counts.dead;
    sum.shares += counts.shares;
    sum.shared_beside += counts.shared_beside;
  }
  const auto per_seed = [count](uint64_t n) {
    return static_cast<double>(n) / static_cast<double>(count);
  };
  std::printf(
      "per seed: %.0f uses, %.0f changes, %.0f names given up (%.1f were in use), %.1f grants not "
      "held, %.1f timeouts, %.0f spaces dropped, %.0f rounds, %.1f fences, %.1f names dead, %.1f "
      "changes undone, %.0f shares, %.0f beside others\n",
      per_seed(sum.uses), per_seed(sum.changes), per_seed(sum.given_up), per_seed(sum.in_use),
      per_seed(sum.not_held), per_seed(sum.timeouts), per_seed(sum.drops), per_seed(sum.rounds),
      per_seed(sum.fences), per_seed(sum.dead), per_seed(sum.undone), per_seed(sum.shares),
      per_seed(sum.shared_beside));
  if (count >= 100 && !::testing::Test::HasFailure()) {  // the schedules do what they are for
    EXPECT_GT(sum.uses, 50 * count);
    EXPECT_GT(sum.changes, 20 * count);
    EXPECT_GT(sum.given_up, 20 * count);
    EXPECT_GT(sum.not_held, count / 2);
    EXPECT_GT(sum.timeouts, count);
    EXPECT_GT(sum.drops, 10 * count);
    EXPECT_GT(sum.rounds, 10 * count);
    EXPECT_GT(sum.fences, count);
    EXPECT_GT(sum.dead, count / 5);
    EXPECT_GT(sum.undone, count / 10);
    EXPECT_GT(sum.shares, 10 * count);
    EXPECT_GT(sum.shared_beside, count);
  }
}

class NamesSimMutation : public ::testing::TestWithParam<NamesMutation> {};

TEST_P(NamesSimMutation, IsFound) {
  set_diag_sink([](Severity, std::string_view) {});
  for (uint64_t seed = 1; seed <= kMutationSeedsMax; ++seed) {
    NamesSim sim(seed, GetParam());
    const std::string failure = sim.run();
    if (failure.empty()) continue;
    std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed), failure.c_str());
    return;
  }
  ADD_FAILURE() << "no seed shows it";
}

INSTANTIATE_TEST_SUITE_P(
    All, NamesSimMutation,
    ::testing::Values(NamesMutation::kGivenUpBeforeForgotten, NamesMutation::kUnlockBeforePublish,
                      NamesMutation::kUnnumberedGrant, NamesMutation::kReleaseWithoutUndo,
                      NamesMutation::kReleaseBeforeTheLease, NamesMutation::kSaysLeftAtOnce,
                      NamesMutation::kReportWithoutMark, NamesMutation::kMarkOfAnEarlierRound));

}  // namespace
}  // namespace strata::sim
