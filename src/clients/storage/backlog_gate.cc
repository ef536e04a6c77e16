#include "clients/storage/backlog_gate.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/diag.h"

namespace strata::clients {

BacklogGate::BacklogGate(size_t nodes, size_t nodes_needed, uint64_t close_bytes,
                         uint64_t scan_weight)
    : close_bytes_(close_bytes),
      scan_weight_(scan_weight),
      nodes_needed_(nodes_needed),
      backlogs_(nodes, 0) {}

size_t BacklogGate::nodes_below(uint64_t bytes) const {
  return static_cast<size_t>(std::count_if(backlogs_.begin(), backlogs_.end(),
                                           [bytes](uint64_t behind) { return behind < bytes; }));
}

void BacklogGate::note(size_t node, uint64_t backlog_bytes, uint64_t scan_lag_bytes) {
  const uint64_t behind = std::max(backlog_bytes, scan_lag_bytes * scan_weight_);  // BG5
  change([&]() STRATA_REQUIRES(mutex_) {
    if (node < backlogs_.size()) backlogs_[node] = behind;
  });
}

void BacklogGate::follow(size_t nodes_needed, const std::vector<std::optional<uint32_t>>& before) {
  change([&]() STRATA_REQUIRES(mutex_) {
    nodes_needed_ = nodes_needed;
    std::vector<uint64_t> backlogs;
    backlogs.reserve(before.size());
    for (const std::optional<uint32_t>& place : before)
      backlogs.push_back(place.has_value() ? backlogs_[*place] : 0);
    backlogs_ = std::move(backlogs);
  });
}

void BacklogGate::change(absl::FunctionRef<void()> what) {
  bool was_closed = false;
  bool is_closed = false;
  {
    const MutexLock lock(mutex_);
    what();
    was_closed = closed();
    is_closed = nodes_below(was_closed ? close_bytes_ / 2 : close_bytes_) < nodes_needed_;
    closed_.store(is_closed, std::memory_order_relaxed);
    if (was_closed && !is_closed) changed_.notify_all();
  }
  if (is_closed == was_closed) return;
  if (is_closed)
    diag(Severity::kWarning,
         "storage nodes are more than %llu MiB of log behind with their replay, or %llu MiB with "
         "its first pass: writers wait",
         static_cast<unsigned long long>(close_bytes_ >> 20),
         static_cast<unsigned long long>(close_bytes_ / std::max<uint64_t>(scan_weight_, 1) >> 20));
  else
    diag(Severity::kInfo, "storage nodes have caught up: writers go on");
}

Status BacklogGate::wait(WaitInterrupt* interrupt) {
  if (!closed()) return ok_status();
  const uint64_t begin_us = monotonic_us();
  CondVarSleep sleep(&mutex_, &changed_);
  const WaitInterrupt::Asleep asleep(interrupt, &sleep);
  Status status;
  MutexLock lock(mutex_);
  while (closed() && !stopped_ && status.ok()) {
    if (is_interrupted_now(interrupt))
      status = error_interrupted();
    else
      changed_.wait(lock);
  }
  counters_.waits.fetch_add(1, std::memory_order_relaxed);
  counters_.wait_us.fetch_add(monotonic_us() - begin_us, std::memory_order_relaxed);
  return status;
}

void BacklogGate::stop() {
  const MutexLock lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

}  // namespace strata::clients
