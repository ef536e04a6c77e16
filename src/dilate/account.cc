#include "dilate/account.h"

#include <span>

namespace strata::dilate {

void Account::charge(int64_t used_ns, int64_t now_cpu_ns, Factor factor, NodeState* node) noexcept {
  cpu_ns = now_cpu_ns;
  if (used_ns <= 0) return;
  const int64_t length_ns = stretched(used_ns, factor);
  const VirtualCores cores(std::span(node->free_at_ns).first(node->cores));
  due_ns = cores.book(due_ns, length_ns);
  node->cpu_ns.fetch_add(static_cast<uint64_t>(used_ns), std::memory_order_relaxed);
  node->booked_ns.fetch_add(static_cast<uint64_t>(length_ns), std::memory_order_relaxed);
  node->bookings.fetch_add(1, std::memory_order_relaxed);
}

void Account::be_late(int64_t by_ns, NodeState* node) noexcept {
  const auto late_ns = static_cast<uint64_t>(by_ns);
  node->late_ns.fetch_add(late_ns, std::memory_order_relaxed);
  uint64_t most = node->late_ns_max.load(std::memory_order_relaxed);
  while (late_ns > most &&
         !node->late_ns_max.compare_exchange_weak(most, late_ns, std::memory_order_relaxed)) {
  }
}

}  // namespace strata::dilate
