#include "transport/calls/handshake.h"

namespace strata::transport {
namespace {

enum MessageType : uint8_t { kHello = 1, kChallenge = 2, kProof = 3, kWelcome = 4 };

constexpr size_t kHelloBytes = 1 + 1 + 8 + kNonceBytes;
constexpr size_t kChallengeBytes = 1 + kNonceBytes + kMacBytes;
constexpr size_t kProofBytes = 1 + kMacBytes;
constexpr size_t kWelcomeBytes = 1 + 8;
static_assert(kChallengeBytes <= kHandshakePayloadBytesMax);

bool is(Bytes message, MessageType type, size_t bytes) noexcept {
  return message.size() == bytes && static_cast<uint8_t>(message[0]) == type;
}

Status out_of_turn() { return error_corruption("not the handshake message expected"); }

// HS2: what a proof covers. `label` tells the two proofs apart.
Mac prove(const Secret& secret, Bytes label, Bytes hello, Bytes challenge) {
  std::string covered(label);
  covered.append(hello).append(challenge);
  return hmac_sha256(secret, covered);
}
constexpr Bytes kServerLabel = "strata transport 1 server";
constexpr Bytes kClientLabel = "strata transport 1 client";

Bytes view(const Mac& mac) noexcept { return {mac.data(), mac.size()}; }

}  // namespace

ClientHandshake::ClientHandshake(const Secret& secret, const Hello& hello, Entropy* entropy)
    : secret_(secret) {
  append_u8(&hello_, kHello);
  append_u8(&hello_, static_cast<uint8_t>(hello.manner));
  append_u64(&hello_, hello.channel_id);
  hello_.resize(kHelloBytes);
  entropy->fill(hello_.data() + kHelloBytes - kNonceBytes, kNonceBytes);
}

StatusOr<std::string> ClientHandshake::receive(Bytes message) {
  if (state_ == State::kHelloSent && is(message, kChallenge, kChallengeBytes)) {
    const Bytes nonce_part = message.substr(0, 1 + kNonceBytes);
    if (!same_bytes(view(prove(secret_, kServerLabel, hello_, nonce_part)),
                    message.substr(nonce_part.size())))
      return error_wrong_secret("the server has another secret");
    std::string proof;
    append_u8(&proof, kProof);
    proof.append(view(prove(secret_, kClientLabel, hello_, message)));
    state_ = State::kProofSent;
    return proof;
  }
  if (state_ == State::kProofSent && is(message, kWelcome, kWelcomeBytes)) {
    server_life_ = load_u64(message.data() + 1);
    state_ = State::kDone;
    return std::string();
  }
  return out_of_turn();
}

ServerHandshake::ServerHandshake(const Secret& secret, uint64_t server_life, Entropy* entropy)
    : secret_(secret), server_life_(server_life) {
  entropy->fill(nonce_.data(), nonce_.size());
}

StatusOr<std::string> ServerHandshake::receive(Bytes message) {
  if (state_ == State::kWaiting && is(message, kHello, kHelloBytes)) return challenge(message);
  if (state_ == State::kChallenged && is(message, kProof, kProofBytes)) return welcome(message);
  return out_of_turn();
}

StatusOr<std::string> ServerHandshake::challenge(Bytes hello) {
  ByteReader reader(hello.substr(1));
  hello_.manner = static_cast<Manner>(reader.u8());
  hello_.channel_id = reader.u64();
  if (hello_.manner != Manner::kLively && hello_.manner != Manner::kQuiet)
    return error_corruption("unknown manner of connection");
  std::string answer;
  append_u8(&answer, kChallenge);
  answer.append(nonce_.data(), nonce_.size());
  answer.append(view(prove(secret_, kServerLabel, hello, answer)));
  expected_ = prove(secret_, kClientLabel, hello, answer);
  state_ = State::kChallenged;
  return answer;
}

StatusOr<std::string> ServerHandshake::welcome(Bytes proof) {
  if (!same_bytes(view(expected_), proof.substr(1)))
    return error_wrong_secret("the client has another secret");
  std::string answer;
  append_u8(&answer, kWelcome);
  append_u64(&answer, server_life_);
  state_ = State::kDone;
  return answer;
}

}  // namespace strata::transport
