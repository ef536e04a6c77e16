// What passes between the ways to a region and the fabric, without libfabric's types.
#pragma once

#include <memory>
#include <string>

#include "transport/regions/fabric_server.h"
#include "transport/regions/remote_region.h"

namespace strata::transport {

// What kRegionOpenMethod is asked for.
enum class RegionWant : uint8_t { kNothing = 0, kFile = 1, kPlace = 2 };

void append_place(std::string* out, const FabricPlace& place);
// From bytes that may be anything; reader->ok() tells.
FabricPlace read_place(ByteReader* reader);

// How operations are done: as the provider needs it, or with "tcp" as they are with hardware, so
// that tests run that code, too.
enum class FabricManner : uint8_t { kOfProvider, kAsHardware };

StatusOr<std::unique_ptr<RemoteRegion>> make_fabric_region(
    std::shared_ptr<BlockingChannel> channel, uint64_t bytes, uint64_t epoch, uint64_t incarnation,
    RegionAccess access, const FabricPlace& place, FabricManner manner);
// open_remote_region() with kFabric, in a manner.
StatusOr<std::unique_ptr<RemoteRegion>> open_fabric_region(std::shared_ptr<BlockingChannel> channel,
                                                           const std::string& name,
                                                           FabricManner manner,
                                                           uint64_t deadline_us);

}  // namespace strata::transport
