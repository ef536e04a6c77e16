// Which errors of the disk will not pass. A place that a device cannot read or write answers EIO,
// and so does, for a while, a device that is being reset: only time tells them apart. Thread-safe.
//
//   DE1  A place's errors last once it has failed kTriesMin times, over `lasting_us` at least, and
//        nothing went well there in between.
// What "a place" is the caller says: a page, a range of the map, or all writing.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>

#include "base/latch.h"
#include "io/device_error.h"

namespace strata::storenode {

class DeviceErrors {
 public:
  static constexpr uint32_t kTriesMin = 4;
  explicit DeviceErrors(uint64_t lasting_us) : lasting_us_(lasting_us) {}
  // Counts one error of the device. True: they last (DE1).
  bool failed(uint64_t place, uint64_t now_us);
  // Costs nothing while no place fails.
  void succeeded(uint64_t place) {
    if (failing_.load(std::memory_order_relaxed) != 0) forget(place);
  }

 private:
  struct Place {
    uint32_t tries = 0;
    uint64_t since_us = 0;
  };
  void forget(uint64_t place);
  const uint64_t lasting_us_;
  Mutex mutex_{LatchRank::kLeaf};
  std::map<uint64_t, Place> places_ STRATA_GUARDED_BY(mutex_);
  std::atomic<size_t> failing_{0};  // of places_
};

}  // namespace strata::storenode
