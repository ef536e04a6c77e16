// Fills a page store with the pages of its peers when the log cannot (README). One thread runs
// step(); status is the page store's.
//
//   PC1  Every page copied is as of the positions M from which the log is scanned afterwards, or
//        later: the first peer's, and any other one's that goes on must have replayed up to M.
//   PC2  A page that is left out since a peer had reclaimed its space, be it not listed or not
//        given, is of a space that is dropped here, too, when the copy is done.
//   PC3  Nothing is copied before this node's own logs begin at or below M, so nothing a peer cuts
//        off meanwhile is missed.
//   PC4  What failed on one peer goes on with the next one; a page that no peer has undamaged does
//        not keep the others from being copied.
//   PC5  What is here is not removed before a peer has offered a copy: until then it serves what it
//        can. Of two nodes that need one neither removes its pages for the other one's (CO2).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/latch.h"
#include "storenode/copy/peer.h"
#include "storenode/replay/page_store.h"

namespace strata::storenode {

struct StoreCopierOptions {
  CopyPeers peers;
  uint32_t pages_at_once = 32;  // of one call
  uint32_t pages_listed = 1024;
  uint64_t pages_per_s_max = 20'000;    // 0: as fast as it goes
  uint64_t look_interval_us = 500'000;  // whether a copy is needed; and after a failure
};

class StoreCopier {
 public:
  // `store` outlives it.
  StoreCopier(PageStore* store, StoreCopierOptions options);
  ~StoreCopier();  // stop()
  StoreCopier(const StoreCopier&) = delete;
  StoreCopier& operator=(const StoreCopier&) = delete;

  // One bounded piece of work. False: none is needed now. Errors: of a peer, or of the own disk; it
  // goes on with the next call. Blocks.
  StatusOr<bool> step();
  // A thread with low priority that calls step() as needed. Not together with step().
  void start();
  void stop();
  // What it does, or why it does not get on; empty: nothing. Thread-safe.
  [[nodiscard]] std::string doing() const;
  // Copies that came to their end. Thread-safe.
  [[nodiscard]] uint64_t completed() const;

 private:
  Status choose_peer();
  Status begin(const CopyOffer& offer);
  Status copy_some();
  Status take(const std::vector<PageId>& pages);
  Status take_one(PageId page, StatusOr<PageAnswer> answer);
  Status take_damaged(PageId page);
  Status stored(const Status& status);
  Status finish();
  void leave_peer();
  void say(std::string what);
  void run();
  [[nodiscard]] Llsn as_of() const;

  PageStore* const store_;
  const StoreCopierOptions options_;
  // The copy under way.
  bool begun_ = false;
  std::vector<CopyMark> marks_;     // M
  std::shared_ptr<CopyPeer> peer_;  // null: another one is to be chosen
  size_t next_peer_ = 0;
  std::optional<PageId> cursor_;  // what is listed next; none: everything was
  std::vector<PageId> listed_;    // and not copied
  std::map<SpaceId, Llsn> gone_;  // PC2; where they were dropped, if that is known

  mutable Mutex mutex_{LatchRank::kLeaf};
  CondVar changed_;
  bool stop_ STRATA_GUARDED_BY(mutex_) = false;
  std::string doing_ STRATA_GUARDED_BY(mutex_);
  uint64_t completed_ STRATA_GUARDED_BY(mutex_) = 0;
  std::thread thread_;
};

}  // namespace strata::storenode
