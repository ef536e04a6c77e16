// A kernel's control data (wal/control_file.h) in the registry: under the profiles whose compute
// nodes keep nothing. One per kernel.
//   RL1  publish() succeeds only while this node is the stream's writer
//        (cluster/log_checkpoints.h).
//   RL2  A publish() whose outcome was lost, or that was refused, is made void by the next one,
//        which goes by the record it finds then: it may have been done, or be done late.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "cluster/log_checkpoints.h"
#include "cluster/stream_epochs.h"
#include "wal/control_file.h"

namespace strata::clients {

class RegistryControl final : public ControlStore {
 public:
  // Reads what is there. Blocks. Errors: kDataLoss, the registry's. `registry` outlives it.
  static StatusOr<std::unique_ptr<RegistryControl>> open(registry::Registry* registry,
                                                         cluster::ClusterKeys keys,
                                                         const cluster::EpochGrant& grant,
                                                         uint64_t timeout_us);
  [[nodiscard]] const ControlData& data() const noexcept override { return data_; }
  [[nodiscard]] bool founded() const noexcept { return data_.database_id != 0; }
  // The stream is held under another lease since (StreamEpochs::renew). Thread-safe.
  void set_writer(registry::Version writer) noexcept { writer_.store(writer.value); }
  [[nodiscard]] registry::Version writer() const noexcept {
    return registry::Version{writer_.load()};
  }
  // fenced: taken over, for good (SE5). Others: may be tried again, kUnavailable also
  // while this node has no lease.
  Status publish(const ControlData& data) override;

 private:
  RegistryControl(registry::Registry* registry, cluster::ClusterKeys keys,
                  const cluster::EpochGrant& grant, uint64_t timeout_us)
      : registry_(registry),
        checkpoints_(registry, keys),
        epochs_(registry, std::move(keys)),
        grant_(grant),
        writer_(grant.writer.value),
        timeout_us_(timeout_us) {}
  registry::Registry* const registry_;
  [[nodiscard]] uint64_t deadline() const noexcept { return registry_->now_us() + timeout_us_; }

  cluster::LogCheckpoints checkpoints_;
  cluster::StreamEpochs epochs_;
  const cluster::EpochGrant grant_;  // as it was given; the writer's key is writer_
  std::atomic<uint64_t> writer_;     // registry::Version
  const uint64_t timeout_us_;
  registry::Version version_;
  bool in_doubt_ = false;  // RL2
  ControlData data_;
};

}  // namespace strata::clients
