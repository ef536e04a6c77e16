// Mutual authentication, before any other frame. Pure: payloads in, payloads out.
//
//     client                                                     server
//     HELLO      manner, channel, nonce C                   ->
//                                  <-  CHALLENGE   nonce S, HMAC("server", HELLO, S)
//     PROOF      HMAC("client", HELLO, CHALLENGE)            ->
//                                                       <-  WELCOME   life of the server
//
//   HS1  Neither side sends or accepts anything else before the other has proven that it knows the
//        secret: the client after CHALLENGE, the server after PROOF.
//   HS2  Each proof covers both nonces, so a recorded handshake is worth nothing, and names the
//        role that gives it, so neither side can be made to compute the other's.
//   HS3  A message out of turn, of another length or with another proof ends the connection.
// The frames after it are not authenticated one by one: the network is taken to be private.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "base/status.h"
#include "transport/secret.h"

namespace strata::transport {

// How a connection is kept.
enum class Manner : uint8_t {
  kLively =
      1,  // many calls at once; heartbeats both ways, dead after a second without a sign of life
  kQuiet = 2,  // one call at a time, and silence between them; a deadline on each call
};

struct Hello {
  Manner manner = Manner::kQuiet;
  uint64_t channel_id = 0;  // 0: none. The newest connection of a channel replaces the one before
};

constexpr size_t kNonceBytes = 32;
constexpr uint32_t kHandshakePayloadBytesMax = 80;

class ClientHandshake {
 public:
  ClientHandshake(const Secret& secret, const Hello& hello, Entropy* entropy);
  [[nodiscard]] const std::string& hello() const noexcept { return hello_; }  // to be sent first
  // Takes a message of the server. Returns what to send next, empty after WELCOME. Errors:
  // wrong_secret (the server does not know ours), kDataLoss (no handshake).
  StatusOr<std::string> receive(Bytes message);
  [[nodiscard]] bool done() const noexcept { return state_ == State::kDone; }
  [[nodiscard]] uint64_t server_life() const noexcept { return server_life_; }

 private:
  enum class State { kHelloSent, kProofSent, kDone };  // receive() goes to the next
  Secret secret_;
  State state_ = State::kHelloSent;
  std::string hello_;
  uint64_t server_life_ = 0;
};

class ServerHandshake {
 public:
  // `server_life`: another number each time the server starts.
  ServerHandshake(const Secret& secret, uint64_t server_life, Entropy* entropy);
  // As ClientHandshake::receive(). wrong_secret: the client does not know ours.
  StatusOr<std::string> receive(Bytes message);
  [[nodiscard]] bool done() const noexcept { return state_ == State::kDone; }
  [[nodiscard]] const Hello& hello() const noexcept { return hello_; }  // what the client said

 private:
  enum class State { kWaiting, kChallenged, kDone };  // receive() goes to the next
  StatusOr<std::string> challenge(Bytes hello);
  StatusOr<std::string> welcome(Bytes proof);
  Secret secret_;
  State state_ = State::kWaiting;
  uint64_t server_life_;
  std::array<char, kNonceBytes> nonce_;
  Hello hello_;
  Mac expected_{};
};

}  // namespace strata::transport
