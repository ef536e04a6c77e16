// Random transactions against the oracle of testing/row_model.h, without crashes. Seeds are
// printed; STRATA_SEED and STRATA_ROUNDS choose others.
#include "row/testing/row_model.h"

#include "base/testing/sanitized.h"

namespace strata {
namespace {

using namespace testing;  // NOLINT: test helpers

TEST(RowModel, EveryReadAndEveryConflictIsAsTheOracleSays) {
  const uint64_t first = environment_number("STRATA_SEED", 1);
  const uint64_t rounds =
      environment_number("STRATA_ROUNDS", strata::testing::fewer_if_sanitized(6, 4));
  for (uint64_t seed = first; seed < first + rounds && !HasFailure(); ++seed) {
    SCOPED_TRACE("STRATA_SEED=" + std::to_string(seed));
    std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
    MiniOptions options;
    // A small window of the TIT sends look-ups to the status pages.
    options.tit_slots = seed % 2 == 0 ? 1u << 16 : 64;
    RowModel model(seed, 2 + seed % 4, options);
    model.open();
    for (int phase = 0; phase < 4 && !HasFailure(); ++phase) {
      for (int i = 0; i < 2500 && !HasFailure(); ++i) model.step();
      if (HasFailure()) break;
      model.end_all();
      model.check_quiet();
    }
  }
}

}  // namespace
}  // namespace strata
