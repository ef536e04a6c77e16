#include "dilate/settings.h"

#include <charconv>

#include "dilate/node_state.h"

namespace strata::dilate {
namespace {

constexpr size_t kDecimals = 3;

template <class Number>
std::optional<Number> whole_number(std::string_view text) {
  Number number = 0;
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stopped != end) return std::nullopt;
  return number;
}

Reading wrong(const char* name, const char* value, const char* wanted) {
  return {std::nullopt, std::string(name) + "=" + value + " is not " + wanted};
}

}  // namespace

std::optional<Factor> parse_factor(std::string_view text) {
  const size_t point = text.find('.');
  std::string digits(text.substr(0, point));
  std::string decimals(point == std::string_view::npos ? "" : text.substr(point + 1));
  if (digits.empty() || decimals.size() > kDecimals) return std::nullopt;
  if (point != std::string_view::npos && decimals.empty()) return std::nullopt;
  decimals.resize(kDecimals, '0');
  const auto milli = whole_number<uint64_t>(digits + decimals);
  if (!milli || *milli < 1000 || *milli > kFactorMilliMax) return std::nullopt;
  return Factor{*milli};
}

std::optional<Origin> parse_origin(std::string_view text) {
  const size_t colon = text.find(':');
  if (colon == std::string_view::npos) return std::nullopt;
  const auto monotonic = whole_number<int64_t>(text.substr(0, colon));
  const auto realtime = whole_number<int64_t>(text.substr(colon + 1));
  if (!monotonic || !realtime || *monotonic < 0 || *realtime < 0) return std::nullopt;
  return Origin{*monotonic, *realtime};
}

Reading read_settings(const Environment& environment) {
  if (environment.factor == nullptr || *environment.factor == '\0') return {};
  Settings settings;
  const auto factor = parse_factor(environment.factor);
  if (!factor)
    return wrong("STRATA_DILATE_FACTOR", environment.factor,
                 "a number from 1 to 1000 with at most three decimals");
  settings.factor = *factor;
  if (environment.cores == nullptr)
    return {std::nullopt, "STRATA_DILATE_CORES is missing: how many cores the node has"};
  const auto cores = whole_number<uint32_t>(environment.cores);
  if (!cores || *cores < 1 || *cores > kCoresMax)
    return wrong("STRATA_DILATE_CORES", environment.cores, "a number from 1 to 64");
  settings.cores = *cores;
  if (environment.shared != nullptr) settings.shared = environment.shared;
  if (environment.origin != nullptr) {
    settings.origin = parse_origin(environment.origin);
    if (!settings.origin)
      return wrong("STRATA_DILATE_ORIGIN", environment.origin,
                   "nanoseconds of the monotonic and the real-time clock, as 123:456");
  }
  return {settings, ""};
}

}  // namespace strata::dilate
