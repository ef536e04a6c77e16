// Valid pages to start from, so that an input need not spell one out.
#pragma once

#include "fuzz.h"
#include "redo/redo.h"

namespace strata::fuzz {

constexpr PageId kPage{300, 5};

// Kind 0: all zero, 1: a leaf, 2: an inner page, 3: the system page.
inline void make_page(uint8_t kind, char* page) {
  std::memset(page, 0, kPageBytes);
  std::string ops;
  if (kind % 4 == 1 || kind % 4 == 2) {
    TreePageInit init;
    init.page_id = kPage;
    init.index_id = IndexId{9};
    init.level = kind % 4 == 2 ? 1 : 0;
    init.right_sibling = 7;
    init.low_fence = "aa";
    init.high_key = "ac";
    redo::encode_init_tree(&ops, init);
    FUZZ_CHECK(redo::apply_ops(page, ops).ok());
    for (uint16_t i = 0; i < 20; ++i) {
      ops.clear();
      const std::string suffix = (i == 0 ? "a" : "b") + std::string(1, static_cast<char>(64 + i));
      redo::encode_insert(&ops, i, suffix, std::string(init.level == 1 ? 4 : 25 + i * 9, 'v'));
      FUZZ_CHECK(redo::apply_ops(page, ops).ok());
    }
  } else if (kind % 4 == 3) {
    redo::encode_init_plain(&ops, kPage, PageType::kSystem, IndexId{0}, 1);
    redo::encode_pending_delete_add(&ops, SpaceId{300});
    FUZZ_CHECK(redo::apply_ops(page, ops).ok());
  } else {
    return;
  }
  header_of(page)->llsn = 5;
}

// Overwrites single places: {offset u16, count u8, bytes}...
inline void patch_page(Input* input, char* page) {
  while (!input->empty()) {
    const size_t offset = input->u16() % kPageBytes;
    const std::string bytes = input->take_some(1 + input->u8() % 32);
    std::memcpy(page + offset, bytes.data(), std::min(bytes.size(), kPageBytes - offset));
  }
}

}  // namespace strata::fuzz
