// A token in a file: what a tenant shows, one line. For who offers something and who asks for it.
#pragma once

#include <cstddef>
#include <string>

#include "base/status.h"

namespace strata {

constexpr size_t kTokenBytesMin = 16;
constexpr size_t kTokenBytesMax = 256;

// The line without its end. Blocks. Errors name the path: kNotFound, kInvalidArgument (too short or
// too long, not a file, not only its owner's).
StatusOr<std::string> read_token(const std::string& path);

}  // namespace strata
