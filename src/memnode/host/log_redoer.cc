#include "memnode/host/log_redoer.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/data_format.h"
#include "base/diag.h"
#include "clients/storage/quorum_log_sink.h"
#include "clients/storage/registry_control.h"
#include "cluster/log_checkpoints.h"

namespace strata::memnode {

// LRO1. A stream that is held here until this ends.
class LogRedoer::Taken {
 public:
  Taken(const LogRedoer* redoer, cluster::EpochGrant grant) : redoer_(redoer), grant_(grant) {}
  // Where it cannot be said to the registry the lease says so when it ends.
  ~Taken() { release().IgnoreError(); }
  Taken(const Taken&) = delete;
  Taken& operator=(const Taken&) = delete;

  Status open(Without checkpoint) {
    const Parts& parts = redoer_->parts_;
    STRATA_ASSIGN_OR_RETURN(
        control_,
        clients::RegistryControl::open(parts.registry, parts.keys, grant_, parts.call_timeout_us));
    if (!control_->founded() && checkpoint == Without::kRefused)
      return error_corruption("the registry has lost the checkpoint of log stream " +
                              std::to_string(grant_.stream.value));
    clients::QuorumLogOptions log;
    STRATA_ASSIGN_OR_RETURN(log.client, parts.storage_now());  // LSE5
    log.client.stream = grant_.stream;
    // What a storage node lacks of a log that ends here is little, or it copies it from others.
    log.client.quorum.keep_bytes_max = quorum::QuorumOptions{}.keep_bytes_max;
    log.holder = {grant_.epoch, grant_.epoch.value};
    log.take_over_timeout_us = parts.seal_timeout_us;
    log.founding = !control_->founded();  // it begins behind what there is, which counts here
    log.first_lsn = kFirstLsn;
    STRATA_ASSIGN_OR_RETURN(log_, clients::QuorumLogSink::open(parts.world, parts.secret, log));
    if (log.founding) return ok_status();
    const Lsn begin = control_->data().checkpoint_lsn;
    if (begin >= log_->begin_lsn() && begin <= log_->room_end()) return ok_status();
    return error_corruption(
        log_->locate(begin) + ": the checkpoint is there, but storage nodes have the log from " +
        std::to_string(log_->begin_lsn().value) + " to " + std::to_string(log_->room_end().value));
  }
  [[nodiscard]] LogToRedo to_redo() const {
    const ControlData& data = control_->data();
    return {.stream = grant_.stream,
            .sink = log_.get(),
            .from = data.checkpoint_lsn,
            .bias = data.llsn_bias};
  }
  // LRO5
  StatusOr<Lsn> find_end() {
    const ControlData& data = control_->data();
    const Lsn from = control_->founded() ? data.checkpoint_lsn : log_->begin_lsn();
    LogReader reader(log_.get(), from, control_->founded() ? data.llsn_bias : 0);
    redo::GroupView group;
    for (bool more = true; more;) {
      if (is_interrupted_now(WaitInterrupt::current())) return error_interrupted();
      STRATA_ASSIGN_OR_RETURN(more, reader.next(&group));
    }
    STRATA_RETURN_IF_ERROR(reader.erase_tail());
    return reader.end_lsn();
  }
  // LRO2. The next life's first llsn is larger than all in this log: `bias` is the one there.
  Status publish(Lsn end, uint64_t bias) {
    ControlData data = control_->data();
    data.checkpoint_lsn = end;
    data.llsn_bias = bias;
    ++data.checkpoint_count;
    return control_->publish(data);
  }
  Status release() {
    log_.reset();
    if (std::exchange(released_, true)) return ok_status();
    return cluster::StreamEpochs(redoer_->parts_.registry, redoer_->parts_.keys)
        .release(grant_, redoer_->deadline());
  }
  [[nodiscard]] Epoch epoch() const noexcept { return grant_.epoch; }

 private:
  using Parts = LogSealer::Parts;
  const LogRedoer* const redoer_;
  const cluster::EpochGrant grant_;
  bool released_ = false;
  std::unique_ptr<clients::RegistryControl> control_;
  std::unique_ptr<clients::QuorumLogSink> log_;
};

LogRedoer::LogRedoer(LogSealer::Parts parts, PageSource* pages, Epoch above,
                     LogRedo::Options options)
    : parts_(std::move(parts)), pages_(pages), above_(above), options_(options) {}

StatusOr<std::unique_ptr<LogRedoer::Taken>> LogRedoer::take(StreamId stream, Without checkpoint) {
  cluster::StreamEpochs epochs(parts_.registry, parts_.keys);
  STRATA_ASSIGN_OR_RETURN(const auto holder, epochs.current(stream, deadline()));
  const std::shared_ptr<registry::Lease> lease = parts_.lease();
  if (lease == nullptr) return error_lease_lost("this memory node has no lease in the registry");
  const registry::Version in_place_of = holder.has_value() ? holder->writer : registry::Version{};
  STRATA_ASSIGN_OR_RETURN(
      cluster::EpochGrant grant,
      epochs.acquire({stream, parts_.holder, above_, in_place_of}, *lease, deadline()));
  auto taken = std::make_unique<Taken>(this, grant);
  STRATA_RETURN_IF_ERROR(taken->open(checkpoint));
  return taken;
}

StatusOr<std::vector<proto::StreamPosition>> LogRedoer::find_ends(
    const std::vector<StreamId>& streams) {
  std::vector<proto::StreamPosition> ends;
  for (const StreamId stream : streams) {
    STRATA_ASSIGN_OR_RETURN(const std::unique_ptr<Taken> taken, take(stream, Without::kAllowed));
    STRATA_ASSIGN_OR_RETURN(const Lsn end, taken->find_end());
    STRATA_RETURN_IF_ERROR(taken->release());
    if (end > kFirstLsn) ends.push_back({stream, end});
  }
  return ends;
}

// LRO4
StatusOr<std::unique_ptr<LiveLog>> LogRedoer::open_live(StreamId stream, Lsn end, LogToRedo* log) {
  STRATA_ASSIGN_OR_RETURN(
      const auto published,
      cluster::LogCheckpoints(parts_.registry, parts_.keys).read(stream, deadline()));
  if (!published.has_value())  // it will say so, or end
    return error_peer_down("server " + std::to_string(stream.value) +
                           " has not published yet where its log begins");
  const Lsn from = published->checkpoint.lsn;
  clients::QuorumClientOptions nodes = parts_.storage();
  nodes.stream = stream;
  auto live = std::make_unique<LiveLog>(parts_.secret, nodes, from, std::max(from, end),
                                        parts_.seal_timeout_us);
  *log = {
      .stream = stream, .sink = live.get(), .from = from, .bias = published->checkpoint.llsn_bias};
  return live;
}

StatusOr<std::map<StreamId, SealedLog>> LogRedoer::redo(const std::vector<StreamId>& streams,
                                                        const std::map<StreamId, Lsn>& live) {
  const uint64_t begin_us = monotonic_us();
  std::vector<std::unique_ptr<Taken>> taken;
  std::vector<LogToRedo> logs;
  for (const StreamId stream : streams) {
    STRATA_ASSIGN_OR_RETURN(taken.emplace_back(), take(stream, Without::kRefused));
    logs.push_back(taken.back()->to_redo());
  }
  std::vector<std::unique_ptr<LiveLog>> beside;
  for (const auto& [stream, end] : live) {
    if (end.is_zero()) continue;  // it has no log
    STRATA_ASSIGN_OR_RETURN(beside.emplace_back(), open_live(stream, end, &logs.emplace_back()));
  }
  LogRedo redo(pages_, std::move(logs), options_);
  STRATA_RETURN_IF_ERROR(redo.read());
  diag(Severity::kInfo,
       "fusion: the memory node before this one has ended; %llu groups, %.1f MB of the logs of %zu "
       "servers are redone before anybody is served",
       static_cast<unsigned long long>(redo.counters().groups),
       static_cast<double>(redo.counters().log_bytes) / 1e6, streams.size() + live.size());
  STRATA_RETURN_IF_ERROR(redo.apply());
  std::map<StreamId, SealedLog> ends;
  for (size_t i = 0; i < taken.size(); ++i) {
    const LogToRedo& log = redo.logs()[i];
    STRATA_RETURN_IF_ERROR(taken[i]->publish(log.end, log.bias_at_end));  // LRO2
    ends[log.stream] = {taken[i]->epoch(), log.end};
  }
  for (const auto& one : taken) STRATA_RETURN_IF_ERROR(one->release());
  const LogRedo::Counters& did = redo.counters();
  diag(Severity::kInfo,
       "fusion: redone in %.1f s: %llu changes applied, %llu were there already, %llu of spaces "
       "that are gone; %llu pages read, %llu written",
       static_cast<double>(monotonic_us() - begin_us) / 1e6,
       static_cast<unsigned long long>(did.applied),
       static_cast<unsigned long long>(did.already_there),
       static_cast<unsigned long long>(did.skipped),
       static_cast<unsigned long long>(did.pages_read),
       static_cast<unsigned long long>(did.pages_written));
  return ends;
}

}  // namespace strata::memnode
