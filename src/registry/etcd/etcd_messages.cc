#include "registry/etcd/internal/etcd_messages.h"

#include <algorithm>
#include <array>

#include "registry/json.h"
#include "registry/text.h"

namespace strata::registry::internal {

using namespace json;  // NOLINT: most of what stands here reads or writes it
namespace {

std::string field(const char* name, std::string_view bytes) {
  return absl::StrCat("\"", name, "\":\"", text::base64(bytes), "\"");
}
std::string number(const char* name, uint64_t value) {
  return absl::StrCat("\"", name, "\":\"", value, "\"");
}

Status unreadable(const char* what, Bytes reply) {
  return error_corruption(
      absl::StrCat("this is no ", what, " of etcd: \"", text::printable(reply), "\""));
}

bool read_header(const Json& reply, EtcdHeader* header) {
  const Json* json = find_field(reply, "header");
  return json != nullptr && read_u64(*json, "cluster_id", &header->cluster_id) &&
         read_u64(*json, "revision", &header->revision) && header->cluster_id != 0;
}

bool read_base64(const Json& json, const char* name, std::string* out) {
  std::string text;
  return read_string(json, name, &text) && text::from_base64(text, out);
}

bool read_entry(const Json& json, KeyValue* entry) {
  return json.is_object() && read_base64(json, "key", &entry->key) &&
         read_base64(json, "value", &entry->value) &&
         read_u64(json, "mod_revision", &entry->version.value) &&
         read_u64(json, "lease", &entry->lease.value) && !entry->key.empty() &&
         !entry->version.is_zero();
}

bool read_entries(const Json& range, std::vector<KeyValue>* entries) {
  bool ok = true;
  const Json::array_t* kvs = read_array(range, "kvs", &ok);
  if (kvs == nullptr) return ok;
  for (const Json& kv : *kvs) {
    KeyValue entry;
    if (!read_entry(kv, &entry)) return false;
    entries->push_back(std::move(entry));
  }
  return true;
}

// The replies to the reads that stand beside a change that was not made.
bool read_found(const Json& reply, std::vector<KeyValue>* found) {
  bool ok = true;
  const Json::array_t* responses = read_array(reply, "responses", &ok);
  if (responses == nullptr) return ok;
  for (const Json& response : *responses) {
    const Json* range = find_field(response, "response_range");
    if (range == nullptr || !read_entries(*range, found)) return false;
  }
  return true;
}

bool read_event(const Json& json, WatchEvent* event) {
  const Json* kv = find_field(json, "kv");
  std::string type = "PUT";
  if (kv == nullptr || !read_string(json, "type", &type) || !read_entry(*kv, &event->entry))
    return false;
  event->removed = type == "DELETE";
  if (!event->removed) return type == "PUT";
  event->entry = KeyValue{std::move(event->entry.key), {}, event->entry.version, {}};
  return true;
}

bool read_watch_message(const Json& result, WatchMessage* message) {
  bool ok = read_header(result, &message->header) &&
            read_bool(result, "created", &message->created) &&
            read_bool(result, "canceled", &message->canceled) &&
            read_bool(result, "fragment", &message->fragment) &&
            read_u64(result, "compact_revision", &message->compact_revision) &&
            read_string(result, "cancel_reason", &message->reason);
  const Json::array_t* events = read_array(result, "events", &ok);
  if (!ok || events == nullptr) return ok;
  for (const Json& json : *events) {
    WatchEvent event;
    if (!read_event(json, &event)) return false;
    message->events.push_back(std::move(event));
  }
  return true;
}

}  // namespace

std::string prefix_end(std::string_view prefix) {
  std::string end(prefix);
  while (!end.empty() && static_cast<unsigned char>(end.back()) == 0xff) end.pop_back();
  if (end.empty()) return std::string(1, '\0');
  end.back() = static_cast<char>(static_cast<unsigned char>(end.back()) + 1);
  return end;
}

std::string encode_range(const RangeRequest& request) {
  std::string json = absl::StrCat("{", field("key", request.from));
  if (!request.end.empty()) absl::StrAppend(&json, ",", field("range_end", request.end));
  if (request.limit != 0) absl::StrAppend(&json, ",", number("limit", request.limit));
  if (request.at_revision != 0)
    absl::StrAppend(&json, ",", number("revision", request.at_revision));
  if (request.serializable) absl::StrAppend(&json, ",\"serializable\":true");
  return json + "}";
}

std::string encode_change(absl::Span<const Change> changes) {
  std::string compares;
  std::string operations;
  std::string reads;
  for (const Change& change : changes) {
    const std::string key = field("key", change.key);
    const char* comma = compares.empty() ? "" : ",";
    // A key that is not there has mod_revision 0.
    absl::StrAppend(&compares, comma, "{", key, ",\"target\":\"MOD\",\"result\":\"EQUAL\",",
                    number("mod_revision", change.expected.value), "}");
    absl::StrAppend(&reads, comma, "{\"request_range\":{", key, "}}");
    if (change.kind == Change::Kind::kRequire) continue;
    comma = operations.empty() ? "" : ",";
    if (change.kind == Change::Kind::kPut) {
      absl::StrAppend(&operations, comma, "{\"request_put\":{", key, ",",
                      field("value", change.value), ",", number("lease", change.lease.value), "}}");
    } else {
      absl::StrAppend(&operations, comma, "{\"request_delete_range\":{", key, "}}");
    }
  }
  return absl::StrCat("{\"compare\":[", compares, "],\"success\":[", operations, "],\"failure\":[",
                      reads, "]}");
}

std::string encode_grant(uint32_t ttl_s) { return absl::StrCat("{", number("TTL", ttl_s), "}"); }

std::string encode_lease(LeaseId lease) {
  return absl::StrCat("{", number("ID", lease.value), "}");
}

std::string encode_watch(std::string_view prefix, uint64_t start_revision) {
  // fragment: replies stay below the size of a request instead of growing without bound.
  return absl::StrCat("{\"create_request\":{", field("key", prefix), ",",
                      field("range_end", prefix_end(prefix)), ",",
                      number("start_revision", start_revision), ",\"fragment\":true}}");
}

StatusOr<RangeReply> decode_range(Bytes bytes) {
  const Json json = parse_object(bytes);
  RangeReply reply;
  if (!read_header(json, &reply.header) || !read_entries(json, &reply.entries) ||
      !read_bool(json, "more", &reply.more))
    return unreadable("range reply", bytes);
  return reply;
}

StatusOr<ChangeReply> decode_change(Bytes bytes) {
  const Json json = parse_object(bytes);
  ChangeReply reply;
  if (!read_header(json, &reply.header) || !read_bool(json, "succeeded", &reply.changed) ||
      reply.header.revision == 0)
    return unreadable("transaction reply", bytes);
  if (!reply.changed && !read_found(json, &reply.found))
    return unreadable("transaction reply", bytes);
  return reply;
}

namespace {

StatusOr<LeaseReply> decode_lease(const Json& json, Bytes bytes) {
  LeaseReply reply;
  if (!read_header(json, &reply.header) || !read_u64(json, "ID", &reply.lease.value) ||
      !read_u64(json, "TTL", &reply.ttl_s) || reply.lease.is_zero() ||
      reply.ttl_s > uint64_t{2} * kLeaseSecondsMax)
    return unreadable("lease reply", bytes);
  return reply;
}

}  // namespace

StatusOr<LeaseReply> decode_grant(Bytes bytes) {
  STRATA_ASSIGN_OR_RETURN(LeaseReply reply, decode_lease(parse_object(bytes), bytes));
  if (reply.ttl_s == 0) return unreadable("lease reply", bytes);
  return reply;
}

StatusOr<LeaseReply> decode_renewal(Bytes bytes) {
  const Json json = parse_object(bytes);
  const Json* result = find_field(json, "result");
  return decode_lease(result == nullptr ? Json() : *result, bytes);
}

StatusOr<EtcdHeader> decode_header(Bytes bytes) {
  EtcdHeader header;
  if (!read_header(parse_object(bytes), &header)) return unreadable("reply", bytes);
  return header;
}

StatusOr<WatchMessage> decode_watch(Bytes line) {
  const Json json = parse_object(line);
  const Json* result = find_field(json, "result");
  WatchMessage message;
  if (result == nullptr || !read_watch_message(*result, &message))
    return unreadable("watch message", line);
  return message;
}

bool decode_error(Bytes reply, EtcdError* error) {
  const Json json = parse_object(reply);
  const Json* inner = find_field(json, "error");
  if (inner == nullptr) return false;
  // Streams wrap it: {"error": {"grpc_code": ..., "message": ...}}.
  if (inner->is_object())
    return read_u64(*inner, "grpc_code", &error->code) &&
           read_string(*inner, "message", &error->message);
  return read_u64(json, "code", &error->code) && read_string(json, "message", &error->message);
}

namespace {

// gRPC codes that etcd gives only before it does anything, and what we call them.
struct KnownCode {
  uint64_t grpc_code;
  Status (*error)(std::string_view message);
  bool elsewhere;
};
constexpr std::array kNothingDone = {
    KnownCode{3, error_invalid_argument, false},  // too large, malformed
    KnownCode{5, error_not_found, false},         // the lease; checked before any operation
    KnownCode{7, error_peer_down, true},          // permission denied
    KnownCode{12, error_peer_down, true},         // unimplemented
    KnownCode{16, error_peer_down, true},         // unauthenticated
};

// "database space exceeded" (code 8, too) is not among them: etcd returns it for the very change
// that fills its quota, which is made.
constexpr std::string_view kTooMany = "etcdserver: too many requests";
constexpr std::string_view kNoLeader = "etcdserver: no leader";

}  // namespace

Refusal explain_refusal(long http_status, Bytes reply) {
  EtcdError error;
  if (!decode_error(reply, &error)) {
    // A path nobody serves: not etcd, or one that is too old.
    const bool not_served = http_status == 404;
    return {error_peer_down(absl::StrCat("no etcd v3 gateway: HTTP status ", http_status, ", \"",
                                         text::printable(reply), "\"")),
            !not_served, true};
  }
  const std::string message = text::printable(error.message);
  if (error.message == kTooMany) return {error_no_space(message), false, true};
  if (error.message == kNoLeader) return {error_peer_down(message), false, true};
  const auto* known = std::find_if(kNothingDone.begin(), kNothingDone.end(),
                                   [&](const auto& row) { return row.grpc_code == error.code; });
  if (known != kNothingDone.end()) return {known->error(message), false, known->elsewhere};
  return {error_peer_down(message), true, true};
}

}  // namespace strata::registry::internal
