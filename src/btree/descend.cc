// Descents (BT1, BT3).
#include "btree/internal/descend.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "base/assert.h"
#include "base/page_name.h"

namespace strata::btree_internal {
namespace {

constexpr uint32_t kRetriesMax = 2000;
constexpr uint32_t kRetriesWithoutSleep = 16;
constexpr uint32_t kRightMovesMax = 1u << 20;

enum class Where : uint8_t { kHere, kRight, kWrong };

Where locate(const TreePageView& view, const Target& target) noexcept {
  const bool infinite = view.has_flag(kHighIsInfinity);
  switch (target.bound) {
    case Bound::kAt:
      if (!view.covers_left(target.key)) return Where::kWrong;
      return infinite || view.covers_right(target.key) ? Where::kHere : Where::kRight;
    case Bound::kBefore:
      if (view.low_fence() >= target.key) return Where::kWrong;
      return infinite || target.key <= view.high_key() ? Where::kHere : Where::kRight;
    case Bound::kLast:
      return infinite ? Where::kHere : Where::kRight;
    case Bound::kRandom:
      return Where::kHere;
    case Bound::kWithin:
      if (view.header()->level < target.within.level) return Where::kHere;
      if (target.within.rightmost) return infinite ? Where::kHere : Where::kRight;
      if (!view.covers_left(target.key)) return Where::kWrong;
      return infinite || view.covers_right(target.key) ? Where::kHere : Where::kRight;
  }
  return Where::kWrong;
}

// Slot of the child to follow; the page has children and is the right one.
uint16_t choose_child(const TreePageView& view, const Target& target) noexcept {
  switch (target.bound) {
    case Bound::kAt:
      return view.child_slot(target.key);
    case Bound::kBefore: {
      if (!view.has_flag(kHighIsInfinity) && target.key == view.high_key()) break;
      bool equal = false;
      const uint16_t slot = view.lower_bound(target.key, &equal);
      return slot > 0 ? static_cast<uint16_t>(slot - 1) : slot;
    }
    case Bound::kLast:
      break;
    case Bound::kRandom:
      return static_cast<uint16_t>(target.rng->below(view.slot_count()));
    case Bound::kWithin:
      if (view.header()->level < target.within.level)
        return static_cast<uint16_t>(target.rng->below(view.slot_count()));
      if (view.header()->level > target.within.level) {
        if (target.within.rightmost) break;
        return view.child_slot(target.key);
      }
      return static_cast<uint16_t>(std::min<uint32_t>(target.within.slot, view.slot_count() - 1));
  }
  return static_cast<uint16_t>(view.slot_count() - 1);
}

enum class Outcome : uint8_t { kDone, kRestart, kNoLevel, kFlagged };

// BT11. The tag of a root in its hint word, which is no word of the root's inserts.
std::atomic<uint64_t>* hint_of_root(TreeContext* context, TreeId tree) noexcept {
  return context->spaces->page_hint(PageId{tree.root.space, ~tree.root.number});
}

uint64_t leaf_tag(TreeId tree) noexcept { return mix64(~tree.root.packed()) | 1; }

void note_root(TreeContext* context, TreeId tree, bool is_leaf) noexcept {
  // relaxed: a hint; a lost one costs what it saves.
  std::atomic<uint64_t>* const hint = hint_of_root(context, tree);
  const bool noted = hint->load(std::memory_order_relaxed) == leaf_tag(tree);
  if (noted != is_leaf) hint->store(is_leaf ? leaf_tag(tree) : 0, std::memory_order_relaxed);
}

bool seems_one_leaf(TreeContext* context, TreeId tree) noexcept {
  return hint_of_root(context, tree)->load(std::memory_order_relaxed) == leaf_tag(tree);
}

// One descent. Inner pages are latched through the pool; only the target goes into the mtr.
class Descent {
 public:
  Descent(TreeContext* context, TreeId tree, Mtr* mtr, const Target& target, Flagged* flagged)
      : context_(context), tree_(tree), mtr_(mtr), target_(target), flagged_(flagged) {}

  StatusOr<Outcome> run() {
    PageId id = tree_.root;
    const bool writes = target_.mode == LatchMode::kExclusive && target_.level == 0;
    if (writes && seems_one_leaf(context_, tree_)) {  // BT11
      STRATA_ASSIGN_OR_RETURN(const Outcome outcome, arrive(id, 0));
      if (outcome == Outcome::kRestart) note_root(context_, tree_, false);
      return outcome;
    }
    StatusOr<PageGuard> root = context_->pool->fix(id, LatchMode::kShared);
    if (!root.ok()) return failed(root.status(), id);
    PageGuard guard = std::move(root).value();
    uint32_t level = header_of(guard.page())->level;
    if (target_.path != nullptr) target_.path->height = level + 1;
    if (level < target_.level) return Outcome::kNoLevel;
    if (writes && level == 0) note_root(context_, tree_, true);
    for (uint32_t moves = 0; level > target_.level;) {
      const TreePageView view(guard.page());
      if (!is_tree_page_of(guard.page(), tree_, level)) return wrong(id);
      if (is_flagged(view, level)) return Outcome::kFlagged;
      PageId next;
      switch (locate(view, target_)) {
        case Where::kWrong:
          return wrong(id);
        case Where::kRight:
          if (++moves > kRightMovesMax || view.header()->right_sibling == kNoPage) return wrong(id);
          next = sibling_id(tree_, view.header()->right_sibling);
          break;
        case Where::kHere: {
          if (view.slot_count() == 0) return wrong(id);
          const uint16_t slot = choose_child(view, target_);
          if (target_.path != nullptr && level < Path::kLevelsMax)
            target_.path->steps[level] = {slot, view.slot_count(), view.has_flag(kHighIsInfinity)};
          next = sibling_id(tree_, view.child(slot));
          --level;
          break;
        }
      }
      guard.release();  // BT3
      id = next;
      if (level == target_.level) break;
      StatusOr<PageGuard> fixed = context_->pool->fix(id, LatchMode::kShared);
      if (!fixed.ok()) return failed(fixed.status(), id);
      guard = std::move(fixed).value();
    }
    guard.release();
    return arrive(id, level);
  }

  [[nodiscard]] MtrPage* found() const noexcept { return found_; }
  [[nodiscard]] PageId last() const noexcept { return last_; }

 private:
  // Target level: latch in the wanted mode, move right as long as needed.
  StatusOr<Outcome> arrive(PageId id, uint32_t level) {
    for (uint32_t moves = 0; moves < kRightMovesMax; ++moves) {
      StatusOr<MtrPage*> fixed = mtr_->fix(id, target_.mode);
      if (!fixed.ok()) return failed(fixed.status(), id);
      MtrPage* page = *fixed;
      const TreePageView view = page->view();
      const Where where =
          is_tree_page_of(page->page(), tree_, level) ? locate(view, target_) : Where::kWrong;
      const bool flagged = where != Where::kWrong && is_flagged(view, level);
      if (where == Where::kHere && !flagged) {
        found_ = page;
        return Outcome::kDone;
      }
      const uint32_t right = view.header()->right_sibling;
      mtr_->release(page);
      if (flagged) return Outcome::kFlagged;
      if (where == Where::kWrong || right == kNoPage) return wrong(id);
      id = sibling_id(tree_, right);
    }
    return wrong(id);
  }

  bool is_flagged(const TreePageView& view, uint32_t level) {
    if (flagged_ == nullptr || !view.has_flag(kIncompleteSplit)) return false;
    flagged_->found = true;
    flagged_->level = static_cast<uint8_t>(level);
    flagged_->low_fence = view.low_fence();
    return true;
  }

  Outcome wrong(PageId id) noexcept {
    last_ = id;
    return Outcome::kRestart;
  }

  // Whatever a link leads to was written once, even if the link is stale (K3).
  static Status failed(const Status& status, PageId id) { return expect_written(status, id); }

  TreeContext* const context_;
  const TreeId tree_;
  Mtr* const mtr_;
  const Target& target_;
  Flagged* const flagged_;
  MtrPage* found_ = nullptr;
  PageId last_;
};

}  // namespace

bool is_tree_page_of(const char* page, TreeId tree, uint32_t level) noexcept {
  const PageHeader* h = header_of(page);
  return h->type == static_cast<uint8_t>(PageType::kTree) && h->index_id == tree.index_id.value &&
         h->level == level && (h->flags & kUnlinked) == 0;
}

std::string describe(TreeId tree, PageId page) {
  return "index " + std::to_string(tree.index_id.value) + ", " + name_of(page);
}

bool Retries::again() noexcept {
  if (++count_ > kRetriesMax) return false;
  if (count_ > kRetriesWithoutSleep) std::this_thread::sleep_for(std::chrono::microseconds(100));
  return true;
}

Status gave_up(TreeId tree, PageId page, const char* operation) {
  return error_corruption(describe(tree, page) + ": the tree is inconsistent (" + operation +
                          " never found its way); run CHECK TABLE");
}

StatusOr<MtrPage*> descend(TreeContext* context, TreeId tree, Mtr* mtr, const Target& target,
                           Flagged* flagged) {
  const SpaceManager::EpochGuard epoch(context->spaces);
  PageId last = tree.root;
  for (Retries retries; retries.again();) {
    if (!context->spaces->is_live(space_of(tree))) return error_not_found();
    Descent descent(context, tree, mtr, target, flagged);
    STRATA_ASSIGN_OR_RETURN(const Outcome outcome, descent.run());
    if (outcome == Outcome::kDone) return descent.found();
    if (outcome != Outcome::kRestart) return static_cast<MtrPage*>(nullptr);
    last = descent.last();
  }
  return gave_up(tree, last, "a search");
}

namespace {

// The page on the lowest inner level that covers `key`. Invalid: it is not at hand, or the tree has
// one level.
PageGuard lowest_inner_page(TreeContext* context, TreeId tree, const Target& target) {
  PageId id = tree.root;
  for (uint32_t moves = 0; moves < 2 * Path::kLevelsMax; ++moves) {
    StatusOr<PageGuard> guard = context->pool->fix_if_at_hand(id);
    if (!guard.ok()) return {};
    const TreePageView view(guard->page());
    const uint32_t level = header_of(guard->page())->level;
    if (level == 0 || !is_tree_page_of(guard->page(), tree, level) || view.slot_count() == 0)
      return {};
    switch (locate(view, target)) {
      case Where::kWrong:
        return {};
      case Where::kRight:
        id = sibling_id(tree, view.header()->right_sibling);
        break;
      case Where::kHere:
        if (level == 1) return std::move(guard).value();
        id = sibling_id(tree, view.child(choose_child(view, target)));
        break;
    }
  }
  return {};
}

}  // namespace

uint32_t leaves_from(TreeContext* context, TreeId tree, Bytes key, uint32_t count, PageId* leaves) {
  const SpaceManager::EpochGuard epoch(context->spaces);
  if (!context->spaces->is_live(space_of(tree))) return 0;
  const Target target{.key = key};
  PageGuard guard = lowest_inner_page(context, tree, target);
  uint32_t found = 0;
  uint16_t slot = guard.valid() ? choose_child(TreePageView(guard.page()), target) : 0;
  while (guard.valid() && found < count) {
    const TreePageView view(guard.page());
    if (!is_tree_page_of(guard.page(), tree, 1)) break;
    for (; slot < view.slot_count() && found < count; ++slot)
      leaves[found++] = sibling_id(tree, view.child(slot));
    const uint32_t right = view.header()->right_sibling;
    guard.release();  // BT3
    if (found == count || right == kNoPage) break;
    StatusOr<PageGuard> next = context->pool->fix_if_at_hand(sibling_id(tree, right));
    if (next.ok()) guard = std::move(next).value();
    slot = 0;
  }
  return found;
}

}  // namespace strata::btree_internal
