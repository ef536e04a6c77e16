#include "status_text.h"

#include <nlohmann/json.hpp>

#include "daemon/data_folder.h"
#include "daemon/metrics_text.h"
#include "daemon/status_json.h"

namespace strata::memnode {
namespace {

using daemon::hex64;

struct PoolValue {
  const char* name;
  const char* help;
  uint64_t (*of)(const PoolStatus&);
};
using P = PoolStatus;
constexpr PoolValue kPoolValues[] = {
    {"bytes", "Memory of the pool, headers included.", [](const P& p) { return p.bytes; }},
    {"attached", "1 while somebody uses the pool.",
     [](const P& p) { return uint64_t{p.attached}; }},
    {"epoch", "Of who was accepted last.", [](const P& p) { return p.epoch.value; }},
    {"attachment", "How often that one has been attached in its epoch.",
     [](const P& p) { return p.number; }},
    {"oldest_dirty_lsn", "Least Lsn of a change that storage may lack; the largest number: none.",
     [](const P& p) { return p.oldest_dirty.value; }},
    {"last_report", "Writes that all storage nodes said OK to.",
     [](const P& p) { return p.last_report; }},
    {"writes_under_way", "Writes that storage nodes have not answered yet.",
     [](const P& p) { return p.writes_under_way; }},
    {"checkpoint_epoch", "Of the last checkpoint recorded here.",
     [](const P& p) { return p.checkpoint_epoch.value; }},
    {"checkpoint_lsn", "The last checkpoint recorded here; 0: none.",
     [](const P& p) { return p.checkpoint.value; }},
    {"published_total", "Pages put into slots.", [](const P& p) { return p.counts.published; }},
    {"replaced_total", "Pages of which a newer image took the place.",
     [](const P& p) { return p.counts.replaced; }},
    {"dropped_total", "Pages dropped.", [](const P& p) { return p.counts.dropped; }},
    {"rejected_total", "Images that the pool refused.",
     [](const P& p) { return p.counts.rejected; }},
};
bool is_counter(const PoolValue& value) { return std::string(value.name).ends_with("_total"); }

struct SlotsValue {
  const char* state;
  uint32_t Pool::Counts::*of;
};
constexpr SlotsValue kSlotStates[] = {
    {"free", &Pool::Counts::free},       {"filling", &Pool::Counts::filling},
    {"clean", &Pool::Counts::clean},     {"dirty", &Pool::Counts::dirty},
    {"writing", &Pool::Counts::writing}, {"written", &Pool::Counts::written},
    {"leaving", &Pool::Counts::leaving}, {"held", &Pool::Counts::held},
};

nlohmann::json json_of(const PoolStatus& pool) {
  nlohmann::json json = {{"stream", pool.stream.value},
                         {"tenant", pool.tenant},
                         {"incarnation", hex64(pool.incarnation)},
                         {"trouble", pool.trouble}};
  for (const PoolValue& value : kPoolValues) json[value.name] = value.of(pool);
  json["attached"] = pool.attached;
  if (pool.oldest_dirty == kNeverChanged) json["oldest_dirty_lsn"] = nullptr;
  json["slots"]["all"] = pool.counts.slots;
  for (const SlotsValue& state : kSlotStates) json["slots"][state.state] = pool.counts.*state.of;
  return json;
}

daemon::MetricsText::Labels labels_of(const PoolStatus& pool) {
  return {{"stream", std::to_string(pool.stream.value)}, {"tenant", pool.tenant}};
}

void add_pools(daemon::MetricsText* out, const NodeStatus& status) {
  out->family("remote_pool_slots", "Slots of pools, by state.", false);
  for (const PoolStatus& pool : status.pools) {
    for (const SlotsValue& state : kSlotStates) {
      auto labels = labels_of(pool);
      labels.emplace_back("state", state.state);
      out->sample(pool.counts.*state.of, labels);
    }
  }
  for (const PoolValue& value : kPoolValues) {
    out->family(std::string("remote_pool_") + value.name, value.help, is_counter(value));
    for (const PoolStatus& pool : status.pools) out->sample(value.of(pool), labels_of(pool));
  }
}

void add_tenants(daemon::MetricsText* out, const NodeStatus& status) {
  out->family("tenant_quota_bytes", "Memory that the tenant's pools may have.", false);
  for (const Tenants::Use& tenant : status.tenants)
    out->sample(tenant.quota_bytes, {{"tenant", tenant.name}});
  out->family("tenant_used_bytes", "Memory that they have.", false);
  for (const Tenants::Use& tenant : status.tenants)
    out->sample(tenant.used_bytes, {{"tenant", tenant.name}});
}

// Nothing is to be done about one that waits.
std::string why_of(const FusionHostStatus& host) {
  if (host.why.ok()) return "";
  return host.phase == FusionPhase::kStandsBy ? cause_of(host.why) : cause_and_remedy(host.why);
}

nlohmann::json json_of(const FusionHostStatus& host) {
  nlohmann::json json = {
      {"phase", name_of(host.phase)},      {"why", why_of(host)}, {"terms", host.terms},
      {"epoch", host.epoch.value},         {"serves", false},     {"line", host.has_line},
      {"servers", nlohmann::json::array()}};
  // What was so when it served last is of use to nobody.
  const bool has_term = host.phase == FusionPhase::kServes || host.phase == FusionPhase::kPrepares;
  if (host.service == nullptr || !has_term) return json;
  const FusionStatus now = host.service->status();
  json["serves"] = host.phase == FusionPhase::kServes && now.serves;
  json["clock"] = now.clock;
  json["ceiling"] = now.ceiling;
  json["horizon"] = now.horizon;
  for (const FusionStatus::Server& server : now.servers)
    json["servers"].push_back(
        {{"server", server.server.value}, {"life", hex64(server.life)}, {"fenced", server.fenced}});
  return json;
}

}  // namespace

std::string status_json(const NodeStatus& status, const Status& health) {
  nlohmann::json json = {{"name", status.name},
                         {"cluster", status.cluster},
                         {"role", "memory"},
                         {"identity", hex64(status.identity)},
                         {"addresses", status.addresses},
                         {"status_address", status.status_address},
                         {"fabric", status.fabric},
                         {"pools_folder", status.pools_folder},
                         {"membership",
                          {{"joined", status.joined},
                           {"times_joined", status.times_joined},
                           {"lease_remaining_us", status.lease_remaining_us},
                           {"trouble", status.membership}}},
                         {"healthy", health.ok()},
                         {"health", health.ok() ? "ok" : cause_and_remedy(health)},
                         {"pools", nlohmann::json::array()},
                         {"tenants", nlohmann::json::array()}};
  for (const PoolStatus& pool : status.pools) json["pools"].push_back(json_of(pool));
  for (const Tenants::Use& tenant : status.tenants)
    json["tenants"].push_back({{"name", tenant.name},
                               {"quota_bytes", tenant.quota_bytes},
                               {"used_bytes", tenant.used_bytes}});
  if (status.fusion.has_value()) json["fusion"] = json_of(*status.fusion);
  daemon::add_values(&json, status);
  return daemon::text_of(json);
}

std::string metrics_text(const NodeStatus& status, const Status& health) {
  daemon::MetricsText out;
  out.family("node_info", "Who this is.", false);
  out.sample(1, {{"name", status.name},
                 {"cluster", status.cluster},
                 {"role", "memory"},
                 {"identity", hex64(status.identity)}});
  out.family("node_healthy", "1 if /healthz says ok.", false);
  out.sample(health.ok() ? 1 : 0);
  out.family("node_joined", "1 while the node is a member of its cluster.", false);
  out.sample(status.joined ? 1 : 0);
  out.family("node_times_joined_total", "Times the node became a member.", true);
  out.sample(status.times_joined);
  daemon::add_values(&out, status);
  add_pools(&out, status);
  add_tenants(&out, status);
  daemon::add_calls(&out, status);
  return out.take();
}

}  // namespace strata::memnode
