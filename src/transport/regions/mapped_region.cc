// A peer's region through a mapping of its file: every operation is a few instructions here.
#include <utility>

#include "transport/clock.h"
#include "transport/regions/region_memory.h"
#include "transport/regions/region_server.h"

namespace strata::transport {
namespace {

class MappedRegion final : public RemoteRegion {
 public:
  MappedRegion(std::shared_ptr<BlockingChannel> channel, std::unique_ptr<Region> region)
      : channel_(std::move(channel)), region_(std::move(region)) {}

  Status run(absl::Span<RegionOperation> batch, uint64_t) override {
    STRATA_RETURN_IF_ERROR(check_batch(batch, region_->bytes(), region_->access()));
    LinkModel* const model = channel_->link_model();
    const uint64_t begin_ns = model == nullptr ? 0 : monotonic_ns();
    uint64_t out = 0, in = 0;
    for (RegionOperation& operation : batch) {
      apply_operation(&operation, region_->data());
      out += operation.source.size();
      in += operation.target.size();
    }
    MethodCounters& counters = channel_->counters().of(kRegionRunMethod);
    count(counters.operations, batch.size());
    count(counters.bytes_out, out);
    count(counters.bytes_in, in);
    if (model != nullptr) sleep_until_ns(model->round_trip(begin_ns, out, in));
    return ok_status();
  }
  Status persist(uint64_t offset, uint64_t bytes, uint64_t) override {
    return region_->persist(offset, bytes);
  }
  [[nodiscard]] char* direct() noexcept override { return region_->data(); }
  [[nodiscard]] bool truly_one_sided() const noexcept override { return true; }
  [[nodiscard]] uint64_t bytes() const noexcept override { return region_->bytes(); }
  [[nodiscard]] uint64_t epoch() const noexcept override { return region_->epoch(); }
  [[nodiscard]] RegionAccess access() const noexcept override { return region_->access(); }

 private:
  const std::shared_ptr<BlockingChannel> channel_;  // for its counters and link model
  const std::unique_ptr<Region> region_;
};

}  // namespace

std::unique_ptr<RemoteRegion> make_mapped_region(std::shared_ptr<BlockingChannel> channel,
                                                 std::unique_ptr<Region> region) {
  return std::make_unique<MappedRegion>(std::move(channel), std::move(region));
}

}  // namespace strata::transport
