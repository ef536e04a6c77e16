// TreeCursor: positions in leaves.
#include <algorithm>
#include <array>
#include <string>

#include "base/assert.h"
#include "btree/btree.h"
#include "btree/internal/split.h"

namespace strata {

using namespace btree_internal;

namespace {
constexpr uint16_t kSequentialLeaves = 2;  // from here on leaves are read ahead (BT10)
constexpr uint32_t kFirstWindow = 4;
constexpr uint32_t kWindowMax = 64;
}  // namespace

StatusOr<TreeId> create_tree(TreeContext* context, Mtr* mtr, SpaceId space, IndexId index_id) {
  STRATA_ASSIGN_OR_RETURN(const uint32_t number, context->spaces->allocate(mtr, space));
  const PageId root{space.value, number};
  StatusOr<MtrPage*> page = mtr->fix_new(root);
  STRATA_ASSERT(page.ok());  // allocate() has fixed it
  mtr->init_tree(*page, {.page_id = root, .index_id = index_id, .flags = kHighIsInfinity});
  return TreeId{index_id, root};
}

TreeCursor::TreeCursor(TreeContext* context, TreeId tree, Mtr* mtr) noexcept
    : context_(context), tree_(tree), mtr_(mtr) {}

// --- position ---

void TreeCursor::forget_leaf() noexcept {
  // The mtr may have been published since; then it does not hold the leaf any more.
  if (leaf_ != nullptr && mtr_->held(leaf_id_) == leaf_ && !leaf_->modified) mtr_->release(leaf_);
  leaf_ = nullptr;
  at_end_ = false;
}

void TreeCursor::stand_on(MtrPage* leaf, uint16_t slot) noexcept {
  leaf_ = leaf;
  leaf_id_ = leaf->id();
  slot_ = slot;
  at_end_ = false;
}

Status TreeCursor::seek(Bytes key, LatchMode mode) {
  forget_leaf();
  STRATA_DASSERT(mode == LatchMode::kShared || mtr_->page_count() == 0);  // BT3
  run_ = {};
  const Target target{.key = key, .mode = mode};
  STRATA_ASSIGN_OR_RETURN(MtrPage * leaf, mode == LatchMode::kExclusive
                                              ? descend_to_write(context_, tree_, mtr_, target)
                                              : descend(context_, tree_, mtr_, target, nullptr));
  bool equal = false;
  stand_on(leaf, leaf->view().lower_bound(key, &equal));
  return ok_status();
}

Status TreeCursor::seek_near(PageId leaf, Bytes key, LatchMode mode) {
  forget_leaf();
  STRATA_DASSERT(mode == LatchMode::kShared || mtr_->page_count() == 0);  // BT3
  MtrPage* page = fix_leaf_of(leaf, key, mode);
  if (page == nullptr) return seek(key, mode);
  run_ = {};
  bool equal = false;
  stand_on(page, page->view().lower_bound(key, &equal));
  return ok_status();
}

// Null: it is not (or not any more) the leaf that covers `key`, or has a split to complete first,
// or cannot be had; the way from the root says what is wrong then.
MtrPage* TreeCursor::fix_leaf_of(PageId leaf, Bytes key, LatchMode mode) {
  const SpaceManager::EpochGuard epoch(context_->spaces);
  if (leaf.space != tree_.root.space || !context_->spaces->is_live(space_of(tree_))) return nullptr;
  const StatusOr<MtrPage*> page = mtr_->fix(leaf, mode);
  if (!page.ok()) return nullptr;
  if (is_tree_page_of((*page)->page(), tree_, 0)) {
    const TreePageView view = (*page)->view();
    const bool covers =
        view.covers_left(key) && (view.has_flag(kHighIsInfinity) || view.covers_right(key));
    if (covers && (mode == LatchMode::kShared || !view.has_flag(kIncompleteSplit))) return *page;
  }
  mtr_->release(*page);
  return nullptr;
}

Status TreeCursor::seek_before(Bytes key, bool infinite) {
  forget_leaf();
  run_ = {};
  Target target{.bound = infinite ? Bound::kLast : Bound::kBefore, .key = key};
  for (;;) {
    if (target.bound == Bound::kBefore && target.key.empty()) {  // nothing is smaller
      at_end_ = true;
      return ok_status();
    }
    STRATA_ASSIGN_OR_RETURN(MtrPage * leaf, descend(context_, tree_, mtr_, target, nullptr));
    const TreePageView view = leaf->view();
    uint16_t slot = view.slot_count();
    if (target.bound == Bound::kBefore && view.covers_right(target.key)) {
      bool equal = false;
      slot = view.lower_bound(target.key, &equal);
    }
    if (slot > 0) {
      stand_on(leaf, static_cast<uint16_t>(slot - 1));
      return ok_status();
    }
    scratch_ = view.low_fence();  // what target.key may point at is not needed any more
    mtr_->release(leaf);
    target = {.bound = Bound::kBefore, .key = scratch_};
  }
}

Status TreeCursor::settle(bool keep_left) {
  STRATA_ASSERT(leaf_ != nullptr);
  while (slot_ >= leaf_->view().slot_count()) {
    const TreePageView view = leaf_->view();
    if (view.has_flag(kHighIsInfinity)) {
      at_end_ = true;
      return ok_status();
    }
    const LatchMode mode = leaf_->guard.mode();
    const PageId id = sibling_id(tree_, view.header()->right_sibling);
    STRATA_ASSIGN_OR_RETURN(MtrPage * right, mtr_->fix(id, mode));
    // The left page is latched, so the link cannot be stale.
    if (!is_tree_page_of(right->page(), tree_, 0) || right->view().low_fence() != view.high_key())
      return error_corruption(describe(tree_, leaf_id_) + " is not linked to its right sibling");
    const bool keep = leaf_->modified || (keep_left && mode == LatchMode::kExclusive);
    if (!keep) mtr_->release(leaf_);
    stand_on(right, 0);
    note_passed_leaf();
  }
  return ok_status();
}

void TreeCursor::note_passed_leaf() noexcept {
  if (run_.passed < kSequentialLeaves) {
    ++run_.passed;
    return;
  }
  if (run_.ahead > 0) --run_.ahead;
  if (run_.ahead > run_.window / 2 || leaf_->view().has_flag(kHighIsInfinity)) return;
  const uint32_t most = std::min(kWindowMax, context_->pool->read_ahead_pages());
  run_.window = static_cast<uint16_t>(std::clamp<uint32_t>(run_.window * 2, kFirstWindow, most));
  std::array<PageId, kWindowMax> leaves;
  uint32_t count =
      leaves_from(context_, tree_, leaf_->view().high_key(), run_.window, leaves.data());
  if (count == 0) {  // no inner page at hand: the link to the right is
    leaves[0] = sibling_id(tree_, leaf_->view().header()->right_sibling);
    count = 1;
  }
  context_->pool->read_ahead(leaves.data(), count);
  run_.ahead = static_cast<uint16_t>(count);
}

Status TreeCursor::next(bool keep_left) {
  STRATA_ASSERT(leaf_ != nullptr && !at_end_);
  if (slot_ < leaf_->view().slot_count()) ++slot_;
  return settle(keep_left);
}

Status TreeCursor::prev() {
  STRATA_ASSERT(leaf_ != nullptr);
  at_end_ = false;
  if (slot_ > 0) {
    --slot_;
    return ok_status();
  }
  scratch_ = leaf_->view().low_fence();
  return seek_before(scratch_, false);
}

bool TreeCursor::equals(Bytes key) const noexcept {
  return on_record() && leaf_->view().compare_key(slot_, key) == 0;
}

// Mostly it is one of the next few: whoever asks goes through the leaf in order.
bool TreeCursor::seek_on_in_leaf(Bytes key) noexcept {
  constexpr int kTries = 3;
  const TreePageView view = leaf_->view();
  at_end_ = false;
  for (int i = 0; i < kTries; ++i, ++slot_) {
    if (slot_ >= view.slot_count()) return false;
    const int order = view.compare_key(slot_, key);
    if (order >= 0) return order == 0;
  }
  if (!view.has_flag(kHighIsInfinity) && !view.covers_right(key)) {
    slot_ = static_cast<uint16_t>(view.slot_count());
    return false;
  }
  bool equal = false;
  slot_ = view.lower_bound(key, &equal);
  return equal;
}

void TreeCursor::copy_key(std::string* out) const { leaf_->view().copy_key(slot_, out); }

bool TreeCursor::leaf_covers(Bytes key) const noexcept {
  return leaf_ != nullptr && leaf_->view().covers_left(key) && leaf_->view().covers_right(key);
}

// --- changes ---

bool TreeCursor::fits_insert(Bytes key, size_t value_bytes) const noexcept {
  // A larger record is refused by make_room().
  return key.size() <= kMaxKeyBytes && key.size() + value_bytes <= kMaxRecordBytes &&
         leaf_->view().fits_insert(key, value_bytes);
}

bool TreeCursor::fits_replace(size_t value_bytes) const noexcept {
  const TreePageView view = leaf_->view();
  const size_t key_bytes = view.header()->prefix_bytes + view.suffix(slot_).size();
  return key_bytes + value_bytes <= kMaxRecordBytes && view.fits_replace(slot_, value_bytes);
}

void TreeCursor::insert(Bytes key, Bytes value) {
  STRATA_DASSERT(leaf_covers(key));
  STRATA_ASSERT(fits_insert(key, value.size()));
  mtr_->insert(leaf_, slot_, key, value);
  note_insert(context_->spaces, leaf_id_, slot_);
  at_end_ = false;
}

void TreeCursor::replace(Bytes value) {
  STRATA_ASSERT(on_record());
  STRATA_ASSERT(fits_replace(value.size()));
  mtr_->replace(leaf_, slot_, value);
}

void TreeCursor::patch(uint16_t offset, Bytes bytes) {
  STRATA_ASSERT(on_record());
  mtr_->patch(leaf_, slot_, offset, bytes);
}

void TreeCursor::erase() {
  STRATA_ASSERT(on_record());
  mtr_->erase(leaf_, slot_);
}

// --- save and restore ---

void TreeCursor::save() {
  STRATA_ASSERT(leaf_ != nullptr && !leaf_->modified);
  const TreePageView view = leaf_->view();
  saved_page_ = leaf_id_;
  saved_llsn_ = view.header()->llsn;
  saved_slot_ = slot_;
  if (on_record()) {
    saved_ = Saved::kRecord;
    view.copy_key(slot_, &saved_key_);
  } else if (view.has_flag(kHighIsInfinity)) {
    saved_ = Saved::kEnd;
    saved_key_.clear();
  } else {
    saved_ = Saved::kGap;
    saved_key_ = view.high_key();
  }
  forget_leaf();
}

Status TreeCursor::restore(LatchMode mode, bool* same) {
  STRATA_ASSERT(saved_ != Saved::kNothing && leaf_ == nullptr);
  *same = false;
  const SpaceManager::EpochGuard epoch(context_->spaces);
  if (!context_->spaces->is_live(space_of(tree_))) return error_not_found();
  // An llsn belongs to one state of the page, even if the page was reused meanwhile (K2).
  StatusOr<MtrPage*> page = mtr_->fix(saved_page_, mode);
  if (page.ok()) {
    if (header_of((*page)->page())->llsn == saved_llsn_ &&
        is_tree_page_of((*page)->page(), tree_, 0)) {
      stand_on(*page, saved_slot_);
      *same = saved_ == Saved::kRecord;
      return *same ? ok_status() : settle();
    }
    mtr_->release(*page);
  } else if (!is_not_found(page.status())) {
    return page.status();
  }
  if (saved_ == Saved::kEnd) {
    STRATA_ASSIGN_OR_RETURN(
        MtrPage * leaf,
        descend(context_, tree_, mtr_, {.bound = Bound::kLast, .mode = mode}, nullptr));
    stand_on(leaf, leaf->view().slot_count());
    return settle();
  }
  const Run run = run_;
  STRATA_RETURN_IF_ERROR(seek(saved_key_, mode));
  run_ = run;  // the scan goes on
  *same = saved_ == Saved::kRecord && equals(saved_key_);
  return settle();
}

void TreeCursor::reset() noexcept {
  forget_leaf();
  saved_ = Saved::kNothing;
  run_ = {};
}

}  // namespace strata
