// Goal: what a compute node does with a remote pool (clients/memory) and what a memory node does
// with its calls (memnode/node) fit together: over restarts, take-overs, lost answers, a node that
// fails in the middle, garbage and wrong tokens. Method: the real PoolClient and the real
// MemoryNode over sockets in one process, the registry in memory; over a mapping with pages pulled
// and with pages carried, and by calls over TCP.
#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "base/clock.h"
#include "base/diag.h"
#include "base/fault.h"
#include "base/testing/wait_until.h"
#include "clients/memory/pool_client.h"
#include "clients/memory/testing/pages.h"
#include "cluster/memory_pools.h"
#include "cluster/stream_epochs.h"
#include "cluster/testing/held_by.h"
#include "memnode/node/memory_node.h"
#include "registry/sim/testing/sim_thread.h"
#include "transport/calls/testing/io_node.h"

namespace strata {
namespace {

using clients::PoolClient;
using clients::PoolClientOptions;
using clients::SlotRead;
using clients::testing::make_page;
using memnode::MemoryNode;

constexpr StreamId kStream{1};
constexpr PageId kPage{300, 7};
constexpr PageId kOther{300, 8};
const transport::Secret kSecret = transport::test::secret_of('s');

enum class Way : uint8_t { kPulled, kCarried, kTcp };

class PoolOnMemoryNode : public ::testing::TestWithParam<Way> {
 protected:
  PoolOnMemoryNode() {
    set_diag_sink([](Severity, std::string_view) {});
    start();
    epoch_ = acquire("compute-1");
    client_ = client(epoch_);
  }
  ~PoolOnMemoryNode() override {
    disarm_faults();
    client_.reset();
    node_.reset();
    set_diag_sink(nullptr);
  }
  void start() {
    memnode::NodeOptions options;
    options.name = "m1";
    options.directory = folder_ / "m1";
    options.listen = {"unix:" + (folder_ / "m1.socket"), "127.0.0.1:" + std::to_string(port_)};
    options.memory_bytes = 8u << 20;
    options.tenants = {{"shop", "the token of shop", 8u << 20}};
    options.workers = 2;
    options.call_timeout_us = 2'000'000;
    auto node = MemoryNode::open(registry_.get(), files_.get(), kSecret, options);
    ASSERT_TRUE(node.ok()) << node.status();
    node_ = *std::move(node);
    const std::string tcp = node_->status().addresses.at(1);
    port_ = std::stoi(tcp.substr(tcp.rfind(':') + 1));
  }
  // As after a kill: what its memory had is what its file has.
  void restart() {
    node_.reset();
    start();
  }
  std::unique_ptr<PoolClient> client(Epoch epoch, const std::string& token = "the token of shop",
                                     char secret = 's') const {
    PoolClientOptions options;
    options.stream = kStream;
    options.epoch = epoch;
    options.token = token;
    options.slots_max = 64;
    options.call_timeout_us = call_timeout_us_;
    options.places = GetParam() == Way::kPulled ? 4 : 0;
    return std::make_unique<PoolClient>(transport::test::secret_of(secret),
                                        GetParam() == Way::kTcp
                                            ? "tcp:127.0.0.1:" + std::to_string(port_)
                                            : "unix:" + (folder_ / "m1.socket"),
                                        options);
  }
  Epoch acquire(const std::string& holder) {
    const uint64_t deadline = watcher_->now_us() + 10'000'000;
    auto lease = watcher_->grant_lease(
        600, [](registry::LeaseId) {}, deadline);
    EXPECT_TRUE(lease.ok()) << lease.status();
    leases_.push_back(*std::move(lease));
    cluster::StreamEpochs epochs(watcher_.get(), keys_);
    const auto grant = epochs.acquire(
        {kStream, holder, Epoch{}, cluster::testing::held_by(&epochs, kStream, deadline)},
        *leases_.back(), deadline);
    EXPECT_TRUE(grant.ok()) << grant.status();
    return grant.ok() ? grant->epoch : Epoch{};
  }
  static uint64_t soon() { return monotonic_us() + 10'000'000; }
  static Status put(PoolClient* client, PageId id, uint64_t llsn) {
    const auto taken =
        client->put({{id, true, Lsn{100}, Lsn{200}}}, make_page(id, Llsn{llsn}), Lsn{1000});
    return taken.ok() ? taken->at(0).status : taken.status();
  }
  // Found where the node says, whole.
  static void expect_there(PoolClient* client, PageId id, uint64_t llsn) {
    const auto found = client->lookup({id});
    ASSERT_TRUE(found.ok()) << found.status();
    ASSERT_TRUE(found->at(0).there);
    EXPECT_TRUE(found->at(0).at.dirty);
    std::string page(kPageBytes, 'x');
    SlotRead read{id, found->at(0).at, page.data(), {}};
    client->read_slots(absl::MakeSpan(&read, 1));
    ASSERT_TRUE(read.status.ok()) << read.status;
    EXPECT_EQ(page, make_page(id, Llsn{llsn}));
  }
  uint64_t value(const char* name) {
    for (const auto& of : node_->status().values)
      if (std::strcmp(of.name, name) == 0) return of.value;
    ADD_FAILURE() << name;
    return 0;
  }

  const cluster::ClusterKeys keys_ = *cluster::ClusterKeys::of("main");
  transport::test::Folder folder_;
  std::unique_ptr<FileSystem> files_ = make_posix_file_system();
  registry::testing::SimThread sim_;
  std::unique_ptr<registry::SimRegistry> registry_ = sim_.store().connect();
  std::unique_ptr<registry::SimRegistry> watcher_ = sim_.store().connect();
  std::vector<std::unique_ptr<registry::Lease>> leases_;
  int port_ = 0;
  uint64_t call_timeout_us_ = 10'000'000;
  std::unique_ptr<MemoryNode> node_;
  Epoch epoch_;
  std::unique_ptr<PoolClient> client_;
};

TEST_P(PoolOnMemoryNode, PagesSurviveRestartsOfTheNode) {
  const auto pool = client_->attach(0, /*fresh=*/true, soon());
  ASSERT_TRUE(pool.ok()) << pool.status();
  EXPECT_TRUE(pool->made);
  EXPECT_EQ(client_->pulls(), GetParam() == Way::kPulled);
  EXPECT_EQ(client_->one_sided(), GetParam() != Way::kTcp);
  ASSERT_TRUE(put(client_.get(), kPage, 5).ok());
  ASSERT_TRUE(client_->checkpoint(Lsn{90}, 3).ok());
  expect_there(client_.get(), kPage, 5);
  EXPECT_EQ(value("pool_images_pulled_total"), GetParam() == Way::kPulled ? 1u : 0u);
  for (uint64_t round = 0; round < 3; ++round) {
    restart();
    const Status early = put(client_.get(), kOther, round + 1);
    EXPECT_FALSE(early.ok()) << "nobody is attached to the new process";
    const auto again = client_->attach(pool->incarnation, /*fresh=*/false, soon());
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_FALSE(again->made);
    EXPECT_EQ(again->checkpoint, Lsn{90});
    EXPECT_EQ(client_->pulls(), GetParam() == Way::kPulled) << "out of other memory";
    expect_there(client_.get(), kPage, 5 + round);
    ASSERT_TRUE(put(client_.get(), kPage, 6 + round).ok());
    expect_there(client_.get(), kPage, 6 + round);
  }
  const auto listed = client_->list(0);
  ASSERT_TRUE(listed.ok());
  EXPECT_EQ(listed->pages.size(), 1u);
}

TEST_P(PoolOnMemoryNode, ASecondUserEndsTheFirst) {
  const auto pool = client_->attach(0, true, soon());
  ASSERT_TRUE(pool.ok()) << pool.status();
  ASSERT_TRUE(put(client_.get(), kPage, 5).ok());
  const std::unique_ptr<PoolClient> second = client(acquire("compute-2"));
  const auto taken = second->attach(pool->incarnation, false, soon());
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_TRUE(is_fenced(put(client_.get(), kPage, 6)));
  EXPECT_TRUE(is_fenced(client_->drop({kPage}).status()));
  EXPECT_TRUE(is_fenced(client_->attach(pool->incarnation, false, soon()).status()));
  expect_there(second.get(), kPage, 5);
  ASSERT_TRUE(put(second.get(), kPage, 7).ok());
  expect_there(second.get(), kPage, 7);
  EXPECT_GE(value("pool_stale_calls_total"), 2u);
  EXPECT_GE(value("pool_attach_refused_total"), 1u);
  // The first one's mapping shows the other's pages, whole ones.
  if (GetParam() != Way::kTcp) {
    const auto found = second->lookup({kPage});
    ASSERT_TRUE(found.ok());
    std::string page(kPageBytes, 'x');
    SlotRead read{kPage, found->at(0).at, page.data(), {}};
    client_->read_slots(absl::MakeSpan(&read, 1));
    EXPECT_TRUE(read.status.ok()) << read.status;
  }
}

TEST_P(PoolOnMemoryNode, GarbageAndStrangersAreRefusedCountedAndHarmless) {
  ASSERT_TRUE(client_->attach(0, true, soon()).ok());
  ASSERT_TRUE(put(client_.get(), kPage, 5).ok());
  std::string torn = make_page(kOther, Llsn{9});
  torn[9000] ^= 1;
  const auto taken = client_->put({{kOther, false, {}, {}}, {kPage, true, Lsn{900}, Lsn{1001}}},
                                  torn + make_page(kPage, Llsn{9}), Lsn{1000});
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_TRUE(is_invalid_argument(taken->at(0).status));
  EXPECT_TRUE(is_invalid_argument(taken->at(1).status)) << "K9";
  EXPECT_EQ(value("pool_images_rejected_total"), 2u);
  EXPECT_TRUE(is_invalid_argument(client(epoch_, "another")->attach(0, true, soon()).status()));
  EXPECT_EQ(value("pool_tokens_refused_total"), 1u);
  EXPECT_TRUE(
      is_wrong_secret(client(epoch_, "the token of shop", 'x')->attach(0, true, soon()).status()));
  EXPECT_FALSE(client_->lookup({kOther})->at(0).there);
  expect_there(client_.get(), kPage, 5);
}

// Goal: a place is used again only if the node cannot read it any more (PCL3). Method: answers are
// lost, one after the other, until no place is left; pages go with the calls then; the next
// attachment has places again.
TEST_P(PoolOnMemoryNode, PlacesOfLostCallsAreNotUsedAgainBeforeTheNextAttachment) {
  const auto pool = client_->attach(0, true, soon());
  ASSERT_TRUE(pool.ok()) << pool.status();
  const bool pulled = GetParam() == Way::kPulled;
  for (uint64_t n = 1; n <= 4; ++n) {
    ASSERT_TRUE(arm_fault("memnode_before_reply:1:error"));
    EXPECT_TRUE(is_outcome_unknown(put(client_.get(), kPage, n)));
  }
  EXPECT_EQ(value("pool_images_pulled_total"), pulled ? 4u : 0u);
  ASSERT_TRUE(put(client_.get(), kPage, 9).ok());
  EXPECT_EQ(value("pool_images_pulled_total"), pulled ? 4u : 0u) << "no place was left";
  ASSERT_TRUE(client_->attach(pool->incarnation, false, soon()).ok());
  for (uint64_t n = 10; n < 20; ++n) ASSERT_TRUE(put(client_.get(), kPage, n).ok());
  EXPECT_EQ(value("pool_images_pulled_total"), pulled ? 14u : 0u);
  expect_there(client_.get(), kPage, 19);
}

TEST_P(PoolOnMemoryNode, TheNodeDiesWhileItTakesAPage) {
  const auto pool = client_->attach(0, true, soon());
  ASSERT_TRUE(pool.ok()) << pool.status();
  ASSERT_TRUE(put(client_.get(), kPage, 5).ok());
  const char* const point =
      GetParam() == Way::kPulled ? "memnode_pull_half:1:error" : "memnode_put_half:1:error";
  ASSERT_TRUE(arm_fault(point));
  EXPECT_FALSE(put(client_.get(), kPage, 6).ok());
  restart();
  ASSERT_TRUE(client_->attach(pool->incarnation, false, soon()).ok());
  expect_there(client_.get(), kPage, 5);
  ASSERT_TRUE(put(client_.get(), kPage, 6).ok());
  expect_there(client_.get(), kPage, 6);
}

// Goal: a compute node that dies while its page is being taken leaves the page as it was, or the
// new one whole. Method: the node pauses in the middle, its caller gives up and goes, memory and
// all; the next one looks.
TEST_P(PoolOnMemoryNode, ComputeDiesWhileItsPageIsTaken) {
  call_timeout_us_ = 30'000;
  client_ = client(epoch_);
  const auto pool = client_->attach(0, true, soon());
  ASSERT_TRUE(pool.ok()) << pool.status();
  const char* const point = GetParam() == Way::kPulled ? "memnode_pull_half:1:pause_ms=120"
                                                       : "memnode_put_half:1:pause_ms=120";
  ASSERT_TRUE(arm_fault(point));
  EXPECT_TRUE(is_outcome_unknown(put(client_.get(), kPage, 6)));
  client_.reset();
  call_timeout_us_ = 10'000'000;
  client_ = client(acquire("compute-2"));
  ASSERT_TRUE(client_->attach(pool->incarnation, false, soon()).ok());
  expect_there(client_.get(), kPage, 6);
  ASSERT_TRUE(put(client_.get(), kPage, 7).ok());
  expect_there(client_.get(), kPage, 7);
}

INSTANTIATE_TEST_SUITE_P(Ways, PoolOnMemoryNode,
                         ::testing::Values(Way::kPulled, Way::kCarried, Way::kTcp));

}  // namespace
}  // namespace strata
