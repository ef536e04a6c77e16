// What the parts of FusionService share.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <utility>

#include "base/status.h"
#include "memnode/fusion/fusion_service.h"
#include "proto/methods.h"

namespace strata::memnode {
namespace internal {

inline void count(std::atomic<uint64_t>* counter, uint64_t n = 1) {
  counter->fetch_add(n, std::memory_order_relaxed);
}

// How long a call may wait that asks for that.
inline uint64_t wait_of(uint64_t wait_us) {
  return std::min<uint64_t>(wait_us, proto::kFusionWaitUsMax);
}

inline Status not_yours() {
  return error_fenced(
      "this server is fenced, has left, or has never joined; to do: start it again");
}
inline Status has_ended() {
  return error_withdrawn("this memory node serves under this epoch no more");
}

}  // namespace internal

// A request becomes a task, which answers it.
template <class Message>
void FusionService::serve(StatusOr<Message> request,
                          void (FusionService::*run)(const Message&, const To&), const To& to,
                          uint64_t bytes) {
  if (!request.ok()) return refuse(request.status(), to);
  if (post([this, run, to, asked = *std::move(request)] { (this->*run)(asked, to); }, bytes))
    return;
  internal::count(&counters_.too_many_requests);
  to->fail(error_busy("too many requests wait at the memory node"));
}

}  // namespace strata::memnode
