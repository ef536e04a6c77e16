// The storage group a node belongs to, as the registry's newest known placement has it.
// Thread-safe; nothing blocks.
//
//   GV1  Once a placement does not have the node, it is out of the group for good (TP5 of
//        cluster/topology.h): may_serve() refuses until the process ends, and the next one is
//        refused at its start.
//   GV2  A placement of a lower generation changes nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "base/latch.h"
#include "base/status.h"
#include "cluster/topology.h"
#include "quorum/messages.h"

namespace strata::cluster {

class GroupView {
 public:
  // `group`: of the placement, with the node in it.
  GroupView(std::string node, uint64_t generation, StorageGroup group);

  // Whenever the registry has another placement.
  void update(const Placement& placement);

  // kUnavailable once the node is out: others may be asked. Cheap.
  [[nodiscard]] Status may_serve() const;
  // Why it is out, for people; empty: it is not.
  [[nodiscard]] std::string out_of_it() const;
  [[nodiscard]] StorageGroup group() const;
  [[nodiscard]] uint64_t generation() const;
  // The last one of a group of which fewer are a write quorum: the one that may let the others go
  // first (logstore LG11). At most one of a group is told so at a time, but for a moment after a
  // change. Cheap.
  [[nodiscard]] bool is_spare() const noexcept { return spare_.load(std::memory_order_relaxed); }
  // Empty: there is no such replica.
  [[nodiscard]] std::string node_at(quorum::ReplicaIndex replica) const;

 private:
  const std::string node_;
  std::atomic<bool> out_{false};
  std::atomic<bool> spare_{false};
  [[nodiscard]] bool is_last() const STRATA_REQUIRES(mutex_) {
    return place_ + 1 == group_.nodes.size() && group_.write_quorum < group_.nodes.size();
  }
  mutable Mutex mutex_{LatchRank::kLeaf};
  uint64_t generation_ STRATA_GUARDED_BY(mutex_);
  StorageGroup group_ STRATA_GUARDED_BY(mutex_);
  size_t place_ STRATA_GUARDED_BY(mutex_);
  std::string why_out_ STRATA_GUARDED_BY(mutex_);
};

}  // namespace strata::cluster
