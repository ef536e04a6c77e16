// What is said to etcd's JSON gateway (etcd v3, /v3/...) and what it answers. Pure.
//   EM1  Whatever bytes come, decoding ends with a message or with kDataLoss. What is decoded obeys
//        the limits of registry.h no more than the sender did.
// Keys and values are base64 there, 64-bit numbers are strings, and what is zero is left out.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "base/bytes.h"
#include "base/status.h"
#include "registry/registry.h"

namespace strata::registry::internal {

// Every reply says which cluster answered, and how many changes it had seen.
struct EtcdHeader {
  uint64_t cluster_id = 0;
  uint64_t revision = 0;
};

struct RangeReply {
  EtcdHeader header;
  std::vector<KeyValue> entries;
  bool more = false;
};
struct ChangeReply {
  EtcdHeader header;
  bool changed = false;
  std::vector<KeyValue> found;  // of the keys named, if not changed
};
struct LeaseReply {
  EtcdHeader header;
  LeaseId lease;
  uint64_t ttl_s = 0;  // 0: there is no such lease
};
struct WatchMessage {
  EtcdHeader header;
  bool created = false;
  bool canceled = false;
  bool fragment = false;  // the rest of these events comes in the next message
  uint64_t compact_revision = 0;
  std::string reason;  // of the cancellation
  std::vector<WatchEvent> events;
};
struct EtcdError {
  uint64_t code = 0;  // gRPC's
  std::string message;
};

struct RangeRequest {
  std::string_view from;      // first key
  std::string_view end;       // behind the last key; empty: only the first
  uint64_t limit = 0;         // 0: none
  uint64_t at_revision = 0;   // 0: now
  bool serializable = false;  // from this member's memory, without asking the others
};
std::string encode_range(const RangeRequest& request);
std::string encode_change(absl::Span<const Change> changes);
std::string encode_grant(uint32_t ttl_s);
std::string encode_lease(LeaseId lease);  // to renew or to revoke
std::string encode_watch(std::string_view prefix, uint64_t start_revision);
// The first key behind all that start with `prefix`; "\0" stands for no end.
std::string prefix_end(std::string_view prefix);

StatusOr<RangeReply> decode_range(Bytes reply);
StatusOr<ChangeReply> decode_change(Bytes reply);
StatusOr<LeaseReply> decode_grant(Bytes reply);
StatusOr<LeaseReply> decode_renewal(Bytes reply);
StatusOr<EtcdHeader> decode_header(Bytes reply);  // of replies that hold nothing else
StatusOr<WatchMessage> decode_watch(Bytes line);
// False: it is none.
bool decode_error(Bytes reply, EtcdError* error);

// What an answer other than 200 means for the request.
struct Refusal {
  Status status;          // as RG3 names it, were it certain that nothing was done
  bool in_doubt = true;   // something may have been done
  bool elsewhere = true;  // another endpoint may do better
};
Refusal explain_refusal(long http_status, Bytes reply);

}  // namespace strata::registry::internal
