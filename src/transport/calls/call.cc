#include "transport/calls/call.h"

#include <string_view>

#include "transport/calls/frame.h"

namespace strata::transport {

Reply reply_of(const FrameHeader& header, Bytes payload) {
  Reply reply;
  reply.answered = true;
  reply.epoch = header.epoch;
  reply.service_ns = header.service_ns;
  if (header.status == 0) {
    reply.payload = payload;
  } else {
    reply.status = status_from_wire(header.status, payload);
  }
  return reply;
}

Status lost_call(bool sent, bool in_time, bool idempotent, const Status& why) {
  const std::string_view reason(why.message().data(), why.message().size());
  if (sent && !idempotent)
    return error_outcome_unknown(in_time ? reason : "no reply before the deadline");
  if (!in_time) return error_timed_out("deadline of a call");
  return is_wrong_secret(why) ? error_wrong_secret(reason) : error_peer_down(reason);
}

}  // namespace strata::transport
