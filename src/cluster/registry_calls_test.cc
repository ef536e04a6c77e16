// Calls to the registry go on by the class of their error (ER3): what passes or may be done twice
// is done again until the time is over or the flag is raised, anything else is the answer.
#include "cluster/registry_calls.h"

#include <gtest/gtest.h>

#include <memory>

#include "base/clock.h"
#include "registry/sim/sim.h"

namespace strata::cluster {
namespace {

class Calls : public ::testing::Test {
 protected:
  int calls_until(const Status& first) {
    RegistryCalls calls(registry_.get(), &stop_, 0, 1'000'000);
    int made = 0;
    last_ =
        calls.until_reached("trying", [&](uint64_t) { return ++made == 1 ? first : ok_status(); });
    return made;
  }

  registry::SimStore store_{[] { return monotonic_us(); }, 1};
  const std::unique_ptr<registry::SimRegistry> registry_ = store_.connect();
  StopFlag stop_;
  Status last_;
};

TEST_F(Calls, WhatMayPassIsTriedAgain) {
  for (const Status& failure : {error_peer_down("x"), error_timed_out("x"), error_busy("x"),
                                error_lease_lost("x"), error_outcome_unknown("x")}) {
    EXPECT_EQ(calls_until(failure), 2) << failure;
    EXPECT_TRUE(last_.ok()) << last_;
  }
}

TEST_F(Calls, WhatDoesNotIsTheAnswer) {
  for (const Status& failure : {error_conflict("x"), error_in_use("x"), error_wrong_database("x"),
                                error_unsupported("x"), error_fenced("x"), error_not_found("x")}) {
    EXPECT_EQ(calls_until(failure), 1) << failure;
    EXPECT_EQ(last_, failure);
  }
}

TEST_F(Calls, EndWithTheFlagAndWithTheTime) {
  RegistryCalls hurried(registry_.get(), &stop_, 1, 1'000'000);
  const auto busy = [](uint64_t) { return error_busy("queue"); };
  EXPECT_TRUE(is_peer_down(hurried.until_reached("trying", busy)));
  RegistryCalls patient(registry_.get(), &stop_, 0, 1'000'000);
  stop_.raise();
  EXPECT_TRUE(is_interrupted(patient.until_reached("trying", busy)));
}

}  // namespace
}  // namespace strata::cluster
