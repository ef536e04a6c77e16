// Checkpoints in the memory tier (PageSource::has_memory_tier()): the light daemon of LegoBase,
// §5.1. One background thread; run_once() is also called at shutdown, by checkpoints in storage
// and by tests. Thread-safe.
//   MC1  F and its bias are taken in one step; wait_completed(F); all pages first changed below F
//        are given to the source; the log is persisted up to F; then the source publishes F. So
//        redo may begin at F while the memory tier is whole, and reads little: F is never older
//        than `interval_us` and the time that one run takes.
//   MC2  The log is not truncated, and no restart relies on F alone: checkpoints in storage
//        (checkpointer.h) go on, at an F of here, and are what is left when that memory is lost.
//   MC3  A failed run leaves the last F in force. It is tried again; whoever waits for one is told.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "bufpool/buffer_pool.h"
#include "pagefile/page_source.h"
#include "wal/log.h"

namespace strata {

struct MemoryCheckpointerOptions {
  uint64_t interval_us = 500'000;
  bool background = true;
};

class MemoryCheckpointer {
 public:
  struct Made {
    MemoryCheckpoint at;
    bool kept = false;  // in that memory; false: there is none for now, and storage has everything
  };
  MemoryCheckpointer(const MemoryCheckpointerOptions& options, BufferPool* pool, Log* log);
  ~MemoryCheckpointer();
  // Blocks; serialised. Returns the new F. Errors: the source's, the log's.
  StatusOr<Made> run_once();
  // The last F; lsn 0: there was none in this life.
  [[nodiscard]] MemoryCheckpoint last() const;
  void stop() noexcept;  // blocks for a run under way

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace strata
