// Splits: planning, carrying out, completing.
#pragma once

#include <string>

#include "btree/internal/descend.h"

namespace strata::btree_internal {

constexpr uint32_t kChildBytes = 4;
constexpr uint32_t kRoomForSplit = 8;  // pages a split may take on all levels before it looks again
constexpr uint32_t kRecordOverhead = sizeof(Slot) + 2;
constexpr uint32_t kTreeBodyBytes = kPageBytes - kPageHeaderBytes;

// The change a page has no room for: a new record at `slot`, or a new value for the one there.
struct Pending {
  Bytes key{};
  size_t value_bytes = 0;
  uint16_t slot = 0;
  bool replaces = false;
};

enum class Growth : uint8_t {
  kRandom,           // both pages about half full
  kAscending,        // the left page stays as full as possible
  kNearlyAscending,  // the same, with some room for records that come a little late
  kDescending,       // the right page stays as full as possible
};

// An insert among the last records / kLateFraction of the rightmost leaf comes late; it was meant
// for the end.
constexpr uint32_t kLateFraction = 16;

struct SplitPlan {
  uint16_t keep = 0;          // records that stay on the left page
  bool pending_left = false;  // where the pending record belongs
  std::string separator;      // high key of the left, low fence of the right page
};

// Where to split so that the pending record fits on its side. A plan always exists (README,
// arithmetic). With kAscending the left page stays as full as possible, with kDescending the right
// one.
SplitPlan plan_split(const TreePageView& view, const Pending& pending, Growth growth);

// Bytes that records [from, to) take in a page with this prefix.
uint32_t records_bytes(const TreePageView& view, uint32_t from, uint32_t to, uint32_t prefix_bytes);
// Appends records [from, to) of `view` to the tree page under construction at `page`.
void append_records(char* page, const TreePageView& view, uint16_t from, uint16_t to);
uint32_t common_prefix(Bytes a, Bytes b) noexcept;

// First mtr of a split (BT2): moves the right part of `left` to a new page and flags `left`. For an
// inner page `child` is stored along with the pending record, as its new separator. Fails only
// before it changes anything.
Status split_page(TreeContext* context, TreeId tree, Mtr* mtr, MtrPage* left,
                  const Pending& pending, Growth growth, uint32_t child);
// BT6: the root's content moves to a new page, the root becomes its parent.
Status grow_root(TreeContext* context, TreeId tree, Mtr* mtr, MtrPage* root);

// Second mtr of a split: makes the path to `key` on `level` free of kIncompleteSplit.
Status complete_split(TreeContext* context, TreeId tree, uint8_t level, const std::string& key);

// Descends for a writer: completes what it meets. `mtr` has begun to write and holds nothing.
StatusOr<MtrPage*> descend_to_write(TreeContext* context, TreeId tree, Mtr* mtr,
                                    const Target& target);

// Insert position of a leaf, remembered to recognise ascending runs.
void note_insert(SpaceManager* spaces, PageId leaf, uint16_t slot) noexcept;
bool continues_run(SpaceManager* spaces, PageId leaf, uint16_t slot) noexcept;

}  // namespace strata::btree_internal
