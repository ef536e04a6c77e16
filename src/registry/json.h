// Reading JSON that may be anything, without exceptions: nlohmann's parser in its non-throwing
// form, and accessors that look at the type first. (Its own accessors end the process where they
// would throw.) Only for .cc files of this folder: the header is a heavy one.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "registry/text.h"

namespace strata::json {

using Json = nlohmann::json;

constexpr int kDepthMax = 32;

// Whether brackets nest deeper than what we say or hear ever does. The parser does not recurse, but
// copying its values does, and a deep one would run out of stack.
inline bool nests_too_deep(Bytes bytes) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < bytes.size(); i++) {
    const char c = bytes[i];
    if (in_string) {
      if (c == '\\') i++;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kDepthMax) return true;
    } else if (c == ']' || c == '}') {
      depth--;
    }
  }
  return false;
}

// An object, or nothing usable: every accessor then says the field is not there.
inline Json parse_object(Bytes bytes) {
  if (nests_too_deep(bytes)) return Json();
  Json json = Json::parse(bytes.begin(), bytes.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) json = Json();
  return json;
}

inline const Json* find_field(const Json& json, const char* name) {
  if (!json.is_object()) return nullptr;
  const auto at = json.find(name);
  return at == json.end() ? nullptr : &*at;
}

// A number of 0 to 2^64-1, also written as a string as protobuf's JSON does. False: something else.
inline bool to_u64(const Json& json, uint64_t* out) {
  if (json.is_number_unsigned()) {
    *out = *json.get_ptr<const Json::number_unsigned_t*>();
    return true;
  }
  const auto* text = json.get_ptr<const Json::string_t*>();
  return text != nullptr && text::parse_number(*text, out);
}

// The following three leave *out alone and return true when the field is not there (protobuf leaves
// out what is zero), and return false when it is of another type.
inline bool read_u64(const Json& json, const char* name, uint64_t* out) {
  const Json* field = find_field(json, name);
  return field == nullptr || to_u64(*field, out);
}
inline bool read_bool(const Json& json, const char* name, bool* out) {
  const Json* field = find_field(json, name);
  if (field == nullptr) return true;
  const auto* value = field->get_ptr<const Json::boolean_t*>();
  if (value != nullptr) *out = *value;
  return value != nullptr;
}
inline bool read_string(const Json& json, const char* name, std::string* out) {
  const Json* field = find_field(json, name);
  if (field == nullptr) return true;
  const auto* value = field->get_ptr<const Json::string_t*>();
  if (value != nullptr) *out = *value;
  return value != nullptr;
}
// Null when it is not there; *ok becomes false when it is something else.
inline const Json::array_t* read_array(const Json& json, const char* name, bool* ok) {
  const Json* field = find_field(json, name);
  if (field == nullptr) return nullptr;
  const auto* value = field->get_ptr<const Json::array_t*>();
  if (value == nullptr) *ok = false;
  return value;
}

}  // namespace strata::json
