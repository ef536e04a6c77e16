// A version of a page: the state a section of the log gives it. Pure.
#pragma once

#include <cstdint>

#include "base/ids.h"

namespace strata::storenode {

enum VersionFlags : uint8_t {
  kRestartsChain = 1,  // its section ignores the page's old bytes (redo RD4)
  kMaterialized = 2,   // the page itself is stored
  kOldestKept = 4,     // versions before it were collected (VM4)
  kUnwritten = 128,    // its entry is in memory only (VM7); never encoded
};

struct Version {
  Llsn llsn;                    // of its group; with the page id, its name
  Llsn prev_llsn;               // the page's version before it, as its section says
  Lsn lsn;                      // where its group starts in the stream
  StreamId stream;              //
  uint32_t section_offset = 0;  // of the section's header in the group
  uint32_t section_bytes = 0;   // header and operations; 0: not known (VD5)
  uint32_t section_crc32c = 0;  // of these bytes
  uint8_t flags = 0;            // VersionFlags

  [[nodiscard]] bool is(VersionFlags flag) const noexcept { return (flags & flag) != 0; }
};

}  // namespace strata::storenode
