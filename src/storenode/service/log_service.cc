#include "storenode/service/log_service.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "proto/calls/calls.h"
#include "proto/methods.h"

namespace strata::storenode {

using proto::OfStream;
using quorum::ChangeReply;
using quorum::SealReply;
using transport::Request;
using transport::Responder;

LogService::LogService(Parts parts) : parts_(std::move(parts)) {}
LogService::~LogService() = default;

template <class Request, class Run>
void LogService::handle(transport::RpcServer* server, uint16_t method,
                        StatusOr<OfStream<Request>> (*decode)(Bytes), Run run) {
  proto::serve(
      server, method, [this, decode, run](const transport::Request& call, Responder responder) {
        if (const Status may = may_serve(); !may.ok()) return responder.fail(may);  // LSV4
        auto decoded = decode(call.payload);
        if (!decoded.ok()) return responder.fail(decoded.status());
        if (decoded->stream.value > proto::kStreamsMax)  // LSV5
          return responder.fail(error_invalid_argument("there are no streams with such numbers"));
        (this->*run)(*std::move(decoded), std::move(responder));
      });
}

// A line of methods.def without a decoder and a handler of its name does not compile.
void LogService::register_on(transport::RpcServer* server) {
  STRATA_ASSERT(parts_.store != nullptr && parts_.offload != nullptr);
  STRATA_ASSERT(parts_.origin != nullptr && parts_.stream_made != nullptr);
  STRATA_ASSERT(parts_.fetch != nullptr && parts_.needed_from != nullptr);
#define STRATA_LOG_METHOD(number, constant, counter, ...) \
  handle(server, proto::constant, proto::decode_##counter, &LogService::on_##counter);
#include "proto/methods.def"
}

// --- changes ---

void LogService::make(StreamId stream, const SharedResponder& to, std::function<void()> again) {
  const bool taken = parts_.offload([this, stream, to, again = std::move(again)] {
    const auto origin = parts_.origin(stream);
    if (!origin.ok()) return to->fail(origin.status());
    parts_.store->make_stream(stream, *origin, [this, stream, to, again](const ChangeReply& reply) {
      if (!reply.status.ok()) return to->fail(reply.status);
      parts_.stream_made(stream);
      again();
    });
  });
  if (!taken) to->fail(error_busy("too many requests wait"));
}

void LogService::seal(StreamId stream, const quorum::SealRequest& request,
                      const SharedResponder& to, bool may_make) {
  parts_.store->seal(stream, request,
                     [this, stream, request, to, may_make](const SealReply& reply) {
                       if (may_make && is_not_found(reply.status))
                         return make(stream, to, [=, this] { seal(stream, request, to, false); });
                       to->reply(proto::encode(reply), reply.state.promised.value);
                     });
}

template <class Request, class Store>
void LogService::change(StreamId stream, std::shared_ptr<const Request> request, SharedResponder to,
                        Store store, bool may_make) {
  (parts_.store->*store)(
      stream, *request, [this, stream, request, to, store, may_make](const ChangeReply& reply) {
        if (may_make && is_not_found(reply.status))
          return make(stream, to, [=, this] { change(stream, request, to, store, false); });
        to->reply(proto::encode(reply), reply.state.promised.value);
      });
}

void LogService::on_log_seal(OfStream<quorum::SealRequest> call, Responder responder) {
  seal(call.stream, call.request, std::make_shared<Responder>(std::move(responder)), true);
}

void LogService::on_log_begin(OfStream<quorum::BeginRequest> call, Responder responder) {
  change(call.stream, std::make_shared<const quorum::BeginRequest>(std::move(call.request)),
         std::make_shared<Responder>(std::move(responder)), &LogStore::begin_epoch, true);
}

void LogService::on_log_catch_up(OfStream<quorum::CatchUpRequest> call, Responder responder) {
  change(call.stream, std::make_shared<const quorum::CatchUpRequest>(std::move(call.request)),
         std::make_shared<Responder>(std::move(responder)), &LogStore::catch_up, true);
}

// The hot one: nothing is copied. A stream that is not there is made when the writer begins again.
void LogService::on_log_append(OfStream<quorum::AppendRequest> call, Responder responder) {
  auto to = std::make_shared<Responder>(std::move(responder));
  parts_.store->append(call.stream, std::move(call.request), [to](const ChangeReply& reply) {
    to->reply(proto::encode(reply), reply.state.promised.value);
  });
}

// The writer does not wait for it, but asks again how far it got.
void LogService::on_log_order(OfStream<quorum::CatchUpOrder> call, Responder responder) {
  catch_up_of(call.stream)->order(std::move(call.request));
  responder.reply({});
}

SelfCatchUp* LogService::catch_up_of(StreamId stream) {
  const MutexLock lock(mutex_);
  std::unique_ptr<SelfCatchUp>& found = catch_ups_[stream];
  if (found == nullptr)
    found = std::make_unique<SelfCatchUp>(
        parts_.store, stream,
        [this, stream](quorum::ReplicaIndex peer, const quorum::ReadRequest& request,
                       SelfCatchUp::FetchDone done) {
          parts_.fetch(stream, peer, request, std::move(done));
        });
  return found.get();
}

// --- reads ---

void LogService::on_log_read(OfStream<quorum::ReadRequest> call, Responder responder) {
  auto to = std::make_shared<Responder>(std::move(responder));
  call.request.bytes_max = std::min(call.request.bytes_max, proto::kReadBytesMax);  // LSV5
  const bool taken = parts_.offload([this, call, to] {
    to->reply(proto::encode(parts_.store->read(call.stream, call.request)));
  });
  if (!taken) to->fail(error_busy("too many reads wait"));
}

// --- truncation ---

Status LogService::check_epoch(StreamId stream, Epoch epoch) const {
  const auto state = parts_.store->state(stream);
  if (!state.ok() || epoch >= state->promised) return ok_status();
  return error_fenced("epoch " + std::to_string(epoch.value) + " of log stream " +
                      std::to_string(stream.value) + " was taken over by epoch " +
                      std::to_string(state->promised.value));
}

Status LogService::votes_in_all() const {
  for (const StreamStatus& stream : parts_.store->status())
    if (!stream.state.voting)
      return error_peer_down("this storage node does not have all of log stream " +
                             std::to_string(stream.stream.value) + " yet");
  return ok_status();
}

void LogService::on_log_truncate(OfStream<proto::TruncateRequest> call, Responder responder) {
  if (const Status allowed = check_epoch(call.stream, call.request.epoch); !allowed.ok())
    return responder.fail(allowed);
  not_needed_by_writer(call.stream, call.request.below);
  responder.reply({});
  truncate();
}

void LogService::not_needed_by_writer(StreamId stream, Lsn below) {
  const MutexLock lock(mutex_);
  Lsn& wanted = wanted_[stream];
  wanted = std::max(wanted, below);
}

void LogService::truncate() {
  std::map<StreamId, Lsn> wanted;
  {
    const MutexLock lock(mutex_);
    wanted = wanted_;
  }
  for (const auto& [stream, lsn] : wanted) {
    const auto state = parts_.store->state(stream);
    if (!state.ok()) continue;
    STRATA_ASSERT(state->start <= state->end && state->quorum_durable <= state->end);
    const Lsn below = std::min({lsn, parts_.needed_from(stream), state->quorum_durable});
    if (below > state->start)
      parts_.store->truncate_prefix(stream, below, [](const ChangeReply&) {});
  }
}

}  // namespace strata::storenode
