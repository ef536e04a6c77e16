#include "memnode/pool/slot_header.h"

#include <atomic>
#include <cstddef>
#include <string>

#include "base/assert.h"
#include "base/crc32c.h"

namespace strata::memnode {
namespace {

static_assert(offsetof(SlotHeader, generation) == 0);
static_assert(offsetof(SlotHeader, page) == 8);
static_assert(offsetof(SlotHeader, llsn) == 16);
static_assert(offsetof(SlotHeader, crc32c) == 24);
static_assert(offsetof(SlotHeader, dirty_from) == 32);

constexpr uint32_t kLsnBits = 48;
constexpr uint64_t kLsnMask = (uint64_t{1} << kLsnBits) - 1;
constexpr uint64_t kClean = 0;
constexpr uint64_t kFree = kLsnMask;
constexpr uint64_t kGenerationMax = uint64_t{1} << 62;

template <typename Word>
void set(Word* word, Word value) noexcept {
  std::atomic_ref<Word>(*word).store(value, std::memory_order_release);  // PH3
}

uint32_t checksum(uint64_t generation, uint64_t page, uint64_t llsn) noexcept {
  const uint64_t words[3] = {generation, page, llsn};
  return crc32c(words, sizeof words);
}

// A word that says `value` in a header of that generation.
uint64_t word_of(uint64_t value, uint64_t generation) noexcept {
  const uint64_t words[2] = {value, generation};
  const uint32_t crc = crc32c(words, sizeof words);
  return (uint64_t{(crc >> 16) ^ (crc & 0xffff)} << kLsnBits) | value;
}

uint64_t value_of(uint64_t word) noexcept { return word & kLsnMask; }

uint64_t value_of(Lsn dirty_from) noexcept {
  if (dirty_from == kNeverChanged) return kClean;
  STRATA_ASSERT(may_be_dirty_from(dirty_from));
  return dirty_from.value;
}

}  // namespace

StatusOr<HeaderContent> read_header(const SlotHeader& header) {
  const uint64_t generation = header.generation;
  const uint64_t value = value_of(header.dirty_from);
  const auto word_is_for = [&](uint64_t wanted) {
    return header.dirty_from == word_of(value, wanted);
  };
  const auto bytes_are_for = [&](uint64_t wanted) {
    return header.crc32c == checksum(wanted, header.page, header.llsn);
  };
  if (header.reserved != 0 || header.unused[0] != 0 || header.unused[1] != 0 ||
      header.unused[2] != 0)
    return error_corruption("bytes of a slot's header that have to be zero");
  if (generation >= kGenerationMax) return error_corruption("a slot's generation");
  HeaderContent content;
  content.generation = generation | 1;
  if (generation % 2 == 1) {
    if (value == kFree && word_is_for(generation)) return content;
    return error_corruption("the header of a free slot");
  }
  if (!bytes_are_for(generation)) return error_corruption("the header of a page's slot");
  if (value == kFree) {  // a store is missing of publishing, or of freeing
    if (word_is_for(generation - 1) || word_is_for(generation + 1)) return content;
    return error_corruption("the header of a slot that was to be free");
  }
  if (!word_is_for(generation)) return error_corruption("the first change in a slot's header");
  content.published = true;
  content.generation = generation;
  content.id = PageId::unpack(header.page);
  content.llsn = Llsn{header.llsn};
  if (value != kClean) content.dirty_from = Lsn{value};
  return content;
}

void begin_header(SlotHeader* header) noexcept {
  uint64_t next = header->generation + 1;
  if (next >= kGenerationMax) next = 1;  // it was damaged
  next |= 1;
  set(&header->dirty_from, word_of(kFree, next));
  set(&header->generation, next);
  header->reserved = 0;
  for (uint64_t& unused : header->unused) unused = 0;
}

void free_header(SlotHeader* header) noexcept {
  const uint64_t next = header->generation | 1;
  set(&header->dirty_from, word_of(kFree, next));
  set(&header->generation, next);
}

void publish_header(SlotHeader* header, PageId id, Llsn llsn, Lsn dirty_from) noexcept {
  STRATA_ASSERT(header->generation % 2 == 1);
  const uint64_t next = header->generation + 1;
  set(&header->page, id.packed());
  set(&header->llsn, llsn.value);
  set(&header->crc32c, checksum(next, id.packed(), llsn.value));
  set(&header->generation, next);
  set(&header->dirty_from, word_of(value_of(dirty_from), next));
}

void set_dirty_from(SlotHeader* header, Lsn dirty_from) noexcept {
  STRATA_ASSERT(header->generation % 2 == 0);
  set(&header->dirty_from, word_of(value_of(dirty_from), header->generation));
}

}  // namespace strata::memnode
