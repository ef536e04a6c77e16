#include "base/profiles.h"

namespace strata {
namespace {

constexpr Profile kProfiles[] = {
#define STRATA_PROFILE(name, pages, replay, images, memory, writers, what) \
  {name,                                                                   \
   PageOrigin::pages,                                                      \
   LogReplay::replay,                                                      \
   PageImages::images,                                                     \
   MemoryTier::memory,                                                     \
   Writers::writers,                                                       \
   what},
#include "base/profiles.def"
#undef STRATA_PROFILE
};

// Pages that are made from the log are made somehow, and nothing else replays. Several servers need
// a pool that they share.
constexpr bool traits_agree() {
  for (const Profile& profile : kProfiles) {
    if ((profile.pages == PageOrigin::kReplayed) != (profile.replay != LogReplay::kNone))
      return false;
    if ((profile.writers == Writers::kSeveral) != (profile.memory == MemoryTier::kShared))
      return false;
  }
  return true;
}
static_assert(traits_agree());

std::string joined(bool of_clusters_only) {
  std::string text;
  std::string_view last;
  for (const Profile& profile : kProfiles) {
    if (of_clusters_only && !profile.is_of_cluster()) continue;
    if (!last.empty()) text.append(text.empty() ? "" : ", ").append(last);
    last = profile.name;
  }
  return text.append(text.empty() ? "" : " or ").append(last);
}

}  // namespace

absl::Span<const Profile> all_profiles() noexcept { return kProfiles; }

const Profile* find_profile(std::string_view name) noexcept {
  for (const Profile& profile : kProfiles)
    if (profile.name == name) return &profile;
  return nullptr;
}

const Profile* find_cluster_profile(std::string_view name) noexcept {
  const Profile* profile = find_profile(name);
  return profile != nullptr && profile->is_of_cluster() ? profile : nullptr;
}

std::string names_of_profiles() { return joined(false); }
std::string names_of_cluster_profiles() { return joined(true); }

}  // namespace strata
