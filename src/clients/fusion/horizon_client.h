// A server's end of the horizon (txn/view_horizon.h): what it says of its own views, and what it
// has heard. Thread-safe.
//
//   FC10  A view registers the horizon last heard, then fetches its snapshot; what the server says
//         of itself is the least of what is registered and of the clock read *before* it looked.
//   FC6  newest() reads the word that the memory node shows before it tells anybody (FT5), and it
//        counts only under a lease of that epoch valid afterwards: so it is no older than what
//        anybody had been told (MW2).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "base/latch.h"
#include "clients/fusion/fusion_lease.h"
#include "transport/regions/remote_region.h"
#include "txn/view_horizon.h"

namespace strata::clients {

class HorizonClient final : public ViewHorizon {
 public:
  explicit HorizonClient(const LeaseCheck* lease, std::function<uint64_t()> now_us = monotonic_us,
                         uint64_t read_us_max = 500'000)
      : lease_(lease), now_us_(std::move(now_us)), read_us_max_(read_us_max) {}
  void use(std::shared_ptr<transport::RemoteRegion> times, Epoch epoch);

  // For a server that has a lease: the memory node counts it since before that.
  Status join(NodeId node, const OwnViews* views) override;
  void leave(NodeId node) noexcept override;
  [[nodiscard]] Cts known() const noexcept override { return Cts{known_.load()}; }
  StatusOr<Cts> newest() override;

  // For the heartbeat; nothing before join() and after leave(). May fetch from the clock.
  [[nodiscard]] std::optional<Cts> oldest_own_view() const;
  void heard(Cts horizon) noexcept;

 private:
  const LeaseCheck* const lease_;
  const std::function<uint64_t()> now_us_;
  const uint64_t read_us_max_;
  std::atomic<uint64_t> known_{1};
  mutable Mutex mutex_{LatchRank::kLeaf};
  mutable CondVar unused_;
  std::shared_ptr<transport::RemoteRegion> times_ STRATA_GUARDED_BY(mutex_);
  Epoch epoch_ STRATA_GUARDED_BY(mutex_);
  const OwnViews* views_ STRATA_GUARDED_BY(mutex_) = nullptr;
  mutable uint32_t asking_ STRATA_GUARDED_BY(mutex_) = 0;  // views_, at the moment
};

}  // namespace strata::clients
