#include "storenode/versions/leases.h"

#include <gtest/gtest.h>

namespace strata::storenode {
namespace {

constexpr LeaseOptions kOptions{.lease_us = 100, .window_us = 0};

TEST(Leases, HorizonStaysWhereItWasUntilOldReadersHadTimeToComeBack) {  // LE3
  LeaseTable leases(kOptions, Llsn{50}, 1000);
  leases.observe(Llsn{500}, 1001);
  EXPECT_EQ(leases.horizon(1099), Llsn{50});
  EXPECT_EQ(leases.horizon(1100), Llsn{500});
}

TEST(Leases, ANewStoreHasNobodyToWaitFor) {  // LE3
  LeaseTable leases(kOptions, Llsn{}, 1000);
  EXPECT_TRUE(leases.settled(1000));
  leases.observe(Llsn{500}, 1001);
  EXPECT_EQ(leases.horizon(1001), Llsn{500});
  EXPECT_FALSE(LeaseTable(kOptions, Llsn{1}, 1000).settled(1099));
}

TEST(Leases, HorizonIsTheOldestLease) {  // LE1
  LeaseTable leases(kOptions, Llsn{}, 0);
  leases.observe(Llsn{500}, 200);
  ASSERT_TRUE(leases.renew(1, Llsn{300}, 200).ok());
  ASSERT_TRUE(leases.renew(2, Llsn{200}, 200).ok());
  EXPECT_EQ(leases.horizon(201), Llsn{200});
  leases.release(2);
  EXPECT_EQ(leases.horizon(202), Llsn{300});
  ASSERT_TRUE(leases.renew(1, Llsn{400}, 250).ok());
  EXPECT_EQ(leases.horizon(251), Llsn{400});
}

TEST(Leases, ThereIsNoEndOfReadersButOfPlaces) {
  LeaseTable leases(kOptions, Llsn{}, 0);
  for (uint64_t reader = 1; reader <= 4096; ++reader)
    ASSERT_TRUE(leases.renew(reader, Llsn{300}, 200).ok());
  EXPECT_EQ(leases.renew(5000, Llsn{300}, 200).code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(leases.renew(4096, Llsn{300}, 250).ok()) << "who has a place keeps it";
  (void)leases.horizon(310);  // forgets those that have expired
  EXPECT_TRUE(leases.renew(5000, Llsn{300}, 310).ok());
}

TEST(Leases, ALeaseThatIsNotRenewedEnds) {
  LeaseTable leases(kOptions, Llsn{}, 0);
  leases.observe(Llsn{500}, 200);
  ASSERT_TRUE(leases.renew(1, Llsn{300}, 200).ok());
  EXPECT_EQ(leases.horizon(299), Llsn{300});
  EXPECT_EQ(leases.horizon(300), Llsn{500});
  EXPECT_EQ(leases.leases(), 0u);
}

TEST(Leases, NoLeaseBelowTheHorizon) {  // LE2
  LeaseTable leases(kOptions, Llsn{}, 0);
  leases.observe(Llsn{500}, 200);
  EXPECT_EQ(leases.horizon(200), Llsn{500});
  EXPECT_TRUE(is_out_of_range(leases.renew(1, Llsn{499}, 201)));
  EXPECT_TRUE(leases.renew(1, Llsn{500}, 201).ok());
  leases.observe(Llsn{900}, 210);
  ASSERT_TRUE(leases.renew(1, Llsn{800}, 211).ok());
  EXPECT_TRUE(is_out_of_range(leases.renew(1, Llsn{700}, 212)));  // he gave that up
}

TEST(Leases, WindowKeepsWhatWasNewestThatLongAgo) {  // LE1
  LeaseTable leases({.lease_us = 10, .window_us = 1000}, Llsn{}, 0);
  for (uint64_t t = 1; t <= 5000; ++t) leases.observe(Llsn{t * 10}, t);
  const Llsn horizon = leases.horizon(5000);
  EXPECT_LE(horizon, Llsn{4000 * 10});
  EXPECT_GE(horizon, Llsn{3950 * 10});  // samples are a part of the window apart
}

}  // namespace
}  // namespace strata::storenode
