// Slots ordered by a number: the least first, any of them moved or removed. Nothing is allocated
// after construction. Not thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "base/assert.h"

namespace strata::memnode {

class SlotHeap {
 public:
  explicit SlotHeap(uint32_t slots) : place_(slots, kNowhere) { entries_.reserve(slots); }

  [[nodiscard]] bool empty() const noexcept { return entries_.empty(); }
  [[nodiscard]] uint32_t size() const noexcept { return static_cast<uint32_t>(entries_.size()); }
  [[nodiscard]] bool has(uint32_t slot) const noexcept { return place_[slot] != kNowhere; }
  [[nodiscard]] uint64_t key_of(uint32_t slot) const noexcept { return entries_[place_[slot]].key; }
  // Not of an empty one.
  [[nodiscard]] uint32_t first() const noexcept { return entries_.front().slot; }
  [[nodiscard]] uint64_t least() const noexcept { return entries_.front().key; }

  // Adds it, or gives it another key.
  void put(uint32_t slot, uint64_t key) {
    if (!has(slot)) {
      place_[slot] = size();
      entries_.push_back({key, slot});
    } else if (key_of(slot) == key) {
      return;
    }
    settle(place_[slot], {key, slot});
  }
  // Nothing, if it is not in it.
  void remove(uint32_t slot) {
    const uint32_t at = place_[slot];
    if (at == kNowhere) return;
    const Entry last = entries_.back();
    entries_.pop_back();
    place_[slot] = kNowhere;
    if (last.slot != slot) settle(at, last);
  }
  // Every entry is where it is looked for, and none before the one above it. Asserts.
  void check() const {
    for (uint32_t at = 0; at < size(); at++) {
      STRATA_ASSERT(place_[entries_[at].slot] == at);
      if (at > 0) STRATA_ASSERT(entries_[(at - 1) / 2].key <= entries_[at].key);
    }
  }

 private:
  struct Entry {
    uint64_t key;
    uint32_t slot;
  };
  static constexpr uint32_t kNowhere = UINT32_MAX;

  void set(uint32_t at, const Entry& entry) noexcept {
    entries_[at] = entry;
    place_[entry.slot] = at;
  }
  // The entry goes to `at`, whose own is of no use any more, or from there up or down.
  void settle(uint32_t at, const Entry& entry) noexcept {
    while (at > 0 && entry.key < entries_[(at - 1) / 2].key) {
      set(at, entries_[(at - 1) / 2]);
      at = (at - 1) / 2;
    }
    for (;;) {
      uint32_t below = 2 * at + 1;
      if (below >= size()) break;
      if (below + 1 < size() && entries_[below + 1].key < entries_[below].key) below++;
      if (entries_[below].key >= entry.key) break;
      set(at, entries_[below]);
      at = below;
    }
    set(at, entry);
  }

  std::vector<Entry> entries_;
  std::vector<uint32_t> place_;  // by slot
};

}  // namespace strata::memnode
