// Who still may be at a space that was dropped: the memory node's half of
// SchemaChanges::space_dropped(). A pure state machine: no I/O and no clock; time is passed in. Not
// thread-safe.
//
//   NL6  A space is left once every server that was a member when its drop was announced has said
//        that it has left it, has left, or was fenced and released: whatever it may have read or
//        written of it was under a lease that is over (MW17). A server that joins later finds
//        the space in no definition.
//   NL7  What is said again changes nothing: numbers of spaces are never used again (K2), so who
//        has left one has left it for ever. A space is remembered until the server that dropped it
//        has heard that it is left; if that is lost, all are asked once more.
//   NL8  A server that has dropped spaces and ends is not waited for: whoever finishes its drops
//        announces them again.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <variant>
#include <vector>

#include "absl/types/span.h"
#include "base/ids.h"
#include "base/status.h"
#include "proto/name_locks.h"

namespace strata::fusion {

struct DroppedSpacesOptions {
  uint64_t ask_again_us = 200'000;
  size_t of_server_max = 4096;  // that one server may announce at once
};

class DroppedSpaces {
 public:
  struct Outgoing {
    NodeId server;
    uint64_t life = 0;
    std::variant<proto::SpaceLeave, proto::SpaceIsLeft> message;
  };

  DroppedSpaces(const DroppedSpacesOptions& options, Epoch epoch)
      : options_(options), epoch_(epoch) {}

  // As in names.h.
  Status joined(NodeId server, uint64_t life);
  void left(NodeId server, uint64_t life);
  void fence(NodeId server);
  void release_fenced(NodeId server);

  // Whether all others have left it; if not, SpaceIsLeft follows. May be asked any number of times.
  // Errors: fenced, busy (the server has announced too many already).
  StatusOr<bool> dropped(const proto::NameCaller& caller, SpaceId space, uint64_t now_us);
  // Errors: fenced.
  Status has_left(const proto::NameCaller& caller, absl::Span<const SpaceId> spaces);

  std::vector<Outgoing> take_outgoing();
  void tick(uint64_t now_us);
  [[nodiscard]] uint64_t spaces() const noexcept { return spaces_.size(); }

 private:
  struct Member {
    uint64_t life = 0;
    bool fenced = false;
    size_t announced = 0;
  };
  struct Space {
    NodeId dropped_by;
    std::set<uint8_t> awaited;
    uint64_t asked_us = 0;
    bool told = false;  // it is left, and that was sent
  };
  using Spaces = std::map<uint32_t, Space>;

  Status check_caller(const proto::NameCaller& caller) const;
  void ask(Spaces::iterator it, uint64_t now_us);
  void gone(NodeId server);
  void heard(Spaces::iterator it, NodeId server);
  void forget(Spaces::iterator it);

  const DroppedSpacesOptions options_;
  const Epoch epoch_;
  std::map<uint8_t, Member> members_;
  Spaces spaces_;
  std::vector<Outgoing> outgoing_;
};

}  // namespace strata::fusion
