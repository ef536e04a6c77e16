// One mapping from errno to an outcome, for every implementation of FileSystem. Pure.
#pragma once

#include <string_view>

#include "base/status.h"

namespace strata {
// "operation path: reason" with the outcome that stands for the errno value (IO2).
Status errno_status(std::string_view operation, std::string_view path, int error);
}  // namespace strata
