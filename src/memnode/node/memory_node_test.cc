// A memory node from its start to its end, with the registry in memory, which lives in a thread:
// what it refuses, whom it attaches, what the next process finds.
#include "memnode/node/memory_node.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <thread>

#include "base/clock.h"
#include "base/diag.h"
#include "base/testing/wait_until.h"
#include "cluster/memory_pools.h"
#include "cluster/stream_epochs.h"
#include "cluster/testing/held_by.h"
#include "memnode/service/testing/memory_node_fixture.h"
#include "proto/calls/calls.h"
#include "proto/calls/testing/other_build.h"
#include "proto/memory_messages.h"
#include "proto/methods.h"
#include "registry/sim/testing/sim_thread.h"
#include "transport/calls/blocking_channel.h"
#include "transport/calls/testing/io_node.h"
#include "transport/regions/remote_region.h"

namespace strata::memnode {
namespace {

using strata::testing::wait_until;

constexpr StreamId kStream{1};
constexpr PageId kPage{300, 7};
const transport::Secret kSecret = transport::test::secret_of('s');

bool says(const Status& status, const std::string& text) {
  return std::string(status.message()).find(text) != std::string::npos;
}

class MemoryNodeTest : public ::testing::Test {
 protected:
  MemoryNodeTest() {
    set_diag_sink([](Severity, std::string_view) {});
  }
  ~MemoryNodeTest() override { set_diag_sink(nullptr); }

  NodeOptions options(const std::string& name = "m1") {
    NodeOptions options;
    options.name = name;
    options.directory = folder_ / name;
    options.listen = {"unix:" + (folder_ / (name + ".socket"))};
    options.memory_bytes = 8u << 20;
    options.workers = 2;
    options.call_timeout_us = 500'000;
    return options;
  }
  StatusOr<std::unique_ptr<MemoryNode>> open(NodeOptions options) {
    return MemoryNode::open(registry_.get(), files_.get(), kSecret, std::move(options));
  }
  Status refusal(NodeOptions options) { return open(std::move(options)).status(); }
  std::vector<cluster::Member> members() {
    cluster::Membership membership(watcher_.get(), keys_);
    return *membership.list(watcher_->now_us() + 1'000'000);
  }
  // A writer of the stream, in the place of whoever there was.
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
    if (grant.ok()) writer_ = grant->writer;
    return grant.ok() ? grant->epoch : Epoch{};
  }
  static StatusOr<std::string> call(const std::string& address, uint16_t method, Bytes request,
                                    char secret = 's') {
    transport::BlockingChannel channel(transport::test::secret_of(secret), address, {});
    const auto options = proto::call_of(method, monotonic_us() + 10'000'000);
    transport::BlockingReply reply;
    STRATA_RETURN_IF_ERROR(channel.call(options, request, &reply));
    return std::move(reply.payload);
  }
  static StatusOr<proto::PoolAttachReply> attach(const std::string& address, Epoch epoch,
                                                 uint64_t number, uint64_t incarnation = 0,
                                                 const std::string& token = {}) {
    STRATA_ASSIGN_OR_RETURN(const std::string reply,
                            call(address, proto::kPoolAttach,
                                 proto::encode(proto::PoolAttachRequest{
                                     {kStream, epoch, number, incarnation}, false, 64, token})));
    return proto::decode_pool_attach_reply(reply);
  }
  static Status put(const std::string& address, const proto::PoolUser& user, uint64_t llsn) {
    const std::string page = testing::page_of(kPage, llsn);
    const proto::PoolPutRequest request{user, Lsn{1000}, {{kPage, true, Lsn{100}, Lsn{200}}}, page};
    STRATA_ASSIGN_OR_RETURN(const std::string reply,
                            call(address, proto::kPoolPut, proto::encode(request)));
    STRATA_ASSIGN_OR_RETURN(const auto taken, proto::decode_pool_put_reply(reply));
    return taken.taken.at(0).status;
  }
  static StatusOr<proto::PoolLookupReply::Found> lookup(const std::string& address,
                                                        const proto::PoolUser& user) {
    STRATA_ASSIGN_OR_RETURN(
        const std::string reply,
        call(address, proto::kPoolLookup, proto::encode(proto::PoolPagesRequest{user, {kPage}})));
    STRATA_ASSIGN_OR_RETURN(const auto found, proto::decode_pool_lookup_reply(reply));
    return found.found.at(0);
  }

  const cluster::ClusterKeys keys_ = *cluster::ClusterKeys::of("main");
  transport::test::Folder folder_;
  std::unique_ptr<FileSystem> files_ = make_posix_file_system();
  registry::testing::SimThread sim_;
  std::unique_ptr<registry::SimRegistry> registry_ = sim_.store().connect();
  std::unique_ptr<registry::SimRegistry> watcher_ = sim_.store().connect();
  std::vector<std::unique_ptr<registry::Lease>> leases_;
  registry::Version writer_;  // of the last acquire()
};

TEST_F(MemoryNodeTest, ServesAsAMemberAndLeaves) {  // MY2
  auto node = open(options());
  ASSERT_TRUE(node.ok()) << node.status();
  EXPECT_TRUE((*node)->health().ok()) << (*node)->health();
  ASSERT_EQ(members().size(), 1u);
  EXPECT_EQ(members()[0].role, cluster::Role::kMemory);
  EXPECT_EQ(members()[0].address, (*node)->address());
  const NodeStatus status = (*node)->status();
  EXPECT_EQ(members()[0].identity, status.identity);
  EXPECT_TRUE(status.joined);
  EXPECT_EQ(status.memory_bytes, 8u << 20);
  EXPECT_EQ(status.methods.size(), 12u);
  const Epoch epoch = acquire("compute-1");
  const std::string address = (*node)->address();
  const auto pool = attach(address, epoch, 1);
  ASSERT_TRUE(pool.ok()) << pool.status();
  ASSERT_TRUE(put(address, {kStream, epoch, 1, pool->incarnation}, 5).ok());
  EXPECT_EQ((*node)->status().pools.at(0).counts.dirty, 1u);
  (*node)->stop();
  EXPECT_TRUE(members().empty());
  EXPECT_FALSE(attach(address, epoch, 2).ok());
  EXPECT_FALSE((*node)->health().ok());
  EXPECT_EQ((*node)->status().pools.size(), 1u);
  node->reset();
  node = open(options());
  ASSERT_TRUE(node.ok()) << node.status();
  EXPECT_EQ((*node)->status().identity, status.identity);
}

// RS7, MD3: the memory's layout is of the call that hands it out.
TEST_F(MemoryNodeTest, GivesItsMemoryToNobodyOfAnotherBuild) {
  const auto node = open(options());
  ASSERT_TRUE(node.ok()) << node.status();
  const Epoch epoch = acquire("compute-1");
  transport::BlockingChannel channel(kSecret, (*node)->address(), {});
  transport::BlockingReply reply;
  const proto::PoolAttachRequest request{{kStream, epoch, 1, 0}, false, 64, ""};
  const Status refused = channel.call(
      proto::testing::call_of_other_build(proto::kPoolAttach, monotonic_us() + 10'000'000),
      proto::encode(request), &reply);
  EXPECT_TRUE(is_unsupported(refused) && says(refused, "pool_attach")) << refused;
  EXPECT_TRUE((*node)->status().pools.empty());
  EXPECT_TRUE(attach((*node)->address(), epoch, 1).ok());
}

TEST_F(MemoryNodeTest, AttachesTheLastWriterOfTheStreamOnly) {  // MY3
  const auto node = open(options());
  ASSERT_TRUE(node.ok()) << node.status();
  const std::string address = (*node)->address();
  EXPECT_TRUE(is_invalid_argument(attach(address, Epoch{1}, 1).status())) << "never given";
  const Epoch first = acquire("compute-1");
  EXPECT_TRUE(is_invalid_argument(attach(address, Epoch{first.value + 1}, 1).status()));
  ASSERT_TRUE(attach(address, first, 1).ok());
  const Epoch second = acquire("compute-2");
  const Status late = attach(address, first, 2).status();
  EXPECT_TRUE(is_fenced(late) && says(late, "compute-2")) << late;
  const auto pool = attach(address, second, 1);
  ASSERT_TRUE(pool.ok()) << pool.status();
  EXPECT_TRUE(is_fenced(put(address, {kStream, first, 1, pool->incarnation}, 5)));
  EXPECT_TRUE(put(address, {kStream, second, 1, pool->incarnation}, 5).ok());
}

TEST_F(MemoryNodeTest, WithoutTheRegistryItServesAndAttachesNobody) {  // MY3
  const auto node = open(options());
  ASSERT_TRUE(node.ok()) << node.status();
  const std::string address = (*node)->address();
  const Epoch epoch = acquire("compute-1");
  const auto pool = attach(address, epoch, 1);
  ASSERT_TRUE(pool.ok()) << pool.status();
  const proto::PoolUser user{kStream, epoch, 1, pool->incarnation};
  registry_->set_connected(false);
  const Status refused = attach(address, epoch, 2).status();
  EXPECT_EQ(refused.code(), StatusCode::kUnavailable) << refused;
  EXPECT_TRUE(put(address, user, 5).ok());
  EXPECT_TRUE(lookup(address, user)->there);
  sim_.leap(3'600'000'000);
  EXPECT_TRUE(wait_until([&] { return !(*node)->status().joined; }));
  EXPECT_TRUE(says((*node)->health(), "not a member")) << (*node)->health();
  EXPECT_TRUE(lookup(address, user)->there);
  registry_->set_connected(true);
  EXPECT_TRUE(wait_until([&] { return (*node)->health().ok(); }));
  EXPECT_TRUE(attach(address, epoch, 2).ok());
}

TEST_F(MemoryNodeTest, TheNextProcessFindsThePages) {  // MY4
  NodeOptions on_another_medium = options();
  on_another_medium.pools = folder_ / "medium";
  const Epoch epoch = acquire("compute-1");
  auto node = open(on_another_medium);
  ASSERT_TRUE(node.ok()) << node.status();
  const std::string address = (*node)->address();
  const auto pool = attach(address, epoch, 1);
  ASSERT_TRUE(pool.ok()) << pool.status();
  const proto::PoolUser user{kStream, epoch, 1, pool->incarnation};
  ASSERT_TRUE(put(address, user, 5).ok());
  EXPECT_TRUE(*files_->exists(folder_ / "medium/pool-1"));
  // Who has it mapped keeps nobody out.
  auto old_channel = std::make_shared<transport::BlockingChannel>(
      kSecret, address, transport::BlockingChannelOptions{});
  const auto old_region = transport::open_remote_region(
      old_channel, pool->region, transport::RegionPath::kMapped, monotonic_us() + 10'000'000);
  ASSERT_TRUE(old_region.ok()) << old_region.status();
  node->reset();
  node = open(on_another_medium);
  ASSERT_TRUE(node.ok()) << node.status();
  EXPECT_TRUE(is_not_found(put(address, user, 6))) << "nobody is attached yet";
  const auto again = attach(address, epoch, 2, pool->incarnation);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_FALSE(again->made);
  const auto found = lookup(address, {kStream, epoch, 2, pool->incarnation});
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_TRUE(found->there && found->at.dirty);
  EXPECT_EQ(found->at.llsn, Llsn{5});
  // The region that peers map has that very page.
  auto channel = std::make_shared<transport::BlockingChannel>(kSecret, address,
                                                              transport::BlockingChannelOptions{});
  const auto region = transport::open_remote_region(
      channel, again->region, transport::RegionPath::kMapped, monotonic_us() + 10'000'000);
  ASSERT_TRUE(region.ok()) << region.status();
  std::string page(kPageBytes, '\0');
  ASSERT_TRUE((*region)
                  ->get(again->pages_at + uint64_t{found->at.slot} * kPageBytes,
                        {page.data(), page.size()}, monotonic_us() + 10'000'000)
                  .ok());
  EXPECT_EQ(page, testing::page_of(kPage, 5));
}

TEST_F(MemoryNodeTest, GivesBackWhatTheRegistryDoesNotNameAndNobodyUses) {  // PV4
  NodeOptions impatient = options();
  impatient.unused_us = 50'000;
  const auto node = open(impatient);
  ASSERT_TRUE(node.ok()) << node.status();
  const std::string address = (*node)->address();
  cluster::MemoryPools names(watcher_.get(), keys_);
  const uint64_t deadline = watcher_->now_us() + 10'000'000;
  const Epoch epoch = acquire("compute-1");
  const auto pool = attach(address, epoch, 1);
  ASSERT_TRUE(pool.ok()) << pool.status();
  const auto named =
      names.publish(kStream, writer_, {}, {{{"m1", pool->incarnation, {}, 0}}, Epoch{}}, deadline);
  ASSERT_TRUE(named.ok()) << named.status();
  const proto::PoolUser user{kStream, epoch, 1, pool->incarnation};
  ASSERT_TRUE(put(address, user, 5).ok());
  // It looks every 5 ms, and stays as long as it is named, or the registry cannot say.
  const uint64_t until = monotonic_us() + 150'000;
  EXPECT_TRUE(wait_until([&] { return monotonic_us() > until; }));
  ASSERT_EQ((*node)->status().pools.size(), 1u);
  registry_->set_connected(false);
  ASSERT_TRUE(names.remove(kStream, writer_, *named, deadline).ok());
  const uint64_t until_2 = monotonic_us() + 150'000;
  EXPECT_TRUE(wait_until([&] { return monotonic_us() > until_2; }));
  EXPECT_EQ((*node)->status().pools.size(), 1u);
  registry_->set_connected(true);
  EXPECT_TRUE(wait_until([&] { return (*node)->status().pools.empty(); }));
  EXPECT_EQ((*node)->status().tenants.at(0).used_bytes, 0u);
  EXPECT_TRUE(is_not_found(put(address, user, 6)));
}

TEST_F(MemoryNodeTest, NeverServesTheFileOfAnotherNodeOrCluster) {  // MY5
  NodeOptions first = options();
  first.pools = folder_ / "medium";
  const Epoch epoch = acquire("compute-1");
  auto node = open(first);
  ASSERT_TRUE(node.ok()) << node.status();
  ASSERT_TRUE(attach((*node)->address(), epoch, 1).ok());
  node->reset();
  NodeOptions other = options("m2");
  other.pools = first.pools;
  node = open(other);
  ASSERT_TRUE(node.ok()) << node.status();
  EXPECT_TRUE((*node)->status().pools.empty());
  const auto pool = attach((*node)->address(), epoch, 2);
  ASSERT_TRUE(pool.ok()) << pool.status();
  EXPECT_TRUE(pool->made);
  node->reset();
  other.cluster = "another";
  node = open(other);
  ASSERT_TRUE(node.ok()) << node.status();
  EXPECT_TRUE((*node)->status().pools.empty());
}

TEST_F(MemoryNodeTest, FoldersOfOthersAreRefused) {  // MY1
  NodeOptions first = options();
  first.pools = folder_ / "medium";
  const auto node = open(first);
  ASSERT_TRUE(node.ok()) << node.status();
  EXPECT_TRUE(says(refusal(options()), "in use by another process")) << refusal(options());
  NodeOptions same_pools = options("m2");
  same_pools.pools = first.pools;
  EXPECT_TRUE(says(refusal(same_pools), "in use by another process")) << refusal(same_pools);
  ASSERT_TRUE(open(options("m2")).ok());
  NodeOptions other = options("m3");
  other.directory = folder_ / "m2";
  EXPECT_TRUE(says(refusal(other), "belongs to memory node m2")) << refusal(other);
  EXPECT_EQ(members().size(), 1u);
  // A folder of the same name but another identity is another node.
  NodeOptions again = options();
  again.directory = folder_ / "other";
  again.listen = {"127.0.0.1:0"};
  again.name_wait_us = 100'000;
  EXPECT_TRUE(says(refusal(again), "has another data folder")) << refusal(again);
}

TEST_F(MemoryNodeTest, SettingsThatCannotBeAreRefused) {
  NodeOptions bad = options("../m1");
  EXPECT_TRUE(is_invalid_argument(refusal(bad)));
  bad = options();
  bad.listen = {"localhost:70000"};
  EXPECT_TRUE(is_invalid_argument(refusal(bad))) << refusal(bad);
  bad = options();
  bad.memory_bytes = 0;
  EXPECT_TRUE(is_invalid_argument(refusal(bad)));
  bad = options();
  bad.tenants = {{"../x", "0123456789abcdef", 1u << 20}};
  EXPECT_TRUE(says(refusal(bad), "no name for a tenant")) << refusal(bad);
  bad.tenants = {{"x", "0123456789abcdef", 16u << 20}};
  EXPECT_TRUE(says(refusal(bad), "more than the node's memory")) << refusal(bad);
  EXPECT_TRUE(members().empty());
}

TEST_F(MemoryNodeTest, AFolderInMemoryIsNoPersistentMedium) {
  NodeOptions persistent = options();
  persistent.persistent = true;
  persistent.pools = "/dev/shm/strata-memory-node-test-" + std::to_string(::getpid());
  EXPECT_TRUE(says(refusal(persistent), "is in memory")) << refusal(persistent);
  std::error_code error;
  std::filesystem::remove_all(persistent.pools, error);
  EXPECT_TRUE(members().empty());
}

TEST_F(MemoryNodeTest, TenantsShowTheirToken) {
  NodeOptions with_tenants = options();
  with_tenants.tenants = {{"a", "the token of a.", 4u << 20}};
  with_tenants.advertise = "127.0.0.1:7999";
  const auto node = open(with_tenants);
  ASSERT_TRUE(node.ok()) << node.status();
  EXPECT_EQ(members().at(0).address, "tcp:127.0.0.1:7999");
  const Epoch epoch = acquire("compute-1");
  EXPECT_TRUE(is_invalid_argument(attach((*node)->address(), epoch, 1).status()));
  EXPECT_TRUE(attach((*node)->address(), epoch, 1, 0, "the token of a.").ok());
  EXPECT_EQ((*node)->status().tenants.at(0).name, "a");
  EXPECT_GT((*node)->status().tenants.at(0).used_bytes, 1u << 20);
}

TEST_F(MemoryNodeTest, WhoDoesNotKnowTheSecretGetsNothing) {
  const auto node = open(options());
  ASSERT_TRUE(node.ok()) << node.status();
  const std::string request =
      proto::encode(proto::PoolPagesRequest{{kStream, Epoch{1}, 1, 1}, {kPage}});
  EXPECT_TRUE(is_wrong_secret(call((*node)->address(), proto::kPoolLookup, request, 'x').status()));
  EXPECT_TRUE(is_not_found(call((*node)->address(), proto::kPoolLookup, request).status()));
}

TEST_F(MemoryNodeTest, WaitsForTheRegistryUntilItAnswersOrIsToldToStop) {
  registry_->set_connected(false);
  NodeOptions impatient = options();
  impatient.start_timeout_us = 1;
  EXPECT_EQ(refusal(impatient).code(), StatusCode::kUnavailable);
  StopFlag stop;
  NodeOptions stopped = options();
  stopped.stop = &stop;
  Status refused;
  std::thread starter([&] { refused = refusal(stopped); });
  stop.raise();
  starter.join();
  EXPECT_EQ(refused.code(), StatusCode::kCancelled) << refused;
}

}  // namespace
}  // namespace strata::memnode
