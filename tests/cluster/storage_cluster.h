// A cluster in one process, over sockets: three storage nodes on the real file system, a registry
// in memory, and kernels that keep nothing. For tests.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "clients/storage/quorum_log_sink.h"
#include "clients/storage/registry_control.h"
#include "clients/storage/storage_page_source.h"
#include "engine/kernel_seams.h"
#include "engine/testing/test_database.h"
#include "io/file_system.h"
#include "registry/log_checkpoints.h"
#include "registry/sim.h"
#include "registry/stream_epochs.h"
#include "storenode/logstore/log_store_runner.h"
#include "storenode/replay/page_store.h"
#include "storenode/service/log_service.h"
#include "storenode/service/page_service.h"
#include "storenode/service/peer_reader.h"
#include "storenode/service/stream_log_view.h"
#include "storenode/service/worker_pool.h"
#include "transport/rpc_server.h"
#include "transport/testing/connections.h"
#include "transport/testing/io_node.h"

namespace strata::testing {

constexpr StreamId kStream{1};
constexpr Lsn kFirstLsn{4096};
constexpr uint64_t kClusterId = 77;
constexpr uint64_t kCallUs = 5'000'000;

inline transport::Secret cluster_secret() { return transport::test::secret_of('s'); }

// The registry and the node's peers, as all nodes see them.
struct Surroundings {
  registry::SimStore store{monotonic_us, 1};
  registry::ClusterKeys keys = *registry::ClusterKeys::of("test");
  std::vector<std::string> addresses;
};

class StorageNode {
 public:
  StorageNode(Surroundings* around, size_t number, std::string folder, storenode::ReplayMode mode)
      : around_(around),
        number_(number),
        folder_(std::move(folder)),
        mode_(mode),
        registry_(around->store.connect()),
        files_(make_posix_file_system()) {
    EXPECT_TRUE(files_->make_directory(folder_).ok());
    start();
  }
  ~StorageNode() { stop(); }

  void start() {
    LogStoreOptions log_options;
    log_options.directory = folder_ + "/log";
    log_options.cluster_id = kClusterId;
    log_options.segment_bytes = 4u << 20;
    auto logs = LogStore::open(files_.get(), log_options);
    ASSERT_TRUE(logs.ok()) << logs.status();
    logs_ = std::move(*logs);
    runner_ = std::make_unique<LogStoreRunner>(logs_.get());
    view_ = std::make_unique<storenode::StreamLogView>(logs_.get(), kStream, kFirstLsn);

    storenode::PageStoreOptions page_options;
    page_options.directory = folder_ + "/pages";
    page_options.files = files_.get();
    page_options.cluster_id = kClusterId;
    page_options.mode = mode_;
    page_options.page_cache_bytes = 8u << 20;
    page_options.log_cache_bytes = 4u << 20;
    auto pages = storenode::PageStore::open(page_options);
    ASSERT_TRUE(pages.ok()) << pages.status();
    pages_ = std::move(*pages);
    const Status added = pages_->add_stream(kStream, view_.get(), kFirstLsn);
    ASSERT_TRUE(added.ok()) << added;
    pages_->start();

    workers_ = std::make_unique<storenode::WorkerPool>(4, 1000);
    io_ = std::make_unique<transport::test::IoNode>();
    peers_ = std::make_unique<storenode::PeerReader>(
        io_->world(), cluster_secret(),
        [this](StreamId, quorum::ReplicaIndex peer) { return around_->addresses[peer]; });
    log_service_ = std::make_unique<storenode::LogService>(parts());
    page_service_ = std::make_unique<storenode::PageService>(pages_.get(), log_service_.get(),
                                                             offload(), monotonic_us);
    server_ = std::make_unique<transport::RpcServer>(io_->world(), cluster_secret(),
                                                     transport::ServerOptions{});
    log_service_->register_on(server_.get());
    page_service_->register_on(server_.get());
    const auto listening = server_->listen(around_->addresses[number_]);
    ASSERT_TRUE(listening.ok()) << listening.status();
  }
  void stop() {
    server_.reset();
    peers_.reset();
    workers_.reset();
    if (pages_ != nullptr) pages_->stop();
    runner_.reset();
    page_service_.reset();
    log_service_.reset();
    pages_.reset();
    view_.reset();
    logs_.reset();
    io_.reset();
  }
  [[nodiscard]] bool running() const { return logs_ != nullptr; }
  [[nodiscard]] LogStore* logs() { return logs_.get(); }
  [[nodiscard]] storenode::PageStore* pages() { return pages_.get(); }

 private:
  storenode::Offload offload() {
    return [this](storenode::WorkerPool::Task task) { return workers_->run(std::move(task)); };
  }
  storenode::LogService::Parts parts() {
    storenode::LogService::Parts parts;
    parts.store = logs_.get();
    parts.offload = offload();
    parts.fetch = [this](StreamId stream, quorum::ReplicaIndex peer,
                         const quorum::ReadRequest& request, SelfCatchUp::FetchDone done) {
      peers_->fetch(stream, peer, request, std::move(done));
    };
    parts.origin = [this](StreamId stream) { return origin(stream); };
    parts.stream_made = [this](StreamId) { view_->stream_made(); };
    parts.needed_from = [this](StreamId stream) { return pages_->needed_from(stream); };
    return parts;
  }
  StatusOr<quorum::StreamOrigin> origin(StreamId stream) {
    const uint64_t deadline = registry_->now_us() + kCallUs;
    STRATA_ASSIGN_OR_RETURN(
        const auto holder,
        registry::StreamEpochs(registry_.get(), around_->keys).current(stream, deadline));
    STRATA_ASSIGN_OR_RETURN(
        const auto founded,
        registry::LogCheckpoints(registry_.get(), around_->keys).read(stream, deadline));
    return quorum::StreamOrigin{holder.has_value() ? holder->epoch : Epoch{}, !founded.has_value()};
  }

  Surroundings* const around_;
  const size_t number_;
  const std::string folder_;
  const storenode::ReplayMode mode_;
  std::unique_ptr<registry::Registry> registry_;
  std::unique_ptr<FileSystem> files_;
  std::unique_ptr<LogStore> logs_;
  std::unique_ptr<LogStoreRunner> runner_;
  std::unique_ptr<storenode::StreamLogView> view_;
  std::unique_ptr<storenode::PageStore> pages_;
  std::unique_ptr<storenode::WorkerPool> workers_;
  std::unique_ptr<transport::test::IoNode> io_;
  std::unique_ptr<storenode::PeerReader> peers_;
  std::unique_ptr<storenode::LogService> log_service_;
  std::unique_ptr<storenode::PageService> page_service_;
  std::unique_ptr<transport::RpcServer> server_;
};

// A kernel and its ways to the storage nodes. Each has an empty folder of its own.
class ComputeNode {
 public:
  ComputeNode(Surroundings* around, std::string name, const std::string& profile)
      : around_(around),
        name_(std::move(name)),
        profile_(profile),
        registry_(around->store.connect()),
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
    log.client.addresses = around_->addresses;
    log.holder = {grant.epoch, 1 + grant.epoch.value};
    log.founding = !control_->founded();
    log.first_lsn = kFirstLsn;
    log.sync_timeout_us = sync_timeout_us;
    STRATA_ASSIGN_OR_RETURN(sink_,
                            clients::QuorumLogSink::open(io_.world(), cluster_secret(), log));
    clients::StoragePagesOptions pages;
    pages.stream = kStream;
    pages.epoch = grant.epoch;
    pages.addresses = around_->addresses;
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
