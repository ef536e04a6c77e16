// Both ends of the calls of methods.def: how one is made over transport/, and how it is served. All
// of methods.def that the other end relies on goes along, so nobody can forget a part of it.
//   MD3  A call of methods.def is made with the options of call_of() and served through serve().
//        A request made otherwise tells no layout, and is refused where it is served (RS7).
#pragma once

#include <cstdint>

#include "base/ids.h"
#include "transport/calls/call.h"
#include "transport/calls/rpc_server.h"

namespace strata::proto {

// `deadline_us` as CallOptions has it. Asserts that there is such a method. Allocates nothing.
[[nodiscard]] transport::CallOptions call_of(uint16_t method, uint64_t deadline_us,
                                             Epoch epoch = {}) noexcept;

// RpcServer::handle(), of a method that methods.def has.
void serve(transport::RpcServer* server, uint16_t method, transport::Handler handler);

}  // namespace strata::proto
