#include "transport/link_model.h"

#include <sched.h>
#include <time.h>

#include <algorithm>

#include "base/dilation.h"
#include "transport/clock.h"

namespace strata::transport {

StatusOr<LinkSpeed> link_speed(std::string_view preset) {
  if (preset == "none") return LinkSpeed{};
  if (preset == "1g") return LinkSpeed{300'000, 125'000'000};
  if (preset == "10g") return LinkSpeed{300'000, 1'250'000'000};
  if (preset == "30g") return LinkSpeed{170'000, 3'750'000'000};
  // One-sided reads over 25 Gb/s: 8 us for a page of 16 KiB.
  if (preset == "rdma25g") return LinkSpeed{3'000, 3'100'000'000};
  return error_invalid_argument("a link is none, 1g, 10g, 30g or rdma25g");
}

uint64_t LinkModel::request(uint64_t now_ns, uint64_t bytes) noexcept {
  return pass(&out_free_ns_, now_ns, bytes);
}

uint64_t LinkModel::reply(uint64_t arrival_ns, uint64_t service_ns, uint64_t bytes) noexcept {
  return pass(&in_free_ns_, arrival_ns + service_ns, bytes);
}

uint64_t LinkModel::pass(uint64_t* free_ns, uint64_t now_ns, uint64_t bytes) noexcept {
  uint64_t done_ns = now_ns;
  if (speed_.bytes_per_second != 0) {
    const uint64_t transfer_ns = bytes * 1000 / (speed_.bytes_per_second / 1'000'000);
    const MutexLock lock(mutex_);
    done_ns = std::max(now_ns, *free_ns) + transfer_ns;
    *free_ns = done_ns;
  }
  return done_ns + speed_.round_trip_ns / 2;
}

void sleep_until_ns(uint64_t when_ns) noexcept {
  constexpr uint64_t kOvershootNs = 60'000;  // timer slack included
  // Of dilated time, what a sleep is too long is a fraction of that, and yields would be charged as
  // work that the emulated machine does not do.
  const uint64_t overshoot_ns = time_dilation() > 1 ? 0 : kOvershootNs;
  for (;;) {
    const uint64_t now_ns = monotonic_ns();
    if (now_ns >= when_ns) return;
    if (when_ns - now_ns <= overshoot_ns) {
      ::sched_yield();
      continue;
    }
    const uint64_t left_ns = when_ns - now_ns - overshoot_ns;
    const timespec pause{static_cast<time_t>(left_ns / 1'000'000'000),
                         static_cast<long>(left_ns % 1'000'000'000)};
    ::nanosleep(&pause, nullptr);
  }
}

}  // namespace strata::transport
