// How messages name a page: "page 5:17", of space 5 the page with number 17.
#pragma once

#include <string>

#include "base/ids.h"

namespace strata {

[[nodiscard]] inline std::string text_of(PageId id) {
  return std::to_string(id.space) + ":" + std::to_string(id.number);
}
[[nodiscard]] inline std::string name_of(PageId id) { return "page " + text_of(id); }

}  // namespace strata
