// Until when a server may count on what it has read from the memory node and from other servers.
// Thread-safe, no latch on the reading side.
//
//   FC1  A lease belongs to an epoch. valid(epoch) says that at this moment the memory node of that
//        epoch, and no later one, decides, and that this server is not fenced, or nothing of it has
//        been released yet. Whoever reads something of another node checks it *afterwards*, with
//        the epoch that it had read under.
//   FC2  It is counted from when it was asked for, less a part in 32 for clocks that run at
//        different speeds. Epochs only grow: what an earlier one grants is not heard any more.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "base/ids.h"
#include "base/latch.h"

namespace strata::clients {

// Monotonic, and goes on while the machine sleeps.
[[nodiscard]] uint64_t boot_time_us() noexcept;

// What whoever has read checks.
class LeaseCheck {
 public:
  virtual ~LeaseCheck() = default;
  [[nodiscard]] virtual bool valid(Epoch epoch) const noexcept = 0;
  [[nodiscard]] virtual Epoch epoch() const noexcept = 0;
};

class FusionLease final : public LeaseCheck {
 public:
  using Clock = std::function<uint64_t()>;
  explicit FusionLease(Clock now_us = boot_time_us) : now_us_(std::move(now_us)) {}

  // Of a reply, once its fences are heeded (FU4).
  void granted(Epoch epoch, uint64_t asked_us, uint64_t lease_us) noexcept;
  void end() noexcept;  // until the next one
  [[nodiscard]] bool valid(Epoch epoch) const noexcept override;
  [[nodiscard]] Epoch epoch() const noexcept override { return Epoch{epoch_.load()}; }

 private:
  const Clock now_us_;
  Mutex mutex_{LatchRank::kLeaf};  // of those who change it
  // A change of epoch stores 0, the epoch, the end; a reader looks at the epoch on either side.
  std::atomic<uint64_t> epoch_{0};
  std::atomic<uint64_t> end_us_{0};
};

}  // namespace strata::clients
