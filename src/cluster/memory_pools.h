// Which memory node keeps pages for the writer of a log stream, and which content of its pool
// counts (memnode/pool/pool.h). One record per log stream. Thread-safe.
//   MPR1  Only the stream's writer changes it, and only in place of what it has read or published.
//   MPR2  A pool that is not named there counts for nothing: whoever recovers does without it. So
//        the name is removed before a page goes past the pool, and published before one that
//        storage lacks goes into it.
//   MPR3  A change whose outcome was lost is not guessed at: publish() and remove() find out, or
//         say kUnknown.
#pragma once

#include <optional>
#include <string>

#include "cluster/keys.h"
#include "registry/registry.h"

namespace strata::cluster {

struct MemoryPool {
  std::string node;          // the member's name (Role::kMemory)
  uint64_t incarnation = 0;  // of the pool's content; not 0
  bool operator==(const MemoryPool&) const = default;
};

struct PublishedPool {
  MemoryPool pool;
  Version version;
};

class MemoryPools {
 public:
  MemoryPools(Registry* registry, ClusterKeys keys) : registry_(registry), keys_(std::move(keys)) {}

  // Nothing: the stream has no pool. Blocks. Errors: kDataLoss, the registry's.
  StatusOr<std::optional<PublishedPool>> read(StreamId stream, uint64_t deadline_us);
  // `writer`: EpochGrant's (MPR1). `current`: the version read or published last; 0: none. Blocks.
  // Errors: conflict (taken over, or somebody else published), kInvalidArgument, the registry's.
  StatusOr<Version> publish(StreamId stream, Version writer, Version current,
                            const MemoryPool& pool, uint64_t deadline_us);
  // OK also when it was gone already. Blocks. Errors: as those of publish().
  Status remove(StreamId stream, Version writer, Version current, uint64_t deadline_us);

 private:
  Registry* const registry_;
  const ClusterKeys keys_;
};

}  // namespace strata::cluster
