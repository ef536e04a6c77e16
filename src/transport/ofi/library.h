// libfabric, loaded when it is first used: it brings drivers along that take time and set signal
// handlers, which a program that uses no fabric shall not meet. Everything but these functions is
// inline in its headers. Thread-safe.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

#include "base/status.h"

namespace strata::transport::ofi {

struct Library {
  decltype(&::fi_getinfo) getinfo = nullptr;
  decltype(&::fi_freeinfo) freeinfo = nullptr;
  decltype(&::fi_dupinfo) dupinfo = nullptr;
  decltype(&::fi_fabric) fabric = nullptr;
  decltype(&::fi_strerror) strerror = nullptr;
};

// Blocks the first time. Error: kInvalidArgument, it is not on this machine, or another version
// than this was built for.
StatusOr<const Library*> load_library();
// After it has been loaded: whoever has one of its objects may call this.
const Library& library() noexcept;

}  // namespace strata::transport::ofi
