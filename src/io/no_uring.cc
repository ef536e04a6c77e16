// internal/ring.h where the program was built without liburing.
#include "io/internal/ring.h"

namespace strata::internal {

StatusOr<std::unique_ptr<Ring>> make_ring() {
  return error_unsupported("this program was built without io_uring");
}

}  // namespace strata::internal
