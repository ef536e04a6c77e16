// The oldest snapshot that any node of a database may still read (PolarDB-MP §4.1, "global minimum
// view"). Owned by txn. A node that is alone has none and asks its own views only
// (TrxSystemOptions::horizon = nullptr): no call is made then.
//
// Everything that forgets history asks it: purge of deleted records and undo, truncation of status
// pages, and with that "a status entry of another node that is missing was visible to everybody".
//
//   MW1  The horizon never passes the snapshot of a view that is open, or will be opened, on a node
//        that has joined and has not left. It never shrinks.
//   MW2  newest() is not older than anything that any node has been told before the call. Whoever
//        decides under a page latch whether the purge of that page has come by already asks this
//        one: purge works from what *another* node may have been told.
//   MW3  What a node says of its own views stays true until it says something else: views that it
//        opens later are younger. So the last word of each node is enough, however old it is, and a
//        node that is slow or silent holds the horizon back and never makes it wrong.
#pragma once

#include "base/ids.h"
#include "base/status.h"

namespace strata {

// What a horizon asks a node that has joined. Thread-safe.
class OwnViews {
 public:
  virtual ~OwnViews() = default;
  // No view of this node has an older snapshot, and none that is opened later will have. The clock
  // is read before the views, and views are registered before they read the clock (T8). May read
  // the timestamp source; no latch is taken.
  [[nodiscard]] virtual Cts oldest_own_view() const = 0;
};

class ViewHorizon {
 public:
  virtual ~ViewHorizon() = default;

  // Before the node's first view and its first purge: from here on its views count. The horizon
  // does not go back for it, so views opened from now on are younger than what was told before.
  // `views` outlives leave(). Blocks. Errors: kUnavailable, kFailedPrecondition (fenced).
  virtual Status join(NodeId node, const OwnViews* views) = 0;
  // The node has no view open and opens none any more. When it returns nobody asks `views` again.
  virtual void leave(NodeId node) noexcept = 0;

  // The horizon as far as this node has heard: perhaps an old one, which is as right (MW3). Called
  // per commit, and with mutexes and latches held: no call to another node, never blocks.
  [[nodiscard]] virtual Cts known() const noexcept = 0;
  // MW2. One read from another node at most; may be called with page latches held, so it waits for
  // nothing that a page latch of any node may hold up. Errors: kUnavailable.
  virtual StatusOr<Cts> newest() = 0;
};

}  // namespace strata
