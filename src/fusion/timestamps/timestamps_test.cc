// Goal: each rule of oracle.h, horizon.h and time_service.h by hand (FT1-FT6, FU12).
#include <gtest/gtest.h>

#include <array>

#include "base/bytes.h"
#include "fusion/timestamps/horizon.h"
#include "fusion/timestamps/oracle.h"
#include "fusion/timestamps/time_service.h"

namespace strata::fusion {
namespace {

constexpr NodeId kA{1}, kB{2};

TEST(Oracle, CeilingStaysAheadOfTheClock) {  // FT2
  Oracle oracle({.step = 1000}, 0);
  EXPECT_EQ(oracle.start(), 1u);
  EXPECT_EQ(oracle.wanted_ceiling(1), 1001u);
  EXPECT_EQ(oracle.wanted_ceiling(500), 1001u);
  EXPECT_EQ(oracle.wanted_ceiling(501), 2001u);
  EXPECT_EQ(oracle.wanted_ceiling(9000), 10'000u);  // it was too late
  EXPECT_EQ(oracle.wanted_ceiling(2), 10'000u);
  EXPECT_EQ(oracle.wanted_ceiling(UINT64_MAX), proto::kCtsMax);  // FT3
}

TEST(Oracle, ASuccessorBeginsAtTheCeiling) {  // FT1
  Oracle oracle({.step = 1000}, 5001);
  EXPECT_EQ(oracle.start(), 5001u);
  EXPECT_EQ(oracle.wanted_ceiling(5001), 6001u);
}

TEST(Horizon, IsTheLeastOfWhatAllHaveSaidAndNeverShrinks) {  // FU12
  Horizon horizon(0);
  EXPECT_EQ(horizon.wanted(), 1u);
  horizon.joined(kA);
  EXPECT_EQ(horizon.wanted(), 1u);  // it has said nothing
  horizon.said(kA, Cts{50}, 4);
  EXPECT_EQ(horizon.wanted(), 50u);
  horizon.joined(kB);  // counts, so the horizon stays
  horizon.said(kA, Cts{70}, 5);
  EXPECT_EQ(horizon.wanted(), 50u);
  horizon.said(kB, Cts{40}, 1);  // registered what it had heard before
  EXPECT_EQ(horizon.wanted(), 50u);
  horizon.said(kB, Cts{60}, 1);
  EXPECT_EQ(horizon.wanted(), 60u);
  horizon.ended(kB);
  EXPECT_EQ(horizon.wanted(), 70u);
  ASSERT_EQ(horizon.bounds().size(), 1u);
  EXPECT_EQ(horizon.bounds()[0].bound, 5u);
}

TEST(Horizon, AfterAChangeOfTheMemoryNodeEveryMemberSpeaksFirst) {  // FT4
  Horizon horizon(90);
  horizon.joined(kA);
  horizon.joined(kB);
  horizon.said(kA, Cts{200}, 1);
  EXPECT_EQ(horizon.wanted(), 90u);
  horizon.said(kB, Cts{150}, 1);
  EXPECT_EQ(horizon.wanted(), 150u);
}

class TimeServiceTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kStep = 1000;
  static TimeServiceOptions options() {
    TimeServiceOptions options;
    options.oracle.step = kStep;
    return options;
  }
  uint64_t word(uint64_t offset) const { return load_u64(times_.data() + offset); }
  void set_clock(uint64_t value) { store_u64(times_.data() + proto::kClockOffset, value); }
  void settle(TimeService* service, uint64_t now_us) {
    const auto append = service->tick(now_us);
    if (append.has_value()) service->append_durable(append->number);
  }
  static proto::Heartbeat beat_of(NodeId server, Epoch epoch, uint64_t view) {
    proto::Heartbeat beat;
    beat.server = server;
    beat.life = 7;
    beat.epoch = epoch;
    beat.has_views = true;
    beat.oldest_view = Cts{view};
    beat.bound = 3;
    return beat;
  }
  alignas(64) std::array<char, proto::kTimesBytes> times_ = {};
};

TEST_F(TimeServiceTest, NothingIsShownBeforeItIsDurable) {  // FT1, FT5
  TimeService service(options(), Epoch{1}, std::nullopt, 0, times_.data());
  EXPECT_EQ(word(proto::kClockOffset), 1u);
  EXPECT_EQ(word(proto::kCeilingOffset), 1u);
  auto append = service.tick(0);
  ASSERT_TRUE(append.has_value());
  EXPECT_EQ(word(proto::kCeilingOffset), 1u);
  service.append_durable(append->number);
  EXPECT_EQ(word(proto::kCeilingOffset), 1 + kStep);
  set_clock(900);
  append = service.tick(1000);
  ASSERT_TRUE(append.has_value());
  EXPECT_EQ(word(proto::kCeilingOffset), 1 + kStep);
  service.append_failed(append->number);
  EXPECT_EQ(word(proto::kCeilingOffset), 1 + kStep);
  settle(&service, 2000);
  EXPECT_EQ(word(proto::kCeilingOffset), 1 + 2 * kStep);

  EXPECT_TRUE(is_peer_down(service.join(kA, 7, 2000)));
  settle(&service, 2000);
  EXPECT_TRUE(service.join(kA, 7, 2000).ok());
  auto reply = service.heartbeat(beat_of(kA, Epoch{1}, 800), 2000);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->horizon, Cts{1});
  append = service.tick(3000);
  ASSERT_TRUE(append.has_value());
  EXPECT_EQ(word(proto::kHorizonOffset), 1u);
  service.append_durable(append->number);
  EXPECT_EQ(word(proto::kHorizonOffset), 800u);
  reply = service.heartbeat(beat_of(kA, Epoch{1}, 800), 3000);
  EXPECT_EQ(reply->horizon, Cts{800});
  ASSERT_EQ(reply->bounds.size(), 1u);
  EXPECT_EQ(reply->bounds[0].bound, 3u);
}

TEST_F(TimeServiceTest, ASuccessorGoesOnFromTheRecordAndHoldsTheHorizonForAllMembers) {
  AuthorityRecord last;
  last.epoch = Epoch{1};
  last.ceiling = 5001;
  last.horizon = 800;
  last.members = {{kA, 7, 0}, {kB, 7, 0}};
  TimeService service(options(), Epoch{2}, last, 0, times_.data());
  EXPECT_EQ(word(proto::kClockOffset), 5001u);
  EXPECT_EQ(word(proto::kHorizonOffset), 800u);
  const uint64_t now = AuthorityOptions().takeover_wait_us;
  settle(&service, now);
  ASSERT_TRUE(service.heartbeat(beat_of(kA, Epoch{2}, 5000), now).ok());
  settle(&service, now + 1000);
  EXPECT_EQ(word(proto::kHorizonOffset), 800u);
  // B is fenced instead of speaking. Its views count until its lease has ended: it has none here.
  ASSERT_TRUE(service.authority()->fence(kB).ok());
  settle(&service, now + 2000);
  settle(&service, now + 3000);
  EXPECT_EQ(word(proto::kHorizonOffset), 5000u);
}

}  // namespace
}  // namespace strata::fusion
