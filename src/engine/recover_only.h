// Recovery without service: what a kernel has left on a place of its own among several writers is
// brought to its end by another process, while the others go on.
//   E31  It is an ordinary opening and an ordinary shutdown. In between nobody has a session; the
//        shutdown comes once every transaction that was found active is undone. Prepared ones are
//        left as they are.
#pragma once

#include <cstdint>
#include <string>

#include "base/stop_flag.h"
#include "engine/kernel_seams.h"

namespace strata::engine {

struct RecoveredPlace {
  uint64_t log_bytes = 0;    // read
  uint64_t rolled_back = 0;  // transactions
  uint64_t prepared = 0;     // likewise; they wait for a decision
  uint64_t open_us = 0;      // until they were all known, and redo was done
  uint64_t total_us = 0;
};

// Blocks; a rollback takes as long as it takes. options.background has to be set. What `seams`
// points to is not used any more when this returns, and has to be left in order by the caller if
// it was OK; after an error all is as if the process had been killed. Errors: those of
// open_with_seams(), of Kernel::shutdown(), of seams.answers if this node is fenced; interrupted:
// the flag was raised.
StatusOr<RecoveredPlace> recover_only(const KernelOptions& options, const KernelSeams& seams,
                                      StopFlag* stop);
[[nodiscard]] std::string text_of(const RecoveredPlace& what);  // for people

}  // namespace strata::engine
