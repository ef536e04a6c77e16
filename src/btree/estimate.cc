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

// Records between the ends of two different, not neighbouring leaves: whole subtrees between the
// two paths, sized by the average fan-out of the pages the dives passed.
double records_between(const End& low, const End& high) {
  const double per_leaf = usual(low.records, high.records, high.last);
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
  if (from.right == to.leaf) return uint64_t{from.records} - from.position + to.position;
  return static_cast<uint64_t>(std::llround(records_between(from, to)));
}

Status sample_leaves(TreeContext* context, TreeId tree, uint32_t pages, uint64_t seed,
                     const std::function<void(Bytes key, Bytes value)>& visit,
                     uint64_t* leaf_pages_estimate) {
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
        visit(key, view.value(i));
      }
    }
    if (path.height == 1) {  // there is no other leaf
      ++dives;
      break;
    }
  }
  *leaf_pages_estimate =
      dives == 0 ? 0 : std::max<uint64_t>(1, static_cast<uint64_t>(std::llround(leaves / dives)));
  return ok_status();
}

}  // namespace strata
