// The profiles of profiles.def: which parts of the database run where. A profile's name is stamped
// into the data and shown to people; what it means the code asks here, by trait.
//   PF1  No code compares a profile's name with a literal: a profile that is added says by its
//        traits what it needs (tools/check_declared.py looks for names elsewhere).
#pragma once

#include <absl/types/span.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace strata {

enum class PageOrigin : uint8_t { kOwnFiles, kWritten, kReplayed };
enum class LogReplay : uint8_t { kNone, kInPlace, kEager, kFiltered, kSmart };
enum class PageImages : uint8_t { kNeedless, kNeeded };
enum class MemoryTier : uint8_t { kNone, kPool, kShared };
enum class Writers : uint8_t { kOne, kSeveral };

struct Profile {
  std::string_view name;
  PageOrigin pages;
  LogReplay replay;
  PageImages images;
  MemoryTier memory;
  Writers writers;
  std::string_view what;  // in some words

  // Storage nodes, and a registry that knows them.
  [[nodiscard]] bool is_of_cluster() const noexcept { return pages != PageOrigin::kOwnFiles; }
};

[[nodiscard]] absl::Span<const Profile> all_profiles() noexcept;
// nullptr: there is none of that name.
[[nodiscard]] const Profile* find_profile(std::string_view name) noexcept;
// The same, but nullptr also for a profile without storage nodes.
[[nodiscard]] const Profile* find_cluster_profile(std::string_view name) noexcept;
// For messages: "a, b or c".
[[nodiscard]] std::string names_of_profiles();
[[nodiscard]] std::string names_of_cluster_profiles();

}  // namespace strata
