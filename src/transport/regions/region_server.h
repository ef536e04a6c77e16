// Exposes regions to peers, over an RpcServer. Thread-safe.
//
//   RX1  Operations by call are checked as a whole before the first one is done (RR1), and refused
//        unless they name the incarnation that is exposed now: a peer of an earlier one is fenced.
//   RX2  persist() runs in a thread of its own, one at a time: the IO thread never waits for a
//        disk.
//   RX3  Of a region exposed for reading only nobody gets a descriptor that can be written, puts
//        and atomics by call are refused and counted, and a fabric has no right to write.
#pragma once

#include <memory>
#include <string>

#include "transport/calls/rpc_server.h"
#include "transport/regions/fabric_server.h"
#include "transport/regions/region.h"

namespace strata::transport {

// Methods this takes of the server's.
constexpr uint16_t kRegionOpenMethod = 240;
constexpr uint16_t kRegionRunMethod = 241;
constexpr uint16_t kRegionPersistMethod = 242;

class RegionServer {
 public:
  // Before the server listens. With a fabric, which outlives this, regions are exposed there, too.
  explicit RegionServer(RpcServer* server, FabricServer* fabric = nullptr);
  ~RegionServer();  // blocks for a persist() under way; none that comes later is answered
  RegionServer(const RegionServer&) = delete;
  RegionServer& operator=(const RegionServer&) = delete;

  // Replaces what was exposed under the name. Blocks for the fabric; where that fails, the region
  // is there by the other ways, and who asks for this one is told why.
  void expose(const std::string& name, const std::shared_ptr<Region>& region,
              RegionAccess access = RegionAccess::kReadWrite);
  // Peers' calls and operations over the fabric end with withdrawn from now on (FB2);
  // their mappings stay (RN3). Blocks for the fabric.
  void withdraw(const std::string& name);
  // Operations that peers asked for by call and were not allowed to (RX3).
  [[nodiscard]] uint64_t writes_refused() const noexcept;
  // Batches and persists asked for by call that named bytes outside of their region (RR1).
  [[nodiscard]] uint64_t out_of_bounds() const noexcept;

 private:
  struct Core;
  std::shared_ptr<Core> core_;
};

}  // namespace strata::transport
