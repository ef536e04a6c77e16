#include "transport/regions/remote_region.h"

#include <utility>

#include "transport/regions/fabric.h"
#include "transport/regions/region_memory.h"
#include "transport/regions/region_server.h"

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

namespace {

// What the owner says of a region. The reply's payload behind it is still to be read.
struct Opened {
  BlockingReply reply;
  uint64_t bytes = 0, epoch = 0, incarnation = 0;
  RegionAccess access = RegionAccess::kReadWrite;
  FabricPlace place;  // kPlace
};

std::string open_request(const std::string& name, RegionWant want) {
  std::string request;
  append_u8(&request, static_cast<uint8_t>(want));
  request.append(name);
  return request;
}

// What any reply begins with.
void read_opened(ByteReader* reader, Opened* opened) {
  opened->bytes = reader->u64();
  opened->epoch = reader->u64();
  opened->incarnation = reader->u64();
  // Whatever else it may be some day: not to be written.
  if (reader->u8() != static_cast<uint8_t>(RegionAccess::kReadWrite))
    opened->access = RegionAccess::kReadOnly;
}

StatusOr<Opened> ask(BlockingChannel* channel, const std::string& name, RegionWant want,
                     uint64_t deadline_us) {
  const std::string request = open_request(name, want);
  Opened opened;
  const CallOptions options{
      .method = kRegionOpenMethod, .deadline_us = deadline_us, .idempotent = true};
  STRATA_RETURN_IF_ERROR(channel->call(options, request, &opened.reply));
  ByteReader reader(opened.reply.payload);
  read_opened(&reader, &opened);
  if (want == RegionWant::kPlace) opened.place = read_place(&reader);
  if (!reader.ok()) return error_corruption("no region in the reply");
  return opened;
}

StatusOr<std::unique_ptr<RemoteRegion>> open_mapped(std::shared_ptr<BlockingChannel> channel,
                                                    const std::string& name, uint64_t deadline_us) {
  STRATA_ASSIGN_OR_RETURN(Opened opened, ask(channel.get(), name, RegionWant::kFile, deadline_us));
  if (!opened.reply.attached.valid())
    return error_corruption("no file came with the region " + name);
  STRATA_ASSIGN_OR_RETURN(std::unique_ptr<Region> region,
                          Region::map(std::move(opened.reply.attached), name));
  if (region->incarnation() != opened.incarnation || region->bytes() != opened.bytes)
    return error_corruption("another file came than that of region " + name);
  return make_mapped_region(std::move(channel), std::move(region));
}

}  // namespace

StatusOr<std::unique_ptr<RemoteRegion>> open_fabric_region(std::shared_ptr<BlockingChannel> channel,
                                                           const std::string& name,
                                                           FabricManner manner,
                                                           uint64_t deadline_us) {
  STRATA_ASSIGN_OR_RETURN(const Opened opened,
                          ask(channel.get(), name, RegionWant::kPlace, deadline_us));
  return make_fabric_region(std::move(channel), opened.bytes, opened.epoch, opened.incarnation,
                            opened.access, opened.place, manner);
}

StatusOr<std::unique_ptr<RemoteRegion>> open_remote_region(std::shared_ptr<BlockingChannel> channel,
                                                           const std::string& name, RegionPath path,
                                                           uint64_t deadline_us) {
  if (path == RegionPath::kMapped) return open_mapped(std::move(channel), name, deadline_us);
  if (path == RegionPath::kFabric)
    return open_fabric_region(std::move(channel), name, FabricManner::kOfProvider, deadline_us);
  STRATA_ASSIGN_OR_RETURN(const Opened opened,
                          ask(channel.get(), name, RegionWant::kNothing, deadline_us));
  return make_call_region(std::move(channel), opened.bytes, opened.epoch, opened.incarnation,
                          opened.access);
}

void start_open_region(std::shared_ptr<Channel> channel, Executor* executor,
                       const std::string& name, uint64_t deadline_us, RegionOpened done) {
  const CallOptions options{
      .method = kRegionOpenMethod, .deadline_us = deadline_us, .idempotent = true};
  Channel* const over = channel.get();  // kept by the callback
  over->call(
      options, open_request(name, RegionWant::kNothing),
      [channel = std::move(channel), executor, done = std::move(done)](const Reply& reply) mutable {
        if (!reply.status.ok()) return done(reply.status);
        ByteReader reader(reply.payload);
        Opened opened;
        read_opened(&reader, &opened);
        if (!reader.ok()) return done(error_corruption("no region in the reply"));
        done(make_channel_region(std::move(channel), executor, opened.bytes, opened.epoch,
                                 opened.incarnation, opened.access));
      });
}

}  // namespace strata::transport
