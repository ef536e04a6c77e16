// Goal: WN1-WN7 (write_sessions.h) whatever happens to messages, storage nodes, the registry and
// the placement, in any order. Method: hundreds of short lives of a compute node, each by a seed
// (STRATA_SEED, STRATA_ROUNDS), in one thread without waiting, with an oracle that looks after
// each step (testing/write_sessions_model.h).
// What it is able to find was tried out by taking a rule out of the code. It finds, with its 400
// seeds, that
// - WN1: a node that missed a call stays in sync; a call is OK below the write quorum
// - WN2: a sync is OK though the list was not written, or before it is; the list names a node that
//   still copies
// - WN3: no new session after a call that nobody answered; a new session that is not used
// - WN4: a forgotten session counts as known; nothing is told again, or while calls are under way;
//   calls are not remembered, or forgotten by a sync that did not cover them; what another process
//   wrote is not told again (UP3)
// - WN5: in sync without a sync of its own, before the copy is done, or though a call was missed
//   meanwhile; a copy that does not wait for calls of before; a return without the list
// - WN6: new nodes count at once, nodes without a place go on counting, the old write quorum stays;
//   nobody is in sync and the work does not end
// - WN7: the node that leaves counts
// It does not find what only makes things slower or less redundant: calls that begin while sessions
// are asked for (nodes refuse them), fewer nodes than a write quorum that are told again.
#include <gtest/gtest.h>

#include <cstdlib>

#include "clients/storage/testing/write_sessions_model.h"

namespace strata::clients::testing {
namespace {

uint64_t number_from(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

TEST(WriteSessionsSim, NothingAcknowledgedIsMissingWhereItIsReliedOn) {
  const uint64_t first = number_from("STRATA_SEED", 1);
  const uint64_t rounds = number_from("STRATA_ROUNDS", 400);
  WriteSessionsModel::Seen all;
  for (uint64_t seed = first; seed < first + rounds; ++seed) {
    WriteSessionsModel model(seed);
    model.run(1500);
    ASSERT_EQ(model.fault(), "") << "STRATA_SEED=" << seed << " STRATA_ROUNDS=1";
    const WriteSessionsModel::Seen& seen = model.seen();
    all.writes += seen.writes;
    all.elsewhere += seen.elsewhere;
    all.again += seen.again;
    all.refused += seen.refused;
    all.syncs += seen.syncs;
    all.told_again += seen.told_again;
    all.returned += seen.returned;
    all.late += seen.late;
    all.left += seen.left;
    all.ended += seen.ended;
  }
  std::printf(
      "seeds %lu-%lu: %lu writes (%lu by another process, %lu times told again), %lu refused, %lu "
      "syncs, %lu told again, %lu returned, "
      "%lu late, %lu left, %lu ended\n",
      first, first + rounds - 1, all.writes, all.elsewhere, all.again, all.refused, all.syncs,
      all.told_again, all.returned, all.late, all.left, all.ended);
  if (rounds < 100) return;
  for (const uint64_t met : {all.writes, all.elsewhere, all.again, all.refused, all.syncs,
                             all.told_again, all.returned, all.late, all.left, all.ended})
    EXPECT_GT(met, rounds / 100);
}

}  // namespace
}  // namespace strata::clients::testing
