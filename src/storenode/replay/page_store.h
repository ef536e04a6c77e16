// The page store of a storage node: takes in the logs, makes pages of them in one of four modes,
// and serves them as of an llsn. Thread-safe unless said otherwise.
//
//   RP1  Nothing at or beyond a log's quorum-durable Lsn is applied or served (S1).
//   RP2  What get_page() answers is, byte for byte but for the checksum, the page as its writer had
//        it at that llsn; or an error that says why not (request.h).
//   RP3  After a crash or power loss it goes on at marks that were made durable after what they
//        stand for; what lies above is redone from the logs. So is everything, if the version store
//        is lost and the logs still begin where they did.
//   RP4  A log may be cut off below needed_from(): everything below is durable here.
//
// Work in the background is done by threads (start()), or step by step by one thread that calls
// scan_step(), replay_step(), serve_step() ... as it likes (simulation): never both at a time.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/status.h"
#include "io/file_system.h"
#include "storenode/replay/counters.h"
#include "storenode/replay/log_view.h"
#include "storenode/replay/request.h"
#include "storenode/versions/leases.h"
#include "storenode/versions/version_db.h"

namespace strata::storenode {

enum class ReplayMode : uint8_t {
  kSingle,    // logdb: one version per page, in place
  kEager,     // logdb-mv
  kFiltered,  // logdb-mv-fr
  kSmart,     // logdb-mv-sr
};

struct PageStoreOptions {
  std::string directory;        // made when absent
  FileSystem* files = nullptr;  // of page files; of RocksDB's, too, if rocksdb_on_files
  bool rocksdb_on_files = false;
  uint64_t cluster_id = 0;
  ReplayMode mode = ReplayMode::kSmart;
  bool store_every_version = false;  // smart: also those that the horizon lets go
  uint32_t workers = 2;              // smart: pages replayed in parallel
  // Smart: the newest log, which workers leave alone until the second checkpoint from then at most:
  // a page that changes all the time is then stored once for many changes. Should fit in the log
  // cache.
  uint64_t replay_lag_bytes = 0;
  uint32_t servers = 2;  // threads that go on with requests that had to wait
  uint64_t page_cache_bytes = 64u << 20;
  uint64_t log_cache_bytes = 64u << 20;
  uint64_t map_bytes = 64u << 20;
  uint64_t memtable_bytes = 64u << 20;
  uint64_t scan_batch_bytes = 1u << 20;
  uint64_t checkpoint_interval_us = 10'000'000;
  uint64_t collect_interval_us = 10'000'000;
  LeaseOptions leases;
  std::function<uint64_t()> now_us = monotonic_us;
};

struct PageStoreStatus {
  struct Stream {
    StreamId stream;
    Lsn durable;  // by the quorum
    StreamMark scanned;
    StreamMark replayed;
    Lsn needed_from;  // RP4
  };
  std::vector<Stream> streams;
  uint64_t backlog_bytes = 0;  // log that is durable and not replayed
  uint64_t scan_lag_bytes = 0;
  Llsn horizon;
  uint64_t leases = 0;
  uint64_t version_store_bytes = 0;
  uint64_t map_memory_bytes = 0;
  uint64_t map_entries_unwritten = 0;  // in memory only
  uint64_t map_entries_written = 0;    // ever, into the version store
  uint64_t page_cache_hits = 0, page_cache_misses = 0;
  uint64_t versions_stored = 0, versions_collected = 0, spaces_reclaimed = 0;
  Status failure;  // what keeps a stream from being replayed
  Status trouble;  // what work in the background failed of, and tries again: a full disk
};

class PageStore {
 public:
  // Blocks. Errors: those of VersionDb::open() and of page files.
  static StatusOr<std::unique_ptr<PageStore>> open(const PageStoreOptions& options);
  ~PageStore();  // stop()
  PageStore(const PageStore&) = delete;
  PageStore& operator=(const PageStore&) = delete;

  // `log` outlives the store; `begin`: where the stream began. A log that lacks what is needed is
  // said in status(), not here. kInvalidArgument: this mode serves one stream. Not while threads
  // run.
  Status add_stream(StreamId stream, LogView* log, Lsn begin);

  // `done` is called once, in this thread or another, with no latch held. Blocks for disk only.
  void get_page(GetPageRequest request, GetPageDone done);
  // Blocks until answered. Threads must be running unless the deadline is in the past.
  StatusOr<PageAnswer> get_page(GetPageRequest request);
  // Spaces that have pages and are not dropped. Blocks.
  StatusOr<std::vector<SpaceId>> list_spaces();
  [[nodiscard]] LeaseTable& leases();
  // Puts a peer's good copy in the place of a stored version. kDataLoss: it is damaged, too.
  Status repair_version(PageId page, Llsn llsn, const char* sealed_page);
  // The log may be whole again.
  void retry();

  void start();
  void stop();  // requests that wait are answered with kUnavailable; a last checkpoint

  // --- one thread; false: there was nothing to do ---
  StatusOr<bool> scan_step();
  StatusOr<bool> replay_step();
  bool serve_step();       // a request that need not wait any more
  void expire_requests();  // those whose deadline has passed
  Status raise_horizon();  // as far as leases and window allow
  StatusOr<bool> collect_step(uint32_t pages_max);
  Status checkpoint();   // everything replayed so far is durable, and RP4 moves on
  void forget_caches();  // for tests

  // --- for others to watch; cheap ---
  [[nodiscard]] uint64_t backlog_bytes() const;
  [[nodiscard]] Lsn needed_from(StreamId stream) const;
  [[nodiscard]] PageStoreStatus status() const;
  [[nodiscard]] const ReplayCounters& counters() const;

 private:
  class Impl;
  explicit PageStore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace strata::storenode
