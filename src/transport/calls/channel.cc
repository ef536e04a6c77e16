#include "transport/calls/channel.h"

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include "base/assert.h"
#include "transport/calls/internal/link.h"

namespace strata::transport {
namespace {

constexpr uint64_t kWindowBytes = 1u << 20;  // handed to the connection before it has written them
constexpr uint64_t kCallBytes = 256;         // what a waiting call costs beside its payload

uint64_t random_number(Entropy* entropy) {
  uint64_t number = 0;
  while (number == 0) entropy->fill(reinterpret_cast<char*>(&number), sizeof number);
  return number;
}

}  // namespace

// In the executor's thread, all of it.
//
//     kConnecting --on_ready()--> kConnected
//          ^   \                      |
//          |    +----on_closed()------+--> kPausing          any --close()--> kClosed
//          +--the pause is over, or a call-----+
class ChannelCore final : public Link::Owner, public std::enable_shared_from_this<ChannelCore> {
 public:
  ChannelCore(const World& world, const Secret& secret, Address address, ChannelOptions options,
              Channel::StateObserver observer)
      : world_(world),
        secret_(secret),
        where_(std::move(address)),
        options_(std::move(options)),
        observer_(std::move(observer)),
        channel_id_(random_number(world.entropy)),
        pause_us_(options_.reconnect_us_min) {}

  struct Call {
    CallOptions options;
    std::string payload;  // empty once sent
    Channel::Callback callback;
    uint64_t made_ns = 0;
    uint64_t cost_bytes = 0;
    Executor::TimerId deadline_timer = 0;
    uint64_t sent_end = 0;          // of the frame in the connection's output
    uint64_t model_arrival_ns = 0;  // ML1
  };

  void connect();
  void submit(Call call);
  void close();
  Executor* executor() const noexcept { return world_.executor; }

 private:
  enum class State { kPausing, kConnecting, kConnected, kClosed };
  using CallId = uint64_t;

  void on_ready(Link* link) override;
  bool on_frame(Link* link, const Frame& frame) override;
  void on_room(Link*) override { pump(); }
  void on_closed(Link* link, const Status& why) override;
  void pump();
  void send(CallId id, Call* call);
  void pause_then_connect();
  [[nodiscard]] bool may_try_now(uint64_t now_ns) const;
  void on_deadline(CallId id);
  void end(Call call, const Reply& reply);
  void end_lost(Call call, bool sent, bool in_time, const Status& why);

  const World world_;
  const Secret secret_;
  const Address where_;
  std::string address_;  // as of the last attempt
  const ChannelOptions options_;
  Channel::StateObserver observer_;
  const uint64_t channel_id_;
  State state_ = State::kPausing;
  std::shared_ptr<Link> link_;
  uint64_t pause_us_;
  Executor::TimerId pause_timer_ = 0;
  uint64_t tried_ns_ = 0;   // when the last attempt began
  uint64_t paused_ns_ = 0;  // since when
  uint64_t took_ns_ = 0;    // the last attempt to fail; 0: it succeeded
  Status last_failure_ = error_peer_down("not connected yet");
  // Ids grow in the order of the calls; those in sent_ are all smaller than those in waiting_.
  CallId next_id_ = 1;
  std::map<CallId, Call> waiting_;
  std::map<CallId, Call> sent_;
  uint64_t cost_bytes_ = 0;
};

void ChannelCore::connect() {
  if (state_ != State::kPausing) return;
  state_ = State::kConnecting;
  pause_timer_ = 0;
  tried_ns_ = world_.executor->now_ns();
  const Hello hello{.manner = Manner::kLively, .channel_id = channel_id_};
  auto connection = std::make_unique<Connection>(secret_, hello, options_.limits, world_.entropy,
                                                 world_.executor->now_ns());
  address_ = where_.now();
  // A client always reads: replies are what makes room.
  link_ = Link::start(world_, 0, world_.network->connect(address_), std::move(connection), this,
                      options_.counters, UINT64_MAX);
}

void ChannelCore::on_ready(Link* link) {
  const std::shared_ptr<ChannelCore> self = shared_from_this();
  state_ = State::kConnected;
  pause_us_ = options_.reconnect_us_min;
  if (observer_) observer_(true, link->connection().server_life(), ok_status());
  if (state_ == State::kConnected) pump();
}

void ChannelCore::on_closed(Link* link, const Status& why) {
  const uint64_t written = link->written();
  const bool was_connected = state_ == State::kConnected;
  if (address_.empty())
    last_failure_ = error_peer_down("the peer's address is not known yet");
  else
    last_failure_ = with_message(is_wrong_secret(why) ? why : error_peer_down(),
                                 address_ + ": " + std::string(why.message()));
  took_ns_ = was_connected ? 0 : world_.executor->now_ns() - tried_ns_;
  link_.reset();
  pause_then_connect();
  const std::shared_ptr<ChannelCore> self = shared_from_this();
  // Callbacks may make calls or close the channel: they see it as it is from now on.
  std::map<CallId, Call> sent = std::exchange(sent_, {});
  std::map<CallId, Call> given_up;
  for (auto entry = waiting_.begin(); entry != waiting_.end();) {
    const auto here = entry++;
    if (!here->second.options.wait_for_connection) given_up.insert(waiting_.extract(here));
  }
  if (was_connected && observer_) observer_(false, 0, last_failure_);
  for (auto& [id, call] : sent) {
    const bool whole = call.sent_end <= written;
    end_lost(std::move(call), whole, true, last_failure_);
  }
  for (auto& [id, call] : given_up) end_lost(std::move(call), false, true, last_failure_);
}

void ChannelCore::pause_then_connect() {
  state_ = State::kPausing;
  paused_ns_ = world_.executor->now_ns();
  // Between the whole pause and half of it, so that clients of a restarted server spread out.
  const uint64_t pause_us = pause_us_ / 2 + random_number(world_.entropy) % (pause_us_ / 2 + 1);
  pause_us_ = std::min(pause_us_ * 2, options_.reconnect_us_max);
  pause_timer_ =
      world_.executor->run_at(world_.executor->now_ns() + pause_us * 1000, [this] { connect(); });
}

// CH3. Attempts that nobody answers take long: then calls do not add to them.
bool ChannelCore::may_try_now(uint64_t now_ns) const {
  return now_ns - paused_ns_ >= std::max(options_.reconnect_us_min * 1000, took_ns_);
}

void ChannelCore::submit(Call call) {
  const uint64_t now_ns = world_.executor->now_ns();
  call.cost_bytes = kCallBytes + call.payload.size();
  cost_bytes_ += call.cost_bytes;
  if (state_ == State::kClosed) return;
  if (cost_bytes_ > options_.waiting_bytes_max)
    return end(std::move(call), {.status = error_no_space("too many calls wait for " + address_)});
  if (call.payload.size() > options_.limits.payload_bytes_max)
    return end(std::move(call), {.status = error_invalid_argument("a request too long")});
  if (now_ns >= call.options.deadline_us * 1000)
    return end_lost(std::move(call), false, false, ok_status());
  if (state_ == State::kPausing && may_try_now(now_ns)) {
    world_.executor->cancel(pause_timer_);
    connect();
  }
  if (state_ == State::kPausing && !call.options.wait_for_connection)
    return end_lost(std::move(call), false, true, last_failure_);
  const CallId id = next_id_++;
  call.deadline_timer =
      world_.executor->run_at(call.options.deadline_us * 1000, [this, id] { on_deadline(id); });
  waiting_.emplace(id, std::move(call));
  pump();
}

void ChannelCore::pump() {
  while (state_ == State::kConnected && !waiting_.empty() &&
         link_->queued() - link_->written() < kWindowBytes) {
    auto entry = waiting_.extract(waiting_.begin());
    send(entry.key(), &entry.mapped());
    sent_.insert(sent_.end(), std::move(entry));
  }
}

void ChannelCore::send(CallId id, Call* call) {
  FrameHeader header;
  header.method = call->options.method;
  header.layout = call->options.layout;
  header.request_id = id;
  header.epoch = call->options.epoch;
  const uint64_t bytes = kFrameHeaderBytes + call->payload.size();
  count(options_.counters->of(header.method).bytes_out, bytes);
  if (options_.link_model != nullptr)
    call->model_arrival_ns = options_.link_model->request(world_.executor->now_ns(), bytes);
  link_->send(header, std::exchange(call->payload, {}));
  call->sent_end = link_->queued();
}

bool ChannelCore::on_frame(Link*, const Frame& frame) {
  const std::shared_ptr<ChannelCore> self = shared_from_this();  // callbacks may end the channel
  const FrameHeader& header = frame.header;
  const auto entry = sent_.find(header.request_id);
  if (entry == sent_.end()) {
    if (header.request_id == 0 || header.request_id >= next_id_) return false;
    count(options_.counters->late_replies);
    return true;
  }
  if (entry->second.options.method != header.method) return false;
  const uint64_t bytes = kFrameHeaderBytes + uint64_t{header.payload_bytes};
  count(options_.counters->of(header.method).bytes_in, bytes);
  uint64_t done_ns = 0;
  if (options_.link_model != nullptr)
    done_ns = options_.link_model->reply(entry->second.model_arrival_ns, header.service_ns, bytes);
  if (done_ns >= entry->second.options.deadline_us * 1000) return true;  // comes too late
  Call call = std::move(entry->second);
  sent_.erase(entry);
  if (done_ns <= world_.executor->now_ns()) {
    end(std::move(call), reply_of(header, frame.payload));
    return true;
  }
  world_.executor->cancel(std::exchange(call.deadline_timer, 0));
  world_.executor->run_at(done_ns, [self, call = std::move(call), header,
                                    payload = std::string(frame.payload)]() mutable {
    self->end(std::move(call), reply_of(header, payload));
  });
  return true;
}

void ChannelCore::on_deadline(CallId id) {
  auto entry = waiting_.extract(id);
  const bool sent = entry.empty();
  if (sent) entry = sent_.extract(id);
  entry.mapped().deadline_timer = 0;
  end_lost(std::move(entry.mapped()), sent, false, ok_status());
}

void ChannelCore::end_lost(Call call, bool sent, bool in_time, const Status& why) {
  const bool idempotent = call.options.idempotent;
  end(std::move(call), {.status = lost_call(sent, in_time, idempotent, why)});
}

// Always from the executor's queue or an event of the link, so never inside call() (CH2).
void ChannelCore::end(Call call, const Reply& reply) {
  const std::shared_ptr<ChannelCore> self = shared_from_this();
  world_.executor->cancel(std::exchange(call.deadline_timer, 0));
  cost_bytes_ -= call.cost_bytes;
  if (state_ == State::kClosed) return;
  MethodCounters& counters = options_.counters->of(call.options.method);
  count(counters.operations);
  count(counters.nanoseconds, world_.executor->now_ns() - call.made_ns);
  if (!reply.status.ok()) count(counters.errors);
  call.callback(reply);
}

void ChannelCore::close() {
  state_ = State::kClosed;
  Link::close(std::move(link_));
  world_.executor->cancel(pause_timer_);
  for (auto* calls : {&waiting_, &sent_})
    for (auto& [id, call] : std::exchange(*calls, {})) world_.executor->cancel(call.deadline_timer);
}

// --- Channel ------------------------------------------------------------------------------------

Channel::Channel(const World& world, const Secret& secret, Address address, ChannelOptions options,
                 StateObserver observer) {
  if (options.counters == nullptr) options.counters = std::make_shared<Counters>();
  counters_ = options.counters;
  core_ = std::make_shared<ChannelCore>(world, secret, std::move(address), std::move(options),
                                        std::move(observer));
  world.executor->post([core = core_] { core->connect(); });
}

Channel::~Channel() {
  run_and_wait(core_->executor(), [core = core_] { core->close(); });
}

void Channel::call(const CallOptions& options, std::string payload, Callback callback) {
  STRATA_ASSERT(options.method > 0 && options.method < kMethodsMax);
  STRATA_ASSERT(options.deadline_us > 0);
  ChannelCore::Call call;
  call.options = options;
  call.payload = std::move(payload);
  call.callback = std::move(callback);
  call.made_ns = core_->executor()->now_ns();
  core_->executor()->post(
      [core = core_, call = std::move(call)]() mutable { core->submit(std::move(call)); });
}

}  // namespace strata::transport
