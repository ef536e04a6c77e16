#include "base/crc32c.h"

#include <nmmintrin.h>

#include <array>
#include <cstring>

namespace strata {
namespace {

// The processor's instruction takes three cycles and can begin one in each, so long inputs are cut
// into three lanes that are summed side by side. A lane's sum is carried over the bytes behind it
// by a table: what zero bytes do to a sum is linear in its bits.
constexpr size_t kLongLane = 1024;
constexpr size_t kShortLane = 128;

using BitImages = std::array<uint32_t, 32>;              // what becomes of each bit of a sum
using Carry = std::array<std::array<uint32_t, 256>, 4>;  // ... of each byte

constexpr uint32_t image_of(const BitImages& images, uint32_t sum) {
  uint32_t image = 0;
  for (size_t bit = 0; bit < 32; ++bit)
    if ((sum >> bit & 1) != 0) image ^= images[bit];
  return image;
}

// Over `bytes` zero bytes, a power of two.
constexpr Carry carry_over(size_t bytes) {
  BitImages images{};
  images[0] = 0x82f63b78;  // one zero bit: the reflected polynomial
  for (size_t bit = 1; bit < 32; ++bit) images[bit] = uint32_t{1} << (bit - 1);
  for (size_t bits = 1; bits < bytes * 8; bits *= 2) {
    BitImages twice{};
    for (size_t bit = 0; bit < 32; ++bit) twice[bit] = image_of(images, images[bit]);
    images = twice;
  }
  Carry carry{};
  for (size_t byte = 0; byte < 4; ++byte)
    for (uint32_t value = 0; value < 256; ++value)
      carry[byte][value] = image_of(images, value << (8 * byte));
  return carry;
}

constexpr Carry kOverLongLane = carry_over(kLongLane);
constexpr Carry kOverShortLane = carry_over(kShortLane);

uint32_t carried(const Carry& carry, uint32_t sum) noexcept {
  return carry[0][sum & 255] ^ carry[1][sum >> 8 & 255] ^ carry[2][sum >> 16 & 255] ^
         carry[3][sum >> 24];
}

uint64_t word_at(const unsigned char* p) noexcept {
  uint64_t word;
  std::memcpy(&word, p, 8);
  return word;
}

template <size_t kLane>
uint32_t three_lanes(const unsigned char* p, uint32_t sum, const Carry& carry) noexcept {
  uint64_t a = sum, b = 0, c = 0;
  for (size_t i = 0; i < kLane; i += 8) {
    a = _mm_crc32_u64(a, word_at(p + i));
    b = _mm_crc32_u64(b, word_at(p + kLane + i));
    c = _mm_crc32_u64(c, word_at(p + 2 * kLane + i));
  }
  const uint32_t ab = carried(carry, static_cast<uint32_t>(a)) ^ static_cast<uint32_t>(b);
  return carried(carry, ab) ^ static_cast<uint32_t>(c);
}

}  // namespace

// x86-64-v2 (the project's baseline) always has SSE4.2.
uint32_t crc32c(const void* data, size_t bytes, uint32_t seed) noexcept {
  const auto* p = static_cast<const unsigned char*>(data);
  uint32_t sum = ~seed;
  for (; bytes >= 3 * kLongLane; bytes -= 3 * kLongLane, p += 3 * kLongLane)
    sum = three_lanes<kLongLane>(p, sum, kOverLongLane);
  for (; bytes >= 3 * kShortLane; bytes -= 3 * kShortLane, p += 3 * kShortLane)
    sum = three_lanes<kShortLane>(p, sum, kOverShortLane);
  uint64_t word_sum = sum;
  for (; bytes >= 8; bytes -= 8, p += 8) word_sum = _mm_crc32_u64(word_sum, word_at(p));
  sum = static_cast<uint32_t>(word_sum);
  for (; bytes != 0; --bytes, ++p) sum = _mm_crc32_u8(sum, *p);
  return ~sum;
}

}  // namespace strata
