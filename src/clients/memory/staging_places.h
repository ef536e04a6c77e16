// The memory that a memory node has given for pages on their way to it, mapped: which places of it
// are free. Thread-safe.
//   STP1  A place is one call's until it is given back. One of a call that may still be under way
//         never is: it goes with the attachment.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/latch.h"
#include "page/page.h"
#include "transport/regions/remote_region.h"

namespace strata::clients {

class StagingPlaces {
 public:
  // `region` is mapped (direct()), to be written, and holds so many pages.
  StagingPlaces(std::unique_ptr<transport::RemoteRegion> region, uint32_t places)
      : region_(std::move(region)) {
    free_.reserve(places);
    for (uint32_t place = places; place > 0; --place) free_.push_back(place - 1);
  }
  // So many, or none.
  [[nodiscard]] std::vector<uint32_t> take(size_t count) {
    const MutexLock lock(mutex_);
    if (count > free_.size()) return {};
    std::vector<uint32_t> taken(free_.end() - static_cast<ptrdiff_t>(count), free_.end());
    free_.resize(free_.size() - count);
    return taken;
  }
  void give_back(const std::vector<uint32_t>& places) {
    const MutexLock lock(mutex_);
    free_.insert(free_.end(), places.begin(), places.end());
  }
  [[nodiscard]] char* page(uint32_t place) noexcept {
    return region_->direct() + uint64_t{place} * kPageBytes;
  }

 private:
  const std::unique_ptr<transport::RemoteRegion> region_;
  Mutex mutex_{LatchRank::kLeaf};
  std::vector<uint32_t> free_ STRATA_GUARDED_BY(mutex_);
};

}  // namespace strata::clients
