// A kernel's control data (wal/control_file.h) in the registry: under the profiles whose compute
// nodes keep nothing. One per kernel.
//   RL1  publish() succeeds only while this node is the stream's writer
//   (registry/log_checkpoints.h).
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "registry/log_checkpoints.h"
#include "registry/stream_epochs.h"
#include "wal/control_file.h"

namespace strata::clients {

class RegistryControl final : public ControlStore {
 public:
  // Reads what is there. Blocks. Errors: kDataLoss, the registry's. `registry` outlives it.
  static StatusOr<std::unique_ptr<RegistryControl>> open(registry::Registry* registry,
                                                         registry::ClusterKeys keys,
                                                         const registry::EpochGrant& grant,
                                                         uint64_t timeout_us);
  [[nodiscard]] const ControlData& data() const noexcept override { return data_; }
  [[nodiscard]] bool founded() const noexcept { return data_.database_id != 0; }
  // The stream is held under another lease since (StreamEpochs::renew). Thread-safe.
  void set_writer(registry::Version writer) noexcept { writer_.store(writer.value); }
  [[nodiscard]] registry::Version writer() const noexcept {
    return registry::Version{writer_.load()};
  }
  // kUnavailable and the like: not published, may be tried again. kFailedPrecondition: taken over.
  Status publish(const ControlData& data) override;

 private:
  RegistryControl(registry::Registry* registry, registry::ClusterKeys keys,
                  const registry::EpochGrant& grant, uint64_t timeout_us)
      : registry_(registry),
        checkpoints_(registry, std::move(keys)),
        stream_(grant.stream),
        writer_(grant.writer.value),
        timeout_us_(timeout_us) {}
  registry::Registry* const registry_;
  registry::LogCheckpoints checkpoints_;
  const StreamId stream_;
  std::atomic<uint64_t> writer_;  // registry::Version
  const uint64_t timeout_us_;
  registry::Version version_;
  ControlData data_;
};

}  // namespace strata::clients
