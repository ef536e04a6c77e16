// Goal: pages written to several storage nodes are never lost, never old (WN1-WN5, WP1-WP4), while
// nodes stop, lose power or their disks, and compute nodes follow each other. Method: real stores
// and sockets, simulated disks, the registry in memory.
#include <gtest/gtest.h>

#include <thread>

#include "written_cluster.h"

namespace strata::testing {
namespace {

using storenode::testing::Batch;
using storenode::testing::differs;

constexpr SpaceId kSpace{300};
constexpr PageId kPage{300, 7};
using Names = std::vector<std::string>;

class WrittenPages : public ::testing::Test {
 protected:
  explicit WrittenPages(size_t nodes = 3) : cluster_(nodes) {}
  void found() {
    ASSERT_NO_FATAL_FAILURE(cluster_.start_compute());
    ASSERT_TRUE(source().create_space(kSpace).ok());
    ASSERT_TRUE(source().grow_space(kSpace, 64).ok());
  }
  clients::WrittenPageSource& source() { return cluster_.source(); }
  WrittenNodeProcess& node(size_t i) { return cluster_.node(i); }
  Status write(PageId id, uint64_t llsn) {
    const Batch batch = std::move(Batch().add(id, llsn));
    return source().write(id, batch.pages());
  }
  // The page's llsn.
  StatusOr<uint64_t> read(PageId id = kPage) {
    STRATA_RETURN_IF_ERROR(source().read(id, Llsn{}, page_.get()));
    const uint64_t llsn = header_of(page_.get())->llsn;
    EXPECT_EQ(differs(page_.get(), id, llsn), "");
    return llsn;
  }

  // If it is in sync.
  void prefer(size_t node) {
    for (const auto& reader : source().nodes()->readers())
      if (clients::WrittenNodes::address(reader) == this->node(node).address())
        source().nodes()->prefer(reader);
  }
  void expect_on_members(PageId id, uint64_t llsn) {
    for (const size_t i : cluster_.members())
      EXPECT_EQ(node(i).llsn_of(id), llsn) << id.number << " on " << i;
  }
  bool wait_listed(const Names& names) {
    return wait_until([&] { return cluster_.listed() == names; });
  }

  WrittenCluster cluster_;
  const AlignedBytes page_{kPageBytes, 4096};
};

// --- other nodes ---

TEST_F(WrittenPages, ANewNodeTakesAPlaceWhileOthersWrite) {  // WN6
  found();
  for (uint32_t i = 0; i < 300; ++i) ASSERT_TRUE(write({300, i}, 1 + i).ok());
  ASSERT_TRUE(source().sync().ok());
  prefer(0);
  std::atomic<bool> stop{false};
  std::vector<uint64_t> last(300, 0);
  std::thread writer([&] {
    for (uint64_t llsn = 2000; !stop; ++llsn) {
      const auto number = static_cast<uint32_t>(llsn * 7 % 300);
      EXPECT_TRUE(write({300, number}, llsn).ok());
      last[number] = llsn;
    }
  });
  const size_t fresh = cluster_.replace(0);
  node(0).leave_group();
  cluster_.tell();
  EXPECT_TRUE(cluster_.wait_in_sync(3));
  EXPECT_TRUE(wait_listed({"s1", "s2", "s3"})) << "of the one that went nothing counts";
  stop = true;
  writer.join();
  ASSERT_TRUE(source().sync().ok());
  for (uint32_t i = 0; i < 300; ++i) expect_on_members({300, i}, std::max(last[i], 1ul + i));
  node(0).kill();
  node(1).kill();
  ASSERT_TRUE(write(kPage, 100'000).ok());
  EXPECT_EQ(*read(), 100'000u);
  node(fresh).lose_power(3);
  node(fresh).start();
  EXPECT_GE(node(fresh).llsn_of({300, 8}), std::max(last[8], 9ul)) << "synced before it was listed";
}

TEST_F(WrittenPages, ADeadNodeIsReplacedByOneThatDiesWhileItCopies) {
  found();
  for (uint32_t first = 0; first < 2000; first += 20) {
    Batch batch;
    for (uint32_t i = first; i < first + 20; ++i) batch.add({300, i}, 1 + i);
    bool ok[kWriteBatchPages] = {};
    ASSERT_TRUE(source().write_batch(batch.ids(), batch.count(), batch.pages(), ok).ok());
  }
  node(1).kill();
  ASSERT_TRUE(write(kPage, 5000).ok());
  ASSERT_TRUE(source().sync().ok());
  const size_t fresh = cluster_.replace(1);
  cluster_.tell();
  ASSERT_TRUE(wait_until([&] { return node(fresh).store()->counters().pages_taken > 0; }));
  node(fresh).lose_power(7);
  ASSERT_TRUE(write({300, 8}, 5001).ok());
  ASSERT_TRUE(source().sync().ok());
  EXPECT_EQ(cluster_.listed(), (Names{"s0", "s2"}));
  node(fresh).start();
  ASSERT_TRUE(cluster_.wait_in_sync(3));
  expect_on_members(kPage, 5000);
  expect_on_members({300, 8}, 5001);
  expect_on_members({300, 1999}, 2000);
}

TEST_F(WrittenPages, AnAddedNodeCountsOnceItHasEverything) {  // WN1, WN6
  found();
  ASSERT_TRUE(write(kPage, 10).ok());
  ASSERT_TRUE(source().sync().ok());
  const size_t fresh = cluster_.add();
  node(fresh).kill();  // it does not come up at once
  cluster_.tell();
  ASSERT_TRUE(write(kPage, 11).ok()) << "three of four have it";
  node(2).kill();
  EXPECT_TRUE(is_peer_down(write(kPage, 12))) << "two are too few";
  node(fresh).start();
  EXPECT_TRUE(wait_until([&] { return write(kPage, 13).ok(); }));
  ASSERT_TRUE(source().sync().ok());
  EXPECT_EQ(cluster_.listed(), (Names{"s0", "s1", "s3"}));
  node(2).start();
  ASSERT_TRUE(cluster_.wait_in_sync(4));
  EXPECT_TRUE(wait_listed({"s0", "s1", "s2", "s3"}));
  expect_on_members(kPage, 13);
}

TEST_F(WrittenPages, ComputeDiesBetweenThePlacementAndItsList) {  // WN6
  found();
  ASSERT_TRUE(write(kPage, 10).ok());
  ASSERT_TRUE(source().sync().ok());
  const size_t fresh = cluster_.replace(0);
  ASSERT_TRUE(write(kPage, 11).ok()) << "it has not heard of it";
  ASSERT_TRUE(source().sync().ok());
  EXPECT_EQ(cluster_.listed(), (Names{"s0", "s1", "s2"}));
  EXPECT_EQ(node(fresh).store()->session().session, 0u);
  node(0).kill();
  ASSERT_NO_FATAL_FAILURE(cluster_.start_compute());
  EXPECT_EQ(*read(), 11u);
  ASSERT_TRUE(cluster_.wait_in_sync(3));
  EXPECT_TRUE(wait_listed({"s1", "s2", "s3"}));
  expect_on_members(kPage, 11);
}

TEST_F(WrittenPages, WhoIsToldLateOfTwoPlacementsGoesByTheLastOne) {
  found();
  ASSERT_TRUE(write(kPage, 10).ok());
  const size_t fresh = cluster_.add();
  cluster_.tell();
  ASSERT_TRUE(cluster_.wait_in_sync(4));
  clients::ReplicaSet late{1, 2, {}, {}};
  for (size_t i = 0; i < 3; ++i)
    late.nodes.push_back({WrittenCluster::name_of(i), node(i).address()});
  source().follow(late);
  EXPECT_EQ(source().nodes()->states().size(), 4u);
  ASSERT_TRUE(write(kPage, 11).ok());
  EXPECT_EQ(node(fresh).llsn_of(kPage), 11u);
}

TEST_F(WrittenPages, ANodeIsTakenOut) {  // WN7
  found();
  const size_t fresh = cluster_.add();
  cluster_.tell();
  ASSERT_TRUE(cluster_.wait_in_sync(4));
  ASSERT_TRUE(write(kPage, 10).ok());
  EXPECT_FALSE(source().nodes()->prepare_leave("s0", 1, 2)) << "of another placement";
  EXPECT_TRUE(wait_until([&] { return source().nodes()->prepare_leave("s0", 2, 2); }));
  EXPECT_EQ(cluster_.listed(), (Names{"s0", "s1", "s2", "s3"}));
  ASSERT_TRUE(write(kPage, 11).ok());
  EXPECT_EQ(node(0).llsn_of(kPage), 11u) << "it is one of them still";
  cluster_.take_out(0);
  cluster_.tell();
  ASSERT_TRUE(write(kPage, 12).ok());
  EXPECT_EQ(node(0).llsn_of(kPage), 11u);
  ASSERT_TRUE(source().sync().ok());
  EXPECT_EQ(cluster_.listed(), (Names{"s1", "s2", "s3"}));
  EXPECT_EQ(source().nodes()->well(), (std::vector<bool>{true, true, true}));
  node(fresh).kill();
  ASSERT_TRUE(write(kPage, 13).ok()) << "two of three";
}

class FiveNodes : public WrittenPages {
 protected:
  FiveNodes() : WrittenPages(5) {}
};

TEST_F(FiveNodes, NoneLeavesWhileTooFewOthersHaveEverything) {  // WN7
  found();
  ASSERT_TRUE(write(kPage, 10).ok());
  ASSERT_TRUE(source().sync().ok());
  node(3).kill();
  node(4).kill();
  ASSERT_TRUE(write(kPage, 11).ok()) << "three of five";
  EXPECT_FALSE(source().nodes()->prepare_leave("s0", 1, 3));
  EXPECT_TRUE(is_peer_down(write(kPage, 12))) << "without it there are two of four";
  EXPECT_TRUE(is_peer_down(source().sync()));
  EXPECT_EQ(cluster_.listed().size(), 5u);
  source().nodes()->cancel_leave();
  ASSERT_TRUE(write(kPage, 13).ok());
  node(3).start();
  ASSERT_TRUE(wait_listed({"s0", "s1", "s2", "s3"}));
  EXPECT_TRUE(wait_until([&] { return source().nodes()->prepare_leave("s0", 1, 3); }));
  source().nodes()->cancel_leave();
  cluster_.registry()->set_connected(false);
  node(4).start();
  ASSERT_TRUE(cluster_.wait_in_sync(5));
  EXPECT_FALSE(source().nodes()->prepare_leave("s0", 1, 3)) << "nobody knows what the list is";
  cluster_.registry()->set_connected(true);
  EXPECT_TRUE(wait_until([&] { return source().nodes()->prepare_leave("s0", 1, 3); }));
  EXPECT_EQ(cluster_.listed().size(), 5u);
}

TEST_F(WrittenPages, WhenNobodyInSyncHasAPlaceRecoveryHasToDoIt) {  // WN6, WN4
  found();
  ASSERT_TRUE(write(kPage, 10).ok());
  ASSERT_TRUE(source().sync().ok());
  node(1).kill();
  node(2).kill();
  EXPECT_TRUE(is_peer_down(write(kPage, 11)));
  cluster_.replace(0);
  cluster_.tell();
  EXPECT_TRUE(is_ended(write(kPage, 11)));
  EXPECT_TRUE(is_ended(source().sync()));
  node(1).start();
  node(2).start();
  ASSERT_NO_FATAL_FAILURE(cluster_.start_compute());
  EXPECT_EQ(*read(), 10u) << "of the last checkpoint";
  ASSERT_TRUE(write(kPage, 12).ok());
  ASSERT_TRUE(cluster_.wait_in_sync(3));
  expect_on_members(kPage, 12);
}

TEST_F(WrittenPages, ANewNodeIsListedOnceTheRegistryIsBack) {  // WN2, WN6
  found();
  ASSERT_TRUE(write(kPage, 10).ok());
  ASSERT_TRUE(source().sync().ok());
  cluster_.replace(2);
  cluster_.registry()->set_connected(false);
  cluster_.tell();
  ASSERT_TRUE(cluster_.wait_in_sync(3));
  ASSERT_TRUE(write(kPage, 11).ok());
  EXPECT_FALSE(source().sync().ok());
  EXPECT_EQ(*read(), 11u);
  cluster_.registry()->set_connected(true);
  EXPECT_EQ(cluster_.listed(), (Names{"s0", "s1", "s2"}));
  EXPECT_TRUE(wait_until([&] { return source().sync().ok(); }));
  EXPECT_EQ(cluster_.listed(), (Names{"s0", "s1", "s3"}));
}

// --- one placement ---

TEST_F(WrittenPages, AreOnEveryNodeAndComeBack) {
  found();
  EXPECT_EQ(cluster_.listed(), (Names{"s0", "s1", "s2"}));
  Batch batch;
  for (uint32_t i = 0; i < kWriteBatchPages; ++i) batch.add({300, i}, 10 + i);
  bool ok[kWriteBatchPages] = {};
  ASSERT_TRUE(source().write_batch(batch.ids(), batch.count(), batch.pages(), ok).ok());
  EXPECT_EQ(std::count(ok, ok + batch.count(), true), batch.count());
  ASSERT_TRUE(source().sync().ok());
  for (size_t i = 0; i < 3; ++i) {
    for (uint32_t n = 0; n < kWriteBatchPages; ++n) EXPECT_EQ(node(i).llsn_of({300, n}), 10 + n);
    EXPECT_EQ(node(i).store()->counters().syncs, 1u);
  }
  EXPECT_EQ(*read({300, 20}), 30u);
  EXPECT_TRUE(is_not_found(read({300, 64}).status()));
  std::vector<PageId> ids;
  for (uint32_t n = 56; n < 56 + kReadBatchPages; ++n) ids.push_back({300, n});
  const AlignedBytes pages(kReadBatchPages * size_t{kPageBytes}, 4096);
  Status results[kReadBatchPages];
  source().read_batch(ids.data(), kReadBatchPages, pages.get(), results);
  for (uint32_t i = 0; i < kReadBatchPages; ++i) {
    EXPECT_EQ(results[i].ok(), i < 8) << results[i];
    if (!results[i].ok()) continue;
    EXPECT_EQ(differs(pages.get() + i * kPageBytes, ids[i], 66 + i), "");
  }
  EXPECT_EQ(*source().list_spaces(), std::vector<SpaceId>{kSpace});
  EXPECT_EQ(source().counters().pages_written, kWriteBatchPages);
  ASSERT_TRUE(source().delete_space(kSpace).ok());
  EXPECT_FALSE(*source().space_exists(kSpace));
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(node(i).store()->list_spaces()->empty());
}

TEST_F(WrittenPages, ANodeThatIsAwayIsPutOutAndComesBackWithEverything) {  // WN1, WN2, WN5
  found();
  ASSERT_TRUE(write(kPage, 10).ok());
  ASSERT_TRUE(source().sync().ok());
  node(1).kill();
  ASSERT_TRUE(write(kPage, 11).ok());
  ASSERT_TRUE(write({300, 8}, 12).ok());
  EXPECT_EQ(cluster_.in_sync(), 2u);
  EXPECT_EQ(cluster_.listed().size(), 3u) << "nothing was promised yet";
  ASSERT_TRUE(source().sync().ok());
  EXPECT_EQ(cluster_.listed(), (Names{"s0", "s2"}));
  EXPECT_EQ(*read(), 11u);
  const auto states = source().nodes()->states();
  EXPECT_FALSE(states[1].in_sync);
  EXPECT_NE(states[1].why, "");

  ASSERT_TRUE(source().create_space(SpaceId{301}).ok());
  ASSERT_TRUE(write({301, 3}, 13).ok());
  node(1).start();
  ASSERT_TRUE(cluster_.wait_in_sync(3));
  EXPECT_EQ(node(1).llsn_of(kPage), 11u);
  EXPECT_EQ(node(1).llsn_of({300, 8}), 12u);
  EXPECT_EQ(node(1).llsn_of({301, 3}), 13u);
  EXPECT_TRUE(wait_until([&] { return cluster_.listed() == Names({"s0", "s1", "s2"}); }));
  node(1).lose_power(5);
  node(1).start();
  EXPECT_EQ(node(1).llsn_of({301, 3}), 13u) << "it was synced before it was called in sync";
}

TEST_F(WrittenPages, TooFewNodesTakeNothing) {  // WN1
  found();
  ASSERT_TRUE(write(kPage, 10).ok());
  ASSERT_TRUE(source().sync().ok());
  node(0).kill();
  node(2).kill();
  EXPECT_TRUE(is_peer_down(write(kPage, 11)));
  EXPECT_TRUE(is_peer_down(write(kPage, 12)));
  EXPECT_TRUE(is_peer_down(source().sync()));
  EXPECT_EQ(cluster_.listed().size(), 3u) << "it never names fewer than a write quorum";
  EXPECT_GE(*read(), 10u);
  node(0).start();
  ASSERT_TRUE(cluster_.wait_in_sync(2));
  ASSERT_TRUE(write(kPage, 13).ok());
  ASSERT_TRUE(source().sync().ok());
  EXPECT_EQ(cluster_.listed(), (Names{"s0", "s1"}));
  EXPECT_EQ(node(0).llsn_of(kPage), 13u);
}

TEST_F(WrittenPages, ARestartedNodeIsNotTakenAtItsWord) {  // WN4: it lost a write nobody synced
  found();
  ASSERT_TRUE(write(kPage, 10).ok());
  ASSERT_TRUE(source().sync().ok());
  ASSERT_TRUE(write(kPage, 11).ok());
  node(0).lose_power(3);
  node(0).start();
  EXPECT_EQ(*read(), 11u) << "whatever is left of it there";
  ASSERT_TRUE(write({300, 9}, 12).ok());
  ASSERT_TRUE(cluster_.wait_in_sync(3));
  EXPECT_EQ(node(0).llsn_of(kPage), 11u);
  EXPECT_EQ(node(0).llsn_of({300, 9}), 12u);
  ASSERT_TRUE(source().sync().ok());
}

// All that had every page lose power at once: what they had acknowledged and not synced comes back
// from this compute node, and it goes on by itself.
TEST_F(WrittenPages, WhenAllAreRestartedTheyAreToldAgain) {  // WN4
  found();
  ASSERT_TRUE(write(kPage, 10).ok());
  ASSERT_TRUE(source().sync().ok());
  for (uint64_t life = 0; life < 3; ++life) {
    ASSERT_TRUE(write(kPage, 20 + life).ok());
    const SpaceId made{400 + static_cast<uint32_t>(life)};
    ASSERT_TRUE(source().create_space(made).ok());
    for (uint32_t i = 0; i < 150; ++i) ASSERT_TRUE(write({made.value, i}, 1000 + i).ok());
    for (size_t i = 0; i < 3; ++i) node(i).lose_power(life * 3 + i);
    for (size_t i = 0; i < 3; ++i) node(i).start();
    EXPECT_EQ(*read(), 20 + life);
    ASSERT_TRUE(cluster_.wait_in_sync(3));
    for (uint32_t i = 0; i < 150; ++i) expect_on_members({made.value, i}, 1000 + i);
    expect_on_members(kPage, 20 + life);
    ASSERT_TRUE(write({300, 9}, 30 + life).ok());
    if (life == 1) {
      ASSERT_TRUE(source().sync().ok());
    }
  }
  EXPECT_TRUE(source().nodes()->ended().ok());
  ASSERT_TRUE(source().sync().ok());
  ASSERT_NO_FATAL_FAILURE(cluster_.start_compute());
  EXPECT_EQ(*read(), 22u);
}

TEST_F(WrittenPages, AWriteQuorumOfTheRestartedIsEnough) {  // WN4
  found();
  ASSERT_TRUE(write(kPage, 10).ok());
  for (size_t i = 0; i < 3; ++i) node(i).lose_power(i);
  node(0).start();
  EXPECT_FALSE(write({300, 9}, 11).ok()) << "one is too few";
  EXPECT_TRUE(source().nodes()->ended().ok());
  node(2).start();
  EXPECT_EQ(*read(), 10u);
  ASSERT_TRUE(wait_until([&] { return write({300, 9}, 12).ok(); }));
  ASSERT_TRUE(source().sync().ok());
  EXPECT_EQ(cluster_.listed(), (Names{"s0", "s2"}));
  node(1).start();
  ASSERT_TRUE(cluster_.wait_in_sync(3));
  expect_on_members(kPage, 10);
  expect_on_members({300, 9}, 12);
}

TEST_F(WrittenPages, LittleIsRememberedOfWhatIsNotSynced) {  // WN4
  cluster_.options.nodes.unsynced_bytes_max = 4 * kPageBytes;
  found();
  for (uint32_t i = 0; i < 40; ++i) ASSERT_TRUE(write({300, i}, 1 + i).ok());
  EXPECT_GE(node(0).store()->counters().syncs.load(), 9u);
  for (size_t i = 0; i < 3; ++i) node(i).lose_power(i);
  for (size_t i = 0; i < 3; ++i) node(i).start();
  for (uint32_t i = 0; i < 40; ++i) EXPECT_EQ(*read({300, i}), 1u + i);
}

TEST_F(WrittenPages, TheNextComputeNodeFencesTheOneBefore) {
  found();
  ASSERT_TRUE(write(kPage, 10).ok());
  const proto::Writer old = node(0).store()->session();
  ASSERT_NO_FATAL_FAILURE(cluster_.start_compute());
  EXPECT_GT(node(0).store()->session().epoch, old.epoch);
  const Batch late = std::move(Batch().add(kPage, 9));
  EXPECT_TRUE(is_fenced(node(0).store()->write(old, late.ids(), 1, late.pages())));
  EXPECT_EQ(*read(), 10u);
}

TEST_F(WrittenPages, CopiesThatDifferAreAlikeOnceTheyAreWrittenAgain) {  // WP3
  found();
  ASSERT_TRUE(write(kPage, 10).ok());
  ASSERT_TRUE(source().sync().ok());
  // A life that ended in the middle of a write: one node has it.
  const Batch half = std::move(Batch().add(kPage, 11));
  ASSERT_TRUE(node(2).store()->write(node(2).store()->session(), half.ids(), 1, half.pages()).ok());
  ASSERT_NO_FATAL_FAILURE(cluster_.start_compute());
  // Recovery may read the newer copy: it writes it all the same.
  ASSERT_TRUE(write(kPage, 11).ok());
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(node(i).llsn_of(kPage), 11u);
}

TEST_F(WrittenPages, ADamagedOrOldCopyIsReplacedByAGoodOne) {  // WP2
  found();
  ASSERT_TRUE(write(kPage, 10).ok());
  ASSERT_TRUE(write({300, 8}, 11).ok());
  ASSERT_TRUE(source().sync().ok());
  const uint64_t at = (7 * uint64_t{kPageBytes} + 5000) * 8;
  node(0).disk()->flip_bit("/node/pages/space-0000012c.pages", at);
  EXPECT_EQ(*read(), 10u);
  EXPECT_EQ(source().counters().repaired, 1u);
  EXPECT_EQ(node(0).llsn_of(kPage), 10u);
  // A write that the disk lost: an older version is there, whole.
  prefer(0);
  const Batch old = std::move(Batch().add({300, 8}, 4));
  ASSERT_TRUE(node(0).store()->write(node(0).store()->session(), old.ids(), 1, old.pages()).ok());
  EXPECT_EQ(*read({300, 8}), 11u);
  EXPECT_EQ(node(0).llsn_of({300, 8}), 11u);
  EXPECT_EQ(source().counters().bad_pages, 2u);
  // On all of them it is damage.
  for (size_t i = 0; i < 3; ++i) node(i).disk()->flip_bit("/node/pages/space-0000012c.pages", at);
  EXPECT_TRUE(is_corruption(read().status())) << read().status();
}

// Nobody reads the damaged page meanwhile, so nobody mends it.
TEST_F(WrittenPages, ADamagedPageOfOneNodeKeepsNoOtherOut) {  // WN8
  found();
  ASSERT_TRUE(write(kPage, 10).ok());
  ASSERT_TRUE(source().sync().ok());
  node(1).kill();
  ASSERT_TRUE(write({300, 8}, 11).ok());
  ASSERT_EQ(cluster_.in_sync(), 2u);
  prefer(0);
  node(0).disk()->flip_bit("/node/pages/space-0000012c.pages",
                           (7 * uint64_t{kPageBytes} + 5000) * 8);
  node(1).start();
  EXPECT_TRUE(cluster_.wait_in_sync(3));
  EXPECT_EQ(node(1).llsn_of({300, 8}), 11u);
}

TEST_F(WrittenPages, ANodeWithAnotherDiskHasNothing) {  // NS2
  found();
  ASSERT_TRUE(write(kPage, 10).ok());
  ASSERT_TRUE(source().sync().ok());
  cluster_.stop_compute();
  node(0).lose_disk();
  node(0).start();
  ASSERT_NO_FATAL_FAILURE(cluster_.start_compute());
  prefer(0);
  EXPECT_EQ(*read(), 10u);
  ASSERT_TRUE(cluster_.wait_in_sync(3));
  EXPECT_EQ(node(0).llsn_of(kPage), 10u);
  ASSERT_TRUE(source().sync().ok());
  EXPECT_EQ(cluster_.listed().size(), 3u);
}

TEST_F(WrittenPages, ASpaceThatOneNodeMissedIsMadeAtTheStart) {
  found();
  ASSERT_TRUE(node(1).store()->create_space(node(1).store()->session(), SpaceId{301}).ok());
  ASSERT_NO_FATAL_FAILURE(cluster_.start_compute());
  EXPECT_EQ(source().list_spaces()->size(), 2u);
  EXPECT_TRUE(write({301, 1}, 20).ok());
  EXPECT_EQ(cluster_.in_sync(), 3u);
}

TEST_F(WrittenPages, WhatAFailedFoundingLeftIsForgotten) {
  found();
  ASSERT_TRUE(write(kPage, 10).ok());
  cluster_.founded = false;
  ASSERT_NO_FATAL_FAILURE(cluster_.start_compute());
  EXPECT_TRUE(source().list_spaces()->empty());
  EXPECT_EQ(cluster_.listed().size(), 3u);
}

TEST_F(WrittenPages, AFullDiskIsOneNodesTroubleOnly) {
  found();
  ASSERT_TRUE(write(kPage, 10).ok());
  node(0).disk()->set_capacity(1);
  EXPECT_TRUE(source().grow_space(kSpace, 200).ok());
  EXPECT_EQ(cluster_.in_sync(), 2u);
  node(1).disk()->set_capacity(1);
  EXPECT_TRUE(is_no_space(source().grow_space(kSpace, 600)));
  EXPECT_EQ(cluster_.in_sync(), 2u) << "nobody has what was refused";
  node(0).disk()->set_capacity(uint64_t{1} << 40);
  node(1).disk()->set_capacity(uint64_t{1} << 40);
  EXPECT_TRUE(cluster_.wait_in_sync(3));
}

TEST_F(WrittenPages, NoCheckpointWithoutTheRegistry) {  // WN2
  found();
  ASSERT_TRUE(write(kPage, 10).ok());
  ASSERT_TRUE(source().sync().ok()) << "the list is as it was";
  node(2).kill();
  ASSERT_TRUE(write(kPage, 11).ok());
  cluster_.registry()->set_connected(false);
  EXPECT_FALSE(source().sync().ok());
  cluster_.registry()->set_connected(true);
  EXPECT_TRUE(source().sync().ok());
  EXPECT_EQ(cluster_.listed(), (Names{"s0", "s1"}));
}

TEST_F(WrittenPages, NothingIsMissedByACopyThatRunsWhileOthersWrite) {  // WN5
  found();
  for (uint32_t i = 0; i < 200; ++i) ASSERT_TRUE(write({300, i}, 1 + i).ok());
  node(1).kill();
  ASSERT_TRUE(write(kPage, 1000).ok());
  std::atomic<bool> stop{false};
  std::vector<uint64_t> last(200, 0);
  std::vector<std::thread> writers;
  for (uint32_t part = 0; part < 2; ++part)
    writers.emplace_back([&, part] {
      for (uint64_t llsn = 2000; !stop; ++llsn) {
        const uint32_t number = part * 100 + static_cast<uint32_t>(llsn * 7 % 100);
        if (write({300, number}, llsn).ok()) last[number] = llsn;
      }
    });
  node(1).start();
  EXPECT_TRUE(cluster_.wait_in_sync(3));
  stop = true;
  for (std::thread& writer : writers) writer.join();
  for (uint32_t i = 0; i < 200; ++i)
    for (size_t n = 0; n < 3; ++n) EXPECT_GE(node(n).llsn_of({300, i}), std::max(last[i], 1ul + i));
  for (uint32_t i = 0; i < 200; ++i)
    EXPECT_EQ(node(1).llsn_of({300, i}), node(0).llsn_of({300, i}));
}

TEST_F(WrittenPages, ReadsEndWhenStopped) {  // WP4
  cluster_.options.read_timeout_us = 600'000'000;
  found();
  ASSERT_TRUE(write(kPage, 10).ok());
  for (size_t i = 0; i < 3; ++i) node(i).kill();
  std::thread reader([&] { EXPECT_FALSE(source().read(kPage, Llsn{}, page_.get()).ok()); });
  source().stop();
  reader.join();
}

}  // namespace
}  // namespace strata::testing
