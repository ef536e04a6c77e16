// Where pages are in a remote pool, as its user knows it: which slot, which content of it, whether
// storage may lack it, and which page has been out of use for longest (LegoBase's LRU_RBP, §4.3).
// Thread-safe; blocks for short mutexes only, so that notices of evictions may come under a mutex
// of the buffer pool.
//   RDR1  complete(): a page without an entry has no slot. Until the pool has been listed that is
//         not so.
//   RDR2  What a list says counts only for pages of which nothing is known yet, in spaces that were
//         not erased: whatever was put, looked up or forgotten since was answered later. Nothing is
//         dropped for want of room until the list is whole.
//   RDR3  A page is dirty until cleaned() names the llsn that it has; one that is put again with an
//         equal llsn stays what it was.
//   RDR4  The list of pages out of use is a hint: a page in it may be in use, and the other way
//         round.
// An entry has 48 bytes: 0.3 % of what the pool holds.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "base/ids.h"
#include "base/latch.h"
#include "proto/memory_messages.h"

namespace strata::clients {

class RemoteDirectory {
 public:
  RemoteDirectory();
  ~RemoteDirectory();
  RemoteDirectory(const RemoteDirectory&) = delete;
  RemoteDirectory& operator=(const RemoteDirectory&) = delete;

  // Empty, with room for so many slots. complete: they all are empty.
  void reset(uint32_t slots, bool complete);

  [[nodiscard]] std::optional<proto::PoolSlot> find(PageId id) const;
  // A put of the page was answered so. `out_of_use`: it joins the list at the warm end.
  void put(PageId id, const proto::PoolSlot& at, bool out_of_use);
  // RDR2.
  void listed(absl::Span<const proto::PoolListReply::Page> pages);
  void whole_list();
  // A lookup was answered so, which began when find() said `before`; if that is no longer what is
  // known, the answer is an old one.
  void looked_up(PageId id, const std::optional<proto::PoolSlot>& before,
                 const proto::PoolLookupReply::Found& found);
  // Its slot is free, if that content of that slot still is what is known.
  void erase(PageId id, const proto::PoolSlot& at);
  void erase_space(SpaceId space);
  // Storage has made this version durable.
  void cleaned(PageId id, Llsn llsn);
  // The pool says that this content is not clean.
  void dirtied(PageId id, const proto::PoolSlot& at);

  // The page is in use no more: it is the warmest. False: it has no entry.
  bool evicted(PageId id) noexcept;
  void used(PageId id) noexcept;  // it is in use again
  struct Victim {
    PageId id;
    proto::PoolSlot at;
  };
  struct Cold {
    std::vector<Victim> clean;
    bool dirty = false;  // dirty ones were passed over
  };
  // Clean pages out of use, about the coldest.
  [[nodiscard]] Cold coldest(size_t max) const;

  // Grows before anything is forgotten: what was found, and what complete() said, between two equal
  // ones is of one content.
  [[nodiscard]] uint64_t resets() const noexcept { return resets_.load(std::memory_order_seq_cst); }
  [[nodiscard]] bool complete() const noexcept { return complete_.load(std::memory_order_acquire); }
  [[nodiscard]] uint32_t slots() const noexcept { return slots_.load(std::memory_order_relaxed); }
  [[nodiscard]] size_t size() const noexcept { return size_.load(std::memory_order_relaxed); }
  [[nodiscard]] size_t dirty() const noexcept { return dirty_.load(std::memory_order_acquire); }
  void check() const;  // its lists against each other; asserts, for tests

 private:
  struct Entry;
  struct Shard;
  [[nodiscard]] Shard& shard_of(PageId id) const noexcept;
  const std::unique_ptr<Shard[]> shards_;
  Mutex gone_mutex_{LatchRank::kLeaf};
  std::vector<SpaceId> gone_ STRATA_GUARDED_BY(gone_mutex_);  // erased while a list was read
  std::atomic<uint64_t> resets_{0};
  std::atomic<bool> complete_{false};
  std::atomic<uint32_t> slots_{0};
  std::atomic<size_t> size_{0};
  std::atomic<size_t> dirty_{0};
  mutable std::atomic<uint32_t> next_shard_{0};  // whose cold pages come first
};

}  // namespace strata::clients
