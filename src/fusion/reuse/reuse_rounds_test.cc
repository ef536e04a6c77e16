// Goal: each rule of reuse_rounds.h by hand (RU1-RU4).
#include "fusion/reuse/reuse_rounds.h"

#include <gtest/gtest.h>

#include <string>

namespace strata::fusion {
namespace {

using proto::NameCaller;

constexpr NodeId kA{1}, kB{2}, kC{3};
constexpr Epoch kEpoch{4};

class ReuseRoundsTest : public ::testing::Test {
 protected:
  ReuseRoundsTest() {
    for (const NodeId server : {kA, kB, kC}) EXPECT_TRUE(rounds_.joined(server, 100).ok());
  }
  static NameCaller caller(NodeId server) { return {server, 100, kEpoch}; }
  std::string sent() {
    std::string text;
    for (const ReuseRounds::Outgoing& out : rounds_.take_outgoing())
      text += std::to_string(out.server.value) + ":" + std::to_string(out.message.round) + " ";
    return text;
  }
  bool ended(NodeId server, uint64_t round) {
    const auto ended = rounds_.ended(caller(server), round);
    EXPECT_TRUE(ended.ok());
    return ended.ok() && *ended;
  }
  ReuseRounds rounds_{{.ask_again_us = 1000}, kEpoch};
};

TEST_F(ReuseRoundsTest, AllOthersSaySo) {  // RU1, RU2, RU4
  EXPECT_EQ(rounds_.begin(caller(kA), 0).value(), 1u);
  EXPECT_EQ(rounds_.begin(caller(kB), 0).value(), 2u);
  EXPECT_EQ(sent(), "2:1 3:1 1:2 3:2 ");
  ASSERT_TRUE(rounds_.report(caller(kC), 2).ok());
  ASSERT_TRUE(rounds_.report(caller(kC), 1).ok());  // late
  EXPECT_FALSE(ended(kA, 1));
  ASSERT_TRUE(rounds_.report(caller(kB), 1).ok());
  EXPECT_TRUE(ended(kA, 1));
  EXPECT_FALSE(ended(kB, 2));
  rounds_.tick(2000);
  EXPECT_EQ(sent(), "1:2 2:2 ");
  ASSERT_TRUE(rounds_.report(caller(kA), 2).ok());
  EXPECT_TRUE(ended(kB, 2));
}

TEST_F(ReuseRoundsTest, ServersComeAndGo) {  // RU2, RU3
  EXPECT_EQ(rounds_.begin(caller(kA), 0).value(), 1u);
  ASSERT_TRUE(rounds_.joined(NodeId{4}, 100).ok());
  rounds_.left(kB, 100);
  EXPECT_FALSE(ended(kA, 1));
  rounds_.fence(kC);
  EXPECT_FALSE(ended(kA, 1));
  EXPECT_TRUE(is_fenced(rounds_.report(caller(kC), 1)));
  rounds_.release_fenced(kC);
  EXPECT_TRUE(ended(kA, 1));
  EXPECT_EQ(rounds_.begin(caller(kA), 0).value(), 2u);
  EXPECT_FALSE(ended(kA, 2));
}

TEST_F(ReuseRoundsTest, WhatNoServerSaysIsRefused) {
  EXPECT_TRUE(is_invalid_argument(rounds_.report(caller(kA), 1)));
  EXPECT_TRUE(is_invalid_argument(rounds_.ended(caller(kA), 1).status()));
  EXPECT_TRUE(is_fenced(rounds_.begin({kA, 7, kEpoch}, 0).status()));
  EXPECT_TRUE(is_in_use(rounds_.joined(kA, 7)));
}

TEST_F(ReuseRoundsTest, ARoundOfAnEarlierMemoryNodeEndsWhenAllHaveBeenAskedAgain) {  // RU5
  rounds_.resumed(kA, 7);
  rounds_.resumed(kB, 5);
  rounds_.resumed(kC, 0);
  EXPECT_FALSE(ended(kA, 6));
  rounds_.tick(2000);
  EXPECT_EQ(sent(), "1:7 2:7 3:7 ");
  ASSERT_TRUE(rounds_.report(caller(kB), 7).ok());
  ASSERT_TRUE(rounds_.report(caller(kC), 7).ok());
  EXPECT_TRUE(ended(kA, 6));
  EXPECT_EQ(rounds_.begin(caller(kA), 0).value(), 8u);
}

}  // namespace
}  // namespace strata::fusion
