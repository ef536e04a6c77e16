#include "cluster/internal/records.h"

#include <algorithm>
#include <array>
#include <set>

#include "registry/json.h"

namespace strata::cluster::internal {

using namespace json;  // NOLINT: most of what stands here reads or writes it
namespace {

constexpr uint64_t kFormat = 1;
constexpr size_t kAddressBytesMax = 200;
constexpr size_t kReasonBytesMax = 1000;
constexpr std::array kRoles = {Role::kCompute, Role::kStorage, Role::kMemory};

Json record() {
  Json json = Json::object();
  json["format"] = kFormat;
  return json;
}

// Never throws, not even for bytes that are no UTF-8; what is written has been checked, though.
std::string text_of(const Json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
}

Status unreadable(const KeyValue& entry, const std::string& why) {
  return error_corruption(absl::StrCat("registry key ", text::printable(entry.key), " at version ",
                                       entry.version.value, " cannot be read (", why,
                                       "): ", text::printable(entry.value)));
}

StatusOr<Json> parse_record(const KeyValue& entry) {
  Json json = parse_object(entry.value);
  uint64_t format = 0;
  if (!read_u64(json, "format", &format) || format == 0)
    return unreadable(entry, "no record of Strata");
  if (format != kFormat)
    return unreadable(entry, absl::StrCat("its format is ", format, ", known is ", kFormat));
  return json;
}

// 16 hexadecimal digits: numbers that large are not safe in JSON.
std::string hex(uint64_t value) { return absl::StrCat(absl::Hex(value, absl::kZeroPad16)); }
bool read_hex(const Json& json, const char* name, uint64_t* out) {
  std::string text;
  return read_string(json, name, &text) && text.size() == 16 && absl::SimpleHexAtoi(text, out) &&
         hex(*out) == text;
}

template <typename Number>
bool read_small(const Json& json, const char* name, Number* out) {
  uint64_t value = 0;
  if (!read_u64(json, name, &value) || value > UINT32_MAX) return false;
  *out = static_cast<Number>(value);
  return true;
}

bool is_address(std::string_view text) {
  return text.size() <= kAddressBytesMax &&
         std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7f; });
}

}  // namespace

std::string encode_epoch(const EpochRecord& value) {
  Json json = record();
  json["epoch"] = value.epoch.value;
  json["holder"] = value.holder;
  return text_of(json);
}

StatusOr<EpochRecord> decode_epoch(const KeyValue& entry) {
  STRATA_ASSIGN_OR_RETURN(const Json json, parse_record(entry));
  EpochRecord value;
  if (!read_u64(json, "epoch", &value.epoch.value) || !read_string(json, "holder", &value.holder) ||
      value.epoch.is_zero() || value.epoch.value > kEpochMax || !is_name(value.holder))
    return unreadable(entry, "no epoch");
  return value;
}

Status check_member(const Member& member) {
  STRATA_RETURN_IF_ERROR(check_name("node", member.name));
  if (member.identity == 0) return error_invalid_argument("a node's identity is not 0");
  if (member.address.empty() || !is_address(member.address) || !is_address(member.status_address))
    return error_invalid_argument(
        absl::StrCat("the address of ", member.name, " is empty, too long or not printable"));
  return ok_status();
}

std::string encode_member(const Member& member) {
  Json json = record();
  json["role"] = role_name(member.role);
  json["identity"] = hex(member.identity);
  json["address"] = member.address;
  json["status_address"] = member.status_address;
  return text_of(json);
}

StatusOr<Member> decode_member(std::string_view members, const KeyValue& entry) {
  STRATA_ASSIGN_OR_RETURN(const Json json, parse_record(entry));
  Member member;
  member.name = entry.key.substr(std::min(members.size(), entry.key.size()));
  member.lease = entry.lease;
  member.version = entry.version;
  std::string role;
  if (!read_string(json, "role", &role) || !read_hex(json, "identity", &member.identity) ||
      !read_string(json, "address", &member.address) ||
      !read_string(json, "status_address", &member.status_address))
    return unreadable(entry, "no member");
  const auto* known =
      std::find_if(kRoles.begin(), kRoles.end(), [&](Role one) { return role_name(one) == role; });
  if (known == kRoles.end()) return unreadable(entry, "unknown role");
  member.role = *known;
  const Status status = check_member(member);
  if (!status.ok()) return unreadable(entry, text::message_of(status));
  return member;
}

Status check_identity(const DatabaseIdentity& identity) {
  STRATA_RETURN_IF_ERROR(check_name("profile", identity.profile));
  if (identity.database_id == 0) return error_invalid_argument("a database's id is not 0");
  return ok_status();
}

std::string encode_identity(const DatabaseIdentity& identity) {
  Json json = record();
  json["database_id"] = hex(identity.database_id);
  json["profile"] = identity.profile;
  json["data_format"] = identity.data_format;
  return text_of(json);
}

StatusOr<DatabaseIdentity> decode_identity(const KeyValue& entry) {
  STRATA_ASSIGN_OR_RETURN(const Json json, parse_record(entry));
  DatabaseIdentity identity;
  if (!read_hex(json, "database_id", &identity.database_id) ||
      !read_string(json, "profile", &identity.profile) ||
      !read_small(json, "data_format", &identity.data_format))
    return unreadable(entry, "no database identity");
  const Status status = check_identity(identity);
  if (!status.ok()) return unreadable(entry, text::message_of(status));
  return identity;
}

std::string encode_placement(const Placement& placement) {
  Json groups = Json::array();
  for (const StorageGroup& group : placement.groups) {
    Json one = Json::object();
    one["id"] = group.id;
    one["nodes"] = group.nodes;
    one["write_quorum"] = group.write_quorum;
    if (!group.joined.empty()) one["joined"] = group.joined;
    if (!group.retired.empty()) one["retired"] = group.retired;
    if (!group.taken_out_by.is_zero()) one["taken_out_by"] = group.taken_out_by.value;
    groups.push_back(std::move(one));
  }
  Json json = record();
  json["generation"] = placement.generation;
  json["groups"] = std::move(groups);
  return text_of(json);
}

namespace {

// Left out when all nodes came with the group, as in the placements of earlier programs.
bool read_joined(const Json& json, StorageGroup* group) {
  if (find_field(json, "joined") == nullptr) return true;
  bool ok = true;
  const Json::array_t* joined = read_array(json, "joined", &ok);
  if (!ok || joined == nullptr) return false;
  for (const Json& one : *joined) {
    const auto* generation = one.get_ptr<const Json::number_unsigned_t*>();
    if (generation == nullptr || *generation > kEpochMax) return false;
    group->joined.push_back(*generation);
  }
  return std::count(group->joined.begin(), group->joined.end(), 0u) !=
         static_cast<std::ptrdiff_t>(group->joined.size());
}

bool read_names(const Json& json, const char* name, std::vector<std::string>* names) {
  bool ok = true;
  const Json::array_t* found = read_array(json, name, &ok);
  if (!ok || found == nullptr) return false;
  for (const Json& one : *found) {
    const auto* text = one.get_ptr<const Json::string_t*>();
    if (text == nullptr) return false;
    names->push_back(*text);
  }
  return true;
}

bool read_taken_out(const Json& json, StorageGroup* group) {
  if (find_field(json, "taken_out_by") == nullptr) return true;
  return read_u64(json, "taken_out_by", &group->taken_out_by.value) &&
         !group->taken_out_by.is_zero() && group->taken_out_by.value <= kEpochMax;
}

bool read_group(const Json& json, StorageGroup* group) {
  if (!read_small(json, "id", &group->id) ||
      !read_small(json, "write_quorum", &group->write_quorum) ||
      !read_names(json, "nodes", &group->nodes) || !read_joined(json, group) ||
      !read_taken_out(json, group))
    return false;
  if (find_field(json, "retired") == nullptr) return true;
  return read_names(json, "retired", &group->retired) && !group->retired.empty();
}

}  // namespace

StatusOr<Placement> decode_placement(const KeyValue& entry) {
  STRATA_ASSIGN_OR_RETURN(const Json json, parse_record(entry));
  Placement placement;
  placement.version = entry.version;
  bool ok = read_u64(json, "generation", &placement.generation);
  const Json::array_t* groups = read_array(json, "groups", &ok);
  if (!ok || groups == nullptr) return unreadable(entry, "no placement");
  for (const Json& group : *groups)
    if (!read_group(group, &placement.groups.emplace_back()))
      return unreadable(entry, "a group is none");
  const Status status = check_placement(placement);
  if (!status.ok()) return unreadable(entry, text::message_of(status));
  return placement;
}

Status check_checkpoint(const LogCheckpoint& checkpoint) {
  STRATA_RETURN_IF_ERROR(check_name("profile", checkpoint.profile));
  if (checkpoint.database_id == 0) return error_invalid_argument("a database's id is not 0");
  if (checkpoint.node.is_zero()) return error_invalid_argument("a node's number is not 0");
  return ok_status();
}

std::string encode_checkpoint(const LogCheckpoint& checkpoint) {
  Json json = record();
  json["database_id"] = hex(checkpoint.database_id);
  json["profile"] = checkpoint.profile;
  json["data_format"] = checkpoint.data_format;
  json["page_bytes"] = checkpoint.page_bytes;
  json["node"] = checkpoint.node.value;
  json["lsn"] = hex(checkpoint.lsn.value);
  json["llsn_bias"] = hex(checkpoint.llsn_bias);
  json["count"] = hex(checkpoint.count);
  json["clean_shutdown"] = checkpoint.clean_shutdown;
  return text_of(json);
}

StatusOr<LogCheckpoint> decode_checkpoint(const KeyValue& entry) {
  STRATA_ASSIGN_OR_RETURN(const Json json, parse_record(entry));
  LogCheckpoint checkpoint;
  uint32_t node = 0;
  if (!read_hex(json, "database_id", &checkpoint.database_id) ||
      !read_string(json, "profile", &checkpoint.profile) ||
      !read_small(json, "data_format", &checkpoint.data_format) ||
      !read_small(json, "page_bytes", &checkpoint.page_bytes) || !read_small(json, "node", &node) ||
      node > UINT8_MAX || !read_hex(json, "lsn", &checkpoint.lsn.value) ||
      !read_hex(json, "llsn_bias", &checkpoint.llsn_bias) ||
      !read_hex(json, "count", &checkpoint.count) ||
      !read_bool(json, "clean_shutdown", &checkpoint.clean_shutdown))
    return unreadable(entry, "no checkpoint");
  checkpoint.node = NodeId{static_cast<uint8_t>(node)};
  const Status status = check_checkpoint(checkpoint);
  if (!status.ok()) return unreadable(entry, text::message_of(status));
  return checkpoint;
}

Status check_in_sync(const std::vector<InSyncNode>& nodes) {
  constexpr size_t kNodesMax = 16;  // of a storage group
  if (nodes.empty() || nodes.size() > kNodesMax)
    return error_invalid_argument(absl::StrCat("1 to ", kNodesMax, " nodes are in sync"));
  for (size_t i = 0; i < nodes.size(); ++i) {
    STRATA_RETURN_IF_ERROR(check_name("node", nodes[i].name));
    if (nodes[i].store == 0) return error_invalid_argument("a page store's number is not 0");
    if (i != 0 && nodes[i - 1].name >= nodes[i].name)
      return error_invalid_argument("nodes in sync are not in the order of their names");
  }
  return ok_status();
}

std::string encode_in_sync(const std::vector<InSyncNode>& nodes) {
  Json list = Json::array();
  for (const InSyncNode& node : nodes) {
    Json one = Json::object();
    one["name"] = node.name;
    one["store"] = hex(node.store);
    list.push_back(std::move(one));
  }
  Json json = record();
  json["nodes"] = std::move(list);
  return text_of(json);
}

StatusOr<std::vector<InSyncNode>> decode_in_sync(const KeyValue& entry) {
  STRATA_ASSIGN_OR_RETURN(const Json json, parse_record(entry));
  bool ok = true;
  const Json::array_t* list = read_array(json, "nodes", &ok);
  if (!ok || list == nullptr) return unreadable(entry, "no list of nodes in sync");
  std::vector<InSyncNode> nodes;
  for (const Json& one : *list) {
    InSyncNode& node = nodes.emplace_back();
    if (!read_string(one, "name", &node.name) || !read_hex(one, "store", &node.store))
      return unreadable(entry, "a node is none");
  }
  const Status status = check_in_sync(nodes);
  if (!status.ok()) return unreadable(entry, text::message_of(status));
  return nodes;
}

Status check_memory_pools(const MemoryPoolSet& set) {
  if (set.pools.empty() || set.pools.size() > kMemoryPoolsMax || set.since.value > kEpochMax)
    return error_invalid_argument("a stream's memory nodes are 1 to 64");
  bool any = false;
  std::set<std::string_view> names;
  for (const MemoryPool& pool : set.pools) {
    STRATA_RETURN_IF_ERROR(check_name("memory node", pool.node));
    bool once = names.insert(pool.node).second;
    if (!pool.backup.empty()) {
      STRATA_RETURN_IF_ERROR(check_name("memory node", pool.backup));
      once = names.insert(pool.backup).second && once;
    }
    if (!once) return error_invalid_argument("a memory node has one pool of a stream");
    if (pool.backup_incarnation != 0 && (pool.backup.empty() || pool.incarnation == 0))
      return error_invalid_argument("a copy of no pool");
    any = any || pool.incarnation != 0;
  }
  if (!any) return error_invalid_argument("no pool that counts is named");
  return ok_status();
}

std::string encode_memory_pools(const MemoryPoolSet& set) {
  Json list = Json::array();
  for (const MemoryPool& pool : set.pools) {
    Json one = Json::object();
    one["node"] = pool.node;
    one["incarnation"] = hex(pool.incarnation);
    if (!pool.backup.empty()) {
      one["backup"] = pool.backup;
      one["backup_incarnation"] = hex(pool.backup_incarnation);
    }
    list.push_back(std::move(one));
  }
  Json json = record();
  json["pools"] = std::move(list);
  json["since"] = set.since.value;
  return text_of(json);
}

StatusOr<MemoryPoolSet> decode_memory_pools(const KeyValue& entry) {
  STRATA_ASSIGN_OR_RETURN(const Json json, parse_record(entry));
  MemoryPoolSet set;
  const auto add = [&](const Json& one) {
    set.pools.emplace_back();
    MemoryPool& pool = set.pools.back();
    return read_string(one, "node", &pool.node) &&
           read_hex(one, "incarnation", &pool.incarnation) &&
           (find_field(one, "backup") == nullptr ||
            (read_string(one, "backup", &pool.backup) && !pool.backup.empty() &&
             read_hex(one, "backup_incarnation", &pool.backup_incarnation)));
  };
  bool whole = true;
  const Json::array_t* const pools = read_array(json, "pools", &whole);
  if (pools == nullptr) {
    whole = whole && add(json);  // as it was when there was one
  } else {
    for (const Json& one : *pools) whole = whole && add(one);
    whole = whole && read_u64(json, "since", &set.since.value);
  }
  if (!whole) return unreadable(entry, "no pools of memory nodes");
  const Status status = check_memory_pools(set);
  if (!status.ok()) return unreadable(entry, text::message_of(status));
  return set;
}

namespace {

bool is_printable(char c) { return c >= ' ' && c < 0x7f; }

}  // namespace

std::string as_reason(std::string_view text) {
  std::string reason(text.substr(0, kReasonBytesMax));
  std::replace_if(
      reason.begin(), reason.end(), [](char c) { return !is_printable(c); }, '?');
  return reason.empty() ? "?" : reason;
}

Status check_place(const Place& place) {
  if (place.number < kFirstPlace || place.number.value > kPlacesMax || place.folder == 0)
    return error_invalid_argument(
        absl::StrCat("a place is one of 1 to ", kPlacesMax, ", of a data folder"));
  if (place.settled.value > kEpochMax) return error_invalid_argument("an epoch out of range");
  if (!place.adopter.empty()) STRATA_RETURN_IF_ERROR(check_name("node", place.adopter));
  return place.server.empty() ? ok_status() : check_name("node", place.server);
}

std::string encode_place(const Place& place) {
  Json json = record();
  json["folder"] = hex(place.folder);
  if (!place.server.empty()) json["server"] = place.server;
  if (!place.adopter.empty()) json["adopter"] = place.adopter;
  if (!place.settled.is_zero()) json["settled"] = place.settled.value;
  return text_of(json);
}

StatusOr<Place> decode_place(std::string_view places, const KeyValue& entry) {
  STRATA_ASSIGN_OR_RETURN(const Json json, parse_record(entry));
  Place place;
  uint32_t number = 0;
  const std::string_view digits = std::string_view(entry.key).substr(places.size());
  const bool is_number =
      digits.size() == 3 && absl::SimpleAtoi(text::view(digits), &number) && number < 256;
  if (!is_number || !read_hex(json, "folder", &place.folder))
    return unreadable(entry, "no place of a server");
  place.number = NodeId{static_cast<uint8_t>(number)};
  if (find_field(json, "server") != nullptr &&
      (!read_string(json, "server", &place.server) || place.server.empty()))
    return unreadable(entry, "a server without a name");
  if (find_field(json, "adopter") != nullptr &&
      (!read_string(json, "adopter", &place.adopter) || place.adopter.empty()))
    return unreadable(entry, "an adopter without a name");
  if (find_field(json, "settled") != nullptr &&
      (!read_u64(json, "settled", &place.settled.value) || place.settled.is_zero()))
    return unreadable(entry, "no epoch under which somebody has left");
  const Status status = check_place(place);
  if (!status.ok()) return unreadable(entry, text::message_of(status));
  return place;
}

Status check_removal(const RemovalRequest& request) {
  STRATA_RETURN_IF_ERROR(check_name("node", request.node));
  if (request.generation == 0 || request.generation > kEpochMax)
    return error_invalid_argument("a placement's generation is at least 1");
  if (request.refused.size() > kReasonBytesMax ||
      !std::all_of(request.refused.begin(), request.refused.end(), is_printable))
    return error_invalid_argument("the reason of a refusal is too long or not printable");
  return ok_status();
}

std::string encode_removal(const RemovalRequest& request) {
  Json json = record();
  json["node"] = request.node;
  json["generation"] = request.generation;
  if (!request.refused.empty()) json["refused"] = request.refused;
  return text_of(json);
}

StatusOr<RemovalRequest> decode_removal(const KeyValue& entry) {
  STRATA_ASSIGN_OR_RETURN(const Json json, parse_record(entry));
  RemovalRequest request;
  if (!read_string(json, "node", &request.node) ||
      !read_u64(json, "generation", &request.generation))
    return unreadable(entry, "no request to take a node out");
  if (find_field(json, "refused") != nullptr &&
      (!read_string(json, "refused", &request.refused) || request.refused.empty()))
    return unreadable(entry, "a refusal without a reason");
  const Status status = check_removal(request);
  if (!status.ok()) return unreadable(entry, text::message_of(status));
  return request;
}

}  // namespace strata::cluster::internal
