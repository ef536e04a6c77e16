// Regions on a fabric: the owner's side of RegionPath::kFabric. Peers read and write exposed
// regions by RDMA, through libfabric: with the provider "verbs" their network cards do it and the
// owner's processor takes no part; with "tcp", for machines without such cards, a thread of this
// server's does, which sleeps when there is nothing to do.
//
//   FB1  A connection reaches one region: the one whose token it showed. Tokens and, where the
//        provider lets us choose them, keys are random, and only authenticated calls tell them
//        (kRegionOpenMethod). RDMA knows no other authentication and no encryption: the network
//        is private. Who shows no valid token gets no connection.
//   FB2  withdraw() ends the connections of the region and what they have under way before it
//        returns: no peer reads or writes a byte of it later, and it may be unmapped then.
//   FB3  What comes from the network before a valid token harms nobody. After it, wrong keys and
//        places end the connection. Beyond that a peer is trusted as every member of the cluster
//        is: libfabric's "tcp" does not survive the tagged messages that nobody here sends.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "base/bytes.h"
#include "base/status.h"
#include "transport/regions/region.h"

namespace strata::transport {

// Where a region is on the fabric, and what it takes to reach it. A secret (FB1).
struct FabricPlace {
  std::string address;  // of the server, with its port
  uint64_t base = 0;    // what the region's first byte is called in operations
  uint64_t key = 0;
  std::array<char, 16> token = {};
};

struct FabricServerOptions {
  uint32_t connections_max = 4096;
};

// Whether this build has libfabric. Without it start() says kInvalidArgument.
[[nodiscard]] bool fabric_is_built() noexcept;

class FabricServer {
 public:
  // Listens on "tcp:127.0.0.1:7000" or "verbs:10.0.0.1:7000": a provider and a numeric address,
  // loopback or private (SN1); port 0 chooses one. Blocks. Errors name the address:
  // kInvalidArgument (not one to bind to; no such provider here), kUnavailable.
  static StatusOr<std::unique_ptr<FabricServer>> start(const std::string& address,
                                                       const FabricServerOptions& options = {});
  ~FabricServer();  // withdraws everything
  FabricServer(const FabricServer&) = delete;
  FabricServer& operator=(const FabricServer&) = delete;

  // All thread-safe. Both block until the server's thread has done it. Errors: kResourceExhausted,
  // kUnavailable (the provider cannot register the memory).
  // kReadOnly: the memory is registered for remote reads and nothing else.
  StatusOr<FabricPlace> expose(std::shared_ptr<Region> region,
                               RegionAccess access = RegionAccess::kReadWrite);
  void withdraw(const FabricPlace& place);  // FB2; may be called again
  [[nodiscard]] const std::string& address() const noexcept;
  [[nodiscard]] uint64_t connections() const noexcept;  // open now
  [[nodiscard]] uint64_t refused() const noexcept;      // attempts without a valid token

 private:
  class Core;
  explicit FabricServer(std::unique_ptr<Core> core);
  const std::unique_ptr<Core> core_;
};

}  // namespace strata::transport
