// Reads a trace (trace_format.h) as what replay() takes.
//   FM32  What replay() makes of a trace with the recording's own policy is what the recording
//         counted, number by number, as long as no page was pinned.
// A page that was written is taken to have been written when it was touched last before it left.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "farmem/policy/policy_options.h"
#include "farmem/policy/replay.h"

namespace strata::farmem {

struct Trace {
  std::string program;
  uint64_t pid = 0;
  uint64_t pages = 0;  // of the region
  PolicyOptions policy;
  std::vector<Access> accesses;
  PageCounts recorded;
  uint64_t pinned = 0;     // pages that were to go and could not, which is not replayed
  uint64_t pages_end = 0;  // of the pages that are named: the last one's number, and one
  int error = 0;           // not 0: the errno for which the recording ended early
};

// Errors: kIoError, kNotFound (the file), kUnsupported (of another version), kCorruption (no trace,
// or damaged: it says at which record).
StatusOr<Trace> read_trace(const std::string& path);

}  // namespace strata::farmem
