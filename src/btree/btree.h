// B-link tree over memcomparable keys, built on mini-transactions. Thread-safe; a TreeCursor
// belongs to one thread.
//
//   BT1  (K3) Every page carries index id, level, low fence, high key, right sibling. Readers check
//        them: key >= high key -> move right; anything else wrong -> restart from the root, whose
//        page number never changes. Reverse scans re-descend below the low fence.
//   BT2  (K4) A split is two mtrs: the first makes the right page and flags the left
//        kIncompleteSplit; the second re-descends from the root with no child latched, inserts the
//        separator and clears the flag. Whoever needs to write past a flag completes it first.
//        Nothing ever latches upwards.
//   BT3  Latches: top-down, left-to-right; a descent holds one latch at a time (the child is fixed
//        after the parent's latch is gone, inside an epoch).
//   BT4  (K5) Merging moves everything of a right sibling R into L (both children of one parent
//        latched parent, L, R; L unflagged), redirects L's right link and high key past R and
//        removes R's separator, in one mtr; R is flagged kUnlinked and retired.
//   BT5  Separators are the shortest keys that still separate (suffix truncation) at leaf level.
//   BT6  A root split moves the root's content to a new page; level grows by one.
//   BT10  A scan to the right that has passed two leaves reads those behind ahead, twice as many
//         each time half of them are used up; a short one costs no read that it does not need.
//   BT11  Who writes into a tree that was one leaf the last time latches its root exclusively at
//         once, on a hint that may be wrong.
// Values of leaf records start with a RecordHeader (page/record.h), which the tree does not
// interpret.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "minitxn/mtr.h"
#include "space/space_manager.h"

namespace strata {

struct TreeId {
  IndexId index_id;
  PageId root;
  auto operator<=>(const TreeId&) const noexcept = default;
};

// What every tree operation needs; owned by the kernel.
struct TreeContext {
  BufferPool* pool;
  Log* log;
  SpaceManager* spaces;
};

// Allocates and initialises an empty root inside `mtr` (ensure_room was called).
StatusOr<TreeId> create_tree(TreeContext* context, Mtr* mtr, SpaceId space, IndexId index_id);

// Position in a leaf, latched through an Mtr. States: unset, on a record, or past the end.
class TreeCursor {
 public:
  TreeCursor(TreeContext* context, TreeId tree, Mtr* mtr) noexcept;

  // Positions at the first record with key >= `key`, leaf latched in `mode` in the mtr. `key` empty
  // = first record. If the record is in a right sibling the cursor moves there only on
  // next()/settle(). With kExclusive an incomplete split met on the way is completed first (own
  // mtrs; the cursor's mtr must hold nothing and be unmodified).
  Status seek(Bytes key, LatchMode mode);
  // The same for a key that `leaf` had a moment ago: that page is looked at first. By BT1 it does
  // no harm when the guess is wrong.
  Status seek_near(PageId leaf, Bytes key, LatchMode mode);
  // Positions at the last record with key < `key` (`infinite`: last record of the tree). Shared
  // latch.
  Status seek_before(Bytes key, bool infinite);
  // If the slot is past the leaf's last record, moves right to the first record there (coupling:
  // the right page is latched before the left is released; an exclusive or modified left page stays
  // latched in the mtr when `keep_left`). kOk with at_end() at the end of the tree.
  Status settle(bool keep_left = false);
  Status next(bool keep_left = false);
  Status prev();  // shared mode only; re-descends when it leaves the leaf

  [[nodiscard]] bool on_record() const noexcept {  // a record is under the cursor
    return leaf_ != nullptr && !at_end_ && slot_ < leaf_->view().slot_count();
  }
  [[nodiscard]] bool at_end() const noexcept { return at_end_; }
  [[nodiscard]] bool equals(Bytes key) const noexcept;  // on_record() and its key is `key`
  void copy_key(std::string* out) const;
  // One record on (or back) inside the leaf; false, standing where it was, at the leaf's last (or
  // first) one. On a record only.
  bool step_in_leaf(bool forward) noexcept {
    if (forward ? slot_ + 1 >= leaf_->view().slot_count() : slot_ == 0) return false;
    slot_ = static_cast<uint16_t>(forward ? slot_ + 1 : slot_ - 1);
    return true;
  }
  // Goes on to `key` in the latched leaf, modified or not; false: there is no such record behind
  // the cursor on this leaf, and it stands on the first with a greater key, or behind the last.
  bool seek_on_in_leaf(Bytes key) noexcept;
  // Valid while latched and unmodified.
  [[nodiscard]] Bytes value() const noexcept { return leaf_->view().value(slot_); }
  [[nodiscard]] MtrPage* leaf() const noexcept { return leaf_; }
  [[nodiscard]] uint16_t slot() const noexcept { return slot_; }
  // True when `key` belongs on the latched leaf.
  [[nodiscard]] bool leaf_covers(Bytes key) const noexcept;

  // --- changes; leaf latched exclusively, mtr can_write(); all cannot fail after the fits check
  // ---
  [[nodiscard]] bool fits_insert(Bytes key, size_t value_bytes) const noexcept;
  [[nodiscard]] bool fits_replace(size_t value_bytes) const noexcept;
  void insert(Bytes key, Bytes value);  // at slot(), which seek() found for this key
  // From the record just inserted to where the next key of a run belongs.
  void step_behind() noexcept { ++slot_; }
  void replace(Bytes value);
  void patch(uint16_t offset, Bytes bytes);
  void erase();  // the cursor then stands on the next slot

  // Releases the leaf's latch and remembers (page, llsn, slot, key); the mtr must be unmodified.
  void save();
  // Latches again in `mode`; by page when its llsn is unchanged, else by key. *same = still on the
  // very record; otherwise the cursor stands at the first record with a greater key (the saved key
  // is gone).
  Status restore(LatchMode mode, bool* same);
  [[nodiscard]] Bytes saved_key() const noexcept { return saved_key_; }
  // Unlatches (a modified leaf stays latched until its mtr is published) and forgets. Call it after
  // the mtr was published or abandoned and before the mtr is used for other pages.
  void reset() noexcept;

 private:
  void forget_leaf() noexcept;
  MtrPage* fix_leaf_of(PageId leaf, Bytes key, LatchMode mode);
  void stand_on(MtrPage* leaf, uint16_t slot) noexcept;
  void note_passed_leaf() noexcept;
  TreeContext* context_;
  TreeId tree_;
  Mtr* mtr_;
  MtrPage* leaf_ = nullptr;
  PageId leaf_id_;
  uint16_t slot_ = 0;
  struct Run {            // of leaves to the right
    uint16_t passed = 0;  // in a row; counted up to where it matters
    uint16_t ahead = 0;   // behind this one, that have been asked for
    uint16_t window = 0;  // leaves asked for the last time
  } run_;
  bool at_end_ = false;
  enum class Saved : uint8_t { kNothing, kRecord, kGap, kEnd } saved_ = Saved::kNothing;
  PageId saved_page_;
  uint64_t saved_llsn_ = 0;
  uint16_t saved_slot_ = 0;
  std::string saved_key_;
  std::string scratch_;
};

// Splits the leaf that covers `key` so that a record of value_bytes fits. Call with no latch held;
// then seek again (someone else may have used the room: loop). `urgent`: as Mtr::begin_write().
// Errors: kResourceExhausted, kNotFound (space).
Status make_room(TreeContext* context, TreeId tree, Bytes key, size_t value_bytes,
                 bool urgent = false);
// Called after records were erased from the leaf that covers `key`: merges underfull pages,
// recursively upwards. Best effort; no latch held.
Status try_merge(TreeContext* context, TreeId tree, Bytes key);

// Full verification (CHECK TABLE): order, fences, links, levels, parent/child agreement,
// allocation. Writers may be active. visit (optional) is called with every leaf record, in order,
// no latch held. An error status means that the check itself could not go on.
struct TreeCheck {
  uint64_t incomplete_splits = 0;  // not a problem: the next writer completes them
  uint64_t records = 0;
  uint64_t leaf_pages = 0;
  uint64_t inner_pages = 0;
  uint32_t height = 0;
  std::vector<std::string> problems;  // empty = fine
};
Status check_tree(TreeContext* context, TreeId tree,
                  const std::function<void(Bytes key, Bytes value)>& visit, TreeCheck* out);

// Estimated number of records in [low, high) (empty high = infinite): dives along both bounds,
// exact when few leaves lie in between; of many, up to 32 are read.
StatusOr<uint64_t> estimate_range(TreeContext* context, TreeId tree, Bytes low, Bytes high,
                                  bool high_infinite);
struct LeafSample {
  uint64_t leaves = 0;   // of the tree, estimated
  uint32_t visited = 0;  // different ones whose records were visited
};
// Sampling for statistics: calls visit with the records of up to `pages` leaf pages picked at
// random (seeded), leaf after leaf; `leaf` counts them.
using VisitSample = std::function<void(uint32_t leaf, Bytes key, Bytes value)>;
Status sample_leaves(TreeContext* context, TreeId tree, uint32_t pages, uint64_t seed,
                     const VisitSample& visit, LeafSample* out);

}  // namespace strata
