// Takes the place of the rest of this folder in a build without libfabric.
#include "transport/regions/fabric.h"

namespace strata::transport {
namespace {

Status absent() { return error_invalid_argument("this build has no libfabric"); }

}  // namespace

class FabricServer::Core {};

bool fabric_is_built() noexcept { return false; }
FabricServer::FabricServer(std::unique_ptr<Core> core) : core_(std::move(core)) {}
FabricServer::~FabricServer() = default;
StatusOr<std::unique_ptr<FabricServer>> FabricServer::start(const std::string&,
                                                            const FabricServerOptions&) {
  return absent();
}
StatusOr<FabricPlace> FabricServer::expose(std::shared_ptr<Region>, RegionAccess) {
  return absent();
}
void FabricServer::withdraw(const FabricPlace&) {}
const std::string& FabricServer::address() const noexcept {
  static const std::string none;
  return none;
}
uint64_t FabricServer::connections() const noexcept { return 0; }
uint64_t FabricServer::refused() const noexcept { return 0; }

StatusOr<std::unique_ptr<RemoteRegion>> make_fabric_region(std::shared_ptr<BlockingChannel>,
                                                           uint64_t, uint64_t, uint64_t,
                                                           RegionAccess, const FabricPlace&,
                                                           FabricManner) {
  return absent();
}

}  // namespace strata::transport
