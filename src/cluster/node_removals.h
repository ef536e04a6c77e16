// Requests to the writer of a log stream to take a storage node out of the group, and its answers.
// One at a time: a new request takes the place of the one before. Thread-safe.
//   NR1  A request is carried out once or never: the change that does it removes the request.
//   NR2  Never once the placement is another one than the asker has looked at, once the stream was
//        given to somebody else, or once the request was withdrawn or its lease has ended.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "cluster/keys.h"
#include "cluster/stream_epochs.h"
#include "cluster/topology.h"
#include "registry/registry.h"

namespace strata::cluster {

struct RemovalRequest {
  std::string node;
  uint64_t generation = 0;  // of the placement that the asker has looked at
  std::string refused;      // why nothing was changed: the answer; empty: there is none yet
  bool operator==(const RemovalRequest&) const = default;
};

struct PendingRemoval {
  RemovalRequest request;
  Version version;
  LeaseId lease;
};

class NodeRemovals {
 public:
  // Whenever there is another request; nothing: there is none that is not answered. Not OK: what is
  // there cannot be read (kDataLoss).
  using Handler = absl::AnyInvocable<void(const StatusOr<std::optional<PendingRemoval>>&)>;

  NodeRemovals(Registry* registry, ClusterKeys keys, StreamId stream)
      : registry_(registry), keys_(std::move(keys)), stream_(stream) {}

  // Under a lease that ends when nobody waits for the answer any more. Blocks. Errors:
  // kInvalidArgument, the registry's.
  StatusOr<Version> ask(const RemovalRequest& request, LeaseId lease, uint64_t deadline_us);
  // Nothing: none, or carried out. Blocks. Errors: kDataLoss, the registry's.
  StatusOr<std::optional<PendingRemoval>> read(uint64_t deadline_us);

  // --- for the stream's writer ---
  std::unique_ptr<Watch> watch(Handler handler);
  // Makes the placement after `current` without the node (NR1, NR2). The caller acknowledges by
  // both write quorums meanwhile (PR5 of docs/adr/2026-11-23-changing-storage-nodes.md). Blocks.
  // Errors are those of Topology::take_out().
  StatusOr<Placement> carry_out(const PendingRemoval& pending, const Placement& current,
                                const EpochGrant& grant, uint64_t deadline_us);
  // Blocks. Errors: conflict (withdrawn, or another one), the registry's.
  Status refuse(const PendingRemoval& pending, std::string_view why, uint64_t deadline_us);

 private:
  Registry* const registry_;
  const ClusterKeys keys_;
  const StreamId stream_;
};

}  // namespace strata::cluster
