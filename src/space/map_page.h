// Layout of the two page types that belong to a space: header (page 0) and allocation maps. Pure.
//   MP1  Map g stands at page 1 + g * kPagesPerMap and describes pages [g * kPagesPerMap,
//        (g + 1) * kPagesPerMap).
//   MP2  A page's state is two bits: used 0 = free; used 1, pending 0 = allocated; used 1, pending
//        1 = unlinked from its tree, free once every older operation has ended (SP2).
#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "base/ids.h"
#include "page/page.h"

namespace strata {

struct ExtentEntry {
  uint8_t owner;  // node that allocates from this extent, 0 = nobody yet
  uint8_t pad[7];
  uint64_t used;
  uint64_t pending;
};
static_assert(sizeof(ExtentEntry) == 24);

constexpr uint32_t kPagesPerExtent = 64;
constexpr uint32_t kExtentsPerMap =
    640;  // 15360 of the 16320 bytes of a body; the rest is reserved
constexpr uint32_t kPagesPerMap = kPagesPerExtent * kExtentsPerMap;
static_assert(kPageHeaderBytes + kExtentsPerMap * sizeof(ExtentEntry) <= kPageBytes);
// The last map's pages must all have numbers below kNoPage.
constexpr uint32_t kMapsMax = kNoPage / kPagesPerMap;

constexpr uint32_t map_of(uint32_t page_number) noexcept { return page_number / kPagesPerMap; }
constexpr uint32_t map_page_number(uint32_t map) noexcept { return 1 + map * kPagesPerMap; }
constexpr uint32_t extent_of(uint32_t page_number) noexcept {
  return page_number % kPagesPerMap / kPagesPerExtent;
}
constexpr uint64_t bit_of(uint32_t page_number) noexcept {
  return uint64_t{1} << (page_number % kPagesPerExtent);
}
constexpr bool is_map_page(uint32_t page_number) noexcept {
  return page_number % kPagesPerMap == 1;
}

constexpr uint16_t extent_offset(uint32_t extent) noexcept {
  return static_cast<uint16_t>(kPageHeaderBytes + extent * sizeof(ExtentEntry));
}
constexpr uint16_t kExtentUsedOffset = 8;
constexpr uint16_t kExtentPendingOffset = 16;

inline ExtentEntry read_extent(const char* page, uint32_t extent) noexcept {
  ExtentEntry entry;
  std::memcpy(&entry, page + extent_offset(extent), sizeof(entry));
  return entry;
}

constexpr uint32_t kSpaceMagic = 0x50534453;  // "SDSP"
constexpr uint16_t kHeaderMagicOffset = kPageHeaderBytes;
constexpr uint16_t kHeaderSpaceOffset = kPageHeaderBytes + 4;
constexpr uint16_t kHeaderSlotsOffset = kPageHeaderBytes + 8;

}  // namespace strata
