// Goal: what one of several servers reads from storage nodes has everything that the memory node
// has made durable there, whichever node is away, late, or was put out without the server having
// heard (SHP1-SHP5). Method: the page source of a writer, as a memory node has it, over stores on
// simulated disks behind sockets (written_cluster.h), beside servers' sources; random failures with
// a model of what was synced (STRATA_SEED, STRATA_ROUNDS).
#include "clients/storage/shared_pages.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "base/aligned.h"
#include "base/rng.h"
#include "written_cluster.h"

namespace strata::testing {
namespace {

using clients::SharedPages;
using clients::SharedPagesOptions;

constexpr SpaceId kSpace{300};

uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

class SharedPagesTest : public ::testing::Test {
 protected:
  SharedPagesTest() {
    cluster_.start_compute();
    EXPECT_TRUE(cluster_.source().sync().ok());  // the registry has a list
    pages_ = server();
    EXPECT_TRUE(pages_->create_space(kSpace).ok());
    EXPECT_TRUE(pages_->grow_space(kSpace, 64).ok());
  }
  ~SharedPagesTest() override { pages_.reset(); }

  std::unique_ptr<SharedPages> server() {
    SharedPagesOptions options;
    options.stream = StreamId{7};
    options.epoch = Epoch{3};
    options.replicas = {cluster_.generation(), cluster_.write_quorum(), {}, {}};
    for (const size_t i : cluster_.members())
      options.replicas.nodes.push_back({cluster_.name_of(i), cluster_.node(i).address()});
    options.call_timeout_us = 1'000'000;
    options.read_timeout_us = 1'500'000;
    auto pages = std::make_unique<SharedPages>(io_.world(), kWrittenSecret, options);
    pages->follow_list(list());
    return pages;
  }
  // As the registry has it.
  std::vector<cluster::InSyncNode> list() {
    std::vector<cluster::InSyncNode> nodes;
    for (const std::string& name : cluster_.listed()) nodes.push_back({name, 1});
    return nodes;
  }
  Status write(uint32_t number, uint64_t llsn) {
    storenode::testing::Batch batch;
    batch.add(PageId{kSpace.value, number}, llsn);
    STRATA_RETURN_IF_ERROR(cluster_.source().write(batch.ids()[0], batch.pages()));
    return cluster_.source().sync();
  }
  // 0: never written.
  StatusOr<uint64_t> read(uint32_t number, uint64_t at_least = 0) {
    const AlignedBytes page(kPageBytes, 4096);
    const Status got = pages_->read(PageId{kSpace.value, number}, Llsn{at_least}, page.get());
    if (is_not_found(got)) return 0;
    STRATA_RETURN_IF_ERROR(got);
    return header_of(page.get())->llsn;
  }

  WrittenCluster cluster_;
  transport::test::IoNode io_;
  std::unique_ptr<SharedPages> pages_;
};

// SHP1: the server's list is an old one, which names the node that is behind.
TEST_F(SharedPagesTest, ANodeThatWasPutOutIsNeverBelievedAlone) {
  ASSERT_TRUE(write(1, 100).ok());
  for (size_t behind = 0; behind < 3; ++behind) {
    cluster_.node(behind).kill();
    const uint64_t llsn = 200 + 100 * behind;
    ASSERT_TRUE(write(1, llsn).ok());
    ASSERT_EQ(cluster_.listed().size(), 2u);
    cluster_.source().nodes()->stop();  // it does not come back
    cluster_.node(behind).start();
    for (int i = 0; i < 6; ++i) {
      const auto got = read(1);
      ASSERT_TRUE(got.ok()) << got.status();
      EXPECT_EQ(*got, llsn);
      EXPECT_EQ(*read(2), 0u);
    }
    cluster_.start_compute();
    ASSERT_TRUE(cluster_.wait_in_sync(3));
    ASSERT_TRUE(cluster_.source().sync().ok());
  }
  EXPECT_GT(pages_->counters().older, 0u);
}

// SHP3: a node without its disk answers that nothing was ever written.
TEST_F(SharedPagesTest, ANodeThatIsNotListedIsNotAsked) {
  ASSERT_TRUE(write(1, 100).ok());
  cluster_.node(0).lose_disk();
  ASSERT_TRUE(write(1, 200).ok());
  cluster_.source().nodes()->stop();
  cluster_.node(0).start();
  pages_->follow_list(list());
  for (int i = 0; i < 6; ++i) EXPECT_EQ(*read(1), 200u);
  // One of the two that are listed is not enough for what may be newer elsewhere, but for what has
  // the llsn that is wanted.
  cluster_.node(1).kill();
  EXPECT_EQ(*read(1, 200), 200u);
  EXPECT_FALSE(read(1).ok());
}

// SHP2
TEST_F(SharedPagesTest, WhatIsOlderThanWantedIsNoAnswer) {
  ASSERT_TRUE(write(1, 100).ok());
  EXPECT_EQ(*read(1, 100), 100u);
  const auto got = read(1, 101);
  EXPECT_TRUE(is_peer_down(got.status())) << got.status();
  EXPECT_TRUE(is_unsupported(pages_->write(PageId{kSpace.value, 1}, nullptr)));
  EXPECT_TRUE(is_unsupported(pages_->sync()));
}

TEST_F(SharedPagesTest, SpacesComeAndGoForAllServers) {  // SHP4
  const std::unique_ptr<SharedPages> other = server();
  ASSERT_TRUE(write(9, 10).ok());
  EXPECT_TRUE(*other->space_exists(kSpace));
  EXPECT_GE(*other->space_pages(kSpace), 64u);
  cluster_.node(2).kill();
  ASSERT_TRUE(pages_->create_space(SpaceId{301}).ok()) << "a quorum is enough";
  EXPECT_TRUE(*other->space_exists(SpaceId{301}));
  cluster_.node(1).kill();
  EXPECT_TRUE(may_be_repeated(pages_->create_space(SpaceId{302})));
  cluster_.node(1).start();
  cluster_.node(2).start();
  ASSERT_TRUE(cluster_.wait_in_sync(3));
  ASSERT_TRUE(pages_->delete_space(kSpace).ok());
  EXPECT_FALSE(*other->space_exists(kSpace));
  EXPECT_TRUE(is_not_found(other->space_pages(kSpace).status()));
}

TEST_F(SharedPagesTest, WhatWasSyncedIsRead) {  // SHP1
  const uint64_t seed = from_environment("STRATA_SEED", 42);
  const uint64_t rounds = from_environment("STRATA_ROUNDS", 150);
  SCOPED_TRACE("STRATA_SEED=" + std::to_string(seed));
  std::printf("STRATA_SEED=%llu\n", static_cast<unsigned long long>(seed));
  Rng rng(seed);
  std::map<uint32_t, uint64_t> synced;
  uint64_t llsn = 0, down = 3;  // 3: none
  uint64_t reads = 0, writes = 0;
  for (uint64_t round = 0; round < rounds && !HasFailure(); ++round) {
    switch (rng.below(6)) {
      case 0:
        if (down != 3) {
          cluster_.node(down).start();
          down = 3;
        } else if (cluster_.in_sync() == 3) {
          down = rng.below(3);
          if (rng.one_in(3))
            cluster_.node(down).lose_power(rng.next());
          else
            cluster_.node(down).kill();
        }
        break;
      case 1:
        if (rng.one_in(3)) pages_->follow_list(list());  // else it has not heard
        break;
      default: {
        const auto number = static_cast<uint32_t>(rng.below(20));
        if (rng.one_in(2)) {
          const Status written = write(number, ++llsn);
          if (written.ok()) synced[number] = llsn;
          ++writes;
        }
        const auto got = read(number);
        if (!got.ok()) {  // too few may be listed, or know what they are asked
          EXPECT_TRUE(may_be_repeated(got.status())) << got.status();
          pages_->follow_list(list());
          continue;
        }
        ++reads;
        const auto known = synced.find(number);
        EXPECT_GE(*got, known == synced.end() ? 0 : known->second);
      }
    }
  }
  EXPECT_GT(reads, rounds / 10);
  std::printf("%llu reads, %llu writes, %llu older versions met\n",
              static_cast<unsigned long long>(reads), static_cast<unsigned long long>(writes),
              static_cast<unsigned long long>(pages_->counters().older.load()));
}

}  // namespace
}  // namespace strata::testing
