// Who the replicas of a log stream are, in the order of the placement.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "quorum/writer.h"
#include "transport/address.h"

namespace strata::clients {

struct ReplicaNode {
  // Its name, which no other node ever has (TP5 of cluster/topology.h): an equal key is the same
  // node.
  std::string key;
  transport::Address address;
};

struct ReplicaSet {
  uint64_t generation = 0;  // of the placement; higher ones replace lower ones
  uint32_t write_quorum = 0;
  std::vector<ReplicaNode> nodes;
  // The holder that took a node out last; zero: none did. Who has a lower epoch is none any more.
  Epoch taken_out_by = {};
};

// By place: where the node was among `keys`.
inline quorum::ReplicasBefore places_before(const std::vector<std::string>& keys,
                                            const ReplicaSet& now) {
  quorum::ReplicasBefore before;
  for (const ReplicaNode& node : now.nodes) {
    const auto found = std::find(keys.begin(), keys.end(), node.key);
    before.emplace_back();
    if (found != keys.end())
      before.back() = static_cast<quorum::ReplicaIndex>(found - keys.begin());
  }
  return before;
}

}  // namespace strata::clients
