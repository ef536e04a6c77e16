// The model of testing/row_model.h on a disk that loses or tears what was not synced. Crashes come
// at random moments and inside the named fault points; after each restart acknowledged commits are
// there, no other transaction has left anything, and no page is lost.
#include "base/fault.h"
#include "base/testing/sanitized.h"
#include "row/testing/row_model.h"

namespace strata {
namespace {

using namespace testing;  // NOLINT: test helpers

SimFileSystem* crashing_disk = nullptr;
uint64_t crash_seed = 0;

void crash_now(FaultPoint) {
  if (RowModel::crashed()) return;
  RowModel::crashed() = true;
  crashing_disk->crash(crash_seed);
}

void arm(RowModel* model) {
  RowModel::crashed() = false;
  crashing_disk = model->disk();
  crash_seed = model->rng()->next();
  disarm_faults();
  set_fault_crash_handler(&crash_now);
  if (model->rng()->one_in(4)) return;
  FaultPoint point = FaultPoint::count;
  do {  // those of storage nodes are not passed here
    point = static_cast<FaultPoint>(model->rng()->below(static_cast<uint64_t>(FaultPoint::count)));
  } while (fault_point_name(point).starts_with("node_"));
  arm_fault(std::string(fault_point_name(point)) + ":" +
            std::to_string(1 + model->rng()->below(40)));
}

TEST(RowCrashModel, AcknowledgedCommitsSurviveAndNothingElseDoes) {
  const uint64_t first = environment_number("STRATA_SEED", 1);
  const uint64_t rounds =
      environment_number("STRATA_ROUNDS", strata::testing::fewer_if_sanitized(5, 3));
  for (uint64_t seed = first; seed < first + rounds && !HasFailure(); ++seed) {
    SCOPED_TRACE("STRATA_SEED=" + std::to_string(seed));
    std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
    MiniOptions options;
    options.tit_slots = seed % 2 == 0 ? 1u << 16 : 64;
    RowModel model(seed, 4, options);
    model.open();
    for (int life = 0; life < 8 && !HasFailure(); ++life) {
      arm(&model);
      const uint64_t steps = 100 + model.rng()->below(1200);
      for (uint64_t i = 0; i < steps && !RowModel::crashed() && !HasFailure(); ++i) {
        model.step();
        if (!RowModel::crashed() && model.rng()->one_in(300)) (void)model.kernel()->checkpoint();
      }
      if (!RowModel::crashed()) crash_now(FaultPoint::count);
      disarm_faults();
      if (HasFailure()) break;
      model.reopen();
      if (HasFailure()) break;
      model.check_quiet();
    }
  }
  disarm_faults();
}

}  // namespace
}  // namespace strata
