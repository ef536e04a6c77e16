// CHECK TABLE: every page of every level, under the latches that make the comparison exact while
// writers are active. A child is compared with its parent while both are latched (top-down), and an
// incomplete split is followed to its right pages left-to-right; so what does not agree is a
// problem, not a race.
#include <memory>

#include "btree/internal/split.h"

namespace strata {
namespace {

using namespace btree_internal;

constexpr size_t kProblemsMax = 100;

class Checker {
 public:
  Checker(TreeContext* context, TreeId tree,
          const std::function<void(Bytes key, Bytes value)>& visit, TreeCheck* out)
      : context_(context), tree_(tree), visit_(visit), out_(out) {}

  Status run() {
    uint8_t top = 0;
    STRATA_RETURN_IF_ERROR(check_root(&top));
    out_->height = top + 1u;
    for (uint8_t level = top; level > 0 && !given_up_; --level) {
      leftmost_ = true;
      next_key_.clear();
      STRATA_RETURN_IF_ERROR(check_children_of(level));
    }
    return ok_status();
  }

 private:
  struct Copy {
    std::unique_ptr<char[]> page;
    [[nodiscard]] TreePageView view() const noexcept { return TreePageView(page.get()); }
    [[nodiscard]] PageId id() const noexcept { return page_id_of(page.get()); }
  };

  void problem(PageId page, const std::string& what) {
    if (out_->problems.size() < kProblemsMax)
      out_->problems.push_back(describe(tree_, page) + ": " + what);
    else
      given_up_ = true;
  }

  // True if the page can be looked into. Damage is a problem; anything else ends the check.
  StatusOr<bool> fixed_well(const StatusOr<MtrPage*>& page, PageId id) {
    if (page.ok()) return true;
    if (!is_corruption(page.status()) && !is_not_found(page.status())) return page.status();
    problem(id, std::string(page.status().message()));
    return false;
  }

  Status check_root(uint8_t* level) {
    const SpaceManager::EpochGuard epoch(context_->spaces);
    if (!context_->spaces->is_live(space_of(tree_))) return error_not_found();
    Copy copy;
    {
      Mtr mtr(context_->pool, context_->log);
      StatusOr<MtrPage*> root = mtr.fix(tree_.root, LatchMode::kShared);
      STRATA_ASSIGN_OR_RETURN(const bool well, fixed_well(root, tree_.root));
      if (!well) {
        given_up_ = true;
        return ok_status();
      }
      copy = take_copy(*root);
    }
    const TreePageView view = copy.view();
    *level = view.header()->level;
    if (!is_tree_page_of(copy.page.get(), tree_, *level)) {
      problem(tree_.root, "not the root of this index");
      given_up_ = true;
      return ok_status();
    }
    if (!view.low_fence().empty() || !view.has_flag(kHighIsInfinity) ||
        view.header()->right_sibling != kNoPage || view.has_flag(kIncompleteSplit))
      problem(tree_.root, "the root has bounds or siblings");
    return check_alone(copy, {});
  }

  Copy take_copy(const MtrPage* page) {
    Copy copy{std::make_unique<char[]>(kPageBytes)};
    std::memcpy(copy.page.get(), page->page(), kPageBytes);
    return copy;
  }

  // What can be said of a page by itself. No latch held. Records below `from` were met before: a
  // merge has brought them here meanwhile.
  Status check_alone(const Copy& copy, Bytes from) {
    const TreePageView view = copy.view();
    if (const Status valid = validate_tree_page(copy.page.get()); !valid.ok()) {
      problem(copy.id(), std::string(valid.message()));
      return ok_status();
    }
    std::string key;
    if (view.is_leaf()) {
      ++out_->leaf_pages;
      bool equal = false;
      uint16_t i = view.covers_left(from) && view.covers_right(from)
                       ? view.lower_bound(from, &equal)
                       : uint16_t{0};
      for (; i < view.slot_count(); ++i) {
        ++out_->records;
        if (!visit_) continue;
        view.copy_key(i, &key);
        visit_(key, view.value(i));
      }
    } else {
      ++out_->inner_pages;
      if (view.slot_count() == 0)
        problem(copy.id(), "an inner page without children");
      else if (view.compare_key(0, view.low_fence()) != 0)
        problem(copy.id(), "the first separator is not the low fence");
    }
    if (view.has_flag(kIncompleteSplit)) ++out_->incomplete_splits;
    return check_allocated(copy);
  }

  Status check_allocated(const Copy& copy) {
    STRATA_ASSIGN_OR_RETURN(const bool allocated, context_->spaces->is_allocated(copy.id()));
    if (!allocated) {
      STRATA_ASSIGN_OR_RETURN(const bool same, unchanged(copy));
      if (same) problem(copy.id(), "in the tree, but free in the allocation map");
    }
    return ok_status();
  }

  StatusOr<bool> unchanged(const Copy& copy) {
    Mtr mtr(context_->pool, context_->log);
    STRATA_ASSIGN_OR_RETURN(MtrPage * page, mtr.fix(copy.id(), LatchMode::kShared));
    return header_of(page->page())->llsn == copy.view().header()->llsn;
  }

  // Walks over all children of the pages on `level` in key order, one child for each descent.
  Status check_children_of(uint8_t level) {
    Copy previous;  // last page of the child before
    for (bool more = true; more && !given_up_;) {
      const std::string from = next_key_;
      std::vector<Copy> chain;  // the child, and what an incomplete split made of it
      {
        Mtr mtr(context_->pool, context_->log);
        StatusOr<MtrPage*> parent =
            descend(context_, tree_, &mtr, {.key = next_key_, .level = level}, nullptr);
        STRATA_ASSIGN_OR_RETURN(const bool well, fixed_well(parent, tree_.root));
        if (!well || *parent == nullptr) return ok_status();  // null: the root has shrunk meanwhile
        STRATA_RETURN_IF_ERROR(compare_child(&mtr, *parent, &chain, &more));
      }
      for (const Copy& copy : chain) STRATA_RETURN_IF_ERROR(check_alone(copy, from));
      if (chain.empty()) {
        previous = {};
        continue;
      }
      if (previous.page != nullptr &&
          previous.view().header()->right_sibling != chain.front().id().number) {
        STRATA_ASSIGN_OR_RETURN(const bool same, unchanged(previous));
        STRATA_ASSIGN_OR_RETURN(const bool same_too, unchanged(chain.front()));
        if (same && same_too) problem(previous.id(), "not linked to its right sibling");
      }
      previous = std::move(chain.back());
    }
    return ok_status();
  }

  // Compares the child that covers next_key_ with its latched parent and moves next_key_ behind it.
  Status compare_child(Mtr* mtr, MtrPage* parent, std::vector<Copy>* chain, bool* more) {
    const TreePageView above = parent->view();
    const uint8_t level = static_cast<uint8_t>(above.header()->level - 1);
    if (above.slot_count() == 0) {
      given_up_ = true;
      return ok_status();  // reported with the page itself
    }
    const uint16_t slot = above.child_slot(next_key_);
    std::string low;
    above.copy_key(slot, &low);
    std::string high;
    bool infinite = false;
    if (slot + 1 < above.slot_count()) {
      above.copy_key(static_cast<uint16_t>(slot + 1), &high);
    } else {
      infinite = above.has_flag(kHighIsInfinity);
      if (!infinite) high = above.high_key();
    }
    STRATA_RETURN_IF_ERROR(follow(mtr, sibling_id(tree_, above.child(slot)), level, low,
                                  infinite ? nullptr : &high, chain));
    if (!chain->empty() && slot + 1 < above.slot_count() &&
        chain->back().view().header()->right_sibling !=
            above.child(static_cast<uint16_t>(slot + 1)))
      problem(chain->back().id(), "its right sibling is not the parent's next child");
    *more = !infinite;
    if (*more && !leftmost_ && high <= next_key_) {
      problem(parent->id(), "separators do not grow");
      given_up_ = true;
    }
    leftmost_ = false;
    next_key_ = std::move(high);
    return ok_status();
  }

  // From the child to the last page a split made of it: [low, high) without a hole (null:
  // infinite).
  Status follow(Mtr* mtr, PageId id, uint8_t level, const std::string& first_low,
                const std::string* high, std::vector<Copy>* chain) {
    std::string low = first_low;
    MtrPage* left = nullptr;
    for (;;) {
      StatusOr<MtrPage*> fixed = mtr->fix(id, LatchMode::kShared);
      STRATA_ASSIGN_OR_RETURN(const bool well, fixed_well(fixed, id));
      if (!well) return ok_status();
      MtrPage* page = *fixed;
      if (left != nullptr) mtr->release(left);
      const TreePageView view = page->view();
      if (!is_tree_page_of(page->page(), tree_, level)) {
        problem(id, "linked, but not a page of this index and level");
        return ok_status();
      }
      if (view.low_fence() != low) problem(id, "its low fence is not its separator");
      chain->push_back(take_copy(page));
      const bool infinite = view.has_flag(kHighIsInfinity);
      if (infinite && view.header()->right_sibling != kNoPage)
        problem(id, "the last page of its level has a right sibling");
      if (!view.has_flag(kIncompleteSplit)) {
        if (infinite != (high == nullptr) || (!infinite && view.high_key() != *high))
          problem(id, "its high key is not the parent's next separator");
        return ok_status();
      }
      if (infinite || view.header()->right_sibling == kNoPage || view.high_key() <= low ||
          (high != nullptr && view.high_key() >= *high)) {
        problem(id, "an incomplete split that leads nowhere");
        return ok_status();
      }
      low = view.high_key();
      id = sibling_id(tree_, view.header()->right_sibling);
      left = page;
    }
  }

  TreeContext* const context_;
  const TreeId tree_;
  const std::function<void(Bytes, Bytes)>& visit_;
  TreeCheck* const out_;
  std::string next_key_;
  bool leftmost_ = true;
  bool given_up_ = false;
};

}  // namespace

Status check_tree(TreeContext* context, TreeId tree,
                  const std::function<void(Bytes key, Bytes value)>& visit, TreeCheck* out) {
  return Checker(context, tree, visit, out).run();
}

}  // namespace strata
