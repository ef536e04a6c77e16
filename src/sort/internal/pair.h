// A pair as it lies in memory and in a run: key bytes u32 | value bytes u32 | key | value. Pure.
#pragma once

#include "base/bytes.h"

namespace strata {

constexpr size_t kPairHeaderBytes = 8;

inline Bytes pair_key(const char* pair) noexcept {
  return {pair + kPairHeaderBytes, load_u32(pair)};
}
inline Bytes pair_value(const char* pair) noexcept {
  return {pair + kPairHeaderBytes + load_u32(pair), load_u32(pair + 4)};
}
inline size_t pair_bytes(const char* pair) noexcept {
  return kPairHeaderBytes + load_u32(pair) + load_u32(pair + 4);
}
// Returns the end of the pair.
inline char* write_pair(char* to, Bytes key, Bytes value) noexcept {
  store_u32(to, static_cast<uint32_t>(key.size()));
  store_u32(to + 4, static_cast<uint32_t>(value.size()));
  to += kPairHeaderBytes;
  to += key.copy(to, key.size());
  return to + value.copy(to, value.size());
}

// The first eight bytes as a number, zeros behind a shorter key: where the heads of two keys differ
// they differ like the keys; where they are equal the keys decide.
inline uint64_t key_head(Bytes key) noexcept {
  if (key.size() >= 8) return load_be64(key.data());
  char bytes[8] = {};
  key.copy(bytes, key.size());
  return load_be64(bytes);
}

}  // namespace strata
