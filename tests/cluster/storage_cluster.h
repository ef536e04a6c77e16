// A cluster in one process, over sockets: three storage nodes on the real file system, a registry
// in memory, and kernels that keep nothing. For tests.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "clients/storage/quorum_log_sink.h"
#include "clients/storage/registry_control.h"
#include "clients/storage/storage_page_source.h"
#include "engine/kernel_seams.h"
#include "engine/testing/test_database.h"
#include "io/file_system.h"
#include "registry/stream_epochs.h"
#include "registry/testing/sim_thread.h"
#include "storenode/node/storage_node.h"
#include "transport/testing/connections.h"
#include "transport/testing/io_node.h"

namespace strata::testing {

using storenode::kFirstLsn;
constexpr StreamId kStream = storenode::kFirstStream;
constexpr uint64_t kCallUs = 5'000'000;

inline transport::Secret cluster_secret() { return transport::test::secret_of('s'); }

// The registry, and where the storage nodes are.
struct Surroundings {
  registry::testing::SimThread sim;
  registry::ClusterKeys keys = *registry::ClusterKeys::of("test");
  std::vector<std::string> addresses;
};

// A storage node's process: stopped, it leaves its folder.
class StorageNode {
 public:
  StorageNode(Surroundings* around, size_t number, std::string folder, std::string profile)
      : around_(around), registry_(around->sim.store().connect()) {
    for (size_t i = 0; i < around->addresses.size(); ++i) group_.nodes.push_back(name_of(i));
    group_.write_quorum = static_cast<uint32_t>(group_.nodes.size() / 2 + 1);
    options_.name = name_of(number);
    options_.cluster = "test";
    options_.directory = std::move(folder);
    options_.listen = {around_->addresses[number]};
    options_.profile = std::move(profile);
    options_.initial_group = group_;
    options_.log.segment_bytes = 4u << 20;
    options_.pages.page_cache_bytes = 8u << 20;
    options_.pages.log_cache_bytes = 4u << 20;
    start();
  }

  void start() {
    auto node =
        storenode::StorageNode::open(registry_.get(), files_.get(), cluster_secret(), options_);
    ASSERT_TRUE(node.ok()) << node.status();
    node_ = *std::move(node);
  }
  void stop() { node_.reset(); }
  [[nodiscard]] LogStore* logs() { return node_->logs(); }
  [[nodiscard]] storenode::PageStore* pages() { return node_->pages(); }

 private:
  static std::string name_of(size_t number) { return "node-" + std::to_string(number); }
  Surroundings* const around_;
  storenode::InitialGroup group_;
  storenode::NodeOptions options_;
  std::unique_ptr<registry::Registry> registry_;
  std::unique_ptr<FileSystem> files_ = make_posix_file_system();
  std::unique_ptr<storenode::StorageNode> node_;
};

// A kernel and its ways to the storage nodes. Each has an empty folder of its own.
class ComputeNode {
 public:
  ComputeNode(Surroundings* around, std::string name, const std::string& profile)
      : around_(around),
        name_(std::move(name)),
        profile_(profile),
        registry_(around->sim.store().connect()),
        disk_(make_sim_file_system()) {}
  ~ComputeNode() { die(); }

  Status open() {
    const uint64_t deadline = registry_->now_us() + kCallUs;
    STRATA_ASSIGN_OR_RETURN(lease_, registry_->grant_lease(
                                        3600, [](registry::LeaseId) {}, deadline));
    registry::StreamEpochs epochs(registry_.get(), around_->keys);
    STRATA_ASSIGN_OR_RETURN(const registry::EpochGrant grant,
                            epochs.acquire({kStream, name_, Epoch{}, true}, *lease_, deadline));
    STRATA_ASSIGN_OR_RETURN(
        control_, clients::RegistryControl::open(registry_.get(), around_->keys, grant, kCallUs));
    clients::QuorumLogOptions log;
    log.client.stream = kStream;
    log.client.addresses.assign(around_->addresses.begin(), around_->addresses.end());
    log.holder = {grant.epoch, 1 + grant.epoch.value};
    log.founding = !control_->founded();
    log.first_lsn = kFirstLsn;
    log.sync_timeout_us = sync_timeout_us;
    STRATA_ASSIGN_OR_RETURN(sink_,
                            clients::QuorumLogSink::open(io_.world(), cluster_secret(), log));
    clients::StoragePagesOptions pages;
    pages.stream = kStream;
    pages.epoch = grant.epoch;
    pages.addresses = log.client.addresses;
    source_ = std::make_unique<clients::StoragePageSource>(cluster_secret(), pages);

    KernelOptions options = engine::testing::options_on(disk_.get());
    options.background = true;
    options.profile = profile_;
    engine::KernelSeams seams;
    seams.page_source = source_.get();
    seams.log_sink = sink_.get();
    seams.control = control_.get();
    STRATA_ASSIGN_OR_RETURN(kernel_, engine::open_with_seams(options, seams));
    return ok_status();
  }
  // Without a word to anybody.
  void die() {
    kernel_.reset();
    sink_.reset();
    source_.reset();
    control_.reset();
    lease_.reset();
  }
  uint64_t sync_timeout_us = 20'000'000;  // before open()

  [[nodiscard]] engine::Kernel* kernel() { return kernel_.get(); }
  [[nodiscard]] clients::StoragePageSource* source() { return source_.get(); }
  [[nodiscard]] clients::QuorumLogSink* sink() { return sink_.get(); }

 private:
  using KernelOptions = engine::KernelOptions;
  Surroundings* const around_;
  const std::string name_;
  const std::string profile_;
  transport::test::IoNode io_;
  std::unique_ptr<registry::Registry> registry_;
  std::unique_ptr<SimFileSystem> disk_;
  std::unique_ptr<registry::Lease> lease_;
  std::unique_ptr<clients::RegistryControl> control_;
  std::unique_ptr<clients::QuorumLogSink> sink_;
  std::unique_ptr<clients::StoragePageSource> source_;
  std::unique_ptr<engine::Kernel> kernel_;
};

}  // namespace strata::testing
