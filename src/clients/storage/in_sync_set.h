// The registry's list of storage nodes in sync (cluster/in_sync_nodes.h), as its one writer keeps
// it. Used by one thread at a time, but for set_writer().
//   IY1  nodes() is what the registry holds, unless the outcome of a change was lost: then
//        in_doubt() is true until a publish() has made the lost change void or found it done.
#pragma once

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "cluster/in_sync_nodes.h"
#include "cluster/stream_epochs.h"

namespace strata::clients {

class InSyncSet {
 public:
  // Reads what is there. Blocks. Errors: kDataLoss, the registry's. `registry` outlives it.
  static StatusOr<std::unique_ptr<InSyncSet>> open(registry::Registry* registry,
                                                   cluster::ClusterKeys keys,
                                                   const cluster::EpochGrant& grant,
                                                   uint64_t timeout_us);
  [[nodiscard]] const std::vector<cluster::InSyncNode>& nodes() const noexcept { return nodes_; }
  [[nodiscard]] bool in_doubt() const noexcept { return in_doubt_; }
  // The stream is held under another lease since (StreamEpochs::renew). Thread-safe.
  void set_writer(registry::Version writer) noexcept { writer_.store(writer.value); }
  // OK: the registry holds exactly these, by name. Changes nothing if it does already. Blocks.
  // fenced: taken over, for good (SE5). Others: may be tried again, kUnavailable also
  // while this node has no lease.
  Status publish(const std::vector<cluster::InSyncNode>& nodes);

 private:
  InSyncSet(registry::Registry* registry, cluster::ClusterKeys keys,
            const cluster::EpochGrant& grant, uint64_t timeout_us)
      : registry_(registry),
        records_(registry, keys),
        epochs_(registry, std::move(keys)),
        grant_(grant),
        writer_(grant.writer.value),
        timeout_us_(timeout_us) {}
  Status read();
  [[nodiscard]] cluster::EpochGrant grant() const noexcept {
    return {grant_.stream, grant_.epoch, registry::Version{writer_.load()}};
  }
  [[nodiscard]] uint64_t deadline() const noexcept { return registry_->now_us() + timeout_us_; }
  registry::Registry* const registry_;
  cluster::InSyncNodes records_;
  cluster::StreamEpochs epochs_;
  const cluster::EpochGrant grant_;  // as it was given; the writer's key is writer_
  std::atomic<uint64_t> writer_;     // registry::Version
  const uint64_t timeout_us_;
  std::vector<cluster::InSyncNode> nodes_;
  registry::Version version_;
  bool in_doubt_ = false;
};

}  // namespace strata::clients
