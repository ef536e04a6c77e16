#include "storenode/versions/device_errors.h"

namespace strata::storenode {
namespace {

// A disk with so many bad places is remembered by them well enough.
constexpr size_t kPlacesMax = 1000;

}  // namespace

bool DeviceErrors::failed(uint64_t place, uint64_t now_us) {
  const MutexLock lock(mutex_);
  if (places_.size() >= kPlacesMax && places_.count(place) == 0) return false;
  Place& at = places_.try_emplace(place, Place{0, now_us}).first->second;
  failing_.store(places_.size(), std::memory_order_relaxed);
  return ++at.tries >= kTriesMin && now_us - at.since_us >= lasting_us_;
}

void DeviceErrors::forget(uint64_t place) {
  const MutexLock lock(mutex_);
  places_.erase(place);
  failing_.store(places_.size(), std::memory_order_relaxed);
}

}  // namespace strata::storenode
