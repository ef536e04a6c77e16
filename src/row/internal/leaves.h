// Remembers leaves that erasing has emptied, to merge each of them once, later, without latches.
#pragma once

#include <string>
#include <unordered_map>

#include "row/row_store.h"

namespace strata::row_internal {

class LeafWatch {
 public:
  explicit LeafWatch(RowContext* context) noexcept : context_(context) {}
  // After an erase; the leaf is still latched.
  void note(TreeId tree, Bytes key, const MtrPage* leaf);
  // Merges once enough leaves are noted; cheap otherwise. As merge().
  Status merge_if_many();
  // Merges what was noted; a dropped space is no error. No latch held. Blocks.
  Status merge();
  void forget() noexcept { sparse_.clear(); }

 private:
  struct Sparse {
    TreeId tree;
    std::string key;
  };
  RowContext* const context_;
  std::unordered_map<PageId, Sparse> sparse_;
};

}  // namespace strata::row_internal
