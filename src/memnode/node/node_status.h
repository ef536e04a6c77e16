// What a memory node says about itself: for /status, /metrics and tests.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "daemon/node_values.h"
#include "memnode/host/fusion_host.h"
#include "memnode/service/pool_service.h"

namespace strata::memnode {

struct NodeStatus : daemon::NodeValues {
  std::string name;
  std::string cluster;
  uint64_t identity = 0;
  std::vector<std::string> addresses;  // that it listens on
  std::string status_address;
  std::string fabric;  // its address there; empty: none
  std::string pools_folder;
  uint64_t memory_bytes = 0;

  bool joined = false;  // a member at the moment
  uint64_t times_joined = 0;
  uint64_t lease_remaining_us = 0;
  std::string membership;  // why it is not a member

  std::vector<PoolStatus> pools;
  std::vector<Tenants::Use> tenants;
  std::optional<FusionHostStatus> fusion;  // of several servers that share pages here
};

}  // namespace strata::memnode
