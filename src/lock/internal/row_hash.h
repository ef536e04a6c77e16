// Rows as keys of the lock table's hash tables.
#pragma once

#include <cstdint>
#include <cstring>

#include "base/bytes.h"
#include "base/ids.h"
#include "lock/row_id.h"

namespace strata::lock_internal {

inline uint64_t hash_row(RowId row) noexcept {
  uint64_t h = mix64(uint64_t{row.index.value} + 0x9e3779b97f4a7c15ull);
  const char* p = row.key.data();
  size_t n = row.key.size();
  for (; n >= 8; p += 8, n -= 8) h = mix64(h ^ load_u64(p));
  uint64_t tail = 0;
  if (n != 0) std::memcpy(&tail, p, n);
  return mix64(h ^ tail ^ (uint64_t{row.key.size()} << 56));
}

}  // namespace strata::lock_internal
