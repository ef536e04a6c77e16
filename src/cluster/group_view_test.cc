// Whether a node still belongs to its group, placement after placement (GV1, GV2).
#include "cluster/group_view.h"

#include <gtest/gtest.h>

#include "base/diag.h"

namespace strata::cluster {
namespace {

Placement placement(uint64_t generation, std::vector<std::string> nodes,
                    std::vector<uint64_t> joined = {}) {
  return {generation, {StorageGroup{1, std::move(nodes), 2, std::move(joined)}}, {}};
}

class GroupViewTest : public ::testing::Test {
 protected:
  GroupViewTest() {
    set_diag_sink([](Severity, std::string_view) {});
  }
  ~GroupViewTest() override { set_diag_sink(nullptr); }
  GroupView view_{"s1", 3, placement(3, {"s1", "s2", "s3"}).groups[0]};
};

TEST_F(GroupViewTest, FollowsItsPeers) {
  EXPECT_TRUE(view_.may_serve().ok());
  view_.update(placement(4, {"s1", "s4", "s3"}, {0, 4, 0}));
  EXPECT_TRUE(view_.may_serve().ok());
  EXPECT_EQ(view_.node_at(1), "s4");
  EXPECT_EQ(view_.node_at(3), "");
  view_.update(placement(5, {"s1", "s4", "s3", "s5"}, {0, 4, 0, 5}));
  EXPECT_EQ(view_.node_at(3), "s5");
  view_.update(placement(4, {"s1", "s9", "s3"}, {0, 4, 0}));  // GV2
  EXPECT_EQ(view_.node_at(1), "s4");
  EXPECT_EQ(view_.generation(), 5u);
  EXPECT_EQ(view_.out_of_it(), "");
}

TEST_F(GroupViewTest, OnceReplacedItIsOutForGood) {
  view_.update(placement(4, {"s4", "s2", "s3"}, {4, 0, 0}));
  EXPECT_EQ(view_.may_serve().code(), StatusCode::kUnavailable);
  EXPECT_EQ(view_.out_of_it(), "s1 was replaced by s4 in generation 4 of the placement");
  view_.update(placement(5, {"s1", "s2", "s3"}));  // which nobody could make
  EXPECT_FALSE(view_.may_serve().ok());
  EXPECT_EQ(view_.out_of_it(), "s1 was replaced by s4 in generation 4 of the placement");
}

TEST_F(GroupViewTest, WhenAnotherOneIsTakenOutPlacesMove) {
  view_.update(placement(4, {"s1", "s2", "s3", "s4"}, {0, 0, 0, 4}));
  view_.update(placement(5, {"s1", "s3", "s4"}, {0, 0, 4}));
  EXPECT_TRUE(view_.may_serve().ok());
  EXPECT_EQ(view_.node_at(1), "s3");
  EXPECT_EQ(view_.node_at(3), "");
  view_.update(placement(6, {"s3", "s4", "s5"}, {0, 4, 5}));
  EXPECT_FALSE(view_.may_serve().ok());
}

TEST_F(GroupViewTest, TheLastOneMayLetTheOthersGoFirst) {
  EXPECT_FALSE(view_.is_spare());
  view_.update(placement(4, {"s2", "s3", "s1"}, {0, 0, 0}));
  EXPECT_TRUE(view_.is_spare());
  Placement all = placement(5, {"s2", "s3", "s1"}, {0, 0, 0});
  all.groups[0].write_quorum = 3;
  view_.update(all);
  EXPECT_FALSE(view_.is_spare());
  view_.update(placement(6, {"s2", "s3", "s1"}, {0, 0, 0}));
  EXPECT_TRUE(view_.is_spare());
  view_.update(placement(7, {"s2", "s3", "s4"}, {0, 0, 7}));
  EXPECT_FALSE(view_.is_spare());
}

TEST_F(GroupViewTest, OnceTakenOutItIsOutForGood) {
  view_.update(placement(4, {"s2", "s3", "s4"}, {0, 0, 3}));
  EXPECT_FALSE(view_.may_serve().ok());
  EXPECT_EQ(view_.out_of_it(),
            "s1 was taken out of its storage group in generation 4 of the placement");
}

TEST_F(GroupViewTest, AGroupThatIsGoneHasNobody) {
  Placement other = placement(4, {"s1", "s2"});
  other.groups[0].id = 2;
  view_.update(other);
  EXPECT_FALSE(view_.may_serve().ok());
}

}  // namespace
}  // namespace strata::cluster
