// The slots of the memory node's pool that this server may put pages into, and how a version gets
// into one and out again. Thread-safe.
//
//   FH4  A slot is taken once. One whose put got no answer is never taken again: the put may still
//        come (FU14).
//   FH5  What was got from a slot is a version only if page, llsn and checksum are those that were
//        asked for: a slot may have got another page meanwhile, or half of one.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/ids.h"
#include "base/latch.h"
#include "base/status.h"
#include "page/page.h"
#include "transport/regions/remote_region.h"

namespace strata::clients {

class PageSlots {
 public:
  void add(const std::vector<uint32_t>& slots);
  [[nodiscard]] std::optional<uint32_t> take();
  [[nodiscard]] size_t free() const;
  void clear();  // they are of a memory node that is gone

  // `page`: sealed; stays until the operation has ended.
  [[nodiscard]] static transport::RegionOperation put(uint32_t slot, const char* page) {
    return transport::RegionOperation::put(uint64_t{slot} * kPageBytes, Bytes(page, kPageBytes));
  }
  [[nodiscard]] static transport::RegionOperation get(uint32_t slot, char* page) {
    return transport::RegionOperation::get(uint64_t{slot} * kPageBytes,
                                           absl::MakeSpan(page, kPageBytes));
  }
  // FH5. peer_down: it is not, and may be somewhere else by now.
  [[nodiscard]] static Status check(const char* page, PageId id, Llsn llsn);

 private:
  mutable Mutex mutex_{LatchRank::kLeaf};
  std::vector<uint32_t> free_ STRATA_GUARDED_BY(mutex_);
};

}  // namespace strata::clients
