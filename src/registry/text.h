// Text helpers. Debian's Abseil has a string_view of its own; only this header has to know.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status.h"

namespace strata::text {

inline absl::string_view view(std::string_view text) { return {text.data(), text.size()}; }

inline std::string base64(std::string_view bytes) { return absl::Base64Escape(view(bytes)); }
inline bool from_base64(std::string_view text, std::string* out) {
  return absl::Base64Unescape(view(text), out);
}
template <typename Number>
bool parse_number(std::string_view text, Number* out) {
  return absl::SimpleAtoi(view(text), out);
}

// What somebody else wrote, for a message: escaped and not too long.
inline std::string printable(std::string_view text) {
  constexpr size_t kShownBytesMax = 200;
  std::string shown = absl::CHexEscape(view(text.substr(0, kShownBytesMax)));
  if (text.size() > kShownBytesMax) absl::StrAppend(&shown, "... (", text.size(), " bytes)");
  return shown;
}

inline std::string message_of(const Status& status) { return std::string(status.message()); }

}  // namespace strata::text
