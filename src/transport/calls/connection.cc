#include "transport/calls/connection.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace strata::transport {
namespace {

Refusal refusal_of(const Status& error) noexcept {
  return is_no_space(error) ? Refusal::kTooLarge : Refusal::kBadFrame;
}

}  // namespace

Connection::Connection(const Secret& secret, const Hello& hello, const ConnectionLimits& limits,
                       Entropy* entropy, uint64_t now_ns)
    : limits_(limits),
      handshake_(std::in_place_type<ClientHandshake>, secret, hello, entropy),
      hello_(hello),
      born_ns_(now_ns),
      last_received_ns_(now_ns),
      last_written_ns_(now_ns) {
  queue({.flags = static_cast<uint16_t>(FrameKind::kHandshake)},
        std::get<ClientHandshake>(handshake_).hello(), {});
}

Connection::Connection(const Secret& secret, uint64_t server_life, const ConnectionLimits& limits,
                       Entropy* entropy, uint64_t now_ns)
    : limits_(limits),
      handshake_(std::in_place_type<ServerHandshake>, secret, server_life, entropy),
      born_ns_(now_ns),
      last_received_ns_(now_ns),
      last_written_ns_(now_ns) {}

Status Connection::receive(Bytes in, uint64_t now_ns, FrameHandler on_frame) {
  if (state_ == State::kBroken) return error_corruption("the connection is broken");
  last_received_ns_ = now_ns;
  for (;;) {
    Frame frame;
    const StatusOr<bool> whole = decoder_.next(&in, &frame);
    if (!whole.ok()) return broken(refusal_of(whole.status()), whole.status());
    if (!*whole) return ok_status();
    STRATA_ASSIGN_OR_RETURN(const bool more, take(frame, on_frame));
    if (!more) return ok_status();
  }
}

StatusOr<bool> Connection::take(const Frame& frame, FrameHandler on_frame) {
  const FrameKind kind = frame.header.kind();
  if (state_ == State::kHandshake && kind == FrameKind::kHandshake) {
    STRATA_RETURN_IF_ERROR(take_handshake(frame.payload));
    return true;
  }
  if (state_ == State::kReady) {
    if (kind == (is_server() ? FrameKind::kRequest : FrameKind::kReply)) return on_frame(frame);
    const bool silent = frame.payload.empty() && hello_.manner == Manner::kLively;
    if (kind == FrameKind::kHeartbeat && silent) return true;
  }
  return broken(Refusal::kOutOfTurn, error_corruption("a frame that may not come now"));  // CN3
}

Status Connection::take_handshake(Bytes message) {
  StatusOr<std::string> answer =
      std::visit([&](auto& handshake) { return handshake.receive(message); }, handshake_);
  if (!answer.ok()) {
    const Refusal refusal =
        is_wrong_secret(answer.status()) ? Refusal::kWrongSecret : Refusal::kOutOfTurn;
    return broken(refusal, answer.status());
  }
  if (!answer->empty())
    queue({.flags = static_cast<uint16_t>(FrameKind::kHandshake)}, *std::move(answer), {});
  if (std::visit([](const auto& handshake) { return handshake.done(); }, handshake_)) {
    if (is_server()) hello_ = std::get<ServerHandshake>(handshake_).hello();
    decoder_.set_payload_bytes_max(limits_.payload_bytes_max);
    state_ = State::kReady;
  }
  return ok_status();
}

void Connection::send(const FrameHeader& header, std::string payload, FileDescriptor attached) {
  STRATA_ASSERT(ready());
  queue(header, std::move(payload), std::move(attached));
}

void Connection::queue(FrameHeader header, std::string payload, FileDescriptor attached) {
  char bytes[kFrameHeaderBytes];
  encode_header(header, payload, bytes);
  output_.append({bytes, sizeof bytes}, std::move(payload), std::move(attached));
}

Status Connection::tick(uint64_t now_ns) {
  if (state_ == State::kBroken) return error_corruption("the connection is broken");
  if (now_ns < next_tick_ns()) return ok_status();
  last_tick_ns_ = now_ns;
  if (state_ == State::kHandshake)
    return broken(Refusal::kHandshakeTime, error_timed_out("not authenticated in time"));
  // While we do not read because the peer does not, its reading is the sign of life (CN4).
  const uint64_t sign_ns =
      reading_ ? last_received_ns_ : std::max(last_received_ns_, last_written_ns_);
  if (now_ns >= sign_ns + limits_.dead_us * 1000 && (reading_ || output_.waiting() > 0))
    return broken(Refusal::kNoSignOfLife, error_peer_down("no sign of life"));
  if (output_.waiting() == 0 && now_ns >= last_written_ns_ + limits_.heartbeat_us * 1000)
    queue({.flags = static_cast<uint16_t>(FrameKind::kHeartbeat)}, std::string(), {});
  return ok_status();
}

uint64_t Connection::next_tick_ns() const noexcept {
  if (state_ == State::kHandshake) return born_ns_ + limits_.handshake_us_max * 1000;
  if (state_ == State::kBroken || hello_.manner != Manner::kLively) return UINT64_MAX;
  const uint64_t dead_ns = last_received_ns_ + limits_.dead_us * 1000;
  const uint64_t beat_ns = last_written_ns_ + limits_.heartbeat_us * 1000;
  const uint64_t due_ns = std::min(dead_ns, beat_ns);
  // What was due at the last tick and did not happen (we may not write, or do not read) waits.
  return due_ns > last_tick_ns_ ? due_ns : last_tick_ns_ + limits_.heartbeat_us * 1000;
}

void Connection::set_reading(bool reading, uint64_t now_ns) noexcept {
  if (reading && !reading_) last_received_ns_ = now_ns;
  reading_ = reading;
}

uint64_t Connection::server_life() const noexcept {
  const auto* const client = std::get_if<ClientHandshake>(&handshake_);
  return client == nullptr ? 0 : client->server_life();
}

Status Connection::broken(Refusal refusal, Status why) {
  state_ = State::kBroken;
  refusal_ = refusal;
  return why;
}

}  // namespace strata::transport
