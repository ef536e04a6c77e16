// What a storage node says about itself.
#include <sys/stat.h>

#include <filesystem>
#include <utility>

#include "proto/methods.h"
#include "storenode/node/storage_node.h"

namespace strata::storenode {
namespace {

constexpr uint64_t kBlockBytes = 512;  // of st_blocks

// Files come and go meanwhile.
uint64_t disk_bytes(const std::string& directory) {
  uint64_t bytes = 0;
  std::error_code error;
  for (std::filesystem::recursive_directory_iterator at(directory, error), end; !error && at != end;
       at.increment(error)) {
    struct stat of {};
    if (::lstat(at->path().c_str(), &of) == 0)
      bytes += static_cast<uint64_t>(of.st_blocks) * kBlockBytes;
  }
  return bytes;
}

void add_streams(NodeStatus* status, const std::vector<StreamStatus>& logs,
                 const PageStoreStatus& pages) {
  for (const StreamStatus& log : logs) {
    NodeStatus::Stream stream;
    stream.stream = log.stream.value;
    stream.promised_epoch = log.state.promised.value;
    stream.last_epoch = log.state.last_epoch.value;
    stream.voting = log.state.voting;
    stream.log_begin = log.state.start.value;
    stream.log_end = log.state.end.value;
    stream.quorum_durable = log.state.quorum_durable.value;
    stream.segments = log.segments;
    stream.damages = log.damages.size();
    stream.failure = std::string(log.failure.message());
    for (const PageStoreStatus::Stream& replay : pages.streams) {
      if (replay.stream != log.stream) continue;
      stream.scanned = replay.scanned.lsn.value;
      stream.replayed = replay.replayed.lsn.value;
      stream.needed_from = replay.needed_from.value;
    }
    status->streams.push_back(std::move(stream));
  }
}

}  // namespace

NodeStatus StorageNode::status() const {
  NodeStatus status;
  status.name = options_.name;
  status.cluster = options_.cluster;
  status.identity = folder_->stamp()->identity;
  status.database_id = database_.database_id;
  status.profile = options_.profile;
  const cluster::StorageGroup group = group_->group();
  status.group = group.id;
  status.group_nodes = group.nodes;
  status.write_quorum = group.write_quorum;
  status.placement_generation = group_->generation();
  status.out_of_group = group_->out_of_it();
  status.addresses = addresses_;
  status.status_address = options_.status_address;
  cluster::MembershipState membership = membership_->state();
  status.joined = membership.joined;
  status.times_joined = membership.times_joined;
  status.lease_remaining_us = membership.lease_remaining_us;
  status.membership = std::move(membership.trouble);
  const PageStoreStatus pages = pages_ != nullptr ? pages_->status() : PageStoreStatus();
  add_streams(&status, logs_->status(), pages);
  status.failure = std::string(pages_failure(pages).message());
  status.trouble =
      std::string(written_ != nullptr ? written_->trouble().message() : pages.trouble.message());
  add_log_values(&status);
  if (pages_ != nullptr) add_replay_values(&status, pages);
  if (written_ != nullptr) add_written_values(&status);
  add_calls(&status);
  return status;
}

void StorageNode::add_log_values(NodeStatus* status) const {
  status->gauge("disk_used_bytes", "Disk space the data folder takes.",
                disk_bytes(options_.directory));

  const LogStoreCounters& log = logs_->counters();
  status->gauge("log_pending_bytes", "Log queued and not yet durable.", logs_->pending_bytes());
  status->count("log_appends_total", "Appends to the log.", log.appends);
  status->count("log_appended_bytes_total", "Bytes appended to the log.", log.bytes);
  status->count("log_batches_total", "Batches made durable together.", log.batches);
  status->count("log_batches_gathered_total",
                "Batches that waited for more, since the other nodes are a write quorum.",
                log.gathered);
  status->count("log_syncs_total", "Syncs of log files.", log.syncs);
  status->count("log_sync_us_total", "Time spent in syncs of log files, in microseconds.",
                log.sync_us);
  status->count("log_fenced_total", "Requests of epochs that were taken over.", log.fenced);
  status->count("log_gaps_total", "Appends beyond the end of the log, refused.", log.gaps);
  status->count("log_failed_syncs_total", "Syncs or writes of log files that failed.",
                log.failed_syncs);
  status->count("log_disk_full_total", "Appends refused since the disk was full.", log.disk_full);
  status->count("log_damages_total", "Damaged ranges of the log that were met.", log.damages);
}

void StorageNode::add_written_values(NodeStatus* status) const {
  const WrittenStore::Counters& store = written_->counters();
  const proto::Writer session = written_->session();
  const proto::CopyPagesReply copy = copier_->progress();
  status->gauge("page_store", "Which store of pages this is: another number, another disk.",
                written_->number());
  status->gauge("write_session", "The write session of now; 0: none, the node takes no pages.",
                session.session);
  status->gauge("write_session_epoch", "The epoch it belongs to.", session.epoch.value);
  status->gauge("copy_pages_seen", "Pages of another node looked at by the last copy.",
                copy.pages_seen);
  status->gauge("copy_pages_taken", "Pages taken by it, since they were newer.", copy.pages_taken);
  status->count("write_sessions_total", "Write sessions begun.", store.sessions);
  status->count("writes_refused_total", "Writes and syncs of another session, refused.",
                store.refused);
  status->count("page_write_calls_total", "Calls that wrote pages.", store.write_calls);
  status->count("pages_written_total", "Pages written by compute.", store.pages_written);
  status->count("page_syncs_total", "Syncs of pages asked for.", store.syncs);
  status->count("pages_read_total", "Pages read from files.", store.pages_read);
  status->count("pages_not_found_total", "Pages asked for that were never written.",
                store.pages_not_found);
  status->count("pages_damaged_total", "Damaged pages met.", store.pages_damaged);
  status->count("pages_taken_total", "Pages copied from other nodes.", store.pages_taken);
  status->count("pages_kept_total", "Pages of other nodes that were not newer.", store.pages_kept);
  status->count("pages_sent_total", "Pages sent.", written_service_->pages_sent());
}

void StorageNode::add_replay_values(NodeStatus* status, const PageStoreStatus& pages) const {
  status->gauge("replay_backlog_bytes", "Log that is durable and not replayed.",
                pages.backlog_bytes);
  status->gauge("replay_scan_lag_bytes", "Log that is durable and not scanned.",
                pages.scan_lag_bytes);
  status->gauge("version_store_bytes", "Size of the version store.", pages.version_store_bytes);
  status->gauge("version_map_memory_bytes", "Memory of the version map.", pages.map_memory_bytes);
  status->gauge("version_map_unwritten", "Entries of the version map that are in memory only.",
                pages.map_entries_unwritten);
  status->count("version_map_written_total",
                "Entries of the version map written to the version store.",
                pages.map_entries_written);
  status->gauge("copying", "1 while the pages are being copied from a peer.",
                pages.copying ? 1 : 0);
  status->gauge("pages_copied", "Pages copied by the last copy.", pages.pages_copied);
  status->gauge("pages_to_copy", "Pages the last copy was to bring, about.", pages.pages_to_copy);
  status->count("copies_total", "Copies of all pages that came to their end.",
                store_copier_->completed());
  status->count("log_mended_total", "Damaged ranges of the log mended with a peer's bytes.",
                mender_->mended_ranges());
  status->gauge("reader_leases", "Readers that hold versions back.", pages.leases);
  status->count("page_cache_hits_total", "Pages found in the page cache.", pages.page_cache_hits);
  status->count("page_cache_misses_total", "Pages not found in the page cache.",
                pages.page_cache_misses);
  status->count("versions_stored_total", "Page versions stored.", pages.versions_stored);
  status->count("versions_collected_total", "Page versions collected.", pages.versions_collected);
  status->count("spaces_reclaimed_total", "Dropped spaces reclaimed.", pages.spaces_reclaimed);

  const ReplayCounters& replay = pages_->counters();
  status->count("pages_requested_total", "Pages asked for.", replay.get_pages);
  status->count("pages_at_hand_total",
                "Pages that were in memory, answered by the thread that was asked.",
                replay.at_hand);
  status->count("pages_waited_total", "Pages that could not be answered at once.", replay.waited);
  status->count("pages_waited_log_bytes_total", "Log that had to be replayed before an answer.",
                replay.waited_log_bytes);
  status->count("pages_not_found_total", "Pages asked for that were never written.",
                replay.not_found);
  status->count("pages_too_old_total", "Pages asked for as of a time no longer kept.",
                replay.too_old);
  status->count("pages_timed_out_total", "Pages not there in time.", replay.timed_out);
  status->count("pages_failed_total", "Pages that could not be made.", replay.failed);
  status->count("pages_sent_total", "Pages sent.", page_service_->pages_sent());
  status->count("replay_groups_scanned_total", "Log groups scanned.", replay.groups_scanned);
  status->count("replay_scanned_bytes_total", "Log scanned, in bytes.", replay.bytes_scanned);
  status->count("replay_groups_replayed_total", "Log groups replayed.", replay.groups_replayed);
  status->count("replay_sections_applied_total", "Page sections applied.", replay.sections_applied);
  status->count("replay_sections_skipped_total", "Page sections that need not be applied.",
                replay.sections_skipped);
  status->count("replay_pages_made_total", "Page versions made.", replay.pages_made);
  status->count("replay_pages_broken_total", "Pages whose log was damaged.", replay.pages_broken);
  status->count("pages_repaired_total", "Damaged pages mended with a peer's copy.",
                replay.pages_repaired);
  status->count("replay_on_demand_total", "Pages replayed for a request.", replay.on_demand);
  status->count("replay_background_total", "Pages replayed ahead of requests.", replay.background);
}

void StorageNode::add_calls(NodeStatus* status) const {
  for (const proto::MethodTraits& method : proto::all_methods())
    status->add_call(method.name, counters_->of(method.method));
  status->add_connections(counters_.get());
}

// With what the copier says of it, whether it is under way or does not get on.
Status StorageNode::pages_failure(const PageStoreStatus& pages) const {
  const std::string doing = pages.failure.ok() ? std::string() : store_copier_->doing();
  if (doing.empty()) return pages.failure;
  return with_message(pages.failure, std::string(pages.failure.message()) + " (" + doing + ")");
}

// A table of these states is in docs/correctness.md.
static constexpr std::string_view kLogRemedy =
    "look at its disk and restart it; if that does not help, replace it by a new node";

static std::string_view remedy_for_pages(const Status& failure) {
  if (is_no_space(failure)) return "free room on its disk; it goes on by itself, or once restarted";
  if (is_corruption(failure)) return "wait, it copies the pages from a peer while one is well";
  return may_pass(failure) ? "wait, it goes on by itself" : "look at its disk; it tries again";
}

Status StorageNode::health() const {
  if (stopping_.raised()) return error_peer_down("it stops; to do: wait until it has");
  if (const Status out = group_->may_serve(); !out.ok())
    return with_remedy(out, "stop it; its data folder is not needed any more");
  for (const StreamStatus& log : logs_->status()) {
    if (!log.failure.ok()) return with_remedy(log.failure, kLogRemedy);
    if (!log.damages.empty())
      return error_corruption(log.damages.front().what + std::string(kRemedyMark) +
                              "wait, it is mended with a peer's copy while one can be asked");
  }
  if (pages_ != nullptr) {
    const PageStoreStatus pages = pages_->status();
    if (const Status failure = pages_failure(pages); !failure.ok())
      return with_remedy(failure, remedy_for_pages(failure));
    if (!pages.trouble.ok()) return with_remedy(pages.trouble, remedy_for_pages(pages.trouble));
  }
  if (written_ != nullptr)
    if (const Status trouble = written_->trouble(); !trouble.ok())
      return with_remedy(trouble, "look at its disk; it goes on by itself once a sync ends well");
  const cluster::MembershipState membership = membership_->state();
  if (!membership.joined)
    return error_lease_lost("it serves, but is not a member: " + membership.trouble +
                            "; to do: see whether the registry answers; it joins again by itself");
  return ok_status();
}

}  // namespace strata::storenode
