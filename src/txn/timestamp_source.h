// Where commit timestamps and the snapshots of views come from. Owned by txn.
#pragma once

#include <memory>

#include "base/ids.h"
#include "base/status.h"

namespace strata {

class BufferPool;
class Log;
class SpaceManager;

// Seam: in-process counter with one writer, fusion service with many. Thread-safe.
class TimestampSource {
 public:
  virtual ~TimestampSource() = default;
  // Whether next() and current() take a round trip to another node. They are called with no latch
  // and no mutex held then (T14), and may be interrupted; otherwise they are a few instructions.
  [[nodiscard]] virtual bool is_remote() const noexcept { return false; }
  // Called without latches before next(): does the I/O that next() would otherwise have to.
  virtual Status prepare_next() { return ok_status(); }
  virtual StatusOr<Cts> next() = 0;  // a fresh cts, larger than every one before
  // A view's snapshot: no commit that was acknowledged before the call is younger, and none that is
  // given a cts after it has returned is as old.
  virtual StatusOr<Cts> current() = 0;
  // As current(), but an error where it would have to wait for more than a round trip: for threads
  // that others' waits depend on.
  virtual StatusOr<Cts> current_at_once() { return current(); }
  virtual Status raise_to(Cts at_least) = 0;  // recovery: later ones are larger
};

// In-process oracle with a durable ceiling kept in a header slot of the system space (T6).
std::unique_ptr<TimestampSource> make_local_timestamp_source(BufferPool* pool, Log* log,
                                                             SpaceManager* spaces);

}  // namespace strata
