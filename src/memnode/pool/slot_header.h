// What a slot's header says, and the order in which it is changed, so that a process that is
// killed at any place leaves one that is understood, and damage is told from that. Pure.
//
//   PH1  A header is published, or free. Published: the generation is even; crc32c covers
//        generation, page and llsn; the word dirty_from has an Lsn or zero. Free: dirty_from says
//        so; page, llsn and crc32c mean nothing.
//   PH2  The check in dirty_from covers a generation, too: the header's, or the one that it had or
//        will have. So no store leaves something that might be damage, and the word that tells
//        published from free differs by many bits: publishing  page, llsn, crc32c (of the next
//        generation) | generation | dirty_from freeing     dirty_from (of the next generation) |
//        generation
//   PH3  A generation never goes back. A reader that sees the same even one before and after the
//        page has read one content: stores are releases, and the reader's loads are to be
//        acquires.
#pragma once

#include <cstdint>

#include "base/ids.h"
#include "base/status.h"
#include "memnode/pool/pool.h"

namespace strata::memnode {

// Those that dirty_from can state.
[[nodiscard]] constexpr bool may_be_dirty_from(Lsn lsn) noexcept {
  return !lsn.is_zero() && lsn.value < (uint64_t{1} << 48) - 1;
}

struct HeaderContent {
  bool published = false;
  uint64_t generation = 0;  // odd unless published
  PageId id;
  Llsn llsn;
  Lsn dirty_from = kNeverChanged;  // that: clean
};

// What it says. kDataLoss: no state that was ever left there.
StatusOr<HeaderContent> read_header(const SlotHeader& header);
// Of a header that may hold anything: free, with a larger generation if that can be told.
void begin_header(SlotHeader* header) noexcept;
// From published or free to free.
void free_header(SlotHeader* header) noexcept;
// From free to published with the next generation. kNeverChanged: clean.
void publish_header(SlotHeader* header, PageId id, Llsn llsn, Lsn dirty_from) noexcept;
// Of a published one.
void set_dirty_from(SlotHeader* header, Lsn dirty_from) noexcept;

}  // namespace strata::memnode
