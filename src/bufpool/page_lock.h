// Page locks between nodes (PLocks). One writer: a no-op. Several: a service that grants shared or
// exclusive use of a page to one node at a time. Owned by bufpool.
//   PL1  The pool holds the page's lock in a sufficient mode while a frame of it is latched.
//   PL2  Before a lock is given up the node persists the log of the page and writes it back
//        (BufferPool::surrender), so the next holder reads the newest bytes.
//   PL3  Between serve(pool) and serve(nullptr) the service may take any page back, by surrender()
//        from a thread of its own choice. Outside nothing is given up: a node that redoes its log
//        holds what it held in its last life, and who wants such a page waits.
//   PL4  Of a service that does not wait for releases (PL6) a page lock counts for a frame only if
//        it was got when the frame was loaded already, or by whoever loads it: what is taken away
//        afterwards detaches the frame, what was taken away before is got again. So a frame that is
//        latched after its lock was got and is still in the pool is locked.
//   PL5  Each acquire() or try_acquire() that returned OK is followed by one release(), when the
//        guard has gone that came of it, or it is clear that none comes. A service may wait for
//        that before it takes the page back. With a reference to a page a thread does not acquire()
//        it again but for the same use of it.
//   PL6  A service that always waits for that (awaits_release()) is asked before the pool looks for
//        the page, once for each use: whoever has got the page uses it, whatever became of the
//        frame meanwhile. Else two nodes that want a page all the time would take it from each
//        other for ever, and nobody would ever use it.
#pragma once

#include <cstdint>

#include "base/ids.h"
#include "base/status.h"

namespace strata {

class BufferPool;

enum class LatchMode : uint8_t { kShared, kExclusive };

class PageLock {
 public:
  virtual ~PageLock() = default;
  // Blocks until this node may use the page in `mode`. Called with latches held, in latch order.
  // Cheap when the node already holds it. *newest is the least llsn a read must return.
  virtual Status acquire(PageId id, LatchMode mode, Llsn* newest) = 0;
  // Same, but returns busy at once when it would have to wait: BufferPool::try_fix is
  // called out of latch order (also where it would have to read the page). A lock service
  // overrides this.
  virtual Status try_acquire(PageId id, LatchMode mode, Llsn* newest) {
    return acquire(id, mode, newest);
  }
  // Whether the node has the page in at least this mode right now. A hint: it may be taken away
  // before the answer is used. Cheap; false where it is not.
  [[nodiscard]] virtual bool seems_held(PageId /*id*/, LatchMode /*mode*/) const noexcept {
    return false;
  }
  // PL5. Must not block nor call the pool.
  virtual void release(PageId /*id*/) noexcept {}
  // PL6. Constant.
  [[nodiscard]] virtual bool awaits_release() const noexcept { return false; }
  // The frame was evicted; the node does not need the lock any more. Called under the partition
  // mutex, so that it cannot overtake the next acquire of the page: must not block nor call the
  // pool.
  virtual void forget(PageId id) = 0;
  // Whether this node had the page exclusively when its last life ended. Only such pages may lack
  // something of its log (PL2); others belong to nodes that do not wait for its redo. Asked before
  // serve(), once per change in the log.
  virtual bool needs_redo(PageId /*id*/) { return true; }
  // PL3. Called with the pool once redo is done, before the node reads what others may hold; with
  // nullptr before the pool goes, and returns when no surrender() is under way any more. Blocks
  // then.
  virtual void serve(BufferPool* /*pool*/) {}
};

// The lock of a node that is the only one. The pool never calls it: no cost per fix.
PageLock* no_page_lock() noexcept;

}  // namespace strata
