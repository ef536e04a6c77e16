#include "registry/topology.h"

#include <algorithm>

#include "base/assert.h"
#include "registry/internal/records.h"
#include "registry/internal/text.h"

namespace strata::registry {
namespace {

constexpr int kAttemptsMax = 16;
constexpr size_t kGroupsMax = 1024;
constexpr size_t kNodesPerGroupMax = 16;

Status check_group(const StorageGroup& group) {
  const std::string what = absl::StrCat("storage group ", group.id, ": ");
  if (group.id == 0) return error_invalid_argument("a storage group's id is not 0");
  if (group.nodes.empty() || group.nodes.size() > kNodesPerGroupMax)
    return error_invalid_argument(absl::StrCat(what, "it has 1 to ", kNodesPerGroupMax, " nodes"));
  if (group.write_quorum == 0 || group.write_quorum > group.nodes.size())
    return error_invalid_argument(absl::StrCat(what, "a write quorum of ", group.write_quorum,
                                               " of ", group.nodes.size(), " nodes cannot be"));
  std::vector<std::string> nodes = group.nodes;
  for (const std::string& node : nodes) STRATA_RETURN_IF_ERROR(check_name("node", node));
  std::sort(nodes.begin(), nodes.end());
  if (std::adjacent_find(nodes.begin(), nodes.end()) != nodes.end())
    return error_invalid_argument(what + "a node is named twice");
  return ok_status();
}

std::string describe(const DatabaseIdentity& identity) {
  return absl::StrCat("database ", absl::Hex(identity.database_id, absl::kZeroPad16), ", profile ",
                      identity.profile, ", data format ", identity.data_format);
}

// TP1
Status compare(const DatabaseIdentity& ours, const DatabaseIdentity& there) {
  if (ours == there) return ok_status();
  return error_fenced(
      absl::StrCat("the cluster holds ", describe(there), "; this is ", describe(ours)));
}

StatusOr<std::optional<Placement>> decode(const std::optional<KeyValue>& entry) {
  std::optional<Placement> placement;
  if (entry.has_value()) {
    STRATA_ASSIGN_OR_RETURN(placement, internal::decode_placement(*entry));
  }
  return placement;
}

}  // namespace

Status check_placement(const Placement& placement) {
  if (placement.generation == 0 || placement.generation > internal::kEpochMax)
    return error_invalid_argument("a placement's generation is at least 1");
  if (placement.groups.empty() || placement.groups.size() > kGroupsMax)
    return error_invalid_argument(
        absl::StrCat("a placement has 1 to ", kGroupsMax, " storage groups"));
  std::vector<uint32_t> ids;
  for (const StorageGroup& group : placement.groups) {
    STRATA_RETURN_IF_ERROR(check_group(group));
    ids.push_back(group.id);
  }
  std::sort(ids.begin(), ids.end());
  if (std::adjacent_find(ids.begin(), ids.end()) != ids.end())
    return error_invalid_argument("a storage group is named twice");
  return ok_status();
}

const StorageGroup& Placement::group_of(SpaceId space) const {
  STRATA_ASSERT(!groups.empty());
  const auto weight = [&](const StorageGroup& group) {
    return mix64((uint64_t{group.id} << 32) | space.value);
  };
  return *std::max_element(groups.begin(), groups.end(),
                           [&](const StorageGroup& a, const StorageGroup& b) {
                             return std::pair(weight(a), a.id) < std::pair(weight(b), b.id);
                           });
}

Status Topology::create_identity(const DatabaseIdentity& identity, uint64_t deadline_us) {
  STRATA_RETURN_IF_ERROR(internal::check_identity(identity));
  const Change create = Change::create(keys_.identity(), internal::encode_identity(identity));
  Status last = ok_status();
  for (int attempt = 0; attempt < kAttemptsMax; attempt++) {
    last = registry_->change(create, deadline_us).status();
    if (last.ok()) return last;
    if (last.code() == StatusCode::kFailedPrecondition)
      return check_identity(identity, deadline_us);  // perhaps made by an attempt before
    if (!is_outcome_unknown(last)) return last;
  }
  return last;
}

StatusOr<std::optional<DatabaseIdentity>> Topology::identity(uint64_t deadline_us) {
  STRATA_ASSIGN_OR_RETURN(const std::optional<KeyValue> entry,
                          registry_->get(keys_.identity(), deadline_us));
  std::optional<DatabaseIdentity> identity;
  if (entry.has_value()) {
    STRATA_ASSIGN_OR_RETURN(identity, internal::decode_identity(*entry));
  }
  return identity;
}

Status Topology::check_identity(const DatabaseIdentity& identity, uint64_t deadline_us) {
  STRATA_ASSIGN_OR_RETURN(const std::optional<DatabaseIdentity> there, this->identity(deadline_us));
  if (!there.has_value()) return error_fenced("the cluster has no database yet");
  return compare(identity, *there);
}

StatusOr<std::optional<Placement>> Topology::placement(uint64_t deadline_us) {
  STRATA_ASSIGN_OR_RETURN(const std::optional<KeyValue> entry,
                          registry_->get(keys_.placement(), deadline_us));
  return decode(entry);
}

StatusOr<Placement> Topology::change_placement(const std::optional<Placement>& current,
                                               std::vector<StorageGroup> groups,
                                               uint64_t deadline_us) {
  Placement next;
  next.generation = current.has_value() ? current->generation + 1 : 1;
  next.groups = std::move(groups);
  STRATA_RETURN_IF_ERROR(check_placement(next));
  const Change change =
      Change::replace(keys_.placement(), current.has_value() ? current->version : Version{},
                      internal::encode_placement(next));
  Status last = ok_status();
  for (int attempt = 0; attempt < kAttemptsMax; attempt++) {
    std::vector<KeyValue> found;
    const StatusOr<Version> done = registry_->change(change, deadline_us, &found);
    if (done.ok()) {
      next.version = *done;
      return next;
    }
    last = done.status();
    if (last.code() == StatusCode::kFailedPrecondition) {
      // Made by an attempt whose outcome was unknown, or by somebody who wanted just the same.
      if (!found.empty() && found[0].value == change.value)
        return internal::decode_placement(found[0]);
      return last;
    }
    if (!is_outcome_unknown(last)) return last;
  }
  return last;
}

std::unique_ptr<Watch> Topology::watch_placement(Handler handler) {
  return registry_->watch(keys_.placement(), [key = keys_.placement(), handler = std::move(handler),
                                              told = Version()](const WatchBatch& batch) mutable {
    // A snapshot may repeat what was told; a removal by hand leaves the last one in force.
    for (const WatchEvent& event : batch.events) {
      if (event.removed || event.entry.key != key || event.entry.version == told) continue;
      told = event.entry.version;
      handler(internal::decode_placement(event.entry));
    }
  });
}

}  // namespace strata::registry
