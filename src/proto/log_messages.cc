#include "proto/log_messages.h"

#include <utility>

#include "proto/status_bytes.h"

namespace strata::proto {
namespace {

using quorum::History;
using quorum::Holder;
using quorum::ReplicaState;
using quorum::Tenure;

// What LM1 says of the parts: `ok` is false once something was not well formed.
struct Reader {
  explicit Reader(Bytes bytes) : in(bytes) {}
  [[nodiscard]] bool whole() const { return ok && in.ok() && in.remaining() == 0; }
  ByteReader in;
  bool ok = true;

  Lsn lsn() { return Lsn{in.u64()}; }
  Epoch epoch() { return Epoch{in.u64()}; }
  std::string rest() { return std::string(in.bytes(in.remaining())); }
  bool flag() {
    const uint8_t value = in.u8();
    if (value > 1) ok = false;
    return value == 1;
  }
  Holder holder() {
    const Epoch who = epoch();
    return {who, in.u64()};
  }
  History history() {
    const uint32_t count = in.u32();
    if (count > kHistoryEntriesMax || count * size_t{16} > in.remaining()) {
      ok = false;
      return {};
    }
    History out(count);
    for (quorum::EpochStart& entry : out) {
      entry.epoch = epoch();
      entry.start = lsn();
    }
    if (!quorum::check_history(out).ok()) ok = false;
    return out;
  }
  Tenure tenure() {
    Tenure out;
    out.holder = holder();
    out.start = lsn();
    out.base = lsn();
    out.history = history();
    return out;
  }
  ReplicaState state() {
    ReplicaState out;
    out.promised = epoch();
    out.last_epoch = epoch();
    out.start = lsn();
    out.end = lsn();
    out.quorum_durable = lsn();
    out.voting = flag();
    return out;
  }
};

void append_holder(std::string* out, const Holder& holder) {
  append_u64(out, holder.epoch.value);
  append_u64(out, holder.token);
}
void append_history(std::string* out, const History& history) {
  append_u32(out, static_cast<uint32_t>(history.size()));
  for (const quorum::EpochStart& entry : history) {
    append_u64(out, entry.epoch.value);
    append_u64(out, entry.start.value);
  }
}
void append_tenure(std::string* out, const Tenure& tenure) {
  append_holder(out, tenure.holder);
  append_u64(out, tenure.start.value);
  append_u64(out, tenure.base.value);
  append_history(out, tenure.history);
}
void append_state(std::string* out, const ReplicaState& state) {
  append_u64(out, state.promised.value);
  append_u64(out, state.last_epoch.value);
  append_u64(out, state.start.value);
  append_u64(out, state.end.value);
  append_u64(out, state.quorum_durable.value);
  append_u8(out, state.voting ? 1 : 0);
}
std::string of_stream(StreamId stream) {
  std::string out;
  append_u32(&out, stream.value);
  return out;
}

template <class Request, class Fill>
StatusOr<OfStream<Request>> request_of(Bytes bytes, const char* what, Fill fill) {
  Reader reader(bytes);
  OfStream<Request> out;
  out.stream = StreamId{reader.in.u32()};
  fill(&reader, &out.request);
  if (!reader.whole() || out.stream.is_zero()) return error_invalid_argument(what);
  return out;
}

template <class Reply, class Fill>
StatusOr<Reply> reply_of(Bytes bytes, const char* what, Fill fill) {
  Reader reader(bytes);
  Reply out;
  out.status = read_status(&reader.in, &reader.ok);
  fill(&reader, &out);
  if (!reader.whole()) return error_corruption(what);
  return out;
}

}  // namespace

// --- requests ---

std::string encode(StreamId stream, const quorum::SealRequest& request) {
  std::string out = of_stream(stream);
  append_holder(&out, request.holder);
  return out;
}
StatusOr<OfStream<quorum::SealRequest>> decode_log_seal(Bytes bytes) {
  return request_of<quorum::SealRequest>(bytes, "not a seal request",
                                         [](Reader* in, auto* out) { out->holder = in->holder(); });
}

std::string encode(StreamId stream, const quorum::BeginRequest& request) {
  std::string out = of_stream(stream);
  append_tenure(&out, request.tenure);
  append_u64(&out, request.voter_end.value);
  return out;
}
StatusOr<OfStream<quorum::BeginRequest>> decode_log_begin(Bytes bytes) {
  return request_of<quorum::BeginRequest>(bytes, "not a begin request", [](Reader* in, auto* out) {
    out->tenure = in->tenure();
    out->voter_end = in->lsn();
  });
}

std::string encode(StreamId stream, const quorum::CatchUpRequest& request) {
  std::string out = of_stream(stream);
  append_tenure(&out, request.tenure);
  append_u64(&out, request.at.value);
  append_u64(&out, request.quorum_durable.value);
  out += request.bytes;
  return out;
}
StatusOr<OfStream<quorum::CatchUpRequest>> decode_log_catch_up(Bytes bytes) {
  return request_of<quorum::CatchUpRequest>(bytes, "not a catch-up request",
                                            [](Reader* in, auto* out) {
                                              out->tenure = in->tenure();
                                              out->at = in->lsn();
                                              out->quorum_durable = in->lsn();
                                              out->bytes = in->rest();
                                            });
}

std::string encode(StreamId stream, const quorum::AppendRequest& request) {
  std::string out;
  out.reserve(4 + 3 * 8 + request.bytes.size());
  append_u32(&out, stream.value);
  append_u64(&out, request.epoch.value);
  append_u64(&out, request.at.value);
  append_u64(&out, request.quorum_durable.value);
  out += request.bytes;
  return out;
}
StatusOr<OfStream<quorum::AppendRequest>> decode_log_append(Bytes bytes) {
  return request_of<quorum::AppendRequest>(bytes, "not an append request",
                                           [](Reader* in, auto* out) {
                                             out->epoch = in->epoch();
                                             out->at = in->lsn();
                                             out->quorum_durable = in->lsn();
                                             out->bytes = in->rest();
                                           });
}

std::string encode(StreamId stream, const quorum::CatchUpOrder& order) {
  std::string out = of_stream(stream);
  append_tenure(&out, order.tenure);
  append_u64(&out, order.voter_end.value);
  append_u64(&out, order.until.value);
  append_u32(&out, static_cast<uint32_t>(order.sources.size()));
  for (const uint32_t source : order.sources) append_u32(&out, source);
  return out;
}
StatusOr<OfStream<quorum::CatchUpOrder>> decode_log_order(Bytes bytes) {
  return request_of<quorum::CatchUpOrder>(bytes, "not an order to catch up",
                                          [](Reader* in, auto* out) {
                                            out->tenure = in->tenure();
                                            out->voter_end = in->lsn();
                                            out->until = in->lsn();
                                            const uint32_t count = in->in.u32();
                                            if (count > kOrderSourcesMax) in->ok = false;
                                            for (uint32_t i = 0; in->ok && i < count; ++i)
                                              out->sources.push_back(in->in.u32());
                                          });
}

std::string encode(StreamId stream, const quorum::ReadRequest& request) {
  std::string out = of_stream(stream);
  append_u64(&out, request.from.value);
  append_u32(&out, request.bytes_max);
  append_u8(&out, request.recovery ? 1 : 0);
  append_u64(&out, request.epoch.value);
  return out;
}
StatusOr<OfStream<quorum::ReadRequest>> decode_log_read(Bytes bytes) {
  return request_of<quorum::ReadRequest>(bytes, "not a request to read a log",
                                         [](Reader* in, auto* out) {
                                           out->from = in->lsn();
                                           out->bytes_max = in->in.u32();
                                           out->recovery = in->flag();
                                           out->epoch = in->epoch();
                                         });
}

std::string encode(StreamId stream, const TruncateRequest& request) {
  std::string out = of_stream(stream);
  append_u64(&out, request.epoch.value);
  append_u64(&out, request.below.value);
  return out;
}
StatusOr<OfStream<TruncateRequest>> decode_log_truncate(Bytes bytes) {
  return request_of<TruncateRequest>(bytes, "not a request to truncate a log",
                                     [](Reader* in, auto* out) {
                                       out->epoch = in->epoch();
                                       out->below = in->lsn();
                                     });
}

// --- replies ---

std::string encode(const quorum::SealReply& reply) {
  std::string out;
  append_status(&out, reply.status);
  append_state(&out, reply.state);
  append_history(&out, reply.history);
  return out;
}
StatusOr<quorum::SealReply> decode_seal_reply(Bytes bytes) {
  return reply_of<quorum::SealReply>(bytes, "not a reply to a seal", [](Reader* in, auto* out) {
    out->state = in->state();
    out->history = in->history();
  });
}

std::string encode(const quorum::ChangeReply& reply) {
  std::string out;
  append_status(&out, reply.status);
  append_state(&out, reply.state);
  append_u64(&out, reply.next.value);
  return out;
}
StatusOr<quorum::ChangeReply> decode_change_reply(Bytes bytes) {
  return reply_of<quorum::ChangeReply>(bytes, "not a reply to a change of a log",
                                       [](Reader* in, auto* out) {
                                         out->state = in->state();
                                         out->next = in->lsn();
                                       });
}

std::string encode(const quorum::ReadReply& reply) {
  std::string out;
  out.reserve(64 + reply.bytes.size());
  append_status(&out, reply.status);
  append_u64(&out, reply.from.value);
  append_u64(&out, reply.quorum_durable.value);
  append_u64(&out, reply.start.value);
  append_u8(&out, reply.votes ? 1 : 0);
  out += reply.bytes;
  return out;
}
StatusOr<quorum::ReadReply> decode_read_reply(Bytes bytes) {
  return reply_of<quorum::ReadReply>(bytes, "not a reply to a read of a log",
                                     [](Reader* in, auto* out) {
                                       out->from = in->lsn();
                                       out->quorum_durable = in->lsn();
                                       out->start = in->lsn();
                                       out->votes = in->flag();
                                       out->bytes = in->rest();
                                     });
}

}  // namespace strata::proto
