#include "cluster/keys.h"

#include <algorithm>

#include "registry/text.h"

namespace strata::cluster {

bool is_name(std::string_view text) noexcept {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  };
  return !text.empty() && text.size() <= kNameBytesMax && text[0] != '.' && text[0] != '-' &&
         std::all_of(text.begin(), text.end(), allowed);
}

Status check_name(std::string_view what, std::string_view text) {
  if (is_name(text)) return ok_status();
  return error_invalid_argument(absl::StrCat("'", text::printable(text), "' is no name for a ",
                                             text::view(what), ": 1 to ", kNameBytesMax,
                                             " letters, digits, '.', '_', '-'"));
}

StatusOr<ClusterKeys> ClusterKeys::of(std::string_view cluster) {
  STRATA_RETURN_IF_ERROR(check_name("cluster", cluster));
  return ClusterKeys(absl::StrCat("/strata/", text::view(cluster), "/"));
}

std::string ClusterKeys::member(std::string_view name) const { return members().append(name); }

std::string ClusterKeys::place(NodeId number) const {
  return absl::StrCat(places(), absl::Dec(number.value, absl::kZeroPad3));
}

std::string ClusterKeys::stream(StreamId stream) const {
  return absl::StrCat(root_, "streams/", absl::Hex(stream.value, absl::kZeroPad8), "/");
}

}  // namespace strata::cluster
