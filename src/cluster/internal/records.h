// The values of the cluster's keys: JSON objects with "format": 1 (docs/data_formats.md). Pure.
//   RE1  What decodes obeys the rules of its type; anything else is kDataLoss and names the key.
//   RE2  What is encoded decodes to the same.
#pragma once

#include <string>
#include <vector>

#include "cluster/in_sync_nodes.h"
#include "cluster/log_checkpoints.h"
#include "cluster/membership.h"
#include "cluster/memory_pools.h"
#include "cluster/node_removals.h"
#include "cluster/places.h"
#include "cluster/stream_epochs.h"
#include "cluster/topology.h"

namespace strata::cluster::internal {

// JSON tools that keep numbers as doubles read no larger ones exactly.
constexpr uint64_t kEpochMax = (uint64_t{1} << 53) - 1;

// Of both keys of a stream.
struct EpochRecord {
  Epoch epoch;
  std::string holder;
};
std::string encode_epoch(const EpochRecord& record);
StatusOr<EpochRecord> decode_epoch(const KeyValue& entry);

Status check_member(const Member& member);  // kInvalidArgument
std::string encode_member(const Member& member);
// `members`: the prefix, behind which the name stands.
StatusOr<Member> decode_member(std::string_view members, const KeyValue& entry);

Status check_identity(const DatabaseIdentity& identity);  // kInvalidArgument
std::string encode_identity(const DatabaseIdentity& identity);
StatusOr<DatabaseIdentity> decode_identity(const KeyValue& entry);

std::string encode_placement(const Placement& placement);
StatusOr<Placement> decode_placement(const KeyValue& entry);

Status check_checkpoint(const LogCheckpoint& checkpoint);  // kInvalidArgument
std::string encode_checkpoint(const LogCheckpoint& checkpoint);
StatusOr<LogCheckpoint> decode_checkpoint(const KeyValue& entry);

Status check_in_sync(const std::vector<InSyncNode>& nodes);  // kInvalidArgument
std::string encode_in_sync(const std::vector<InSyncNode>& nodes);
StatusOr<std::vector<InSyncNode>> decode_in_sync(const KeyValue& entry);

Status check_memory_pools(const MemoryPoolSet& set);  // kInvalidArgument
std::string encode_memory_pools(const MemoryPoolSet& set);
StatusOr<MemoryPoolSet> decode_memory_pools(const KeyValue& entry);

Status check_place(const Place& place);  // kInvalidArgument
std::string encode_place(const Place& place);
// `places`: the prefix, behind which the number stands.
StatusOr<Place> decode_place(std::string_view places, const KeyValue& entry);

Status check_removal(const RemovalRequest& request);  // kInvalidArgument
std::string encode_removal(const RemovalRequest& request);
StatusOr<RemovalRequest> decode_removal(const KeyValue& entry);
std::string as_reason(std::string_view text);  // why a request was refused, as check_removal wants

}  // namespace strata::cluster::internal
