// A peer's region by calls that nobody waits for: they end from the replies.
#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "base/assert.h"
#include "base/latch.h"
#include "transport/regions/region_memory.h"
#include "transport/regions/region_server.h"

namespace strata::transport {
namespace {

class ChannelRegion final : public RemoteRegion {
 public:
  ChannelRegion(std::shared_ptr<Channel> channel, Executor* executor, uint64_t bytes,
                uint64_t epoch, uint64_t incarnation, RegionAccess access)
      : channel_(std::move(channel)),
        executor_(executor),
        bytes_(bytes),
        epoch_(epoch),
        incarnation_(incarnation),
        access_(access) {}
  ~ChannelRegion() override { STRATA_ASSERT(under_way_.load() == 0); }  // RR6

  void start(absl::Span<RegionOperation> batch, uint64_t deadline_us, RegionDone done) override;
  void start_persist(uint64_t offset, uint64_t bytes, uint64_t deadline_us,
                     RegionDone done) override;
  Status run(absl::Span<RegionOperation> batch, uint64_t deadline_us) override {
    return wait_for([&](RegionDone done) { start(batch, deadline_us, std::move(done)); });
  }
  Status persist(uint64_t offset, uint64_t bytes, uint64_t deadline_us) override {
    return wait_for(
        [&](RegionDone done) { start_persist(offset, bytes, deadline_us, std::move(done)); });
  }
  [[nodiscard]] bool truly_one_sided() const noexcept override { return false; }
  [[nodiscard]] uint64_t bytes() const noexcept override { return bytes_; }
  [[nodiscard]] uint64_t epoch() const noexcept override { return epoch_; }
  [[nodiscard]] RegionAccess access() const noexcept override { return access_; }

 private:
  struct Batch {
    absl::Span<RegionOperation> operations;
    CallOptions options;
    RegionDone done;
    bool again = false;  // it was lost once, and is gets alone
  };
  void send(std::unique_ptr<Batch> batch);
  // After it this may be gone.
  void end(RegionDone done, const Status& status) {
    under_way_.fetch_sub(1);
    done(status);
  }
  template <typename Start>
  Status wait_for(Start begin);

  const std::shared_ptr<Channel> channel_;
  Executor* const executor_;
  const uint64_t bytes_;
  const uint64_t epoch_;
  const uint64_t incarnation_;
  const RegionAccess access_;
  std::atomic<uint32_t> under_way_{0};
};

void ChannelRegion::start(absl::Span<RegionOperation> batch, uint64_t deadline_us,
                          RegionDone done) {
  if (const Status may = check_batch(batch, bytes_, access_); !may.ok()) return done(may);
  const bool only_gets = std::all_of(batch.begin(), batch.end(), [](const auto& operation) {
    return operation.kind == RegionOperation::Kind::kGet;
  });
  under_way_.fetch_add(1);
  send(std::make_unique<Batch>(Batch{batch,
                                     {.method = kRegionRunMethod,
                                      .epoch = epoch_,
                                      .deadline_us = deadline_us,
                                      .idempotent = only_gets},  // RR5
                                     std::move(done)}));
}

void ChannelRegion::send(std::unique_ptr<Batch> batch) {
  const CallOptions options = batch->options;
  std::string payload = encode_operations(incarnation_, batch->operations);
  channel_->call(options, std::move(payload),
                 [this, batch = std::move(batch)](const Reply& reply) mutable {
                   Status status = reply.status;
                   if (status.ok()) status = decode_results(reply.payload, batch->operations);
                   const bool lost = is_peer_down(status) && !reply.answered;
                   if (lost && batch->options.idempotent && !std::exchange(batch->again, true)) {
                     batch->options.wait_for_connection = true;  // or it would end at once
                     return send(std::move(batch));              // RR5
                   }
                   RegionDone done = std::move(batch->done);
                   batch.reset();
                   end(std::move(done), status);
                 });
}

void ChannelRegion::start_persist(uint64_t offset, uint64_t bytes, uint64_t deadline_us,
                                  RegionDone done) {
  std::string request;
  append_u64(&request, incarnation_);
  append_u64(&request, offset);
  append_u64(&request, bytes);
  under_way_.fetch_add(1);
  channel_->call({.method = kRegionPersistMethod,
                  .epoch = epoch_,
                  .deadline_us = deadline_us,
                  .idempotent = true},
                 std::move(request), [this, done = std::move(done)](const Reply& reply) mutable {
                   end(std::move(done), reply.status);
                 });
}

template <typename Start>
Status ChannelRegion::wait_for(Start begin) {
  STRATA_ASSERT(!executor_->in_thread());  // it would wait for itself
  struct {
    Mutex mutex{LatchRank::kLeaf};
    CondVar changed;
    std::optional<Status> status STRATA_GUARDED_BY(mutex);
  } ended;
  begin([&ended](const Status& status) {
    const MutexLock lock(ended.mutex);
    ended.status = status;
    ended.changed.notify_all();
  });
  MutexLock lock(ended.mutex);
  ended.changed.wait(lock, [&]() STRATA_REQUIRES(ended.mutex) { return ended.status.has_value(); });
  return *ended.status;
}

}  // namespace

std::unique_ptr<RemoteRegion> make_channel_region(std::shared_ptr<Channel> channel,
                                                  Executor* executor, uint64_t bytes,
                                                  uint64_t epoch, uint64_t incarnation,
                                                  RegionAccess access) {
  return std::make_unique<ChannelRegion>(std::move(channel), executor, bytes, epoch, incarnation,
                                         access);
}

}  // namespace strata::transport
