// What is known of a transaction. Read from the table in memory, from status pages, or from the
// node whose transaction it is.
#pragma once

#include <cstdint>

#include "base/ids.h"

namespace strata {

enum class TrxState : uint8_t {
  kNone = 0,
  kActive = 1,
  kPrepared = 2,
  kCommitting = 3,
  kCommitted = 4,
  kAborted = 5
};

// What a reader needs to decide.
struct TrxLookup {
  TrxState state = TrxState::kNone;
  Cts cts;
  Lsn commit_lsn;  // kCommitting: end of the commit group
};

}  // namespace strata
