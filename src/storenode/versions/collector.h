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
  // waits for a version that is not stored yet. Entries that are in memory only are passed over:
  // whoever stores the page trims them. Blocks.
  StatusOr<bool> step(uint32_t pages_max);
  // Not through the whole map yet.
  [[nodiscard]] bool sweeping() const noexcept { return sweeping_; }
  [[nodiscard]] uint64_t pages_seen() const noexcept { return pages_seen_; }

 private:
  [[nodiscard]] bool may_begin() const;
  [[nodiscard]] uint64_t came() const;
  VersionDb* const db_;
  VersionMap* const map_;
  bool sweeping_ = false;
  PageId next_;
  Llsn horizon_;            // of the sweep under way, or of the last one
  bool incomplete_ = true;  // it met versions that have to wait
  uint64_t came_ = 0;       // when it began
  uint64_t pages_seen_ = 0;
};

}  // namespace strata::storenode
