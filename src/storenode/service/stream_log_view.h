// A stream of the log store as replay sees it (replay/log_view.h). Thread-safe.
//   SV1  A stream that does not exist yet is an empty one that begins where all streams do.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "base/latch.h"
#include "storenode/logstore/log_store.h"
#include "storenode/replay/log_view.h"

namespace strata::storenode {

class StreamLogView final : public LogView {
 public:
  // `store` outlives the view.
  StreamLogView(LogStore* store, StreamId stream, Lsn begin)
      : store_(store), stream_(stream), begin_(begin) {}

  [[nodiscard]] Lsn begin_lsn() const override;
  [[nodiscard]] Lsn durable_lsn() const override;
  Status read(Lsn from, char* out, size_t bytes) override;
  void notify_beyond(Lsn beyond, std::function<void()> notify) override;
  // The stream has been made: whoever waits for it can wait for its bytes now.
  void stream_made();

 private:
  using Waiter = std::pair<Lsn, std::function<void()>>;
  LogStore* const store_;
  const StreamId stream_;
  const Lsn begin_;
  Mutex mutex_{LatchRank::kLeaf};
  std::vector<Waiter> waiters_ STRATA_GUARDED_BY(mutex_);  // while there is no stream
};

}  // namespace strata::storenode
