// Whether this program's clocks are dilated (src/dilate), for the few places that must know: where
// a time is judged by somebody whose clocks are not, or where a wait would be made of yields.
// Nobody else asks: emulated time is time.
#pragma once

#include <algorithm>
#include <cstdlib>

namespace strata {
// How many times slower the program's clocks run than real time; 1: they do not.
inline double time_dilation() noexcept {
  static const double factor = [] {
    const char* const text = std::getenv("STRATA_DILATE_FACTOR");
    return text == nullptr ? 1.0 : std::max(1.0, std::strtod(text, nullptr));
  }();
  return factor;
}
}  // namespace strata
