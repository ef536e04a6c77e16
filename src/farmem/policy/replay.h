// What a policy would have done with a recorded trace: the same decisions as the pager's, without
// memory. Pure and deterministic; for experiments with one trace and many policies.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "base/status.h"
#include "farmem/policy/policy_options.h"

namespace strata::farmem {

struct Access {
  uint64_t page = 0;
  bool write = false;
};

struct PageCounts {
  uint64_t faults = 0;         // touches of a page that was not mapped
  uint64_t soft_hits = 0;      // of them: it was still local, staged
  uint64_t zero_filled = 0;    // of them: it had no content yet
  uint64_t fetched = 0;        // of them: it came from far memory
  uint64_t prefetched = 0;     // pages that came along
  uint64_t evicted_dirty = 0;  // written to far memory
  uint64_t evicted_clean = 0;  // dropped: far memory had the same content
};

// Every access in turn, with local memory empty at first. Errors: those of LocalPages::make(),
// kOutOfRange (a page beyond `pages`).
StatusOr<PageCounts> replay(absl::Span<const Access> trace, const PolicyOptions& options,
                            uint64_t pages);

}  // namespace strata::farmem
