// Where nodes can be reached, by name: what the members' entries say, as a watch tells it.
// Thread-safe.
//
//   NA1  An address once seen stays known after its member left, until the member comes back with
//        another one: a node whose lease ran out is mostly still there, and asking it does no harm.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/latch.h"
#include "cluster/membership.h"

namespace strata::cluster {

class NodeAddresses {
 public:
  // The registry outlives it. Watches from here on; does not block.
  NodeAddresses(Registry* registry, const ClusterKeys& keys);
  ~NodeAddresses();  // blocks while the watch's handler runs; nobody may be in wait_for()
  NodeAddresses(const NodeAddresses&) = delete;
  NodeAddresses& operator=(const NodeAddresses&) = delete;

  // Empty: never seen. Cheap.
  [[nodiscard]] std::string address_of(std::string_view name) const;
  // Blocks until at least `at_least` of the names (each counts once) are known; false: not until
  // the deadline, on the registry's clock. Not in a handler of the registry's.
  bool wait_for(const std::vector<std::string>& names, size_t at_least, uint64_t deadline_us) const;

 private:
  void learn(const std::vector<Member>& members);
  [[nodiscard]] size_t known(const std::vector<std::string>& names) const STRATA_REQUIRES(mutex_);

  Registry* const registry_;
  mutable Mutex mutex_{LatchRank::kLeaf};
  mutable CondVar changed_;
  std::map<std::string, std::string, std::less<>> addresses_ STRATA_GUARDED_BY(mutex_);
  std::unique_ptr<Watch> watch_;  // last: it calls learn()
};

}  // namespace strata::cluster
