// A Registry in an etcd v3 cluster, over its JSON gateway
// (docs/adr/2026-11-22-etcd-json-gateway.md).
//
//   EC1  A change is sent at most once, over a connection of its own. Only when it certainly was
//        not made, the next endpoint is tried. Reads and leases are tried at every endpoint.
//   EC2  All replies come from one etcd cluster, the first one that answered, and from no earlier
//        state of it than this client has seen: an etcd that was wiped or set back is refused
//        (kDataLoss, or kUnknown for a change) instead of giving versions out again (RG1).
//   EC3  A watch goes on behind the last change it passed on. If etcd has compacted what comes
//        next, it starts over with a snapshot.
//   EC4  A member that goes silent without closing its connections (stopped, frozen, cut off) is
//        noticed within two `watch_check_us`, and the watch goes on at the next endpoint.
// One thread per registry for watches, renewals and handlers; other calls run on their callers.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "registry/registry.h"

namespace strata::registry {

struct EtcdOptions {
  std::vector<std::string> endpoints;  // "http://127.0.0.1:2379"; plain http, no user
  uint64_t connect_us_max = 1'000'000;
  uint64_t watch_check_us = 2'000'000;
  uint64_t retry_us_min = 50'000;  // of a watch that lost its endpoint; doubles up to the next
  uint64_t retry_us_max = 1'000'000;
  size_t reply_bytes_max = 16u << 20;
};

// Does not contact anybody. kInvalidArgument: an endpoint is not of the form above.
StatusOr<std::unique_ptr<Registry>> make_etcd_registry(const EtcdOptions& options);

}  // namespace strata::registry
