// Merging underfull pages, and shrinking the root (BT4).
#include <cstring>

#include "base/assert.h"
#include "base/fault.h"
#include "btree/internal/split.h"

namespace strata {
namespace {

using namespace btree_internal;

constexpr uint32_t kUnderfullBytes = kTreeBodyBytes / 4;
constexpr uint32_t kMergedBytesMax = kTreeBodyBytes / 4 * 3;

enum class Merge : uint8_t {
  kNothing,
  kMerged,
  kOnlyChild,  // no sibling under the same parent: the parent has to be merged first
  kIsRoot,
};

// A page is worth merging when little is in it; an inner page with one child also because that
// child has no sibling to merge with.
bool is_underfull(const TreePageView& view) noexcept {
  return view.used_bytes() < kUnderfullBytes || (!view.is_leaf() && view.slot_count() == 1);
}

bool fit_together(const TreePageView& left, const TreePageView& right) {
  const bool infinite = right.has_flag(kHighIsInfinity);
  const Bytes high = infinite ? Bytes() : right.high_key();
  const uint32_t prefix = infinite ? 0 : common_prefix(left.low_fence(), high);
  const uint64_t bytes = left.low_fence().size() + high.size() +
                         records_bytes(left, 0, left.slot_count(), prefix) +
                         records_bytes(right, 0, right.slot_count(), prefix);
  // What holds nothing, or a single child, must go if that is possible at all.
  const uint32_t lone = left.is_leaf() ? 0 : 1;
  const bool must = left.slot_count() <= lone || right.slot_count() <= lone;
  return bytes <= (must ? kTreeBodyBytes : kMergedBytesMax);
}

// Brings the pages a merge at `level` will latch into the pool, so that no I/O happens under the
// parent's exclusive latch. False: nothing to merge there.
StatusOr<bool> look_before_merge(TreeContext* context, TreeId tree, uint8_t level, Bytes key) {
  {
    Mtr mtr(context->pool, context->log);
    STRATA_ASSIGN_OR_RETURN(MtrPage * page,
                            descend(context, tree, &mtr, {.key = key, .level = level}, nullptr));
    if (page == nullptr || !is_underfull(page->view())) return false;
    if (is_root(tree, page)) return !page->view().is_leaf() && page->view().slot_count() == 1;
  }
  uint32_t numbers[2] = {kNoPage, kNoPage};
  {
    Mtr mtr(context->pool, context->log);
    STRATA_ASSIGN_OR_RETURN(
        MtrPage * parent, descend(context, tree, &mtr,
                                  {.key = key, .level = static_cast<uint8_t>(level + 1)}, nullptr));
    if (parent == nullptr) return true;
    const TreePageView view = parent->view();
    const uint16_t slot = view.child_slot(key);
    if (slot + 1 < view.slot_count()) numbers[0] = view.child(static_cast<uint16_t>(slot + 1));
    if (slot > 0) numbers[1] = view.child(static_cast<uint16_t>(slot - 1));
  }
  for (const uint32_t number : numbers) {
    if (number == kNoPage) continue;
    (void)context->pool->fix(sibling_id(tree, number), LatchMode::kShared);  // only to have it read
  }
  return true;
}

// The merge itself; everything is latched exclusively (BT4).
Status merge_pages(TreeContext* context, TreeId tree, Mtr* mtr, MtrPage* parent, uint16_t slot,
                   MtrPage* left, MtrPage* right) {
  const TreePageView lv = left->view();
  const TreePageView rv = right->view();
  alignas(8) char merged[kPageBytes];
  init_tree_page(merged, {.page_id = left->id(),
                          .index_id = tree.index_id,
                          .level = lv.header()->level,
                          .right_sibling = rv.header()->right_sibling,
                          .flags = static_cast<uint16_t>(rv.header()->flags & kHighIsInfinity),
                          .low_fence = lv.low_fence(),
                          .high_key = rv.high_key()});
  append_records(merged, lv, 0, lv.slot_count());
  append_records(merged, rv, 0, rv.slot_count());
  STRATA_RETURN_IF_ERROR(context->spaces->retire(mtr, right));  // the last thing that can fail
  mtr->image(left, merged);
  mtr->erase(parent, static_cast<uint16_t>(slot + 1));
  mtr->set_flags(right, static_cast<uint16_t>(rv.header()->flags | kUnlinked));
  return ok_status();
}

// Latches children `slot` and `slot` + 1 of the latched parent and merges them if that is possible.
// A flag that is in the way is reported.
StatusOr<bool> merge_pair(TreeContext* context, TreeId tree, Mtr* mtr, MtrPage* parent,
                          uint16_t slot, Flagged* flagged) {
  const TreePageView above = parent->view();
  const uint8_t level = static_cast<uint8_t>(above.header()->level - 1);
  MtrPage* pages[2];
  for (uint16_t i = 0; i < 2; ++i) {
    const PageId id = sibling_id(tree, above.child(static_cast<uint16_t>(slot + i)));
    STRATA_ASSIGN_OR_RETURN(pages[i], mtr->fix(id, LatchMode::kExclusive));
    if (!is_tree_page_of(pages[i]->page(), tree, level))
      return error_corruption(describe(tree, id) + " is not the child its parent says");
    if (!pages[i]->view().has_flag(kIncompleteSplit)) continue;
    flagged->found = true;
    flagged->level = level;
    flagged->low_fence = pages[i]->view().low_fence();
    return false;
  }
  const TreePageView left = pages[0]->view();
  const TreePageView right = pages[1]->view();
  if (left.header()->right_sibling != pages[1]->id().number || left.high_key() != right.low_fence())
    return error_corruption(describe(tree, pages[0]->id()) + " is not linked to its right sibling");
  if ((!is_underfull(left) && !is_underfull(right)) || !fit_together(left, right)) {
    mtr->release(pages[1]);
    mtr->release(pages[0]);
    return false;
  }
  const PageId gone = pages[1]->id();
  STRATA_RETURN_IF_ERROR(merge_pages(context, tree, mtr, parent, slot, pages[0], pages[1]));
  mtr->publish();
  if (fault(FaultPoint::merge_after_unlink)) return error_internal("fault: merge_after_unlink");
  context->spaces->note_retired(gone);
  return true;
}

StatusOr<Merge> merge_once(TreeContext* context, TreeId tree, uint8_t level, Bytes key) {
  for (Retries retries; retries.again();) {
    Mtr mtr(context->pool, context->log);
    STRATA_RETURN_IF_ERROR(mtr.begin_write_to_free());  // it frees room
    STRATA_ASSIGN_OR_RETURN(
        MtrPage * parent,
        descend_to_write(
            context, tree, &mtr,
            {.key = key, .level = static_cast<uint8_t>(level + 1), .mode = LatchMode::kExclusive}));
    if (parent == nullptr) return Merge::kIsRoot;
    const TreePageView above = parent->view();
    if (above.slot_count() == 1) return Merge::kOnlyChild;
    const uint16_t slot = above.child_slot(key);
    Flagged flagged;
    bool merged = false;
    if (slot + 1 < above.slot_count()) {
      STRATA_ASSIGN_OR_RETURN(merged, merge_pair(context, tree, &mtr, parent, slot, &flagged));
    }
    if (!merged && !flagged.found && slot > 0) {
      STRATA_ASSIGN_OR_RETURN(merged, merge_pair(context, tree, &mtr, parent,
                                                 static_cast<uint16_t>(slot - 1), &flagged));
    }
    if (merged) return Merge::kMerged;
    if (!flagged.found) return Merge::kNothing;
    mtr.abandon();
    STRATA_RETURN_IF_ERROR(complete_split(context, tree, flagged.level, flagged.low_fence));
  }
  return Merge::kNothing;
}

// A root with one child takes over the child's content. False: there is nothing to shrink.
StatusOr<bool> collapse_root(TreeContext* context, TreeId tree) {
  const SpaceManager::EpochGuard epoch(context->spaces);
  if (!context->spaces->is_live(space_of(tree))) return error_not_found();
  Mtr mtr(context->pool, context->log);
  STRATA_RETURN_IF_ERROR(mtr.begin_write_to_free());  // it frees room
  STRATA_ASSIGN_OR_RETURN(MtrPage * root, mtr.fix(tree.root, LatchMode::kExclusive));
  const TreePageView above = root->view();
  if (!is_tree_page_of(root->page(), tree, above.header()->level))
    return error_corruption(describe(tree, tree.root) + " is not the root");
  if (above.is_leaf() || above.slot_count() != 1) return false;
  STRATA_ASSIGN_OR_RETURN(MtrPage * child,
                          mtr.fix(sibling_id(tree, above.child(0)), LatchMode::kExclusive));
  const TreePageView view = child->view();
  if (!is_tree_page_of(child->page(), tree, above.header()->level - 1u))
    return error_corruption(describe(tree, child->id()) + " is not the child of the root");
  if (view.has_flag(kIncompleteSplit)) return false;
  if (!view.low_fence().empty() || !view.has_flag(kHighIsInfinity))
    return error_corruption(describe(tree, child->id()) + " is an only child with bounds");
  alignas(8) char copy[kPageBytes];
  std::memcpy(copy, child->page(), kPageBytes);
  normalise_tree_page(copy);
  const PageId gone = child->id();
  STRATA_RETURN_IF_ERROR(context->spaces->retire(&mtr, child));
  mtr.image(root, copy);
  mtr.set_flags(child, static_cast<uint16_t>(view.header()->flags | kUnlinked));
  mtr.publish();
  if (fault(FaultPoint::merge_after_unlink)) return error_internal("fault: merge_after_unlink");
  context->spaces->note_retired(gone);
  return true;
}

// Merges the page of `level` on the way to `key`; true if the tree became smaller.
StatusOr<bool> reduce(TreeContext* context, TreeId tree, uint8_t level, Bytes key) {
  for (bool shrunk = false;; shrunk = true) {
    STRATA_ASSIGN_OR_RETURN(const bool worth, look_before_merge(context, tree, level, key));
    if (!worth) return shrunk;
    STRATA_ASSIGN_OR_RETURN(const Merge merge, merge_once(context, tree, level, key));
    switch (merge) {
      case Merge::kNothing:
        return shrunk;
      case Merge::kMerged:
        STRATA_RETURN_IF_ERROR(
            reduce(context, tree, static_cast<uint8_t>(level + 1), key).status());
        return true;
      case Merge::kIsRoot: {
        STRATA_ASSIGN_OR_RETURN(const bool collapsed, collapse_root(context, tree));
        return collapsed || shrunk;
      }
      case Merge::kOnlyChild: {
        STRATA_ASSIGN_OR_RETURN(const bool above,
                                reduce(context, tree, static_cast<uint8_t>(level + 1), key));
        if (!above) return shrunk;
        break;  // there is a sibling now, or this level is the root's
      }
    }
  }
}

}  // namespace

Status try_merge(TreeContext* context, TreeId tree, Bytes key) {
  const Status status = reduce(context, tree, 0, key).status();
  return is_no_space(status) ? ok_status() : status;  // the log or the disk is full: another time
}

}  // namespace strata
