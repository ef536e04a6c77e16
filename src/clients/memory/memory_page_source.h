// Pages that a memory node keeps between the buffer pool and storage (LegoBase, §4 and §5): profile
// lego. Thread-safe.
//   MS1  A page is read where its newest written version is: from its slot, if it has one, else
//        from storage. What a slot holds is verified (checksum, identity, exactly the llsn known);
//        after kMismatchesMax reads that were something else the memory node says where the page
//        is. A page that storage may lack and that the pool has no more, or damaged, is kDataLoss:
//        it is never read from storage.
//   MS2  write_changed() is OK for a page that the pool has taken, or, if the pool is full and has
//        no slot of it, that storage has. A page with a slot is never written past it.
//   MS3  What was written past the pool is synced before a checkpoint in memory says that
//        everything before it is in the pool or in storage.
//   MS4  sync_below(F) is OK once storage has been synced after it was given everything below F,
//        and the pool says that it has nothing below F that storage may lack. The pool takes for
//        durable only what was reported before that sync began.
//   MS5  Copies of pages read from storage, and of evicted ones, are registered later, by a thread
//        of this source. A copy is void once the page is written.
//   MS6  Slots are kept free: by dropping pages that are clean and out of use, the coldest first,
//        and by granting the memory node writes to storage while many pages are dirty.
//   MS7  Nothing of a space is in the pool, nor on its way to storage, when storage deletes it.
//   MS8  Without a memory node pages go to storage alone, as long as that has everything; a new
//        pool is tried from time to time (PAT1-PAT4, pool_attachment.h).
//   MS9  A memory node that has lost its pool is noticed within about a second, also when nobody
//        wants a page of it; one that does not answer, when it has a backup. Without one it has
//        some timeouts more: only pages that somebody needs make it urgent.
//   MS10  Where storage makes pages from the log, the pool has copies only: what is written goes
//         there clean, storage is told no more than which version the page's next reader must see,
//         and losing the pool loses nothing. After a start every copy is the newest version of its
//         page: all that was changed before the checkpoint in memory was put, or has no slot; what
//         the log has changed since is dropped, unless the copy is that very version.
// With several memory nodes there is one of these for each (pool_set.h).
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/aligned.h"
#include "base/latch.h"
#include "clients/memory/pool_attachment.h"
#include "clients/memory/remote_directory.h"
#include "clients/memory/remote_pool.h"
#include "clients/memory/staged_pages.h"
#include "clients/memory/storage_below.h"
#include "pagefile/page_source.h"

namespace strata::clients {

struct MemoryPagesOptions {
  std::function<Lsn()> durable;      // up to where the log is; thread-safe, does not block
  uint32_t free_slots = 100;         // to be kept free
  uint32_t reserve_slots = 256;      // that the memory node keeps for itself (PSL8)
  uint32_t staged_pages_max = 256;   // copies that wait
  uint64_t timeout_us = 5'000'000;   // for the memory node to answer
  uint64_t pause_us = 50'000;        // between two tries to attach
  uint64_t new_pool_us = 5'000'000;  // between two tries to have a pool again
  bool remote_addresses = true;      // false: the memory node is asked before each read
  bool keeps_up = true;              // false: no threads; tests call do_work()
  bool founding = false;  // of a new database: nothing is recovered, begin_at() not called
};

class MemoryPageSource final : public PageSource {
 public:
  // Blocks. All of them outlive it. Errors: fenced, those of the registry.
  static StatusOr<std::unique_ptr<MemoryPageSource>> open(MemoryPagesOptions options,
                                                          RemotePool* pool, PoolNaming* naming,
                                                          StorageBelow* storage);
  ~MemoryPageSource() override;  // stop(); no call may be under way

  Status read(PageId id, Llsn at_least, char* page) override;
  // Older states are storage's.
  Status read_version(PageId id, Llsn at_least, Llsn at_most, char* page) override;
  void read_batch(const PageId* ids, uint32_t count, char* pages, Status* results) override;
  // What is in the pool is read at once: a mapping takes no time. The rest ends as storage does it.
  void start_read_batch(const PageId* ids, uint32_t count, char* pages, Status* results,
                        ReadBatchDone done) override;
  // For who does not know what the pages hold: as if they held changes from the beginning of the
  // log on, so that the next checkpoint in storage writes them there.
  Status write(PageId id, const char* page) override;
  Status write_batch(const PageId* ids, uint32_t count, const char* pages, bool* ok) override;
  Status write_changed(const PageId* ids, const PageChanges* changes, uint32_t count,
                       const char* pages, bool* ok) override;
  [[nodiscard]] bool wants_evicted() const override { return true; }
  void evicted(PageId id, const char* page) noexcept override;
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
  std::optional<MemoryCheckpoint> memory_checkpoint() override {
    return attachment_.found_checkpoint();
  }
  [[nodiscard]] bool replays_log() const override { return copies_; }
  [[nodiscard]] bool wants_changes_in_log() const override { return copies_; }
  void changed_in_log(PageId id, Llsn llsn) override;
  void begin_at(Llsn last) override;
  [[nodiscard]] bool needs_page_images() const override { return below_->needs_page_images(); }

  // --- for who has several of them (pool_set.h) ---
  // Those of the batch, by number in `which`, that the pool has are read; the others are put to
  // missing[0..result).
  uint32_t read_from_pool(const PageId* ids, const uint32_t* which, uint32_t count, char* pages,
                          Status* results, uint32_t* missing);
  // MS5: a page that was read from storage; that many more were.
  void keep_copy(PageId id, const char* page) noexcept { stage(id, page, /*out_of_use=*/false); }
  void count_from_storage(uint32_t pages) noexcept;
  Status forget_space(SpaceId space);  // MS7, but for storage
  Status sync_direct_writes();         // MS3

  // What the pool has found at the start is not to be used: its checkpoint does not fit the log, or
  // the database is a new one. A new pool takes its place, or none. Before any page is read or
  // written. Blocks. Errors: fenced, those of the registry.
  Status discard_pool() { return attachment_.discard(); }

  // Nothing is done in the background any more. Blocks.
  void stop();
  // One round of what the threads do: lists, registers, frees slots, looks for a pool. For tests.
  void do_work();
  void look_after_pool();  // MS9: asks whether it is there. Blocks.

  struct Counters {
    std::atomic<uint64_t> from_pool{0}, from_storage{0};  // pages read
    std::atomic<uint64_t> get_ns{0};                      // of reading and verifying slots
    std::atomic<uint64_t> mismatches{0}, lookups{0};      // reads of slots; pages asked for
    std::atomic<uint64_t> damaged_clean{0}, damaged_dirty{0};
    std::atomic<uint64_t> put{0}, put_again{0}, written_directly{0};
    std::atomic<uint64_t> staged{0}, not_staged{0}, registered{0}, not_registered{0}, dropped{0};
    std::atomic<uint64_t> grants{0}, flushed{0};  // writes of the memory node, and their pages
    std::atomic<uint64_t> storage_checkpoints{0}, memory_checkpoints{0};
    std::atomic<uint64_t> outdated{0};  // copies that the log had changed (MS10)
  };
  [[nodiscard]] const Counters& counters() const noexcept { return counters_; }
  [[nodiscard]] const RemoteDirectory& directory() const noexcept { return directory_; }
  [[nodiscard]] const PoolAttachment& attachment() const noexcept { return attachment_; }
  [[nodiscard]] Status ended() const { return attachment_.ended(); }  // why nothing is written

  static constexpr uint32_t kMismatchesMax = 3;

 private:
  using Located = std::optional<proto::PoolSlot>;
  // What one grant came to.
  struct Granted {
    bool bypass = false;
    size_t pages = 0;  // that all storage nodes have taken
  };
  // What the pool said once it knew that storage was synced; nothing: it was not told.
  using Told = std::optional<proto::PoolSyncedReply>;

  MemoryPageSource(MemoryPagesOptions options, RemotePool* pool, PoolNaming* naming,
                   StorageBelow* storage);

  void start_threads();
  // MS10
  Status drop_outdated();
  Status drop_outdated_of(const std::vector<PageId>& ids);

  // A call to the pool ended so. OK: it may be made once more. Otherwise what to return. Blocks.
  Status settle(PoolAttachment::Use* use, const Status& why, uint64_t begun_us);

  // --- reading (memory_page_source.cc) ---
  Status locate(const PageId* ids, uint32_t count, bool ask, Located* at);
  Status look_up(const std::vector<PageId>& ids, std::vector<proto::PoolLookupReply::Found>* found,
                 bool* bypass);
  void read_located(absl::Span<SlotRead> reads);
  Status read_slot(PageId id, Llsn at_least, char* page, bool* elsewhere, Llsn* known);
  void drop_damaged(PageId id, const proto::PoolSlot& at);
  Status read_storage(PageId id, Llsn at_least, char* page);
  void stage(PageId id, const char* page, bool out_of_use) noexcept;

  // --- writing ---
  Status put_begun(const PageId* ids, const PageChanges* changes, uint32_t count, const char* pages,
                   bool* ok);
  Status take_answers(const std::vector<proto::PoolPutReply::Taken>& taken, const PageId* ids,
                      const char* pages, const std::vector<uint32_t>& asked, bool* ok,
                      std::vector<uint32_t>* without_slot);
  Status write_without_slot(const PageId* ids, const char* pages,
                            const std::vector<uint32_t>& which, bool* ok);
  Status write_directly(const PageId* ids, const char* pages, const std::vector<uint32_t>& which,
                        bool* ok);

  // --- checkpoints, and the memory node's writes (memory_page_source_tasks.cc) ---
  StatusOr<Granted> grant(Lsn below);
  StatusOr<Told> sync_and_tell();
  void note_flushed(const proto::PoolWriteReply& reply, uint64_t number);
  proto::PoolAnswer write_again(const proto::PoolTarget& target);
  void attached_anew();

  // --- the threads ---
  void register_main();
  void relieve_main();
  void list_pages();
  void look_for_pool();
  bool register_some();
  void take_registered(const std::vector<StagedPages::Taken>& staged, const char* pages,
                       const std::vector<proto::PoolPutReply::Taken>& taken);
  [[nodiscard]] size_t free_wanted() const noexcept;
  [[nodiscard]] bool is_short() const noexcept;
  bool relieve();
  bool store_some(Lsn below);
  size_t drop_cold(bool* dirty);
  void wake(std::atomic<bool>* wanted) noexcept;

  const MemoryPagesOptions options_;
  RemotePool* const pool_;
  StorageBelow* const storage_;
  PageSource* const below_;
  const bool copies_;  // MS10
  RemoteDirectory directory_;
  StagedPages staged_;
  PoolAttachment attachment_;
  Counters counters_;
  std::atomic<uint64_t> direct_writes_{0};  // that have ended well
  std::atomic<uint64_t> direct_synced_{0};  // of those
  std::atomic<uint32_t> batches_under_way_{0};

  Mutex mutex_{LatchRank::kLeaf};
  CondVar changed_;
  bool stopped_ STRATA_GUARDED_BY(mutex_) = false;
  bool granting_ STRATA_GUARDED_BY(mutex_) = false;
  struct Flushed {
    uint64_t report;
    PageId id;
    Llsn llsn;
  };
  // Reported, and not yet known to be synced; of this attachment.
  std::vector<Flushed> flushed_ STRATA_GUARDED_BY(mutex_);
  uint64_t report_ STRATA_GUARDED_BY(mutex_) = 0;  // the last one
  uint32_t listed_to_ STRATA_GUARDED_BY(mutex_) = 0;
  uint64_t new_pool_at_us_ STRATA_GUARDED_BY(mutex_) = 0;
  std::atomic<bool> register_wanted_{false};
  std::atomic<bool> relief_wanted_{false};
  AlignedBytes batch_;            // of who registers
  uint64_t silent_since_us_ = 0;  // of who looks after the pool; 0: it answers
  // What the log has changed, and the newest version: of the start.
  std::unordered_map<PageId, Llsn> changed_in_log_;
  std::thread registrar_;
  std::thread reliever_;
};

}  // namespace strata::clients
