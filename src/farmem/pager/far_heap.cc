#include "farmem/pager/far_heap.h"

#include <iterator>

#include "base/assert.h"

namespace strata::farmem {

void FarHeap::add(uint64_t first, uint64_t count) {
  if (count == 0) return;
  by_address_.emplace(first, count);
  by_size_.emplace(count, first);
  free_pages_ += count;
}

void FarHeap::remove(std::map<uint64_t, uint64_t>::iterator place) {
  by_size_.erase({place->second, place->first});
  free_pages_ -= place->second;
  by_address_.erase(place);
}

uint64_t FarHeap::allocate(uint64_t count, uint64_t alignment) {
  STRATA_ASSERT(count > 0 && alignment > 0);
  for (auto it = by_size_.lower_bound({count, 0}); it != by_size_.end(); ++it) {
    const auto [size, first] = *it;
    const uint64_t begin = (first + alignment - 1) / alignment * alignment;
    if (begin - first > size - count) continue;  // the alignment costs more than there is
    remove(by_address_.find(first));
    add(first, begin - first);
    add(begin + count, first + size - begin - count);
    return begin;
  }
  return kNone;
}

void FarHeap::give_back(uint64_t first, uint64_t count) {
  const auto next = by_address_.lower_bound(first);
  uint64_t begin = first, end = first + count;
  if (next != by_address_.end()) {
    STRATA_ASSERT(next->first >= end);  // FM25
    if (next->first == end) {
      end += next->second;
      remove(next);
    }
  }
  const auto after = by_address_.lower_bound(first);
  if (after != by_address_.begin()) {
    const auto before = std::prev(after);
    STRATA_ASSERT(before->first + before->second <= first);
    if (before->first + before->second == first) {
      begin = before->first;
      remove(before);
    }
  }
  add(begin, end - begin);
}

}  // namespace strata::farmem
