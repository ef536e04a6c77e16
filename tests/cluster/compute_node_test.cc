// Goal: a compute node is the only writer or none, answers only while it certainly is, and needs
// nothing of its folder (CM1-CM4, K13). Method: compute nodes with kernels on three storage nodes
// over sockets and a simulated registry in real time, whose leases end when the test says so.
#include "clients/compute/compute_node.h"

#include <gtest/gtest.h>

#include "base/diag.h"
#include "clients/compute/node_identity.h"
#include "storage_cluster.h"
#include "transport/testing/io_node.h"

namespace strata::testing {
namespace {

using engine::Isolation;
using registry::SimRegistry;

constexpr char kProfile[] = "logdb";

class Guard final : public engine::AnswerGuard {
 public:
  explicit Guard(const clients::ComputeNode* node) : node_(node) {}
  [[nodiscard]] bool may_answer() const noexcept override { return node_->may_answer(); }

 private:
  const clients::ComputeNode* const node_;
};

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

  ComputeNodes() {
    set_diag_sink([](Severity, std::string_view) {});
    for (int i = 0; i < 3; ++i)
      around_.addresses.push_back("unix:" + (folder_ / ("socket-" + std::to_string(i))));
    for (size_t i = 0; i < 3; ++i)
      nodes_.push_back(std::make_unique<StorageNode>(
          &around_, i, folder_ / ("node-" + std::to_string(i)), kProfile));
  }

  clients::ComputeOptions options(const std::string& name) const {
    clients::ComputeOptions options;
    options.cluster = "test";
    options.name = name;
    options.profile = kProfile;
    options.data_directory = folder_ / name;
    options.lease_seconds = 1;
    options.start_timeout_us = 10'000'000;
    return options;
  }
  StatusOr<std::unique_ptr<clients::ComputeNode>> join(clients::ComputeOptions options,
                                                       SimRegistry** registry = nullptr) {
    auto connection = around_.sim.store().connect();
    if (registry != nullptr) *registry = connection.get();
    return clients::ComputeNode::join(std::move(connection), cluster_secret(), std::move(options));
  }
  StatusOr<std::unique_ptr<Server>> start(const std::string& name) {
    auto server = std::make_unique<Server>();
    STRATA_ASSIGN_OR_RETURN(server->node, join(options(name), &server->registry));
    server->guard = std::make_unique<Guard>(server->node.get());
    engine::KernelOptions kernel_options = engine::testing::options_on(server->disk.get());
    kernel_options.background = true;
    kernel_options.profile = kProfile;
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

  transport::test::Folder folder_;
  Surroundings around_;
  std::vector<std::unique_ptr<StorageNode>> nodes_;
};

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
  auto first = start("compute-1");
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE(insert(first->get(), 1).ok());
  (*first)->registry->set_paused(true);  // it is dead, and its lease is not
  auto again = start("compute-1");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(look_up(again->get(), 1).ok());
  EXPECT_FALSE(insert(first->get(), 2).ok());  // CM1
  (*again)->registry->set_paused(true);
  auto other = start("compute-2");
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_TRUE(look_up(other->get(), 1).ok());
}

TEST_F(ComputeNodes, NothingIsTakenFromANodeThatLives) {
  auto first = start("compute-1");
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = join(options("compute-2"));
  EXPECT_TRUE(is_fenced(second.status())) << second.status();
  EXPECT_NE(second.status().message().find("compute-1"), std::string::npos) << second.status();
  EXPECT_TRUE(insert(first->get(), 1).ok());
}

TEST_F(ComputeNodes, WithoutALeaseNothingIsAnsweredUntilThereIsAnother) {
  auto server = start("compute-1");
  ASSERT_TRUE(server.ok()) << server.status();
  ASSERT_TRUE(insert(server->get(), 1).ok());
  (*server)->registry->set_connected(false);
  ASSERT_TRUE(becomes_true([&] { return !(*server)->node->may_answer(); }));
  EXPECT_TRUE(is_fenced(look_up(server->get(), 1)));
  EXPECT_TRUE(is_fenced(insert(server->get(), 1))) << "that there is one is an answer, too";
  (*server)->registry->set_connected(true);
  ASSERT_TRUE(becomes_true([&] { return (*server)->node->may_answer(); }));
  EXPECT_TRUE(look_up(server->get(), 1).ok());
  EXPECT_TRUE(insert(server->get(), 2).ok());
  EXPECT_TRUE((*server)->kernel->checkpoint().ok());  // by the new lease
  // Nobody was let in meanwhile, nor is now.
  EXPECT_TRUE(is_fenced(join(options("compute-2")).status()));
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
  EXPECT_TRUE(is_fenced(look_up(sleeper->get(), 2))) << look_up(sleeper->get(), 2);
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
  EXPECT_TRUE(is_fenced(wrong_profile.status())) << wrong_profile.status();
  EXPECT_NE(wrong_profile.status().message().find("logdb-mv-sr"), std::string::npos);

  other = options("compute-1");
  other.cluster = "elsewhere";
  other.start_timeout_us = 200'000;
  const auto no_cluster = join(other);
  EXPECT_TRUE(is_peer_down(no_cluster.status())) << no_cluster.status();
  EXPECT_NE(no_cluster.status().message().find("elsewhere"), std::string::npos);

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

}  // namespace
}  // namespace strata::testing
