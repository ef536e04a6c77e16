// CRC-32C (Castagnoli). Hardware instruction where the CPU has it, table otherwise. Pure.
#pragma once

#include <cstddef>
#include <cstdint>

namespace strata {
[[nodiscard]] uint32_t crc32c(const void* data, size_t bytes, uint32_t seed = 0) noexcept;
}  // namespace strata
