// Until when a lease is certainly kept, as its holder knows it. Thread-safe, no latch.
//
// The registry keeps a lease for its time from when a renewal reaches it, which is after it was
// sent: so the holder counts from the sending, less a little for clocks that run at different
// speeds. Whoever sees the end first ends it for good (RG4): a renewal that arrives later cannot
// bring back a lease that somebody has seen invalid.
#pragma once

#include <atomic>
#include <cstdint>

namespace strata::registry::internal {

class LeaseTerm {
 public:
  explicit LeaseTerm(uint64_t end_us) noexcept : end_us_(end_us) {}

  static uint64_t end_of(uint64_t sent_us, uint64_t ttl_s) noexcept {
    const uint64_t ttl_us = ttl_s * 1'000'000;
    return sent_us + ttl_us - ttl_us / 32;
  }

  [[nodiscard]] uint64_t remaining_us(uint64_t now_us) const noexcept {
    uint64_t end = end_us_.load();
    while (end != 0 && now_us >= end) {
      if (end_us_.compare_exchange_weak(end, 0)) return 0;
    }
    return end == 0 ? 0 : end - now_us;
  }
  [[nodiscard]] bool valid(uint64_t now_us) const noexcept { return remaining_us(now_us) != 0; }

  // False: it had ended before.
  bool renew(uint64_t now_us, uint64_t new_end_us) noexcept {
    uint64_t end = end_us_.load();
    for (;;) {
      if (end == 0) return false;
      const uint64_t next = now_us >= end ? 0 : new_end_us;
      if (next != 0 && next <= end) return true;
      if (end_us_.compare_exchange_weak(end, next)) return next != 0;
    }
  }
  void end() noexcept { end_us_.store(0); }

 private:
  mutable std::atomic<uint64_t> end_us_;  // 0: ended for good
};

}  // namespace strata::registry::internal
