// A call as its caller sees it: what is asked, and what came of it.
//
//   CA1  A call ends in one of these ways, told apart by `answered` and the code:
//        answered            the handler ran and this is what it said, OK or not
//        kUnavailable        never sent whole, so the handler did not run and will not
//        timed_out           the same, because the deadline came first
//        wrong_secret        the same, because the two processes have different secrets
//        kUnknown            sent, and then the connection or the time was lost: the handler may
//                            have run, or may run yet, or never. For `idempotent` calls, where that
//                            does not matter, kUnavailable or timed_out instead.
//        kInvalidArgument, kResourceExhausted   not sent: a call that cannot be made; too many wait
#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "base/status.h"
#include "transport/counters.h"

namespace strata::transport {

struct CallOptions {
  uint16_t method = 0;       // 1..kMethodsMax-1
  uint64_t epoch = 0;        // given to the handler
  uint64_t deadline_us = 0;  // on the executor's clock; for blocking calls base/clock.h's
  bool idempotent = false;   // may run more than once, and its outcome is not lost with its reply
  // A digest of how the method's messages are laid out; 0: nothing says how (RS7 of rpc_server.h).
  uint16_t layout = 0;
  // Wait for a connection until the deadline, instead of ending as soon as connecting has failed.
  bool wait_for_connection = false;
};

struct Reply {
  Status status = {};
  bool answered = false;    // by the handler
  uint64_t epoch = 0;       // the server's, if answered
  uint64_t service_ns = 0;  // how long the server took, if answered
  Bytes payload = {};       // empty unless OK
};

// The reply's frame, as a caller gets it.
struct FrameHeader;
Reply reply_of(const FrameHeader& header, Bytes payload);

// CA1, for a call whose reply did not come. `sent`: as a whole. `in_time`: the deadline is not why.
Status lost_call(bool sent, bool in_time, bool idempotent, const Status& why);

// CA1: of a call that is not `idempotent`, that its handler did not run and will not.
[[nodiscard]] inline bool did_not_run(const Status& status) noexcept {
  return is_peer_down(status) || is_timed_out(status) || is_wrong_secret(status);
}

}  // namespace strata::transport
