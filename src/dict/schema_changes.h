// Which node uses which table, and who changes its definition. Owned by dict. A node that is alone
// has none: its own table map, and the metadata locks of the server above it, are all there is.
//
// A table has a lock by its name (a name without a table has one, too):
//   use        shared between nodes; kept until another node wants more ("lazily"), so that opening
//   a
//              table that was used before asks nobody
//   exclusive  of one node, for a statement that changes the definition, from before its first look
//              at the table until its change is published or undone
//   shared     of any number of nodes, each for as long as its statements say; nobody else uses the
//              name meanwhile. Only of names that are a right, not a table's (engine: the right to
//              change the rows of one); such a name is never locked exclusively
//
//   MW15  A node remembers something of a table (that it exists, that it does not, its definition,
//         what it has found in the dictionary of it) only while it holds `use` or `exclusive`. It
//         forgets it before it gives the lock up, and no transaction of it that has changed the
//         table, or may still do so, is under way then.
//         Who remembers tables above the kernel does so under the same lock (engine::TableUsers).
//   MW16  A change of a definition is published on the node that makes it before its exclusive lock
//         goes. So whoever gets the lock next reads the new definition in the dictionary.
//   MW17  A space that a committed change has dropped has left every node (space_dropped()) before
//         its file is deleted: no node reads or writes a page of it afterwards.
//   MW18  Two exclusive locks of one node (RENAME) are asked for in the order of their names. Who
//         waits for a lock gives up what is asked of it meanwhile, unless a statement of its own
//         stands in the way; that one ends by its timeout.
//   MW23  What a node that was killed had exclusively its next life alone gets from join() to
//         has_recovered(): what it has left half made is gone before anybody else looks.
#pragma once

#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "base/ids.h"
#include "base/status.h"
#include "base/wait_interrupt.h"

namespace strata {

// A node, as the others see it. Thread-safe; called by threads of the service.
class SchemaUser {
 public:
  virtual ~SchemaUser() = default;
  // MW15, for the table of this name (table_key()). Blocks until the transactions that use it have
  // ended. kDeadlineExceeded: some have not, and the node keeps the lock.
  virtual Status give_up(Bytes name, uint64_t timeout_us) = 0;
  // MW17. Blocks until nothing of this node is at the space any more.
  virtual Status leave_space(SpaceId space) = 0;
};

class SchemaChanges {
 public:
  virtual ~SchemaChanges() = default;
  // leave(): nobody calls `user` any more when it returns, and the node's locks are gone.
  virtual Status join(NodeId node, SchemaUser* user) = 0;
  // MW23. Once after join(). Errors: kUnavailable.
  virtual Status has_recovered(NodeId node) = 0;
  virtual void leave(NodeId node) noexcept = 0;

  // Blocks. Errors: kDeadlineExceeded, kCancelled (interrupt), kUnavailable. The node may have the
  // lock already, in either mode; while it is being asked to give it up (SchemaUser::give_up())
  // use() waits for what comes of that. No latch, no row lock's queue and no mutex held.
  virtual Status use(NodeId node, Bytes name, uint64_t timeout_us, WaitInterrupt* interrupt) = 0;
  virtual Status lock(NodeId node, Bytes name, uint64_t timeout_us, WaitInterrupt* interrupt) = 0;
  // Any number of threads of the node; each unlocks it.
  virtual Status share(NodeId node, Bytes name, uint64_t timeout_us, WaitInterrupt* interrupt) = 0;
  // The exclusive lock becomes `use`; of a shared one, with the node's last, nothing is left.
  virtual void unlock(NodeId node, Bytes name) noexcept = 0;
  // After the drop is durable, on the node that made it, which has left the space already. OK: so
  // have all others. Blocks. Errors: kUnavailable; try again.
  virtual Status space_dropped(NodeId node, SpaceId space) = 0;
};

}  // namespace strata
