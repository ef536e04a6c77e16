// The size of a page, for what is above the kernel and knows no pages.
#pragma once

#include <cstdint>

#include "page/page.h"

namespace strata::engine {

constexpr uint32_t kPageSize = kPageBytes;

}  // namespace strata::engine
