// Splits of leaves and inner pages, growth of the root, completion (BT2, BT6).
#include "btree/internal/split.h"

#include <cstring>

#include "base/assert.h"
#include "base/fault.h"

namespace strata {
namespace btree_internal {
namespace {

Growth inner_growth(const TreePageView& view, uint16_t slot) noexcept {
  const bool at_end = slot == view.slot_count() && view.has_flag(kHighIsInfinity);
  return at_end ? Growth::kAscending : Growth::kRandom;
}

// Ascending runs are what fills tables: one thread's, at the end of the tree or anywhere inside,
// and those of several threads at the end of the tree, who overtake one another.
Growth leaf_growth(SpaceManager* spaces, const MtrPage* leaf, uint16_t slot) noexcept {
  const TreePageView view = leaf->view();
  const uint32_t count = view.slot_count();
  if (continues_run(spaces, leaf->id(), slot)) return Growth::kAscending;
  if (view.has_flag(kHighIsInfinity) && slot + count / kLateFraction >= count)
    return Growth::kNearlyAscending;
  if (slot == 0 && view.low_fence().empty()) return Growth::kDescending;
  return Growth::kRandom;
}

Bytes child_value(char* raw, uint32_t child) noexcept {
  store_u32(raw, child);
  return Bytes(raw, kChildBytes);
}

// One attempt of the second mtr of a split; the parent is latched exclusively.
enum class Completion : uint8_t { kDone, kAgain, kNeedsRoom };

StatusOr<Completion> complete_once(TreeContext* context, TreeId tree, Mtr* mtr, MtrPage* parent,
                                   const std::string& key, bool room) {
  const TreePageView above = parent->view();
  const uint16_t slot = above.child_slot(key);
  const uint8_t level = static_cast<uint8_t>(above.header()->level - 1);
  STRATA_ASSIGN_OR_RETURN(MtrPage * child,
                          mtr->fix(sibling_id(tree, above.child(slot)), LatchMode::kExclusive));
  const TreePageView view = child->view();
  if (!is_tree_page_of(child->page(), tree, level) || !view.covers_left(key))
    return error_corruption(describe(tree, child->id()) + " is not the child its parent " +
                            describe(tree, parent->id()) + " says");
  if (!view.has_flag(kIncompleteSplit)) {
    if (view.covers_right(key)) return Completion::kDone;
    return error_corruption(describe(tree, child->id()) +
                            " ends before its parent's next separator");
  }
  const std::string separator(view.high_key());
  const uint32_t right = view.header()->right_sibling;
  const auto flags = static_cast<uint16_t>(view.header()->flags & ~kIncompleteSplit);
  const Completion next = key < separator ? Completion::kDone : Completion::kAgain;
  const auto at = static_cast<uint16_t>(slot + 1);
  if (at < above.slot_count() && above.compare_key(at, separator) <= 0)
    return error_corruption(describe(tree, parent->id()) +
                            " has the separator of a split that is not complete");
  if (above.fits_insert(separator, kChildBytes)) {
    char raw[kChildBytes];
    mtr->insert(parent, at, separator, child_value(raw, right));
    mtr->set_flags(child, flags);
    mtr->publish();
    return next;
  }
  if (!room) return Completion::kNeedsRoom;
  if (above.has_flag(kIncompleteSplit)) return error_no_space();  // see descend_to_write()
  if (is_root(tree, parent)) {
    mtr->release(child);
    STRATA_RETURN_IF_ERROR(grow_root(context, tree, mtr, parent));
    mtr->publish();
    return Completion::kAgain;
  }
  // The parent's split takes the separator along, so it makes progress whatever the keys' lengths.
  const std::string parent_low(above.low_fence());
  const uint8_t parent_level = above.header()->level;
  const Pending pending{.key = separator, .value_bytes = kChildBytes, .slot = at};
  STRATA_RETURN_IF_ERROR(
      split_page(context, tree, mtr, parent, pending, inner_growth(above, at), right));
  mtr->set_flags(child, flags);
  mtr->publish();
  if (fault(FaultPoint::split_between_mtrs)) return error_internal("fault: split_between_mtrs");
  STRATA_RETURN_IF_ERROR(complete_split(context, tree, parent_level, parent_low));
  return next;
}

}  // namespace

Status split_page(TreeContext* context, TreeId tree, Mtr* mtr, MtrPage* left,
                  const Pending& pending, Growth growth, uint32_t child) {
  const TreePageView view = left->view();
  STRATA_ASSERT(!view.has_flag(kIncompleteSplit));
  const SplitPlan plan = plan_split(view, pending, growth);
  alignas(8) char right[kPageBytes];
  init_tree_page(right, {.page_id = PageId{tree.root.space, 0},
                         .index_id = tree.index_id,
                         .level = view.header()->level,
                         .right_sibling = view.header()->right_sibling,
                         .flags = static_cast<uint16_t>(view.header()->flags & kHighIsInfinity),
                         .low_fence = plan.separator,
                         .high_key = view.high_key()});
  char raw[kChildBytes];
  const Bytes value = child_value(raw, child);
  const bool store = !view.is_leaf();
  if (store && !plan.pending_left) {
    append_records(right, view, plan.keep, pending.slot);
    insert_record(right, header_of(right)->slot_count,
                  pending.key.substr(header_of(right)->prefix_bytes), value);
    append_records(right, view, pending.slot, view.slot_count());
  } else {
    append_records(right, view, plan.keep, view.slot_count());
  }
  STRATA_ASSIGN_OR_RETURN(const uint32_t number, context->spaces->allocate(mtr, space_of(tree)));
  // Cannot fail any more: allocate() has fixed the page.
  StatusOr<MtrPage*> right_page = mtr->fix_new(sibling_id(tree, number));
  STRATA_ASSERT(right_page.ok());
  mtr->image(*right_page, right);
  mtr->truncate_right(left, plan.keep, plan.separator, number, kIncompleteSplit);
  if (store && plan.pending_left) mtr->insert(left, pending.slot, pending.key, value);
  return ok_status();
}

Status grow_root(TreeContext* context, TreeId tree, Mtr* mtr, MtrPage* root) {
  alignas(8) char copy[kPageBytes];
  std::memcpy(copy, root->page(), kPageBytes);
  normalise_tree_page(copy);
  STRATA_ASSIGN_OR_RETURN(const uint32_t number, context->spaces->allocate(mtr, space_of(tree)));
  StatusOr<MtrPage*> child = mtr->fix_new(sibling_id(tree, number));
  STRATA_ASSERT(child.ok());
  mtr->image(*child, copy);
  mtr->init_tree(root, {.page_id = root->id(),
                        .index_id = tree.index_id,
                        .level = static_cast<uint8_t>(header_of(copy)->level + 1),
                        .flags = kHighIsInfinity});
  char raw[kChildBytes];
  mtr->insert(root, 0, Bytes(), child_value(raw, number));
  return ok_status();
}

Status complete_split(TreeContext* context, TreeId tree, uint8_t level, const std::string& key) {
  bool room = false;
  for (Retries retries; retries.again();) {
    if (room) STRATA_RETURN_IF_ERROR(context->spaces->ensure_room(space_of(tree), kRoomForSplit));
    Mtr mtr(context->pool, context->log);
    // Urgent: a rollback may be behind this, and it is little.
    STRATA_RETURN_IF_ERROR(mtr.begin_write(Mtr::kDefaultLogBytes, /*urgent=*/true));
    STRATA_ASSIGN_OR_RETURN(
        MtrPage * parent,
        descend_to_write(
            context, tree, &mtr,
            {.key = key, .level = static_cast<uint8_t>(level + 1), .mode = LatchMode::kExclusive}));
    if (parent == nullptr) return ok_status();  // that level is the root's, which has no sibling
    StatusOr<Completion> completion = complete_once(context, tree, &mtr, parent, key, room);
    STRATA_RETURN_IF_ERROR(completion.status());
    if (*completion == Completion::kDone) return ok_status();
    if (*completion == Completion::kNeedsRoom) room = true;
  }
  return gave_up(tree, tree.root, "completing a split");
}

StatusOr<MtrPage*> descend_to_write(TreeContext* context, TreeId tree, Mtr* mtr,
                                    const Target& target) {
  const uint32_t log_bytes = mtr->reserved_bytes();
  for (Retries retries; retries.again();) {
    Flagged flagged;
    STRATA_ASSIGN_OR_RETURN(MtrPage * page, descend(context, tree, mtr, target, &flagged));
    if (!flagged.found) return page;
    // No log capacity is held while more of it is waited for.
    mtr->abandon();
    const Status completed = complete_split(context, tree, flagged.level, flagged.low_fence);
    if (log_bytes != 0) STRATA_RETURN_IF_ERROR(mtr->begin_write(log_bytes, /*urgent=*/true));
    if (is_no_space(completed)) {
      // The disk is full. Everything but another split of that page works without the parent's
      // link.
      return descend(context, tree, mtr, target, nullptr);
    }
    STRATA_RETURN_IF_ERROR(completed);
  }
  return gave_up(tree, tree.root, "a write");
}

}  // namespace btree_internal

using namespace btree_internal;

Status make_room(TreeContext* context, TreeId tree, Bytes key, size_t value_bytes, bool urgent) {
  if (key.size() > kMaxKeyBytes || key.size() + value_bytes > kMaxRecordBytes)
    return error_invalid_argument("record too large for a tree page");
  for (Retries retries; retries.again();) {
    STRATA_RETURN_IF_ERROR(context->spaces->ensure_room(space_of(tree), kRoomForSplit));
    Mtr mtr(context->pool, context->log);
    STRATA_RETURN_IF_ERROR(mtr.begin_write(Mtr::kDefaultLogBytes, urgent));
    STRATA_ASSIGN_OR_RETURN(
        MtrPage * leaf,
        descend_to_write(context, tree, &mtr, {.key = key, .mode = LatchMode::kExclusive}));
    const TreePageView view = leaf->view();
    Pending pending{.key = key, .value_bytes = value_bytes};
    pending.slot = view.lower_bound(key, &pending.replaces);
    if (pending.replaces ? view.fits_replace(pending.slot, value_bytes)
                         : view.fits_insert(key, value_bytes))
      return ok_status();
    if (is_root(tree, leaf)) {
      STRATA_RETURN_IF_ERROR(grow_root(context, tree, &mtr, leaf));
      mtr.publish();
      continue;
    }
    if (view.has_flag(kIncompleteSplit)) return error_no_space();  // see descend_to_write()
    const Growth growth =
        pending.replaces ? Growth::kRandom : leaf_growth(context->spaces, leaf, pending.slot);
    const std::string low(view.low_fence());
    STRATA_RETURN_IF_ERROR(split_page(context, tree, &mtr, leaf, pending, growth, kNoPage));
    mtr.publish();
    if (fault(FaultPoint::split_between_mtrs)) return error_internal("fault: split_between_mtrs");
    // The room is there already. If the disk is full a later writer links the new page.
    const Status completed = complete_split(context, tree, 0, low);
    return is_no_space(completed) ? ok_status() : completed;
  }
  return gave_up(tree, tree.root, "a split");
}

}  // namespace strata
