// How many files and sockets this process may have open, and who may have how many of them.
//
//   DM4  Everything that outsiders can make the daemon open has a share of its own. What the log
//        and the pages need to go on is never taken by connections, however many there are.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace strata::daemon {

struct DescriptorShares {
  uint32_t http = 0;   // connections of people and tools
  uint32_t rpc = 0;    // connections of compute nodes and peers
  uint32_t pages = 0;  // files of pages that are kept open
                       // The rest: the node's own files, the registry, own connections to peers.
};

// Of a limit. kInvalidArgument: it is too low to work with; says what to do.
StatusOr<DescriptorShares> share_descriptors(uint64_t limit);
// Raises the process's soft limit as far as it may, and shares that.
StatusOr<DescriptorShares> reserve_descriptors();

}  // namespace strata::daemon
