// A large block of memory of its own: zeroed, only backed as far as it is touched, in huge pages
// where the system has them (a block that is used once otherwise costs a fault for every 4 KiB).
#pragma once

#include <cstddef>
#include <utility>

#include "base/status.h"

namespace strata {

class MappedMemory {
 public:
  MappedMemory() noexcept = default;
  MappedMemory(MappedMemory&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  MappedMemory& operator=(MappedMemory&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~MappedMemory();

  // Page aligned. kResourceExhausted, naming the size, when the system refuses. bytes > 0.
  static StatusOr<MappedMemory> map(size_t bytes);

  [[nodiscard]] char* get() const noexcept { return memory_; }  // null before map()
  [[nodiscard]] size_t bytes() const noexcept { return bytes_; }

 private:
  char* memory_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace strata
