// The cores of one emulated node. Thread-safe, and shared by processes: no latch, one
// compare-and-swap for each booking, so a process that is killed leaves nothing undone.
//   TD3  A booking takes the core that is free first, from the later of when it wants to begin and
//        when that core is free. A core serves one booking at a time, so k cores give no more than
//        k seconds a second.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace strata::dilate {

class VirtualCores {
 public:
  // `free_at_ns`: of each core, when it will have done all that was booked on it. Outlives this.
  explicit VirtualCores(std::span<std::atomic<int64_t>> free_at_ns) noexcept
      : free_at_ns_(free_at_ns) {}

  // Books so much of a core's time, not before `start_ns`. Returns when it will be done.
  [[nodiscard]] int64_t book(int64_t start_ns, int64_t length_ns) const noexcept;

 private:
  [[nodiscard]] std::atomic<int64_t>* first_free(int64_t* when_ns) const noexcept;

  std::span<std::atomic<int64_t>> free_at_ns_;
};

}  // namespace strata::dilate
