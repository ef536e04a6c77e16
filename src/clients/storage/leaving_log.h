// A log one of whose replicas is about to leave, for whoever changes the placement.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "quorum/writer.h"

namespace strata::clients {

class LeavingLog {
 public:
  virtual ~LeavingLog() = default;
  // QC4 of quorum_client.h. The log acknowledges by both write quorums from the first call on,
  // until it follows a placement without that replica, or cancel_leave(). True: everything
  // acknowledged is durable by both. May block for the transport's thread.
  virtual bool prepare_leave(const std::string& key, uint64_t generation,
                             uint32_t write_quorum) = 0;
  virtual void cancel_leave() = 0;
  // By place: which replicas answer, and are not in trouble; some of them may be behind. May block
  // for the transport's thread.
  [[nodiscard]] virtual std::vector<bool> well() const = 0;
};

}  // namespace strata::clients
