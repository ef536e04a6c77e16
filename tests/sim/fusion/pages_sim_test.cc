// Goal: no schedule of kills, pauses, cuts, lost and repeated messages and late puts lets two
// servers use a page beside each other, loses a change, leaves a gap in the merged logs, cuts a log
// off too early, or leaves somebody waiting (FY1-FY6); over storage that compute writes to and over
// storage that replays. And each rule is needed: with one broken some seed shows it. STRATA_SEED=n
// replays one, STRATA_ROUNDS=n runs so many.
#include "pages_sim.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <random>

#include "base/diag.h"

namespace strata::sim {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr uint64_t kSeeds = 20;
#else
constexpr uint64_t kSeeds = 500;  // over each kind of storage
#endif
constexpr uint64_t kMutationSeedsMax = 2000;

TEST(PagesSim, ServersThatChangeTheSamePagesLoseNothing) {
  set_diag_sink([](Severity, std::string_view) {});
  const char* fixed = std::getenv("STRATA_SEED");
  const char* rounds = std::getenv("STRATA_ROUNDS");
  std::random_device entropy;
  const uint64_t first = fixed != nullptr ? std::strtoull(fixed, nullptr, 10) : entropy();
  uint64_t count = fixed != nullptr ? 1 : kSeeds;
  if (rounds != nullptr) count = std::strtoull(rounds, nullptr, 10);
  std::printf("seeds %llu to %llu\n", static_cast<unsigned long long>(first),
              static_cast<unsigned long long>(first + count - 1));
  for (const bool storage_replays : {false, true}) {
    PagesSim::Counts sum;
    for (uint64_t seed = first; seed < first + count && !::testing::Test::HasFailure(); ++seed) {
      PagesSim sim(seed, PagesMutation::kNone, storage_replays);
      EXPECT_EQ(sim.run(), "") << "STRATA_SEED=" << seed
                               << (storage_replays ? ", storage replays" : "");
      const PagesSim::Counts& counts = sim.counts();
      sum.reads += counts.reads;
      sum.changes += counts.changes;
      sum.given_up += counts.given_up;
      sum.gets += counts.gets;
      sum.stored_reads += counts.stored_reads;
      sum.fences += counts.fences;
      sum.redone += counts.redone;
      sum.published += counts.published;
      sum.dropped += counts.dropped;
    }
    const auto per_seed = [count](uint64_t n) {
      return static_cast<double>(n) / static_cast<double>(count);
    };
    std::printf(
        "per seed: %.0f reads, %.0f changes, %.0f given up, %.0f gets, %.0f from storage, %.1f "
        "fences, %.1f redone, %.0f published, %.1f dropped\n",
        per_seed(sum.reads), per_seed(sum.changes), per_seed(sum.given_up), per_seed(sum.gets),
        per_seed(sum.stored_reads), per_seed(sum.fences), per_seed(sum.redone),
        per_seed(sum.published), per_seed(sum.dropped));
    if (count >= 100 && !::testing::Test::HasFailure()) {  // the schedules do what they are for
      EXPECT_GT(sum.changes, 100 * count);
      EXPECT_GT(sum.given_up, 100 * count);
      EXPECT_GT(sum.gets, 50 * count);
      EXPECT_GT(sum.stored_reads, 5 * count);
      EXPECT_GT(sum.fences, count);
      if (!storage_replays) {
        EXPECT_GT(sum.redone, count / 8);
      }
      EXPECT_GT(sum.dropped, 3 * count);
    }
  }
}

struct BrokenPages {
  PagesMutation rule;
  bool storage_replays = false;
  uint64_t first_seed =
      1;  // a little below the first that shows it, which may change with the code
};

class PagesSimMutation : public ::testing::TestWithParam<BrokenPages> {};

TEST_P(PagesSimMutation, IsFound) {
  set_diag_sink([](Severity, std::string_view) {});
  const uint64_t first = GetParam().first_seed;
  for (uint64_t seed = first; seed < first + kMutationSeedsMax; ++seed) {
    PagesSim sim(seed, GetParam().rule, GetParam().storage_replays);
    const std::string failure = sim.run();
    if (failure.empty()) continue;
    std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed), failure.c_str());
    return;
  }
  ADD_FAILURE() << "no seed shows it";
}

INSTANTIATE_TEST_SUITE_P(
    All, PagesSimMutation,
    ::testing::Values(BrokenPages{PagesMutation::kGrantBeforePut},
                      BrokenPages{PagesMutation::kPutBeforeLog},
                      BrokenPages{PagesMutation::kConversion},
                      BrokenPages{PagesMutation::kUnnumberedGrant},
                      BrokenPages{PagesMutation::kFloorWithoutPositions, true},
                      BrokenPages{PagesMutation::kSlotsFreeBeforeTheMapping, false, 360},
                      BrokenPages{PagesMutation::kLostPutSlotReused, false, 35},
                      BrokenPages{PagesMutation::kReleaseWithoutRedo},
                      BrokenPages{PagesMutation::kReleaseWithoutEnd, true},
                      BrokenPages{PagesMutation::kReleaseBeforeTheLease, false, 100},
                      BrokenPages{PagesMutation::kCheckpointWithoutDirectory},
                      BrokenPages{PagesMutation::kCheckpointWithoutReports}));

}  // namespace
}  // namespace strata::sim
