// The other end of a call as a build has it that lays the method's messages out differently.
#pragma once

#include <cstdint>
#include <utility>

#include "proto/calls/calls.h"
#include "proto/methods.h"

namespace strata::proto::testing {

inline uint16_t other_layout(uint16_t method) {
  const auto other = static_cast<uint16_t>(traits_of(method).layout ^ 0x5a5a);
  return other == 0 ? uint16_t{1} : other;
}

inline transport::CallOptions call_of_other_build(uint16_t method, uint64_t deadline_us) {
  transport::CallOptions call = call_of(method, deadline_us);
  call.layout = other_layout(method);
  return call;
}

inline void serve_as_other_build(transport::RpcServer* server, uint16_t method,
                                 transport::Handler handler) {
  server->handle(method, std::move(handler), {traits_of(method).name, other_layout(method)});
}

}  // namespace strata::proto::testing
