// Several servers that write the same tables, in one process over sockets: storage nodes on the
// real file system, a registry in memory, a memory node that has the authority, and servers
// (clients/compute/fusion_node.h) with kernels. By the profile the memory node writes pages to the
// storage nodes, or these make them from the logs. For tests.
//
// The memory node is the service with parts of the test's own: its authority stream is in memory;
// pages go to the storage nodes' written pages in the authority stream's name.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/aligned.h"
#include "clients/compute/fusion_node.h"
#include "clients/compute/place_adopter.h"
#include "cluster/membership.h"
#include "cluster/places.h"
#include "engine/kernel_seams.h"
#include "engine/recover_only.h"
#include "engine/testing/cluster.h"
#include "memnode/fusion/testing/fusion_node.h"
#include "memnode/host/log_sealer.h"
#include "storage_cluster.h"

namespace strata::testing {

constexpr char kFusion[] = "fusion";
constexpr char kFusionReplayed[] = "fusion-sr";
// Of tests that are run with each of them.
inline std::string profile_of(const ::testing::TestParamInfo<const char*>& info) {
  std::string name(info.param);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}
constexpr uint64_t kNoLeaseEndsUs = 60'000'000;  // nobody loses it because the machine is busy

// What a memory node writes pages through.
class PagesOnStorage final : public memnode::PageStore {
 public:
  explicit PagesOnStorage(clients::WrittenPageSource* storage) : storage_(storage) {}
  void write(absl::Span<const Image> images, absl::Span<Status> results) override {
    std::vector<size_t> order(images.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(),
              [&](size_t a, size_t b) { return images[a].page < images[b].page; });
    for (size_t begin = 0; begin < order.size(); begin += kWriteBatchPages) {
      const size_t count = std::min(order.size() - begin, kWriteBatchPages);
      const AlignedBytes bytes(count * kPageBytes);
      std::vector<PageId> ids;
      for (size_t i = 0; i < count; ++i) {
        ids.push_back(images[order[begin + i]].page);
        std::memcpy(bytes.get() + i * kPageBytes, images[order[begin + i]].bytes, kPageBytes);
      }
      bool ok[kWriteBatchPages] = {};
      const Status status =
          storage_->write_batch(ids.data(), static_cast<uint32_t>(count), bytes.get(), ok);
      for (size_t i = 0; i < count; ++i) results[order[begin + i]] = ok[i] ? ok_status() : status;
    }
    const Status synced = storage_->sync();
    for (Status& result : results)
      if (result.ok()) result = synced;
  }

 private:
  clients::WrittenPageSource* const storage_;
};

class MemoryNode {
 public:
  MemoryNode(Surroundings* around, const std::string& profile) : around_(around) {
    node_.options.pages.storage_replays = find_profile(profile)->pages == PageOrigin::kReplayed;
    registry_ = around->sim.store().connect();
    node_.options.time.authority.lease_us = kNoLeaseEndsUs;
    node_.options.pages.slots = 2048;
    node_.options.pages.entries_max = 512;  // they are dropped, too: storage is read
    node_.options.table_slots = 1u << 14;
  }
  ~MemoryNode() { stop(); }

  // Blocks until it serves.
  void start() {
    const uint64_t deadline = registry_->now_us() + kCallUs;
    lease_ = *registry_->grant_lease(
        3600, [](registry::LeaseId) {}, deadline);
    cluster::StreamEpochs epochs(registry_.get(), around_->keys);
    grant_ =
        *epochs.acquire({cluster::kAuthorityStream, "memory-1", Epoch{},
                         cluster::testing::held_by(&epochs, cluster::kAuthorityStream, deadline)},
                        *lease_, deadline);
    if (!node_.options.pages.storage_replays) open_written();
    if (seals) make_sealer();
    node_.start(grant_.epoch.value);
    runs_ = true;
    cluster::Member member;
    member.name = "memory-1";
    member.role = cluster::Role::kMemory;
    member.identity = 1;
    member.address = node_.address();
    const auto joined =
        cluster::Membership(registry_.get(), around_->keys).join(member, *lease_, deadline);
    ASSERT_TRUE(joined.ok()) << joined.status();
  }
  void stop() {
    if (!std::exchange(runs_, false)) return;
    node_.stop();
    sealer_.reset();
    if (written_ != nullptr) written_->stop();
    store_.reset();
    written_.reset();
  }
  // The service answers nobody, and begins again under the same epoch: what it had is gone.
  void end_service() { node_.end_service(); }

  [[nodiscard]] memnode::FusionService* service() { return node_.service(); }
  [[nodiscard]] clients::WrittenPageSource* written() { return written_.get(); }
  [[nodiscard]] size_t members() const {
    size_t count = 0;
    for (const auto& server : node_.service()->status().servers) count += server.fenced ? 0 : 1;
    return count;
  }
  // Before start(): logs of whoever is fenced are sealed on the storage nodes, as a real one does.
  bool seals = false;
  // Before start(): how long a lease is.
  void set_lease_us(uint64_t us) {
    node_.options.time.authority.lease_us = us;
    node_.options.join_us_max = 5'000'000;
  }
  // As its supervisor would report it.
  void exited(NodeId number) {
    for (const auto& server : node_.service()->status().servers)
      if (server.server == number) node_.service()->exited(number, server.life);
  }

 private:
  void open_written() {
    in_sync_ = *clients::InSyncSet::open(registry_.get(), around_->keys, grant_, kCallUs);
    clients::WrittenPagesOptions pages;
    pages.nodes.stream = cluster::kAuthorityStream;
    pages.nodes.epoch = grant_.epoch;
    for (size_t i = 0; i < around_->addresses.size(); ++i)
      pages.nodes.nodes.push_back({StorageNode::name_of(i), around_->addresses[i]});
    pages.nodes.write_quorum = static_cast<uint32_t>(around_->addresses.size() / 2 + 1);
    pages.nodes.founding = in_sync_->nodes().empty();
    auto written =
        clients::WrittenPageSource::open(io_.world(), cluster_secret(), pages, in_sync_.get());
    ASSERT_TRUE(written.ok()) << written.status();
    written_ = *std::move(written);
    ASSERT_TRUE(written_->sync().ok());  // the registry has a list from here on
    store_ = std::make_unique<PagesOnStorage>(written_.get());
    node_.other_store = store_.get();
  }
  void make_sealer() {
    const auto storage = [this] {
      clients::QuorumClientOptions options;
      options.generation = 1;
      options.quorum.replicas = static_cast<uint32_t>(around_->addresses.size());
      options.quorum.write_quorum = options.quorum.replicas / 2 + 1;
      for (size_t i = 0; i < around_->addresses.size(); ++i) {
        options.addresses.emplace_back(around_->addresses[i]);
        options.keys.push_back(StorageNode::name_of(i));
      }
      return options;
    };
    sealer_ = std::make_unique<memnode::LogSealer>(
        memnode::LogSealer::Parts{.registry = registry_.get(),
                                  .keys = around_->keys,
                                  .world = io_.world(),
                                  .secret = cluster_secret(),
                                  .holder = "memory-1",
                                  .lease = [this] { return lease_; },
                                  .storage = storage,
                                  .storage_now = storage});
    node_.seal = [sealer = sealer_.get()](NodeId server, uint64_t,
                                          absl::AnyInvocable<void(const Status&)> done) {
      sealer->seal(cluster::log_stream_of(server), std::move(done));
    };
  }

  Surroundings* const around_;
  std::unique_ptr<registry::Registry> registry_;
  transport::test::IoNode io_;
  std::shared_ptr<registry::Lease> lease_;
  cluster::EpochGrant grant_;
  std::unique_ptr<clients::InSyncSet> in_sync_;
  std::unique_ptr<clients::WrittenPageSource> written_;
  std::unique_ptr<PagesOnStorage> store_;
  std::unique_ptr<memnode::LogSealer> sealer_;  // asked by node_, which is stopped before
  memnode::testing::FusionNode node_;
  bool runs_ = false;
};

class FusionGuard final : public engine::AnswerGuard {
 public:
  explicit FusionGuard(const clients::FusionNode* node) : node_(node) {}
  [[nodiscard]] bool may_answer() const noexcept override { return node_->may_answer(); }
  [[nodiscard]] Status why_not() const override {
    const Status why = node_->why_silent();
    return why.ok() ? AnswerGuard::why_not() : why;
  }

 private:
  const clients::FusionNode* const node_;
};

// A server's process, in a data folder of its own, which it keeps.
class FusionServer {
 public:
  FusionServer(Surroundings* around, std::string folder, std::string profile)
      : around_(around), folder_(std::move(folder)), profile_(std::move(profile)) {}
  ~FusionServer() { die(); }

  Status join() {
    clients::FusionNodeOptions options;
    options.compute.cluster = "test";
    options.compute.name = folder_.substr(folder_.rfind('/') + 1);
    options.compute.profile = profile_;
    options.compute.data_directory = folder_;
    options.compute.lease_seconds = 10;
    options.compute.start_timeout_us = start_timeout_us;
    if (adopts) make_adopter(options);
    auto connection = around_->sim.store().connect();
    registry_ = connection.get();
    if (before_join) before_join(registry_);
    STRATA_ASSIGN_OR_RETURN(
        node_, clients::FusionNode::join(std::move(connection), cluster_secret(), options));
    return ok_status();
  }
  Status open_kernel() {
    if (adopter_ != nullptr) adopter_->start(node_->number(), node_->compute()->holder());
    guard_ = std::make_unique<FusionGuard>(node_.get());
    disk_ = make_sim_file_system();
    engine::KernelOptions options = engine::testing::options_on(disk_.get());
    options.background = true;
    options.profile = profile_;
    options.node = node_->number().value;
    options.buffer_pool_bytes = 2u << 20;
    engine::KernelSeams seams;
    node_->fill(&seams);
    seams.answers = guard_.get();
    if (change_seams) change_seams(&seams);
    STRATA_ASSIGN_OR_RETURN(kernel_, engine::open_with_seams(options, seams));
    return ok_status();
  }
  Status start() {
    STRATA_RETURN_IF_ERROR(join());
    return open_kernel();
  }
  // In order.
  Status stop() {
    if (adopter_ != nullptr) adopter_->stop();
    STRATA_RETURN_IF_ERROR(kernel_->shutdown());
    kernel_.reset();
    const Status left = node_->leave();
    node_.reset();
    return left;
  }
  // As if it was killed.
  void die() {
    if (adopter_ != nullptr) adopter_->stop();
    kernel_.reset();
    node_.reset();
    guard_.reset();
    adopter_.reset();
  }
  [[nodiscard]] clients::PlaceAdopter* adopter() { return adopter_.get(); }
  [[nodiscard]] bool runs() const { return kernel_ != nullptr; }
  [[nodiscard]] clients::FusionNode* node() { return node_.get(); }
  [[nodiscard]] engine::Kernel* kernel() { return kernel_.get(); }
  [[nodiscard]] registry::SimRegistry* registry() { return registry_; }
  [[nodiscard]] const std::string& folder() const { return folder_; }

  // Takes over what those leave that are killed.
  bool adopts = false;
  // In its adopter's thread: what is opened in another's place, and when that was recovered.
  std::function<Status(clients::FusionNode*)> before_recovery, after_recovery;
  uint64_t start_timeout_us = 60'000'000;
  std::function<void(registry::SimRegistry*)> before_join;
  std::function<void(engine::KernelSeams*)> change_seams;

 private:
  void make_adopter(clients::FusionNodeOptions& options) {
    clients::PlaceAdopterOptions adopter;
    adopter.node = options;
    adopter.connect = [this]() -> StatusOr<std::unique_ptr<registry::Registry>> {
      return std::unique_ptr<registry::Registry>(around_->sim.store().connect());
    };
    adopter.recover = [this](clients::FusionNode* place, StopFlag* stop) {
      return recover(place, stop);
    };
    adopter.settle_us = 20'000;
    adopter.rank_us = 1'000'000;
    adopter.retry_us_min = 50'000;
    adopter.retry_us_max = 500'000;
    adopter_ = std::make_unique<clients::PlaceAdopter>(cluster_secret(), std::move(adopter));
    options.member.members = [a = adopter_.get()](const auto& servers) { a->heard(servers); };
  }
  StatusOr<std::string> recover(clients::FusionNode* place, StopFlag* stop) {
    if (before_recovery) STRATA_RETURN_IF_ERROR(before_recovery(place));
    const FusionGuard guard(place);
    const std::unique_ptr<SimFileSystem> disk = make_sim_file_system();
    engine::KernelOptions options = engine::testing::options_on(disk.get());
    options.background = true;
    options.profile = profile_;
    options.node = place->number().value;
    options.buffer_pool_bytes = 2u << 20;
    engine::KernelSeams seams;
    place->fill(&seams);
    seams.answers = &guard;
    STRATA_ASSIGN_OR_RETURN(const auto what, engine::recover_only(options, seams, stop));
    if (after_recovery) STRATA_RETURN_IF_ERROR(after_recovery(place));
    return engine::text_of(what);
  }

  Surroundings* const around_;
  const std::string folder_;
  const std::string profile_;
  registry::SimRegistry* registry_ = nullptr;
  std::unique_ptr<clients::PlaceAdopter> adopter_;  // heard of by node_, until that is gone
  std::unique_ptr<clients::FusionNode> node_;
  std::unique_ptr<FusionGuard> guard_;
  std::unique_ptr<SimFileSystem> disk_;
  std::unique_ptr<engine::Kernel> kernel_;
};

class FusionCluster {
 public:
  explicit FusionCluster(std::string of_profile = kFusion) : profile(std::move(of_profile)) {
    set_diag_sink([](Severity, std::string_view) {});
    for (int i = 0; i < 3; ++i)
      around.addresses.push_back("unix:" + (folder / ("socket-" + std::to_string(i))));
    for (size_t i = 0; i < 3; ++i)
      storage.push_back(std::make_unique<StorageNode>(
          &around, i, folder / ("node-" + std::to_string(i)), profile));
    memory = std::make_unique<MemoryNode>(&around, profile);
  }
  ~FusionCluster() {
    servers.clear();
    memory.reset();
    storage.clear();
    set_diag_sink(nullptr);
  }
  // One more, not started.
  FusionServer* add() {
    servers.push_back(std::make_unique<FusionServer>(
        &around, folder / ("server-" + std::to_string(servers.size() + 1)), profile));
    return servers.back().get();
  }
  [[nodiscard]] std::vector<cluster::KnownPlace> places() {
    const auto registry = around.sim.store().connect();
    const auto all = cluster::Places(registry.get(), around.keys).all(registry->now_us() + kCallUs);
    EXPECT_TRUE(all.ok()) << all.status();
    return all.ok() ? *all : std::vector<cluster::KnownPlace>{};
  }
  [[nodiscard]] bool stream_is_held(NodeId number) {
    const auto registry = around.sim.store().connect();
    const auto holder = cluster::StreamEpochs(registry.get(), around.keys)
                            .current(cluster::log_stream_of(number), registry->now_us() + kCallUs);
    EXPECT_TRUE(holder.ok()) << holder.status();
    return holder.ok() && holder->has_value() && (*holder)->held;
  }

  const std::string profile;
  transport::test::Folder folder;
  Surroundings around;
  std::vector<std::unique_ptr<StorageNode>> storage;
  std::unique_ptr<MemoryNode> memory;
  std::vector<std::unique_ptr<FusionServer>> servers;
};

}  // namespace strata::testing
