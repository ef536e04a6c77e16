// Slotted layout of tree pages: fences, prefix compression, slot directory with key heads. Pure.
//
//   header 64 | slots, growing up (8 bytes each) | gap | heap, growing down to kPageBytes
//   slot:   key_head u32 | record offset u16 | key suffix bytes u16
//   record: value bytes u16 | key suffix | value
//   SL1  Slots are sorted by key; every key k of the page satisfies low_fence <= k < high_key.
//   SL2  A stored key is the full key without the first prefix_bytes bytes (PageHeader).
//        prefix_bytes = length of the common prefix of both fences (0 when high is infinite),
//        fixed when the page is initialised or its fences change.
//   SL3  key_head is the first 4 bytes of the suffix, big endian, zero padded: it orders first.
//   SL4  Inserting moves slots, never records; the heap is compacted only when the gap is too
//        small, as a pure function of the page's bytes, so redo does the same anywhere.
//   SL5  Fences are stored in the heap like records and survive compaction.
//   SL6  Heap bytes = fences + records + garbage_bytes; nothing overlaps.
//   SL7  A leaf value has at least a RecordHeader, an inner value is exactly one page number.
#pragma once

#include <cstdint>
#include <string>

#include "base/assert.h"
#include "base/bytes.h"
#include "base/ids.h"
#include "page/page.h"

namespace strata {

struct Slot {
  uint32_t key_head;
  uint16_t offset;
  uint16_t suffix_bytes;
};
static_assert(sizeof(Slot) == 8);

// Largest encoded key and largest key+value the tree accepts, so that a page always holds two
// fences and at least two records.
constexpr uint32_t kMaxKeyBytes = 3600;
constexpr uint32_t kMaxRecordBytes = 4060;  // key + value, see btree/README.md for the arithmetic

struct TreePageInit {
  PageId page_id{};
  IndexId index_id{};
  uint8_t level = 0;
  uint32_t right_sibling = kNoPage;
  uint16_t flags = 0;  // kHighIsInfinity means high_key is ignored
  Bytes low_fence{};
  Bytes high_key{};
};

// Where things lie; inline because every look at a record comes here.
namespace page_internal {
constexpr uint32_t kLengthBytes = 2;  // value length in front of every record
inline const Slot* slots_of(const char* page) noexcept {
  return reinterpret_cast<const Slot*>(page + kPageHeaderBytes);
}
inline Bytes suffix_at(const char* page, const Slot& s) noexcept {
  return Bytes(page + s.offset + kLengthBytes, s.suffix_bytes);
}
inline Bytes value_at(const char* page, const Slot& s) noexcept {
  return Bytes(page + s.offset + kLengthBytes + s.suffix_bytes, load_u16(page + s.offset));
}
}  // namespace page_internal

// Read-only view. `page` must have been validated with validate_tree_page() if it came from
// outside.
class TreePageView {
 public:
  explicit TreePageView(const char* page) noexcept : page_(page) {}
  [[nodiscard]] const PageHeader* header() const noexcept { return header_of(page_); }
  [[nodiscard]] uint16_t slot_count() const noexcept { return header()->slot_count; }
  [[nodiscard]] bool is_leaf() const noexcept { return header()->level == 0; }
  [[nodiscard]] bool has_flag(PageFlags f) const noexcept { return (header()->flags & f) != 0; }
  [[nodiscard]] Bytes low_fence() const noexcept {
    return Bytes(page_ + header()->low_fence_offset, header()->low_fence_bytes);
  }
  [[nodiscard]] Bytes high_key() const noexcept {  // meaningless with kHighIsInfinity
    return Bytes(page_ + header()->high_key_offset, header()->high_key_bytes);
  }
  [[nodiscard]] Bytes prefix() const noexcept {  // first prefix_bytes of the low fence
    return low_fence().substr(0, header()->prefix_bytes);
  }
  [[nodiscard]] bool covers_left(Bytes key) const noexcept;   // low_fence <= key
  [[nodiscard]] bool covers_right(Bytes key) const noexcept;  // key < high_key
  [[nodiscard]] Bytes suffix(uint16_t slot) const noexcept {
    STRATA_DASSERT(slot < slot_count());
    return page_internal::suffix_at(page_, page_internal::slots_of(page_)[slot]);
  }
  [[nodiscard]] Bytes value(uint16_t slot) const noexcept {
    STRATA_DASSERT(slot < slot_count());
    return page_internal::value_at(page_, page_internal::slots_of(page_)[slot]);
  }
  void copy_key(uint16_t slot, std::string* out) const;  // replaces *out with the full key
  [[nodiscard]] int compare_key(uint16_t slot, Bytes full_key) const noexcept;  // sign(slot - key)
  // First slot whose key is >= key; *equal says whether it is equal. `key` must be inside the
  // fences.
  [[nodiscard]] uint16_t lower_bound(Bytes key, bool* equal) const noexcept;
  // Inner pages: slot of the child that covers key (last slot <= key). slot_count() > 0.
  [[nodiscard]] uint16_t child_slot(Bytes key) const noexcept;
  [[nodiscard]] uint32_t child(uint16_t slot) const noexcept;  // value as page number
  [[nodiscard]] uint32_t free_bytes() const noexcept;          // after a compaction
  [[nodiscard]] uint32_t used_bytes() const noexcept;          // records + slots, without fences
  // Bytes an insert of this full key and value needs (slot included).
  [[nodiscard]] uint32_t bytes_needed(Bytes full_key, size_t value_bytes) const noexcept;
  [[nodiscard]] bool fits_insert(Bytes full_key, size_t value_bytes) const noexcept;
  [[nodiscard]] bool fits_replace(uint16_t slot, size_t value_bytes) const noexcept;

 private:
  const char* page_;
};

// The first 4 bytes of a stored key as a number that orders like the bytes (SL3).
uint32_t key_head_of(Bytes suffix) noexcept;
// Sign of a - b as byte strings: memcmp, then length.
int compare_bytes(Bytes a, Bytes b) noexcept;
uint16_t common_prefix_bytes(Bytes a, Bytes b) noexcept;
// A leaf value starts with a RecordHeader, an inner value is a page number.
bool value_is_valid(uint8_t level, Bytes value) noexcept;
// truncate_right() with these arguments leaves a page that fits.
bool fits_truncate_right(const char* page, uint16_t keep, Bytes high_key, uint16_t flags) noexcept;

// The mutators redo uses; nobody else changes a page. Preconditions are asserted (checked by the
// caller: redo checks bytes that came from a log first and returns kDataLoss). Arguments do not
// point into the page.
void init_tree_page(char* page, const TreePageInit& init) noexcept;
void insert_record(char* page, uint16_t slot, Bytes suffix, Bytes value) noexcept;
void erase_record(char* page, uint16_t slot) noexcept;
void replace_value(char* page, uint16_t slot, Bytes value) noexcept;  // any length that fits
void patch_value(char* page, uint16_t slot, uint16_t offset, Bytes bytes) noexcept;  // same length
// Keeps the first `keep` slots, sets a new high key, right sibling and flags (with kHighIsInfinity
// the key is ignored), recomputes the prefix. The new high key may also lie right of the old one.
void truncate_right(char* page, uint16_t keep, Bytes high_key, uint32_t right_sibling,
                    uint16_t flags) noexcept;
void compact(char* page) noexcept;
// Zeroes the gap between slots and heap (after compacting), so that an image has no stale bytes.
void normalise_tree_page(char* page) noexcept;

// Full structural check of an untrusted tree page (bounds, order, heads, fences): kDataLoss or OK.
Status validate_tree_page(const char* page);

}  // namespace strata
