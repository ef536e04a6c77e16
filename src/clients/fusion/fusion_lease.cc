#include "clients/fusion/fusion_lease.h"

#include <ctime>

namespace strata::clients {

uint64_t boot_time_us() noexcept {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000 + static_cast<uint64_t>(now.tv_nsec) / 1000;
}

void FusionLease::granted(Epoch epoch, uint64_t asked_us, uint64_t lease_us) noexcept {
  const MutexLock lock(mutex_);
  const uint64_t known = epoch_.load();
  if (epoch.value < known) return;
  if (epoch.value > known) {
    end_us_.store(0);
    epoch_.store(epoch.value);
  }
  const uint64_t end_us = asked_us + lease_us - lease_us / 32;
  if (end_us > end_us_.load()) end_us_.store(end_us);
}

void FusionLease::end() noexcept {
  const MutexLock lock(mutex_);
  end_us_.store(0);
}

bool FusionLease::valid(Epoch epoch) const noexcept {
  if (epoch.is_zero() || epoch_.load() != epoch.value) return false;
  const uint64_t end_us = end_us_.load();
  return epoch_.load() == epoch.value && now_us_() < end_us;
}

}  // namespace strata::clients
