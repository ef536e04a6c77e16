// A replica's own way back: carries out the orders a writer sends to replicas that are too far
// behind (quorum/writer.h), reading from peers and changing the local log. Thread-safe.
#pragma once

#include <functional>
#include <memory>

#include "quorum/messages.h"
#include "storenode/logstore/log_store.h"

namespace strata {

class SelfCatchUp {
 public:
  using FetchDone = std::function<void(quorum::ReadReply)>;
  // Asks a peer; answers once, from any thread, with kUnavailable when the peer does not.
  using Fetch = std::function<void(quorum::ReplicaIndex source, const quorum::ReadRequest& request,
                                   FetchDone done)>;

  // `store` outlives this. After destruction late answers are ignored.
  SelfCatchUp(LogStore* store, StreamId stream, Fetch fetch);
  ~SelfCatchUp();
  SelfCatchUp(const SelfCatchUp&) = delete;
  SelfCatchUp& operator=(const SelfCatchUp&) = delete;

  // Begins to carry it out and returns. Ignored while an order of the same or a higher epoch is
  // being carried out. An order whose sources all fail is given up: the writer repeats it.
  void order(quorum::CatchUpOrder order);
  [[nodiscard]] bool running() const;

 private:
  struct Shared;
  const std::shared_ptr<Shared> shared_;
};

}  // namespace strata
