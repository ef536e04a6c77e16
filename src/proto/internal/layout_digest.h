// A digest of how a method's two messages are laid out, of what methods.def says of it. Pure; made
// when the program is compiled (MD2).
//
// It is FNV-1a (64 bits) over the words of the request, ">" and the words of the reply, with a
// space behind each, folded to 16 bits; 0 becomes 1. A word alone that names STRATA_FIELDS gives
// place to their words; "a[kMax]" and "region:kTimes" have the value of that name for the name, in
// decimal.
// tools/check_declared.py computes the same, for docs/messages.md.
#pragma once

#include <absl/types/span.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/assert.h"

namespace strata::proto::internal {

struct NamedFields {
  std::string_view name, fields;
};
struct NamedValue {
  std::string_view name;
  uint32_t value;
};

class LayoutDigest {
 public:
  // A word alone with the name of a group is that group; a name in brackets, or of a region, that
  // has no value ends the compilation.
  constexpr LayoutDigest(absl::Span<const NamedFields> groups, absl::Span<const NamedValue> values)
      : groups_(groups), values_(values) {}

  [[nodiscard]] constexpr uint16_t of(std::string_view request, std::string_view reply) {
    hash_ = kBasis;
    take_fields(request);
    take_bytes("> ");
    take_fields(reply);
    const uint64_t folded = hash_ ^ hash_ >> 32;
    const auto digest = static_cast<uint16_t>(folded ^ folded >> 16);
    return digest == 0 ? uint16_t{1} : digest;
  }

 private:
  static constexpr uint64_t kBasis = 0xcbf29ce484222325;
  static constexpr uint64_t kPrime = 0x100000001b3;

  static constexpr bool is_mark(std::string_view word) {
    return word.empty() || word == "|" || word == "{" || word == "}";
  }
  static constexpr std::string_view first_word(std::string_view text) {
    while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
    size_t bytes = 0;
    while (bytes < text.size() && text[bytes] != ' ') ++bytes;
    return text.substr(0, bytes);
  }
  static constexpr std::string_view behind(std::string_view word, std::string_view text) {
    return text.substr(static_cast<size_t>(word.data() - text.data()) + word.size());
  }

  constexpr void take_fields(std::string_view text) {
    std::string_view before;  // the word before: nothing and marks leave the next one alone
    for (std::string_view word = first_word(text); !word.empty();) {
      text = behind(word, text);
      const std::string_view next = first_word(text);
      const NamedFields* const group =
          is_mark(before) && is_mark(next) && !is_mark(word) ? find_group(word) : nullptr;
      group != nullptr ? take_fields(group->fields) : take_word(word);
      before = word;
      word = next;
    }
  }
  constexpr void take_word(std::string_view word) {
    const size_t bracket = word.find('[');
    const size_t colon = word.find(':');
    if (bracket != std::string_view::npos && word.back() == ']' && word.size() > bracket + 2) {
      take_bytes(word.substr(0, bracket + 1));
      take_value(word.substr(bracket + 1, word.size() - bracket - 2));
      take_bytes("] ");
    } else if (colon != std::string_view::npos) {
      take_bytes(word.substr(0, colon + 1));
      take_value(word.substr(colon + 1));
      take_bytes(" ");
    } else {
      take_bytes(word);
      take_bytes(" ");
    }
  }
  constexpr void take_value(std::string_view name) {
    uint32_t value = 0;
    bool known = false;
    for (const NamedValue& one : values_)
      if (one.name == name) {
        value = one.value;
        known = true;
      }
    STRATA_ASSERT(known);
    char digits[10] = {};
    size_t count = 0;
    do {
      digits[count++] = static_cast<char>('0' + value % 10);
      value /= 10;
    } while (value != 0);
    while (count > 0) take_bytes({&digits[--count], 1});
  }
  [[nodiscard]] constexpr const NamedFields* find_group(std::string_view word) const {
    for (const NamedFields& group : groups_)
      if (group.name == word) return &group;
    return nullptr;
  }
  constexpr void take_bytes(std::string_view bytes) {
    for (const char c : bytes) hash_ = (hash_ ^ static_cast<uint8_t>(c)) * kPrime;
  }

  const absl::Span<const NamedFields> groups_;
  const absl::Span<const NamedValue> values_;
  uint64_t hash_ = kBasis;
};

}  // namespace strata::proto::internal
