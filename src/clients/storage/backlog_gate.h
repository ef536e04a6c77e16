// Holds writers back while storage nodes fall behind with the replay of the log: a backlog that
// only grows fills their disks, and readers wait for ever more of it. Thread-safe.
//   BG1  Closes when fewer than `nodes_needed` nodes are less than `close_bytes` behind, and opens
//        when so many are less than half of that behind.
//   BG5  Log that is not scanned yet counts `scan_weight` times: a page that goes from one of
//        several servers to another is read behind what the first one has just written, so that
//        each byte that is not scanned makes all of them wait. 0, where one server writes: it does
//        not.
//   BG2  What a node said last counts; one that has said nothing yet is not behind.
//   BG4  After follow() only what the nodes there are now have said counts.
//   BG3  wait() ends when the gate opens, when it is interrupted, or once stop() was called.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "base/latch.h"
#include "base/status.h"
#include "base/wait_interrupt.h"

namespace strata::clients {

class BacklogGate {
 public:
  BacklogGate(size_t nodes, size_t nodes_needed, uint64_t close_bytes, uint64_t scan_weight = 0);
  void note(size_t node, uint64_t backlog_bytes, uint64_t scan_lag_bytes);
  // BG4: the nodes from now on, each with its number before; nothing: it is another one.
  void follow(size_t nodes_needed, const std::vector<std::optional<uint32_t>>& before);
  [[nodiscard]] bool closed() const noexcept { return closed_.load(std::memory_order_relaxed); }
  // Cheap when open; else blocks (no latch may be held). kCancelled: interrupted. `interrupt` may
  // be null.
  Status wait(WaitInterrupt* interrupt);
  void stop();

  struct Counters {
    std::atomic<uint64_t> waits{0}, wait_us{0};
  };
  [[nodiscard]] const Counters& counters() const noexcept { return counters_; }

 private:
  [[nodiscard]] size_t nodes_below(uint64_t bytes) const STRATA_REQUIRES(mutex_);
  void change(absl::FunctionRef<void()> what);  // `what` is called with the mutex
  const uint64_t close_bytes_, scan_weight_;
  std::atomic<bool> closed_{false};
  Mutex mutex_{LatchRank::kLeaf};
  CondVar changed_;
  size_t nodes_needed_ STRATA_GUARDED_BY(mutex_);
  std::vector<uint64_t> backlogs_ STRATA_GUARDED_BY(mutex_);
  bool stopped_ STRATA_GUARDED_BY(mutex_) = false;
  Counters counters_;
};

}  // namespace strata::clients
