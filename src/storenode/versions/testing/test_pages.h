// For tests: sealed pages whose bytes follow from (page id, llsn).
#pragma once

#include <cstring>
#include <memory>

#include "page/page.h"
#include "storenode/versions/page_cache.h"

namespace strata::storenode::testing {

inline PageRef test_page(PageId id, Llsn llsn) {
  auto made = std::make_shared<PageBuffer>();
  const uint64_t seed = mix64(id.packed() ^ mix64(llsn.value));
  std::memset(made->bytes, static_cast<int>(seed & 0xff), kPageBytes);
  std::memset(made->bytes, 0, kPageHeaderBytes);
  PageHeader* const h = header_of(made->bytes);
  h->format = kPageFormat;
  h->type = static_cast<uint8_t>(PageType::kUndo);
  h->space = id.space;
  h->number = id.number;
  h->llsn = llsn.value;
  h->extra = seed;
  seal_page(made->bytes);
  return made;
}

inline bool same_page(const char* a, const char* b) { return std::memcmp(a, b, kPageBytes) == 0; }

}  // namespace strata::storenode::testing
