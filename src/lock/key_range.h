// A range of keys of one index.
#pragma once

#include "base/bytes.h"

namespace strata {

struct KeyRange {  // [low, high) of full keys; `infinite`: to the end of the index
  Bytes low;
  Bytes high;
  bool infinite = false;
  [[nodiscard]] bool empty() const noexcept { return !infinite && high <= low; }
};

}  // namespace strata
