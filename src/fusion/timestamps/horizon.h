// The oldest snapshot that any server may still read, from what each says of its own views. A pure
// state machine.
//
//   FU12  The horizon is the least of what the servers that count have said last, and never
//         shrinks. A server counts from when it asks to join, before it gets a lease; until it has
//         said something the horizon stays where it is. It counts until it has left or been fenced
//         and its last lease has ended: nothing that it still reads is anybody's answer then.
//   FT4  What a server said is true for good (MW3): views that it opens later are younger. So an
//        old word only holds the horizon back. After a change of the memory node all words are
//        gone, and every member has to say its own again.
//   FT5  Nobody is told a horizon before a durable record says it: a successor goes on from no less
//        than anybody was ever told (MW2), whoever has died with the memory node.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "base/ids.h"
#include "proto/fusion.h"

namespace strata::fusion {

class Horizon {
 public:
  explicit Horizon(uint64_t durable_horizon) noexcept;
  void joined(NodeId server);  // does nothing if it counts already
  void ended(NodeId server);
  void said(NodeId server, Cts oldest_view, uint64_t bound);
  // To be made durable, then told.
  uint64_t wanted();
  // Below these everything of the server is finished and visible to all (MW10).
  [[nodiscard]] std::vector<proto::HeartbeatReply::Bound> bounds() const;

 private:
  struct Said {
    bool said = false;
    uint64_t oldest_view = 0;
    uint64_t bound = 0;
  };
  uint64_t horizon_;
  std::map<uint8_t, Said> servers_;
};

}  // namespace strata::fusion
