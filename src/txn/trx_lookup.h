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
  Lsn commit_lsn;      // kCommitting: end of the commit group
  bool freed = false;  // kCommitting, of this node: its rows may be had (T16)
  // Whether it is the owner of rows that it has changed: nobody else may change or lock them.
  [[nodiscard]] constexpr bool owns_rows() const noexcept {
    return state == TrxState::kActive || state == TrxState::kPrepared ||
           (state == TrxState::kCommitting && !freed);
  }
};

}  // namespace strata
