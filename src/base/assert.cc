#include "base/assert.h"

#include <cstdio>
#include <cstdlib>

namespace strata::internal {

void assert_failed(const char* condition, const char* file, int line) noexcept {
  std::fprintf(
      stderr,
      "strata: assertion failed: %s at %s:%d. The process stops here so that no wrong byte "
      "reaches storage; committed work is recovered at the next start.\n",
      condition, file, line);
  std::abort();
}

}  // namespace strata::internal
