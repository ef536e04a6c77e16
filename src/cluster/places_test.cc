// Goal: a place is one folder's, at each start the same one, and changed only by whoever holds its
// stream (PLC1-PLC3); records that cannot be read are said to be so. Method: the simulated
// registry, with lost answers; many folders that take places in any order (STRATA_SEED).
#include "cluster/places.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <set>

#include "base/rng.h"
#include "cluster/testing/held_by.h"
#include "registry/sim/sim.h"

namespace strata::cluster {

using registry::SimFault;
using registry::SimRegistry;
using registry::SimStore;
namespace {

class PlacesTest : public ::testing::Test {
 protected:
  EpochGrant hold(NodeId place) {
    const StreamId stream{place.value};
    auto lease = registry_->grant_lease(
        10, [](LeaseId) {}, deadline());
    EXPECT_TRUE(lease.ok()) << lease.status();
    leases_.push_back(*std::move(lease));
    StreamEpochs epochs(registry_.get(), keys_);
    const auto grant =
        epochs.acquire({stream, "server", Epoch{}, testing::held_by(&epochs, stream, deadline())},
                       *leases_.back(), deadline());
    EXPECT_TRUE(grant.ok()) << grant.status();
    return grant.ok() ? *grant : EpochGrant{};
  }
  [[nodiscard]] uint64_t deadline() const { return registry_->now_us() + 1'000'000; }
  KnownPlace take(uint64_t folder, bool is_new) {
    bool taken = false;
    const auto place = places_.take(folder, &taken, deadline());
    EXPECT_TRUE(place.ok()) << place.status();
    EXPECT_EQ(taken, is_new);
    return place.ok() ? *place : KnownPlace{};
  }

  uint64_t now_us_ = 1'000'000;
  SimStore store_{[this] { return now_us_ += 10; }, 1};
  std::unique_ptr<SimRegistry> registry_ = store_.connect();
  const ClusterKeys keys_ = *ClusterKeys::of("test");
  std::vector<std::unique_ptr<Lease>> leases_;
  Places places_{registry_.get(), keys_};
};

TEST_F(PlacesTest, AFolderGetsItsOwnPlaceAgain) {  // PLC1
  EXPECT_EQ(take(11, true).place.number, NodeId{1});
  EXPECT_EQ(take(12, true).place.number, NodeId{2});
  EXPECT_EQ(take(11, false).place.number, NodeId{1});
  EXPECT_EQ(take(12, false).place.number, NodeId{2});
  EXPECT_EQ(places_.all(deadline())->size(), 2u);
}

TEST_F(PlacesTest, OnlyTheHolderOfItsStreamMovesInAndGivesItBack) {  // PLC2, PLC3
  const KnownPlace first = take(11, true);
  const EpochGrant old = hold(first.place.number);
  Place moved = first.place;
  moved.server = "server-a";
  const auto in = places_.move_in(moved, first.version, old, deadline());
  ASSERT_TRUE(in.ok()) << in.status();
  EXPECT_EQ(take(11, false).place, moved);
  const EpochGrant now = hold(first.place.number);
  EXPECT_TRUE(is_conflict(places_.move_in(moved, in->version, old, deadline()).status()));
  EXPECT_TRUE(is_conflict(places_.give_back(*in, old, deadline())));
  EXPECT_TRUE(is_conflict(places_.give_back(first, now, deadline()))) << "an older record";
  ASSERT_TRUE(places_.give_back(*in, now, deadline()).ok());
  EXPECT_TRUE(places_.all(deadline())->empty());
  EXPECT_EQ(take(13, true).place.number, first.place.number);
}

TEST_F(PlacesTest, IsSettledUntilSomebodyHoldsItsStreamAgain) {  // PLC3, PLC4
  const auto unsettled = [this] {
    const auto places = places_.unsettled(deadline());
    EXPECT_TRUE(places.ok()) << places.status();
    return places.ok() ? places->size() : 0;
  };
  const KnownPlace first = take(11, true);
  const KnownPlace second = take(12, true);
  EXPECT_EQ(unsettled(), 0u) << "nobody has ever written on them";
  const EpochGrant grant = hold(first.place.number);
  EXPECT_EQ(unsettled(), 1u);
  Place adopted = first.place;
  adopted.adopter = "server-b.01-for-1";
  const auto in = places_.move_in(adopted, first.version, grant, deadline());
  ASSERT_TRUE(in.ok()) << in.status();
  EXPECT_EQ(take(11, false).place, adopted);
  // An adopter that comes after one that may still be there.
  const auto after = places_.settle(*in, false, grant, deadline());
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(after->place.adopter, adopted.adopter);
  EXPECT_EQ(unsettled(), 0u);
  const EpochGrant next = hold(first.place.number);
  EXPECT_EQ(unsettled(), 1u);
  EXPECT_TRUE(is_conflict(places_.settle(*after, true, grant, deadline()).status()));
  const auto settled = places_.settle(*after, true, next, deadline());
  ASSERT_TRUE(settled.ok()) << settled.status();
  EXPECT_TRUE(settled->place.adopter.empty());
  EXPECT_EQ(settled->place.settled, next.epoch);
  EXPECT_EQ(settled->place.folder, 11u);
  EXPECT_EQ(unsettled(), 0u);
}

TEST_F(PlacesTest, OneOnWhichNobodyHasMovedInIsGivenBackByWhoeverTookIt) {
  const KnownPlace taken = take(11, true);
  const EpochGrant grant = hold(taken.place.number);
  ASSERT_TRUE(places_.give_back_unused(taken, deadline()).ok());
  const KnownPlace again = take(11, true);
  Place moved = again.place;
  moved.server = "server-a";
  ASSERT_TRUE(places_.move_in(moved, again.version, grant, deadline()).ok());
  EXPECT_TRUE(is_conflict(places_.give_back_unused(again, deadline())));
}

TEST_F(PlacesTest, AllPlacesMayBeTaken) {
  for (uint64_t folder = 1; folder <= kPlacesMax; ++folder)
    ASSERT_EQ(take(folder, true).place.number.value, folder);
  bool taken = false;
  EXPECT_TRUE(is_no_space(places_.take(1000, &taken, deadline()).status()));
  EXPECT_EQ(take(7, false).place.number, NodeId{7});
}

TEST_F(PlacesTest, WhatCannotBeReadIsSaidToBeSo) {
  for (const char* value :
       {"", "{}", R"({"format":1})", R"({"format":2,"folder":"000000000000000b"})",
        R"({"format":1,"folder":"0000000000000000"})",
        R"({"format":1,"folder":"000000000000000b","server":""})",
        R"({"format":1,"folder":"000000000000000b","adopter":"-"})",
        R"({"format":1,"folder":"000000000000000b","settled":0})"}) {
    const auto now = registry_->get(keys_.place(NodeId{1}), deadline());
    ASSERT_TRUE(now.ok());
    const Version version = now->has_value() ? (*now)->version : Version{};
    ASSERT_TRUE(
        registry_->change(Change::replace(keys_.place(NodeId{1}), version, value), deadline())
            .ok());
    bool taken = false;
    EXPECT_TRUE(is_corruption(places_.take(11, &taken, deadline()).status())) << value;
  }
}

TEST_F(PlacesTest, NoPlaceIsTwoFoldersWhateverAnswersAreLost) {  // PLC1
  const char* const text = std::getenv("STRATA_SEED");
  const uint64_t seed = text != nullptr ? std::strtoull(text, nullptr, 10) : 42;
  SCOPED_TRACE("STRATA_SEED=" + std::to_string(seed));
  Rng rng(seed);
  std::map<uint64_t, NodeId> place_of;
  for (int i = 0; i < 2000; ++i) {
    const uint64_t folder = 1 + rng.below(60);
    if (rng.one_in(3))
      registry_->fail_next(rng.one_in(2) ? SimFault::kLostRequest : SimFault::kLostReply);
    bool taken = false;
    const auto place = places_.take(folder, &taken, deadline());
    store_.run_due();
    if (!place.ok()) {
      EXPECT_TRUE(may_be_repeated(place.status())) << place.status();
      continue;
    }
    EXPECT_EQ(place->place.folder, folder);
    const auto [known, is_new] = place_of.try_emplace(folder, place->place.number);
    EXPECT_EQ(known->second, place->place.number);
  }
  std::set<uint8_t> numbers;
  for (const auto& [folder, number] : place_of) EXPECT_TRUE(numbers.insert(number.value).second);
  EXPECT_GT(numbers.size(), 30u);
}

}  // namespace
}  // namespace strata::cluster
