// Keeps storage nodes from collecting the old states of pages that a reader still needs.
// Thread-safe.
//   HV1  What is held moves forward only: what was let go may be collected.
//   HV2  A storage node that was away hears of it again when it is back; what it has collected
//        meanwhile others may have.
#pragma once

#include <cstdint>
#include <thread>

#include "base/ids.h"
#include "base/latch.h"
#include "base/status.h"
#include "clients/storage/storage_page_source.h"

namespace strata::clients {

class HeldVersions {
 public:
  // `reader`: random, not 0. `pages` outlives it. `again_us`: much less than a storage node's lease
  // of readers.
  HeldVersions(StoragePageSource* pages, uint64_t reader, uint64_t again_us = 2'000'000);
  // Lets go of everything. Blocks: for calls to storage nodes.
  ~HeldVersions();
  HeldVersions(const HeldVersions&) = delete;
  HeldVersions& operator=(const HeldVersions&) = delete;

  // From `oldest` on states are held when it returns OK, on one storage node at least. Blocks.
  // Errors: those of StoragePageSource::hold_versions(); what was held before stays held.
  Status hold(Llsn oldest);
  // OK, or why what is held may be collected.
  [[nodiscard]] Status state() const;

 private:
  void work();
  StoragePageSource* const pages_;
  const uint64_t reader_;
  const uint64_t again_us_;
  mutable Mutex mutex_{LatchRank::kLeaf};
  CondVar changed_;
  bool stopped_ STRATA_GUARDED_BY(mutex_) = false;
  bool holds_ STRATA_GUARDED_BY(mutex_) = false;
  Llsn oldest_ STRATA_GUARDED_BY(mutex_);
  Status state_ STRATA_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace strata::clients
