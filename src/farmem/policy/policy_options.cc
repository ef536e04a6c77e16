#include "farmem/policy/policy_options.h"

#include <algorithm>
#include <charconv>

namespace strata::farmem {
namespace {

constexpr std::string_view kAssociativePrefix = "assoc:";
constexpr uint32_t kStagedMax = 64;  // of the policies that use the staged pages as a batch only
constexpr uint32_t kBatchMax = 32;

Status unknown(std::string_view text) {
  return error_invalid_argument("policy " + std::string(text) +
                                ": there is fifo, second-chance and assoc:N");
}

}  // namespace

Status parse_policy(std::string_view text, PolicyOptions* options) {
  options->ways = 0;
  if (text == "fifo") {
    options->replacement = Replacement::kFifo;
    return ok_status();
  }
  if (text == "second-chance") {
    options->replacement = Replacement::kSecondChance;
    return ok_status();
  }
  if (text.substr(0, kAssociativePrefix.size()) != kAssociativePrefix) return unknown(text);
  const std::string_view number = text.substr(kAssociativePrefix.size());
  const char* const last = number.data() + number.size();
  const auto [end, error] = std::from_chars(number.data(), last, options->ways);
  if (error != std::errc() || end != last || options->ways == 0) return unknown(text);
  options->replacement = Replacement::kAssociative;
  return ok_status();
}

std::string policy_name(const PolicyOptions& options) {
  switch (options.replacement) {
    case Replacement::kFifo:
      return "fifo";
    case Replacement::kSecondChance:
      return "second-chance";
    case Replacement::kAssociative:
      break;
  }
  return std::string(kAssociativePrefix) + std::to_string(options.ways);
}

Shares shares_of(const PolicyOptions& options) noexcept {
  Shares shares;
  const bool second_chance = options.replacement == Replacement::kSecondChance;
  shares.staged = second_chance ? options.frames / 4 : std::min(options.frames / 8, kStagedMax);
  shares.batch = std::min(std::max(shares.staged / 2, 1u), kBatchMax);
  const uint32_t mapped = options.frames - shares.staged;
  shares.ways = options.replacement == Replacement::kAssociative ? options.ways : mapped;
  shares.sets = shares.ways == 0 ? 0 : mapped / shares.ways;
  return shares;
}

Status check_policy(const PolicyOptions& options) {
  if (options.frames < kFramesMin)
    return error_invalid_argument("local memory must hold at least " + std::to_string(kFramesMin) +
                                  " pages of " + std::to_string(kPageBytes) + " bytes");
  if (options.prefetch > kPrefetchMax)
    return error_invalid_argument("prefetch: at most " + std::to_string(kPrefetchMax));
  if (shares_of(options).sets == 0)
    return error_invalid_argument("policy " + policy_name(options) + ": more ways than there are " +
                                  "pages of local memory");
  return ok_status();
}

}  // namespace strata::farmem
