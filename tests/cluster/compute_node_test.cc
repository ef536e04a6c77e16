// Goal: a compute node is the only writer or none, answers only while it certainly is, and needs
// nothing of its folder (CM1-CM4, K13). Method: compute nodes with kernels on three storage nodes
// over sockets and a simulated registry in real time, whose leases end when the test says so.
#include "clients/compute/compute_node.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <functional>
#include <thread>

#include "base/data_format.h"
#include "base/diag.h"
#include "base/profiles.h"
#include "clients/compute/node_identity.h"
#include "cluster/node_removals.h"
#include "cluster/topology.h"
#include "storage_cluster.h"
#include "transport/calls/testing/io_node.h"

namespace strata::testing {
namespace {

using engine::Isolation;
using registry::SimRegistry;

constexpr char kProfile[] = "logdb";

class Guard final : public engine::AnswerGuard {
 public:
  explicit Guard(const clients::ComputeNode* node) : node_(node) {}
  [[nodiscard]] bool may_answer() const noexcept override { return node_->may_answer(); }
  [[nodiscard]] Status why_not() const override {
    const Status why = node_->why_silent();
    return why.ok() ? AnswerGuard::why_not() : why;
  }

 private:
  const clients::ComputeNode* const node_;
};

class Inserter;

class ComputeNodes : public ::testing::Test {
 protected:
  // A compute node as a server has it.
  struct Server {
    SimRegistry* registry = nullptr;
    std::unique_ptr<clients::ComputeNode> node;
    std::unique_ptr<Guard> guard;
    std::unique_ptr<SimFileSystem> disk = make_sim_file_system();
    std::unique_ptr<engine::Kernel> kernel;
    void die() {
      kernel.reset();
      node.reset();
    }
    ~Server() { die(); }
  };

  explicit ComputeNodes(std::string profile = kProfile) : profile_(std::move(profile)) {
    set_diag_sink([](Severity, std::string_view) {});
    for (int i = 0; i < 3; ++i)
      around_.addresses.push_back("unix:" + (folder_ / ("socket-" + std::to_string(i))));
    for (size_t i = 0; i < 3; ++i)
      nodes_.push_back(std::make_unique<StorageNode>(
          &around_, i, folder_ / ("node-" + std::to_string(i)), profile_));
  }

  clients::ComputeOptions options(const std::string& name) const {
    clients::ComputeOptions options;
    options.cluster = "test";
    options.name = name;
    options.profile = profile_;
    options.data_directory = folder_ / name;
    options.lease_seconds = lease_seconds_;
    options.start_timeout_us = 10'000'000;
    options.removal_timeout_us = removal_timeout_us_;
    return options;
  }
  StatusOr<std::unique_ptr<clients::ComputeNode>> join(clients::ComputeOptions options,
                                                       SimRegistry** registry = nullptr,
                                                       char secret = 's') {
    auto connection = around_.sim.store().connect();
    if (registry != nullptr) *registry = connection.get();
    return clients::ComputeNode::join(std::move(connection), transport::test::secret_of(secret),
                                      std::move(options));
  }
  StatusOr<std::unique_ptr<Server>> start(const std::string& name) {
    auto server = std::make_unique<Server>();
    STRATA_ASSIGN_OR_RETURN(server->node, join(options(name), &server->registry));
    server->guard = std::make_unique<Guard>(server->node.get());
    engine::KernelOptions kernel_options = engine::testing::options_on(server->disk.get());
    kernel_options.background = true;
    kernel_options.profile = profile_;
    engine::KernelSeams seams;
    seams.page_source = server->node->pages();
    seams.log_sink = server->node->log();
    seams.control = server->node->control();
    seams.answers = server->guard.get();
    STRATA_ASSIGN_OR_RETURN(server->kernel, engine::open_with_seams(kernel_options, seams));
    return server;
  }

  static Status insert(Server* server, uint64_t id) {
    auto session = server->kernel->new_session();
    session->begin(Isolation::kRepeatableRead);
    if (!server->kernel->table_exists("test", "t"))
      STRATA_RETURN_IF_ERROR(session->create_table(engine::testing::table_spec("t"), nullptr));
    STRATA_ASSIGN_OR_RETURN(const engine::TableRef table, session->open_table("test", "t"));
    STRATA_RETURN_IF_ERROR(engine::testing::insert(session.get(), table, id, {id, 1, "row", ""}));
    return session->commit();
  }
  // OK, kNotFound, or why there was no answer.
  static Status look_up(Server* server, uint64_t id) {
    auto session = server->kernel->new_session();
    session->begin(Isolation::kReadCommitted);
    STRATA_ASSIGN_OR_RETURN(const engine::TableRef table, session->open_table("test", "t"));
    engine::TableCursor cursor(session.get(), table, 0);
    bool gone = false;
    STRATA_RETURN_IF_ERROR(cursor.get(engine::testing::be64(id), &gone));
    return gone ? error_not_found() : ok_status();
  }
  template <class Condition>
  static bool becomes_true(Condition condition) {
    const uint64_t until = monotonic_us() + 20'000'000;
    while (!condition() && monotonic_us() < until) std::this_thread::yield();
    return condition();
  }

  // A new storage node, the last of nodes_.
  void join_node(storenode::Joining joining) {
    const size_t number = nodes_.size();
    around_.addresses.push_back("unix:" + (folder_ / ("socket-" + std::to_string(number))));
    nodes_.push_back(std::make_unique<StorageNode>(&around_, number,
                                                   folder_ / ("node-" + std::to_string(number)),
                                                   profile_, std::move(joining)));
  }
  void wait_for_log(size_t node, Server* server) {
    const Lsn all = server->node->facts().durable;
    ASSERT_TRUE(becomes_true([&] { return nodes_[node]->has_log(all); }))
        << "node-" << node << " does not catch up";
    if (find_profile(profile_)->pages != PageOrigin::kWritten) return;
    ASSERT_TRUE(becomes_true([&] { return pages_everywhere(server); })) << "pages are missing";
  }
  // On every storage node that the compute node goes by.
  static bool pages_everywhere(Server* server) {
    const clients::ComputeNode::Facts facts = server->node->facts();
    return facts.page_nodes == facts.replicas && facts.page_nodes_in_sync == facts.page_nodes;
  }
  // Asks the writer to take a node out, as ./strata does. Why it does not; empty: it is done.
  std::string refusal(const std::string& name, uint64_t generation) {
    auto asker = around_.sim.store().connect();
    cluster::NodeRemovals removals(asker.get(), around_.keys, kStream);
    const auto deadline = [&] { return asker->now_us() + kCallUs; };
    auto lease = asker->grant_lease(
        60, [](registry::LeaseId) {}, deadline());
    EXPECT_TRUE(lease.ok()) << lease.status();
    EXPECT_TRUE(removals.ask({name, generation, ""}, (*lease)->id(), deadline()).ok());
    std::string why;
    EXPECT_TRUE(becomes_true([&] {
      const auto found = removals.read(deadline());
      EXPECT_TRUE(found.ok()) << found.status();
      if (found.ok() && found->has_value()) why = (*found)->request.refused;
      return !found.ok() || !found->has_value() || !why.empty();
    }));
    return why;
  }
  void take_out(const std::string& name, uint64_t generation) {
    ASSERT_EQ(refusal(name, generation), "");
    auto reader = around_.sim.store().connect();
    const auto now =
        cluster::Topology(reader.get(), around_.keys).placement(reader->now_us() + kCallUs);
    ASSERT_TRUE(now.ok() && now->has_value()) << now.status();
    EXPECT_EQ((*now)->generation, generation + 1);
    EXPECT_FALSE((*now)->groups[0].place_of(name).has_value());
  }
  // One storage node after the other is away for a while; rows come in all the time.
  void lose_each(const std::vector<size_t>& nodes, const Inserter* inserter, Server* server);
  // `server` leaves, and another compute node, which has seen nothing of all this, has the rows.
  void expect_rows_elsewhere(Server* server, uint64_t count) {
    ASSERT_TRUE(server->kernel->shutdown().ok());
    server->kernel.reset();
    ASSERT_TRUE(server->node->leave().ok());
    auto second = start("compute-2");
    ASSERT_TRUE(second.ok()) << second.status();
    expect_rows(second->get(), count);
  }
  // All rows are there, on whatever storage nodes there are.
  static void expect_rows(Server* server, uint64_t count) {
    for (uint64_t id = 1; id <= count; ++id) {
      const Status found = look_up(server, id);
      ASSERT_TRUE(found.ok()) << id << ": " << found;
    }
  }

  const std::string profile_;
  transport::test::Folder folder_;
  Surroundings around_;
  std::vector<std::unique_ptr<StorageNode>> nodes_;
  uint64_t removal_timeout_us_ = 10'000'000;
  uint32_t lease_seconds_ = 1;
};

// What is the same whether storage nodes make the pages or compute writes them.
class NodeChanges : public ComputeNodes, public ::testing::WithParamInterface<const char*> {
 protected:
  NodeChanges() : ComputeNodes(GetParam()) {}
};

// Inserts rows 1, 2, 3 ... until it is stopped; every one must be acknowledged.
class Inserter {
 public:
  explicit Inserter(std::function<Status(uint64_t)> insert)
      : thread_([this, insert = std::move(insert)] {
          while (!stop_.load() && failure_.ok()) {
            failure_ = insert(done_ + 1);
            if (failure_.ok()) ++done_;
          }
        }) {}
  ~Inserter() { stop(); }
  // How many are there.
  uint64_t stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    EXPECT_TRUE(failure_.ok()) << failure_;
    return done_;
  }
  [[nodiscard]] uint64_t done() const { return done_; }

 private:
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> done_{0};
  Status failure_;  // the thread's, until it has ended
  std::thread thread_;
};

void ComputeNodes::lose_each(const std::vector<size_t>& nodes, const Inserter* inserter,
                             Server* server) {
  for (const size_t lost : nodes) {
    nodes_[lost]->stop();
    const uint64_t before = inserter->done();
    ASSERT_TRUE(becomes_true([&] { return inserter->done() >= before + 20; })) << lost;
    nodes_[lost]->start();
    ASSERT_NO_FATAL_FAILURE(wait_for_log(lost, server));
  }
}

TEST_F(ComputeNodes, TheDatabaseMovesFromOneThatLeftToAnother) {
  auto first = start("compute-1");
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE(insert(first->get(), 1).ok());
  ASSERT_TRUE((*first)->kernel->shutdown().ok());
  (*first)->kernel.reset();
  ASSERT_TRUE((*first)->node->leave().ok());
  const uint64_t begin = monotonic_us();
  auto second = start("compute-2");
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_LT(monotonic_us() - begin, 10'000'000u);  // CM2: nothing to wait for
  EXPECT_TRUE(look_up(second->get(), 1).ok());
  EXPECT_TRUE(is_not_found(look_up(second->get(), 2)));
  EXPECT_TRUE(insert(second->get(), 2).ok());
  const clients::ComputeNode::Facts facts = (*second)->node->facts();
  EXPECT_EQ(facts.replicas, 3u);
  EXPECT_GE(facts.replicas_reached, 2u);
  EXPECT_GT(facts.epoch, Epoch{1});
  EXPECT_GT(facts.log_bytes_sent, 0u);
  EXPECT_TRUE(facts.holds_lease);
  EXPECT_EQ(facts.fenced, "");
}

TEST_F(ComputeNodes, TheSameFolderComesBackAtOnceAndAnotherWaitsForTheLease) {
  lease_seconds_ = 4;
  auto first = start("compute-1");
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE(insert(first->get(), 1).ok());
  (*first)->die();  // and its lease does not
  const uint64_t begin = monotonic_us();
  auto again = start("compute-1");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_LT(monotonic_us() - begin, 3'000'000u);
  EXPECT_TRUE(look_up(again->get(), 1).ok());
  (*again)->registry->set_paused(true);
  auto other = start("compute-2");
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_TRUE(look_up(other->get(), 1).ok());
}

// Two processes on one folder, and two on copies of it, with the same node-identity.
TEST_F(ComputeNodes, ACopyOfAFolderIsAnotherNode) {  // CM2
  auto first = start("compute-1");
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE(insert(first->get(), 1).ok());
  clients::ComputeOptions second = options("compute-1");
  second.start_timeout_us = 300'000;
  const Status in_use = join(second).status();
  EXPECT_TRUE(is_in_use(in_use)) << in_use;
  EXPECT_NE(in_use.message().find("in use by another process"), std::string::npos) << in_use;

  second = options("compute-1");
  second.data_directory = folder_ / "copy";
  std::filesystem::copy(folder_ / "compute-1", second.data_directory,
                        std::filesystem::copy_options::recursive);
  const Status copied = join(second).status();
  EXPECT_TRUE(is_in_use(copied)) << copied;
  EXPECT_NE(copied.message().find("its lease has not ended"), std::string::npos) << copied;
  EXPECT_TRUE(look_up(first->get(), 1).ok()) << "it goes on";
  EXPECT_TRUE(insert(first->get(), 2).ok());
  // Once it has ended, the copy does.
  (*first)->die();
  const auto later = join(second);
  EXPECT_TRUE(later.ok()) << later.status();
}

// A successor that got the stream between the death of a node and its restart keeps it.
TEST_F(ComputeNodes, ARestartTakesOverOnlyItsOlderSelf) {  // CM2
  auto first = start("compute-1");
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE(insert(first->get(), 1).ok());
  (*first)->die();
  auto successor = start("compute-2");  // when the lease has ended
  ASSERT_TRUE(successor.ok()) << successor.status();
  const Status again = join(options("compute-1")).status();
  EXPECT_TRUE(is_in_use(again)) << again;
  EXPECT_NE(again.message().find("compute-2"), std::string::npos) << again;
  EXPECT_TRUE(look_up(successor->get(), 1).ok());
  EXPECT_TRUE(insert(successor->get(), 2).ok());
}

// Whoever gets the stream by force (an operator's hand in the registry): the holder hears of it and
// is silent from then on, though nobody has ended its lease.
TEST_F(ComputeNodes, AHolderWhoseStreamIsNotItsOwnAnswersNothing) {  // CM3
  lease_seconds_ = 60;
  auto server = start("compute-1");
  ASSERT_TRUE(server.ok()) << server.status();
  ASSERT_TRUE(insert(server->get(), 1).ok());
  ASSERT_TRUE(look_up(server->get(), 1).ok());
  auto thief = around_.sim.store().connect();
  const uint64_t deadline = thief->now_us() + kCallUs;
  auto lease = thief->grant_lease(
      60, [](registry::LeaseId) {}, deadline);
  cluster::StreamEpochs epochs(thief.get(), around_.keys);
  const registry::Version held = cluster::testing::held_by(&epochs, kStream, deadline);
  ASSERT_TRUE(epochs.acquire({kStream, "thief", Epoch{}, held}, **lease, deadline).ok());
  ASSERT_TRUE(becomes_true([&] { return !(*server)->node->may_answer(); }));
  EXPECT_TRUE(is_fenced(look_up(server->get(), 1)));
  EXPECT_NE((*server)->node->facts().fenced.find("thief"), std::string::npos);
  ASSERT_TRUE((*lease)->revoke(deadline).ok());
  EXPECT_FALSE((*server)->node->may_answer()) << "for good";
}

TEST_F(ComputeNodes, NothingIsTakenFromANodeThatLives) {
  auto first = start("compute-1");
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = join(options("compute-2"));
  EXPECT_TRUE(is_in_use(second.status())) << second.status();
  EXPECT_NE(second.status().message().find("compute-1"), std::string::npos) << second.status();
  EXPECT_TRUE(insert(first->get(), 1).ok());
}

TEST_F(ComputeNodes, WithoutALeaseNothingIsAnsweredUntilThereIsAnother) {
  auto server = start("compute-1");
  ASSERT_TRUE(server.ok()) << server.status();
  ASSERT_TRUE(insert(server->get(), 1).ok());
  (*server)->registry->set_connected(false);
  ASSERT_TRUE(becomes_true([&] { return !(*server)->node->may_answer(); }));
  EXPECT_TRUE(is_lease_lost(look_up(server->get(), 1)));
  EXPECT_TRUE(is_lease_lost(insert(server->get(), 1))) << "that there is one is an answer, too";
  (*server)->registry->set_connected(true);
  ASSERT_TRUE(becomes_true([&] { return (*server)->node->may_answer(); }));
  EXPECT_TRUE(look_up(server->get(), 1).ok());
  EXPECT_TRUE(insert(server->get(), 2).ok());
  EXPECT_TRUE((*server)->kernel->checkpoint().ok());  // by the new lease
  // Nobody was let in meanwhile, nor is now.
  EXPECT_TRUE(is_in_use(join(options("compute-2")).status()));
}

TEST_F(ComputeNodes, APausedOneThatWakesUpAnswersNothing) {
  auto sleeper = start("compute-1");
  ASSERT_TRUE(sleeper.ok()) << sleeper.status();
  ASSERT_TRUE(insert(sleeper->get(), 1).ok());
  ASSERT_TRUE(look_up(sleeper->get(), 1).ok());
  (*sleeper)->registry->set_connected(false);
  auto next = start("compute-2");  // once the lease has ended
  ASSERT_TRUE(next.ok()) << next.status();
  ASSERT_TRUE(insert(next->get(), 2).ok());
  // It has every page of that row's table in memory, and must not look there.
  EXPECT_TRUE(is_lease_lost(look_up(sleeper->get(), 2))) << look_up(sleeper->get(), 2);
  (*sleeper)->registry->set_connected(true);
  ASSERT_TRUE(becomes_true([&] { return !(*sleeper)->node->facts().fenced.empty(); }));
  EXPECT_FALSE((*sleeper)->node->may_answer());
  EXPECT_FALSE(insert(sleeper->get(), 3).ok());
  EXPECT_TRUE(is_not_found(look_up(next->get(), 3)));
}

TEST_F(ComputeNodes, WhatIsWrongIsSaid) {
  clients::ComputeOptions other = options("compute-1");
  other.profile = "logdb-mv-sr";
  const auto wrong_profile = join(other);
  EXPECT_TRUE(is_wrong_database(wrong_profile.status())) << wrong_profile.status();
  EXPECT_NE(wrong_profile.status().message().find("logdb-mv-sr"), std::string::npos);

  other = options("compute-1");
  other.cluster = "elsewhere";
  other.start_timeout_us = 200'000;
  const auto no_cluster = join(other);
  EXPECT_TRUE(is_peer_down(no_cluster.status())) << no_cluster.status();
  EXPECT_NE(no_cluster.status().message().find("elsewhere"), std::string::npos);

  other.cluster = "of-another-version";
  auto registry = around_.sim.store().connect();
  cluster::Topology topology(registry.get(), *cluster::ClusterKeys::of(other.cluster));
  ASSERT_TRUE(
      topology.create_identity({1, kProfile, kDataFormat - 1}, registry->now_us() + 1'000'000)
          .ok());
  const auto other_format = join(other);
  EXPECT_TRUE(is_unsupported(other_format.status())) << other_format.status();
  EXPECT_NE(other_format.status().message().find("data format 1"), std::string::npos);

  other = options("not/a name");
  EXPECT_TRUE(is_invalid_argument(join(other).status()));

  const std::string path = folder_ / "compute-3";
  ASSERT_TRUE(clients::node_identity(make_posix_file_system().get(), path).ok());
  auto file = make_posix_file_system()->open(path + "/node-identity", {});
  ASSERT_TRUE((*file)->write_at(20, "x", 1).ok());
  const auto damaged = join(options("compute-3"));
  EXPECT_TRUE(is_corruption(damaged.status())) << damaged.status();
  EXPECT_NE(damaged.status().message().find("node-identity"), std::string::npos);
}

TEST_F(ComputeNodes, TooFewStorageNodes) {
  ASSERT_TRUE(start("compute-1").ok());
  nodes_[0]->stop();
  nodes_[1]->stop();
  clients::ComputeOptions hasty = options("compute-1");
  hasty.start_timeout_us = 1'500'000;
  hasty.call_timeout_us = 500'000;
  const auto alone = join(hasty);
  EXPECT_TRUE(is_peer_down(alone.status())) << alone.status();
  nodes_[1]->start();
  EXPECT_TRUE(start("compute-1").ok());
}

TEST_F(ComputeNodes, AnotherSecretIsSaidToBeOne) {
  ASSERT_TRUE(start("compute-1").ok());
  clients::ComputeOptions hasty = options("compute-2");
  hasty.start_timeout_us = 1'500'000;
  hasty.call_timeout_us = 500'000;
  const auto stranger = join(hasty, nullptr, 'x');
  EXPECT_TRUE(is_wrong_secret(stranger.status())) << stranger.status();
  EXPECT_NE(stranger.status().message().find("socket-1"), std::string::npos) << stranger.status();
  EXPECT_NE(remedy_of(stranger.status()).find("same secret file"), std::string::npos);
}

// CM5, ND5, WR6: a living storage node is replaced while rows come in, then each of the two others
// is lost in turn.
TEST_P(NodeChanges, AStorageNodeIsReplacedUnderWrites) {
  auto server = start("compute-1");
  ASSERT_TRUE(server.ok()) << server.status();
  uint64_t rows = 0;
  {
    Inserter inserter([&](uint64_t id) { return insert(server->get(), id); });
    ASSERT_TRUE(becomes_true([&] { return inserter.done() >= 50; }));
    ASSERT_NO_FATAL_FAILURE(join_node({"node-0", 0}));
    ASSERT_TRUE(becomes_true([&] { return !nodes_[0]->node()->status().out_of_group.empty(); }));
    ASSERT_NO_FATAL_FAILURE(wait_for_log(3, server->get()));
    EXPECT_EQ((*server)->node->facts().placement_generation, 2u);
    nodes_[0]->stop();
    ASSERT_NO_FATAL_FAILURE(lose_each({1, 2}, &inserter, server->get()));
    rows = inserter.stop();
  }
  // The new one and one other, for another compute node, which has seen nothing of all this.
  nodes_[1]->stop();
  expect_rows_elsewhere(server->get(), rows);
}

// The compute node dies while a new storage node, in the place of a dead one, has none of the log.
TEST_P(NodeChanges, TheWriterDiesInTheMiddleOfAReplacement) {
  auto server = start("compute-1");
  ASSERT_TRUE(server.ok()) << server.status();
  uint64_t rows = 0;
  while (rows < 50) ASSERT_TRUE(insert(server->get(), ++rows).ok());
  nodes_[0]->stop();
  ASSERT_TRUE(insert(server->get(), ++rows).ok());
  (*server)->registry->set_paused(true);  // it hears of nothing any more
  ASSERT_NO_FATAL_FAILURE(join_node({"node-0", 0}));
  if (insert(server->get(), rows + 1).ok()) ++rows;  // by the old placement, while its lease lasts
  auto again = start("compute-2");                   // when the lease has ended
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_FALSE(insert(server->get(), 1000).ok());
  ASSERT_NO_FATAL_FAILURE(wait_for_log(3, again->get()));
  nodes_[1]->stop();
  expect_rows(again->get(), rows);
  ASSERT_TRUE(insert(again->get(), ++rows).ok());
}

// CM6, PR5: one of four goes while rows come in, then another one is lost.
TEST_P(NodeChanges, AStorageNodeIsTakenOutUnderWrites) {
  auto server = start("compute-1");
  ASSERT_TRUE(server.ok()) << server.status();
  uint64_t rows = 0;
  {
    Inserter inserter([&](uint64_t id) { return insert(server->get(), id); });
    ASSERT_TRUE(becomes_true([&] { return inserter.done() >= 50; }));
    ASSERT_NO_FATAL_FAILURE(join_node({"", 0}));
    ASSERT_NO_FATAL_FAILURE(wait_for_log(3, server->get()));
    EXPECT_NE(refusal("node-9", 2).find("no storage group"), std::string::npos);
    EXPECT_NE(refusal("node-0", 1).find("changed meanwhile"), std::string::npos);
    ASSERT_NO_FATAL_FAILURE(take_out("node-0", 2));
    ASSERT_TRUE(becomes_true([&] { return !nodes_[0]->node()->status().out_of_group.empty(); }));
    nodes_[0]->stop();
    EXPECT_NE(refusal("node-1", 3).find("needs 3"), std::string::npos);
    EXPECT_EQ((*server)->node->facts().placement_generation, 3u);
    EXPECT_EQ((*server)->node->facts().replicas, 3u);
    // Any two of the three are enough.
    ASSERT_NO_FATAL_FAILURE(lose_each({1, 2, 3}, &inserter, server->get()));
    rows = inserter.stop();
  }
  nodes_[1]->stop();
  expect_rows_elsewhere(server->get(), rows);
}

// NM3: the log goes back to one quorum.
TEST_P(NodeChanges, NoStorageNodeIsTakenOutWhileAnotherIsAway) {
  removal_timeout_us_ = 1'000'000;
  auto server = start("compute-1");
  ASSERT_TRUE(server.ok()) << server.status();
  ASSERT_TRUE(insert(server->get(), 1).ok());
  ASSERT_NO_FATAL_FAILURE(join_node({"", 0}));
  ASSERT_NO_FATAL_FAILURE(wait_for_log(3, server->get()));
  nodes_[1]->stop();
  ASSERT_TRUE(insert(server->get(), 2).ok());
  ASSERT_TRUE(becomes_true(
      [&] { return !static_cast<clients::QuorumLogSink*>((*server)->node->log())->well()[1]; }));
  EXPECT_NE(refusal("node-0", 2).find("node-1 is away"), std::string::npos);
  EXPECT_EQ((*server)->node->facts().placement_generation, 2u);
  ASSERT_TRUE(insert(server->get(), 3).ok());
  nodes_[1]->start();
  ASSERT_NO_FATAL_FAILURE(wait_for_log(1, server->get()));
  ASSERT_NO_FATAL_FAILURE(take_out("node-0", 2));
  expect_rows(server->get(), 3);
}

// PR6: one that slept through it, and through its own end, answers for nothing.
TEST_P(NodeChanges, AWriterOfBeforeEndsWhenItHearsThatANodeWasTakenOut) {
  auto sleeper = start("compute-1");
  ASSERT_TRUE(sleeper.ok()) << sleeper.status();
  ASSERT_NO_FATAL_FAILURE(join_node({"", 0}));
  uint64_t rows = 0;
  while (rows < 20) ASSERT_TRUE(insert(sleeper->get(), ++rows).ok());
  ASSERT_NO_FATAL_FAILURE(wait_for_log(3, sleeper->get()));
  (*sleeper)->registry->set_connected(false);
  auto next = start("compute-2");  // once the lease has ended
  ASSERT_TRUE(next.ok()) << next.status();
  ASSERT_NO_FATAL_FAILURE(take_out("node-0", 2));
  (*sleeper)->registry->set_connected(true);
  ASSERT_TRUE(becomes_true([&] { return !(*sleeper)->node->facts().fenced.empty(); }));
  EXPECT_FALSE(insert(sleeper->get(), 1000).ok());
  ASSERT_TRUE(insert(next->get(), ++rows).ok());
  expect_rows(next->get(), rows);
}

TEST_P(NodeChanges, AStorageNodeIsAddedUnderWrites) {
  auto server = start("compute-1");
  ASSERT_TRUE(server.ok()) << server.status();
  uint64_t rows = 0;
  {
    Inserter inserter([&](uint64_t id) { return insert(server->get(), id); });
    ASSERT_TRUE(becomes_true([&] { return inserter.done() >= 50; }));
    ASSERT_NO_FATAL_FAILURE(join_node({"", 0}));
    ASSERT_NO_FATAL_FAILURE(wait_for_log(3, server->get()));
    // Three of four are a quorum, the new one among them.
    nodes_[2]->stop();
    const uint64_t before = inserter.done();
    ASSERT_TRUE(becomes_true([&] { return inserter.done() >= before + 20; }));
    rows = inserter.stop();
  }
  EXPECT_EQ((*server)->node->facts().replicas, 4u);
  (*server)->die();
  auto again = start("compute-1");
  ASSERT_TRUE(again.ok()) << again.status();
  expect_rows(again->get(), rows);
}

// The registry is out of reach for longer than the lease, or shorter, while one storage node is
// away; and then all storage nodes are restarted at once: work goes on by itself.
class Outages : public ComputeNodes,
                public ::testing::WithParamInterface<std::tuple<const char*, uint64_t>> {
 protected:
  Outages() : ComputeNodes(std::get<0>(GetParam())) {}
};

TEST_P(Outages, AreOverWhenTheyAreOver) {
  const auto becomes_inserted = [](Server* of, uint64_t id) {
    bool done = false;
    return becomes_true([&] { return done = done || insert(of, id).ok(); });
  };
  auto server = start("compute-1");
  ASSERT_TRUE(server.ok()) << server.status();
  ASSERT_TRUE(insert(server->get(), 1).ok());
  nodes_[2]->stop();
  (*server)->registry->set_connected(false);
  const uint64_t until = monotonic_us() + std::get<1>(GetParam());
  while (monotonic_us() < until) {
    const Status checkpoint = (*server)->kernel->checkpoint();
    EXPECT_FALSE(ends_right(checkpoint)) << checkpoint;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  (*server)->registry->set_connected(true);
  EXPECT_TRUE(becomes_true([&] { return (*server)->kernel->checkpoint().ok(); }));
  EXPECT_TRUE(becomes_inserted(server->get(), 2));
  for (size_t i = 0; i < 2; ++i) nodes_[i]->stop();
  for (size_t i = 0; i < 3; ++i) nodes_[i]->start();
  EXPECT_TRUE(becomes_inserted(server->get(), 3));
  EXPECT_TRUE(becomes_true([&] { return (*server)->kernel->checkpoint().ok(); }));
  const clients::ComputeNode::Facts facts = (*server)->node->facts();
  EXPECT_EQ(facts.fenced, "");
  EXPECT_FALSE(facts.page_writes_ended);
  expect_rows_elsewhere(server->get(), 3);
}

INSTANTIATE_TEST_SUITE_P(AroundTheLease, Outages,
                         ::testing::Values(std::tuple("remote-disk", 300'000),
                                           std::tuple("remote-disk", 1'000'000),
                                           std::tuple("remote-disk", 1'500'000),
                                           std::tuple("logdb", 1'500'000)));

INSTANTIATE_TEST_SUITE_P(Profiles, NodeChanges, ::testing::Values("logdb", "remote-disk"),
                         [](const auto& of) {
                           std::string name = of.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace strata::testing
