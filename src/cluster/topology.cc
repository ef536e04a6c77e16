#include "cluster/topology.h"

#include <algorithm>

#include "absl/strings/str_join.h"
#include "base/assert.h"
#include "base/data_format.h"
#include "cluster/internal/records.h"
#include "registry/text.h"

namespace strata::cluster {
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
  nodes.insert(nodes.end(), group.retired.begin(), group.retired.end());
  for (const std::string& node : nodes) STRATA_RETURN_IF_ERROR(check_name("node", node));
  std::sort(nodes.begin(), nodes.end());
  if (std::adjacent_find(nodes.begin(), nodes.end()) != nodes.end())
    return error_invalid_argument(what + "a node is named twice");
  if (!group.joined.empty() && group.joined.size() != group.nodes.size())
    return error_invalid_argument(what + "not every node has a generation in which it came");
  return ok_status();
}

// TP4: of a step in which a node is taken out.
Status check_fewer(const StorageGroup& from, const StorageGroup& to) {
  const std::string what = absl::StrCat("storage group ", from.id, ": ");
  if (to.taken_out_by.is_zero() || to.taken_out_by < from.taken_out_by)
    return error_invalid_argument(what + "a node is taken out by the stream's last holder");
  if (to.nodes.size() < kGroupNodesMin)
    return error_invalid_argument(
        absl::StrCat(what, "it has ", from.nodes.size(), " nodes and needs ", kGroupNodesMin));
  size_t same = 0;
  for (const std::string& node : from.nodes)
    if (same < to.nodes.size() && node == to.nodes[same]) ++same;
  if (same != to.nodes.size() || same + 1 != from.nodes.size())
    return error_invalid_argument(what + "one node is taken out at a time");
  if (to.write_quorum != to.nodes.size() / 2 + 1)
    return error_invalid_argument(what + "the write quorum of those that stay is no majority");
  return ok_status();
}

// TP4, TP5
Status check_step(const StorageGroup& from, const StorageGroup& to, bool may_take_out = false) {
  const std::string what = absl::StrCat("storage group ", from.id, ": ");
  for (const std::string& node : to.nodes)
    if (std::find(from.retired.begin(), from.retired.end(), node) != from.retired.end())
      return error_invalid_argument(what + node +
                                    " was replaced once; give the new node another name");
  if (to.nodes.size() < from.nodes.size() && may_take_out) return check_fewer(from, to);
  if (to.nodes.size() < from.nodes.size())
    return error_invalid_argument(what + "only the stream's writer takes a node out");
  if (to.nodes.size() > from.nodes.size() + 1)
    return error_invalid_argument(what + "one node is added at a time");
  size_t changed = 0;
  for (size_t i = 0; i < from.nodes.size(); ++i) changed += from.nodes[i] == to.nodes[i] ? 0 : 1;
  const bool grows = to.nodes.size() > from.nodes.size();
  if (changed > (grows ? 0 : 1))
    return error_invalid_argument(what +
                                  "one node is replaced at a time, and none while one is "
                                  "added");
  const uint32_t most = from.write_quorum + (grows ? 1 : 0);
  if (to.write_quorum < from.write_quorum || to.write_quorum > most)
    return error_invalid_argument(absl::StrCat(
        what, "a write quorum of ", from.write_quorum, " of ", from.nodes.size(),
        " nodes cannot become one of ", to.write_quorum, " of ", to.nodes.size(), " in one step"));
  return ok_status();
}

const StorageGroup* group_in(const Placement& placement, uint32_t id) {
  const auto found = std::find_if(placement.groups.begin(), placement.groups.end(),
                                  [&](const StorageGroup& g) { return g.id == id; });
  return found == placement.groups.end() ? nullptr : &*found;
}

// TP5
void note_history(const StorageGroup& before, uint64_t generation, StorageGroup* group) {
  group->joined.clear();
  for (const std::string& node : group->nodes) {
    const std::optional<size_t> place = before.place_of(node);
    group->joined.push_back(place.has_value() ? before.joined_at(*place) : generation);
  }
  const auto came_with_it = std::count(group->joined.begin(), group->joined.end(), 0u);
  if (static_cast<size_t>(came_with_it) == group->joined.size()) group->joined.clear();
  group->retired = before.retired;
  for (const std::string& node : before.nodes)
    if (!group->place_of(node).has_value()) group->retired.push_back(node);
}

// One placement after another: its history, and whether it may come next.
Status continue_from(const Placement& current, Placement* next, bool may_take_out) {
  for (StorageGroup& group : next->groups) {
    const StorageGroup* const before = group_in(current, group.id);
    if (before == nullptr) continue;
    note_history(*before, next->generation, &group);
    STRATA_RETURN_IF_ERROR(check_step(*before, group, may_take_out));
  }
  return ok_status();
}

std::string describe(const DatabaseIdentity& identity) {
  return absl::StrCat("database ", absl::Hex(identity.database_id, absl::kZeroPad16), ", profile ",
                      identity.profile, ", data format ", identity.data_format);
}

// TP1
Status compare(const DatabaseIdentity& ours, const DatabaseIdentity& there) {
  if (ours == there) return ok_status();
  return error_wrong_database(
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

std::optional<size_t> StorageGroup::place_of(std::string_view node) const {
  const auto found = std::find(nodes.begin(), nodes.end(), node);
  if (found == nodes.end()) return std::nullopt;
  return static_cast<size_t>(found - nodes.begin());
}

StatusOr<std::vector<StorageGroup>> with_replaced(const Placement& placement, std::string_view node,
                                                  const std::string& replacement) {
  std::vector<StorageGroup> groups = placement.groups;
  for (const StorageGroup& group : groups)
    if (group.place_of(replacement).has_value())
      return error_invalid_argument(replacement + " is in a storage group already");
  for (StorageGroup& group : groups) {
    const std::optional<size_t> place = group.place_of(node);
    if (!place.has_value()) continue;
    const StorageGroup before = group;
    group.nodes[*place] = replacement;
    STRATA_RETURN_IF_ERROR(check_step(before, group));
    return groups;
  }
  return error_not_found(absl::StrCat("no storage group has a node ", text::view(node)));
}

StatusOr<std::vector<StorageGroup>> with_added(const Placement& placement, uint32_t group,
                                               const std::string& node, uint32_t write_quorum) {
  std::vector<StorageGroup> groups = placement.groups;
  for (StorageGroup& one : groups) {
    if (one.place_of(node).has_value())
      return error_invalid_argument(node + " is in a storage group already");
    if (one.id != group) continue;
    const StorageGroup before = one;
    one.nodes.push_back(node);
    const auto count = static_cast<uint32_t>(one.nodes.size());
    one.write_quorum = write_quorum != 0 ? write_quorum : count / 2 + 1;
    if (2 * one.write_quorum <= count)
      return error_invalid_argument(absl::StrCat("a write quorum of ", one.write_quorum, " of ",
                                                 count, " nodes is no majority"));
    STRATA_RETURN_IF_ERROR(check_step(before, one));
    return groups;
  }
  return error_not_found(absl::StrCat("there is no storage group ", group));
}

StatusOr<std::vector<StorageGroup>> with_taken_out(const Placement& placement,
                                                   std::string_view node) {
  std::vector<StorageGroup> groups = placement.groups;
  for (StorageGroup& group : groups) {
    const std::optional<size_t> place = group.place_of(node);
    if (!place.has_value()) continue;
    if (group.nodes.size() <= kGroupNodesMin)
      return error_invalid_argument(absl::StrCat("storage group ", group.id, ": it has ",
                                                 group.nodes.size(), " nodes and needs ",
                                                 kGroupNodesMin));
    group.nodes.erase(group.nodes.begin() + static_cast<std::ptrdiff_t>(*place));
    if (!group.joined.empty())
      group.joined.erase(group.joined.begin() + static_cast<std::ptrdiff_t>(*place));
    group.write_quorum = static_cast<uint32_t>(group.nodes.size() / 2 + 1);
    return groups;
  }
  return error_not_found(absl::StrCat("no storage group has a node ", text::view(node)));
}

namespace {

// Rendezvous hashing: of every group's weight for the thing the largest.
const StorageGroup& heaviest(const std::vector<StorageGroup>& groups, uint64_t thing) {
  STRATA_ASSERT(!groups.empty());
  const auto weight = [&](const StorageGroup& group) {
    return mix64((uint64_t{group.id} << 32) ^ thing);
  };
  return *std::max_element(groups.begin(), groups.end(),
                           [&](const StorageGroup& a, const StorageGroup& b) {
                             return std::pair(weight(a), a.id) < std::pair(weight(b), b.id);
                           });
}

}  // namespace

const StorageGroup& Placement::group_of(SpaceId space) const {
  return heaviest(groups, space.value);
}

// The salt keeps stream 1 from always being where space 1 is.
const StorageGroup& Placement::group_of(StreamId stream) const {
  return heaviest(groups, mix64(stream.value));
}

const StorageGroup* Placement::group_with(std::string_view node) const {
  for (const StorageGroup& group : groups)
    if (group.place_of(node).has_value()) return &group;
  return nullptr;
}

StatusOr<const StorageGroup*> Placement::only_group() const {
  if (groups.size() == 1) return &groups.front();
  std::string names;
  for (const StorageGroup& group : groups)
    absl::StrAppend(&names, names.empty() ? "" : "; ", group.id, ": ",
                    absl::StrJoin(group.nodes, ", "));
  return error_unsupported(absl::StrCat(
      "the placement has ", groups.size(), " groups of storage nodes (", names,
      "), and this version keeps pages and log in one; to do: use the version that made it"));
}

Status check_data_format(const DatabaseIdentity& identity, std::string_view cluster) {
  if (identity.data_format == kDataFormat) return ok_status();
  return error_unsupported("the database of cluster '" + std::string(cluster) +
                           "' has data format " + std::to_string(identity.data_format) +
                           ", this program knows " + std::to_string(kDataFormat) +
                           "; to do: use the program that made it");
}

Status Topology::create_identity(const DatabaseIdentity& identity, uint64_t deadline_us) {
  STRATA_RETURN_IF_ERROR(internal::check_identity(identity));
  const Change create = Change::create(keys_.identity(), internal::encode_identity(identity));
  Status last = ok_status();
  for (int attempt = 0; attempt < kAttemptsMax; attempt++) {
    last = registry_->change(create, deadline_us).status();
    if (last.ok()) return last;
    if (is_conflict(last))
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
  if (!there.has_value()) return error_wrong_database("the cluster has no database yet");
  return compare(identity, *there);
}

StatusOr<std::optional<Placement>> Topology::placement(uint64_t deadline_us) {
  STRATA_ASSIGN_OR_RETURN(const std::optional<KeyValue> entry,
                          registry_->get(keys_.placement(), deadline_us));
  return decode(entry);
}

StatusOr<Placement> Topology::change_placement(const std::optional<Placement>& current,
                                               std::vector<StorageGroup> groups,
                                               uint64_t deadline_us,
                                               absl::Span<const Change> with) {
  Placement next;
  next.generation = current.has_value() ? current->generation + 1 : 1;
  next.groups = std::move(groups);
  if (current.has_value()) {
    for (StorageGroup& group : next.groups)
      if (const StorageGroup* before = group_in(*current, group.id))
        group.taken_out_by = before->taken_out_by;
    STRATA_RETURN_IF_ERROR(continue_from(*current, &next, /*may_take_out=*/false));
  }
  return make(std::move(next), current.has_value() ? current->version : Version{}, with,
              deadline_us);
}

StatusOr<Placement> Topology::take_out(const Placement& current, std::string_view node,
                                       Epoch holder, absl::Span<const Change> with,
                                       uint64_t deadline_us) {
  Placement next;
  next.generation = current.generation + 1;
  STRATA_ASSIGN_OR_RETURN(next.groups, with_taken_out(current, node));
  for (StorageGroup& group : next.groups)
    if (group.nodes.size() < group_in(current, group.id)->nodes.size()) group.taken_out_by = holder;
  STRATA_RETURN_IF_ERROR(continue_from(current, &next, /*may_take_out=*/true));
  return make(std::move(next), current.version, with, deadline_us);
}

StatusOr<Placement> Topology::make(Placement next, Version current, absl::Span<const Change> with,
                                   uint64_t deadline_us) {
  STRATA_RETURN_IF_ERROR(check_placement(next));
  const std::string value = internal::encode_placement(next);
  std::vector<Change> changes = {Change::replace(keys_.placement(), current, value)};
  changes.insert(changes.end(), with.begin(), with.end());
  Status last = ok_status();
  for (int attempt = 0; attempt < kAttemptsMax; attempt++) {
    std::vector<KeyValue> found;
    const StatusOr<Version> done = registry_->change(changes, deadline_us, &found);
    if (done.ok()) {
      next.version = *done;
      return next;
    }
    last = done.status();
    if (is_conflict(last)) {
      // Made by an attempt whose outcome was unknown, or by somebody who wanted just the same.
      for (const KeyValue& entry : found)
        if (entry.key == keys_.placement() && entry.value == value)
          return internal::decode_placement(entry);
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

}  // namespace strata::cluster
