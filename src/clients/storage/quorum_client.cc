#include "clients/storage/quorum_client.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <utility>
#include <variant>

#include "base/assert.h"
#include "base/diag.h"
#include "proto/calls/calls.h"
#include "proto/log_messages.h"
#include "proto/methods.h"
#include "quorum/recovery.h"

namespace strata::clients {

using quorum::Outgoing;
using quorum::Recovery;
using quorum::Reply;
using quorum::Writer;
using transport::Channel;

namespace {

struct Encoded {
  uint16_t method;
  std::string payload;
};
struct Encoder {
  StreamId stream;
  Encoded operator()(const quorum::SealRequest& r) const { return {proto::kLogSeal, encode(r)}; }
  Encoded operator()(const quorum::BeginRequest& r) const { return {proto::kLogBegin, encode(r)}; }
  Encoded operator()(const quorum::CatchUpRequest& r) const {
    return {proto::kLogCatchUp, encode(r)};
  }
  Encoded operator()(const quorum::AppendRequest& r) const {
    return {proto::kLogAppend, encode(r)};
  }
  Encoded operator()(const quorum::ReadRequest& r) const { return {proto::kLogRead, encode(r)}; }
  Encoded operator()(const quorum::CatchUpOrder& r) const { return {proto::kLogOrder, encode(r)}; }

 private:
  template <class Request>
  [[nodiscard]] std::string encode(const Request& request) const {
    return proto::encode(stream, request);
  }
};

// Nothing: the reply cannot be read.
std::optional<Reply> decode(uint16_t method, Bytes payload) {
  const auto as_reply = [](auto decoded) -> std::optional<Reply> {
    if (!decoded.ok()) return std::nullopt;
    return Reply(*std::move(decoded));
  };
  switch (method) {
    case proto::kLogSeal:
      return as_reply(proto::decode_seal_reply(payload));
    case proto::kLogRead:
      return as_reply(proto::decode_read_reply(payload));
    default:
      return as_reply(proto::decode_change_reply(payload));
  }
}

}  // namespace

// In the executor's thread only.
class QuorumClient::Core : public std::enable_shared_from_this<QuorumClient::Core> {
 public:
  Core(const transport::World& world, QuorumClientOptions options, quorum::Holder holder,
       std::optional<Lsn> new_stream_start, QuorumEvents events)
      : world_(world),
        options_(std::move(options)),
        addresses_(options_.addresses),
        keys_(options_.keys),
        generation_(options_.generation),
        holder_(holder),
        events_(std::move(events)),
        recovery_(std::make_unique<Recovery>(options_.quorum, holder, new_stream_start,
                                             /*wait_for_start=*/true)) {}

  void start(const transport::Secret& secret) {
    secret_.emplace(secret);
    for (const transport::Address& address : addresses_) ways_.push_back(way_to(address));
    arm_timer();
    go_on();
  }
  void stop() {
    ended_ = true;
    cancel_timers();
    ways_.clear();
  }

  void begin_at(Lsn start) {
    if (ended_) return;
    recovery_->begin_at(start);
    go_on();
  }
  void append(std::string bytes) {
    if (ended_) return;
    STRATA_ASSERT(writer_ != nullptr);  // QC1
    waiting_.push_back(std::move(bytes));
    go_on();
  }
  void truncate_below(Lsn lsn) {
    if (ended_ || writer_ == nullptr) return;
    lsn = writer_->keep_from(lsn);
    for (const Way& way : ways_)
      way.channel->call(call_options(proto::kLogTruncate),
                        proto::encode(options_.stream, proto::TruncateRequest{holder_.epoch, lsn}),
                        [](const transport::Reply&) {});  // who missed it hears of the next one
  }
  void spread_news() {
    if (ended_ || writer_ == nullptr) return;
    writer_->tell(writer_->quorum_durable());
    go_on();
  }
  // Any thread. Who has learnt from `durable` that something is so finds it true until the replicas
  // hear of it: it is set before that event is posted, and the mutex of the posted tasks orders
  // the two.
  [[nodiscard]] bool has_news() const noexcept { return has_news_.load(std::memory_order_relaxed); }
  void follow(ReplicaSet next) {
    if (ended_ || next.generation <= generation_) return;
    if (next.taken_out_by > holder_.epoch)  // QC4
      return end_taken_over(next.taken_out_by);
    const bool fewer = next.nodes.size() < addresses_.size();
    if ((fewer && (writer_ == nullptr || !writer_->leaves())) ||
        next.write_quorum > next.nodes.size() || 2 * next.write_quorum <= next.nodes.size())
      return diag(Severity::kError,
                  "generation %llu of the placement has fewer replicas than the one before, or no "
                  "majority for a write quorum: it is not followed",
                  static_cast<unsigned long long>(next.generation));
    generation_ = next.generation;
    next_ = std::move(next);
    if (writer_ == nullptr) return;  // QC3
    change_replicas();
    go_on();
  }
  bool prepare_leave(const std::string& key, uint64_t generation, uint32_t write_quorum) {
    const auto found = std::find(keys_.begin(), keys_.end(), key);
    if (ended_ || writer_ == nullptr || generation != generation_ || found == keys_.end())
      return false;
    if (!writer_->leaves()) {
      writer_->begin_leave(static_cast<quorum::ReplicaIndex>(found - keys_.begin()), write_quorum);
      go_on();
    }
    return !ended_ && writer_->may_leave();
  }
  void cancel_leave() {
    if (ended_ || writer_ == nullptr) return;
    writer_->cancel_leave();
    go_on();
  }
  [[nodiscard]] std::vector<ReplicaStatus> status() const {
    std::vector<ReplicaStatus> out;
    if (writer_ == nullptr) return out;
    for (quorum::Writer::ReplicaStatus& log : writer_->status()) {
      const size_t i = out.size();
      out.push_back({addresses_[i].now(), std::move(log), ways_[i].refusal->why});
    }
    return out;
  }
  [[nodiscard]] std::vector<Unusable> unusable() const {
    std::vector<Unusable> out;
    for (size_t i = 0; i < ways_.size(); ++i)
      if (const Status& why = ways_[i].refusal->why; !why.ok())
        out.push_back({addresses_[i].now(), why});
    return out;
  }

 private:
  // QC5
  struct Refusal {
    uint16_t method = kAnyMethod;  // that was refused first
    Status why;                    // OK: nothing was
  };
  static constexpr uint16_t kAnyMethod = 0;
  struct Way {
    std::unique_ptr<Channel> channel;
    std::shared_ptr<Refusal> refusal;
  };
  // What a process has refused ends with its connection: the next one may be of another build.
  Way way_to(const transport::Address& address) {
    auto refusal = std::make_shared<Refusal>();
    auto observer = [refusal](bool, uint64_t, const Status&) { *refusal = {}; };
    return {std::make_unique<Channel>(world_, *secret_, address, options_.channel, observer),
            std::move(refusal)};
  }
  // A channel that goes takes the calls on it along: nobody hears of them any more.
  void change_replicas() {
    STRATA_ASSERT(keys_.size() == addresses_.size());
    const quorum::ReplicasBefore before = places_before(keys_, *next_);
    std::vector<Way> ways;
    addresses_.clear();
    keys_.clear();
    for (size_t i = 0; i < before.size(); ++i) {
      const ReplicaNode& node = next_->nodes[i];
      addresses_.push_back(node.address);
      keys_.push_back(node.key);
      ways.push_back(before[i].has_value() ? std::move(ways_[*before[i]]) : way_to(node.address));
    }
    writer_->follow(next_->write_quorum, before);
    ways_ = std::move(ways);
  }
  [[nodiscard]] transport::CallOptions call_options(uint16_t method) const {
    return proto::call_of(method, world_.executor->now_us() + options_.call_timeout_us,
                          holder_.epoch);
  }

  void arm_timer() {
    timer_ = world_.executor->run_at(world_.executor->now_ns() + options_.tick_us * 1000, [this] {
      arm_timer();
      writer_ != nullptr ? writer_->tick() : recovery_->tick();
      go_on();
    });
  }

  // Looks at what the state machines say now, and sends what they want sent.
  void go_on() {
    if (!ended_ && writer_ == nullptr) look_at_recovery();
    if (!ended_ && writer_ != nullptr) look_at_writer();
    if (ended_) return;
    send_all(writer_ != nullptr ? writer_->take_requests() : recovery_->take_requests());
  }

  void look_at_recovery() {
    switch (recovery_->state()) {
      case Recovery::State::kSealing:
      case Recovery::State::kCopying:
        return;
      case Recovery::State::kChosen:
        if (!std::exchange(told_chosen_, true)) {
          const quorum::Recovery::Chosen& log = recovery_->chosen();
          post([this, told = ChosenLog{log.replica, log.begin, log.quorum_durable, log.end,
                                       log.same_until}] { events_.chosen(told); });
        }
        return;
      case Recovery::State::kFailed:
        return end(recovery_->failure(), recovery_->fenced_by());
      case Recovery::State::kDone:
        writer_ = std::make_unique<Writer>(options_.quorum, recovery_->tenure());
        if (next_.has_value()) change_replicas();
        durable_ = writer_->quorum_durable();
        post([this, start = durable_] { events_.begun(start); });
    }
  }

  void look_at_writer() {
    if (const auto higher = writer_->fenced_by()) return end_taken_over(*higher);
    while (!waiting_.empty() && writer_->has_room(waiting_.front().size())) {
      STRATA_ASSERT(writer_->append(std::move(waiting_.front())).ok());
      waiting_.pop_front();
    }
    look_at_news();
    if (writer_->quorum_durable() > durable_) {
      durable_ = writer_->quorum_durable();
      post([this, told = durable_] { events_.durable(told); });
    }
  }

  // WR8. What has become durable since the timer was set waits for the next one.
  void look_at_news() {
    has_news_.store(writer_->has_news(), std::memory_order_relaxed);
    if (!has_news() || news_timer_ != 0) return;
    const uint64_t when_ns = world_.executor->now_ns() + options_.news_delay_us * 1000;
    news_timer_ = world_.executor->run_at(when_ns, [this, lsn = writer_->quorum_durable()] {
      news_timer_ = 0;
      writer_->tell(lsn);
      go_on();
    });
  }

  void end_taken_over(Epoch higher) {
    end(error_fenced("this node's epoch " + std::to_string(holder_.epoch.value) +
                     " of log stream " + std::to_string(options_.stream.value) +
                     " was taken over by epoch " + std::to_string(higher.value)),
        higher);
  }
  void end(const Status& why, Epoch higher) {
    // Before `ended`: QC2. Whatever else was posted has run by then.
    post([this, why, higher] {
      if (std::exchange(told_ended_, true)) return;
      events_.ended(why, higher);
    });
    ended_ = true;
    cancel_timers();
  }
  void cancel_timers() {
    world_.executor->cancel(std::exchange(timer_, 0));
    world_.executor->cancel(std::exchange(news_timer_, 0));
    has_news_.store(false, std::memory_order_relaxed);
  }

  // Events never run inside a call of ours.
  void post(transport::Task event) {
    world_.executor->post([weak = weak_from_this(), event = std::move(event)]() mutable {
      if (const auto alive = weak.lock()) event();
    });
  }

  void send_all(std::vector<Outgoing> requests) {
    for (Outgoing& request : requests) {
      Encoded encoded = std::visit(Encoder{options_.stream}, request.body);
      const bool from_writer = writer_ != nullptr;
      ways_[request.replica].channel->call(
          call_options(encoded.method), std::move(encoded.payload),
          [this, id = request.id, from_writer, method = encoded.method, replica = request.replica,
           generation = generation_](const transport::Reply& reply) {
            if (generation == generation_) note_usable(replica, method, reply);
            on_reply(id, from_writer, method, reply);
          });
    }
  }

  // QC5. The state machines know lost calls only; this is lost for as long as nobody does
  // something. A node of another build may well answer other calls: each method speaks for itself.
  void note_usable(quorum::ReplicaIndex replica, uint16_t method, const transport::Reply& reply) {
    Refusal& refusal = *ways_[replica].refusal;
    const bool refused = reply.answered && is_unsupported(reply.status);
    if (refused || (is_wrong_secret(reply.status) && !reply.answered)) {
      if (!refusal.why.ok()) return;
      refusal = {refused ? method : kAnyMethod, reply.status};
      if (refused)
        diag(Severity::kWarning, "storage node %s cannot be used for log stream %u: %s",
             addresses_[replica].now().c_str(), options_.stream.value,
             std::string(reply.status.message()).c_str());
    } else if (reply.answered && !refusal.why.ok() &&
               (refusal.method == method || refusal.method == kAnyMethod)) {
      refusal = {};
    }
  }

  void on_reply(uint64_t id, bool to_writer, uint16_t method, const transport::Reply& reply) {
    if (ended_ || to_writer != (writer_ != nullptr)) return;  // the recovery's; it is over
    std::optional<Reply> decoded;
    if (reply.answered && reply.status.ok() && method != proto::kLogOrder)
      decoded = decode(method, reply.payload);
    if (decoded.has_value()) {
      to_writer ? writer_->on_reply(id, *std::move(decoded))
                : recovery_->on_reply(id, *std::move(decoded));
    } else {
      to_writer ? writer_->on_lost(id) : recovery_->on_lost(id);
    }
    go_on();
  }

  const transport::World world_;
  const QuorumClientOptions options_;  // quorum, addresses and keys: of the start
  std::vector<transport::Address> addresses_;
  std::vector<std::string> keys_;
  uint64_t generation_;  // of the newest placement told
  std::optional<transport::Secret> secret_;
  std::optional<ReplicaSet> next_;  // the newest told
  const quorum::Holder holder_;
  QuorumEvents events_;
  std::vector<Way> ways_;
  std::unique_ptr<Recovery> recovery_;
  std::unique_ptr<Writer> writer_;
  std::deque<std::string> waiting_;
  Lsn durable_;
  transport::Executor::TimerId timer_ = 0;
  transport::Executor::TimerId news_timer_ = 0;
  std::atomic<bool> has_news_{false};
  bool told_chosen_ = false;
  bool told_ended_ = false;
  bool ended_ = false;
};

QuorumClient::QuorumClient(const transport::World& world, const transport::Secret& secret,
                           QuorumClientOptions options, quorum::Holder holder,
                           std::optional<Lsn> new_stream_start, QuorumEvents events)
    : executor_(world.executor) {
  STRATA_ASSERT(options.addresses.size() == options.quorum.replicas);
  core_ = std::make_shared<Core>(world, std::move(options), holder, new_stream_start,
                                 std::move(events));
  executor_->post([core = core_, secret] { core->start(secret); });
}

QuorumClient::~QuorumClient() {
  run_and_wait(executor_, [core = std::move(core_)]() mutable {
    core->stop();
    core.reset();
  });
}

void QuorumClient::begin_at(Lsn start) {
  executor_->post([core = core_, start] { core->begin_at(start); });
}
void QuorumClient::append(std::string bytes) {
  executor_->run_or_post(
      [core = core_, bytes = std::move(bytes)]() mutable { core->append(std::move(bytes)); });
}
void QuorumClient::spread_news() {
  if (!core_->has_news()) return;
  executor_->post([core = core_] { core->spread_news(); });
}
void QuorumClient::follow(ReplicaSet replicas) {
  executor_->post([core = core_, replicas = std::move(replicas)]() mutable {
    core->follow(std::move(replicas));
  });
}
bool QuorumClient::prepare_leave(const std::string& key, uint64_t generation,
                                 uint32_t write_quorum) {
  bool may_leave = false;
  run_and_wait(executor_, [&] { may_leave = core_->prepare_leave(key, generation, write_quorum); });
  return may_leave;
}
void QuorumClient::cancel_leave() {
  run_and_wait(executor_, [&] { core_->cancel_leave(); });
}
void QuorumClient::truncate_below(Lsn lsn) {
  executor_->post([core = core_, lsn] { core->truncate_below(lsn); });
}

std::vector<QuorumClient::ReplicaStatus> QuorumClient::status() const {
  std::vector<ReplicaStatus> out;
  run_and_wait(executor_, [&] { out = core_->status(); });
  return out;
}
std::vector<QuorumClient::Unusable> QuorumClient::unusable() const {
  std::vector<Unusable> out;
  run_and_wait(executor_, [&] { out = core_->unusable(); });
  return out;
}

}  // namespace strata::clients
