// References to pairs in memory, and sorting them. Pure.
#pragma once

#include "sort/internal/pair.h"

namespace strata {

// Keys differ in their first bytes as a rule; then sorting never follows `pair`.
struct PairRef {
  uint64_t head;  // key_head() of the key
  const char* pair;
};

inline bool operator<(const PairRef& a, const PairRef& b) noexcept {
  if (a.head != b.head) return a.head < b.head;
  return pair_key(a.pair) < pair_key(b.pair);
}

// Puts them in key order. The heads are worthless afterwards.
void sort_refs(PairRef* begin, PairRef* end) noexcept;

}  // namespace strata
