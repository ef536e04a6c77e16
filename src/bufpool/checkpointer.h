// Fuzzy checkpoints (K10). One background thread; run_once() is also called by tests and at
// shutdown.
//   CP1  F = log.raise_image_floor(); wait_completed(F); write back all pages first changed below
//        F; source.sync(); control.publish(checkpoint = F); then the log is truncated below F. The
//        bias of llsns goes with F, taken in the same step (LR4): with a smaller one llsns could be
//        given out twice, with a larger one the groups behind F would not count.
//   CP2  Every page first changed after F carries a full image in its first section after F,
//        because image_floor was raised in one step with reservations: redo from F never needs a
//        page's old bytes if they may be torn.
//   CP3  A failed write or sync leaves the old checkpoint in force; the log grows until it
//        succeeds.
//   CP4  A checkpoint that nobody waits for writes its pages at the pace of the log: done when half
//        the log, or half the interval, that brings the next one has passed. So a burst of changes
//        that is over is written back slowly, beside what comes then. A request, a caller of
//        run_once() and twice the counted log make it hurry.
//   CP5  Full images of pages count only beyond log_bytes: redo of an image is cheap, and a
//        checkpoint only brings new ones. So one starts after log_bytes to 2 x log_bytes of log.
//   CP6  A source that makes its pages from the log gets none. Every mark_interval_us of change the
//        start moves to the end of the log there, without new images: a restart reads little.
//   CP7  With a memory tier F is that of a checkpoint there (memory_checkpointer.h), a new one for
//        who waits; what lies below it is written to storage by sync_below(F). At shutdown the one
//        in the memory tier is enough, as long as there is that memory.
//   CP8  From keep_log() to release_log() the log is cut off below what was asked for only, however
//        many checkpoints there are meanwhile: who copies the pages has the log from the checkpoint
//        that keep_log() returned.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "base/wait_interrupt.h"
#include "bufpool/buffer_pool.h"
#include "wal/control_file.h"
#include "wal/log.h"

namespace strata {

struct CheckpointerOptions {
  uint64_t log_bytes = 256u << 20;       // a checkpoint starts after this much log (CP5)
  uint64_t interval_us = 300000000;      // ... or after this time, if anything changed
  uint64_t mark_interval_us = 1000000;   // CP6
  uint64_t memory_interval_us = 500000;  // CP7
  bool background = true;
};

class Checkpointer {
 public:
  Checkpointer(const CheckpointerOptions& options, BufferPool* pool, Log* log,
               ControlStore* control);
  ~Checkpointer();
  Status run_once(bool clean_shutdown = false);  // blocks; serialised
  Status run_memory_once();                      // CP7; blocks. OK without such a tier
  void request() noexcept;                       // asynchronous
  void stop() noexcept;
  [[nodiscard]] Lsn last_checkpoint() const noexcept;
  [[nodiscard]] Lsn last_memory_checkpoint() const noexcept;  // zero: there was none (CP7)
  [[nodiscard]] bool failing() const noexcept;                // since the last run
  [[nodiscard]] Status failure() const;                       // what the last one came to (CP3)
  // CP8; one caller at a time. The last checkpoint, from which on the log is kept.
  [[nodiscard]] ControlData keep_log();
  void keep_log_from(Lsn lsn) noexcept;  // what lies before is not needed any more
  void release_log() noexcept;           // any thread; what was kept goes with the next checkpoint
  // Backpressure: blocks (no latch held) while the log since the last checkpoint exceeds 4 x
  // log_bytes. kCancelled: interrupted. `interrupt` may be null.
  Status wait_for_log_room(WaitInterrupt* interrupt);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace strata
