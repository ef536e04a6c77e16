#include "proto/calls/calls.h"

#include <utility>

#include "proto/methods.h"

namespace strata::proto {

transport::CallOptions call_of(uint16_t method, uint64_t deadline_us, Epoch epoch) noexcept {
  const MethodTraits& traits = traits_of(method);
  transport::CallOptions call;
  call.method = method;
  call.epoch = epoch.value;
  call.deadline_us = deadline_us;
  call.idempotent = traits.again == Again::kRepeat;
  call.layout = traits.layout;
  return call;
}

void serve(transport::RpcServer* server, uint16_t method, transport::Handler handler) {
  const MethodTraits& traits = traits_of(method);
  server->handle(method, std::move(handler), {traits.name, traits.layout});
}

}  // namespace strata::proto
