// The 16 KiB page: header layout, types, checksum. Pure functions over bytes: no I/O, no latches.
//   PG1  Multi-byte fields are little endian; the struct is the on-disk and on-wire format.
//   PG2  crc32c covers bytes [4, 16384). seal() is called when a page leaves the node, verify()
//        when one arrives; the field's value in memory means nothing.
//   PG3  No byte outside crc32c changes except through redo (K1).
#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "base/ids.h"
#include "base/status.h"

namespace strata {

constexpr uint32_t kPageBytes = 16384;
constexpr uint32_t kPageHeaderBytes = 64;
constexpr uint16_t kPageFormat = 2;

enum class PageType : uint8_t {
  kAbsent = 0,    // all zero: never written
  kTree = 1,      // B-link tree page (leaf: level 0)
  kOverflow = 2,  // part of a large value
  kUndo = 3,
  kStatus = 4,  // transaction status array
  kStatusDirectory = 5,
  kSpaceMap = 6,     // allocation map
  kSpaceHeader = 7,  // page 0 of a space
  kSystem = 8,       // system page (pending deletes, ceilings)
};
constexpr uint8_t kPageTypeMax = 8;

enum PageFlags : uint16_t {
  kIncompleteSplit = 1,  // right sibling's separator is not in the parent yet (K4)
  kHighIsInfinity = 2,   // no high key: rightmost of its level
  kUnlinked = 4,         // removed from the tree, waiting for reuse (K5)
};

struct PageHeader {
  uint32_t crc32c;
  uint16_t format;
  uint8_t type;   // PageType
  uint8_t level;  // tree level, leaf 0
  uint64_t llsn;
  uint32_t space;
  uint32_t number;
  uint32_t index_id;
  uint32_t right_sibling;  // page number in the same space, kNoPage = none; overflow: next page
  uint16_t flags;
  uint16_t slot_count;
  uint16_t heap_top;       // lowest used heap byte; the heap grows down from kPageBytes
  uint16_t garbage_bytes;  // dead bytes inside the heap
  uint16_t low_fence_offset;
  uint16_t low_fence_bytes;
  uint16_t high_key_offset;
  uint16_t high_key_bytes;
  uint16_t prefix_bytes;  // common prefix of both fences; not repeated in the records
  uint16_t reserved16;
  uint32_t reserved32;
  uint64_t extra;  // owned by the page type (overflow: payload bytes; undo: see undo/)
};
static_assert(sizeof(PageHeader) == kPageHeaderBytes);

inline PageHeader* header_of(char* page) noexcept { return reinterpret_cast<PageHeader*>(page); }
inline const PageHeader* header_of(const char* page) noexcept {
  return reinterpret_cast<const PageHeader*>(page);
}
inline PageId page_id_of(const char* page) noexcept {
  return PageId{header_of(page)->space, header_of(page)->number};
}

// Stores the checksum.
void seal_page(char* page) noexcept;
bool page_is_all_zero(const char* page) noexcept;
// kDataLoss (naming expectation and finding) unless checksum, format and identity are right. A page
// of zeroes is kNotFound: never written. Does not look inside the body.
Status verify_page(const char* page, PageId expected);

}  // namespace strata
