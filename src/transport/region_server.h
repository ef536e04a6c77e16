// Exposes regions to peers, over an RpcServer. Thread-safe.
//
//   RX1  Operations by call are checked as a whole before the first one is done (RR1), and refused
//        unless they name the incarnation that is exposed now: a peer of an earlier one is fenced.
//   RX2  persist() runs in a thread of its own, one at a time: the IO thread never waits for a
//   disk.
#pragma once

#include <memory>
#include <string>

#include "transport/region.h"
#include "transport/rpc_server.h"

namespace strata::transport {

// Methods this takes of the server's.
constexpr uint16_t kRegionOpenMethod = 240;
constexpr uint16_t kRegionRunMethod = 241;
constexpr uint16_t kRegionPersistMethod = 242;

class RegionServer {
 public:
  explicit RegionServer(RpcServer* server);  // before the server listens
  ~RegionServer();  // blocks for a persist() under way; none that comes later is answered
  RegionServer(const RegionServer&) = delete;
  RegionServer& operator=(const RegionServer&) = delete;

  // Replaces what was exposed under the name.
  void expose(const std::string& name, std::shared_ptr<Region> region);
  // Peers' calls end with kFailedPrecondition from now on; their mappings stay (RG3).
  void withdraw(const std::string& name);

 private:
  struct Core;
  std::shared_ptr<Core> core_;
};

}  // namespace strata::transport
