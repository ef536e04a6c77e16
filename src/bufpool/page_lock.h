// Page locks between nodes (PLocks). One writer: a no-op. Several: a service that grants shared or
// exclusive use of a page to one node at a time. Owned by bufpool.
//   PL1  The pool holds the page's lock in a sufficient mode while a frame of it is latched.
//   PL2  Before a lock is given up the node persists the log of the page and writes it back
//        (BufferPool::surrender), so the next holder reads the newest bytes.
#pragma once

#include <cstdint>

#include "base/ids.h"
#include "base/status.h"

namespace strata {

enum class LatchMode : uint8_t { kShared, kExclusive };

class PageLock {
 public:
  virtual ~PageLock() = default;
  // Blocks until this node may use the page in `mode`. Called with latches held, in latch order.
  // Cheap when the node already holds it. *newest is the least llsn a read must return.
  virtual Status acquire(PageId id, LatchMode mode, Llsn* newest) = 0;
  // Same, but returns busy at once when it would have to wait: BufferPool::try_fix is
  // called out of latch order. A lock service overrides this.
  virtual Status try_acquire(PageId id, LatchMode mode, Llsn* newest) {
    return acquire(id, mode, newest);
  }
  // The frame was evicted; the node does not need the lock any more. Called under the partition
  // mutex, so that it cannot overtake the next acquire of the page: must not block nor call the
  // pool.
  virtual void forget(PageId id) = 0;
};

// The lock of a node that is the only one. The pool never calls it: no cost per fix.
PageLock* no_page_lock() noexcept;

}  // namespace strata
