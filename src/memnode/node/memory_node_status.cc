// What a memory node says about itself.
#include <algorithm>
#include <utility>

#include "memnode/node/memory_node.h"
#include "proto/methods.h"

namespace strata::memnode {

NodeStatus MemoryNode::status() const {
  NodeStatus status;
  status.name = options_.name;
  status.cluster = options_.cluster;
  status.identity = folder_->stamp()->identity;
  status.addresses = addresses_;
  status.status_address = options_.status_address;
  if (fabric_ != nullptr) status.fabric = fabric_->address();
  status.pools_folder = pools_folder();
  status.memory_bytes = options_.memory_bytes;
  cluster::MembershipState membership = membership_->state();
  status.joined = membership.joined;
  status.times_joined = membership.times_joined;
  status.lease_remaining_us = membership.lease_remaining_us;
  status.membership = std::move(membership.trouble);
  ServiceStatus service = service_->status();
  status.pools = std::move(service.pools);
  status.tenants = std::move(service.tenants);
  add_pool_values(&status);
  if (fusion_ != nullptr) {
    status.fusion = fusion_->status();
    add_fusion_values(&status);
  }
  add_calls(&status);
  return status;
}

void MemoryNode::add_pool_values(NodeStatus* status) const {
  uint64_t used = 0;
  for (const Tenants::Use& tenant : status->tenants) used += tenant.used_bytes;
  uint64_t oldest = kNeverChanged.value;
  for (const PoolStatus& pool : status->pools) oldest = std::min(oldest, pool.oldest_dirty.value);
  status->gauge("memory_bytes", "Memory for pools.", options_.memory_bytes);
  status->gauge("memory_used_bytes", "Memory that pools have.", used);
  status->gauge("pools", "Pools there are.", status->pools.size());
  status->gauge(
      "oldest_dirty_lsn",
      "Least Lsn, of all pools, of a change that storage may lack; the largest number: none.",
      oldest);
  status->gauge("pool_work_waiting", "Tasks that wait for a worker.", workers_->waiting());
  const PoolCounters& of = service_->counters();
  status->count("pool_attached_total", "Attachments accepted.", of.attached);
  status->count("pool_attach_refused_total", "Attachments refused.", of.attach_refused);
  status->count("pool_tokens_refused_total",
                "Attachments with a token that no tenant has, of those.", of.tokens_refused);
  status->count("pool_stale_calls_total", "Calls of who is not attached, refused.", of.stale_calls);
  status->count("pool_calls_too_many_total", "Calls refused since too many waited.",
                of.too_many_requests);
  status->count("pool_bad_requests_total", "Requests that made no sense.", of.bad_requests);
  status->count("pool_images_taken_total", "Pages taken into pools.", of.images_taken);
  status->count("pool_images_pulled_total", "Pages copied from the memory where compute put them.",
                of.images_pulled);
  status->count("pool_places_refused_total", "Pages said to be outside of that memory, refused.",
                of.places_refused);
  status->count("pool_images_rejected_total",
                "Pages refused: damaged, another page, or changed with a log that is not durable.",
                of.images_rejected);
  status->count("pool_images_older_total", "Pages refused since a newer one was there.",
                of.images_older);
  status->count("pool_images_no_slot_total", "Pages refused for want of a free slot.",
                of.images_no_slot);
  status->count("pool_lookups_total", "Pages looked for by calls.", of.lookups);
  status->count("pool_listed_total", "Pages listed.", of.listed);
  status->count("pool_dropped_total", "Pages dropped.", of.dropped);
  status->count("pool_drops_refused_total", "Pages not dropped: not there, or not clean.",
                of.drops_refused);
  status->count("pool_spaces_forgotten_total", "Spaces forgotten.", of.forgotten);
  status->count("pool_writes_total", "Writes to storage nodes.", of.writes);
  status->count("pool_writes_failed_total",
                "Writes that a storage node did not say OK to, of those.", of.writes_failed);
  status->count("pool_pages_written_total", "Pages written to all storage nodes.",
                of.pages_written);
  status->count("pool_pages_written_again_total", "Pages written once more to one storage node.",
                of.pages_written_again);
  status->count("pool_syncs_total", "Times that compute said that storage has synced.", of.syncs);
  status->count("pool_checkpoints_total", "Checkpoints recorded.", of.checkpoints);
  status->count("pool_damaged_total", "Damaged pages or files met in pools.", of.damaged);
  status->count("pool_discarded_total", "Contents discarded.", of.discarded);
  status->count("pool_not_durable_total",
                "Contents that ended since their medium did not make them durable.",
                of.not_durable);
  status->count("pool_unused_total", "Pools given back: nobody named or used them.", of.unused);
  status->gauge("pool_files_aside", "Files of other memory nodes' pools, put aside and never used.",
                of.files_aside);
  status->count("region_out_of_bounds_total",
                "Accesses by call beyond the end of a region, refused.", regions_->out_of_bounds());
  status->count("region_writes_refused_total",
                "Writes to pools' memory asked for by call, refused.", regions_->writes_refused());
}

void MemoryNode::add_fusion_values(NodeStatus* status) const {
  const FusionHostStatus& host = *status->fusion;
  status->gauge("fusion_serves", "1 while servers that share tables are served here.",
                host.phase == FusionPhase::kServes ? 1 : 0);
  status->gauge("fusion_stands_by", "1 while another memory node serves them, and this one waits.",
                host.phase == FusionPhase::kStandsBy ? 1 : 0);
  status->gauge("fusion_line",
                "1 while this node waits, and would hear at once if the one that serves is gone.",
                host.has_line ? 1 : 0);
  status->gauge("fusion_epoch", "The last epoch that this node was the authority under.",
                host.epoch.value);
  status->count("fusion_terms_total", "Times that this node became the authority.", host.terms);
  if (host.service == nullptr) return;
  const FusionStatus now = host.service->status();
  status->gauge("fusion_servers", "Servers that take part, or are being fenced.",
                now.servers.size());
  status->gauge("fusion_clock", "The last timestamp that was given.", now.clock);
  status->gauge("fusion_horizon", "No view looks further back than that.", now.horizon);
  status->gauge("fusion_page_entries", "Pages of which it is known who has them.",
                now.page_entries);
  status->gauge("fusion_dirty_pages", "Pages of which storage lacks the newest version.",
                now.dirty_pages);
  status->gauge("fusion_free_slots", "Slots for pages that nobody uses.", now.free_slots);
  status->count("fusion_page_grants_total", "Pages granted.", now.pages.grants);
  status->count("fusion_page_give_ups_total", "Pages asked back from those who had them.",
                now.pages.give_ups);
  status->count("fusion_page_versions_total", "Versions of pages put here.", now.pages.versions);
  status->count("fusion_page_versions_refused_total", "Versions of pages refused.",
                now.pages.refused_versions);
  status->gauge("fusion_names", "Names of tables that servers have, or wait for.", now.names);
  status->gauge("fusion_dropped_spaces",
                "Spaces that were dropped, and that not all servers are known to have left.",
                now.dropped_spaces);
  status->count("fusion_name_grants_total", "Names of tables granted.", now.name_locks.grants);
  status->count("fusion_name_give_ups_total", "Names of tables asked back from those who had them.",
                now.name_locks.give_ups);
  status->count("fusion_names_untold_total",
                "Events about names and spaces thrown away, since their server did not listen.",
                now.name_news.untold);
  status->count("fusion_reuse_rounds_total",
                "Rounds of asking all servers whether pages may be used again.", now.reuse_rounds);
  const FusionServiceCounters& of = host.service->counters();
  status->count("fusion_joined_total", "Servers that became members.", of.joined);
  status->count("fusion_left_total", "Members that left by themselves.", of.left);
  status->count("fusion_fenced_total", "Members that were fenced.", of.fenced);
  status->count("fusion_expired_total", "Members that did not renew their lease, of those.",
                of.expired);
  status->count("fusion_released_total", "Members of which everything was released.", of.released);
  status->count("fusion_renewals_total", "Leases renewed.", of.renewals);
  status->count("fusion_stale_calls_total",
                "Calls of another epoch, of another life or of nobody, refused.", of.stale_calls);
  status->count("fusion_calls_unready_total",
                "Calls refused while this node could not say that it serves.", of.calls_unready);
  status->count("fusion_bad_requests_total", "Requests that made no sense.", of.bad_requests);
  status->count("fusion_calls_too_many_total", "Calls refused since too many waited.",
                of.too_many_requests);
  status->count("fusion_appends_total", "Records appended to the authority stream.", of.appends);
  status->count("fusion_appends_failed_total", "Those that failed, or nobody knows.",
                of.appends_failed);
  status->count("fusion_pages_told_total", "Pages granted or asked back by an event.",
                of.pages_told);
  status->count("fusion_pages_untold_total",
                "Events thrown away, since their server did not listen.", of.pages_untold);
  status->count("fusion_questions_total", "Questions about transactions passed on.", of.questions);
  status->count("fusion_answers_total", "Answers to those.", of.answers);
  status->count("fusion_pages_written_total", "Pages written to storage nodes.", of.pages_written);
  status->count("fusion_writes_failed_total", "Pages of which a write failed.", of.writes_failed);
  status->count("fusion_slots_damaged_total",
                "Pages that were not what had been reported, and were not written.",
                of.slots_damaged);
}

void MemoryNode::add_calls(NodeStatus* status) const {
  for (const proto::MethodTraits& method : proto::all_methods()) {
    const bool is_served = method.service == proto::Service::kPools ||
                           (method.service == proto::Service::kFusion && fusion_ != nullptr);
    if (!is_served) continue;
    status->add_call(method.name, counters_->of(method.method));
  }
  status->add_connections(counters_.get());
}

Status MemoryNode::health() const {
  if (stopping_.raised()) return error_peer_down("it stops; to do: wait until it has");
  if (const Status trouble = service_->trouble(); !trouble.ok())
    return with_remedy(trouble,
                       "look at the memory or the medium of the pools; compute makes the page "
                       "again from its log once it is restarted");
  if (fusion_ != nullptr) STRATA_RETURN_IF_ERROR(fusion_->health());
  const cluster::MembershipState membership = membership_->state();
  if (!membership.joined)
    return error_lease_lost("it serves, but is not a member: " + membership.trouble +
                            "; to do: see whether the registry answers; it joins again by itself");
  return ok_status();
}

}  // namespace strata::memnode
