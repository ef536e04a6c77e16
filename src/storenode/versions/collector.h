// Finds what the horizon lets go: goes through the map page by page. One thread at a time.
#pragma once

#include <cstdint>

#include "base/ids.h"
#include "base/status.h"
#include "storenode/versions/version_map.h"

namespace strata::storenode {

class Collector {
 public:
  Collector(VersionDb* db, VersionMap* map) : db_(db), map_(map) {}

  // Looks at up to `pages_max` pages. False: nothing is left to collect at this horizon, but what
  // waits for a version that is not stored yet. Blocks.
  StatusOr<bool> step(uint32_t pages_max);
  [[nodiscard]] uint64_t pages_seen() const noexcept { return pages_seen_; }

 private:
  [[nodiscard]] bool may_begin() const;
  VersionDb* const db_;
  VersionMap* const map_;
  bool sweeping_ = false;
  PageId next_;
  Llsn horizon_;            // of the sweep under way, or of the last one
  bool incomplete_ = true;  // it met versions that have to wait
  uint64_t stored_ = 0;     // versions when it began
  uint64_t pages_seen_ = 0;
};

}  // namespace strata::storenode
