// Where a log stream is made durable. Owned by wal; implemented by local files
// (wal/local_log_sink.h) and, under the disaggregated profiles, by clients of log stores. Calls
// come from one thread at a time (the group commit leader), except read().
#pragma once

#include <cstddef>
#include <string>

#include "base/bytes.h"
#include "base/ids.h"
#include "base/status.h"
#include "base/wait_interrupt.h"

namespace strata {

class LogSink {
 public:
  virtual ~LogSink() = default;
  // First byte kept / one past the last byte that may hold data.
  [[nodiscard]] virtual Lsn begin_lsn() const = 0;
  // Room for the stream up to `end` exists after OK (segments are made ahead of need, zero filled).
  // kResourceExhausted when the disk is full. Blocks. May be called from any thread.
  virtual Status prepare_room(Lsn end) = 0;
  // The same for those who must go on when there is no more (rollback, commit, deletes): may use
  // what the sink keeps for them. Where it does, prepare_room() fails until as much is kept again.
  virtual Status prepare_reserved_room(Lsn end) { return prepare_room(end); }
  // Gives what is kept to the disk, where somebody else needs it to free more. kNotFound: nothing
  // is kept.
  virtual Status give_up_reserve() { return error_not_found(); }
  // Somebody waits for prepare_room(), which spares the disk otherwise. Until it returns. Any
  // thread.
  virtual void hurry() noexcept {}
  // Appends below this cannot fail for lack of space.
  [[nodiscard]] virtual Lsn room_end() const = 0;
  // Writes bytes at stream offset `at`, inside the room. Not durable before sync(). Contiguous with
  // the previous append, except that recovery blanks the tail first (LogReader::erase_tail).
  virtual Status append(Lsn at, Bytes bytes) = 0;
  // May wait for as long as it takes; late() says so meanwhile.
  virtual Status sync() = 0;
  // Not OK: a sync() waits for longer than usual, and why (kUnavailable); it may come to its end
  // yet. Cheap. Any thread.
  [[nodiscard]] virtual Status late() const { return ok_status(); }
  // Reads up to `bytes` from `at` (recovery). Short at the end of what exists.
  virtual StatusOr<size_t> read(Lsn at, char* out, size_t bytes) = 0;
  // Bytes below `lsn` are not needed any more: segments may be recycled.
  virtual Status truncate_below(Lsn lsn) = 0;
  // Before a change, with no latch held: waits while the log's readers are too far behind with it.
  // Cheap when they are not. kCancelled: interrupted. `interrupt` may be null. Any thread.
  virtual Status wait_for_readers(WaitInterrupt* /*interrupt*/) { return ok_status(); }
  // A stream of a log service has no room made ahead of need: it ends with what was appended last
  // (room_end() says where until prepare_room() is called), and behind its last whole group there
  // is at most a torn one, which is no sign of loss.
  [[nodiscard]] virtual bool is_stream() const { return false; }
  // Of a stream, once, before the first append of this life: forgets what lies behind `end`,
  // durably. Blocks.
  virtual Status cut_at(Lsn /*end*/) { return error_unsupported("this log cannot be cut"); }
  // Where `lsn` lies, for messages ("/path/log-01-...seg at byte 4711").
  [[nodiscard]] virtual std::string locate(Lsn lsn) const {
    return "log offset " + std::to_string(lsn.value);
  }
};

}  // namespace strata
