// Memory for direct I/O.
#pragma once

#include <cstdlib>
#include <memory>

#include "base/assert.h"

namespace strata {

// What direct I/O asks of offsets, lengths and addresses, and the size of the blocks that files are
// written in whole.
constexpr size_t kDirectIoAlignment = 4096;

// `bytes` is a multiple of `alignment`, a power of two. Not cleared.
class AlignedBytes {
 public:
  explicit AlignedBytes(size_t bytes, size_t alignment = kDirectIoAlignment)
      : bytes_(static_cast<char*>(std::aligned_alloc(alignment, bytes))) {
    STRATA_ASSERT(bytes_ != nullptr);
  }
  [[nodiscard]] char* get() const noexcept { return bytes_.get(); }

 private:
  struct Free {
    void operator()(char* p) const noexcept { std::free(p); }
  };
  std::unique_ptr<char, Free> bytes_;
};

}  // namespace strata
