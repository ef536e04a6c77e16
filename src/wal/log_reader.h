// Sequential scan of a log stream for recovery. One thread; nobody appends meanwhile.
//   LR1  next() returns exactly the groups before the first place that holds no valid group.
//   LR2  That place is the end of the log unless a later group proves that the log was durable
//        beyond it (its lsn - durable_delta lies behind the place): then it is corruption,
//        kDataLoss.
//   LR3  Before a Log appends after a crash, erase_tail() blanks whole groups of the old life that
//        lie behind the end: written over only in part they could parse again later. It also makes
//        durable what was read: a killed process leaves log in the page cache that was never
//        synced, and the new life counts everything before its start as durable. A stream of a log
//        service is cut off at the end instead, by the service.
//   LR4  The bias of successive groups never shrinks (W1); a group that breaks this does not count.
//   LR5  A group with a whole header that goes on behind the sink's room: kDataLoss, segments were
//        lost. Not so in a stream, whose end may be torn.
#pragma once

#include <memory>

#include "base/bytes.h"
#include "base/ids.h"
#include "base/status.h"
#include "redo/redo.h"
#include "wal/log_sink.h"

namespace strata {

// Offset of the first whole group in `bytes` (which start at stream offset `at`, a multiple of 8)
// that says itself that it belongs there; npos when there is none. Fills *group when not null.
size_t find_group(Bytes bytes, Lsn at, redo::GroupView* group);

class LogReader {
 public:
  // `start` is a group boundary; `bias` the bias there (the checkpoint's).
  LogReader(LogSink* sink, Lsn start, uint64_t bias = 0);
  // False at the end of the log. *group stays valid until the next call. Blocks. kDataLoss: LR2,
  // LR5.
  StatusOr<bool> next(redo::GroupView* group);
  // End of the last group returned, and its llsn minus its end.
  [[nodiscard]] Lsn end_lsn() const noexcept { return Lsn{position_}; }
  [[nodiscard]] uint64_t bias() const noexcept { return bias_; }
  [[nodiscard]] uint64_t group_count() const noexcept { return group_count_; }
  // After next() returned false: see LR3. Durable when it returns. Blocks.
  Status erase_tail();

 private:
  // Makes at least `bytes` bytes from position_ available if the stream has them.
  Status fill(size_t bytes);
  Status check_room(size_t need);  // LR5
  StatusOr<bool> at_end();
  [[nodiscard]] Bytes buffered() const noexcept {
    return Bytes(buffer_.get() + offset_, filled_ - offset_);
  }
  LogSink* const sink_;
  uint64_t position_;
  uint64_t bias_;
  uint64_t group_count_ = 0;
  uint64_t stray_end_ = 0;  // end of the last whole group behind the end of the log
  bool ended_ = false;
  std::unique_ptr<char[]> buffer_;
  size_t offset_ = 0;  // of position_ in buffer_
  size_t filled_ = 0;
  bool exhausted_ = false;  // the sink has nothing behind what is buffered
};

}  // namespace strata
