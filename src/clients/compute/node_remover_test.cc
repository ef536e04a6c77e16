// Goal: the placement changes only while the log is durable by both quorums, the log goes back to
// one only when that is certain never to come, and refusals say why (NM1-NM3). Method: a log that
// does what the test says, a simulated registry in real time whose replies get lost.
#include "clients/compute/node_remover.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "base/diag.h"
#include "base/testing/wait_until.h"
#include "cluster/testing/held_by.h"
#include "registry/sim/testing/sim_thread.h"

namespace strata::clients {
namespace {

using cluster::PendingRemoval;
using cluster::Placement;
using strata::testing::wait_until;
using ::testing::HasSubstr;

constexpr StreamId kStream{1};

class FakeReplica final : public LeavingReplica {
 public:
  bool prepare_leave(const std::string& key, uint64_t generation, uint32_t write_quorum) override {
    EXPECT_EQ(key, "b");
    EXPECT_EQ(generation, 1u);
    EXPECT_EQ(write_quorum, 2u);
    ++prepared;
    return ready;
  }
  void cancel_leave() override { ++cancelled; }
  [[nodiscard]] std::vector<bool> well() const override {
    return {true, false, true, last_is_well.load()};
  }
  std::atomic<bool> ready{true};
  std::atomic<bool> last_is_well{true};
  std::atomic<int> prepared{0};
  std::atomic<int> cancelled{0};
};

class NodeRemoverTest : public ::testing::Test {
 protected:
  NodeRemoverTest() {
    set_diag_sink([](Severity, std::string_view) {});
    EXPECT_TRUE(
        topology_.change_placement(std::nullopt, {{1, {"a", "b", "c", "d"}, 3}}, deadline()).ok());
    grant_ = acquire(writer_.get(), "compute");
    remover_ = std::make_unique<NodeRemover>(parts(300'000));
  }
  ~NodeRemoverTest() override { set_diag_sink(nullptr); }
  NodeRemover::Parts parts(uint64_t prepare_timeout_us) {
    return {.registry = writer_.get(),
            .keys = keys_,
            .stream = kStream,
            .log = &log_,
            .pages = pages_are_written_ ? &pages_ : nullptr,
            .grant = [this] { return grant_; },
            .follow = [this](const Placement& now) { followed_ = now.generation; },
            .prepare_timeout_us = prepare_timeout_us};
  }
  // Another remover, of a compute node that writes the pages, too.
  void write_pages() {
    pages_are_written_ = true;
    remover_.reset();
    remover_ = std::make_unique<NodeRemover>(parts(300'000));
  }
  [[nodiscard]] uint64_t deadline() const { return asker_->now_us() + 5'000'000; }
  cluster::EpochGrant acquire(registry::SimRegistry* as, const std::string& holder) {
    auto lease = as->grant_lease(
        600, [](registry::LeaseId) {}, deadline());
    EXPECT_TRUE(lease.ok()) << lease.status();
    leases_.push_back(*std::move(lease));
    cluster::StreamEpochs epochs(as, keys_);
    const registry::Version before = cluster::testing::held_by(&epochs, kStream, deadline());
    const auto grant =
        epochs.acquire({kStream, holder, Epoch{}, before}, *leases_.back(), deadline());
    EXPECT_TRUE(grant.ok()) << grant.status();
    return *grant;
  }
  void ask() {
    auto lease = asker_->grant_lease(
        600, [](registry::LeaseId) {}, deadline());
    leases_.push_back(*std::move(lease));
    EXPECT_TRUE(removals_.ask({"b", 1, ""}, leases_.back()->id(), deadline()).ok());
  }
  std::string answer() {
    const auto found = removals_.read(deadline());
    return found.ok() && found->has_value() ? (*found)->request.refused : "";
  }
  Placement now() { return **topology_.placement(deadline()); }
  // Why the writer refuses what is asked now; it goes back to one quorum then.
  std::string refusal() {
    ask();
    EXPECT_TRUE(wait_until([&] { return !answer().empty(); }));
    EXPECT_EQ(log_.cancelled, 1);
    EXPECT_EQ(now().generation, 1u);
    return answer();
  }

  registry::testing::SimThread sim_;
  const cluster::ClusterKeys keys_ = *cluster::ClusterKeys::of("test");
  std::unique_ptr<registry::SimRegistry> writer_ = sim_.store().connect();
  std::unique_ptr<registry::SimRegistry> asker_ = sim_.store().connect();
  cluster::Topology topology_{asker_.get(), keys_};
  cluster::NodeRemovals removals_{asker_.get(), keys_, kStream};
  std::vector<std::unique_ptr<registry::Lease>> leases_;
  cluster::EpochGrant grant_;
  FakeReplica log_, pages_;
  bool pages_are_written_ = false;
  std::atomic<uint64_t> followed_{0};
  std::unique_ptr<NodeRemover> remover_;
};

TEST_F(NodeRemoverTest, TakesTheNodeOutAndGoesOnWithoutIt) {
  ask();
  ASSERT_TRUE(wait_until([&] { return followed_ == 2; }));
  EXPECT_EQ(now().groups[0].nodes, (std::vector<std::string>{"a", "c", "d"}));
  EXPECT_EQ(now().groups[0].taken_out_by, grant_.epoch);
  EXPECT_EQ(log_.cancelled, 0);
}

// What is durable in another group this writer does not know. Whichever of the two keeps its log.
TEST_F(NodeRemoverTest, OnlyOutOfTheGroupThatKeepsItsLog) {
  std::vector<cluster::StorageGroup> groups = now().groups;
  groups.push_back({2, {"e", "f", "g", "h"}, 3});
  ASSERT_TRUE(topology_.change_placement(now(), groups, deadline()).ok());
  const cluster::StorageGroup& other = now().group_of(kStream).id == 1 ? groups[1] : groups[0];
  auto lease = asker_->grant_lease(
      600, [](registry::LeaseId) {}, deadline());
  leases_.push_back(*std::move(lease));
  ASSERT_TRUE(removals_.ask({other.nodes[1], 2, ""}, leases_.back()->id(), deadline()).ok());
  ASSERT_TRUE(wait_until([&] { return !answer().empty(); }));
  EXPECT_THAT(answer(), HasSubstr("does not keep log stream 1"));
  EXPECT_EQ(log_.prepared, 0);
}

TEST_F(NodeRemoverTest, WaitsForTheLogAndGivesUp) {  // NM1
  log_.ready = false;
  EXPECT_THAT(refusal(), HasSubstr("do not have everything"));
  log_.ready = true;  // that one is answered; another one counts
  ask();
  EXPECT_TRUE(wait_until([&] { return followed_ == 2; }));
}

TEST_F(NodeRemoverTest, NotWhileAnotherNodeIsIll) {  // NM3
  log_.last_is_well = false;
  EXPECT_THAT(refusal(), HasSubstr("storage node d is away or ill"));
}

TEST_F(NodeRemoverTest, ARequestThatIsWithdrawnEndsTheWaiting) {  // NM3
  remover_.reset();
  remover_ = std::make_unique<NodeRemover>(parts(60'000'000));
  log_.ready = false;
  ask();
  ASSERT_TRUE(wait_until([&] { return log_.prepared > 0; }));
  ASSERT_TRUE(leases_.back()->revoke(deadline()).ok());
  EXPECT_TRUE(wait_until([&] { return log_.cancelled == 1; }));
  EXPECT_EQ(now().generation, 1u);
  EXPECT_EQ(followed_, 0u);
}

TEST_F(NodeRemoverTest, WaitsForThePagesAsForTheLog) {  // NM1, NM2
  write_pages();
  pages_.ready = false;
  EXPECT_THAT(refusal(), HasSubstr("do not have everything"));
  EXPECT_EQ(pages_.cancelled, 1);
  EXPECT_GT(log_.prepared, 0);
  pages_.last_is_well = false;
  pages_.ready = true;
  ask();
  EXPECT_TRUE(wait_until([&] { return pages_.cancelled == 2; }));
  EXPECT_TRUE(wait_until([&] { return !answer().empty(); }));
  EXPECT_THAT(answer(), HasSubstr("storage node d does not have every page"));
  EXPECT_EQ(now().generation, 1u);
  pages_.last_is_well = true;
  ask();
  EXPECT_TRUE(wait_until([&] { return followed_ == 2; }));
  EXPECT_EQ(pages_.cancelled, 2);
}

TEST_F(NodeRemoverTest, OnceSomebodyElseHasTheStreamNothingIsChanged) {
  acquire(asker_.get(), "another");
  EXPECT_NE(refusal(), "");
}

TEST_F(NodeRemoverTest, AsLongAsTheOutcomeIsUnknownBothQuorumsStay) {  // NM2
  log_.ready = false;
  ask();
  ASSERT_TRUE(wait_until([&] { return log_.prepared > 0; }));
  writer_->set_faults({.lost_reply = 1000});  // it is done, and nobody says so
  log_.ready = true;
  ASSERT_TRUE(wait_until([&] { return now().generation == 2; }));
  EXPECT_EQ(followed_, 0u);
  EXPECT_EQ(log_.cancelled, 0);
  // Meanwhile somebody changes it again.
  const Placement without = now();
  ASSERT_TRUE(
      topology_.change_placement(without, *cluster::with_added(without, 1, "e", 0), deadline())
          .ok());
  EXPECT_EQ(log_.cancelled, 0);
  writer_->set_faults({});
  EXPECT_TRUE(wait_until([&] { return followed_ == 3; }));
  EXPECT_EQ(log_.cancelled, 0);
}

}  // namespace
}  // namespace strata::clients
