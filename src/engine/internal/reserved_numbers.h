// AUTO_INCREMENT values of one table that this node has taken for itself (MW11, MW12) and not given
// out yet. Thread-safe. How many are taken at once follows the rate: twice as many when the last
// range lasted for less than a second, half as many otherwise.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/latch.h"
#include "space/number_source.h"

namespace strata::engine {

class ReservedNumbers {
 public:
  ReservedNumbers(NumberSource* source, SpaceId space) noexcept : source_(source), space_(space) {}

  // As Table::reserve_auto_increment(). May block; no latch held.
  StatusOr<uint64_t> take(uint64_t offset, uint64_t step, uint64_t count, uint64_t most);
  // An explicit value was used: this node gives out no smaller ones.
  void raise(uint64_t used) noexcept;
  // Whether the counter in the space says already that the value is used.
  [[nodiscard]] bool is_noted(uint64_t value) const noexcept {
    return value < taken_end_.load(std::memory_order_acquire);
  }
  [[nodiscard]] uint64_t next() const noexcept { return next_.load(std::memory_order_relaxed); }

 private:
  Status take_range(uint64_t at_least, uint64_t count, NumberRange* range);

  NumberSource* const source_;
  const SpaceId space_;
  Mutex mutex_{LatchRank::kEngine};  // not held while a range is taken: one does, the others wait
  CondVar taken_;
  bool taking_ = false;
  std::atomic<uint64_t> next_{1};  // written under the mutex
  uint64_t end_ = 1;               // of the range next_ is in
  uint64_t chunk_ = 1;
  uint64_t taken_at_us_ = 0;
  std::atomic<uint64_t> taken_end_{0};  // of all ranges taken
};

}  // namespace strata::engine
