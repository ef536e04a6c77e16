// For tests: pages whose every byte follows from (page id, version).
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "base/ids.h"
#include "page/page.h"

namespace strata::testing {

struct PageVersion {
  uint64_t version = 0;
  uint64_t group_end = 0;  // end Lsn of the group that made it
};

inline void fill_page(char* page, PageId id, uint64_t llsn, PageVersion v) {
  PageHeader* h = header_of(page);
  std::memset(page, static_cast<int>(mix64(id.packed() + v.version) & 0xff), kPageBytes);
  std::memset(page, 0, kPageHeaderBytes);
  h->format = kPageFormat;
  h->type = static_cast<uint8_t>(PageType::kTree);
  h->space = id.space;
  h->number = id.number;
  h->llsn = llsn;
  std::memcpy(page + kPageHeaderBytes, &v, sizeof v);
}

// Empty: every byte is what fill_page() made.
inline std::string check_page(const char* page, PageId id, PageVersion* out = nullptr) {
  PageVersion v;
  std::memcpy(&v, page + kPageHeaderBytes, sizeof v);
  if (out != nullptr) *out = v;
  if (page_id_of(page) != id) return "wrong page id";
  const char want = static_cast<char>(mix64(id.packed() + v.version) & 0xff);
  for (uint32_t i = kPageHeaderBytes + sizeof v; i < kPageBytes; ++i)
    if (page[i] != want)
      return "byte " + std::to_string(i) + " is not of version " + std::to_string(v.version);
  return {};
}

}  // namespace strata::testing
