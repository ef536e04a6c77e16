// Which pages come along with a missing one: those that follow it, as long as each is away and has
// content in far memory; the first that is not ends the run, so that what comes is one piece of far
// memory. Never so many that they would push each other out.
#pragma once

#include <algorithm>
#include <cstdint>

#include "farmem/policy/local_pages.h"

namespace strata::farmem {

// `is_far(page)`: its content is in far memory only. Returns how many pages behind `page`.
template <typename IsFar>
uint32_t pages_to_prefetch(const PolicyOptions& options, const Shares& shares, uint64_t page,
                           uint64_t pages, const IsFar& is_far) {
  // Pages that follow each other are in different sets, one after the other.
  const uint64_t together = uint64_t{shares.sets} * shares.ways / 2;
  const uint64_t most = std::min({uint64_t{options.prefetch}, together, pages - page - 1});
  uint32_t count = 0;
  while (count < most && is_far(page + count + 1)) count++;
  return count;
}

}  // namespace strata::farmem
