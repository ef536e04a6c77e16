#include "status_text.h"

#include <nlohmann/json.hpp>

#include "daemon/data_folder.h"
#include "daemon/metrics_text.h"
#include "daemon/status_json.h"

namespace strata::storenode {
namespace {

using daemon::hex64;

struct StreamValue {
  const char* name;
  const char* help;
  uint64_t (*of)(const NodeStatus::Stream&);
};
using Stream = NodeStatus::Stream;
constexpr StreamValue kStreamValues[] = {
    {"promised_epoch", "Lower epochs are refused.",
     [](const Stream& s) { return s.promised_epoch; }},
    {"last_epoch", "The last epoch begun in this log.",
     [](const Stream& s) { return s.last_epoch; }},
    {"voting", "1 if the node counts for quorums.",
     [](const Stream& s) { return uint64_t{s.voting}; }},
    {"log_begin", "First Lsn kept.", [](const Stream& s) { return s.log_begin; }},
    {"log_end", "Lsn behind the last durable byte.", [](const Stream& s) { return s.log_end; }},
    {"quorum_durable", "Lsn below which the log is durable on a write quorum.",
     [](const Stream& s) { return s.quorum_durable; }},
    {"scanned", "Lsn up to which the log was scanned.", [](const Stream& s) { return s.scanned; }},
    {"replayed", "Lsn up to which the log was replayed.",
     [](const Stream& s) { return s.replayed; }},
    {"needed_from", "Lsn below which this node does not need the log.",
     [](const Stream& s) { return s.needed_from; }},
    {"segments", "Files of the log.", [](const Stream& s) { return s.segments; }},
    {"damages", "Damaged ranges of the log.", [](const Stream& s) { return s.damages; }},
};

nlohmann::json json_of(const NodeStatus::Stream& stream) {
  nlohmann::json json = {{"stream", stream.stream}, {"failure", stream.failure}};
  for (const StreamValue& value : kStreamValues) json[value.name] = value.of(stream);
  json["voting"] = stream.voting;
  return json;
}

}  // namespace

std::string status_json(const NodeStatus& status, const Status& health) {
  nlohmann::json json = {{"name", status.name},
                         {"cluster", status.cluster},
                         {"identity", hex64(status.identity)},
                         {"database_id", hex64(status.database_id)},
                         {"profile", status.profile},
                         {"group",
                          {{"id", status.group},
                           {"nodes", status.group_nodes},
                           {"write_quorum", status.write_quorum},
                           {"generation", status.placement_generation}}},
                         {"out_of_group", status.out_of_group},
                         {"addresses", status.addresses},
                         {"status_address", status.status_address},
                         {"membership",
                          {{"joined", status.joined},
                           {"times_joined", status.times_joined},
                           {"lease_remaining_us", status.lease_remaining_us},
                           {"trouble", status.membership}}},
                         {"healthy", health.ok()},
                         {"health", health.ok() ? "ok" : cause_and_remedy(health)},
                         {"failure", status.failure},
                         {"trouble", status.trouble},
                         {"streams", nlohmann::json::array()}};
  for (const NodeStatus::Stream& stream : status.streams)
    json["streams"].push_back(json_of(stream));
  daemon::add_values(&json, status);
  return daemon::text_of(json);
}

std::string metrics_text(const NodeStatus& status, const Status& health) {
  daemon::MetricsText out;
  out.family("node_info", "Who this is.", false);
  out.sample(1, {{"name", status.name},
                 {"cluster", status.cluster},
                 {"profile", status.profile},
                 {"identity", hex64(status.identity)},
                 {"database", hex64(status.database_id)}});
  out.family("node_healthy", "1 if /healthz says ok.", false);
  out.sample(health.ok() ? 1 : 0);
  out.family("node_joined", "1 while the node is a member of its cluster.", false);
  out.sample(status.joined ? 1 : 0);
  out.family("node_placement_generation", "Of the placement that the node knows.", false);
  out.sample(status.placement_generation);
  out.family("node_in_group", "0 once the node was replaced.", false);
  out.sample(status.out_of_group.empty() ? 1 : 0);
  out.family("node_times_joined_total", "Times the node became a member.", true);
  out.sample(status.times_joined);
  daemon::add_values(&out, status);
  for (const StreamValue& value : kStreamValues) {
    out.family(std::string("stream_") + value.name, value.help, false);
    for (const NodeStatus::Stream& stream : status.streams)
      out.sample(value.of(stream), {{"stream", std::to_string(stream.stream)}});
  }
  daemon::add_calls(&out, status);
  return out.take();
}

}  // namespace strata::storenode
