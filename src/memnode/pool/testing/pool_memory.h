// Memory for pools in tests, and pages whose content says which image they are.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/ids.h"
#include "memnode/pool/pool.h"
#include "page/page.h"

namespace strata::memnode::test {

// A sealed page: what is in it follows from id and llsn.
inline std::string page_of(PageId id, Llsn llsn) {
  std::string page(kPageBytes, '\0');
  PageHeader* const header = header_of(page.data());
  header->format = kPageFormat;
  header->type = static_cast<uint8_t>(PageType::kTree);
  header->llsn = llsn.value;
  header->space = id.space;
  header->number = id.number;
  for (uint32_t at = kPageHeaderBytes; at < kPageBytes; at += 8) {
    const uint64_t word = mix64(id.packed() ^ mix64(llsn.value + at));
    std::memcpy(page.data() + at, &word, sizeof word);
  }
  seal_page(page.data());
  return page;
}

class Memory {
 public:
  explicit Memory(uint32_t slots)
      : headers_(slots), pages_(size_t{slots} * kPageBytes / sizeof(uint64_t)) {}
  PoolMemory get() { return {headers_.data(), pages()}; }
  [[nodiscard]] char* pages() { return reinterpret_cast<char*>(pages_.data()); }
  [[nodiscard]] char* page(uint32_t slot) { return pages() + size_t{slot} * kPageBytes; }
  [[nodiscard]] SlotHeader& header(uint32_t slot) { return headers_[slot]; }
  [[nodiscard]] uint32_t slots() const { return static_cast<uint32_t>(headers_.size()); }
  [[nodiscard]] size_t page_bytes() const { return pages_.size() * sizeof(uint64_t); }

 private:
  std::vector<SlotHeader> headers_;
  std::vector<uint64_t> pages_;
};

// begin_fill() to publish().
inline StatusOr<Pool::Slot> put(Pool* pool, PageId id, Llsn llsn, Lsn first = kNeverChanged) {
  Pool::Slot there;
  const bool dirty = first != kNeverChanged;
  const StatusOr<uint32_t> slot = pool->begin_fill(id, llsn, dirty, dirty ? first : Lsn(), &there);
  if (is_duplicate_key(slot.status())) return there;
  if (!slot.ok()) return slot.status();
  pool->fill(*slot, page_of(id, llsn).data());
  return pool->publish(*slot);
}

}  // namespace strata::memnode::test
