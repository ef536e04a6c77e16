// Joining a cluster and opening a kernel on it, anew when a storage node goes away in between.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/diag.h"
#include "base/status.h"

namespace strata::clients {

// A start reads the log from the one node whose log was chosen; until the epoch has begun no other
// node is known to have all of it. When that node goes away the choice has to be made again, with a
// new epoch, which is what a restart of the process would do.
//   `open` returns a StatusOr and leaves nothing behind when it fails. It is called again after
//   what passes or may be done twice as long as `timeout_us` is not over, kStartsMax times at most:
//   each time another node was lost, or nodes come and go, which is for the operator to see.
constexpr int kStartsMax = 4;

template <typename Open>
auto start_again(uint64_t timeout_us, Open open) -> decltype(open()) {
  const uint64_t until_us = monotonic_us() + timeout_us;
  for (int start = 1;; ++start) {
    auto opened = open();
    if (opened.ok() || !may_be_repeated(opened.status())) return opened;
    if (start == kStartsMax || monotonic_us() >= until_us) return opened;
    diag(Severity::kWarning, "the start begins again, with the storage nodes that are left: %s",
         std::string(opened.status().message()).c_str());
  }
}

}  // namespace strata::clients
