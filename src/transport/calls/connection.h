// One connection as a pure state machine: bytes and times in, frames and bytes out. It knows no
// socket and no clock, so every byte and every moment can be tested. Not thread-safe.
//
//     kHandshake --receive(): last handshake message--> kReady --+
//          |                                                     | receive(), tick(): an error
//          +------------------- receive(), tick(): an error -----+--> kBroken
//
//   CN1  No frame of the user's is handed out or accepted for sending before kReady (HS1); what a
//        peer may send before it is bounded in bytes (kHandshakePayloadBytesMax) and in time.
//   CN2  After an error nothing is handed out or accepted any more.
//   CN3  A server accepts requests only, a client replies only; heartbeats only if lively.
//   CN4  A lively connection that may write and has been silent for heartbeat_us sends a heartbeat;
//        one that has heard nothing for dead_us while it was reading is broken.
#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "absl/functional/function_ref.h"
#include "base/bytes.h"
#include "base/status.h"
#include "transport/calls/frame.h"
#include "transport/calls/handshake.h"
#include "transport/calls/internal/output_queue.h"
#include "transport/counters.h"

namespace strata::transport {

struct ConnectionLimits {
  uint32_t payload_bytes_max = 16u << 20;
  uint64_t handshake_us_max = 2'000'000;
  uint64_t heartbeat_us = 200'000;
  uint64_t dead_us = 1'000'000;
};

class Connection {
 public:
  // Returns false to take no further frames: the connection is about to be dropped.
  using FrameHandler = absl::FunctionRef<bool(const Frame&)>;

  // The client's side.
  Connection(const Secret& secret, const Hello& hello, const ConnectionLimits& limits,
             Entropy* entropy, uint64_t now_ns);
  // The server's side.
  Connection(const Secret& secret, uint64_t server_life, const ConnectionLimits& limits,
             Entropy* entropy, uint64_t now_ns);

  // Takes bytes that arrived and hands out the frames among them, whose payloads are valid inside
  // on_frame only. Errors end the connection: kDataLoss (no frames, or out of turn),
  // kResourceExhausted (too large), wrong_secret.
  Status receive(Bytes in, uint64_t now_ns, FrameHandler on_frame);
  // Queues a frame; asserts ready(). `attached` as in Stream::write().
  void send(const FrameHeader& header, std::string payload, FileDescriptor attached = {});
  // To be called at next_tick_ns() or later. Errors end the connection: timed_out (not
  // authenticated in time), kUnavailable (no sign of life).
  Status tick(uint64_t now_ns);
  [[nodiscard]] uint64_t next_tick_ns() const noexcept;  // UINT64_MAX: never

  // What is to be written. After consuming, tell note_written().
  [[nodiscard]] OutputQueue& output() noexcept { return output_; }
  [[nodiscard]] const OutputQueue& output() const noexcept { return output_; }
  void note_written(uint64_t now_ns) noexcept { last_written_ns_ = now_ns; }
  // Whether bytes are being read at all: silence means nothing while we do not listen.
  void set_reading(bool reading, uint64_t now_ns) noexcept;

  [[nodiscard]] bool ready() const noexcept { return state_ == State::kReady; }
  // Why, once receive() or tick() has returned an error.
  [[nodiscard]] Refusal refusal() const noexcept { return refusal_; }
  [[nodiscard]] const Hello& hello() const noexcept { return hello_; }  // once ready()
  [[nodiscard]] uint64_t server_life() const noexcept;                  // once ready()
  [[nodiscard]] bool is_server() const noexcept {
    return std::holds_alternative<ServerHandshake>(handshake_);
  }
  [[nodiscard]] const ConnectionLimits& limits() const noexcept { return limits_; }

 private:
  enum class State { kHandshake, kReady, kBroken };
  Status broken(Refusal refusal, Status why);
  StatusOr<bool> take(const Frame& frame, FrameHandler on_frame);  // false: no further frames
  Status take_handshake(Bytes message);
  void queue(FrameHeader header, std::string payload, FileDescriptor attached);

  const ConnectionLimits limits_;
  State state_ = State::kHandshake;
  Refusal refusal_ = Refusal::count;
  std::variant<ClientHandshake, ServerHandshake> handshake_;
  Hello hello_;
  FrameDecoder decoder_{kHandshakePayloadBytesMax};
  OutputQueue output_;
  bool reading_ = true;
  const uint64_t born_ns_;
  uint64_t last_received_ns_;
  uint64_t last_written_ns_;
  uint64_t last_tick_ns_ = 0;
};

}  // namespace strata::transport
