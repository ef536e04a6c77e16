// Estimates from dives: sizes of ranges, samples of leaves.
#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <set>
#include <vector>

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

// Level on which the ways to both ends part; 0: the same page above both leaves, or none.
uint32_t parting_level(const End& low, const End& high) {
  uint32_t parted = 0;
  const uint32_t height = std::min(low.path.height, high.path.height);
  for (uint32_t level = 1; level < std::min(height, Path::kLevelsMax); ++level)
    if (low.path.steps[level].slot != high.path.steps[level].slot) parted = level;
  return parted;
}

// What pages between the two ends hold, on average: [0] records of a leaf, above it children.
using Fill = std::array<double, Path::kLevelsMax>;

// Of the pages the two dives passed. The rightmost page of a level is just being filled and says
// little.
Fill fill_of_ends(const End& low, const End& high) {
  const auto usual = [](uint32_t l, uint32_t h, bool high_is_last) {
    return std::max(1.0, high_is_last ? l : (l + h) / 2.0);
  };
  Fill out{};
  out[0] = usual(low.records, high.records, high.last);
  for (uint32_t level = 1; level < Path::kLevelsMax; ++level) {
    const Path::Step& l = low.path.steps[level];
    const Path::Step& h = high.path.steps[level];
    out[level] = usual(l.count, h.count, h.last);
  }
  return out;
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

// Neighbouring children of one inner page, all of them between the two ends.
struct Segment {
  bool of_high;  // on the way to the high end, else to the low one
  uint32_t level;
  uint32_t first;  // slot
  uint32_t children;
};

// Where the ways part, those between; on each level below, those right of the low end's way and
// left of the high end's.
std::vector<Segment> segments_between(const End& low, const End& high) {
  std::vector<Segment> out;
  const uint32_t parted = parting_level(low, high);
  const auto add = [&](bool of_high, uint32_t level, uint32_t first, uint32_t end) {
    if (first < end) out.push_back({of_high, level, first, end - first});
  };
  for (uint32_t level = 1; level <= parted; ++level) {
    const Path::Step& l = low.path.steps[level];
    const Path::Step& h = high.path.steps[level];
    if (level == parted) {
      add(false, level, l.slot + 1u, h.slot);
    } else {
      add(false, level, l.slot + 1u, l.count);
      add(true, level, 0, h.slot);
    }
  }
  return out;
}

double leaves_of(const Segment& segment, const Fill& fill) {
  double leaves = segment.children;
  for (uint32_t level = 1; level < segment.level; ++level) leaves *= fill[level];
  return leaves;
}

double leaves_of(const std::vector<Segment>& segments, const Fill& fill) {
  double leaves = 0;
  for (const Segment& segment : segments) leaves += leaves_of(segment, fill);
  return leaves;
}

// Many leaves: dives between the ends, evenly over the children there, at random below them.
// Averages of what these pass are nearer than what stands beside the ends.
constexpr double kLeavesPerDive = 8;  // of the range: what the estimate may add to its reading
constexpr double kWorthDives = 64;    // leaves
constexpr double kDivesMax = 32;

struct Range {
  Bytes low;
  Bytes high;
  bool high_infinite;
};

Status dive_between(TreeContext* context, TreeId tree, const Range& range, uint64_t seed,
                    const std::vector<Segment>& segments, Fill* fill) {
  const double leaves = leaves_of(segments, *fill);
  const double dives = std::min(leaves / kLeavesPerDive, kDivesMax);
  Rng rng(seed);
  Fill sum{};
  std::array<uint32_t, Path::kLevelsMax> passed{};
  for (const Segment& segment : segments) {
    const auto of_segment =
        static_cast<uint32_t>(std::lround(dives * leaves_of(segment, *fill) / leaves));
    for (uint32_t i = 0; i < of_segment; ++i) {
      const uint32_t child = (segment.children * i + rng.below(segment.children)) / of_segment;
      Path path;
      Mtr mtr(context->pool, context->log);
      STRATA_ASSIGN_OR_RETURN(MtrPage * leaf,
                              descend(context, tree, &mtr,
                                      {.bound = Bound::kWithin,
                                       .key = segment.of_high ? range.high : range.low,
                                       .path = &path,
                                       .rng = &rng,
                                       .within = {segment.level, segment.first + child,
                                                  segment.of_high && range.high_infinite}},
                                      nullptr));
      path.steps[0].count = leaf->view().slot_count();
      for (uint32_t level = 0; level < segment.level; ++level) {
        sum[level] += path.steps[level].count;
        ++passed[level];
      }
    }
  }
  for (uint32_t level = 0; level < Path::kLevelsMax; ++level)
    if (passed[level] > 0) (*fill)[level] = sum[level] / passed[level];
  return ok_status();
}

}  // namespace

StatusOr<uint64_t> estimate_range(TreeContext* context, TreeId tree, Bytes low, Bytes high,
                                  bool high_infinite) {
  if (!high_infinite && low >= high) return uint64_t{0};
  STRATA_ASSIGN_OR_RETURN(const End from, dive(context, tree, Bound::kAt, low));
  STRATA_ASSIGN_OR_RETURN(const End to,
                          dive(context, tree, high_infinite ? Bound::kLast : Bound::kAt, high));
  if (from.leaf == to.leaf) return to.position > from.position ? to.position - from.position : 0;
  Fill fill = fill_of_ends(from, to);
  const std::vector<Segment> segments = segments_between(from, to);
  if (leaves_of(segments, fill) > kWorthDives) {
    // The same query has the same plan: the seed is no surprise.
    STRATA_RETURN_IF_ERROR(dive_between(context, tree, {low, high, high_infinite},
                                        from.leaf.packed(), segments, &fill));
  } else {
    const Walk walked = walk(context, tree, from, to);
    if (walked.arrived)
      return uint64_t{from.records} - from.position + walked.records + to.position;
    if (walked.leaves > 0) fill[0] = static_cast<double>(walked.records) / walked.leaves;
  }
  return static_cast<uint64_t>(std::llround((from.records - from.position) + to.position +
                                            leaves_of(segments, fill) * fill[0]));
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
