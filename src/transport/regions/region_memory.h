// Operations on the memory of a region, and how they travel. Shared by all backends.
#pragma once

#include <string>

#include "transport/regions/region.h"
#include "transport/regions/remote_region.h"

namespace strata::transport {

// RR1, RR3: inside the region, atomics aligned.
Status check_operation(const RegionOperation& operation, uint64_t region_bytes);
// That for each of them; and RR7: only gets, where there is no more to be had. kInvalidArgument.
Status check_batch(absl::Span<const RegionOperation> batch, uint64_t region_bytes,
                   RegionAccess access);
// After check_operation().
void apply_operation(RegionOperation* operation, char* memory) noexcept;

// kRegionRunMethod's request and reply. Encoding is what the peer's decoding takes apart; both
// decoders get bytes that may be anything.
std::string encode_operations(uint64_t incarnation, absl::Span<const RegionOperation> batch);
Status decode_results(Bytes reply, absl::Span<RegionOperation> batch);
// Checks all of a request against the region (RX1, RX3), does it, and returns the reply. Errors:
// kOutOfRange, kInvalidArgument, kDataLoss (no such request). `refused`: how many operations
// change something where that is not allowed.
StatusOr<std::string> run_encoded(Bytes operations, const Region& region, uint64_t reply_bytes_max,
                                  RegionAccess access = RegionAccess::kReadWrite,
                                  uint64_t* refused = nullptr);

std::unique_ptr<RemoteRegion> make_mapped_region(std::shared_ptr<BlockingChannel> channel,
                                                 std::unique_ptr<Region> region);
std::unique_ptr<RemoteRegion> make_call_region(std::shared_ptr<BlockingChannel> channel,
                                               uint64_t bytes, uint64_t epoch, uint64_t incarnation,
                                               RegionAccess access);
std::unique_ptr<RemoteRegion> make_channel_region(std::shared_ptr<Channel> channel,
                                                  Executor* executor, uint64_t bytes,
                                                  uint64_t epoch, uint64_t incarnation,
                                                  RegionAccess access);

}  // namespace strata::transport
