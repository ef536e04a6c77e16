// A peer's region by calls that its owner checks and carries out.
#include <algorithm>
#include <utility>

#include "transport/regions/region_memory.h"
#include "transport/regions/region_server.h"

namespace strata::transport {
namespace {

class CallRegion final : public RemoteRegion {
 public:
  CallRegion(std::shared_ptr<BlockingChannel> channel, uint64_t bytes, uint64_t epoch,
             uint64_t incarnation, RegionAccess access)
      : channel_(std::move(channel)),
        bytes_(bytes),
        epoch_(epoch),
        incarnation_(incarnation),
        access_(access) {}

  Status run(absl::Span<RegionOperation> batch, uint64_t deadline_us) override {
    STRATA_RETURN_IF_ERROR(check_batch(batch, bytes_, access_));
    size_t reply_bytes = 0;
    for (const RegionOperation& operation : batch) {
      reply_bytes += operation.kind == RegionOperation::Kind::kGet ? operation.target.size() : 8;
    }
    const bool only_gets = std::all_of(batch.begin(), batch.end(), [](const auto& operation) {
      return operation.kind == RegionOperation::Kind::kGet;
    });
    BlockingReply reply;
    reply.payload.resize(std::min<size_t>(reply_bytes, 1u << 20));
    const CallOptions options{.method = kRegionRunMethod,
                              .epoch = epoch_,
                              .deadline_us = deadline_us,
                              .idempotent = only_gets};  // RR5
    STRATA_RETURN_IF_ERROR(channel_->call(options, encode_operations(incarnation_, batch), &reply));
    return decode_results(reply.payload, batch);
  }
  Status persist(uint64_t offset, uint64_t bytes, uint64_t deadline_us) override {
    std::string request;
    append_u64(&request, incarnation_);
    append_u64(&request, offset);
    append_u64(&request, bytes);
    BlockingReply reply;
    const CallOptions options{.method = kRegionPersistMethod,
                              .epoch = epoch_,
                              .deadline_us = deadline_us,
                              .idempotent = true};
    return channel_->call(options, request, &reply);
  }
  [[nodiscard]] bool truly_one_sided() const noexcept override { return false; }
  [[nodiscard]] uint64_t bytes() const noexcept override { return bytes_; }
  [[nodiscard]] uint64_t epoch() const noexcept override { return epoch_; }
  [[nodiscard]] RegionAccess access() const noexcept override { return access_; }

 private:
  const std::shared_ptr<BlockingChannel> channel_;
  const uint64_t bytes_;
  const uint64_t epoch_;
  const uint64_t incarnation_;
  const RegionAccess access_;
};

}  // namespace

std::unique_ptr<RemoteRegion> make_call_region(std::shared_ptr<BlockingChannel> channel,
                                               uint64_t bytes, uint64_t epoch, uint64_t incarnation,
                                               RegionAccess access) {
  return std::make_unique<CallRegion>(std::move(channel), bytes, epoch, incarnation, access);
}

}  // namespace strata::transport
