// What a compute node that keeps nothing needs to go on with its database: which one it is, and
// where its log is to be read from. One record per log stream. Thread-safe.
//   LC1  Only the holder of the stream's last epoch publishes, and only in place of the record it
//        has read or published: a writer that was taken over changes nothing.
//   LC2  A record that cannot be read is neither used nor replaced.
#pragma once

#include <optional>
#include <string>

#include "cluster/keys.h"
#include "registry/registry.h"

namespace strata::cluster {

struct LogCheckpoint {
  uint64_t database_id = 0;  // not 0
  std::string profile;       // a name
  uint32_t data_format = 0;
  uint32_t page_bytes = 0;
  NodeId node;
  Lsn lsn;
  uint64_t llsn_bias = 0;  // at `lsn`
  uint64_t count = 0;
  bool clean_shutdown = false;
  bool operator==(const LogCheckpoint&) const = default;
};

struct PublishedCheckpoint {
  LogCheckpoint checkpoint;
  Version version;
};

class LogCheckpoints {
 public:
  LogCheckpoints(Registry* registry, ClusterKeys keys)
      : registry_(registry), keys_(std::move(keys)) {}

  // Nothing: no database has been founded on this stream. Blocks. Errors: kDataLoss, the
  // registry's.
  StatusOr<std::optional<PublishedCheckpoint>> read(StreamId stream, uint64_t deadline_us);
  // `writer`: EpochGrant's (LC1). `current`: the version read or published last; 0: none. Tries to
  // find out what became of a change whose outcome was lost. Blocks. Errors: conflict
  // (taken over, or somebody else published), the registry's.
  StatusOr<Version> publish(StreamId stream, Version writer, Version current,
                            const LogCheckpoint& checkpoint, uint64_t deadline_us);

 private:
  Registry* const registry_;
  const ClusterKeys keys_;
};

}  // namespace strata::cluster
