// What a policy would have done with a recorded trace: the same decisions as the pager's, without
// memory. Pure and deterministic; for experiments with one trace and many policies.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "base/status.h"
#include "farmem/policy/policy_options.h"

namespace strata::farmem {

enum class Event : uint8_t {
  kTouch,    // by the program
  kChange,   // it was changed without a touch that was seen; nothing if it is not local
  kDiscard,  // the program has no more use for `pages` pages from here on
};
enum class Change : uint8_t {
  kNone,
  kWritten,  // other content
  kCleared,  // all zeros
};

struct Access {
  uint64_t page = 0;
  Change change = Change::kNone;  // of what is in the page, from here on
  Event event = Event::kTouch;
  bool quiet = true;  // no other thread waits for a page afterwards: staged pages may go
  uint32_t pages = 0;
};
static_assert(sizeof(Access) == 16);

struct PageCounts {
  uint64_t faults = 0;         // touches of a page that was not mapped
  uint64_t soft_hits = 0;      // of them: it was still local, staged
  uint64_t zero_filled = 0;    // of them: it had no content yet
  uint64_t fetched = 0;        // of them: it came from far memory
  uint64_t prefetched = 0;     // pages that came along
  uint64_t evicted_dirty = 0;  // written to far memory
  uint64_t evicted_clean = 0;  // dropped: far memory had the same content
  uint64_t evicted_zero = 0;   // dropped: zeros
  friend bool operator==(const PageCounts&, const PageCounts&) = default;
};

// Every one in turn, with local memory empty at first. Errors: those of LocalPages::make(),
// kOutOfRange (a page beyond `pages`).
StatusOr<PageCounts> replay(absl::Span<const Access> trace, const PolicyOptions& options,
                            uint64_t pages);

}  // namespace strata::farmem
