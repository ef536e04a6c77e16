// Payload of a secondary entry: no outside values, length of the clustered key at the end of the
// entry's key (u16), then what the glue wants to read without the row.
#pragma once

#include "base/assert.h"
#include "row/row_store.h"

namespace strata::engine {

inline void make_entry_payload(size_t clustered_key_bytes, Bytes covering, std::string* scratch,
                               std::string* out) {
  STRATA_ASSERT(clustered_key_bytes <= UINT16_MAX);
  scratch->clear();
  append_u16(scratch, static_cast<uint16_t>(clustered_key_bytes));
  scratch->append(covering);
  *out = encode_payload({}, *scratch);
}

inline Bytes entry_of(Bytes payload) { return payload.size() >= 3 ? payload.substr(1) : Bytes(); }

inline size_t clustered_bytes_of(Bytes key, Bytes payload) {
  const Bytes entry = entry_of(payload);
  const size_t n = entry.size() >= 2 ? load_u16(entry.data()) : 0;
  return n <= key.size() ? n : 0;
}

// Of an entry's whole key.
inline Bytes clustered_key_of(Bytes key, Bytes payload) {
  return key.substr(key.size() - clustered_bytes_of(key, payload));
}

inline Bytes covering_of(Bytes payload) {
  const Bytes entry = entry_of(payload);
  return entry.size() >= 2 ? entry.substr(2) : Bytes();
}

}  // namespace strata::engine
