// The way from the root to a page. Used by cursors, splits, merges, checks and estimates.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/rng.h"
#include "btree/btree.h"

namespace strata::btree_internal {

enum class Bound : uint8_t {
  kAt,      // the page that covers key
  kBefore,  // the page that covers the keys just below key
  kLast,    // the rightmost page
  kRandom,  // any page
  kWithin,  // any page below one child of an inner page
};

// What a descent saw on each level it passed, for estimates.
struct Path {
  static constexpr uint32_t kLevelsMax = 32;
  struct Step {
    uint16_t slot;   // child taken
    uint16_t count;  // children
    bool last;       // the rightmost page of its level
  };
  uint32_t height = 0;                   // levels of the tree
  std::array<Step, kLevelsMax> steps{};  // by level; [0] unused
};

// Of the page at `level` on the way to the target's key, or on the way to the rightmost leaf, the
// child at `slot`, or the last one if it has fewer.
struct Child {
  uint32_t level = 0;
  uint32_t slot = 0;
  bool rightmost = false;
};

struct Target {
  Bound bound = Bound::kAt;
  Bytes key{};
  uint8_t level = 0;
  LatchMode mode = LatchMode::kShared;
  Path* path = nullptr;
  Rng* rng = nullptr;  // kRandom, kWithin
  Child within{};      // kWithin
};

// A page with kIncompleteSplit that stands in the way of a writer.
struct Flagged {
  bool found = false;
  uint8_t level = 0;
  std::string low_fence;
};

// Latches the target page in `mtr` and nothing else (BT3). Null: the tree has no such level.
// With `flagged` a descent stops at the first page with an incomplete split, latches nothing, sets
// flagged->found and returns null; without it, flags do not matter.
// Errors: kNotFound (space dropped), kDataLoss (the tree does not lead anywhere), those of fix().
StatusOr<MtrPage*> descend(TreeContext* context, TreeId tree, Mtr* mtr, const Target& target,
                           Flagged* flagged);

// The leaf that covers `key` and those to its right, up to `count`, as inner pages list them; fewer
// where one of these is not at hand. Waits for nothing: may be called with a leaf latched. Leaves
// may have been split or merged since.
uint32_t leaves_from(TreeContext* context, TreeId tree, Bytes key, uint32_t count, PageId* leaves);

// Whether `page` is a live page of this tree and level (BT1).
bool is_tree_page_of(const char* page, TreeId tree, uint32_t level) noexcept;

inline PageId sibling_id(TreeId tree, uint32_t number) noexcept {
  return PageId{tree.root.space, number};
}
inline SpaceId space_of(TreeId tree) noexcept { return SpaceId{tree.root.space}; }
inline bool is_root(TreeId tree, const MtrPage* page) noexcept { return page->id() == tree.root; }

// "index 7, page 256:12"
std::string describe(TreeId tree, PageId page);

// Limits retries: sleeps a little once they pile up; false when it is time to give up.
class Retries {
 public:
  bool again() noexcept;

 private:
  uint32_t count_ = 0;
};
// kDataLoss for an operation that found no consistent tree.
Status gave_up(TreeId tree, PageId page, const char* operation);

}  // namespace strata::btree_internal
