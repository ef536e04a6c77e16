// Pages for tests of clients/memory: their content says which page and which llsn it is.
#pragma once

#include <cstring>
#include <string>

#include "base/bytes.h"
#include "base/ids.h"
#include "page/page.h"

namespace strata::clients::testing {

inline std::string make_page(PageId id, Llsn llsn) {
  std::string page(kPageBytes, '\0');
  PageHeader* const header = header_of(page.data());
  header->format = kPageFormat;
  header->type = static_cast<uint8_t>(PageType::kTree);
  header->llsn = llsn.value;
  header->space = id.space;
  header->number = id.number;
  const uint64_t filling = mix64(llsn.value ^ mix64(id.packed()));
  for (uint32_t at = kPageHeaderBytes; at < kPageBytes; at += 512)
    std::memcpy(page.data() + at, &filling, 8);
  seal_page(page.data());
  return page;
}

inline Llsn llsn_of(const std::string& page) { return Llsn{header_of(page.data())->llsn}; }

}  // namespace strata::clients::testing
