// A byte buffer that is filled row after row without giving its memory back.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "base/bytes.h"

namespace strata::glue {

class Buffer {
 public:
  void clear() noexcept { size_ = 0; }
  // Room for `bytes` more; the pointer is valid until the next call that may grow.
  unsigned char* grow(size_t bytes) {
    if (size_ + bytes > storage_.size())
      storage_.resize(std::max(2 * storage_.size(), size_ + bytes + 64));
    unsigned char* const at = data() + size_;
    size_ += bytes;
    return at;
  }
  void append(const void* bytes, size_t size) {
    if (size != 0) std::memcpy(grow(size), bytes, size);
  }
  void assign(Bytes bytes) {
    size_ = 0;
    append(bytes.data(), bytes.size());
  }
  void append_byte(unsigned char byte) { *grow(1) = byte; }
  void shrink(size_t size) noexcept { size_ = size; }
  [[nodiscard]] unsigned char* data() noexcept {
    return reinterpret_cast<unsigned char*>(storage_.data());
  }
  [[nodiscard]] const unsigned char* data() const noexcept {
    return reinterpret_cast<const unsigned char*>(storage_.data());
  }
  [[nodiscard]] size_t size() const noexcept { return size_; }
  [[nodiscard]] Bytes bytes() const noexcept { return Bytes(storage_.data(), size_); }

 private:
  std::string storage_;
  size_t size_ = 0;
};

// Variable-length unsigned numbers, 7 bits a byte, low first.
inline void append_varint(Buffer* out, uint64_t value) {
  while (value >= 0x80) {
    out->append_byte(static_cast<unsigned char>(value | 0x80));
    value >>= 7;
  }
  out->append_byte(static_cast<unsigned char>(value));
}
inline size_t varint_bytes(uint64_t value) {
  size_t bytes = 1;
  while (value >= 0x80) {
    value >>= 7;
    ++bytes;
  }
  return bytes;
}
// Untrusted input: false when it ends too early.
inline bool read_varint(const unsigned char** p, const unsigned char* end, uint64_t* value) {
  *value = 0;
  for (unsigned shift = 0; shift < 64 && *p < end; shift += 7) {
    const unsigned char byte = *(*p)++;
    *value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return true;
  }
  return false;
}

}  // namespace strata::glue
