#include "memnode/host/log_keeper.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/data_format.h"
#include "base/diag.h"
#include "base/thread_name.h"
#include "clients/storage/quorum_log_sink.h"
#include "clients/storage/registry_control.h"
#include "proto/calls/calls.h"
#include "proto/log_messages.h"
#include "proto/methods.h"
#include "wal/log_reader.h"

namespace strata::memnode {

namespace {

constexpr uint64_t kCallUs = 1'000'000;
constexpr uint64_t kLookAgainUs = 50'000;

}  // namespace

LogKeeper::LogKeeper(LogSealer::Parts parts, std::function<std::set<uint8_t>()> there,
                     LogKeeperOptions options)
    : parts_(std::move(parts)), there_(std::move(there)), options_(options) {
  if (options_.look_us != 0) thread_ = std::thread([this] { work(); });
}

LogKeeper::~LogKeeper() { stop(); }

void LogKeeper::stop() {
  stopping_.raise();
  interrupt_.interrupt();
  if (thread_.joinable()) thread_.join();
}

void LogKeeper::work() {
  name_this_thread("log-keeper");
  const InterruptScope scope(&interrupt_);
  // Of a log it was said (LKP4); a registry that does not answer, others say.
  while (!stopping_.wait_for_us(options_.look_us)) look().IgnoreError();
}

Status LogKeeper::look() {
  STRATA_ASSIGN_OR_RETURN(const std::vector<cluster::KnownPlace> places,
                          cluster::Places(parts_.registry, parts_.keys).all(deadline()));
  const std::set<uint8_t> there = there_();
  Status failed;
  for (const cluster::KnownPlace& one : places) {
    if (stopping_.raised()) return error_interrupted();
    const NodeId number = one.place.number;
    if (there.contains(number.value) || monotonic_us() < failed_[number.value].until_us) continue;
    STRATA_ASSIGN_OR_RETURN(
        const bool settled,
        cluster::Places(parts_.registry, parts_.keys).is_settled(one.place, deadline()));
    if (!settled || !lacks(cluster::log_stream_of(number))) continue;
    const Status completed = complete(one);
    if (completed.ok()) {
      failed_.erase(number.value);
      ++completed_;
      continue;
    }
    note_failure(number, completed);
    failed = completed;
  }
  return failed;
}

// LKP3, LKP4
void LogKeeper::note_failure(NodeId server, const Status& why) {
  Failed& failed = failed_[server.value];
  failed.pause_us =
      std::min(std::max(2 * failed.pause_us, options_.look_us), options_.pause_us_max);
  failed.until_us = monotonic_us() + failed.pause_us;
  std::string text(why.message());
  if (is_interrupted(why) || failed.said == text) return;
  failed.said = std::move(text);
  diag(Severity::kWarning,
       "fusion: a storage node lacks a part of the log of server %u, which is not there any more, "
       "and could not be given it: %s. Until it has it %s; it is tried again",
       unsigned{server.value}, failed.said.c_str(),
       options_.ends_matter ? "that node cannot make pages with changes of that server"
                            : "that node does not vote in that log, and no other may be replaced");
}

// --- who lacks something ---

StatusOr<LogKeeper::Known> LogKeeper::known_at(size_t node, StreamId stream) {
  const auto call = proto::call_of(proto::kLogRead, monotonic_us() + kCallUs);
  transport::BlockingReply answer;
  STRATA_RETURN_IF_ERROR(channels_[node]->call(
      call, proto::encode(stream, quorum::ReadRequest{Lsn{}, 0, false, {}}), &answer));
  STRATA_ASSIGN_OR_RETURN(const quorum::ReadReply reply, proto::decode_read_reply(answer.payload));
  if (is_not_found(reply.status)) return Known{};
  if (!reply.status.ok() && !is_out_of_range(reply.status)) return reply.status;
  return Known{reply.quorum_durable, reply.votes};
}

// LKP3
bool LogKeeper::lacks(StreamId stream) {
  const clients::QuorumClientOptions storage = parts_.storage();
  if (keys_ != storage.keys) {
    keys_ = storage.keys;
    channels_.clear();
    for (const transport::Address& address : storage.addresses)
      channels_.push_back(std::make_unique<transport::BlockingChannel>(
          parts_.secret, address, transport::BlockingChannelOptions{}));
  }
  std::optional<Lsn> first;
  bool differ = false;
  for (size_t node = 0; node < channels_.size(); ++node) {
    const auto known = known_at(node, stream);
    if (!known.ok()) continue;
    differ |= !known->votes;
    differ |= options_.ends_matter && first.has_value() && *first != known->end;
    first = first.value_or(known->end);
  }
  return differ;
}

// --- completing a log ---

// LKP1
Status LogKeeper::complete(const cluster::KnownPlace& place) {
  const std::shared_ptr<registry::Lease> lease = parts_.lease();
  if (lease == nullptr) return error_lease_lost("this memory node has no lease in the registry");
  cluster::StreamEpochs epochs(parts_.registry, parts_.keys);
  STRATA_ASSIGN_OR_RETURN(
      const cluster::EpochGrant grant,
      epochs.acquire({cluster::log_stream_of(place.place.number), parts_.holder, Epoch{}, {}},
                     *lease, deadline()));
  const Status completed = complete_log(grant);
  // Also if it is not complete: nothing was written, so nothing is to be recovered.
  const Status settled = cluster::Places(parts_.registry, parts_.keys)
                             .settle(place, false, grant, deadline())
                             .status();
  const Status released = epochs.release(grant, deadline());
  STRATA_RETURN_IF_ERROR(completed);
  STRATA_RETURN_IF_ERROR(settled);
  if (released.ok())
    diag(Severity::kInfo, "fusion: all storage nodes that answer have all of the log of server %u",
         unsigned{place.place.number.value});
  return released;
}

// LKP2
Status LogKeeper::complete_log(const cluster::EpochGrant& grant) {
  STRATA_ASSIGN_OR_RETURN(
      const auto control,
      clients::RegistryControl::open(parts_.registry, parts_.keys, grant, parts_.call_timeout_us));
  if (!control->founded()) return error_not_found("nothing was published of this log");
  clients::QuorumLogOptions options;
  STRATA_ASSIGN_OR_RETURN(options.client, parts_.storage_now());  // LSE5
  options.client.stream = grant.stream;
  options.client.quorum.keep_bytes_max = quorum::QuorumOptions{}.keep_bytes_max;
  options.holder = {grant.epoch, grant.epoch.value};
  options.take_over_timeout_us = parts_.seal_timeout_us;
  STRATA_ASSIGN_OR_RETURN(
      const std::unique_ptr<clients::QuorumLogSink> log,
      clients::QuorumLogSink::open(parts_.world, parts_.secret, std::move(options)));
  LogReader reader(log.get(), control->data().checkpoint_lsn, control->data().llsn_bias);
  redo::GroupView group;
  for (bool more = true; more;) {
    STRATA_ASSIGN_OR_RETURN(more, reader.next(&group));
  }
  STRATA_RETURN_IF_ERROR(reader.erase_tail());
  log->spread_news();
  const uint64_t until_us = monotonic_us() + options_.complete_us;
  while (lacks(grant.stream)) {
    if (stopping_.wait_for_us(kLookAgainUs)) return error_interrupted();
    if (monotonic_us() >= until_us)
      return error_timed_out("a storage node does not get all of this log");
  }
  return ok_status();
}

}  // namespace strata::memnode
