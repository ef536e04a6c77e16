// What replay asks of the log: one stream as this node has it. Thread-safe; every call takes the
// log store's mutexes, so none of a higher rank may be held.
//   LV1  Bytes below durable_lsn() are quorum-durable here, never change and never go away but
//        from the front. durable_lsn() only grows (S1): the torn group behind a dead writer's last
//        whole one, which recovery cuts away, was never below it.
//   LV2  They are whole groups one after the other, but the last group may not be complete yet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "base/ids.h"
#include "base/status.h"

namespace strata::storenode {

class LogView {
 public:
  virtual ~LogView() = default;
  // First byte kept here.
  [[nodiscard]] virtual Lsn begin_lsn() const = 0;
  [[nodiscard]] virtual Lsn durable_lsn() const = 0;
  // Reads exactly [from, from + bytes), all of it below durable_lsn(). kOutOfRange: from <
  // begin_lsn(). kDataLoss: damaged; the message names the place. Blocks.
  virtual Status read(Lsn from, char* out, size_t bytes) = 0;
  // Calls `notify` once, as soon as durable_lsn() > beyond; at once if it is, perhaps before
  // notify_beyond() returns. From any thread, with no latch held. It may come late, after whoever
  // asked is gone: `notify` owns what it needs.
  virtual void notify_beyond(Lsn beyond, std::function<void()> notify) = 0;
};

}  // namespace strata::storenode
