// Pages on storage nodes that compute writes itself (pagefile/page_source.h): profile remote-disk.
// Redo is the kernel's own work. Thread-safe.
//   WP1  write_batch() and sync() are OK as WN1 and WN2 say (written_nodes.h): all nodes in sync
//        have it, or are no longer in sync. A page that was not written everywhere is written again
//        whole.
//   WP2  Pages are read from nodes in sync only, in the session that they know; checksum, identity
//        and, for pages given up lately, llsn are verified. A node whose copy is damaged or old is
//        passed over, and gets the good copy of another one.
//   WP3  Copies of a page may differ in what was written since the last checkpoint when a life
//        begins. Recovery (engine/recovery.cc) counts every page that the log since then names as
//        dirty, also one that has all of it already, so that it is written to all.
//   WP4  Reads end: by their timeout, or when stop() is called.
//   WP5  After follow() no read is begun at, and no write waits for, a node that has lost its place
//        (WN6).
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "base/latch.h"
#include "clients/storage/given_up_pages.h"
#include "clients/storage/written_nodes.h"
#include "pagefile/page_source.h"
#include "proto/page_messages.h"

namespace strata::clients {

struct WrittenPagesOptions {
  WrittenNodesOptions nodes;
  size_t given_up_max = 1u << 20;         // pages whose llsn is known exactly
  uint64_t call_timeout_us = 3'000'000;   // of a read; then another node is asked
  uint64_t read_timeout_us = 30'000'000;  // then read() fails
  bool page_images = false;               // storage nodes need none in the log: for experiments
};

class WrittenPageSource final : public PageSource {
 public:
  // Blocks. Errors: those of WrittenNodes::open(). `in_sync` and the world outlive it.
  static StatusOr<std::unique_ptr<WrittenPageSource>> open(const transport::World& world,
                                                           const transport::Secret& secret,
                                                           WrittenPagesOptions options,
                                                           InSyncSet* in_sync);
  ~WrittenPageSource() override;  // stop()

  Status read(PageId id, Llsn at_least, char* page) override;
  // One call for all; what that node does not have at hand is left out (no other is asked).
  void read_batch(const PageId* ids, uint32_t count, char* pages, Status* results) override;
  // The same, and nobody waits for it: it ends in the world's thread, by its timeout at the latest.
  void start_read_batch(const PageId* ids, uint32_t count, char* pages, Status* results,
                        ReadBatchDone done) override;
  Status write(PageId id, const char* page) override;
  // All or none of them count as written.
  Status write_batch(const PageId* ids, uint32_t count, const char* pages, bool* ok) override;
  Status sync() override { return nodes_->sync(); }
  Status create_space(SpaceId space) override;
  Status delete_space(SpaceId space) override;
  StatusOr<bool> space_exists(SpaceId space) override;
  StatusOr<std::vector<SpaceId>> list_spaces() override;
  Status grow_space(SpaceId space, uint32_t pages) override;
  [[nodiscard]] bool needs_page_images() const override { return options_.page_images; }

  // WP5: the placement has changed. Does not block.
  void follow(const ReplicaSet& replicas) { nodes_->follow(replicas); }
  void stop();

  // Somebody else has written the page to all nodes in sync (WrittenNodes::to_all_through()).
  void note_written(PageId id, Llsn llsn) { given_up_.note(id, llsn); }

  struct Counters {
    std::atomic<uint64_t> pages{0}, calls{0}, retries{0}, bad_pages{0}, wait_us{0};
    std::atomic<uint64_t> read_ahead{0};  // of the pages, those that came in a batch
    std::atomic<uint64_t> repaired{0};    // copies replaced by a good one
    std::atomic<uint64_t> pages_written{0}, write_calls{0}, write_errors{0};
  };
  [[nodiscard]] const Counters& counters() const noexcept { return counters_; }
  [[nodiscard]] WrittenNodes* nodes() noexcept { return nodes_.get(); }

 private:
  struct Attempt;
  // Where what a batch brings belongs.
  struct Batch {
    const PageId* ids;
    uint32_t count;
    char* pages;
    Status* results;
    uint64_t begin_us;
  };
  struct BatchUnderWay;
  [[nodiscard]] proto::GetPagesRequest request_of(const Batch& batch, uint64_t session) const;
  void take_batch(const WrittenNodes::Reader& reader, const proto::GetPagesRequest& request,
                  const StatusOr<proto::GetPagesReplyView>& reply, const Batch& batch);
  explicit WrittenPageSource(WrittenPagesOptions options);
  [[nodiscard]] Llsn needed(PageId id, Llsn at_least) const;
  Status read_round(PageId id, Llsn from, char* page, Attempt* attempt);
  Status read_from(const WrittenNodes::Reader& reader, PageId id, Llsn from, char* page);
  static StatusOr<proto::GetPagesReplyView> view_reply(size_t pages, Bytes bytes);
  // The reply lies in *bytes.
  StatusOr<proto::GetPagesReplyView> ask(const WrittenNodes::Reader& reader,
                                         const proto::GetPagesRequest& request, std::string* bytes);
  void repair(const Attempt& attempt, PageId id, const char* page);
  Status about_space(uint16_t method, SpaceId space, uint32_t pages);
  bool may_try_again(uint64_t deadline_us);

  const WrittenPagesOptions options_;
  std::unique_ptr<WrittenNodes> nodes_;
  GivenUpPages given_up_;
  Counters counters_;
  std::atomic<uint32_t> batches_under_way_{0};
  Mutex mutex_{LatchRank::kLeaf};
  CondVar stop_changed_;
  bool stopped_ STRATA_GUARDED_BY(mutex_) = false;
};

}  // namespace strata::clients
