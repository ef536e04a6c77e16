// The writer's side of taking a storage node out of its group while everything runs: hears of the
// request in the registry, lets the log acknowledge by both quorums, changes the placement.
//   NM1  The placement is changed only while the log acknowledges by both quorums and everything
//        acknowledged is durable by both (PR5 of docs/adr/2026-11-23-changing-storage-nodes.md).
//        Where compute writes the pages the same goes for them (WN7 of
//        clients/storage/write_sessions.h).
//   NM2  Log and pages go back to one quorum only when it is certain that the placement has, or
//        will never have, changed.
//   NM3  A request is refused with a reason when it would leave too few, or when another node does
//        not answer. One that was withdrawn changes nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "base/latch.h"
#include "base/status.h"
#include "clients/storage/leaving_replica.h"
#include "cluster/node_removals.h"
#include "cluster/stream_epochs.h"
#include "cluster/topology.h"
#include "registry/registry.h"

namespace strata::clients {

class NodeRemover {
 public:
  struct Parts {
    registry::Registry* registry = nullptr;
    cluster::ClusterKeys keys;
    StreamId stream;
    LeavingReplica* log = nullptr;
    LeavingReplica* pages = nullptr;             // null: storage nodes make them from the log
    std::function<cluster::EpochGrant()> grant;  // under which the stream is held now
    std::function<void(const cluster::Placement&)> follow;  // the placement it has made
    uint64_t call_timeout_us = 5'000'000;
    uint64_t prepare_timeout_us = 10'000'000;  // for the others to have everything
  };
  // Watches from now on, and works in a thread of its own.
  explicit NodeRemover(Parts parts);
  // Blocks: for a call to the registry, at most.
  ~NodeRemover();
  NodeRemover(const NodeRemover&) = delete;
  NodeRemover& operator=(const NodeRemover&) = delete;

 private:
  void work();
  void handle(const cluster::PendingRemoval& pending);
  // Why it cannot be; OK: everything acknowledged is durable by both quorums (NM1).
  Status prepare(const cluster::PendingRemoval& pending, const cluster::Placement& placement);
  [[nodiscard]] bool prepare_leave(const std::string& node, uint64_t generation,
                                   uint32_t write_quorum) const;
  void cancel_leave() const;
  [[nodiscard]] Status others_are_well(const cluster::StorageGroup& group,
                                       const std::string& leaving) const;
  Status change(const cluster::PendingRemoval& pending, const cluster::Placement& placement);
  StatusOr<cluster::Placement> read_placement();
  [[nodiscard]] bool withdrawn(const cluster::PendingRemoval& pending) const;
  // False: stopped.
  bool pause(uint64_t us) const;
  [[nodiscard]] uint64_t deadline() const {
    return parts_.registry->now_us() + parts_.call_timeout_us;
  }

  const Parts parts_;
  cluster::NodeRemovals removals_;
  mutable Mutex mutex_{LatchRank::kLeaf};
  mutable CondVar changed_;
  bool stopped_ STRATA_GUARDED_BY(mutex_) = false;
  // what the registry says
  std::optional<cluster::PendingRemoval> pending_ STRATA_GUARDED_BY(mutex_);
  registry::Version done_;  // of the request handled last; the thread's
  std::unique_ptr<registry::Watch> watch_;
  std::thread thread_;
};

}  // namespace strata::clients
