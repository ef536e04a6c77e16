#include "registry/internal/records.h"

#include <algorithm>
#include <array>

#include "registry/internal/json.h"

namespace strata::registry::internal {
namespace {

constexpr uint64_t kFormat = 1;
constexpr size_t kAddressBytesMax = 200;
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
  return error_corruption(absl::StrCat("registry key ", printable(entry.key), " at version ",
                                       entry.version.value, " cannot be read (", why,
                                       "): ", printable(entry.value)));
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
  if (!status.ok()) return unreadable(entry, message_of(status));
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
  if (!status.ok()) return unreadable(entry, message_of(status));
  return identity;
}

std::string encode_placement(const Placement& placement) {
  Json groups = Json::array();
  for (const StorageGroup& group : placement.groups) {
    Json one = Json::object();
    one["id"] = group.id;
    one["nodes"] = group.nodes;
    one["write_quorum"] = group.write_quorum;
    groups.push_back(std::move(one));
  }
  Json json = record();
  json["generation"] = placement.generation;
  json["groups"] = std::move(groups);
  return text_of(json);
}

namespace {

bool read_group(const Json& json, StorageGroup* group) {
  bool ok =
      read_small(json, "id", &group->id) && read_small(json, "write_quorum", &group->write_quorum);
  const Json::array_t* nodes = read_array(json, "nodes", &ok);
  if (!ok || nodes == nullptr) return false;
  for (const Json& node : *nodes) {
    const auto* name = node.get_ptr<const Json::string_t*>();
    if (name == nullptr) return false;
    group->nodes.push_back(*name);
  }
  return true;
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
  if (!status.ok()) return unreadable(entry, message_of(status));
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
  if (!status.ok()) return unreadable(entry, message_of(status));
  return checkpoint;
}

}  // namespace strata::registry::internal
