// The pages of a storage node whose pages compute writes: in files, in place, under a double write.
// Knows nothing of logs. Thread-safe; everything blocks.
//
//   WS1  Pages are written, synced, and spaces changed only in the session begun last. begin()
//        returns once everything of earlier sessions has ended; from then on they are refused.
//        Where one process writes the pages of several servers (of_several) these change spaces
//        themselves, naming no session: in the one of now, whichever that is.
//   WS2  A restarted store knows no session: it refuses until one is begun. So a sync never vouches
//        for writes of before a restart, and reads that name a session get nothing from a store
//        that may have lost some of its writes.
//   WS3  An epoch below the highest that ever began here is refused, restarts included.
//   WS4  A page is read and written as a whole: nobody sees half of a write.
//   WS5  take() stores a page only where it is newer (llsn) than what is here, or what is here is
//        damaged. A space deleted in this session never comes back by it, one created in this
//        session never goes by drop_spaces_but().
//   WS6  Pages that arrive are verified (checksum, identity) before they are stored, and when read.
#pragma once

#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/latch.h"
#include "base/status.h"
#include "io/file_system.h"
#include "pagefile/page_source.h"
#include "proto/written_messages.h"
#include "storenode/written/busy_set.h"
#include "storenode/written/store_mark.h"

namespace strata::storenode {

struct WrittenStoreOptions {
  std::string directory;        // made when absent
  FileSystem* files = nullptr;  // outlives the store
  bool direct_io = true;
  uint64_t number = 0;          // of a store that is made: random, not 0
  uint32_t open_files_max = 0;  // kept open; 0: a part of the process's limit
  bool of_several = false;      // WS1
};

class WrittenStore {
 public:
  // Repairs what a power loss has torn. Errors: kDataLoss (SK2), the file system's.
  static StatusOr<std::unique_ptr<WrittenStore>> open(const WrittenStoreOptions& options);
  ~WrittenStore();
  WrittenStore(const WrittenStore&) = delete;
  WrittenStore& operator=(const WrittenStore&) = delete;

  // --- in a session; no_session: it is not the one of now (WS1); fenced (WS3) ---

  StatusOr<proto::BeginWritesReply> begin(const proto::Writer& writer, uint64_t continues);
  // `pages` is aligned for direct I/O; ids ascend. An error: some may be written.
  Status write(const proto::Writer& writer, const PageId* ids, uint32_t count, const char* pages);
  Status sync(const proto::Writer& writer);
  Status create_space(const proto::Writer& writer, SpaceId space);
  Status delete_space(const proto::Writer& writer, SpaceId space);
  Status grow_space(const proto::Writer& writer, SpaceId space, uint32_t pages);

  // --- a copy of another node's pages; in a session (WS5) ---

  // Makes the space, and room in it as where there is room for `pages`. False: it was deleted in
  // this session.
  StatusOr<bool> prepare_space(const proto::Writer& writer, SpaceId space, uint32_t pages);
  // At most kReadBatchPages, aligned for direct I/O, ids ascend. Returns how many were stored.
  StatusOr<uint32_t> take(const proto::Writer& writer, const PageId* ids, uint32_t count,
                          const char* pages);
  // Deletes the spaces that the peer did not have.
  Status drop_spaces_but(const proto::Writer& writer, const std::set<SpaceId>& kept);

  // --- reading ---

  // no_session unless `session` of `epoch` is the one of now; 0: any.
  Status check_session(Epoch epoch, uint64_t session) const;
  // At most kReadBatchPages, to a place aligned for direct I/O; results[i] as of
  // PageSource::read().
  void read(const PageId* ids, uint32_t count, char* pages, Status* results);
  StatusOr<std::vector<SpaceId>> list_spaces() { return source_->list_spaces(); }
  StatusOr<std::vector<proto::SpaceSize>> list_sizes();

  [[nodiscard]] uint64_t number() const noexcept { return number_; }
  [[nodiscard]] proto::Writer session() const;  // session 0: none
  // OK, or why no sync succeeds any more until a restart.
  [[nodiscard]] Status trouble() const;

  struct Counters {
    std::atomic<uint64_t> sessions{0}, refused{0};
    std::atomic<uint64_t> write_calls{0}, pages_written{0}, syncs{0};
    std::atomic<uint64_t> pages_read{0}, pages_not_found{0}, pages_damaged{0};
    std::atomic<uint64_t> pages_taken{0}, pages_kept{0};  // of copies
  };
  [[nodiscard]] const Counters& counters() const noexcept { return counters_; }

 private:
  class InSession;
  WrittenStore(const WrittenStoreOptions& options, StoreMark mark);
  Status refuse_begin(const proto::Writer& writer) const STRATA_REQUIRES(mutex_);
  Status note_epoch(Epoch epoch);

  const WrittenStoreOptions options_;
  const uint64_t number_;
  std::unique_ptr<PageSource> source_;
  BusySet<PageId> pages_;
  BusySet<SpaceId> spaces_;
  mutable Mutex mutex_{LatchRank::kLeaf};
  CondVar changed_;
  Epoch marked_epoch_ STRATA_GUARDED_BY(mutex_);        // durable
  proto::Writer session_ STRATA_GUARDED_BY(mutex_);     // session 0: none
  uint64_t chain_first_ STRATA_GUARDED_BY(mutex_) = 0;  // session_ continues all from this one on
  bool beginning_ STRATA_GUARDED_BY(mutex_) = false;
  uint32_t running_ STRATA_GUARDED_BY(mutex_) = 0;       // operations of the session
  std::set<SpaceId> created_ STRATA_GUARDED_BY(mutex_);  // in this session
  std::set<SpaceId> deleted_ STRATA_GUARDED_BY(mutex_);  // in this session
  Status trouble_ STRATA_GUARDED_BY(mutex_);
  Counters counters_;
};

}  // namespace strata::storenode
