// A lockable row: tree and full key.
#pragma once

#include "base/bytes.h"
#include "base/ids.h"

namespace strata {

struct RowId {
  IndexId index;
  Bytes key;
};

}  // namespace strata
