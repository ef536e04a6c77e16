// Goal: a compute node that only reads sees states of pages as they were, beside a writer and the
// one after it, and changes nothing (CM7, RO1); several groups are refused (CM8). Method: a kernel
// on three storage nodes over sockets, readers beside it, a simulated registry in real time; the
// reader's way to the registry fails the test when it changes a key.
#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "base/aligned.h"
#include "base/testing/wait_until.h"
#include "clients/compute/compute_node.h"
#include "clients/compute/held_versions.h"
#include "cluster/topology.h"
#include "engine/internal/kernel_impl.h"
#include "kernel_on_storage.h"

namespace strata::testing {
namespace {

using registry::Registry;

// Forwards everything but changes.
class ReadOnlyRegistry final : public Registry {
 public:
  explicit ReadOnlyRegistry(std::unique_ptr<registry::SimRegistry> under)
      : under_(std::move(under)) {}
  [[nodiscard]] uint64_t now_us() const noexcept override { return under_->now_us(); }
  StatusOr<registry::Version> change(absl::Span<const registry::Change> changes, uint64_t,
                                     std::vector<registry::KeyValue>*) override {
    ADD_FAILURE() << "a reader changes " << changes.front().key;
    return error_internal("a reader changes the registry");
  }
  StatusOr<std::optional<registry::KeyValue>> get(std::string_view key,
                                                  uint64_t deadline_us) override {
    return under_->get(key, deadline_us);
  }
  StatusOr<registry::Listing> list(std::string_view prefix, uint64_t deadline_us) override {
    return under_->list(prefix, deadline_us);
  }
  StatusOr<std::unique_ptr<registry::Lease>> grant_lease(uint32_t ttl_s,
                                                         registry::LeaseLostHandler on_lost,
                                                         uint64_t deadline_us) override {
    return under_->grant_lease(ttl_s, std::move(on_lost), deadline_us);
  }
  std::unique_ptr<registry::Watch> watch(std::string prefix,
                                         registry::WatchHandler handler) override {
    return under_->watch(std::move(prefix), std::move(handler));
  }

 private:
  const std::unique_ptr<registry::SimRegistry> under_;
};

// Every page in the writer's memory, as of its llsn.
using Pages = std::map<PageId, std::string>;

class Readers : public KernelOnStorage {
 protected:
  // What is collected is a matter of page_versions_test.
  Readers() {
    for (auto& node : nodes_) {
      node->stop();
      node->options().pages.leases.window_us = 3'600'000'000;
      node->start();
    }
  }
  clients::ComputeOptions options() const {
    clients::ComputeOptions options;
    options.role = clients::ComputeRole::kReader;
    options.cluster = "test";
    options.name = "reader-1";
    options.profile = GetParam();
    options.data_directory = folder_ / "reader-1";
    options.lease_seconds = 1;
    options.start_timeout_us = 10'000'000;
    return options;
  }
  StatusOr<std::unique_ptr<clients::ComputeNode>> join(const clients::ComputeOptions& options) {
    auto connection = around_.sim.store().connect();
    connection_ = connection.get();
    return clients::ComputeNode::join(std::make_unique<ReadOnlyRegistry>(std::move(connection)),
                                      cluster_secret(), options);
  }
  Pages pages_of_writer() {
    Pages pages;
    compute_->kernel()->impl()->pool->for_each_cached(
        [&](PageId id, const char* page) { pages[id].assign(page, kPageBytes); });
    // Replay reads what is durable.
    EXPECT_TRUE(compute_->kernel()->checkpoint().ok());
    return pages;
  }
  void expect_pages(clients::ComputeNode* reader, const Pages& pages) {
    const AlignedBytes got(kPageBytes, 4096);
    ASSERT_FALSE(pages.empty());
    for (const auto& [id, bytes] : pages) {
      const Llsn at{header_of(bytes.data())->llsn};
      const Status read = reader->pages()->read_version(id, Llsn{}, at, got.get());
      ASSERT_TRUE(read.ok()) << read;
      // The checksum comes first; a page in memory is not sealed.
      EXPECT_EQ(std::memcmp(got.get() + 4, bytes.data() + 4, kPageBytes - 4), 0)
          << id.space << ":" << id.number << " as of " << at.value;
    }
  }
  static Llsn oldest(const Pages& pages) {
    Llsn oldest{UINT64_MAX};
    for (const auto& [id, bytes] : pages)
      oldest = std::min(oldest, Llsn{header_of(bytes.data())->llsn});
    return oldest;
  }

  registry::SimRegistry* connection_ = nullptr;  // of the reader that joined last
};
INSTANTIATE_TEST_SUITE_P(Profiles, Readers, ::testing::Values("logdb-mv-sr", "logdb-mv"),
                         [](const auto& of) {
                           std::string name = of.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(Readers, ReadsStatesOfBeforeBesideAWriterAndTheOneAfterIt) {
  open();
  ASSERT_TRUE(work(20).ok());
  auto reader = join(options());
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_TRUE(wait_until([&] { return (*reader)->facts().epoch == compute_->sink()->epoch(); }));
  const Pages before = pages_of_writer();
  ASSERT_TRUE((*reader)->hold_versions(oldest(before)).ok());
  expect_pages(reader->get(), before);
  ASSERT_TRUE(work(20).ok());
  const Pages after = pages_of_writer();
  EXPECT_NE(before, after);
  expect_pages(reader->get(), before);
  expect_pages(reader->get(), after);

  const Epoch epoch = (*reader)->facts().epoch;
  move();  // to another writer
  EXPECT_TRUE(wait_until([&] { return (*reader)->facts().epoch > epoch; }));
  ASSERT_TRUE(work(20).ok());
  const Pages last = pages_of_writer();
  expect_pages(reader->get(), before);
  expect_pages(reader->get(), last);
  EXPECT_TRUE((*reader)->trouble().ok()) << (*reader)->trouble();
  EXPECT_EQ((*reader)->facts().bad_pages, 0u);
  EXPECT_TRUE((*reader)->leave().ok());
  reader->reset();
  ASSERT_TRUE(work(5).ok()) << "nobody took anything from the writer";
  verify();
}

TEST_P(Readers, NothingIsWrittenAndWhoTriesHearsWhoWrites) {
  open();
  auto reader = join(options());
  ASSERT_TRUE(reader.ok()) << reader.status();
  ASSERT_TRUE(wait_until([&] { return !(*reader)->facts().epoch.is_zero(); }));
  EXPECT_EQ((*reader)->log(), nullptr);
  EXPECT_EQ((*reader)->control(), nullptr);
  PageSource* const pages = (*reader)->pages();
  const AlignedBytes page(kPageBytes, 4096);
  const PageId ids[] = {{300, 1}};
  bool ok[] = {true};
  for (const Status& refused :
       {pages->write(ids[0], page.get()), pages->write_batch(ids, 1, page.get(), ok),
        pages->create_space(SpaceId{300}), pages->delete_space(SpaceId{300}),
        pages->grow_space(SpaceId{300}, 10)}) {
    EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument) << refused;
    EXPECT_NE(refused.message().find("connect to compute-1 (log stream 1)"), std::string::npos)
        << refused;
  }
  EXPECT_FALSE(ok[0]);
  EXPECT_TRUE(wait_until([&] {  // when a node knows what the writer has made
    const auto spaces = pages->list_spaces();
    return spaces.ok() && !spaces->empty();
  }));
}

TEST_P(Readers, WhatIsHeldIsHeldOnAllNodesUntilTheReaderEnds) {
  open();
  ASSERT_TRUE(work(5).ok());
  auto reader = join(options());
  ASSERT_TRUE(reader.ok()) << reader.status();
  const Pages held = pages_of_writer();
  ASSERT_TRUE((*reader)->hold_versions(oldest(held)).ok());
  ASSERT_TRUE(work(10).ok());
  expect_pages(reader->get(), held);
  EXPECT_TRUE(wait_until([&] {
    return std::all_of(nodes_.begin(), nodes_.end(),
                       [](auto& node) { return node->pages()->status().leases == 1; });
  }));
  reader->reset();
  for (auto& node : nodes_) EXPECT_EQ(node->pages()->status().leases, 0u);
}

TEST_P(Readers, AnswersAgainWhenItHasAnotherLease) {
  open();
  auto reader = join(options());
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_TRUE((*reader)->may_answer());
  connection_->set_connected(false);
  ASSERT_TRUE(wait_until([&] { return !(*reader)->may_answer(); }));
  EXPECT_TRUE(is_lease_lost((*reader)->why_silent())) << (*reader)->why_silent();
  connection_->set_connected(true);
  ASSERT_TRUE(wait_until([&] { return (*reader)->may_answer(); }));
  EXPECT_EQ((*reader)->facts().fenced, "");
}

TEST_P(Readers, SeveralGroupsAreRefusedAndNotFollowed) {  // CM8
  open();
  auto reader = join(options());
  ASSERT_TRUE(reader.ok()) << reader.status();
  auto connection = around_.sim.store().connect();
  cluster::Topology topology(connection.get(), around_.keys);
  const auto now = topology.placement(connection->now_us() + kCallUs);
  ASSERT_TRUE(now.ok() && now->has_value());
  std::vector<cluster::StorageGroup> groups = (*now)->groups;
  groups.push_back({2, {"node-9"}, 1});
  ASSERT_TRUE(topology.change_placement(*now, groups, connection->now_us() + kCallUs).ok());
  ASSERT_TRUE(wait_until([&] { return !(*reader)->trouble().ok(); }));
  EXPECT_NE((*reader)->trouble().message().find("2 groups"), std::string::npos);
  reader->reset();
  for (const auto role : {clients::ComputeRole::kReader, clients::ComputeRole::kWriter}) {
    clients::ComputeOptions wanted = options();
    wanted.role = role;
    const Status refused = join(wanted).status();
    EXPECT_TRUE(is_unsupported(refused)) << refused;
    EXPECT_NE(refused.message().find("2: node-9"), std::string::npos) << refused;
  }
}

TEST(ReaderOptions, SayWhatIsWrong) {
  registry::testing::SimThread sim;
  const auto refusal = [&](clients::ComputeOptions options) {
    options.profile = options.profile.empty() ? "logdb-mv-sr" : options.profile;
    return clients::ComputeNode::join(sim.store().connect(), cluster_secret(), options).status();
  };
  clients::ComputeOptions options;
  options.streams = {StreamId{1}, StreamId{2}};
  EXPECT_EQ(refusal(options).code(), StatusCode::kInvalidArgument) << "a writer holds one";
  options.role = clients::ComputeRole::kReader;
  options.profile = "remote-disk";
  EXPECT_TRUE(is_unsupported(refusal(options)));
  options.profile = "";
  options.streams = {StreamId{1}, StreamId{1}};
  EXPECT_EQ(refusal(options).code(), StatusCode::kInvalidArgument);
  options.streams = {};
  EXPECT_EQ(refusal(options).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace strata::testing
