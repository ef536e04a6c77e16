// Numbers that several nodes give out of one counter: each takes a range for itself, durably enough
// that nobody takes it again, and gives its numbers out from memory. Owned by space. A node that is
// alone counts in memory and writes each number down with the record that has it (raise_slot); it
// has none of these.
//
// AUTO_INCREMENT comes from here. Hidden row ids do not: the node's number stands in their upper 8
// bits, so each node counts in a part of its own. Extents do not either: their owner stands in the
// allocation map, which is a page like any other (SP1), and a node claims them ahead of need in
// ensure_room().
//
//   MW11  Ranges of one counter never overlap, and no range holds a number at or below one that was
//         noted with raise_slot() before the range was taken.
//   MW12  A range is used only by the node that took it. What a crash leaves of it is lost: gaps.
#pragma once

#include <cstdint>
#include <memory>

#include "base/ids.h"
#include "base/status.h"
#include "space/space_manager.h"

namespace strata {

struct NumberRange {  // [first, end); empty: the counter is used up
  uint64_t first = 0;
  uint64_t end = 0;
};

class NumberSource {
 public:
  virtual ~NumberSource() = default;
  // Takes the next `count` numbers at or above `at_least`, fewer at the end of what 64 bits hold.
  // Thread-safe. Blocks; no latch held. Errors: those of changing a page, and kNotFound: the space
  // is dropped.
  virtual StatusOr<NumberRange> reserve(SpaceId space, HeaderSlot slot, uint64_t at_least,
                                        uint64_t count) = 0;
};

// The counters are the largest numbers taken or noted, in the header of their space. Right for
// several nodes because the page lock of the header goes with it, and the log of whoever had it
// before is durable by then (bufpool PL2).
std::unique_ptr<NumberSource> make_header_numbers(BufferPool* pool, Log* log, SpaceManager* spaces);

}  // namespace strata
