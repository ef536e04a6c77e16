// Names of tables, dropped spaces and rounds of page reuse in a memory node: the three state
// machines (src/fusion/names, src/fusion/reuse) as one, and what there is to be said to each server
// until it asks for it. A pure state machine: no I/O and no clock; time is passed in. Not
// thread-safe.
//
//   FV10  What was not told yet is told once, however often it was said again meanwhile: a grant
//         and what is wanted back by its number, a space by its own, of rounds the newest one.
//         Beyond said_max names of a server the rest is thrown away and counted; servers ask again
//         for what they lack, and the state machines for what they want back (FW5). Nothing is kept
//         for a server that was fenced or has left.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "fusion/names/dropped_spaces.h"
#include "fusion/names/names.h"
#include "fusion/reuse/reuse_rounds.h"
#include "proto/name_messages.h"

namespace strata::memnode {

struct FusionNamesOptions {
  fusion::NamesOptions names = {};
  fusion::DroppedSpacesOptions spaces = {};
  fusion::ReuseRoundsOptions reuse = {};
  size_t said_max = 4096;  // names, and spaces, to be told to one server
};

struct FusionNamesCounters {
  uint64_t told = 0, untold = 0;
};

class FusionNames {
 public:
  FusionNames(const FusionNamesOptions& options, Epoch epoch);

  // As the authority decides (fusion/names/names.h). Errors of joined(): in_use.
  Status joined(NodeId server, uint64_t life);
  void left(NodeId server, uint64_t life);
  void fence(NodeId server);
  void release_fenced(NodeId server);

  // In the place of a memory node that is gone (NL9, RU5).
  void recover() noexcept { names_.recover(); }
  Status holds(const proto::NameCaller& caller, const std::vector<proto::HeldName>& names) {
    return names_.holds(caller, names);
  }
  void resumed(NodeId server, uint64_t number, uint64_t round);
  void lost(NodeId place) { names_.lost(place); }
  void recovered() noexcept { names_.recovered(); }

  // What servers say. Errors: those of the state machines.
  Status ask(const proto::AskNamesRequest& request, uint64_t now_us);
  Status report(const proto::ReportNamesRequest& request, uint64_t now_us);
  // What is no dead place is nobody's to adopt: nothing is done.
  Status adopted(const proto::NameCaller& caller, NodeId place, uint64_t now_us);
  StatusOr<bool> dropped(const proto::SpaceDroppedRequest& request, uint64_t now_us);
  Status has_left(const proto::LeftSpacesRequest& request);
  StatusOr<uint64_t> begin_round(const proto::NameCaller& caller, uint64_t now_us);
  StatusOr<bool> round_ended(const proto::ReuseRoundRequest& request) const;
  Status report_round(const proto::ReuseRoundRequest& request);
  void tick(uint64_t now_us);

  // What is to be told to a server, as much as fits into one message.
  [[nodiscard]] bool has_news(NodeId server) const;
  proto::NameNews take_news(NodeId server);

  [[nodiscard]] const fusion::Names& names() const noexcept { return names_; }
  [[nodiscard]] const fusion::DroppedSpaces& spaces() const noexcept { return spaces_; }
  [[nodiscard]] const fusion::ReuseRounds& rounds() const noexcept { return rounds_; }
  [[nodiscard]] const FusionNamesCounters& counters() const noexcept { return counters_; }

 private:
  struct News {
    uint64_t life = 0;
    std::map<uint64_t, proto::NameGrant> grants;     // by number
    std::map<uint64_t, proto::NameGiveUp> give_ups;  // by number of the grant
    std::set<SpaceId> leave, left;
    uint64_t round = 0;
    [[nodiscard]] bool empty() const noexcept {
      return grants.empty() && give_ups.empty() && leave.empty() && left.empty() && round == 0;
    }
  };
  News* news_of(NodeId server, uint64_t life);
  void collect();  // what the state machines have to say

  const FusionNamesOptions options_;
  fusion::Names names_;
  fusion::DroppedSpaces spaces_;
  fusion::ReuseRounds rounds_;
  std::map<uint8_t, News> news_;  // of each member
  FusionNamesCounters counters_;
};

}  // namespace strata::memnode
