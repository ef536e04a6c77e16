// Which storage nodes hold every page that compute has written and synced, under the profiles whose
// pages are written by compute. One record per log stream. Thread-safe.
//   NS1  Only the stream's writer changes it, and only in place of what it has read or published.
//   NS2  A node is named with its page store's number: one that lost its pages has another store.
//   NS3  A change whose outcome was lost is not guessed at: publish() finds out, or says kUnknown;
//        whoever publishes again, at the version read then, makes it void.
#pragma once

#include <compare>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "cluster/keys.h"
#include "registry/registry.h"

namespace strata::cluster {

struct InSyncNode {
  std::string name;
  uint64_t store = 0;  // not 0
  auto operator<=>(const InSyncNode&) const = default;
};

struct PublishedInSync {
  std::vector<InSyncNode> nodes;  // by name
  Version version;
};

class InSyncNodes {
 public:
  InSyncNodes(Registry* registry, ClusterKeys keys) : registry_(registry), keys_(std::move(keys)) {}

  // Nothing: no pages were ever written for this stream. Blocks. Errors: kDataLoss, the registry's.
  StatusOr<std::optional<PublishedInSync>> read(StreamId stream, uint64_t deadline_us);
  // `writer`: EpochGrant's (NS1). `current`: the version read or published last; 0: none. `nodes`
  // by name. Blocks. Errors: conflict (taken over, or somebody else published),
  // kInvalidArgument, the registry's.
  StatusOr<Version> publish(StreamId stream, Version writer, Version current,
                            const std::vector<InSyncNode>& nodes, uint64_t deadline_us);
  // Tells the list, now if there is one and whenever it is another one. Not OK: what is there
  // cannot be read (kDataLoss). The handler runs in the registry's thread. Does not block.
  using Handler = absl::AnyInvocable<void(const StatusOr<std::vector<InSyncNode>>&)>;
  std::unique_ptr<Watch> watch(StreamId stream, Handler handler);

 private:
  Registry* const registry_;
  const ClusterKeys keys_;
};

}  // namespace strata::cluster
