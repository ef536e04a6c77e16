// Where whoever holds a stream can be reached: servers that share tables ask the memory node that
// has the authority, which is the holder of the authority stream. Thread-safe.
//
//   NA2  What it says is the address of whoever was given the last epoch that the watch has told
//        of, perhaps of somebody who has been followed meanwhile: whoever is asked there knows its
//        epoch and says so (FU1).
#pragma once

#include <memory>
#include <string>

#include "base/ids.h"
#include "base/latch.h"
#include "cluster/node_addresses.h"
#include "cluster/stream_epochs.h"

namespace strata::cluster {

class HolderAddress {
 public:
  // The registry outlives it. Watches from here on; does not block.
  HolderAddress(Registry* registry, const ClusterKeys& keys, StreamId stream);
  ~HolderAddress();  // blocks while a watch's handler runs
  HolderAddress(const HolderAddress&) = delete;
  HolderAddress& operator=(const HolderAddress&) = delete;

  // Empty: nobody was ever given an epoch, or it was never seen as a member. Cheap; does not block.
  [[nodiscard]] std::string now() const;
  [[nodiscard]] Epoch epoch() const;  // the last one told of

 private:
  void learn(const StatusOr<StreamHolder>& holder);

  NodeAddresses addresses_;
  mutable Mutex mutex_{LatchRank::kLeaf};
  StreamHolder holder_ STRATA_GUARDED_BY(mutex_);
  std::unique_ptr<Watch> watch_;  // last: it calls learn()
};

}  // namespace strata::cluster
