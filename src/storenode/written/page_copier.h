// Brings a store in sync again: takes all pages of a peer that has them, in a thread of its own,
// while compute goes on writing here. Thread-safe.
//   CW1  Done means: every page that the peer had when the copy was ordered is here, that version
//        or a newer one; spaces that it did not have are gone; and all of it is durable.
//   CW2  A copy belongs to one write session. When another begins it fails, and changes nothing
//        from then on (WS1).
//   CW3  All spaces are made before the first page is copied, and stay if the copy fails: compute
//        writes to them meanwhile, and a write to one that is not there yet ends the copy. With
//        much to copy and many writes none would ever come to its end.
#pragma once

#include <atomic>
#include <thread>

#include "base/latch.h"
#include "proto/written_messages.h"
#include "storenode/written/peer_pages.h"
#include "storenode/written/written_store.h"

namespace strata::storenode {

class PageCopier {
 public:
  PageCopier(WrittenStore* store, const transport::Secret& secret)
      : store_(store), secret_(secret) {}
  ~PageCopier();  // stop()
  PageCopier(const PageCopier&) = delete;
  PageCopier& operator=(const PageCopier&) = delete;

  // Begins the copy, or tells how far the one of that session is. One of an earlier session is
  // ended first: until then the new one has not begun, and nothing is seen. Does not block.
  proto::CopyPagesReply order(const proto::CopyPagesRequest& request);
  // How far the last one is; nothing: there was none.
  [[nodiscard]] proto::CopyPagesReply progress() const;
  void stop();  // blocks for a call to a peer, at most

 private:
  Status run(const proto::CopyPagesRequest& request);
  Status copy_space(PeerPages* peer, const proto::Writer& writer, const proto::SpaceSize& space);
  Status copy_pages(PeerPages* peer, const proto::Writer& writer, const std::vector<PageId>& ids);
  Status take(const proto::Writer& writer, const std::vector<PageId>& ids,
              const std::vector<proto::PageGot>& got);
  void main(const proto::CopyPagesRequest& request);

  WrittenStore* const store_;
  const transport::Secret secret_;
  std::atomic<bool> stop_{false};
  mutable Mutex mutex_{LatchRank::kLeaf};
  proto::CopyPagesRequest last_ STRATA_GUARDED_BY(mutex_);  // session 0: none
  proto::CopyPagesReply told_ STRATA_GUARDED_BY(mutex_);    // of the last one
  bool running_ STRATA_GUARDED_BY(mutex_) = false;
  bool stopped_ STRATA_GUARDED_BY(mutex_) = false;
  std::thread thread_ STRATA_GUARDED_BY(mutex_);
};

}  // namespace strata::storenode
