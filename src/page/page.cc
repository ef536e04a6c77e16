#include "page/page.h"

#include <cstddef>
#include <string>

#include "base/crc32c.h"
#include "base/page_name.h"

namespace strata {
namespace {

static_assert(offsetof(PageHeader, crc32c) == 0);
static_assert(offsetof(PageHeader, format) == 4);
static_assert(offsetof(PageHeader, type) == 6);
static_assert(offsetof(PageHeader, level) == 7);
static_assert(offsetof(PageHeader, llsn) == 8);
static_assert(offsetof(PageHeader, space) == 16);
static_assert(offsetof(PageHeader, number) == 20);
static_assert(offsetof(PageHeader, index_id) == 24);
static_assert(offsetof(PageHeader, right_sibling) == 28);
static_assert(offsetof(PageHeader, flags) == 32);
static_assert(offsetof(PageHeader, slot_count) == 34);
static_assert(offsetof(PageHeader, heap_top) == 36);
static_assert(offsetof(PageHeader, garbage_bytes) == 38);
static_assert(offsetof(PageHeader, low_fence_offset) == 40);
static_assert(offsetof(PageHeader, low_fence_bytes) == 42);
static_assert(offsetof(PageHeader, high_key_offset) == 44);
static_assert(offsetof(PageHeader, high_key_bytes) == 46);
static_assert(offsetof(PageHeader, prefix_bytes) == 48);
static_assert(offsetof(PageHeader, extra) == 56);

uint32_t checksum_of(const char* page) noexcept {  // PG2
  return crc32c(page + 4, kPageBytes - 4);
}

}  // namespace

void seal_page(char* page) noexcept { header_of(page)->crc32c = checksum_of(page); }

bool page_is_all_zero(const char* page) noexcept {
  for (uint32_t at = 0; at < kPageBytes; at += 64) {
    uint64_t any = 0;
    for (uint32_t i = 0; i < 64; i += 8) any |= load_u64(page + at + i);
    if (any != 0) return false;
  }
  return true;
}

Status verify_page(const char* page, PageId expected) {
  const PageHeader* h = header_of(page);
  if (h->format == 0 && page_is_all_zero(page))
    return error_not_found(name_of(expected) + " was never written");
  const uint32_t checksum = checksum_of(page);
  if (h->crc32c != checksum)
    return error_corruption(name_of(expected) + ": checksum is " + std::to_string(checksum) +
                            ", stored is " + std::to_string(h->crc32c));
  if (h->format != kPageFormat)
    return error_corruption(name_of(expected) + ": format is " + std::to_string(h->format) +
                            ", expected " + std::to_string(kPageFormat) +
                            ": another version of the engine wrote it, and can read it");
  if (h->type == static_cast<uint8_t>(PageType::kAbsent) || h->type > kPageTypeMax)
    return error_corruption(name_of(expected) + ": unknown type " + std::to_string(h->type));
  if (page_id_of(page) != expected)
    return error_corruption(name_of(expected) + ": found " + name_of(page_id_of(page)) +
                            " in its place");
  return ok_status();
}

}  // namespace strata
