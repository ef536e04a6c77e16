// Which memory nodes keep pages for the writer of a log stream, in which order, and which content
// of each one's pool counts (memnode/pool/pool.h). One record per log stream. Thread-safe.
//   MPR1  Only the stream's writer changes it, and only in place of what it has read or published.
//   MPR2  A pool that is not named there counts for nothing: whoever recovers does without it. So
//         the name is removed before a page goes past the pool, and published before one that
//         storage lacks goes into it.
//   MPR3  A change whose outcome was lost is not guessed at: publish() and remove() find out, or
//         say kUnknown.
//   MPR4  Checkpoints that pools keep from epochs below `since` count for nothing: one of the pools
//         that were named then was lost with pages that storage may have lacked.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cluster/keys.h"
#include "registry/registry.h"

namespace strata::cluster {

struct MemoryPool {
  std::string node;          // the member's name (Role::kMemory)
  uint64_t incarnation = 0;  // of the pool's content; 0: nothing of it counts
  // The node that has a copy, or would have one; empty: there is to be none.
  std::string backup = {};
  uint64_t backup_incarnation = 0;  // of the copy; 0: it is not whole
  bool operator==(const MemoryPool&) const = default;
};

struct MemoryPoolSet {
  // A page's place among them follows from its id and their number, so their order is kept.
  std::vector<MemoryPool> pools;
  Epoch since;  // MPR4
  bool operator==(const MemoryPoolSet&) const = default;
};

constexpr size_t kMemoryPoolsMax = 64;

struct PublishedPools {
  MemoryPoolSet set;
  Version version;
};

class MemoryPools {
 public:
  MemoryPools(Registry* registry, ClusterKeys keys) : registry_(registry), keys_(std::move(keys)) {}

  // Nothing: the stream has no pools. Blocks. Errors: kDataLoss, the registry's.
  StatusOr<std::optional<PublishedPools>> read(StreamId stream, uint64_t deadline_us);
  // `writer`: EpochGrant's (MPR1). `current`: the version read or published last; 0: none. Blocks.
  // Errors: conflict (taken over, or somebody else published), kInvalidArgument, the registry's.
  StatusOr<Version> publish(StreamId stream, Version writer, Version current,
                            const MemoryPoolSet& set, uint64_t deadline_us);
  // OK also when it was gone already. Blocks. Errors: as those of publish().
  Status remove(StreamId stream, Version writer, Version current, uint64_t deadline_us);

 private:
  Registry* const registry_;
  const ClusterKeys keys_;
};

}  // namespace strata::cluster
