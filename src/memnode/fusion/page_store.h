// Where the memory node's shared pages are written to, unless storage makes them from the log.
#pragma once

#include "absl/types/span.h"
#include "base/ids.h"
#include "base/status.h"

namespace strata::memnode {

// One thread at a time. Outlives whoever writes.
class PageStore {
 public:
  struct Image {
    PageId page;
    Llsn llsn;
    const char* bytes = nullptr;  // sealed, whole
  };
  virtual ~PageStore() = default;
  // Blocks. results[i] OK: that version, or a newer one, is durable.
  virtual void write(absl::Span<const Image> images, absl::Span<Status> results) = 0;
};

}  // namespace strata::memnode
