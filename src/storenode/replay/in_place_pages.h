// One version per page, in page files, behind a cache that writes back (profile logdb). The pages
// in it are whole and sealed; who has read one may use it for as long as he likes.
//   IP1  put() comes from one thread; reads from any.
//   IP2  A page that is newer than its place in the file stays in memory until it is written there.
//   IP3  checkpoint() returns OK once everything put before it began is durable.
//   IP4  One thread at a time writes pages, so an older state never overwrites a newer one.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <set>
#include <unordered_map>
#include <vector>

#include "base/aligned.h"
#include "base/ids.h"
#include "base/latch.h"
#include "base/status.h"
#include "pagefile/page_source.h"
#include "storenode/versions/page_cache.h"

namespace strata::storenode {

class InPlacePages {
 public:
  // Holds about `bytes`, more only while more than that is being written.
  InPlacePages(PageSource* source, uint64_t bytes);

  // The newest state. kNotFound: never written. kDataLoss: the stored page is damaged. Blocks.
  StatusOr<PageRef> read(PageId page);
  // The same if it is in memory, without waiting for anything; else null.
  PageRef at_hand(PageId page);
  // Blocks while too much waits to be written; errors are those of writing: the page is put
  // nevertheless.
  Status put(PageId page, PageRef ref);
  Status checkpoint();                 // IP3; blocks
  Status delete_space(SpaceId space);  // its pages are gone; blocks
  // Those with pages, written to a file yet or not. Blocks.
  StatusOr<std::vector<SpaceId>> list_spaces();

  [[nodiscard]] uint64_t hits() const noexcept { return hits_.load(); }
  [[nodiscard]] uint64_t misses() const noexcept { return misses_.load(); }
  [[nodiscard]] uint64_t written() const noexcept { return written_.load(); }

 private:
  struct Entry {
    explicit Entry(PageId page) : page(page) {}
    const PageId page;
    PageRef ref;
    bool loading = false;
    bool dirty = false;
    std::list<Entry*>::iterator place;
  };
  using Entries = std::unordered_map<PageId, std::unique_ptr<Entry>>;
  Entry* add(PageId page) STRATA_REQUIRES(mutex_);
  void evict() STRATA_REQUIRES(mutex_);
  Status write_back(size_t count_max) STRATA_REQUIRES(mutex_);
  Status write_batch(const std::vector<std::pair<PageId, PageRef>>& batch);
  Status make_space(SpaceId space);

  PageSource* const source_;
  const size_t pages_max_;
  Mutex mutex_{LatchRank::kLeaf};
  CondVar changed_;  // loaded, or written
  Entries entries_ STRATA_GUARDED_BY(mutex_);
  std::list<Entry*> used_ STRATA_GUARDED_BY(mutex_);  // used last in front
  size_t dirty_ STRATA_GUARDED_BY(mutex_) = 0;
  bool writing_ STRATA_GUARDED_BY(mutex_) = false;
  std::set<SpaceId> spaces_;  // known to exist; only whoever is writing
  AlignedBytes buffer_;       // only whoever is writing
  std::atomic<uint64_t> hits_{0}, misses_{0}, written_{0};
};

}  // namespace strata::storenode
