#include "clients/fusion/remote_calls.h"

#include "base/clock.h"
#include "proto/calls/calls.h"

namespace strata::clients {

StatusOr<std::string> RemoteCalls::call_as_is(uint16_t method, Bytes request, uint64_t wait_us) {
  const auto call = proto::call_of(method, monotonic_us() + call_us_max_ + wait_us, epoch());
  transport::BlockingReply reply;
  STRATA_RETURN_IF_ERROR(channel_->call(call, request, &reply));
  return std::move(reply.payload);
}

// FC50
StatusOr<std::string> RemoteCalls::call(uint16_t method, Bytes request, uint64_t wait_us) {
  StatusOr<std::string> reply = call_as_is(method, request, wait_us);
  if (is_withdrawn(reply.status())) return error_peer_down(std::string(reply.status().message()));
  return reply;
}

}  // namespace strata::clients
