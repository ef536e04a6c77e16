#include "memnode/host/earlier_logs.h"

#include <utility>

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
    if (log.sealed) continue;
    STRATA_ASSIGN_OR_RETURN(log.end, sealer_->seal_now(stream));
    log.sealed = true;
  }
  return ok_status();
}

Status EarlierLogs::check() {
  STRATA_RETURN_IF_ERROR(seal_all());
  std::string lacking;
  for (const auto& [stream, log] : ends_) {
    STRATA_ASSIGN_OR_RETURN(const bool stored, is_stored(stream, log));
    if (!stored) lacking += (lacking.empty() ? "" : ", ") + std::to_string(stream.value);
  }
  if (lacking.empty()) return ok_status();
  return error_unsupported(
      "the memory node before this one has ended while the logs of these servers held changes that "
      "storage lacks: " +
      lacking +
      "; to do: nothing yet: this version cannot redo logs of several servers without "
      "the memory node that they had");
}

}  // namespace strata::memnode
