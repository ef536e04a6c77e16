#include "transport/remote_region.h"

#include <utility>

#include "transport/internal/region_memory.h"
#include "transport/region_server.h"

namespace strata::transport {

Status RemoteRegion::put(uint64_t offset, Bytes source, uint64_t deadline_us) {
  RegionOperation operation = RegionOperation::put(offset, source);
  return run(absl::MakeSpan(&operation, 1), deadline_us);
}

Status RemoteRegion::get(uint64_t offset, absl::Span<char> target, uint64_t deadline_us) {
  RegionOperation operation = RegionOperation::get(offset, target);
  return run(absl::MakeSpan(&operation, 1), deadline_us);
}

StatusOr<uint64_t> RemoteRegion::fetch_add(uint64_t offset, uint64_t addend, uint64_t deadline_us) {
  RegionOperation operation = RegionOperation::fetch_add(offset, addend);
  STRATA_RETURN_IF_ERROR(run(absl::MakeSpan(&operation, 1), deadline_us));
  return operation.before;
}

StatusOr<uint64_t> RemoteRegion::compare_swap(uint64_t offset, uint64_t expected, uint64_t desired,
                                              uint64_t deadline_us) {
  RegionOperation operation = RegionOperation::compare_swap(offset, expected, desired);
  STRATA_RETURN_IF_ERROR(run(absl::MakeSpan(&operation, 1), deadline_us));
  return operation.before;
}

StatusOr<std::unique_ptr<RemoteRegion>> open_remote_region(std::shared_ptr<BlockingChannel> channel,
                                                           const std::string& name, RegionPath path,
                                                           uint64_t deadline_us) {
  std::string request;
  append_u8(&request, path == RegionPath::kMapped ? 1 : 0);
  request.append(name);
  BlockingReply reply;
  const CallOptions options{
      .method = kRegionOpenMethod, .deadline_us = deadline_us, .idempotent = true};
  STRATA_RETURN_IF_ERROR(channel->call(options, request, &reply));
  ByteReader reader(reply.payload);
  const uint64_t bytes = reader.u64();
  const uint64_t epoch = reader.u64();
  const uint64_t incarnation = reader.u64();
  if (!reader.ok()) return error_corruption("no region in the reply");
  if (path == RegionPath::kCalls)
    return make_call_region(std::move(channel), bytes, epoch, incarnation);
  if (!reply.attached.valid()) return error_corruption("no file came with the region " + name);
  STRATA_ASSIGN_OR_RETURN(std::unique_ptr<Region> region,
                          Region::map(std::move(reply.attached), name));
  if (region->incarnation() != incarnation || region->bytes() != bytes)
    return error_corruption("another file came than that of region " + name);
  return make_mapped_region(std::move(channel), std::move(region));
}

}  // namespace strata::transport
