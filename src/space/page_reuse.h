// When a page that left a tree may be used again, with readers on several nodes (K5). Owned by
// space. A node that is alone asks its own epochs only (SpaceOptions::reuse = nullptr).
//
//   MW13  A page that was retired is free once every operation that was under way on any node, when
//         a round begun *after* the page was unlinked asked that node, has ended. Operations that
//         begin later do not find the page: nothing leads to it any more.
//   MW14  A node that is gone has no operations. One that joins later has none that is older.
#pragma once

#include <cstdint>

#include "base/ids.h"
#include "base/status.h"

namespace strata {

// What a node tells of its own operations. Thread-safe; no I/O.
class OwnOperations {
 public:
  virtual ~OwnOperations() = default;
  // A mark for ended(): stands for all operations that are under way now.
  [[nodiscard]] virtual uint64_t mark() const noexcept = 0;
  virtual bool ended(uint64_t mark) noexcept = 0;
};

class PageReuse {
 public:
  virtual ~PageReuse() = default;
  // leave(): nobody asks `own` any more when it returns.
  virtual Status join(NodeId node, OwnOperations* own) = 0;
  virtual void leave(NodeId node) noexcept = 0;
  // Begins a round: every other node is asked for a mark, during the call or later. Called by purge
  // now and then, for all pages retired since; with no latch held and outside any epoch. May call
  // other nodes. Errors: kUnavailable; the pages stay pending and are tried again.
  virtual StatusOr<uint64_t> begin_round() = 0;
  // Whether every node has said so of the round. Rounds end in order.
  virtual StatusOr<bool> round_ended(uint64_t round) = 0;
};

}  // namespace strata
