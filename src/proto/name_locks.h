// What several servers that write the same tables and the memory node say to each other about locks
// on names of tables, about spaces that were dropped, and about pages to be used again. As for
// pages (FW5) nothing relies on the order in which these arrive, nor on their arriving once.
#pragma once

#include <cstdint>
#include <string>

#include "base/ids.h"
#include "proto/page_locks.h"

namespace strata::proto {

// kShared: of servers that nobody who uses the name is wanted beside; any number of them. The value
// between is for a mode of one server that lets readers go on (A), which nobody asks for yet.
enum class NameMode : uint8_t { kNone = 0, kUse = 1, kShared = 2, kExclusive = 4 };

using NameCaller = PageCaller;

// Server: it wants the name in this mode. kNone: it does not want what it asked for by this number
// any more.
struct NameAsk {
  std::string name = {};
  NameMode mode = NameMode::kUse;
  uint64_t ask = 0;  // the server's own; grows
};

// Memory node: the server has the name in that mode. It may have an older grant to use it beside.
struct NameGrant {
  std::string name = {};
  NameMode mode = NameMode::kUse;
  uint64_t ask = 0;
  uint64_t number = 0;  // of this grant; grows
};

// Memory node: others want the name.
struct NameGiveUp {
  std::string name = {};
  NameMode mode = NameMode::kUse;  // of the grant
  uint64_t number = 0;
};

// Server: of this grant it has so much left. An exclusive grant of which kUse is left is one to use
// the name from then on, and the only one that the server has. Of a shared one nothing is left.
struct NameReport {
  std::string name = {};
  uint64_t number = 0;
  NameMode keeps = NameMode::kNone;
};

// Memory node: a space was dropped for good, leave it.
struct SpaceLeave {
  SpaceId space = {};
};
// Memory node, to who dropped it: all have left it, or are gone.
struct SpaceIsLeft {
  SpaceId space = {};
};

// Memory node: a round has begun (space/page_reuse.h). Say so once what is under way now has ended.
struct ReuseAsk {
  uint64_t round = 0;
};

}  // namespace strata::proto
