#include "transport/counters.h"

namespace strata::transport {

const char* refusal_name(Refusal refusal) noexcept {
  switch (refusal) {
    case Refusal::kTooMany:
      return "too_many";
    case Refusal::kCredentials:
      return "credentials";
    case Refusal::kHandshakeTime:
      return "handshake_time";
    case Refusal::kWrongSecret:
      return "wrong_secret";
    case Refusal::kBadFrame:
      return "bad_frame";
    case Refusal::kTooLarge:
      return "too_large";
    case Refusal::kOutOfTurn:
      return "out_of_turn";
    case Refusal::kNoSignOfLife:
      return "no_sign_of_life";
    case Refusal::count:
      break;
  }
  return "?";
}

}  // namespace strata::transport
