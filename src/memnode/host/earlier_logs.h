// Whether storage has everything that the servers of an earlier epoch have logged. A memory node
// that begins after another one knows nothing of what that one's pool held, so it may not give
// out pages from storage before that is so. Used by one thread.
//
//   ERL1  A server that the record names, as a member or as one that was ever fenced, may have
//         logged what storage lacks: what the dead have not given up goes with their memory node.
//         Whoever is not named has never been a member.
//   ERL2  The log of each is sealed first: what is found to be its end stays that until its server
//         is a member again, and it publishes no checkpoint meanwhile.
//   ERL3  Storage has everything of a log that ends at its checkpoint (FU17), or of which none was
//         ever published: then it is no database's yet.
//   ERL5  The log of a server that goes on (spare()) is not sealed. As far as it has said that it
//         is durable it is redone with the others: no checkpoint of it says what was in the pool of
//         the memory node that is gone, and what the server has given up is in its log.
//   ERL6  Where storage makes pages from the logs it has everything; it is only to be known how far
//        it has to read them (ends()). Also a log of which no checkpoint was published counts then,
//        once there is a database: it may hold changes of pages that others have built on.
//   ERL4  All logs that go on behind their checkpoints are redone together (log_redoer.h): pages
//         have changes of several in turns.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cluster/log_checkpoints.h"
#include "fusion/authority/authority_record.h"
#include "memnode/host/log_redoer.h"
#include "memnode/host/log_sealer.h"

namespace strata::memnode {

class EarlierLogs {
 public:
  // All outlive it.
  EarlierLogs(const fusion::AuthorityRecord& last, LogSealer* sealer, registry::Registry* registry,
              cluster::ClusterKeys keys, uint64_t call_timeout_us);

  // ERL5. These servers go on, with logs that are durable so far; others do not.
  void spare(const std::map<NodeId, Lsn>& live);
  // ERL2. Blocks; may be asked again. Errors: those of LogSealer::seal_now().
  Status seal_all();
  // Which logs hold more than storage has. Blocks; may be asked again. Errors: those of seal_all(),
  // the registry's.
  StatusOr<std::vector<StreamId>> lacking();
  // OK: storage has everything. Blocks for as long as redo takes; may be asked again. Errors: those
  // of lacking() and of LogRedoer::redo(), which say which logs it was about.
  Status complete(LogRedoer* redoer);
  // ERL6. Blocks; may be asked again. Errors: those of seal_all() and of LogRedoer::find_ends().
  StatusOr<std::vector<proto::StreamPosition>> ends(LogRedoer* redoer);
  [[nodiscard]] size_t servers() const noexcept { return ends_.size(); }

 private:
  struct Log {
    bool sealed = false;
    SealedLog end;
  };
  StatusOr<bool> is_stored(StreamId stream, const Log& log);

  LogSealer* const sealer_;
  registry::Registry* const registry_;
  const cluster::ClusterKeys keys_;
  const uint64_t call_timeout_us_;
  std::map<StreamId, Log> ends_;
  std::map<StreamId, Lsn> live_;  // ERL5
};

}  // namespace strata::memnode
