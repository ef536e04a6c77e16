// A leaf filled in random order, with the redo that did it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "micro.h"
#include "page/record.h"
#include "redo/redo.h"

namespace strata::micro {

constexpr PageId kPage{300, 7};
constexpr uint64_t kLowKey = 0x1000;
constexpr uint64_t kKeys = 0x1000;
constexpr size_t kPayloadBytes = 100;

inline void init_leaf(char* page) {
  std::string ops;
  redo::encode_init_tree(&ops, TreePageInit{.page_id = kPage,
                                            .index_id = IndexId{1},
                                            .low_fence = key_of(kLowKey),
                                            .high_key = key_of(kLowKey + kKeys)});
  must(redo::apply_ops(page, ops));
}

class FullPage {
 public:
  explicit FullPage(Rng* rng) : page_(std::make_unique<PageBytes>()) {
    init_leaf(page_->bytes);
    const std::string value(kRecordHeaderBytes + kPayloadBytes, 'v');
    const TreePageView view(page_->bytes);
    for (;;) {
      const std::string key = key_of(kLowKey + rng->below(kKeys));
      if (!view.fits_insert(key, value.size())) return;
      bool equal = false;
      const uint16_t slot = view.lower_bound(key, &equal);
      if (equal) continue;
      std::string ops;
      redo::encode_insert(&ops, slot, Bytes(key).substr(view.prefix().size()), value);
      must(redo::apply_ops(page_->bytes, ops));
      sections_.push_back(std::move(ops));
    }
  }
  [[nodiscard]] const char* page() const { return page_->bytes; }
  [[nodiscard]] char* mutable_page() { return page_->bytes; }
  [[nodiscard]] const std::vector<std::string>& sections() const { return sections_; }

 private:
  std::unique_ptr<PageBytes> page_;
  std::vector<std::string> sections_;
};

}  // namespace strata::micro
