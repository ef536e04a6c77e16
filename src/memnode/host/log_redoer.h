// Does the logs of servers again in their place, and says so to the registry: once it has, storage
// has everything that they had logged. One thread.
//
//   LRO1  Each stream is taken over as its server's next life would (a larger epoch, nobody else
//         writes to it or publishes for it meanwhile), and is free again afterwards, however it
//         went. Whoever comes later has a larger epoch again.
//   LRO2  A log's end is published as its checkpoint only when storage has all logs' pages durably,
//         since changes of one may lie behind those of another. The rest of the record stays.
//   LRO4  The log of a server that goes on is only read (live_log.h), from the checkpoint that its
//         server has published last. That one publishes its own, of what it knows itself.
//   LRO5  Where storage makes pages from the logs nothing is redone. The streams are taken in the
//        same way, so that what was there under way is durable or gone, and it is said where they
//        end (find_ends()); nothing is published.
//   LRO3  Whatever breaks off changes nothing that counts: doing it again begins at the
//         checkpoints.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "base/wait_interrupt.h"
#include "memnode/host/live_log.h"
#include "memnode/host/log_redo.h"
#include "memnode/host/log_sealer.h"
#include "proto/page_locks.h"

namespace strata::memnode {

class LogRedoer {
 public:
  // As the sealer's. `pages`: of storage, outlives it. `above`: epochs that are given are larger.
  LogRedoer(LogSealer::Parts parts, PageSource* pages, Epoch above, LogRedo::Options options = {});

  // Where each log ends now. Blocks for as long as it takes. Errors: peer_down, timed_out (registry
  // or storage nodes do not answer), in_use, fenced (somebody else has come), lease_lost, kDataLoss
  // (a log or page is damaged), interrupted.
  // `live`: of servers that go on, and how far they are durable (LRO4).
  StatusOr<std::map<StreamId, SealedLog>> redo(const std::vector<StreamId>& streams,
                                               const std::map<StreamId, Lsn>& live = {});
  // LRO5. Of those in which something is. Blocks for about as long as a checkpoint's log takes to
  // read. Errors: as redo().
  StatusOr<std::vector<proto::StreamPosition>> find_ends(const std::vector<StreamId>& streams);

 private:
  class Taken;
  enum class Without : uint8_t { kRefused, kAllowed };  // a checkpoint
  StatusOr<std::unique_ptr<Taken>> take(StreamId stream, Without checkpoint);
  StatusOr<std::unique_ptr<LiveLog>> open_live(StreamId stream, Lsn end, LogToRedo* log);
  [[nodiscard]] uint64_t deadline() const {
    return parts_.registry->now_us() + parts_.call_timeout_us;
  }

  const LogSealer::Parts parts_;
  PageSource* const pages_;
  const Epoch above_;
  const LogRedo::Options options_;
};

}  // namespace strata::memnode
