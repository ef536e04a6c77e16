// Estimates from dives: sizes of ranges, samples of leaves.
#include <algorithm>
#include <cmath>
#include <memory>
#include <set>

#include "btree/internal/descend.h"

namespace strata {
namespace {

using namespace btree_internal;

// One end of a range, as a dive saw it.
struct End {
  Path path;
  PageId leaf;
  PageId right;           // right sibling of the leaf
  uint32_t records = 0;   // on the leaf
  bool last = false;      // the rightmost leaf
  uint32_t position = 0;  // records of the leaf below the bound
};

StatusOr<End> dive(TreeContext* context, TreeId tree, Bound bound, Bytes key) {
  End end;
  Mtr mtr(context->pool, context->log);
  STRATA_ASSIGN_OR_RETURN(
      MtrPage * leaf,
      descend(context, tree, &mtr, {.bound = bound, .key = key, .path = &end.path}, nullptr));
  const TreePageView view = leaf->view();
  end.leaf = leaf->id();
  end.right = sibling_id(tree, view.header()->right_sibling);
  end.records = view.slot_count();
  end.last = view.has_flag(kHighIsInfinity);
  bool equal = false;
  end.position = bound == Bound::kLast ? end.records : view.lower_bound(key, &equal);
  return end;
}

// Fill of the pages between two. The rightmost page of a level is just being filled and says
// little.
double usual(uint32_t low, uint32_t high, bool high_is_last) {
  return std::max(1.0, high_is_last ? low : (low + high) / 2.0);
}

// What stands on the leaves right of the low end, up to kLeavesWalked or the high end. Bounds often
// fall where keys of a kind begin and end, on leaves that are filled unlike those in between.
struct Walk {
  uint64_t records = 0;
  uint32_t leaves = 0;
  bool arrived = false;  // at the high end: these are all
};
constexpr uint32_t kLeavesWalked = 8;

Walk walk(TreeContext* context, TreeId tree, const End& low, const End& high) {
  Walk out;
  PageId id = low.right;
  for (;;) {
    if (id == high.leaf) {
      out.arrived = true;
      return out;
    }
    if (out.leaves == kLeavesWalked) return out;
    const StatusOr<PageGuard> leaf = context->pool->fix(id, LatchMode::kShared);
    // Merged away or dropped since the dives: what has been seen is enough.
    if (!leaf.ok() || !is_tree_page_of(leaf->page(), tree, 0)) return out;
    const TreePageView view(leaf->page());
    out.records += view.slot_count();
    ++out.leaves;
    if (view.header()->right_sibling == kNoPage) return out;
    id = sibling_id(tree, view.header()->right_sibling);
  }
}

// Records between the ends of two leaves that are far apart: whole subtrees between the two paths,
// sized by the average fan-out of the pages the dives passed.
double records_between(const End& low, const End& high, const Walk& walked) {
  const double per_leaf =
      walked.leaves > 0 ? static_cast<double>(std::max<uint64_t>(walked.records, 1)) / walked.leaves
                        : usual(low.records, high.records, high.last);
  double leaves = 0;       // between the two leaves
  double per_child = 1.0;  // leaves below one child of the current level
  uint32_t parted = 0;     // level on which the two paths part
  const uint32_t height = std::min(low.path.height, high.path.height);
  for (uint32_t level = 1; level < std::min(height, Path::kLevelsMax); ++level)
    if (low.path.steps[level].slot != high.path.steps[level].slot) parted = level;
  for (uint32_t level = 1; level <= parted; ++level) {
    const Path::Step& l = low.path.steps[level];
    const Path::Step& h = high.path.steps[level];
    if (level < parted) {
      leaves += per_child * (std::max(0, l.count - l.slot - 1) + h.slot);
    } else {
      leaves += per_child * std::max(0, h.slot - l.slot - 1);
    }
    per_child *= usual(l.count, h.count, h.last);
  }
  return (low.records - low.position) + high.position + leaves * per_leaf;
}

}  // namespace

StatusOr<uint64_t> estimate_range(TreeContext* context, TreeId tree, Bytes low, Bytes high,
                                  bool high_infinite) {
  if (!high_infinite && low >= high) return uint64_t{0};
  STRATA_ASSIGN_OR_RETURN(const End from, dive(context, tree, Bound::kAt, low));
  STRATA_ASSIGN_OR_RETURN(const End to,
                          dive(context, tree, high_infinite ? Bound::kLast : Bound::kAt, high));
  if (from.leaf == to.leaf) return to.position > from.position ? to.position - from.position : 0;
  const Walk walked = walk(context, tree, from, to);
  if (walked.arrived) return uint64_t{from.records} - from.position + walked.records + to.position;
  return static_cast<uint64_t>(std::llround(records_between(from, to, walked)));
}

Status sample_leaves(TreeContext* context, TreeId tree, uint32_t pages, uint64_t seed,
                     const VisitSample& visit, LeafSample* out) {
  Rng rng(seed);
  const auto copy = std::make_unique<char[]>(kPageBytes);
  std::set<uint32_t> seen;
  std::string key;
  double leaves = 0;
  uint32_t dives = 0;
  // A leaf met twice tells nothing new about the records; twice as many dives are enough tries.
  for (; dives < 2 * pages && seen.size() < pages; ++dives) {
    Path path;
    {
      Mtr mtr(context->pool, context->log);
      STRATA_ASSIGN_OR_RETURN(
          MtrPage * leaf, descend(context, tree, &mtr,
                                  {.bound = Bound::kRandom, .path = &path, .rng = &rng}, nullptr));
      std::memcpy(copy.get(), leaf->page(), kPageBytes);
    }
    double product = 1;
    for (uint32_t level = 1; level < std::min(path.height, Path::kLevelsMax); ++level)
      product *= path.steps[level].count;
    leaves += product;
    if (seen.insert(header_of(copy.get())->number).second) {
      const TreePageView view(copy.get());
      for (uint16_t i = 0; i < view.slot_count(); ++i) {
        view.copy_key(i, &key);
        visit(static_cast<uint32_t>(seen.size() - 1), key, view.value(i));
      }
    }
    if (path.height == 1) {  // there is no other leaf
      ++dives;
      break;
    }
  }
  out->visited = static_cast<uint32_t>(seen.size());
  out->leaves = dives == 0 ? 0
                           : std::max<uint64_t>(
                                 out->visited, static_cast<uint64_t>(std::llround(leaves / dives)));
  return ok_status();
}

}  // namespace strata
