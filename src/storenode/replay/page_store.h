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
//   RP5  From begin_copy() until finish_copy() succeeds, over any crash, it answers no request but
//        with kUnavailable, and needs all of its logs.
//   RP6  Damage of one page is mended with a peer's copy, if peers can be asked and one has it.
//
// Work in the background is done by threads (start()), or step by step by one thread that calls
// scan_step(), replay_step(), serve_step() ... as it likes (simulation): never both at a time.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/status.h"
#include "io/file_system.h"
#include "storenode/replay/copy_offer.h"
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
  // Smart: streams are added while it serves, as servers begin them. So a change that is missing in
  // a page's chain is never taken for damage: a stream that is not known yet may bring it.
  bool streams_come = false;
  uint32_t workers = 2;  // smart: pages replayed in parallel
  // Smart: the newest log, which workers leave alone while its pages go on changing from checkpoint
  // to checkpoint, but for six of them at most: a page that changes all the time is then stored
  // once for many changes. Half of the log cache and of the map at most: the map needs about as
  // many bytes as that log for small changes, and what it has no room for is written (VM6).
  uint64_t replay_lag_bytes = 0;
  uint32_t servers = 2;  // threads that go on with requests that had to wait
  uint64_t page_cache_bytes = 64u << 20;
  uint64_t log_cache_bytes = 64u << 20;
  uint64_t map_bytes = 64u << 20;
  uint64_t memtable_bytes = 64u << 20;
  uint32_t open_files_max = 512;  // kept open, of page files and of RocksDB's each
  uint64_t scan_batch_bytes = 1u << 20;
  // Smart: so long log that has come is left alone, unless a request waits for it: what comes
  // meanwhile is scanned with it.
  uint64_t scan_delay_us = 0;
  uint64_t device_errors_us = 10'000'000;  // so long an error of the disk may pass (VD7)
  uint64_t checkpoint_interval_us = 10'000'000;
  uint64_t collect_interval_us = 10'000'000;
  LeaseOptions leases;
  std::function<uint64_t()> now_us = monotonic_us;
  // Asks peers for a page as of a range of llsns (RP6). Answers once, from any thread, perhaps
  // before it returns; with no latch held. May be null.
  std::function<void(const GetPageRequest& request, GetPageDone done)> ask_peers;
  // A store that is damaged as a whole is opened as one that needs_copy(), and one that meets
  // damage which is not that of a single page (VD6) becomes one.
  bool copy_when_damaged = false;
};

// Of all logs, as far as they are known to be durable here.
struct ReplayProgress {
  uint64_t backlog_bytes = 0;   // not replayed
  uint64_t scan_lag_bytes = 0;  // not scanned, at the end of the last scan
  uint64_t scanned_bytes = 0;   // since the start; only grows
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
  bool copying = false;  // RP5
  uint64_t pages_copied = 0, pages_to_copy = 0;
  Status failure;  // what keeps a stream from being replayed
  Status trouble;  // what work in the background failed of, and tries again: a full disk; damage
};

class PageStore {
 public:
  // Blocks. Errors: those of VersionDb::open() and of page files.
  static StatusOr<std::unique_ptr<PageStore>> open(const PageStoreOptions& options);
  ~PageStore();  // stop()
  PageStore(const PageStore&) = delete;
  PageStore& operator=(const PageStore&) = delete;

  // `log` outlives the store; `begin`: where the stream began. A log that lacks what is needed is
  // said in status(), not here. kInvalidArgument: this mode serves one stream. kDataLoss: its marks
  // are damaged (see copy_when_damaged). Blocks. Mode `smart`: also while threads run, by one
  // thread at a time.
  Status add_stream(StreamId stream, LogView* log, Lsn begin);

  // Streams of which pages here have changes: replayed in an earlier life, or at the peer that the
  // pages were copied from. Not all need have a log here. Blocks; kUnavailable while copying.
  StatusOr<std::vector<StreamId>> known_streams();

  // `done` is called once, in this thread or another, with no latch held. Blocks for disk only.
  void get_page(GetPageRequest request, GetPageDone done);
  // Blocks until answered. Threads must be running unless the deadline is in the past.
  StatusOr<PageAnswer> get_page(GetPageRequest request);
  // The answer if everything is in memory, for a thread that must not wait: nothing blocks but what
  // LogView::durable_lsn() does. Nothing: get_page() says. request.deadline_us does not matter.
  struct AtHand {
    PageAnswer page;
    ReplayProgress progress;
  };
  std::optional<AtHand> page_at_hand(const GetPageRequest& request);
  // Spaces that have pages and are not dropped. Blocks. `as_of` (may be null): as far as the log is
  // known here, damaged or not; pages that a peer gave are no sign of it.
  StatusOr<std::vector<SpaceId>> list_spaces(Llsn* as_of = nullptr);
  [[nodiscard]] bool streams_come() const noexcept;
  // How far the logs are durable here, of all streams that are known. Empty while copying.
  [[nodiscard]] std::vector<GetPageRequest::Position> durable_positions() const;
  // See LeaseTable. kUnavailable: the pages are being copied.
  Status renew_lease(uint64_t reader, Llsn at, uint64_t now_us);
  void release_lease(uint64_t reader);
  // Puts a peer's good copy in the place of a stored version (in mode single: of the page, if it is
  // as of `llsn`). kDataLoss: it is damaged, too.
  Status repair_version(PageId page, Llsn llsn, const char* sealed_page);
  // The log may be whole again.
  void retry();

  // --- for a peer that copies the pages from here (CO1, CO2). Block; kUnavailable while copying
  StatusOr<CopyOffer> offer_copy();
  // From `from` on. kUnavailable: not replayed up to `marks`.
  StatusOr<PageListing> list_pages(PageId from, uint32_t pages_max,
                                   const std::vector<CopyMark>& marks);

  // --- copying the pages from a peer; one thread, and not while stop() runs. All block. ---
  // A log begins behind what is needed of it next, or that cannot be had any more; or the store is
  // damaged (copy_when_damaged); or a copy was begun and not finished.
  [[nodiscard]] bool needs_copy() const;
  // The log is damaged up to `to`, and nobody has what stood there. Thread-safe.
  void note_lost(StreamId stream, Lsn to);
  // Whether the logs here hold what follows these positions.
  [[nodiscard]] Status check_marks(const std::vector<CopyMark>& marks) const;
  // Removes every page and serves nothing from then on (RP5). Again: from the beginning. `pages`:
  // how many will come, about; for status().
  Status begin_copy(uint64_t pages);
  // kDataLoss: the page is damaged, or another one.
  Status put_copied(PageId page, const char* sealed_page);
  // No peer has it undamaged.
  Status put_broken(PageId page, const CopyMark& mark);
  // `at`: the positions in the offer that came before the first page. `last`: what the last peer
  // offered after the last page. Serves again when it returns OK, and goes on with the log.
  Status finish_copy(const std::vector<CopyMark>& at, const CopyOffer& last);

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
  [[nodiscard]] ReplayProgress progress() const;
  [[nodiscard]] Lsn needed_from(StreamId stream) const;
  [[nodiscard]] PageStoreStatus status() const;
  [[nodiscard]] const ReplayCounters& counters() const;

 private:
  class Impl;   // what serves; there is none while the pages are being copied
  class Shell;  // what outlives it
  explicit PageStore(std::unique_ptr<Shell> shell);
  std::unique_ptr<Shell> shell_;
};

}  // namespace strata::storenode
