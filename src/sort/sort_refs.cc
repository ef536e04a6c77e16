// Sorts by eight bytes of the keys at a time: references with equal heads get the next eight bytes
// as heads and are sorted among themselves. Keys that begin alike would otherwise be looked up in
// memory at every comparison, and most lookups miss the caches.
#include <algorithm>
#include <cstddef>

#include "sort/internal/pair_ref.h"

namespace strata {
namespace {

constexpr size_t kHeadBytes = 8;
constexpr ptrdiff_t kGroupMin = 32;  // fewer are compared by their keys
constexpr size_t kDepthMax = 64;     // so are keys with more bytes in common: bounds the recursion

// The keys agree in their first `depth` bytes; the heads are what follows.
void sort_from(PairRef* begin, PairRef* end, size_t depth) noexcept;

// The keys agree in their first `depth` bytes, where zeros stand for what a shorter key lacks:
// such keys are prefixes of those that go on.
void sort_group(PairRef* begin, PairRef* end, size_t depth) noexcept {
  const auto key = [](const PairRef& ref) { return pair_key(ref.pair); };
  if (end - begin < kGroupMin || depth >= kDepthMax) {
    std::sort(begin, end, [&](const PairRef& a, const PairRef& b) { return key(a) < key(b); });
    return;
  }
  PairRef* const longer =
      std::partition(begin, end, [&](const PairRef& ref) { return key(ref).size() <= depth; });
  std::sort(begin, longer,
            [&](const PairRef& a, const PairRef& b) { return key(a).size() < key(b).size(); });
  for (PairRef* ref = longer; ref != end; ++ref) ref->head = key_head(key(*ref).substr(depth));
  sort_from(longer, end, depth);
}

void sort_from(PairRef* begin, PairRef* end, size_t depth) noexcept {
  std::sort(begin, end, [](const PairRef& a, const PairRef& b) { return a.head < b.head; });
  while (begin != end) {
    PairRef* group_end = begin + 1;
    while (group_end != end && group_end->head == begin->head) ++group_end;
    if (group_end - begin > 1) sort_group(begin, group_end, depth + kHeadBytes);
    begin = group_end;
  }
}

}  // namespace

void sort_refs(PairRef* begin, PairRef* end) noexcept { sort_from(begin, end, 0); }

}  // namespace strata
