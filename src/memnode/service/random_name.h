// Names of regions that nobody can guess: who knows one was told it.
#pragma once

#include <string>
#include <string_view>

#include "transport/secret.h"

namespace strata::memnode {

inline std::string random_name(std::string name) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  char bytes[16];
  transport::system_entropy()->fill(bytes, sizeof bytes);
  for (const char byte : bytes) {
    name += kDigits[(static_cast<uint8_t>(byte) >> 4) & 15];
    name += kDigits[static_cast<uint8_t>(byte) & 15];
  }
  return name;
}

}  // namespace strata::memnode
