// Goal: each rule of authority.h and authority_record.h by hand, at exact times (FU1, FU2, FU4,
// FA1-FA3, AR1, AR2).
#include "fusion/authority/authority.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace strata::fusion {
namespace {

constexpr uint64_t kLease = 2'000'000;
constexpr uint64_t kWait = AuthorityOptions().takeover_wait_us;
constexpr NodeId kA{1}, kB{2}, kC{3};

proto::Heartbeat beat_of(NodeId server, uint64_t life, Epoch epoch, uint64_t heard = 0) {
  proto::Heartbeat beat;
  beat.server = server;
  beat.life = life;
  beat.epoch = epoch;
  beat.fences_heard = heard;
  return beat;
}

// Sends what is due and has it durable at once.
void settle(Authority* authority, uint64_t now_us) {
  const auto append = authority->next_append(now_us);
  if (append.has_value()) authority->append_durable(append->number);
}

class AuthorityTest : public ::testing::Test {
 protected:
  AuthorityTest() : first_({}, Epoch{5}, std::nullopt, 1000) {
    EXPECT_FALSE(first_.serves(1000));  // nothing durable says so
    settle(&first_, 1000);
    EXPECT_TRUE(first_.serves(1000));
  }
  void join(NodeId server, uint64_t life, uint64_t now_us) {
    EXPECT_TRUE(is_peer_down(first_.join(server, life, now_us)));
    settle(&first_, now_us);
    EXPECT_TRUE(first_.join(server, life, now_us).ok());
  }
  Authority first_;
};

TEST_F(AuthorityTest, NobodyGetsALeaseBeforeItIsADurableMember) {  // FA1
  EXPECT_TRUE(is_fenced(first_.renew(beat_of(kA, 7, Epoch{5}), 2000).status()));
  EXPECT_TRUE(is_peer_down(first_.join(kA, 7, 2000)));
  EXPECT_TRUE(is_peer_down(first_.renew(beat_of(kA, 7, Epoch{5}), 2000).status()));
  const auto append = first_.next_append(2000);
  ASSERT_TRUE(append.has_value());
  EXPECT_TRUE(is_peer_down(first_.renew(beat_of(kA, 7, Epoch{5}), 2000).status()));
  first_.append_durable(append->number);
  EXPECT_TRUE(first_.renew(beat_of(kA, 7, Epoch{5}), 2000).ok());
  // Another life of it is not it.
  EXPECT_TRUE(is_fenced(first_.renew(beat_of(kA, 8, Epoch{5}), 2000).status()));
  EXPECT_TRUE(is_in_use(first_.join(kA, 8, 2000)));
}

TEST_F(AuthorityTest, ALeaseEndsALeaseAfterTheLastDurableRecordWasSent) {  // FU2
  join(kA, 7, 10'000);
  EXPECT_EQ(*first_.renew(beat_of(kA, 7, Epoch{5}), 50'000), kLease - 40'000);
  // A record that is on its way adds nothing, nor one whose fate is unknown.
  const auto append = first_.next_append(400'000);
  ASSERT_TRUE(append.has_value());
  EXPECT_EQ(*first_.renew(beat_of(kA, 7, Epoch{5}), 500'000), kLease - 490'000);
  first_.append_failed(append->number);
  EXPECT_TRUE(is_peer_down(first_.renew(beat_of(kA, 7, Epoch{5}), kLease + 10'000).status()));
  EXPECT_FALSE(first_.serves(kLease + 10'000));
  // It may come back: nobody has taken over.
  settle(&first_, kLease + 20'000);
  EXPECT_EQ(*first_.renew(beat_of(kA, 7, Epoch{5}), kLease + 20'000), kLease);
}

TEST_F(AuthorityTest, ASuccessorWaitsForTheLeasesOfItsPredecessor) {  // FU2
  join(kA, 7, 10'000);
  const AuthorityRecord last = first_.durable();
  Authority second({}, Epoch{6}, last, 5'000'000);
  settle(&second, 5'000'000);
  EXPECT_FALSE(second.serves(5'000'000 + kWait - 1));
  EXPECT_TRUE(is_peer_down(second.renew(beat_of(kA, 7, Epoch{6}), 5'100'000).status()));
  settle(&second, 5'000'000 + kWait - 100'000);
  EXPECT_TRUE(second.serves(5'000'000 + kWait));
  // It knows the members; they need not join again.
  EXPECT_TRUE(second.renew(beat_of(kA, 7, Epoch{6}), 5'000'000 + kWait).ok());
  EXPECT_TRUE(
      is_fenced(second.renew(beat_of(kA, 7, Epoch{5}), 5'000'000 + kWait).status()));  // FU1
  // The first one hears of it at its next append.
  first_.refused();
  EXPECT_FALSE(first_.serves(300'000));
  EXPECT_FALSE(first_.next_append(9'000'000).has_value());
  EXPECT_TRUE(is_fenced(first_.join(kB, 1, 300'000)));
}

TEST_F(AuthorityTest, AFencedServerIsReleasedOnceItsLeaseIsOverAndAllOthersHaveHeard) {  // FU4
  join(kA, 7, 10'000);
  join(kB, 8, 10'000);
  join(kC, 9, 10'000);
  for (const auto& [server, life] : {std::pair{kA, 7}, {kB, 8}, {kC, 9}})
    ASSERT_TRUE(first_.renew(beat_of(server, static_cast<uint64_t>(life), Epoch{5}), 10'000).ok());
  const uint64_t end = 10'000 + kLease + kLease / 8;
  ASSERT_TRUE(first_.fence(kA).ok());
  EXPECT_TRUE(is_fenced(first_.renew(beat_of(kA, 7, Epoch{5}), 20'000).status()));
  EXPECT_TRUE(first_.fences_above(0).empty());  // it is not durable
  EXPECT_FALSE(first_.has_ended(kA, end));
  for (uint64_t now = 20'000; now < end; now += 300'000) {
    settle(&first_, now);
    ASSERT_EQ(first_.fences_above(0).size(), 1u);
    EXPECT_FALSE(first_.has_ended(kA, now));
    ASSERT_TRUE(first_.renew(beat_of(kB, 8, Epoch{5}, 1), now).ok());
    ASSERT_TRUE(first_.renew(beat_of(kC, 9, Epoch{5}, 0), now).ok());
  }
  EXPECT_TRUE(first_.has_ended(kA, end));
  EXPECT_FALSE(first_.may_release(kA, end));  // C goes by what A has shown
  ASSERT_TRUE(first_.renew(beat_of(kC, 9, Epoch{5}, 1), end - 1).ok());
  EXPECT_TRUE(first_.may_release(kA, end));
  first_.forget(kA);
  settle(&first_, end);
  join(kA, 70, end);  // FA2
  EXPECT_EQ(first_.fences_above(0).size(), 1u);
}

TEST_F(AuthorityTest, WhoseProcessHasEndedIsNotWaitedFor) {  // FU4
  join(kA, 7, 10'000);
  ASSERT_TRUE(first_.renew(beat_of(kA, 7, Epoch{5}), 10'000).ok());
  ASSERT_TRUE(first_.fence(kA).ok());
  settle(&first_, 20'000);
  EXPECT_FALSE(first_.has_ended(kA, 20'000));
  first_.exited(kA, 6);  // an earlier one
  EXPECT_FALSE(first_.has_ended(kA, 20'000));
  first_.exited(kA, 7);
  EXPECT_TRUE(first_.has_ended(kA, 20'000));
}

TEST_F(AuthorityTest, WhoSleptThroughAFenceIsNotWaitedForLongerThanItsLeaseButTold) {  // FU4, FA3
  join(kA, 7, 10'000);
  join(kB, 8, 10'000);
  ASSERT_TRUE(first_.renew(beat_of(kB, 8, Epoch{5}), 10'000).ok());
  ASSERT_TRUE(first_.fence(kA).ok());
  settle(&first_, 20'000);
  EXPECT_TRUE(first_.has_ended(kA, 20'000));  // it never had a lease
  EXPECT_FALSE(first_.may_release(kA, 20'000));
  const uint64_t later = 10'000 + kLease + kLease / 8;
  settle(&first_, later);
  EXPECT_TRUE(first_.may_release(kA, later));
  first_.forget(kA);
  settle(&first_, later);
  ASSERT_EQ(first_.fences_above(0).size(), 1u);
  EXPECT_EQ(first_.fences_above(0)[0], (proto::Fence{kA, 1}));
  EXPECT_TRUE(first_.fences_above(1).empty());
}

TEST(AuthorityRecord, WhatIsDecodedIsWhatWasEncodedAndNothingElseIs) {  // AR1
  AuthorityRecord record;
  record.epoch = Epoch{9};
  record.ceiling = 1'000'001;
  record.horizon = 77;
  record.fences = 3;
  record.members = {{kA, 7, 0}, {kB, 8, 3}};
  record.fenced = {{kB, 3}, {kC, 2}};
  const std::string bytes = encode(record);
  const auto decoded = decode_authority_record(bytes);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(*decoded, record);
  for (size_t cut = 0; cut < bytes.size(); ++cut)
    EXPECT_TRUE(is_corruption(decode_authority_record(bytes.substr(0, cut)).status()));
  Rng rng(5);
  for (int i = 0; i < 1000; ++i) {
    std::string other = bytes;
    other[rng.below(other.size())] ^= static_cast<char>(1u << rng.below(8));
    EXPECT_TRUE(is_corruption(decode_authority_record(other).status()));
  }
}

}  // namespace
}  // namespace strata::fusion
