#include "registry/registry.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace strata::registry {

Status check_key(std::string_view key) {
  if (key.empty() || key.size() > kKeyBytesMax)
    return error_invalid_argument(
        absl::StrCat("a registry key has 1 to ", kKeyBytesMax, " bytes, not ", key.size()));
  return ok_status();
}

Status check_ttl(uint32_t ttl_s) {
  if (ttl_s == 0 || ttl_s > kLeaseSecondsMax)
    return error_invalid_argument(
        absl::StrCat("a lease lasts 1 to ", kLeaseSecondsMax, " seconds, not ", ttl_s));
  return ok_status();
}

Status check_changes(absl::Span<const Change> changes) {
  if (changes.empty() || changes.size() > kChangesMax)
    return error_invalid_argument(
        absl::StrCat("1 to ", kChangesMax, " keys change at once, not ", changes.size()));
  bool changes_something = false;
  std::vector<std::string_view> keys;
  for (const Change& change : changes) {
    STRATA_RETURN_IF_ERROR(check_key(change.key));
    if (change.value.size() > kValueBytesMax)
      return error_invalid_argument(absl::StrCat("the value of ", change.key, " has ",
                                                 change.value.size(), " bytes, at most ",
                                                 kValueBytesMax, " are allowed"));
    if (change.kind == Change::Kind::kRemove && change.expected.is_zero())
      return error_invalid_argument(absl::StrCat(change.key, " cannot be removed if absent"));
    changes_something |= change.kind != Change::Kind::kRequire;
    keys.push_back(change.key);
  }
  if (!changes_something) return error_invalid_argument("nothing to change");
  std::sort(keys.begin(), keys.end());
  if (std::adjacent_find(keys.begin(), keys.end()) != keys.end())
    return error_invalid_argument("a key is named twice in one change");
  return ok_status();
}

void WatchedKeys::apply(const WatchBatch& batch) {
  if (batch.snapshot) entries_.clear();
  for (const WatchEvent& event : batch.events) {
    const auto at = std::lower_bound(
        entries_.begin(), entries_.end(), event.entry.key,
        [](const KeyValue& entry, const std::string& key) { return entry.key < key; });
    const bool known = at != entries_.end() && at->key == event.entry.key;
    if (event.removed) {
      if (known) entries_.erase(at);
    } else if (known) {
      *at = event.entry;
    } else {
      entries_.insert(at, event.entry);
    }
  }
  at_ = batch.at;
}

}  // namespace strata::registry
