#include "clients/storage/quorum_log_sink.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/clock.h"
#include "base/diag.h"
#include "proto/calls/calls.h"
#include "proto/log_messages.h"
#include "proto/methods.h"
#include "redo/redo.h"
#include "wal/log_reader.h"

namespace strata::clients {

namespace {

constexpr uint32_t kReadBytesMax = 1u << 20;
constexpr uint64_t kAroundTimeoutUs = 5'000'000;
constexpr uint64_t kSyncLookUs = 100'000;     // how often a sync that is late asks whether to go on
constexpr uint64_t kSayAgainUs = 60'000'000;  // how often it says so
constexpr Lsn kNoEnd{uint64_t{1} << 60};

uint32_t read_bytes(size_t wanted) {
  return static_cast<uint32_t>(std::min<size_t>(wanted, kReadBytesMax));
}

std::string name_of(const QuorumLogOptions& options) {
  return "log stream " + std::to_string(options.client.stream.value);
}

}  // namespace

QuorumLogSink::QuorumLogSink(const transport::World& world, const transport::Secret& secret,
                             QuorumLogOptions options)
    : options_(std::move(options)), secret_(secret) {
  client_ = std::make_unique<QuorumClient>(
      world, secret, options_.client, options_.holder,
      options_.founding ? std::optional<Lsn>(options_.first_lsn) : std::nullopt, events());
}

QuorumLogSink::~QuorumLogSink() = default;

StatusOr<std::unique_ptr<QuorumLogSink>> QuorumLogSink::open(const transport::World& world,
                                                             const transport::Secret& secret,
                                                             QuorumLogOptions options) {
  auto sink = std::unique_ptr<QuorumLogSink>(new QuorumLogSink(world, secret, std::move(options)));
  STRATA_RETURN_IF_ERROR(sink->wait_chosen());
  if (sink->options_.founding) STRATA_RETURN_IF_ERROR(sink->find_founding_start());
  return sink;
}

// --- what the client tells ---

QuorumEvents QuorumLogSink::events() {
  QuorumEvents events;
  events.chosen = [this](const ChosenLog& log) {
    const MutexLock lock(mutex_);
    chosen_ = log;
    changed_.notify_all();
  };
  events.begun = [this](Lsn start) {
    const MutexLock lock(mutex_);
    begun_ = durable_ = start;
    changed_.notify_all();
  };
  events.durable = [this](Lsn lsn) {
    const MutexLock lock(mutex_);
    durable_ = lsn;
    changed_.notify_all();
  };
  events.ended = [this](const Status& why, Epoch) {
    const MutexLock lock(mutex_);
    ended_ = why;
    changed_.notify_all();
  };
  return events;
}

template <class Done>
bool QuorumLogSink::wait(uint64_t timeout_us, Done done) {
  MutexLock lock(mutex_);
  return changed_.wait_for_us(lock, timeout_us,
                              [&]() STRATA_REQUIRES(mutex_) { return done() || !ended_.ok(); });
}

// Starting the missing ones, which is what too few answers otherwise ask for, would not help.
Status QuorumLogSink::check_usable() const {
  std::string nodes;
  for (const QuorumClient::Unusable& node : client_->unusable()) {
    if (is_unsupported(node.why))  // QC5: its reason names it, and what to do
      return error_unsupported(name_of(options_) + ": " + std::string(node.why.message()));
    nodes += (nodes.empty() ? "" : ", ") + node.address;
  }
  return nodes.empty() ? ok_status()
                       : error_wrong_secret(name_of(options_) +
                                            ": what listens at the addresses of these storage " +
                                            "nodes has another secret than this server: " + nodes);
}

Status QuorumLogSink::wait_chosen() {
  const bool in_time = wait(options_.take_over_timeout_us,
                            [&]() STRATA_REQUIRES(mutex_) { return chosen_.has_value(); });
  if (!in_time) STRATA_RETURN_IF_ERROR(check_usable());
  const MutexLock lock(mutex_);
  if (!in_time)
    return error_peer_down(
        name_of(options_) + ": fewer than " +
        std::to_string(options_.client.quorum.recovery_quorum()) + " of " +
        std::to_string(options_.client.addresses.size()) +
        " storage nodes that know its end have answered; start those that are missing");
  STRATA_RETURN_IF_ERROR(ended_);
  reader_replica_ = chosen_->replica;
  reader_ = std::make_unique<transport::BlockingChannel>(
      secret_, options_.client.addresses[chosen_->replica],
      transport::BlockingChannelOptions{.link_model = options_.client.channel.link_model});
  return ok_status();
}

// --- before the epoch has begun ---

ChosenLog QuorumLogSink::chosen() const {
  const MutexLock lock(mutex_);
  return *chosen_;
}

// QL3. What an earlier attempt at founding left is a few megabytes.
Status QuorumLogSink::find_founding_start() {
  founding_start_ = chosen().begin;
  LogReader reader(this, founding_start_, 0);
  redo::GroupView group;
  for (bool more = true; more;) {
    STRATA_ASSIGN_OR_RETURN(more, reader.next(&group));
  }
  founding_start_ = reader.end_lsn();
  founding_bias_ = reader.bias();
  return ok_status();
}

Lsn QuorumLogSink::begin_lsn() const {
  const MutexLock lock(mutex_);
  return options_.founding ? founding_start_ : chosen_->begin;
}

Lsn QuorumLogSink::room_end() const {
  if (writing_.load()) return kNoEnd;
  const MutexLock lock(mutex_);
  return chosen_->end;
}

StatusOr<size_t> QuorumLogSink::read(Lsn at, char* out, size_t bytes) {
  STRATA_RETURN_IF_ERROR(state());
  Lsn end;
  {
    const MutexLock lock(mutex_);
    end = begun_.has_value() ? durable_ : chosen_->end;
  }
  if (at >= end) return size_t{0};
  const size_t wanted = std::min<uint64_t>(bytes, end.value - at.value);
  for (size_t done = 0; done < wanted;) {
    auto got = read_once(Lsn{at.value + done}, out + done, wanted - done);
    if (!got.ok() && may_pass(got.status()) && read_elsewhere(Lsn{at.value + wanted})) continue;
    if (!got.ok() && is_corruption(got.status()))
      got = read_around(Lsn{at.value + done}, out + done, wanted - done, got.status());
    if (!got.ok() && may_pass(got.status()))
      return error_peer_down(
          locate(at) + ": the storage node whose log was being read went away (" +
          std::string(got.status().message()) + "), and no other is known to have all of it");
    if (!got.ok()) return got.status();
    done += *got;
  }
  return wanted;
}

// Once the epoch has begun others have the log, too: those that have begun it and say how far they
// are. False: nobody else has it up to `end`.
bool QuorumLogSink::read_elsewhere(Lsn end) {
  const std::vector<QuorumClient::ReplicaStatus> replicas = client_->status();
  for (size_t i = 1; i < replicas.size(); ++i) {
    const size_t next = (reader_replica_ + i) % replicas.size();
    if (elsewhere_tried_ >= replicas.size()) return false;
    using Phase = quorum::Writer::ReplicaPhase;
    if (replicas[next].log.phase != Phase::kStreaming || replicas[next].log.durable < end) continue;
    ++elsewhere_tried_;
    reader_replica_ = next;
    reader_ = std::make_unique<transport::BlockingChannel>(
        secret_, transport::Address(replicas[next].address),
        transport::BlockingChannelOptions{.link_model = options_.client.channel.link_model});
    return true;
  }
  return false;
}

// QL4.
StatusOr<size_t> QuorumLogSink::read_around(Lsn at, char* out, size_t bytes, const Status& damage) {
  const std::vector<transport::Address>& addresses = options_.client.addresses;
  std::string failures;
  for (size_t i = 1; i < addresses.size(); ++i) {
    const size_t other = (reader_replica_ + i) % addresses.size();
    transport::BlockingChannel channel(
        secret_, addresses[other],
        transport::BlockingChannelOptions{.link_model = options_.client.channel.link_model});
    const uint64_t same = same_bytes(other, at);
    // Else what is quorum-durable there: that is the same in all logs.
    const quorum::ReadRequest request =
        same > 0 ? quorum::ReadRequest{at, read_bytes(std::min(same, bytes)), true, epoch()}
                 : quorum::ReadRequest{at, read_bytes(bytes), false, {}};
    auto got = read_from(&channel, request, kAroundTimeoutUs, out);
    if (got.ok()) return got;
    failures += "; " + std::string(got.status().message());
  }
  return error_corruption(std::string(damage.message()) + "; no other storage node could give it" +
                          failures);
}

// How many bytes from `at` on the replica had in common with the chosen log when both were sealed.
// From where the epoch began they may have been cut off since.
uint64_t QuorumLogSink::same_bytes(size_t replica, Lsn at) const {
  const MutexLock lock(mutex_);
  if (replica >= chosen_->same_until.size()) return 0;
  const Lsn until = std::min(chosen_->same_until[replica], begun_.value_or(chosen_->end));
  return until > at ? until.value - at.value : 0;
}

StatusOr<size_t> QuorumLogSink::read_once(Lsn at, char* out, size_t bytes) {
  return read_from(reader_.get(), {at, read_bytes(bytes), true, epoch()},
                   options_.take_over_timeout_us, out);
}

StatusOr<size_t> QuorumLogSink::read_from(transport::BlockingChannel* channel,
                                          const quorum::ReadRequest& request, uint64_t timeout_us,
                                          char* out) const {
  const auto call = proto::call_of(proto::kLogRead, monotonic_us() + timeout_us, epoch());
  transport::BlockingReply answer;
  STRATA_RETURN_IF_ERROR(channel->call(call, proto::encode(stream(), request), &answer));
  STRATA_ASSIGN_OR_RETURN(const quorum::ReadReply reply, proto::decode_read_reply(answer.payload));
  STRATA_RETURN_IF_ERROR(reply.status);
  if (reply.from != request.from || reply.bytes.empty() || reply.bytes.size() > request.bytes_max)
    return error_corruption(locate(request.from) + ": the storage node answered with other bytes");
  return reply.bytes.copy(out, request.bytes_max);
}

Status QuorumLogSink::cut_at(Lsn end) {
  // RC4. What was acknowledged is there as whole groups, so a reader that found fewer met damage.
  const ChosenLog log = chosen();
  if (end < log.quorum_durable || end > log.end)
    return error_corruption(locate(end) + ": the log ends there with its last whole group, but " +
                            "storage nodes know of acknowledged bytes up to position " +
                            std::to_string(log.quorum_durable.value) +
                            ": it is damaged in between. Nothing was changed");
  client_->begin_at(end);
  const bool in_time = wait(options_.take_over_timeout_us,
                            [&]() STRATA_REQUIRES(mutex_) { return begun_.has_value(); });
  STRATA_RETURN_IF_ERROR(state());
  if (!in_time)
    return error_peer_down(name_of(options_) + ": fewer than " +
                           std::to_string(options_.client.quorum.write_quorum) +
                           " storage nodes took the new epoch; start those that are missing");
  appended_ = end;
  return ok_status();
}

// --- writing ---

Status QuorumLogSink::prepare_room(Lsn) {
  writing_ = true;
  return state();
}

Status QuorumLogSink::append(Lsn at, Bytes bytes) {
  STRATA_RETURN_IF_ERROR(state());
  STRATA_ASSERT(at == appended_);
  appended_.value += bytes.size();
  pieces_.add(bytes, [this](std::string piece) { client_->append(std::move(piece)); });  // QL5
  return ok_status();
}

Status QuorumLogSink::append_whole(Lsn at, std::string bytes) {
  STRATA_RETURN_IF_ERROR(state());
  STRATA_ASSERT(at == appended_ && bytes.size() <= LogPieces::kBytesMax);
  appended_.value += bytes.size();
  client_->append(std::move(bytes));
  return ok_status();
}

// QL2
Status QuorumLogSink::sync() {
  STRATA_ASSERT(pieces_.at_boundary());
  const uint64_t began_us = monotonic_us();
  uint64_t say_after_us = options_.late_after_us;
  while (!wait(kSyncLookUs, [&]() STRATA_REQUIRES(mutex_) { return durable_ >= appended_; })) {
    const uint64_t waited_us = monotonic_us() - began_us;
    if (waited_us >= say_after_us) {
      note_late(waited_us);
      say_after_us = waited_us + kSayAgainUs;
    }
    if (options_.give_up && options_.give_up())
      return error_outcome_unknown(why_late(waited_us) + "; it is not waited for any longer");
  }
  {
    const MutexLock lock(mutex_);
    if (durable_ < appended_) return ended_;
  }
  if (is_late_) note_in_time();
  return ok_status();
}

std::string QuorumLogSink::why_late(uint64_t waited_us) const {
  std::string nodes;
  for (const QuorumClient::ReplicaStatus& replica : client_->status()) {
    const Status& error = replica.unusable.ok() ? replica.log.last_error : replica.unusable;
    nodes += (nodes.empty() ? "" : "; ") + replica.address + ": " +
             (error.ok() ? "no answer" : cause_of(error));
  }
  return name_of(options_) +
         " cannot be written: no write quorum of storage nodes has taken it for " +
         std::to_string(waited_us / 1'000'000) + " s (" + nodes + ")";
}

void QuorumLogSink::note_late(uint64_t waited_us) {
  const std::string why = why_late(waited_us);
  diag(Severity::kWarning, "%s; commits wait, and changes are refused until it can", why.c_str());
  const Status usable = check_usable();
  const MutexLock lock(mutex_);
  late_ = with_remedy(error_peer_down(why),
                      usable.ok() ? "start the storage nodes that are away; it goes on by itself"
                                  : remedy_of(usable));
  is_late_ = true;
}

void QuorumLogSink::note_in_time() {
  diag(Severity::kInfo, "%s is written again", name_of(options_).c_str());
  const MutexLock lock(mutex_);
  late_ = ok_status();
  is_late_ = false;
}

Status QuorumLogSink::late() const {
  if (!is_late_.load(std::memory_order_relaxed)) return ok_status();
  const MutexLock lock(mutex_);
  return late_;
}

Status QuorumLogSink::truncate_below(Lsn lsn) {
  client_->truncate_below(lsn);
  return ok_status();
}

// --- for others to look at ---

std::string QuorumLogSink::locate(Lsn lsn) const {
  return name_of(options_) + " at position " + std::to_string(lsn.value);
}

Status QuorumLogSink::state() const {
  const MutexLock lock(mutex_);
  return ended_;
}

Lsn QuorumLogSink::durable_lsn() const {
  const MutexLock lock(mutex_);
  return durable_;
}

std::vector<QuorumClient::ReplicaStatus> QuorumLogSink::replicas() const {
  return client_->status();
}

std::vector<bool> QuorumLogSink::well() const {
  using Phase = quorum::Writer::ReplicaPhase;
  std::vector<bool> well;
  for (const QuorumClient::ReplicaStatus& replica : client_->status()) {
    // One that failed is asked again and again.
    const bool failed = replica.log.phase == Phase::kResting ||
                        (replica.log.phase == Phase::kAsking && !replica.log.last_error.ok());
    well.push_back(!failed);
  }
  return well;
}

}  // namespace strata::clients
