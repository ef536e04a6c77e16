#include "clients/fusion/horizon_client.h"

#include <string>

#include "base/bytes.h"
#include "proto/fusion.h"

namespace strata::clients {

void HorizonClient::use(std::shared_ptr<transport::RemoteRegion> times, Epoch epoch) {
  const MutexLock lock(mutex_);
  if (epoch < epoch_) return;
  times_.swap(times);
  epoch_ = epoch;
}

Status HorizonClient::join(NodeId, const OwnViews* views) {
  STRATA_ASSIGN_OR_RETURN(const Cts now, newest());
  heard(now);
  const MutexLock lock(mutex_);
  views_ = views;
  return ok_status();
}

void HorizonClient::leave(NodeId) noexcept {
  MutexLock lock(mutex_);
  views_ = nullptr;
  unused_.wait(lock, [this]() STRATA_REQUIRES(mutex_) { return asking_ == 0; });
}

StatusOr<Cts> HorizonClient::newest() {
  std::shared_ptr<transport::RemoteRegion> times;
  Epoch epoch;
  {
    const MutexLock lock(mutex_);
    times = times_;
    epoch = epoch_;
  }
  if (times == nullptr) return error_peer_down("there is no memory node at the moment");
  alignas(8) char word[8] = {};
  STRATA_RETURN_IF_ERROR(
      times->get(proto::kHorizonOffset, absl::MakeSpan(word), now_us_() + read_us_max_));
  if (!lease_->valid(epoch))
    return error_lease_lost("this server has no lease from the memory node at the moment");
  const uint64_t horizon = load_u64(word);
  if (horizon == 0 || horizon > proto::kCtsMax)
    return error_corruption("the memory node's horizon is " + std::to_string(horizon));
  return Cts{horizon};
}

std::optional<Cts> HorizonClient::oldest_own_view() const {
  const OwnViews* views = nullptr;
  {
    const MutexLock lock(mutex_);
    if (views_ == nullptr) return std::nullopt;
    views = views_;
    ++asking_;
  }
  const Cts oldest = views->oldest_own_view();
  const MutexLock lock(mutex_);
  if (--asking_ == 0) unused_.notify_all();
  return oldest;
}

void HorizonClient::heard(Cts horizon) noexcept {
  uint64_t known = known_.load();
  while (known < horizon.value && !known_.compare_exchange_weak(known, horizon.value)) {
  }
}

}  // namespace strata::clients
