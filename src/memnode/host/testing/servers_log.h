// A server's log on three storage nodes in memory, its stream's epochs in a registry in memory, and
// what a memory node needs to seal it or to complete it.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/data_format.h"
#include "base/diag.h"
#include "clients/storage/quorum_log_sink.h"
#include "clients/storage/registry_control.h"
#include "clients/storage/testing/fake_log_node.h"
#include "cluster/places.h"
#include "memnode/host/log_sealer.h"
#include "registry/sim/testing/sim_thread.h"
#include "transport/calls/testing/io_node.h"

namespace strata::memnode::testing {

using clients::testing::FakeLogNode;
using transport::test::secret_of;

constexpr NodeId kServer{7};
constexpr StreamId kStream = cluster::log_stream_of(kServer);

class ServersLogTest : public ::testing::Test {
 protected:
  ServersLogTest() {
    set_diag_sink([](Severity, std::string_view) {});
    for (int i = 0; i < 3; ++i) {
      const std::string address = "unix:" + (folder_ / std::to_string(i));
      nodes_.push_back(std::make_unique<FakeLogNode>(io_.world(), address));
      nodes_.back()->set_peers([this](quorum::ReplicaIndex i) { return nodes_[i].get(); });
      addresses_.push_back(address);
    }
    lease_ = grant_lease();
  }
  ~ServersLogTest() override { set_diag_sink(nullptr); }

  clients::QuorumClientOptions storage() const {
    clients::QuorumClientOptions options;
    options.addresses = {addresses_.begin(), addresses_.end()};
    options.keys = addresses_;
    options.call_timeout_us = 100'000;
    options.tick_us = 10'000;
    return options;
  }
  // LSE5: it is read once the epoch is there.
  StatusOr<clients::QuorumClientOptions> storage_now() {
    epoch_when_read_ = last_epoch();
    if (!placement_failure_.ok()) return placement_failure_;
    return storage();
  }
  LogSealer::Parts parts() {
    return {.registry = registry_.get(),
            .keys = keys_,
            .world = io_.world(),
            .secret = secret_of('s'),
            .holder = "memory-1",
            .lease = [this]() -> std::shared_ptr<registry::Lease> {
              return lease_is_lost_ ? nullptr : lease_;
            },
            .storage = [this] { return storage(); },
            .storage_now = [this] { return storage_now(); },
            .call_timeout_us = 500'000,
            .seal_timeout_us = seal_timeout_us_,
            .again_us = 10'000};
  }
  std::shared_ptr<registry::Lease> grant_lease() {
    auto lease = registry_->grant_lease(
        600, [](registry::LeaseId) {}, deadline());
    EXPECT_TRUE(lease.ok()) << lease.status();
    return *std::move(lease);
  }
  uint64_t deadline() const { return registry_->now_us() + 5'000'000; }
  cluster::EpochGrant acquire(const std::string& holder, const registry::Lease& lease) {
    const auto grant = cluster::StreamEpochs(registry_.get(), keys_)
                           .acquire({kStream, holder, Epoch{}, {}}, lease, deadline());
    EXPECT_TRUE(grant.ok()) << grant.status();
    return grant.ok() ? *grant : cluster::EpochGrant{};
  }
  // The server's log, written under that epoch.
  std::unique_ptr<clients::QuorumLogSink> open_log(const cluster::EpochGrant& grant,
                                                   bool founding) {
    clients::QuorumLogOptions options;
    options.client = storage();
    options.client.stream = kStream;
    options.holder = {grant.epoch, grant.epoch.value};
    options.founding = founding;
    auto log = clients::QuorumLogSink::open(io_.world(), secret_of('s'), options);
    EXPECT_TRUE(log.ok()) << log.status();
    if (!log.ok()) return nullptr;
    at_ = founding ? (*log)->begin_lsn() : (*log)->room_end();
    EXPECT_TRUE((*log)->cut_at(at_).ok());
    EXPECT_TRUE((*log)->prepare_room(Lsn{1 << 30}).ok());
    return *std::move(log);
  }
  Status write(clients::QuorumLogSink* log) {
    STRATA_RETURN_IF_ERROR(log->append_whole(at_, std::string(64, 'w')));
    at_.value += 64;
    return log->sync();
  }
  // The stream's writer says from where on redo would begin.
  void publish(const cluster::EpochGrant& grant, Lsn checkpoint) {
    auto control = clients::RegistryControl::open(registry_.get(), keys_, grant, 5'000'000);
    ASSERT_TRUE(control.ok()) << control.status();
    ControlData data = (*control)->data();
    data.database_id = 1;
    data.profile = "remote-disk";
    data.checkpoint_lsn = checkpoint;
    const Status published = (*control)->publish(data);
    ASSERT_TRUE(published.ok()) << published;
  }
  Epoch last_epoch() {
    const auto now = cluster::StreamEpochs(registry_.get(), keys_).current(kStream, deadline());
    return now.ok() && now->has_value() ? (*now)->epoch : Epoch{};
  }
  void set_mute(bool mute) {
    for (const auto& node : nodes_) node->set_mute(mute);
  }

  const cluster::ClusterKeys keys_ = *cluster::ClusterKeys::of("main");
  transport::test::Folder folder_;
  transport::test::IoNode io_;
  std::vector<std::string> addresses_;
  std::vector<std::unique_ptr<FakeLogNode>> nodes_;
  registry::testing::SimThread sim_;
  std::unique_ptr<registry::SimRegistry> registry_ = sim_.store().connect();
  std::shared_ptr<registry::Lease> lease_;
  std::atomic<bool> lease_is_lost_{false};
  Epoch epoch_when_read_;     // the stream's last one, when the placement was read last
  Status placement_failure_;  // of reading it
  uint64_t seal_timeout_us_ = 10'000'000;
  Lsn at_;
};

}  // namespace strata::memnode::testing
