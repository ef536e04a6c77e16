// A start is made again by the class of its error (ER3): after what passes, or may be done twice,
// and never after what a person has to mend or what ends this node's right.
#include "clients/compute/start_again.h"

#include <gtest/gtest.h>

namespace strata::clients {
namespace {

int starts_after(const Status& failure) {
  int starts = 0;
  const StatusOr<int> opened = start_again(60'000'000, [&]() -> StatusOr<int> {
    if (++starts == 2) return 7;
    return failure;
  });
  EXPECT_EQ(opened.ok(), starts == 2);
  return starts;
}

TEST(StartAgain, AfterWhatPassesOrMayBeDoneTwice) {
  for (const Status& failure : {error_peer_down("x"), error_timed_out("x"), error_busy("x"),
                                error_lease_lost("x"), error_outcome_unknown("x")})
    EXPECT_EQ(starts_after(failure), 2) << failure;
}

TEST(StartAgain, NotAfterWhatStaysAsItIs) {
  for (const Status& failure :
       {error_fenced("x"), error_ended("x"), error_wrong_database("x"), error_unsupported("x"),
        error_in_use("x"), error_io_error("x"), error_corruption("x"), error_conflict("x"),
        error_invalid_argument("x"), error_no_space("x")})
    EXPECT_EQ(starts_after(failure), 1) << failure;
}

TEST(StartAgain, NotForEver) {
  int starts = 0;
  const StatusOr<int> opened = start_again(60'000'000, [&]() -> StatusOr<int> {
    ++starts;
    return error_busy("x");
  });
  EXPECT_TRUE(is_busy(opened.status()));
  EXPECT_EQ(starts, kStartsMax);
}

}  // namespace
}  // namespace strata::clients
