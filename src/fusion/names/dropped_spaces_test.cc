// Goal: each rule of dropped_spaces.h by hand (NL6-NL8).
#include "fusion/names/dropped_spaces.h"

#include <gtest/gtest.h>

#include <string>

namespace strata::fusion {
namespace {

using proto::NameCaller;
using proto::SpaceIsLeft;
using proto::SpaceLeave;

constexpr NodeId kA{1}, kB{2}, kC{3};
constexpr SpaceId kSpace{300};
constexpr Epoch kEpoch{4};

class DroppedSpacesTest : public ::testing::Test {
 protected:
  DroppedSpacesTest() {
    for (const NodeId server : {kA, kB, kC}) EXPECT_TRUE(spaces_.joined(server, 100).ok());
  }
  static NameCaller caller(NodeId server) { return {server, 100, kEpoch}; }
  bool dropped(NodeId server) {
    const auto left = spaces_.dropped(caller(server), kSpace, 0);
    EXPECT_TRUE(left.ok());
    return left.ok() && *left;
  }
  void leave(NodeId server) {
    EXPECT_TRUE(spaces_.has_left(caller(server), absl::MakeConstSpan(&kSpace, 1)).ok());
  }
  std::string sent() {
    std::string text;
    for (const DroppedSpaces::Outgoing& out : spaces_.take_outgoing())
      text += std::to_string(out.server.value) +
              (std::get_if<SpaceLeave>(&out.message) != nullptr ? " leaves, " : " hears, ");
    return text;
  }
  DroppedSpaces spaces_{{.ask_again_us = 1000, .of_server_max = 3}, kEpoch};
};

TEST_F(DroppedSpacesTest, AllOthersLeave) {  // NL6, NL7
  EXPECT_FALSE(dropped(kA));
  EXPECT_EQ(sent(), "2 leaves, 3 leaves, ");
  ASSERT_TRUE(spaces_.joined(NodeId{4}, 100).ok());  // finds it nowhere
  EXPECT_FALSE(dropped(kA));
  EXPECT_EQ(sent(), "");
  leave(kB);
  leave(kB);
  EXPECT_EQ(sent(), "");
  spaces_.tick(2000);
  EXPECT_EQ(sent(), "3 leaves, ");
  leave(kC);
  leave(kC);
  EXPECT_EQ(sent(), "1 hears, ");
  EXPECT_TRUE(dropped(kA));
  EXPECT_EQ(spaces_.spaces(), 0u);
  EXPECT_FALSE(dropped(kA));  // it has not heard it: all are asked once more
  EXPECT_EQ(sent(), "2 leaves, 3 leaves, 4 leaves, ");
}

TEST_F(DroppedSpacesTest, AFencedServerCountsUntilItIsReleased) {  // NL6
  EXPECT_FALSE(dropped(kA));
  leave(kC);
  spaces_.fence(kB);
  EXPECT_FALSE(dropped(kA));
  EXPECT_TRUE(is_fenced(spaces_.has_left(caller(kB), absl::MakeConstSpan(&kSpace, 1))));
  spaces_.release_fenced(kB);
  EXPECT_TRUE(dropped(kA));
}

TEST_F(DroppedSpacesTest, WhoHasDroppedItIsGone) {  // NL8
  EXPECT_FALSE(dropped(kA));
  spaces_.left(kC, 100);
  spaces_.fence(kA);
  spaces_.release_fenced(kA);
  EXPECT_EQ(spaces_.spaces(), 0u);
  leave(kB);
  ASSERT_TRUE(spaces_.joined(kA, 101).ok());
  EXPECT_FALSE(spaces_.dropped({kA, 101, kEpoch}, kSpace, 0).value());
  EXPECT_TRUE(is_fenced(spaces_.dropped(caller(kA), kSpace, 0).status()));
}

TEST_F(DroppedSpacesTest, NotTooManyAtOnce) {
  for (uint32_t space = 1; space <= 3; ++space)
    EXPECT_TRUE(spaces_.dropped(caller(kA), SpaceId{space}, 0).ok());
  EXPECT_TRUE(is_busy(spaces_.dropped(caller(kA), SpaceId{4}, 0).status()));
  for (const NodeId other : {kB, kC}) {
    const SpaceId first{1};
    EXPECT_TRUE(spaces_.has_left(caller(other), absl::MakeConstSpan(&first, 1)).ok());
  }
  EXPECT_TRUE(spaces_.dropped(caller(kA), SpaceId{1}, 0).value());
  EXPECT_TRUE(spaces_.dropped(caller(kA), SpaceId{4}, 0).ok());
}

}  // namespace
}  // namespace strata::fusion
