#include "memnode/host/earlier_logs.h"

#include <utility>

#include "base/data_format.h"

namespace strata::memnode {

EarlierLogs::EarlierLogs(const fusion::AuthorityRecord& last, LogSealer* sealer,
                         registry::Registry* registry, cluster::ClusterKeys keys,
                         uint64_t call_timeout_us)
    : sealer_(sealer),
      registry_(registry),
      keys_(std::move(keys)),
      call_timeout_us_(call_timeout_us) {
  // ERL1
  for (const fusion::Member& member : last.members) ends_[cluster::log_stream_of(member.server)];
  for (const proto::Fence& fence : last.fenced) ends_[cluster::log_stream_of(fence.server)];
}

void EarlierLogs::spare(const std::map<NodeId, Lsn>& live) {
  live_.clear();
  for (const auto& [server, end] : live) live_[cluster::log_stream_of(server)] = end;
}

// ERL3
StatusOr<bool> EarlierLogs::is_stored(StreamId stream, const Log& log) {
  if (log.end.epoch.is_zero()) return true;
  STRATA_ASSIGN_OR_RETURN(const auto published,
                          cluster::LogCheckpoints(registry_, keys_)
                              .read(stream, registry_->now_us() + call_timeout_us_));
  return !published.has_value() || log.end.end <= published->checkpoint.lsn;
}

// ERL2
Status EarlierLogs::seal_all() {
  for (auto& [stream, log] : ends_) {
    if (log.sealed || live_.contains(stream)) continue;
    STRATA_ASSIGN_OR_RETURN(log.end, sealer_->seal_now(stream));
    log.sealed = true;
  }
  return ok_status();
}

StatusOr<std::vector<StreamId>> EarlierLogs::lacking() {
  STRATA_RETURN_IF_ERROR(seal_all());
  std::vector<StreamId> lacking;
  for (const auto& [stream, log] : ends_) {
    if (live_.contains(stream)) continue;
    STRATA_ASSIGN_OR_RETURN(const bool stored, is_stored(stream, log));
    if (!stored) lacking.push_back(stream);
  }
  return lacking;
}

// ERL6
StatusOr<std::vector<proto::StreamPosition>> EarlierLogs::ends(LogRedoer* redoer) {
  STRATA_RETURN_IF_ERROR(seal_all());
  std::vector<StreamId> dead;
  for (const auto& [stream, log] : ends_)
    if (!live_.contains(stream) && !log.end.epoch.is_zero()) dead.push_back(stream);
  STRATA_ASSIGN_OR_RETURN(std::vector<proto::StreamPosition> ends, redoer->find_ends(dead));
  for (const auto& [stream, end] : live_)
    if (end > kFirstLsn) ends.push_back({stream, end});
  return ends;
}

namespace {

// Keeps what kind of error it is, and its remedy.
Status while_redoing(const std::vector<StreamId>& streams, const Status& why) {
  std::string servers;
  for (const StreamId stream : streams)
    servers += (servers.empty() ? "" : ", ") + std::to_string(stream.value);
  return with_message(why,
                      "the logs of these servers hold changes that storage lacks, and are not "
                      "redone yet: " +
                          servers + " (" + std::string(why.message()) + ")");
}

}  // namespace

// ERL4
Status EarlierLogs::complete(LogRedoer* redoer) {
  STRATA_ASSIGN_OR_RETURN(const std::vector<StreamId> streams, lacking());
  if (streams.empty() && live_.empty()) return ok_status();
  const auto redone = redoer->redo(streams, live_);
  if (!redone.ok()) {
    std::vector<StreamId> all = streams;
    for (const auto& [stream, end] : live_) all.push_back(stream);
    return while_redoing(all, redone.status());
  }
  for (const auto& [stream, end] : *redone) ends_[stream].end = end;
  STRATA_ASSIGN_OR_RETURN(const std::vector<StreamId> left, lacking());
  if (left.empty()) return ok_status();
  return while_redoing(left, error_busy("somebody has changed their checkpoints meanwhile"));
}

}  // namespace strata::memnode
