#include "storenode/node/node_options.h"

#include <algorithm>
#include <set>

#include "base/profiles.h"
#include "cluster/keys.h"
#include "registry/registry.h"

namespace strata::storenode {
namespace {

Status check_group(const NodeOptions& options, const InitialGroup& group) {
  for (const std::string& node : group.nodes) {
    STRATA_RETURN_IF_ERROR(cluster::check_name("node", node));
  }
  if (std::count(group.nodes.begin(), group.nodes.end(), options.name) != 1)
    return error_invalid_argument("the initial group must name this node, " + options.name +
                                  ", once");
  if (group.write_quorum > group.nodes.size() || group.write_quorum * 2 <= group.nodes.size())
    return error_invalid_argument("a write quorum of " + std::to_string(group.write_quorum) +
                                  " is no majority of an initial group of " +
                                  std::to_string(group.nodes.size()));
  return ok_status();
}

}  // namespace

const daemon::FolderKind kNodeFolder{
    .what = "storage node",
    .format = 1,
    .is_name = cluster::is_name,
    .remedy_of_damage =
        "put a copy of it back, or start with an empty folder and let the node fetch its data from "
        "its peers"};

uint64_t replay_lag_for(const PageStoreOptions& pages) {
  return std::min(pages.log_cache_bytes, pages.map_bytes) / 2;
}

PageStoreOptions default_pages() {
  PageStoreOptions pages;
  pages.log_cache_bytes = 256u << 20;
  pages.map_bytes = 256u << 20;
  pages.replay_lag_bytes = replay_lag_for(pages);
  pages.scan_delay_us = 100'000;
  return pages;
}

LogStoreOptions default_log() {
  LogStoreOptions log;
  log.recent_bytes_max = 2u << 20;
  log.gather_us = 5'000;
  return log;
}

bool pages_are_written(std::string_view profile) {
  const Profile* found = find_profile(profile);
  return found != nullptr && found->pages == PageOrigin::kWritten;
}

bool has_several_writers(std::string_view profile) {
  const Profile* found = find_profile(profile);
  return found != nullptr && found->writers == Writers::kSeveral;
}

StatusOr<ReplayMode> mode_of_profile(std::string_view profile) {
  const Profile* found = find_profile(profile);
  switch (found == nullptr ? LogReplay::kNone : found->replay) {
    case LogReplay::kInPlace:
      return ReplayMode::kSingle;
    case LogReplay::kEager:
      return ReplayMode::kEager;
    case LogReplay::kFiltered:
      return ReplayMode::kFiltered;
    case LogReplay::kSmart:
      return ReplayMode::kSmart;
    case LogReplay::kNone:
      break;
  }
  return error_invalid_argument("there is no profile '" + std::string(profile) +
                                "' of a storage node; use " + names_of_cluster_profiles());
}

std::string transport_address(std::string_view address) {
  if (address.starts_with("unix:") || address.starts_with("tcp:")) return std::string(address);
  return "tcp:" + std::string(address);
}

Status check_options(const NodeOptions& options) {
  STRATA_RETURN_IF_ERROR(cluster::check_name("node", options.name));
  STRATA_RETURN_IF_ERROR(cluster::check_name("cluster", options.cluster));
  if (!pages_are_written(options.profile))
    STRATA_RETURN_IF_ERROR(mode_of_profile(options.profile).status());
  if (options.directory.empty())
    return error_invalid_argument("a storage node needs a data folder");
  if (options.listen.empty())
    return error_invalid_argument("a storage node needs an address to listen on");
  if (options.lease_s == 0 || options.lease_s > registry::kLeaseSecondsMax)
    return error_invalid_argument("a lease lasts 1 to " +
                                  std::to_string(registry::kLeaseSecondsMax) + " seconds");
  if (options.workers == 0 || options.workers > 256)
    return error_invalid_argument("a storage node has 1 to 256 workers");
  const std::set<StreamId> streams(options.streams.begin(), options.streams.end());
  if (streams.empty() || streams.size() != options.streams.size() || streams.contains(StreamId{}))
    return error_invalid_argument("a storage node serves one log stream or more, each named once");
  if (options.joining.has_value() && !options.joining->replaces.empty()) {
    STRATA_RETURN_IF_ERROR(cluster::check_name("node", options.joining->replaces));
    if (options.joining->replaces == options.name)
      return error_invalid_argument("a node cannot replace itself");
  }
  if (options.initial_group.has_value()) return check_group(options, *options.initial_group);
  return ok_status();
}

}  // namespace strata::storenode
