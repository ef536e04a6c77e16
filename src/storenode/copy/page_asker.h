// Asks peers for single pages that are damaged here (page_store.h RP6): one thread, one page after
// the other, each peer in turn. Thread-safe.
//   PA1  Every question is answered once: with a page, with the first peer's error, or with
//        kUnavailable when too many wait, or at stop().
#pragma once

#include <deque>
#include <thread>
#include <utility>

#include "base/latch.h"
#include "storenode/copy/peer.h"

namespace strata::storenode {

class PageAsker {
 public:
  explicit PageAsker(CopyPeers peers, size_t waiting_max = 1000)
      : peers_(std::move(peers)), waiting_max_(waiting_max) {}
  ~PageAsker() { stop(); }
  PageAsker(const PageAsker&) = delete;
  PageAsker& operator=(const PageAsker&) = delete;

  void start();
  void stop();
  // Does not block; `done` is called from the thread, or before it returns.
  void ask(const GetPageRequest& request, GetPageDone done);

 private:
  void run();
  StatusOr<PageAnswer> ask_peers(const GetPageRequest& request);
  const CopyPeers peers_;
  const size_t waiting_max_;
  Mutex mutex_{LatchRank::kLeaf};
  CondVar changed_;
  std::deque<std::pair<GetPageRequest, GetPageDone>> waiting_ STRATA_GUARDED_BY(mutex_);
  bool stopped_ STRATA_GUARDED_BY(mutex_) = true;
  std::thread thread_;
};

}  // namespace strata::storenode
