// A pool of pages in the memory of another machine, as its user sees it: the calls to a memory node
// (proto/memory_messages.h) and reads of its memory. PoolClient is one; tests have others.
// Thread-safe.
//   RPL1  Every call is made as the user of the last attach() that was OK. It blocks, at most until
//         a deadline of the pool's own, and no latch may be held.
//   RPL2  How a call ended is told truly. peer_down and timed_out: it was not carried out and will
//         not be. outcome_unknown: it may have been, or may be yet, until the next attach() has
//         been OK. fenced: another user has the pool, or a later attach() of this one. not_found
//         (of the calls, not of what they say of a page): the node does not have this content of
//         the pool, or, except of attach(), was started again and nobody is attached. A thread's
//         interrupt (BA8) ends lookup() and read_slots() only, with kCancelled.
//   RPL3  read_slots() goes on when the node's processes do not answer, where its memory is mapped.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/ids.h"
#include "base/status.h"
#include "proto/memory_messages.h"

namespace strata::clients {

struct AttachedPool {
  uint64_t incarnation = 0;  // which content; another number, another content
  bool made = false;         // just now: there is nothing in it
  uint32_t slots = 0;
  // The last checkpoint() of any user; lsn 0: there was none.
  Lsn checkpoint;
  uint64_t bias = 0;
  Epoch checkpoint_epoch;
  // It is another memory node's than that of the last attach(), with the same pages: what was known
  // of slots counts no more.
  bool elsewhere = false;
};

using proto::StoredPage;

// A page to be read from its slot.
struct SlotRead {
  PageId id;
  proto::PoolSlot at;    // as it was told last
  char* page = nullptr;  // kPageBytes
  // Out. conflict: the slot has another content by now, or got one while it was read. kDataLoss:
  // what it has is not this page with exactly this llsn. Else why it could not be read.
  Status status;
};

class RemotePool {
 public:
  virtual ~RemotePool() = default;
  // Becomes the pool's user; earlier ones are refused from then on, and what they had under way has
  // ended. Every call uses a number that none before it used. `incarnation`: the content that is
  // wanted; 0: whatever there is, or a new pool. `fresh`: what there is is discarded. Errors:
  // not_found (that content is not there), fenced (a later epoch), and as RPL2.
  virtual StatusOr<AttachedPool> attach(uint64_t incarnation, bool fresh, uint64_t deadline_us) = 0;
  // The pages there are, from a slot on.
  virtual StatusOr<proto::PoolListReply> list(uint32_t from) = 0;
  // Up to kPoolImagesMax images, their bytes one after the other, and the Lsn up to which the log
  // is durable. By image: OK, conflict (a newer one is there), no_space (no slot is free), ...
  virtual StatusOr<std::vector<proto::PoolPutReply::Taken>> put(
      const std::vector<proto::PoolImage>& images, Bytes pages, Lsn durable) = 0;
  // Up to kPagesMax pages; by page.
  virtual StatusOr<std::vector<proto::PoolLookupReply::Found>> lookup(
      const std::vector<PageId>& pages) = 0;
  // Up to kPagesMax pages. By page: OK, not_found, busy (it is not clean).
  virtual StatusOr<std::vector<Status>> drop(const std::vector<PageId>& pages) = 0;
  // OK: the space has no page in the pool, and no write of one is under way.
  virtual Status forget_space(SpaceId space) = 0;
  // Has dirty pages below that place in the log written to these storage nodes.
  virtual StatusOr<proto::PoolWriteReply> write(Lsn below, uint32_t pages_max,
                                                const std::vector<proto::PoolTarget>& targets) = 0;
  // Has everything written since the last synced() written to this one once more, from a slot on.
  virtual StatusOr<proto::PoolWriteAgainReply> write_again(uint32_t from,
                                                           const proto::PoolTarget& target) = 0;
  virtual StatusOr<proto::PoolSyncedReply> synced(uint64_t report) = 0;
  // Storage has made durable these versions, up to kPagesMax, which somebody else wrote there.
  virtual Status stored(const std::vector<StoredPage>& pages) = 0;
  virtual Status checkpoint(Lsn lsn, uint64_t bias) = 0;
  // Reads them in one batch: of each the slot's generation, the page, and the generation again.
  virtual void read_slots(absl::Span<SlotRead> reads) = 0;
  // Whether another attach() has something to do, about a second memory node. Asked about once a
  // second. Blocks.
  virtual bool wants_attach() { return false; }
  // Another memory node can take over now.
  [[nodiscard]] virtual bool has_backup() const { return false; }
  // Storage is to have what was changed below that place soon; zero: there is no hurry.
  [[nodiscard]] virtual Lsn wants_stored_below() const { return {}; }
};

}  // namespace strata::clients
