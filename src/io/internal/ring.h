// What batch_io.h asks of the operating system. A seam for its tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/status.h"

namespace strata::internal {

constexpr size_t kRingEntries = 64;

struct RingEntry {
  int descriptor = -1;
  bool is_write = false;
  uint64_t offset = 0;
  void* data = nullptr;
  uint32_t bytes = 0;
  int64_t result = -1;  // of pread or pwrite: bytes, or an error's number, negative
};

// One thread at a time.
class Ring {
 public:
  virtual ~Ring() = default;
  // Up to kRingEntries; blocks until none is on its way. Results of those that were not begun stay
  // as they are. False: the ring is not to be used again.
  virtual bool run(RingEntry* entries, size_t count) = 0;
};

// unsupported: this system, or what contains this process, does not offer it; the message says.
StatusOr<std::unique_ptr<Ring>> make_ring();

}  // namespace strata::internal
