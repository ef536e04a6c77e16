// When a page that left a tree is known to no operation of any server: the memory node's half of
// PageReuse (space/page_reuse.h). A pure state machine: no I/O and no clock; time is passed in. Not
// thread-safe.
//
//   RU1  Rounds are numbered over all servers. A server that says "round 7" has been asked for
//        round 7 or a later one, and all operations that were under way on it when it was asked
//        have ended: so have those from before any earlier round. One number for each server is all
//        there is to remember.
//   RU2  A round has ended for who began it when every other member has said so of it or of a later
//        one. Who joined after it began has no operation that is older (MW14).
//   RU3  A server that was fenced counts until it is released: what it read was read under its
//        lease, and that is over then. Who left has ended its operations.
//   RU4  What is said again, late, or never answered changes nothing: numbers only grow.
//   RU5  A memory node in the place of one that is gone goes on with the largest round that any
//        server has heard of, and asks all for it: then every earlier one has ended, too.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "proto/name_locks.h"

namespace strata::fusion {

struct ReuseRoundsOptions {
  uint64_t ask_again_us = 500'000;
};

class ReuseRounds {
 public:
  struct Outgoing {
    NodeId server;
    uint64_t life = 0;
    proto::ReuseAsk message;
  };

  ReuseRounds(const ReuseRoundsOptions& options, Epoch epoch) : options_(options), epoch_(epoch) {}

  // As in fusion/names/names.h.
  Status joined(NodeId server, uint64_t life);
  void left(NodeId server, uint64_t life);
  void fence(NodeId server);
  void release_fenced(NodeId server);

  // RU5. Of a member that was there before.
  void resumed(NodeId server, uint64_t round);

  // Errors of all three: fenced. kInvalidArgument: there has been no such round.
  StatusOr<uint64_t> begin(const proto::NameCaller& caller, uint64_t now_us);
  StatusOr<bool> ended(const proto::NameCaller& caller, uint64_t round) const;
  Status report(const proto::NameCaller& caller, uint64_t round);

  std::vector<Outgoing> take_outgoing();
  void tick(uint64_t now_us);
  [[nodiscard]] uint64_t last_round() const noexcept { return last_round_; }

 private:
  struct Member {
    uint64_t life = 0;
    bool fenced = false;
    uint64_t reported = 0;
    uint64_t asked_us = 0;
  };
  Status check_caller(const proto::NameCaller& caller) const;
  void ask(uint8_t server, Member* member, uint64_t now_us);

  const ReuseRoundsOptions options_;
  const Epoch epoch_;
  std::map<uint8_t, Member> members_;
  uint64_t last_round_ = 0;
  std::vector<Outgoing> outgoing_;
};

}  // namespace strata::fusion
