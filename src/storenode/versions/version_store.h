// Reads stored versions through the page cache. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/ids.h"
#include "base/status.h"
#include "storenode/versions/page_cache.h"
#include "storenode/versions/version_db.h"

namespace strata::storenode {

class VersionStore {
 public:
  VersionStore(VersionDb* db, uint64_t cache_bytes) : db_(db), cache_(cache_bytes) {}

  // The page as the group with `llsn` left it, sealed and verified (VD4). kNotFound: not stored.
  // Blocks.
  StatusOr<PageRef> read(PageId page, Llsn llsn);
  // The same if it is in memory, without waiting for anything; else null.
  PageRef at_hand(PageId page, Llsn llsn) { return cache_.find_at_hand(page, llsn); }
  // What a replay has made and stored, or is about to.
  void remember(PageId page, Llsn llsn, PageRef ref) { cache_.insert(page, llsn, std::move(ref)); }
  void forget_all() { cache_.clear(); }

  [[nodiscard]] const PageCache& cache() const noexcept { return cache_; }
  [[nodiscard]] uint64_t pages_read() const noexcept { return pages_read_.load(); }
  [[nodiscard]] uint64_t damaged() const noexcept { return damaged_.load(); }

 private:
  VersionDb* const db_;
  PageCache cache_;
  std::atomic<uint64_t> pages_read_{0};
  std::atomic<uint64_t> damaged_{0};
};

}  // namespace strata::storenode
