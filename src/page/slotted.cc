#include "page/slotted.h"

#include <algorithm>
#include <string>

#include "base/assert.h"
#include "base/page_name.h"
#include "page/record.h"

namespace strata {

using page_internal::kLengthBytes;
using page_internal::slots_of;
using page_internal::suffix_at;
using page_internal::value_at;

namespace {

Slot* mutable_slots_of(char* page) noexcept {
  return reinterpret_cast<Slot*>(page + kPageHeaderBytes);
}
constexpr uint32_t kSlotBytes = sizeof(Slot);
constexpr uint32_t kChildBytes = 4;

// A page always holds two fences and two records of the largest sizes.
static_assert(kPageHeaderBytes + 2 * kMaxKeyBytes +
                  2 * (kSlotBytes + kLengthBytes + kMaxRecordBytes) <=
              kPageBytes);

uint32_t slots_end(const PageHeader* h) noexcept {
  return kPageHeaderBytes + kSlotBytes * h->slot_count;
}
uint32_t gap_bytes(const PageHeader* h) noexcept { return h->heap_top - slots_end(h); }
uint32_t record_bytes(const char* page, const Slot& s) noexcept {
  return kLengthBytes + s.suffix_bytes + load_u16(page + s.offset);
}
bool high_is_infinite(const PageHeader* h) noexcept { return (h->flags & kHighIsInfinity) != 0; }

// Takes `bytes` from the gap, which is large enough; returns their offset.
uint16_t take_heap(PageHeader* h, uint32_t bytes) noexcept {
  STRATA_ASSERT(gap_bytes(h) >= bytes);
  h->heap_top = static_cast<uint16_t>(h->heap_top - bytes);
  return h->heap_top;
}
// The lowest bytes of the heap go back to the gap, others become garbage.
void release_heap(PageHeader* h, uint32_t offset, uint32_t bytes) noexcept {
  if (offset == h->heap_top) {
    h->heap_top = static_cast<uint16_t>(h->heap_top + bytes);
  } else {
    h->garbage_bytes = static_cast<uint16_t>(h->garbage_bytes + bytes);
  }
}
void copy_bytes(char* to, Bytes from) noexcept {
  if (!from.empty()) std::memcpy(to, from.data(), from.size());
}
// Stores a fence; an empty one takes no place.
void store_fence(char* page, Bytes fence, uint16_t* offset, uint16_t* bytes) noexcept {
  *bytes = static_cast<uint16_t>(fence.size());
  *offset = 0;
  if (fence.empty()) return;
  *offset = take_heap(header_of(page), static_cast<uint32_t>(fence.size()));
  copy_bytes(page + *offset, fence);
}
void store_record(char* page, Slot* s, Bytes suffix, Bytes value) noexcept {
  s->offset = take_heap(header_of(page),
                        static_cast<uint32_t>(kLengthBytes + suffix.size() + value.size()));
  s->suffix_bytes = static_cast<uint16_t>(suffix.size());
  s->key_head = key_head_of(suffix);
  char* at = page + s->offset;
  store_u16(at, static_cast<uint16_t>(value.size()));
  copy_bytes(at + kLengthBytes, suffix);
  copy_bytes(at + kLengthBytes + suffix.size(), value);
}

// Rewrites the heap in canonical order (fences, then records by slot), leaving out the record of
// slot `without`, whose slot then points nowhere. A pure function of the page's bytes (SL4).
constexpr uint32_t kNoSlot = 0xffffffffu;
void compact_without(char* page, uint32_t without) noexcept {
  alignas(8) char old[kPageBytes];
  PageHeader* h = header_of(page);
  const uint16_t old_top = h->heap_top;
  std::memcpy(old + old_top, page + old_top, kPageBytes - old_top);
  h->heap_top = kPageBytes;
  h->garbage_bytes = 0;
  store_fence(page, Bytes(old + h->low_fence_offset, h->low_fence_bytes), &h->low_fence_offset,
              &h->low_fence_bytes);
  store_fence(page, Bytes(old + h->high_key_offset, h->high_key_bytes), &h->high_key_offset,
              &h->high_key_bytes);
  Slot* slots = mutable_slots_of(page);
  for (uint32_t i = 0; i < h->slot_count; ++i) {
    if (i == without) continue;
    const uint32_t bytes = record_bytes(old, slots[i]);
    const uint16_t from = slots[i].offset;
    slots[i].offset = take_heap(h, bytes);
    std::memcpy(page + slots[i].offset, old + from, bytes);
  }
}

}  // namespace

uint32_t key_head_of(Bytes suffix) noexcept {
  if (suffix.size() >= 4) return load_be32(suffix.data());
  uint32_t head = 0;
  for (size_t i = 0; i < suffix.size(); ++i)
    head |= uint32_t{static_cast<uint8_t>(suffix[i])} << (24 - 8 * i);
  return head;
}

int compare_bytes(Bytes a, Bytes b) noexcept {
  const size_t n = std::min(a.size(), b.size());
  const int order = n == 0 ? 0 : std::memcmp(a.data(), b.data(), n);
  if (order != 0) return order;
  return a.size() < b.size() ? -1 : (a.size() > b.size() ? 1 : 0);
}

uint16_t common_prefix_bytes(Bytes a, Bytes b) noexcept {
  const size_t n = std::min(a.size(), b.size());
  size_t i = 0;
  while (i < n && a[i] == b[i]) ++i;
  return static_cast<uint16_t>(i);
}

bool value_is_valid(uint8_t level, Bytes value) noexcept {
  if (level == 0) return has_record_header(value) && value.size() < kPageBytes;
  return value.size() == kChildBytes;
}

bool TreePageView::covers_left(Bytes key) const noexcept {
  return compare_bytes(low_fence(), key) <= 0;
}
bool TreePageView::covers_right(Bytes key) const noexcept {
  return high_is_infinite(header()) || compare_bytes(key, high_key()) < 0;
}

void TreePageView::copy_key(uint16_t slot, std::string* out) const {
  const Bytes head = prefix();
  const Bytes tail = suffix(slot);
  out->clear();
  out->reserve(head.size() + tail.size());
  out->append(head).append(tail);
}

int TreePageView::compare_key(uint16_t slot, Bytes full_key) const noexcept {
  const Bytes head = prefix();
  const int order = compare_bytes(head, full_key.substr(0, std::min(head.size(), full_key.size())));
  if (order != 0) return order;
  return compare_bytes(suffix(slot), full_key.substr(head.size()));
}

uint16_t TreePageView::lower_bound(Bytes key, bool* equal) const noexcept {
  const PageHeader* h = header();
  STRATA_DASSERT(covers_left(key) && covers_right(key));
  *equal = false;
  if (__builtin_expect(key.size() < h->prefix_bytes, 0))  // outside the fences: no key is equal
    return compare_bytes(key, prefix()) < 0 ? 0 : h->slot_count;
  const Bytes rest = key.substr(h->prefix_bytes);
  const uint32_t head = key_head_of(rest);
  const Slot* slots = slots_of(page_);
  // First slot whose head is not below; compiles to conditional moves.
  uint32_t base = 0;
  for (uint32_t n = h->slot_count; n > 0;) {
    const uint32_t half = n / 2;
    const bool below = slots[base + half].key_head < head;
    base = below ? base + half + 1 : base;
    n = below ? n - half - 1 : half;
  }
  // Among equal heads only the whole key decides.
  uint32_t low = base;
  uint32_t high = h->slot_count;
  uint32_t probe = base;  // the first one is nearly always the answer
  while (low < high) {
    const int order =
        slots[probe].key_head != head ? 1 : compare_bytes(suffix_at(page_, slots[probe]), rest);
    if (order == 0) {
      *equal = true;
      return static_cast<uint16_t>(probe);
    }
    if (order < 0) {
      low = probe + 1;
    } else {
      high = probe;
    }
    probe = low + (high - low) / 2;
  }
  return static_cast<uint16_t>(low);
}

uint16_t TreePageView::child_slot(Bytes key) const noexcept {
  STRATA_ASSERT(slot_count() > 0);
  bool equal = false;
  const uint16_t at = lower_bound(key, &equal);
  return equal || at == 0 ? at : static_cast<uint16_t>(at - 1);
}

uint32_t TreePageView::child(uint16_t slot) const noexcept { return load_u32(value(slot).data()); }

uint32_t TreePageView::free_bytes() const noexcept {
  return gap_bytes(header()) + header()->garbage_bytes;
}

uint32_t TreePageView::used_bytes() const noexcept {
  return kPageBytes - kPageHeaderBytes - header()->low_fence_bytes - header()->high_key_bytes -
         free_bytes();
}

uint32_t TreePageView::bytes_needed(Bytes full_key, size_t value_bytes) const noexcept {
  STRATA_DASSERT(full_key.size() >= header()->prefix_bytes);
  return static_cast<uint32_t>(kSlotBytes + kLengthBytes + full_key.size() -
                               header()->prefix_bytes + value_bytes);
}

bool TreePageView::fits_insert(Bytes full_key, size_t value_bytes) const noexcept {
  return bytes_needed(full_key, value_bytes) <= free_bytes();
}

bool TreePageView::fits_replace(uint16_t slot, size_t value_bytes) const noexcept {
  return value_bytes <= value(slot).size() + free_bytes();
}

bool fits_truncate_right(const char* page, uint16_t keep, Bytes high_key, uint16_t flags) noexcept {
  const TreePageView view(page);
  const bool infinite = (flags & kHighIsInfinity) != 0;
  const Bytes low = view.low_fence();
  const uint32_t prefix = infinite ? 0 : common_prefix_bytes(low, high_key);
  uint32_t need = kPageHeaderBytes + view.header()->low_fence_bytes +
                  (infinite ? 0 : static_cast<uint32_t>(high_key.size()));
  const Slot* slots = slots_of(page);
  for (uint32_t i = 0; i < keep; ++i)
    need += kSlotBytes + record_bytes(page, slots[i]) + view.header()->prefix_bytes - prefix;
  return need <= kPageBytes;
}

void init_tree_page(char* page, const TreePageInit& init) noexcept {
  const bool infinite = (init.flags & kHighIsInfinity) != 0;
  STRATA_ASSERT(init.low_fence.size() <= kMaxKeyBytes);
  STRATA_ASSERT(infinite || init.high_key.size() <= kMaxKeyBytes);
  STRATA_ASSERT(infinite || compare_bytes(init.low_fence, init.high_key) < 0);
  std::memset(page, 0, kPageBytes);
  PageHeader* h = header_of(page);
  h->format = kPageFormat;
  h->type = static_cast<uint8_t>(PageType::kTree);
  h->level = init.level;
  h->space = init.page_id.space;
  h->number = init.page_id.number;
  h->index_id = init.index_id.value;
  h->right_sibling = init.right_sibling;
  h->flags = init.flags;
  h->heap_top = kPageBytes;
  store_fence(page, init.low_fence, &h->low_fence_offset, &h->low_fence_bytes);
  if (!infinite) {
    store_fence(page, init.high_key, &h->high_key_offset, &h->high_key_bytes);
    h->prefix_bytes = common_prefix_bytes(init.low_fence, init.high_key);
  }
}

void insert_record(char* page, uint16_t slot, Bytes suffix, Bytes value) noexcept {
  PageHeader* h = header_of(page);
  const size_t record = kLengthBytes + suffix.size() + value.size();
  STRATA_ASSERT(slot <= h->slot_count);
  STRATA_ASSERT(kSlotBytes + record <= gap_bytes(h) + h->garbage_bytes);
  if (kSlotBytes + record > gap_bytes(h)) compact_without(page, kNoSlot);
  Slot* slots = mutable_slots_of(page);
  std::memmove(slots + slot + 1, slots + slot, (h->slot_count - slot) * kSlotBytes);
  ++h->slot_count;
  store_record(page, slots + slot, suffix, value);
}

void erase_record(char* page, uint16_t slot) noexcept {
  PageHeader* h = header_of(page);
  STRATA_ASSERT(slot < h->slot_count);
  Slot* slots = mutable_slots_of(page);
  release_heap(h, slots[slot].offset, record_bytes(page, slots[slot]));
  std::memmove(slots + slot, slots + slot + 1, (h->slot_count - slot - 1) * kSlotBytes);
  --h->slot_count;
}

void replace_value(char* page, uint16_t slot, Bytes value) noexcept {
  PageHeader* h = header_of(page);
  STRATA_ASSERT(slot < h->slot_count);
  STRATA_ASSERT(TreePageView(page).fits_replace(slot, value.size()));
  Slot* s = mutable_slots_of(page) + slot;
  const Bytes old_value = value_at(page, *s);
  if (value.size() <= old_value.size()) {
    h->garbage_bytes = static_cast<uint16_t>(h->garbage_bytes + old_value.size() - value.size());
    store_u16(page + s->offset, static_cast<uint16_t>(value.size()));
    copy_bytes(page + s->offset + kLengthBytes + s->suffix_bytes, value);
    return;
  }
  const uint32_t old_offset = s->offset;
  const uint32_t old_record = record_bytes(page, *s);
  const size_t record = kLengthBytes + s->suffix_bytes + value.size();
  if (record <= gap_bytes(h)) {
    store_record(page, s, suffix_at(page, *s), value);
    h->garbage_bytes = static_cast<uint16_t>(h->garbage_bytes + old_record);
    return;
  }
  char suffix[kPageBytes];
  const uint16_t suffix_bytes = s->suffix_bytes;
  std::memcpy(suffix, page + old_offset + kLengthBytes, suffix_bytes);
  compact_without(page, slot);
  store_record(page, s, Bytes(suffix, suffix_bytes), value);
}

void patch_value(char* page, uint16_t slot, uint16_t offset, Bytes bytes) noexcept {
  STRATA_ASSERT(slot < header_of(page)->slot_count);
  const Slot& s = slots_of(page)[slot];
  STRATA_ASSERT(offset + bytes.size() <= value_at(page, s).size());
  copy_bytes(page + s.offset + kLengthBytes + s.suffix_bytes + offset, bytes);
}

void truncate_right(char* page, uint16_t keep, Bytes high_key, uint32_t right_sibling,
                    uint16_t flags) noexcept {
  const bool infinite = (flags & kHighIsInfinity) != 0;
  STRATA_ASSERT(keep <= header_of(page)->slot_count);
  STRATA_ASSERT(infinite || high_key.size() <= kMaxKeyBytes);
  STRATA_ASSERT(infinite || compare_bytes(TreePageView(page).low_fence(), high_key) < 0);
  STRATA_ASSERT(fits_truncate_right(page, keep, high_key, flags));
  alignas(8) char old[kPageBytes];
  std::memcpy(old, page, kPageBytes);
  const PageHeader* was = header_of(old);
  const TreePageView view(old);
  init_tree_page(page, TreePageInit{.page_id = page_id_of(old),
                                    .index_id = IndexId{was->index_id},
                                    .level = was->level,
                                    .right_sibling = right_sibling,
                                    .flags = flags,
                                    .low_fence = view.low_fence(),
                                    .high_key = high_key});
  PageHeader* h = header_of(page);
  h->crc32c = was->crc32c;
  h->llsn = was->llsn;
  h->extra = was->extra;
  h->slot_count = keep;
  Slot* slots = mutable_slots_of(page);
  std::string longer;  // used only when the page widens and keys get back some of the prefix
  for (uint16_t i = 0; i < keep; ++i) {
    Bytes suffix = view.suffix(i);
    if (h->prefix_bytes >= was->prefix_bytes) {
      suffix.remove_prefix(h->prefix_bytes - was->prefix_bytes);
    } else {
      longer.assign(view.prefix().substr(h->prefix_bytes)).append(suffix);
      suffix = longer;
    }
    store_record(page, slots + i, suffix, view.value(i));
  }
}

void compact(char* page) noexcept { compact_without(page, kNoSlot); }

void normalise_tree_page(char* page) noexcept {
  compact(page);
  PageHeader* h = header_of(page);
  std::memset(page + slots_end(h), 0, gap_bytes(h));
}

namespace {

// Marks byte ranges of the heap and refuses one that overlaps an earlier one.
class HeapMap {
 public:
  bool mark(uint32_t offset, uint32_t bytes) noexcept {
    marked_ += bytes;
    for (uint32_t at = offset; at < offset + bytes;) {
      const uint32_t bit = at % 64;
      const uint32_t n = std::min(64 - bit, offset + bytes - at);
      const uint64_t mask = (n == 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1) << bit;
      uint64_t& word = words_[at / 64];
      if ((word & mask) != 0) return false;
      word |= mask;
      at += n;
    }
    return true;
  }
  [[nodiscard]] uint32_t marked() const noexcept { return marked_; }

 private:
  uint64_t words_[kPageBytes / 64] = {};
  uint32_t marked_ = 0;
};

// Nullptr: fine. Otherwise says what is wrong.
const char* check_fences(const char* page, HeapMap* heap) noexcept {
  const PageHeader* h = header_of(page);
  const auto in_heap = [h](uint32_t offset, uint32_t bytes) {
    return bytes == 0 ? offset == 0 : offset >= h->heap_top && offset + bytes <= kPageBytes;
  };
  if (h->low_fence_bytes > kMaxKeyBytes || h->high_key_bytes > kMaxKeyBytes)
    return "fence too long";
  if (!in_heap(h->low_fence_offset, h->low_fence_bytes)) return "low fence outside the heap";
  if (!in_heap(h->high_key_offset, h->high_key_bytes)) return "high key outside the heap";
  if (!heap->mark(h->low_fence_offset, h->low_fence_bytes) ||
      !heap->mark(h->high_key_offset, h->high_key_bytes))
    return "fences overlap";
  const TreePageView view(page);
  if (high_is_infinite(h)) {
    if (h->high_key_bytes != 0) return "high key present though infinite";
    if (h->prefix_bytes != 0) return "prefix present though high key is infinite";
    return nullptr;
  }
  if (compare_bytes(view.low_fence(), view.high_key()) >= 0) return "fences out of order";
  if (h->prefix_bytes != common_prefix_bytes(view.low_fence(), view.high_key()))
    return "prefix does not match the fences";
  return nullptr;
}

const char* check_record(const char* page, const Slot& s, HeapMap* heap) noexcept {
  const PageHeader* h = header_of(page);
  if (s.offset < h->heap_top || s.offset + kLengthBytes > kPageBytes)
    return "record outside the heap";
  const uint32_t bytes = record_bytes(page, s);
  if (s.offset + bytes > kPageBytes) return "record ends outside the page";
  if (!heap->mark(s.offset, bytes)) return "records overlap";
  if (s.key_head != key_head_of(suffix_at(page, s))) return "key head does not match the key";
  if (!value_is_valid(h->level, value_at(page, s))) return "value has a wrong size";
  return nullptr;
}

const char* find_problem(const char* page) noexcept {
  const PageHeader* h = header_of(page);
  if (h->format != kPageFormat) return "unknown format";
  if (h->type != static_cast<uint8_t>(PageType::kTree)) return "not a tree page";
  if (h->heap_top > kPageBytes || slots_end(h) > h->heap_top) return "slots and heap overlap";
  HeapMap heap;
  if (const char* problem = check_fences(page, &heap)) return problem;
  const TreePageView view(page);
  const Slot* slots = slots_of(page);
  Bytes previous = view.low_fence().substr(h->prefix_bytes);
  for (uint32_t i = 0; i < h->slot_count; ++i) {
    if (const char* problem = check_record(page, slots[i], &heap)) return problem;
    const Bytes suffix = suffix_at(page, slots[i]);
    const int order = compare_bytes(previous, suffix);
    if (order > 0 || (order == 0 && i > 0)) return i == 0 ? "key below the low fence" : "key order";
    previous = suffix;
  }
  if (h->slot_count > 0 && !high_is_infinite(h) &&
      compare_bytes(previous, view.high_key().substr(h->prefix_bytes)) >= 0)
    return "key not below the high key";
  if (kPageBytes - h->heap_top != heap.marked() + h->garbage_bytes)
    return "heap bytes do not add up";
  return nullptr;
}

}  // namespace

Status validate_tree_page(const char* page) {
  const char* problem = find_problem(page);
  if (__builtin_expect(problem == nullptr, 1)) return ok_status();
  const PageId id = page_id_of(page);
  return error_corruption("tree " + name_of(id) + ": " + problem);
}

}  // namespace strata
