#include "registry/testing/conformance.h"

#include "cluster/membership.h"
#include "cluster/stream_epochs.h"
#include "cluster/topology.h"

namespace strata::registry::testing {

using cluster::ClusterKeys;
using cluster::DatabaseIdentity;
using cluster::Member;
using cluster::Membership;
using cluster::Placement;
using cluster::Role;
using cluster::StorageGroup;
using cluster::StreamEpochs;
using cluster::Topology;
using cluster::with_replaced;

Version RegistryConformance::put(const std::string& name, const std::string& value) {
  const auto there = registry_->get(key(name), deadline());
  EXPECT_TRUE(there.ok()) << there.status();
  const Version version = there.ok() && there->has_value() ? (*there)->version : Version{};
  const auto done = registry_->change(Change::replace(key(name), version, value), deadline());
  EXPECT_TRUE(done.ok()) << done.status();
  return done.value_or(Version{});
}

StatusOr<KeyValue> RegistryConformance::get(const std::string& name) {
  STRATA_ASSIGN_OR_RETURN(auto entry, registry_->get(key(name), deadline()));
  if (!entry.has_value()) return error_not_found();
  return *std::move(entry);
}

namespace {

Error code_of(const Status& status) { return error_of(status); }

TEST_P(RegistryConformance, AKeyIsCreatedReplacedAndRemovedByItsVersion) {
  const auto created = registry_->change(Change::create(key("a"), "one"), deadline());
  ASSERT_TRUE(created.ok()) << created.status();
  EXPECT_EQ(*get("a"), (KeyValue{key("a"), "one", *created, {}}));
  const auto replaced = registry_->change(
      Change::replace(key("a"), *created, std::string("two\0\xff", 5)), deadline());
  ASSERT_TRUE(replaced.ok()) << replaced.status();
  EXPECT_GT(*replaced, *created);
  EXPECT_EQ(get("a")->value, std::string("two\0\xff", 5));
  EXPECT_EQ(get("a")->version, *replaced);
  ASSERT_TRUE(registry_->change(Change::remove(key("a"), *replaced), deadline()).ok());
  EXPECT_TRUE(is_not_found(get("a").status()));
}

TEST_P(RegistryConformance, AFailedCompareChangesNothingAndSaysWhatIsThere) {
  const Version version = put("a", "one");
  const Version other{version.value + 1000};
  for (const Change& change :
       {Change::create(key("a"), "two"), Change::replace(key("a"), other, "two"),
        Change::remove(key("a"), other)}) {
    std::vector<KeyValue> found;
    const auto done = registry_->change(change, deadline(), &found);
    EXPECT_EQ(code_of(done.status()), Error::conflict) << done.status();
    EXPECT_EQ(found, (std::vector<KeyValue>{{key("a"), "one", version, {}}}));
  }
  std::vector<KeyValue> found{{"not", "cleared", {}, {}}};
  const auto done = registry_->change(Change::remove(key("b"), version), deadline(), &found);
  EXPECT_EQ(code_of(done.status()), Error::conflict);
  EXPECT_TRUE(found.empty());
  EXPECT_EQ(get("a")->value, "one");
}

// RG1
TEST_P(RegistryConformance, AVersionIsNotGivenAgainToAKeyMadeAnew) {
  const Version first = put("a", "one");
  ASSERT_TRUE(registry_->change(Change::remove(key("a"), first), deadline()).ok());
  const Version second = put("a", "one");
  EXPECT_GT(second, first);
  EXPECT_EQ(code_of(registry_->change(Change::remove(key("a"), first), deadline()).status()),
            Error::conflict);
}

// RG2
TEST_P(RegistryConformance, SeveralKeysChangeTogetherOrNotAtAll) {
  const Version a = put("a", "1");
  const Version b = put("b", "2");
  const Change wrong[] = {Change::replace(key("a"), a, "new"), Change::remove(key("b"), b),
                          Change::require(key("c"), a)};
  std::vector<KeyValue> found;
  EXPECT_EQ(code_of(registry_->change(wrong, deadline(), &found).status()), Error::conflict);
  EXPECT_EQ(found.size(), 2u);
  EXPECT_EQ(get("a")->value, "1");
  EXPECT_EQ(get("b")->value, "2");
  const Change right[] = {Change::replace(key("a"), a, "new"), Change::create(key("d"), "4"),
                          Change::remove(key("b"), b), Change::require(key("c"), Version{})};
  const auto done = registry_->change(right, deadline());
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ(*get("a"), (KeyValue{key("a"), "new", *done, {}}));
  EXPECT_EQ(*get("d"), (KeyValue{key("d"), "4", *done, {}}));
  EXPECT_TRUE(is_not_found(get("b").status()));
}

TEST_P(RegistryConformance, AListHoldsAllKeysWithThePrefixInOrder) {
  const std::vector<std::string> names = {"p",           "p/",    "p/a",        "p/a\xff",
                                          "p/a\xff\xff", "p/b\n", "p/\xff\xff", "p0"};
  for (const std::string& name : names) put(name, "value of " + name);
  const auto listing = registry_->list(key("p/"), deadline());
  ASSERT_TRUE(listing.ok()) << listing.status();
  std::vector<std::string> listed;
  for (const KeyValue& entry : listing->entries) listed.push_back(entry.key);
  EXPECT_EQ(listed,
            (std::vector<std::string>{key("p/"), key("p/a"), key("p/a\xff"), key("p/a\xff\xff"),
                                      key("p/b\n"), key("p/\xff\xff")}));
  const auto narrow = registry_->list(key("p/a\xff\xff"), deadline());
  ASSERT_TRUE(narrow.ok());
  EXPECT_EQ(narrow->entries.size(), 1u);
  EXPECT_TRUE(registry_->list(key("nothing"), deadline())->entries.empty());
}

TEST_P(RegistryConformance, ALongListIsWholeAndOfOneVersion) {
  constexpr size_t kKeys = 200;
  const std::string large(20'000, 'x');
  for (size_t i = 0; i < kKeys; i += kChangesMax) {
    std::vector<Change> changes;
    for (size_t j = i; j < std::min(kKeys, i + kChangesMax); j++)
      changes.push_back(Change::create(key("many/" + std::to_string(1000 + j)), large));
    ASSERT_TRUE(registry_->change(changes, deadline()).ok());
  }
  const auto listing = registry_->list(key("many/"), deadline());
  ASSERT_TRUE(listing.ok()) << listing.status();
  ASSERT_EQ(listing->entries.size(), kKeys);
  for (size_t i = 0; i < kKeys; i++) {
    EXPECT_EQ(listing->entries[i].key, key("many/" + std::to_string(1000 + i)));
    EXPECT_EQ(listing->entries[i].value, large);
    EXPECT_LE(listing->entries[i].version, listing->at);
  }
}

TEST_P(RegistryConformance, WhatCannotBeIsRefusedBeforeItIsSent) {
  const auto refused = [&](const std::vector<Change>& changes) {
    return code_of(registry_->change(changes, deadline()).status()) == Error::invalid_argument;
  };
  EXPECT_TRUE(refused({}));
  EXPECT_TRUE(refused({Change::create("", "x")}));
  EXPECT_TRUE(refused({Change::create(std::string(kKeyBytesMax + 1, 'k'), "x")}));
  EXPECT_TRUE(refused({Change::create(key("a"), std::string(kValueBytesMax + 1, 'v'))}));
  EXPECT_TRUE(refused({Change::create(key("a"), "x"), Change::require(key("a"), {})}));
  EXPECT_TRUE(refused({Change::require(key("a"), {})}));
  EXPECT_TRUE(refused({Change::remove(key("a"), {})}));
  EXPECT_TRUE(refused(std::vector<Change>(kChangesMax + 1, Change::create(key("a"), "x"))));
  EXPECT_EQ(code_of(registry_->get("", deadline()).status()), Error::invalid_argument);
  EXPECT_EQ(code_of(registry_->list("", deadline()).status()), Error::invalid_argument);
  EXPECT_EQ(code_of(registry_->grant_lease(0, nullptr, deadline()).status()),
            Error::invalid_argument);
  const std::string largest(kValueBytesMax, '\xee');
  put("a", largest);
  EXPECT_EQ(get("a")->value, largest);
}

TEST_P(RegistryConformance, NothingIsSentBehindItsDeadline) {
  const uint64_t past = registry_->now_us() - 1;
  EXPECT_EQ(code_of(registry_->change(Change::create(key("a"), "x"), past).status()),
            Error::timed_out);
  EXPECT_EQ(code_of(registry_->get(key("a"), past).status()), Error::timed_out);
  EXPECT_EQ(code_of(registry_->list(key("a"), past).status()), Error::timed_out);
  EXPECT_EQ(code_of(registry_->grant_lease(1, nullptr, past).status()), Error::timed_out);
  EXPECT_TRUE(is_not_found(get("a").status()));
}

TEST_P(RegistryConformance, ALeaseIsKeptFarBeyondItsTimeAndItsKeysWithIt) {
  std::atomic<int> lost{0};
  auto lease = registry_->grant_lease(
      1, [&](LeaseId) { lost++; }, deadline());
  ASSERT_TRUE(lease.ok()) << lease.status();
  ASSERT_TRUE(registry_->change(Change::create(key("a"), "x", (*lease)->id()), deadline()).ok());
  EXPECT_EQ(get("a")->lease, (*lease)->id());
  const uint64_t until = registry_->now_us() + 2'500'000;
  ASSERT_TRUE(world_->wait_until([&] { return registry_->now_us() > until; }));
  EXPECT_TRUE((*lease)->valid());
  EXPECT_GT((*lease)->remaining_us(), 0u);
  EXPECT_EQ(lost.load(), 0);
  EXPECT_TRUE(get("a").ok());
}

TEST_P(RegistryConformance, ARevokedLeaseTakesItsKeysAlongAndIsNotReportedAsLost) {
  std::atomic<int> lost{0};
  auto lease = registry_->grant_lease(
      60, [&](LeaseId) { lost++; }, deadline());
  ASSERT_TRUE(lease.ok()) << lease.status();
  const Version version =
      *registry_->change(Change::create(key("a"), "x", (*lease)->id()), deadline());
  ASSERT_TRUE(registry_->change(Change::create(key("b"), "x", (*lease)->id()), deadline()).ok());
  // A key that is replaced without a lease stays.
  ASSERT_TRUE(registry_->change(Change::replace(key("a"), version, "y"), deadline()).ok());
  EXPECT_TRUE((*lease)->valid());
  EXPECT_TRUE((*lease)->revoke(deadline()).ok());
  EXPECT_FALSE((*lease)->valid());
  EXPECT_EQ((*lease)->remaining_us(), 0u);
  EXPECT_TRUE(is_not_found(get("b").status()));
  EXPECT_EQ(get("a")->value, "y");
  EXPECT_TRUE((*lease)->revoke(deadline()).ok());  // it is gone: that is what was wanted
  EXPECT_EQ(
      code_of(
          registry_->change(Change::create(key("c"), "x", (*lease)->id()), deadline()).status()),
      Error::not_found);
  EXPECT_TRUE(is_not_found(get("c").status()));
  lease->reset();
  EXPECT_EQ(lost.load(), 0);
}

TEST_P(RegistryConformance, ALeaseThatNobodyKeepsRunsOut) {
  auto other = world_->connect();
  {
    auto lease = other->grant_lease(1, nullptr, deadline());
    ASSERT_TRUE(lease.ok()) << lease.status();
    ASSERT_TRUE(other->change(Change::create(key("a"), "x", (*lease)->id()), deadline()).ok());
  }
  EXPECT_TRUE(world_->wait_until([&] { return is_not_found(get("a").status()); }));
}

// RG5
TEST_P(RegistryConformance, AWatchTellsWhatIsThereAndThenEveryChangeInOrder) {
  const Version a = put("w/a", "1");
  put("other", "x");
  Seen seen;
  const auto watch = registry_->watch(key("w/"), seen.handler());
  ASSERT_TRUE(world_->wait_until([&] { return !seen.batches().empty(); }));
  const WatchBatch first = seen.batches()[0];
  EXPECT_TRUE(first.snapshot);
  EXPECT_EQ(first.events, (std::vector<WatchEvent>{{false, {key("w/a"), "1", a, {}}}}));

  const Version b = put("w/b", "2");
  const Change both[] = {Change::replace(key("w/a"), a, "3"), Change::remove(key("w/b"), b),
                         Change::create(key("w/c"), "4"), Change::create(key("outside"), "5")};
  const Version last = *registry_->change(both, deadline());
  ASSERT_TRUE(world_->wait_until([&] { return seen.batches().back().at >= last; }));
  std::vector<WatchEvent> events;
  for (const WatchBatch& batch : seen.batches()) {
    if (batch.snapshot) continue;
    size_t of_last = 0;
    for (const WatchEvent& event : batch.events) of_last += event.entry.version == last;
    EXPECT_TRUE(of_last == 0 || of_last == 3);  // together
    events.insert(events.end(), batch.events.begin(), batch.events.end());
  }
  EXPECT_EQ(seen.snapshots(), 1u);
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0], (WatchEvent{false, {key("w/b"), "2", b, {}}}));
  EXPECT_EQ(seen.entries(),
            (std::vector<KeyValue>{{key("w/a"), "3", last, {}}, {key("w/c"), "4", last, {}}}));
}

TEST_P(RegistryConformance, AWatchOfNothingBeginsWithAnEmptySnapshot) {
  Seen seen;
  const auto watch = registry_->watch(key("w/"), seen.handler());
  ASSERT_TRUE(world_->wait_until([&] { return !seen.batches().empty(); }));
  EXPECT_TRUE(seen.batches()[0].snapshot);
  EXPECT_TRUE(seen.batches()[0].events.empty());
  put("w/a", "1");
  EXPECT_TRUE(world_->wait_until([&] { return seen.entries().size() == 1; }));
}

TEST_P(RegistryConformance, NoHandlerRunsOnceItsWatchIsDestroyed) {
  std::atomic<bool> gone{false};
  std::atomic<int> late{0};
  auto watch = registry_->watch(key("w/"), [&](const WatchBatch&) { late += gone.load(); });
  Seen seen;
  const auto other = registry_->watch(key("w/"), seen.handler());
  put("w/a", "1");
  watch.reset();
  gone = true;
  put("w/b", "2");
  ASSERT_TRUE(world_->wait_until([&] { return seen.entries().size() == 2; }));
  EXPECT_EQ(late.load(), 0);
}

TEST_P(RegistryConformance, ALargeChangeReachesAWatchWhole) {
  Seen seen;
  const auto watch = registry_->watch(key("w/"), seen.handler());
  ASSERT_TRUE(world_->wait_until([&] { return !seen.batches().empty(); }));
  std::vector<Change> changes;
  for (size_t i = 0; i < 20; i++)
    changes.push_back(
        Change::create(key("w/" + std::to_string(100 + i)), std::string(kValueBytesMax, 'x')));
  const auto done = registry_->change(changes, deadline());
  ASSERT_TRUE(done.ok()) << done.status();
  ASSERT_TRUE(world_->wait_until([&] { return !seen.entries().empty(); }));
  EXPECT_EQ(seen.entries().size(), 20u);
  EXPECT_EQ(seen.snapshots(), 1u);
}

TEST_P(RegistryConformance, ARestartLosesNothingAndWatchesGoOn) {
  Seen seen;
  const auto watch = registry_->watch(key("w/"), seen.handler());
  auto lease = registry_->grant_lease(30, nullptr, deadline());
  ASSERT_TRUE(lease.ok()) << lease.status();
  ASSERT_TRUE(
      registry_->change(Change::create(key("w/leased"), "x", (*lease)->id()), deadline()).ok());
  const Version before = put("w/a", "1");
  ASSERT_TRUE(world_->wait_until([&] { return seen.entries().size() == 2; }));
  world_->restart();
  ASSERT_TRUE(world_->wait_until([&] { return get("w/a").ok(); }));
  EXPECT_EQ(get("w/a")->version, before);
  EXPECT_GT(put("w/a", "2"), before);
  put("w/b", "3");
  ASSERT_TRUE(world_->wait_until([&] { return seen.entries().size() == 3; }));
  EXPECT_EQ(seen.entries()[0].value, "2");
  EXPECT_EQ(seen.snapshots(), 1u);  // it went on where it was
  EXPECT_TRUE((*lease)->valid());
  EXPECT_TRUE(get("w/leased").ok());
}

TEST_P(RegistryConformance, EpochsGrowAndPassFromHolderToHolder) {
  auto other = world_->connect();
  const ClusterKeys keys = *ClusterKeys::of(world_->prefix());
  StreamEpochs mine(registry_.get(), keys);
  StreamEpochs theirs(other.get(), keys);
  auto lease = *registry_->grant_lease(30, nullptr, deadline());
  auto their_lease = *other->grant_lease(30, nullptr, deadline());
  const StreamId stream{7};
  EXPECT_EQ(*mine.current(stream, deadline()), std::nullopt);
  const auto first = mine.acquire({stream, "compute-1", Epoch{41}, {}}, *lease, deadline());
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->epoch, Epoch{42});
  const auto again = mine.acquire({stream, "compute-1", {}, {}}, *lease, deadline());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_GT(again->epoch, first->epoch);
  const auto held = mine.current(stream, deadline());
  ASSERT_TRUE(held.ok() && held->has_value());
  EXPECT_EQ((*held)->epoch, again->epoch);
  EXPECT_EQ((*held)->holder, "compute-1");
  EXPECT_TRUE((*held)->held);
  // SE3
  EXPECT_EQ((*held)->writer, again->writer);
  const auto refused = theirs.acquire({stream, "compute-2", {}, {}}, *their_lease, deadline());
  EXPECT_TRUE(is_in_use(refused.status())) << refused.status();
  // Only whom it has read, not whoever holds it by then.
  const auto late =
      theirs.acquire({stream, "compute-2", {}, first->writer}, *their_lease, deadline());
  EXPECT_TRUE(is_in_use(late.status())) << late.status();
  const auto taken =
      theirs.acquire({stream, "compute-2", {}, (*held)->writer}, *their_lease, deadline());
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_GT(taken->epoch, again->epoch);
  // The first holder's guard does not hold any more, and its release takes nothing away.
  const Change guarded[] = {Change::create(key("guarded"), "x"),
                            Change::require(keys.writer(stream), again->writer)};
  EXPECT_EQ(code_of(registry_->change(guarded, deadline()).status()), Error::conflict);
  EXPECT_TRUE(mine.release(*again, deadline()).ok());
  EXPECT_TRUE((*mine.current(stream, deadline()))->held);
  EXPECT_TRUE(theirs.release(*taken, deadline()).ok());
  EXPECT_FALSE((*mine.current(stream, deadline()))->held);
  const auto last = mine.acquire({stream, "compute-1", {}, {}}, *lease, deadline());
  ASSERT_TRUE(last.ok()) << last.status();
  EXPECT_GT(last->epoch, taken->epoch);
  // Under another lease with the same epoch, as long as nobody followed.
  auto next_lease = *registry_->grant_lease(30, nullptr, deadline());
  const auto renewed = mine.renew(*last, *next_lease, deadline());
  ASSERT_TRUE(renewed.ok()) << renewed.status();
  EXPECT_EQ(renewed->epoch, last->epoch);
  EXPECT_GT(renewed->writer, last->writer);
  EXPECT_TRUE(is_fenced(mine.renew(*again, *next_lease, deadline()).status()));
  const auto back = mine.renew(*renewed, *lease, deadline());
  ASSERT_TRUE(back.ok()) << back.status();
  ASSERT_TRUE(next_lease->revoke(deadline()).ok());
  EXPECT_TRUE((*mine.current(stream, deadline()))->held);
  // A lease that ends frees the stream, and its epoch is not forgotten.
  ASSERT_TRUE(lease->revoke(deadline()).ok());
  EXPECT_TRUE(
      is_lease_lost(mine.acquire({stream, "compute-1", {}, {}}, *lease, deadline()).status()));
  const auto after = theirs.acquire({stream, "compute-2", {}, {}}, *their_lease, deadline());
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_GT(after->epoch, last->epoch);
  EXPECT_EQ(*theirs.current(StreamId{8}, deadline()), std::nullopt);
}

TEST_P(RegistryConformance, MembersComeAndGoWithTheirLeases) {
  Membership membership(registry_.get(), *ClusterKeys::of(world_->prefix()));
  Mutex mutex{LatchRank::kLeaf};
  std::string seen = "none";
  const auto watch = membership.watch([&](const std::vector<Member>& members) {
    const MutexLock lock(mutex);
    seen.clear();
    for (const Member& member : members) seen += member.name + " ";
  });
  const auto sees = [&](const std::string& names) {
    return world_->wait_until([&] {
      const MutexLock lock(mutex);
      return seen == names;
    });
  };
  EXPECT_TRUE(sees(""));
  auto lease = *registry_->grant_lease(30, nullptr, deadline());
  auto short_lease = *registry_->grant_lease(30, nullptr, deadline());
  const Member store{"store-1", Role::kStorage, 11, "127.0.0.1:7101", "127.0.0.1:7201", {}, {}};
  const Member compute{"compute-1", Role::kCompute, 12, "127.0.0.1:7102", "", {}, {}};
  const auto joined = membership.join(store, *lease, deadline());
  ASSERT_TRUE(joined.ok()) << joined.status();
  ASSERT_TRUE(membership.join(compute, *short_lease, deadline()).ok());
  EXPECT_TRUE(sees("compute-1 store-1 "));
  const auto listed = membership.list(deadline());
  ASSERT_TRUE(listed.ok()) << listed.status();
  ASSERT_EQ(listed->size(), 2u);
  EXPECT_EQ((*listed)[1].role, Role::kStorage);
  EXPECT_EQ((*listed)[1].identity, 11u);
  EXPECT_EQ((*listed)[1].address, "127.0.0.1:7101");
  EXPECT_EQ((*listed)[1].status_address, "127.0.0.1:7201");
  EXPECT_EQ((*listed)[1].lease, lease->id());
  EXPECT_EQ((*listed)[1].version, *joined);
  // MB1
  Member thief = store;
  thief.identity = 13;
  EXPECT_TRUE(is_in_use(membership.join(thief, *lease, deadline()).status()));
  Member moved = store;
  moved.address = "127.0.0.1:7103";
  const auto rejoined = membership.join(moved, *lease, deadline());
  ASSERT_TRUE(rejoined.ok()) << rejoined.status();
  EXPECT_TRUE(membership.leave("store-1", *joined, deadline()).ok());  // of an earlier life
  EXPECT_EQ(membership.list(deadline())->size(), 2u);
  ASSERT_TRUE(short_lease->revoke(deadline()).ok());
  EXPECT_TRUE(sees("store-1 "));
  EXPECT_TRUE(membership.leave("store-1", *rejoined, deadline()).ok());
  EXPECT_TRUE(sees(""));
  EXPECT_FALSE(
      membership.join({"-x", Role::kStorage, 1, "a", "", {}, {}}, *lease, deadline()).ok());
  EXPECT_FALSE(membership.join({"x", Role::kStorage, 0, "a", "", {}, {}}, *lease, deadline()).ok());
  EXPECT_FALSE(
      membership.join({"x", Role::kStorage, 1, "a b", "", {}, {}}, *lease, deadline()).ok());
  EXPECT_TRUE(is_lease_lost(membership.join(store, *short_lease, deadline()).status()));
}

TEST_P(RegistryConformance, TheIdentityIsMadeOnceAndThePlacementStepByStep) {
  Topology topology(registry_.get(), *ClusterKeys::of(world_->prefix()));
  const DatabaseIdentity identity{0xfedcba9876543210, "logdb-mv-sr", 1};
  EXPECT_EQ(*topology.identity(deadline()), std::nullopt);
  EXPECT_TRUE(is_wrong_database(topology.check_identity(identity, deadline())));
  ASSERT_TRUE(topology.create_identity(identity, deadline()).ok());
  EXPECT_TRUE(topology.create_identity(identity, deadline()).ok());
  EXPECT_TRUE(topology.check_identity(identity, deadline()).ok());
  EXPECT_EQ(*topology.identity(deadline()), identity);
  DatabaseIdentity other = identity;
  other.profile = "remote-disk";
  const Status refused = topology.create_identity(other, deadline());
  EXPECT_TRUE(is_wrong_database(refused)) << refused;
  EXPECT_NE(refused.message().find("logdb-mv-sr"), absl::string_view::npos) << refused;

  Mutex mutex{LatchRank::kLeaf};
  uint64_t generation = 0;
  auto watch = topology.watch_placement([&](const StatusOr<Placement>& placement) {
    const MutexLock lock(mutex);
    EXPECT_TRUE(placement.ok()) << placement.status();
    if (placement.ok()) generation = placement->generation;
  });
  const auto sees = [&](uint64_t wanted) {
    return world_->wait_until([&] {
      const MutexLock lock(mutex);
      return generation == wanted;
    });
  };
  EXPECT_EQ(topology.placement(deadline())->has_value(), false);
  const std::vector<StorageGroup> groups = {{1, {"store-1", "store-2", "store-3"}, 2}};
  const auto first = topology.change_placement(std::nullopt, groups, deadline());
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->generation, 1u);
  EXPECT_TRUE(sees(1));
  std::vector<StorageGroup> more = groups;
  more.push_back({2, {"store-4"}, 1});
  const auto second = topology.change_placement(*first, more, deadline());
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->generation, 2u);
  EXPECT_TRUE(sees(2));
  // TP2: nobody builds on what is not there any more.
  EXPECT_EQ(code_of(topology.change_placement(*first, groups, deadline()).status()),
            Error::conflict);
  EXPECT_EQ(code_of(topology.change_placement(std::nullopt, more, deadline()).status()),
            Error::conflict);
  const auto read = topology.placement(deadline());
  ASSERT_TRUE(read.ok() && read->has_value());
  EXPECT_EQ((*read)->groups, more);
  EXPECT_EQ((*read)->version, second->version);
  // TP4, TP5
  for (const auto& groups_too_far :
       {std::vector<StorageGroup>{{1, {"store-1", "store-2"}, 2}},
        std::vector<StorageGroup>{{1, {"store-1", "store-8", "store-9"}, 2}},
        std::vector<StorageGroup>{{1, {"store-1", "store-2", "store-3"}, 3}}})
    EXPECT_EQ(code_of(topology.change_placement(*second, groups_too_far, deadline()).status()),
              Error::invalid_argument);
  const auto third =
      topology.change_placement(*second, *with_replaced(*second, "store-2", "store-5"), deadline());
  ASSERT_TRUE(third.ok()) << third.status();
  EXPECT_EQ(third->groups[0].nodes, (std::vector<std::string>{"store-1", "store-5", "store-3"}));
  EXPECT_EQ(third->groups[0].joined, (std::vector<uint64_t>{0, 3, 0}));
  EXPECT_TRUE(third->groups[1].joined.empty());
  EXPECT_EQ(third->groups[0].retired, std::vector<std::string>{"store-2"});
  EXPECT_EQ((*topology.placement(deadline()))->groups, third->groups);
  std::vector<StorageGroup> back = third->groups;
  back[0].nodes[0] = "store-2";
  EXPECT_EQ(code_of(topology.change_placement(*third, back, deadline()).status()),
            Error::invalid_argument);
  // TP3
  watch.reset();
  const std::string placement_key = ClusterKeys::of(world_->prefix())->placement();
  EXPECT_EQ(code_of(topology.change_placement(*third, {}, deadline()).status()),
            Error::invalid_argument);
  EXPECT_EQ(code_of(topology.change_placement(*third, {{1, {"a", "b"}, 3}}, deadline()).status()),
            Error::invalid_argument);
  ASSERT_TRUE(
      registry_
          ->change(Change::replace(placement_key, third->version, "{\"format\":2}"), deadline())
          .ok());
  const auto unreadable = topology.placement(deadline());
  EXPECT_TRUE(is_corruption(unreadable.status())) << unreadable.status();
}

}  // namespace
}  // namespace strata::registry::testing
