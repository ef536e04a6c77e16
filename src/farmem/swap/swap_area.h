// What Linux wants to see at the beginning of a place to swap to, and what it says of those in use.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "farmem/policy/policy_options.h"

namespace strata::farmem {

using SwapHeader = std::array<char, kPageBytes>;

// Of an area of so many pages, the first of which is this one. 10 <= pages <= 2^32.
SwapHeader swap_header(uint64_t pages) noexcept;
// Of the text of /proc/swaps: the first place that is used, empty if there is none.
std::string swap_in_use(const std::string& proc_swaps);

}  // namespace strata::farmem
