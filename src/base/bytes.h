// Little-endian loads and stores, byte views, varints and a bounds-checked reader. Pure.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace strata {

using Bytes = std::string_view;  // a view of raw bytes; lifetime as the caller documents

inline uint16_t load_u16(const void* p) noexcept {
  uint16_t v;
  std::memcpy(&v, p, 2);
  return v;
}
inline uint32_t load_u32(const void* p) noexcept {
  uint32_t v;
  std::memcpy(&v, p, 4);
  return v;
}
inline uint64_t load_u64(const void* p) noexcept {
  uint64_t v;
  std::memcpy(&v, p, 8);
  return v;
}
inline void store_u16(void* p, uint16_t v) noexcept { std::memcpy(p, &v, 2); }
inline void store_u32(void* p, uint32_t v) noexcept { std::memcpy(p, &v, 4); }
inline void store_u64(void* p, uint64_t v) noexcept { std::memcpy(p, &v, 8); }
inline uint32_t load_be32(const void* p) noexcept { return __builtin_bswap32(load_u32(p)); }
inline uint64_t load_be64(const void* p) noexcept { return __builtin_bswap64(load_u64(p)); }
inline void store_be32(void* p, uint32_t v) noexcept { store_u32(p, __builtin_bswap32(v)); }
inline void store_be64(void* p, uint64_t v) noexcept { store_u64(p, __builtin_bswap64(v)); }

inline void append_u8(std::string* out, uint8_t v) { out->push_back(static_cast<char>(v)); }
inline void append_u16(std::string* out, uint16_t v) {
  out->append(reinterpret_cast<char*>(&v), 2);
}
inline void append_u32(std::string* out, uint32_t v) {
  out->append(reinterpret_cast<char*>(&v), 4);
}
inline void append_u64(std::string* out, uint64_t v) {
  out->append(reinterpret_cast<char*>(&v), 8);
}
inline void append_be64(std::string* out, uint64_t v) { append_u64(out, __builtin_bswap64(v)); }
inline void append_bytes32(std::string* out, Bytes b) {  // u32 length, bytes
  append_u32(out, static_cast<uint32_t>(b.size()));
  out->append(b.data(), b.size());
}

// Reads untrusted bytes. After any failed read `ok()` is false and every later read returns zero.
class ByteReader {
 public:
  explicit ByteReader(Bytes b) noexcept : p_(b.data()), end_(b.data() + b.size()) {}
  [[nodiscard]] bool ok() const noexcept { return ok_; }
  [[nodiscard]] size_t remaining() const noexcept {
    return ok_ ? static_cast<size_t>(end_ - p_) : 0;
  }
  uint8_t u8() noexcept { return take(1) ? static_cast<uint8_t>(p_[-1]) : 0; }
  uint16_t u16() noexcept { return take(2) ? load_u16(p_ - 2) : 0; }
  uint32_t u32() noexcept { return take(4) ? load_u32(p_ - 4) : 0; }
  uint64_t u64() noexcept { return take(8) ? load_u64(p_ - 8) : 0; }
  Bytes bytes(size_t n) noexcept { return take(n) ? Bytes(p_ - n, n) : Bytes(); }
  Bytes bytes32() noexcept { return bytes(u32()); }

 private:
  bool take(size_t n) noexcept {
    if (!ok_ || static_cast<size_t>(end_ - p_) < n) return ok_ = false;
    p_ += n;
    return true;
  }
  const char* p_;
  const char* end_;
  bool ok_ = true;
};

}  // namespace strata
