// What a storage node says about itself: for /status, /metrics and tests.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "daemon/node_values.h"

namespace strata::storenode {

struct NodeStatus : daemon::NodeValues {
  std::string name;
  std::string cluster;
  uint64_t identity = 0;
  uint64_t database_id = 0;
  std::string profile;
  uint32_t group = 0;
  std::vector<std::string> group_nodes;  // by replica
  uint32_t write_quorum = 0;
  uint64_t placement_generation = 0;
  std::string out_of_group;            // why it serves nothing any more; empty: it is in its group
  std::vector<std::string> addresses;  // that it listens on
  std::string status_address;

  bool joined = false;  // a member at the moment
  uint64_t times_joined = 0;
  uint64_t lease_remaining_us = 0;

  struct Stream {
    uint32_t stream = 0;
    uint64_t promised_epoch = 0, last_epoch = 0;
    bool voting = false;
    uint64_t log_begin = 0, log_end = 0, quorum_durable = 0;
    uint64_t segments = 0, damages = 0;
    uint64_t scanned = 0, replayed = 0, needed_from = 0;
    std::string failure;
  };
  std::vector<Stream> streams;

  std::string failure;     // what keeps the log from being replayed
  std::string trouble;     // what failed in the background and is tried again
  std::string membership;  // why it is not a member
};

}  // namespace strata::storenode
