// Pages that several memory nodes keep between the buffer pool and storage, each page on one of
// them. Thread-safe.
//   PST1  A page's place follows from its id and the number of pools, for all time: where the pools
//         are named in another order, or others are, new ones are made.
//   PST2  A checkpoint is noted in memory once everything before it is in the pools or durable in
//         storage, whichever pools are used then. Recovery begins there only if every pool that is
//         named was found whole and has such a note that counts; the least of them is taken.
//   PST3  sync_below() is OK once it is for the pages of every pool.
//   PST4  A pool that is lost concerns its own pages only: if storage lacks nothing of them, they
//         go to storage, and the others stay as they are. Otherwise this ends (PAT3).
//   PST5  What a storage node has forgotten it is told again by all pools, or not at all.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "base/latch.h"
#include "clients/memory/memory_page_source.h"

namespace strata::clients {

// PST1
[[nodiscard]] uint32_t place_of(PageId id, uint32_t pools) noexcept;

class PoolSet final : public PageSource {
 public:
  struct Member {
    RemotePool* pool = nullptr;
    PoolNaming* naming = nullptr;
  };
  // By place, 1 at least. Blocks. All of them outlive it. Errors: as MemoryPageSource::open().
  static StatusOr<std::unique_ptr<PoolSet>> open(const MemoryPagesOptions& options,
                                                 const std::vector<Member>& members,
                                                 StorageBelow* storage);
  ~PoolSet() override;  // stop(); no call may be under way

  Status read(PageId id, Llsn at_least, char* page) override;
  void read_batch(const PageId* ids, uint32_t count, char* pages, Status* results) override;
  // One batch of gets for each memory node, and one call to storage for what none of them has.
  void start_read_batch(const PageId* ids, uint32_t count, char* pages, Status* results,
                        ReadBatchDone done) override;
  Status write(PageId id, const char* page) override { return pool_of(id)->write(id, page); }
  Status write_batch(const PageId* ids, uint32_t count, const char* pages, bool* ok) override;
  Status write_changed(const PageId* ids, const PageChanges* changes, uint32_t count,
                       const char* pages, bool* ok) override;
  [[nodiscard]] bool wants_evicted() const override { return true; }
  void evicted(PageId id, const char* page) noexcept override { pool_of(id)->evicted(id, page); }
  Status sync() override;
  Status sync_below(Lsn floor) override;
  Status create_space(SpaceId space) override { return below_->create_space(space); }
  Status delete_space(SpaceId space) override;
  StatusOr<bool> space_exists(SpaceId space) override { return below_->space_exists(space); }
  StatusOr<std::vector<SpaceId>> list_spaces() override { return below_->list_spaces(); }
  Status grow_space(SpaceId space, uint32_t pages) override {
    return below_->grow_space(space, pages);
  }
  StatusOr<uint32_t> space_pages(SpaceId space) override { return below_->space_pages(space); }
  [[nodiscard]] bool has_memory_tier() const override { return true; }
  StatusOr<bool> publish_memory_checkpoint(const MemoryCheckpoint& at) override;
  std::optional<MemoryCheckpoint> memory_checkpoint() override;
  Status read_version(PageId id, Llsn at_least, Llsn at_most, char* page) override {
    return pool_of(id)->read_version(id, at_least, at_most, page);
  }
  // MS10
  [[nodiscard]] bool replays_log() const override { return below_->replays_log(); }
  [[nodiscard]] bool wants_changes_in_log() const override { return below_->replays_log(); }
  void changed_in_log(PageId id, Llsn llsn) override { pool_of(id)->changed_in_log(id, llsn); }
  void begin_at(Llsn last) override {
    for (const auto& pool : pools_) pool->begin_at(last);
  }
  [[nodiscard]] bool needs_page_images() const override { return below_->needs_page_images(); }

  void stop();                         // nothing is done in the background any more. Blocks.
  void do_work();                      // one round of it, for tests
  void look_after_pools();             // MS9, likewise
  [[nodiscard]] Status ended() const;  // why nothing is written any more
  [[nodiscard]] size_t size() const noexcept { return pools_.size(); }
  [[nodiscard]] const MemoryPageSource& pool(size_t place) const noexcept { return *pools_[place]; }

 private:
  // The storage below, as one of the pools sees it.
  class Share;
  explicit PoolSet(StorageBelow* storage);
  [[nodiscard]] MemoryPageSource* pool_of(PageId id) const noexcept {
    return pools_[place_of(id, static_cast<uint32_t>(pools_.size()))].get();
  }
  proto::PoolAnswer write_again(const proto::PoolTarget& target);

  StorageBelow* const storage_;
  PageSource* const below_;
  std::vector<std::unique_ptr<Share>> shares_;
  std::vector<std::unique_ptr<MemoryPageSource>> pools_;  // go first
  std::atomic<uint32_t> batches_under_way_{0};
};

}  // namespace strata::clients
