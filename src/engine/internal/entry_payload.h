// Payload of a secondary entry: no outside values, length of the clustered key at the end of the
// entry's key (u16), then what the glue wants to read without the row.
#pragma once

#include "row/row_store.h"

namespace strata::engine {

inline void make_entry_payload(size_t clustered_key_bytes, Bytes covering, std::string* scratch,
                               std::string* out) {
  scratch->clear();
  append_u16(scratch, static_cast<uint16_t>(clustered_key_bytes));
  scratch->append(covering);
  *out = encode_payload({}, *scratch);
}

}  // namespace strata::engine
