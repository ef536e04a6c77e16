#include "dilate/virtual_cores.h"

#include <algorithm>

namespace strata::dilate {

int64_t VirtualCores::book(int64_t start_ns, int64_t length_ns) const noexcept {
  for (;;) {
    int64_t free_ns = 0;
    std::atomic<int64_t>* const core = first_free(&free_ns);
    const int64_t done_ns = std::max(start_ns, free_ns) + length_ns;
    // Relaxed: the words carry nothing but themselves. A core that another one took meanwhile is
    // compared with all of them again.
    if (core->compare_exchange_weak(free_ns, done_ns, std::memory_order_relaxed)) return done_ns;
  }
}

std::atomic<int64_t>* VirtualCores::first_free(int64_t* when_ns) const noexcept {
  std::atomic<int64_t>* first = &free_at_ns_.front();
  *when_ns = first->load(std::memory_order_relaxed);
  for (std::atomic<int64_t>& core : free_at_ns_.subspan(1)) {
    const int64_t free_ns = core.load(std::memory_order_relaxed);
    if (free_ns >= *when_ns) continue;
    *when_ns = free_ns;
    first = &core;
  }
  return first;
}

}  // namespace strata::dilate
