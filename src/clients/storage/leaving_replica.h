// What has a replica on every storage node of the group, the log or the pages, when one of those is
// about to leave; for whoever changes the placement.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace strata::clients {

class LeavingReplica {
 public:
  virtual ~LeavingReplica() = default;
  // From the first call on both write quorums are needed, until it follows a placement without that
  // replica, or cancel_leave(): QC4 of quorum_client.h, WN7 of write_sessions.h. True: what was
  // acknowledged needs nothing of the one that leaves. May block: for the transport's thread, or
  // for a call to the registry.
  virtual bool prepare_leave(const std::string& key, uint64_t generation,
                             uint32_t write_quorum) = 0;
  virtual void cancel_leave() = 0;
  // By place: which replicas answer, and are not in trouble; of the log's some may be behind. May
  // block for the transport's thread.
  [[nodiscard]] virtual std::vector<bool> well() const = 0;
};

}  // namespace strata::clients
