// Storage nodes whose pages compute writes, on simulated disks that can lose power, served over
// sockets; and the page source of one compute node after the other. For tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/diag.h"
#include "base/testing/wait_until.h"
#include "clients/storage/written_page_source.h"
#include "cluster/stream_epochs.h"
#include "cluster/testing/held_by.h"
#include "daemon/worker_pool.h"
#include "registry/sim/testing/sim_thread.h"
#include "storenode/written/testing/written_pages.h"
#include "storenode/written/written_service.h"
#include "transport/calls/testing/io_node.h"

namespace strata::testing {

inline const transport::Secret kWrittenSecret = transport::test::secret_of('s');

class WrittenNodeProcess {
 public:
  WrittenNodeProcess(std::string address, uint64_t number)
      : address_(std::move(address)), number_(number) {
    start();
  }
  ~WrittenNodeProcess() { kill(); }
  WrittenNodeProcess(const WrittenNodeProcess&) = delete;
  WrittenNodeProcess& operator=(const WrittenNodeProcess&) = delete;

  void start() {
    auto opened = storenode::WrittenStore::open(
        {.directory = "/node", .files = disk_.get(), .number = number_, .of_several = true});
    ASSERT_TRUE(opened.ok()) << opened.status();
    life_ = std::make_unique<Life>();
    life_->store = *std::move(opened);
    life_->copier = std::make_unique<storenode::PageCopier>(life_->store.get(), kWrittenSecret);
    life_->service = std::make_unique<storenode::WrittenService>(
        life_->store.get(), life_->copier.get(),
        [this](StreamId, Epoch) {
          return out_ ? error_peer_down("it is in no group any more") : ok_status();
        },
        [pool = &life_->workers](absl::AnyInvocable<void()> task) {
          return pool->run(std::move(task));
        });
    life_->server = std::make_unique<transport::RpcServer>(life_->io.world(), kWrittenSecret,
                                                           transport::ServerOptions{});
    life_->service->register_on(life_->server.get());
    ASSERT_TRUE(life_->server->listen(address_).ok());
  }
  void kill() {
    if (life_ == nullptr) return;
    life_->server.reset();
    life_->workers.stop();
    life_->copier->stop();
    life_.reset();
  }
  void lose_power(uint64_t seed) {
    kill();
    disk_->crash(seed);
  }
  void lose_disk() {
    kill();
    disk_ = make_sim_file_system();
    number_ += 100;
  }
  // It has heard that it lost its place.
  void leave_group() { out_ = true; }
  [[nodiscard]] bool runs() const { return life_ != nullptr; }
  [[nodiscard]] storenode::WrittenStore* store() { return life_->store.get(); }
  [[nodiscard]] SimFileSystem* disk() { return disk_.get(); }
  [[nodiscard]] const std::string& address() const { return address_; }
  // 0: never written.
  uint64_t llsn_of(PageId id) {
    const AlignedBytes page(kPageBytes, 4096);
    Status result;
    store()->read(&id, 1, page.get(), &result);
    if (is_not_found(result)) return 0;
    EXPECT_TRUE(result.ok()) << result;
    const uint64_t llsn = header_of(page.get())->llsn;
    EXPECT_EQ(storenode::testing::differs(page.get(), id, llsn), "");
    return llsn;
  }

 private:
  struct Life {
    transport::test::IoNode io;
    daemon::WorkerPool workers{3, 1000};
    std::unique_ptr<storenode::WrittenStore> store;
    std::unique_ptr<storenode::PageCopier> copier;
    std::unique_ptr<storenode::WrittenService> service;
    std::unique_ptr<transport::RpcServer> server;
  };
  const std::string address_;
  uint64_t number_;
  std::atomic<bool> out_{false};
  std::unique_ptr<SimFileSystem> disk_ = make_sim_file_system();
  std::unique_ptr<Life> life_;
};

class WrittenCluster {
 public:
  explicit WrittenCluster(size_t nodes = 3) {
    set_diag_sink([](Severity, std::string_view) {});
    for (size_t i = 0; i < nodes; ++i) members_.push_back(make_node());
  }
  ~WrittenCluster() {
    stop_compute();
    set_diag_sink(nullptr);
  }

  // The next compute node: it takes over from the one before.
  Status try_start_compute() {
    stop_compute();
    compute_ = std::make_unique<Compute>();
    compute_->registry = sim_.store().connect();
    const uint64_t deadline = compute_->registry->now_us() + 5'000'000;
    STRATA_ASSIGN_OR_RETURN(compute_->lease, compute_->registry->grant_lease(
                                                 3600, [](registry::LeaseId) {}, deadline));
    cluster::StreamEpochs epochs(compute_->registry.get(), keys_);
    const registry::Version before = cluster::testing::held_by(&epochs, StreamId{1}, deadline);
    STRATA_ASSIGN_OR_RETURN(
        const cluster::EpochGrant grant,
        epochs.acquire({StreamId{1}, "compute", Epoch{}, before}, *compute_->lease, deadline));
    STRATA_ASSIGN_OR_RETURN(compute_->in_sync, clients::InSyncSet::open(compute_->registry.get(),
                                                                        keys_, grant, 5'000'000));
    clients::WrittenPagesOptions pages = options;
    pages.nodes.stream = StreamId{1};
    pages.nodes.epoch = grant.epoch;
    pages.nodes.nodes.clear();
    for (const size_t i : members_) pages.nodes.nodes.push_back({name_of(i), nodes_[i]->address()});
    pages.nodes.write_quorum = write_quorum();
    pages.nodes.generation = generation_;
    pages.nodes.founding = !founded;
    STRATA_ASSIGN_OR_RETURN(compute_->source,
                            clients::WrittenPageSource::open(compute_->io.world(), kWrittenSecret,
                                                             pages, compute_->in_sync.get()));
    founded = true;
    return ok_status();
  }
  void start_compute() {
    const Status started = try_start_compute();
    ASSERT_TRUE(started.ok()) << started;
  }
  void stop_compute() { compute_.reset(); }

  [[nodiscard]] clients::WrittenPageSource& source() { return *compute_->source; }
  [[nodiscard]] WrittenNodeProcess& node(size_t i) { return *nodes_[i]; }
  [[nodiscard]] static std::string name_of(size_t i) { return "s" + std::to_string(i); }

  // The placement of now: which nodes, by place. A change makes the next one; compute hears of it
  // by tell() only, those that lost their place by leave_group().
  [[nodiscard]] const std::vector<size_t>& members() const { return members_; }
  [[nodiscard]] uint32_t write_quorum() const {
    return static_cast<uint32_t>(members_.size() / 2 + 1);
  }
  [[nodiscard]] uint64_t generation() const { return generation_; }
  // The new node.
  size_t replace(size_t old) {
    ++generation_;
    const size_t number = make_node();
    std::replace(members_.begin(), members_.end(), old, number);
    return number;
  }
  size_t add() {
    ++generation_;
    members_.push_back(make_node());
    return members_.back();
  }
  void take_out(size_t node) {
    ++generation_;
    members_.erase(std::find(members_.begin(), members_.end(), node));
  }
  void tell() {
    clients::ReplicaSet replicas{generation_, write_quorum(), {}, {}};
    for (const size_t i : members_) replicas.nodes.push_back({name_of(i), nodes_[i]->address()});
    source().follow(replicas);
  }
  // As the registry has them.
  std::vector<std::string> listed() {
    std::vector<std::string> names;
    const auto record = cluster::InSyncNodes(compute_->registry.get(), keys_)
                            .read(StreamId{1}, compute_->registry->now_us() + 1'000'000);
    if (record.ok() && record->has_value())
      for (const cluster::InSyncNode& one : (*record)->nodes) names.push_back(one.name);
    return names;
  }
  [[nodiscard]] registry::SimRegistry* registry() { return compute_->registry.get(); }
  size_t in_sync() {
    const auto states = source().nodes()->states();
    return static_cast<size_t>(
        std::count_if(states.begin(), states.end(), [](const auto& node) { return node.in_sync; }));
  }
  bool wait_in_sync(size_t wanted) {
    return wait_until([&] { return in_sync() == wanted; });
  }

  clients::WrittenPagesOptions options = impatient();  // for the next compute node
  bool founded = false;                                // of it

 private:
  size_t make_node() {
    const size_t number = nodes_.size();
    nodes_.push_back(std::make_unique<WrittenNodeProcess>(
        "unix:" + (folder_ / std::to_string(number)), 1 + number));
    return number;
  }
  static clients::WrittenPagesOptions impatient() {
    clients::WrittenPagesOptions options;
    options.read_timeout_us = 3'000'000;
    options.call_timeout_us = 1'000'000;
    options.nodes.write_timeout_us = 2'000'000;
    options.nodes.sync_timeout_us = 2'000'000;
    options.nodes.open_timeout_us = 1'000'000;
    options.nodes.come_back_us_max = 100'000;
    return options;
  }
  struct Compute {
    transport::test::IoNode io;
    std::unique_ptr<registry::SimRegistry> registry;
    std::unique_ptr<registry::Lease> lease;
    std::unique_ptr<clients::InSyncSet> in_sync;
    std::unique_ptr<clients::WrittenPageSource> source;
  };
  transport::test::Folder folder_;
  registry::testing::SimThread sim_;
  const cluster::ClusterKeys keys_ = *cluster::ClusterKeys::of("test");
  std::vector<std::unique_ptr<WrittenNodeProcess>> nodes_;  // all there ever were
  std::vector<size_t> members_;
  uint64_t generation_ = 1;
  std::unique_ptr<Compute> compute_;
};

}  // namespace strata::testing
