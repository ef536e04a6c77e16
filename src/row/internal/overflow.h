// Freeing values outside the row; private to this folder.
#pragma once

#include "row/row_store.h"

namespace strata::row_internal {

// Frees the chain or what an interrupted call left of it; a chain that is not there is no error.
// Nobody reads it any more. Blocks; no latch held.
Status free_overflow(RowContext* context, SpaceId space, const OverflowRef& ref);

}  // namespace strata::row_internal
