// Who writes each of a set of log streams, as the registry tells it: for a node that only reads.
// Thread-safe.
//   STW1  Nothing is changed in the registry.
//   STW2  Of each stream the newest epoch heard of is told, never an older one again.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/latch.h"
#include "cluster/stream_epochs.h"

namespace strata::clients {

class StreamWriters {
 public:
  // Watches from now on. `registry` outlives it.
  StreamWriters(registry::Registry* registry, const cluster::ClusterKeys& keys,
                const std::vector<StreamId>& streams);
  StreamWriters(const StreamWriters&) = delete;
  StreamWriters& operator=(const StreamWriters&) = delete;

  struct Writer {
    Epoch epoch;         // 0: nothing was heard of one yet
    std::string holder;  // the last one; whether it still is there is not said
  };
  // By stream, all of them.
  [[nodiscard]] std::map<StreamId, Writer> all() const;
  // The largest of their epochs.
  [[nodiscard]] Epoch newest() const;
  // For people.
  [[nodiscard]] std::string names() const;

 private:
  void note(StreamId stream, const StatusOr<cluster::StreamHolder>& holder);
  mutable Mutex mutex_{LatchRank::kLeaf};
  std::map<StreamId, Writer> writers_ STRATA_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<registry::Watch>> watches_;  // the last one: they end first
};

}  // namespace strata::clients
