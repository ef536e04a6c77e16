// A storage node from its start to its end, with the registry in memory, which lives in a thread:
// what it refuses, what it makes, how it stays a member.
#include "storenode/node/storage_node.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "base/diag.h"
#include "base/testing/wait_until.h"
#include "cluster/in_sync_nodes.h"
#include "cluster/stream_epochs.h"
#include "proto/calls/calls.h"
#include "proto/calls/testing/other_build.h"
#include "proto/log_messages.h"
#include "proto/methods.h"
#include "proto/page_messages.h"
#include "registry/sim/testing/sim_thread.h"
#include "transport/calls/blocking_channel.h"
#include "transport/calls/testing/io_node.h"

namespace strata::storenode {
namespace {

using strata::testing::wait_until;

const transport::Secret kSecret = transport::test::secret_of('s');

bool says(const Status& status, const std::string& text) {
  return std::string(status.message()).find(text) != std::string::npos;
}

class StorageNodeTest : public ::testing::Test {
 protected:
  StorageNodeTest() {
    set_diag_sink([](Severity, std::string_view) {});
  }
  ~StorageNodeTest() override { set_diag_sink(nullptr); }

  NodeOptions options(const std::string& name = "s1") {
    NodeOptions options;
    options.name = name;
    options.directory = folder_ / name;
    options.listen = {"unix:" + (folder_ / (name + ".socket"))};
    options.initial_group = InitialGroup{{"s1", "s2", "s3"}, 2};
    options.workers = 2;
    options.log.segment_bytes = 1u << 20;
    options.log.spare_segments_max = 0;
    options.pages.page_cache_bytes = 1u << 20;
    options.pages.log_cache_bytes = 1u << 20;
    options.pages.map_bytes = 4u << 20;
    options.pages.memtable_bytes = 1u << 20;
    return options;
  }
  StatusOr<std::unique_ptr<StorageNode>> open(NodeOptions options) {
    return StorageNode::open(registry_.get(), files_.get(), kSecret, std::move(options));
  }
  Status refusal(NodeOptions options) { return open(std::move(options)).status(); }
  std::vector<cluster::Member> members(const std::string& cluster = "main") {
    cluster::Membership membership(watcher_.get(), *cluster::ClusterKeys::of(cluster));
    return *membership.list(watcher_->now_us() + 1'000'000);
  }
  Status list_spaces(const std::string& address, char secret = 's') {
    transport::BlockingChannel channel(transport::test::secret_of(secret), address, {});
    const auto call = proto::call_of(proto::kListSpaces, monotonic_us() + 10'000'000);
    transport::BlockingReply reply;
    STRATA_RETURN_IF_ERROR(channel.call(call, proto::encode(proto::ListSpacesRequest{}), &reply));
    return proto::decode_list_spaces_reply(reply.payload).status();
  }

  transport::test::Folder folder_;
  std::unique_ptr<FileSystem> files_ = make_posix_file_system();
  registry::testing::SimThread sim_;
  std::unique_ptr<registry::SimRegistry> registry_ = sim_.store().connect();
  std::unique_ptr<registry::SimRegistry> watcher_ = sim_.store().connect();
};

TEST_F(StorageNodeTest, ServesAsAMemberAndLeaves) {
  auto node = open(options());
  ASSERT_TRUE(node.ok()) << node.status();
  EXPECT_TRUE((*node)->health().ok()) << (*node)->health();
  const NodeStatus status = (*node)->status();
  EXPECT_EQ(status.group_nodes, (std::vector<std::string>{"s1", "s2", "s3"}));
  EXPECT_EQ(status.write_quorum, 2u);
  EXPECT_TRUE(status.joined);
  EXPECT_EQ(status.profile, "logdb-mv-sr");
  ASSERT_EQ(members().size(), 1u);
  EXPECT_EQ(members()[0].address, (*node)->address());
  EXPECT_EQ(members()[0].identity, status.identity);
  const Status answered = list_spaces((*node)->address());
  EXPECT_TRUE(answered.ok()) << answered;
  (*node)->stop();
  EXPECT_TRUE(members().empty());
  EXPECT_FALSE(list_spaces((*node)->address()).ok());
  EXPECT_FALSE((*node)->health().ok());
  (void)(*node)->status();
  node->reset();

  // The same node again, which needs no initial group now.
  NodeOptions again = options();
  again.initial_group.reset();
  node = open(again);
  ASSERT_TRUE(node.ok()) << node.status();
  EXPECT_EQ((*node)->status().identity, status.identity);
  EXPECT_EQ((*node)->status().database_id, status.database_id);
}

TEST_F(StorageNodeTest, ThreeNodesMakeOneDatabaseOfOneGroup) {
  std::vector<std::unique_ptr<StorageNode>> nodes;
  for (const char* name : {"s1", "s2", "s3"}) {
    auto node = open(options(name));
    ASSERT_TRUE(node.ok()) << node.status();
    nodes.push_back(*std::move(node));
  }
  EXPECT_EQ(members().size(), 3u);
  const NodeStatus first = nodes[0]->status();
  for (const auto& node : nodes) {
    EXPECT_EQ(node->status().database_id, first.database_id);
    EXPECT_EQ(node->status().placement_generation, 1u);
  }
  EXPECT_NE(nodes[1]->status().identity, first.identity);
}

TEST_F(StorageNodeTest, SettingsThatCannotBeAreRefused) {
  NodeOptions bad = options();
  bad.profile = "monolithic";
  EXPECT_TRUE(is_invalid_argument(refusal(bad)));
  bad = options();
  bad.initial_group->write_quorum = 1;
  EXPECT_TRUE(says(refusal(bad), "no majority"));
  bad = options("s4");
  EXPECT_TRUE(says(refusal(bad), "must name this node"));
  bad = options("../s1");
  EXPECT_TRUE(is_invalid_argument(refusal(bad)));
  bad = options();
  bad.listen = {"localhost:70000"};
  EXPECT_TRUE(is_invalid_argument(refusal(bad))) << refusal(bad);
  for (const std::vector<StreamId>& streams :
       {std::vector<StreamId>{}, {StreamId{1}, StreamId{1}}, {StreamId{}}}) {
    bad = options();
    bad.streams = streams;
    EXPECT_TRUE(says(refusal(bad), "each named once")) << refusal(bad);
  }
}

TEST_F(StorageNodeTest, ServesTheStreamsItIsTold) {
  NodeOptions several = options();
  several.streams = {StreamId{1}, StreamId{2}};
  auto node = open(several);
  ASSERT_TRUE(node.ok()) << node.status();
  EXPECT_EQ((*node)->pages()->status().streams.size(), 2u);
  EXPECT_TRUE(list_spaces((*node)->address()).ok());
  node->reset();
}

TEST_F(StorageNodeTest, AReplayOfOneStreamRefusesSeveral) {
  NodeOptions several = options();
  several.profile = "logdb";
  several.streams = {StreamId{1}, StreamId{2}};
  EXPECT_TRUE(is_invalid_argument(refusal(several))) << refusal(several);
}

TEST_F(StorageNodeTest, AFolderOfAnotherKindIsRefused) {
  ASSERT_TRUE(open(options()).ok());
  NodeOptions other = options();
  other.profile = "logdb";
  EXPECT_TRUE(says(refusal(other), "was made with profile logdb-mv-sr")) << refusal(other);
  other = options("s2");
  other.directory = folder_ / "s1";
  EXPECT_TRUE(says(refusal(other), "belongs to storage node s1")) << refusal(other);
  other = options();
  other.cluster = "other";
  EXPECT_TRUE(says(refusal(other), "has no database yet")) << refusal(other);
  // Another cluster that has a database.
  NodeOptions second = options("s2");
  second.cluster = "other";
  ASSERT_TRUE(open(second).ok());
  EXPECT_TRUE(says(refusal(other), "holds data of database")) << refusal(other);
  // A new folder, but not of the database's profile.
  other = options("s3");
  other.profile = "logdb-mv";
  EXPECT_TRUE(says(refusal(other), "has profile logdb-mv-sr")) << refusal(other);
}

TEST_F(StorageNodeTest, ANodeOutsideThePlacementIsRefused) {
  NodeOptions none = options();
  none.initial_group.reset();
  EXPECT_TRUE(says(refusal(none), "no placement yet")) << refusal(none);
  ASSERT_TRUE(open(options()).ok());
  NodeOptions stranger = options("s4");
  stranger.initial_group->nodes = {"s4"};
  stranger.initial_group->write_quorum = 1;
  const Status refused = refusal(stranger);  // the placement there is stands
  EXPECT_TRUE(says(refused, "s4 is in no storage group")) << refused;
  EXPECT_TRUE(says(refused, "s1, s2, s3")) << refused;
}

// ND5, ND6
TEST_F(StorageNodeTest, ANewNodeTakesThePlaceOfAnother) {
  std::vector<std::unique_ptr<StorageNode>> nodes;
  for (const char* name : {"s1", "s2"}) nodes.push_back(*open(options(name)));
  NodeOptions fourth = options("s4");
  fourth.initial_group.reset();
  fourth.joining = Joining{"s1", 0};
  Status refused = refusal(fourth);
  EXPECT_TRUE(says(refused, "s3 is away")) << refused;
  nodes.push_back(*open(options("s3")));
  fourth.joining->replaces = "s9";
  refused = refusal(fourth);
  EXPECT_TRUE(says(refused, "no storage group has a node s9")) << refused;
  fourth.joining->replaces = "s1";
  auto joined = open(fourth);
  ASSERT_TRUE(joined.ok()) << joined.status();
  EXPECT_EQ((*joined)->status().group_nodes, (std::vector<std::string>{"s4", "s2", "s3"}));
  EXPECT_EQ((*joined)->status().placement_generation, 2u);
  EXPECT_TRUE((*joined)->health().ok()) << (*joined)->health();
  // Its peers know; the one it replaced answers nothing.
  EXPECT_TRUE(wait_until([&] { return nodes[1]->status().group_nodes[0] == "s4"; }));
  EXPECT_TRUE(wait_until([&] { return !nodes[0]->status().out_of_group.empty(); }));
  EXPECT_TRUE(says(nodes[0]->health(), "s1 was replaced by s4 in generation 2"));
  EXPECT_EQ(list_spaces(nodes[0]->address()).code(), StatusCode::kUnavailable);
  EXPECT_TRUE(list_spaces((*joined)->address()).ok());
  // Again with the same options, as after a crash.
  joined->reset();
  joined = open(fourth);
  ASSERT_TRUE(joined.ok()) << joined.status();
  EXPECT_EQ((*joined)->status().placement_generation, 2u);
  // The old one is refused, and so is its name for ever.
  nodes[0].reset();
  EXPECT_TRUE(says(refusal(options("s1")), "s1 is in no storage group")) << refusal(options("s1"));
  NodeOptions back = options("s1");
  back.initial_group.reset();
  back.joining = Joining{"s2", 0};
  refused = refusal(back);
  EXPECT_TRUE(says(refused, "was used by s1 before")) << refused;
  back.directory = folder_ / "s1-again";
  refused = refusal(back);
  EXPECT_TRUE(says(refused, "s1 was replaced once")) << refused;
}

TEST_F(StorageNodeTest, ANodeIsAdded) {
  std::vector<std::unique_ptr<StorageNode>> nodes;
  for (const char* name : {"s1", "s2", "s3"}) nodes.push_back(*open(options(name)));
  NodeOptions fourth = options("s4");
  fourth.initial_group.reset();
  fourth.joining = Joining{"", 4};
  Status refused = refusal(fourth);
  EXPECT_TRUE(says(refused, "cannot become one of 4 of 4")) << refused;
  fourth.joining = Joining{"", 2};
  refused = refusal(fourth);
  EXPECT_TRUE(says(refused, "no majority")) << refused;
  fourth.joining = Joining{"", 0};
  const auto added = open(fourth);
  ASSERT_TRUE(added.ok()) << added.status();
  EXPECT_EQ((*added)->status().write_quorum, 3u);
  EXPECT_TRUE(wait_until([&] { return nodes[2]->status().group_nodes.size() == 4; }));
  EXPECT_TRUE(nodes[0]->health().ok());
}

// ND10
TEST_F(StorageNodeTest, ANewNodeOfSeveralWritersVotesInYoungerLogsOnly) {
  const auto several = [this](const char* name) {
    NodeOptions of = options(name);
    of.profile = "fusion";
    return of;
  };
  std::vector<std::unique_ptr<StorageNode>> nodes;
  for (const char* name : {"s1", "s2", "s3"}) nodes.push_back(*open(several(name)));
  const cluster::ClusterKeys keys = *cluster::ClusterKeys::of("main");
  const uint64_t deadline = watcher_->now_us() + 10'000'000;
  const auto lease = watcher_->grant_lease(
      600, [](registry::LeaseId) {}, deadline);
  ASSERT_TRUE(lease.ok()) << lease.status();
  const auto begin = [&](StreamId stream) {
    return cluster::StreamEpochs(watcher_.get(), keys)
        .acquire({stream, "compute", Epoch{}, {}}, **lease, deadline);
  };
  constexpr StreamId kOlder{3}, kYounger{4};
  const auto older = begin(kOlder);
  ASSERT_TRUE(older.ok()) << older.status();
  ASSERT_TRUE(begin(cluster::kAuthorityStream).ok());

  NodeOptions fourth = several("s4");
  fourth.initial_group.reset();
  fourth.joining = Joining{"s1", 0};
  auto joined = open(fourth);
  ASSERT_TRUE(joined.ok()) << joined.status();
  for (const StreamId stream : {kOlder, cluster::kAuthorityStream}) {
    const auto made = (*joined)->logs()->state(stream);
    ASSERT_TRUE(made.ok()) << "its server may be gone: nobody else makes it";
    EXPECT_FALSE(made->voting);
  }
  EXPECT_EQ((*joined)->logs()->state(kOlder)->promised.value, older->epoch.value - 1) << "PR2";
  EXPECT_TRUE(is_not_found((*joined)->logs()->state(kYounger).status()));

  // A server that comes later needs its vote if the others are new, too.
  const auto younger = begin(kYounger);
  ASSERT_TRUE(younger.ok()) << younger.status();
  const auto seal = [&](StreamId stream, Epoch epoch) {
    transport::BlockingChannel channel(kSecret, (*joined)->address(), {});
    const auto call = proto::call_of(proto::kLogSeal, monotonic_us() + 10'000'000);
    transport::BlockingReply reply;
    const quorum::SealRequest request{{epoch, epoch.value}};
    EXPECT_TRUE(channel.call(call, proto::encode(stream, request), &reply).ok());
    return (*joined)->logs()->state(stream);
  };
  const auto made = seal(kYounger, younger->epoch);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_TRUE(made->voting);
  // If it loses its folder it has forgotten what it promised.
  joined->reset();
  std::filesystem::remove_all(fourth.directory);
  joined = open(fourth);
  ASSERT_TRUE(joined.ok()) << joined.status();
  EXPECT_FALSE((*joined)->logs()->state(kYounger)->voting);
}

// RS7, MD3: nothing is made, promised or forgotten, and the node's numbers tell.
TEST_F(StorageNodeTest, CallsOfAnotherBuildChangeNothing) {
  const auto node = open(options());
  ASSERT_TRUE(node.ok()) << node.status();
  transport::BlockingChannel channel(kSecret, (*node)->address(), {});
  const auto seal = [&](transport::CallOptions call) {
    transport::BlockingReply reply;
    const quorum::SealRequest request{{Epoch{1}, 1}};
    return channel.call(call, proto::encode(StreamId{1}, request), &reply);
  };
  const uint64_t deadline_us = monotonic_us() + 10'000'000;
  transport::CallOptions forgotten = proto::call_of(proto::kLogSeal, deadline_us);
  forgotten.layout = 0;
  for (const auto& call :
       {proto::testing::call_of_other_build(proto::kLogSeal, deadline_us), forgotten}) {
    const Status refused = seal(call);
    EXPECT_TRUE(is_unsupported(refused)) << refused;
    EXPECT_TRUE(says(refused, "log_seal") && says(refused, (*node)->address())) << refused;
    EXPECT_TRUE(is_not_found((*node)->logs()->state(StreamId{1}).status()));
  }
  bool told = false;
  const NodeStatus status = (*node)->status();
  for (const auto& value : status.values)
    if (value.name == std::string("calls_of_other_builds_total")) told = value.value == 2;
  EXPECT_TRUE(told);
  EXPECT_TRUE(seal(proto::call_of(proto::kLogSeal, deadline_us)).ok());
  EXPECT_TRUE((*node)->logs()->state(StreamId{1}).ok());
}

// Never the first one that there happens to be.
TEST_F(StorageNodeTest, ANodeIsAddedToTheGroupThatIsNamed) {
  const auto first = open(options("s1"));
  ASSERT_TRUE(first.ok()) << first.status();
  cluster::Topology topology(watcher_.get(), *cluster::ClusterKeys::of("main"));
  const uint64_t deadline_us = watcher_->now_us() + 5'000'000;
  const auto now = topology.placement(deadline_us);
  ASSERT_TRUE(now.ok() && now->has_value()) << now.status();
  auto groups = (*now)->groups;
  groups.push_back({2, {"s8"}, 1});
  ASSERT_TRUE(topology.change_placement(*now, groups, deadline_us).ok());
  NodeOptions added = options("s4");
  added.initial_group.reset();
  added.joining = Joining{};
  EXPECT_TRUE(says(refusal(added), "none of them was named")) << refusal(added);
  added.joining->group = 2;
  EXPECT_TRUE(says(refusal(added), "storage node s8 is away")) << refusal(added);
}

// ND8
TEST_F(StorageNodeTest, NoPlaceIsGivenAwayWhileAnotherNodeMissesPages) {
  const auto written = [this](const char* name) {
    NodeOptions of = options(name);
    of.profile = "remote-disk";
    return of;
  };
  std::vector<std::unique_ptr<StorageNode>> nodes;
  for (const char* name : {"s1", "s2", "s3"}) nodes.push_back(*open(written(name)));
  const cluster::ClusterKeys keys = *cluster::ClusterKeys::of("main");
  const uint64_t deadline = watcher_->now_us() + 10'000'000;
  const auto lease = watcher_->grant_lease(
      600, [](registry::LeaseId) {}, deadline);
  ASSERT_TRUE(lease.ok()) << lease.status();
  const auto grant = cluster::StreamEpochs(watcher_.get(), keys)
                         .acquire({kFirstStream, "compute", Epoch{}, {}}, **lease, deadline);
  ASSERT_TRUE(grant.ok()) << grant.status();
  cluster::InSyncNodes in_sync(watcher_.get(), keys);
  const auto listed = in_sync.publish(kFirstStream, grant->writer, registry::Version{},
                                      {{"s1", 7}, {"s2", 8}}, deadline);
  ASSERT_TRUE(listed.ok()) << listed.status();
  NodeOptions fourth = written("s4");
  fourth.initial_group.reset();
  for (const char* place : {"s1", ""}) {  // to be replaced, or one more
    fourth.joining = Joining{place, 0};
    const Status refused = refusal(fourth);
    EXPECT_TRUE(says(refused, "s3 does not have every page")) << refused;
  }
  fourth.joining = Joining{"s3", 0};  // the one that misses some may go
  auto joined = open(fourth);
  ASSERT_TRUE(joined.ok()) << joined.status();
  NodeOptions fifth = written("s5");
  fifth.initial_group.reset();
  fifth.joining = Joining{"s2", 0};
  const Status refused = refusal(fifth);
  EXPECT_TRUE(says(refused, "s4 does not have every page")) << refused;
  ASSERT_TRUE(in_sync
                  .publish(kFirstStream, grant->writer, *listed, {{"s1", 7}, {"s2", 8}, {"s4", 9}},
                           deadline)
                  .ok());
  EXPECT_TRUE(open(fifth).ok());
}

TEST_F(StorageNodeTest, OthersAreToldWhatItAdvertises) {
  NodeOptions forwarded = options();
  forwarded.advertise = "127.0.0.1:7999";
  const auto node = open(forwarded);
  ASSERT_TRUE(node.ok()) << node.status();
  ASSERT_EQ(members().size(), 1u);
  EXPECT_EQ(members().front().address, "tcp:127.0.0.1:7999");
  EXPECT_NE((*node)->status().addresses.front(), "tcp:127.0.0.1:7999");
}

TEST_F(StorageNodeTest, WhatIsInUseIsRefused) {
  NodeOptions first = options();
  first.listen.emplace_back("127.0.0.1:0");
  const auto node = open(first);
  ASSERT_TRUE(node.ok()) << node.status();
  EXPECT_TRUE(says(refusal(options()), "in use by another process")) << refusal(options());
  NodeOptions second = options("s2");
  second.listen = {(*node)->status().addresses[1]};
  const Status refused = refusal(second);
  EXPECT_EQ(refused.code(), StatusCode::kAlreadyExists) << refused;
  EXPECT_EQ(members().size(), 1u);  // ND2
  // Another folder with the same name is another node.
  NodeOptions other = options();
  other.directory = folder_ / "other";
  other.listen = {"127.0.0.1:0"};
  other.name_wait_us = 100'000;
  EXPECT_TRUE(says(refusal(other), "has another data folder")) << refusal(other);
}

TEST_F(StorageNodeTest, OfWrittenPagesKeepsThemInstead) {
  NodeOptions written = options();
  written.profile = "remote-disk";
  auto node = open(written);
  ASSERT_TRUE(node.ok()) << node.status();
  EXPECT_EQ((*node)->pages(), nullptr);
  EXPECT_TRUE((*node)->health().ok()) << (*node)->health();
  EXPECT_TRUE(list_spaces((*node)->address()).ok());
  EXPECT_EQ((*node)->status().profile, "remote-disk");
  const uint64_t store = (*node)->written()->number();
  node->reset();
  EXPECT_TRUE(says(refusal(options()), "was made with profile remote-disk")) << refusal(options());
  node = open(written);
  ASSERT_TRUE(node.ok()) << node.status();
  EXPECT_EQ((*node)->written()->number(), store);
}

TEST_F(StorageNodeTest, ALostLeaseIsReplaced) {
  const auto node = open(options());
  ASSERT_TRUE(node.ok()) << node.status();
  const auto version = members()[0].version;
  sim_.leap(3'600'000'000);
  EXPECT_TRUE(wait_until([&] {
    const NodeStatus status = (*node)->status();
    return status.joined && status.times_joined >= 2;
  }));
  ASSERT_EQ(members().size(), 1u);
  EXPECT_GT(members()[0].version, version);
  EXPECT_TRUE((*node)->health().ok()) << (*node)->health();
}

TEST_F(StorageNodeTest, ServesWithoutTheRegistryAndJoinsWhenItIsBack) {
  const auto node = open(options());
  ASSERT_TRUE(node.ok()) << node.status();
  registry_->set_connected(false);
  sim_.leap(3'600'000'000);
  EXPECT_TRUE(wait_until([&] { return !(*node)->status().joined; }));
  EXPECT_TRUE(list_spaces((*node)->address()).ok());  // ND3
  EXPECT_TRUE(says((*node)->health(), "not a member")) << (*node)->health();
  registry_->set_connected(true);
  EXPECT_TRUE(wait_until([&] { return (*node)->health().ok(); }));
}

TEST_F(StorageNodeTest, WaitsForTheRegistryUntilItAnswersOrIsToldToStop) {
  registry_->set_connected(false);
  NodeOptions impatient = options();
  impatient.start_timeout_us = 1;
  EXPECT_EQ(refusal(impatient).code(), StatusCode::kUnavailable);
  {
    StopFlag stop;
    NodeOptions stopped = options();
    stopped.stop = &stop;
    Status refused;
    std::thread starter([&] { refused = refusal(stopped); });
    stop.raise();
    starter.join();
    EXPECT_EQ(refused.code(), StatusCode::kCancelled) << refused;
  }
  StatusOr<std::unique_ptr<StorageNode>> node = error_internal("not opened");
  std::thread starter([&] { node = open(options()); });
  registry_->set_connected(true);
  starter.join();
  EXPECT_TRUE(node.ok()) << node.status();
}

TEST_F(StorageNodeTest, WhoDoesNotKnowTheSecretGetsNothing) {
  const auto node = open(options());
  ASSERT_TRUE(node.ok()) << node.status();
  EXPECT_FALSE(list_spaces((*node)->address(), 'x').ok());
  EXPECT_TRUE(list_spaces((*node)->address()).ok());
  for (const NodeStatus::Method& method : (*node)->status().methods)
    EXPECT_EQ(method.operations, std::string(method.name) == "list_spaces" ? 1u : 0u);
}

}  // namespace
}  // namespace strata::storenode
