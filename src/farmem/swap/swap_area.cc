#include "farmem/swap/swap_area.h"

#include <cstring>

#include "base/assert.h"
#include "base/bytes.h"

namespace strata::farmem {
namespace {

constexpr size_t kVersionAt = 1024;
constexpr size_t kLastPageAt = 1028;
constexpr size_t kSignatureAt = kPageBytes - 10;
constexpr const char* kSignature = "SWAPSPACE2";
constexpr uint64_t kPagesMin = 10;
constexpr uint64_t kPagesMax = 1ull << 32;

}  // namespace

SwapHeader swap_header(uint64_t pages) noexcept {
  STRATA_ASSERT(pages >= kPagesMin && pages <= kPagesMax);
  SwapHeader header{};
  store_u32(header.data() + kVersionAt, 1);
  store_u32(header.data() + kLastPageAt, static_cast<uint32_t>(pages - 1));
  std::memcpy(header.data() + kSignatureAt, kSignature, std::strlen(kSignature));
  return header;
}

std::string swap_in_use(const std::string& proc_swaps) {
  const size_t second_line = proc_swaps.find('\n');
  if (second_line == std::string::npos) return "";
  const std::string line = proc_swaps.substr(second_line + 1);
  return line.substr(0, line.find_first_of(" \t\n"));
}

}  // namespace strata::farmem
