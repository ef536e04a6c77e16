// The parts of a page store, wired together. page_store.cc: what one thread does step by step;
// page_store_threads.cc: the threads that do it; page_store_copy.cc: how it is replaced by a copy
// of a peer's pages.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "base/latch.h"
#include "pagefile/page_source.h"
#include "storenode/replay/copied_pages.h"
#include "storenode/replay/ingest.h"
#include "storenode/replay/page_store.h"
#include "storenode/replay/replay.h"
#include "storenode/replay/single_replay.h"
#include "storenode/versions/collector.h"

namespace strata::storenode {

class PageStore::Impl : public std::enable_shared_from_this<PageStore::Impl> {
 public:
  // `counters` outlives it.
  Impl(PageStoreOptions options, ReplayCounters* counters);
  ~Impl() { stop(); }
  Status open();

  Status add_stream(StreamId stream, LogView* log, Lsn begin);
  void get_page(GetPageRequest request, GetPageDone done);
  std::optional<AtHand> page_at_hand(const GetPageRequest& request);
  [[nodiscard]] std::optional<uint64_t> backlog_at_hand() const;
  [[nodiscard]] ReplayProgress progress(uint64_t backlog_bytes) const;
  void advance(TicketPtr ticket);
  void finish(TicketPtr ticket, StatusOr<PageAnswer> answer);
  [[nodiscard]] Status why_late(const Ticket& ticket) const;
  // Waiting would be in vain: what stopped the log or its replay before that point.
  [[nodiscard]] Status failure_before(const Ticket& ticket, const WaitCondition& condition) const;

  // RP6
  [[nodiscard]] std::optional<Llsn> version_wanted(const GetPageRequest& request);
  void ask_peers(TicketPtr ticket, const Status& damage);
  void mend(PageId page, Llsn damaged);
  void on_copy(PageId page, Llsn as_of, const StatusOr<PageAnswer>& copy);
  StatusOr<CopyOffer> offer_copy();
  StatusOr<PageListing> list_pages(PageId from, uint32_t pages_max,
                                   const std::vector<CopyMark>& marks);
  StatusOr<std::vector<PageId>> list_page_files(PageId from, uint32_t pages_max);
  [[nodiscard]] bool lacks_log(const std::map<StreamId, Lsn>& lost) const;

  StatusOr<bool> scan_step();
  void note_scan_lag();
  void expire_requests();
  Status raise_horizon();
  Status checkpoint();
  [[nodiscard]] uint64_t backlog_bytes() const;
  [[nodiscard]] Lsn needed_from(StreamId stream) const;

  void start();
  void stop();
  void look_again();  // whoever reads logs, even if they have not grown
  void scan_now();    // somebody waits for what is not scanned yet
  [[nodiscard]] Status trouble() const;

  const PageStoreOptions options;
  std::unique_ptr<VersionDb> db;
  std::unique_ptr<VersionMap> map;
  std::unique_ptr<VersionStore> store;
  std::unique_ptr<LogCache> log_cache;
  Streams streams;
  WaitList waits{options.streams_come};
  ReplayCounters& counters;
  std::atomic<uint64_t> scan_lag_bytes{0};
  std::unique_ptr<PageSource> page_files;  // kSingle
  std::unique_ptr<Replay> replay;
  SingleReplay* single = nullptr;
  std::unique_ptr<Ingest> ingest;  // not in kSingle, which reads the log itself
  std::unique_ptr<Collector> collector;
  std::unique_ptr<LeaseTable> leases;

 private:
  // Lives as long as a log may call it.
  struct Wake {
    Mutex mutex{LatchRank::kLeaf};
    CondVar changed;    // what upkeep and whoever pauses wait for
    CondVar log_grown;  // what the scanner waits for: with every append, so it alone is woken
    bool stop STRATA_GUARDED_BY(mutex) = false;
    bool grown STRATA_GUARDED_BY(mutex) = false;        // some log; the scanner looks
    bool scan_now STRATA_GUARDED_BY(mutex) = false;     // somebody waits for it
    std::set<StreamId> asked STRATA_GUARDED_BY(mutex);  // streams whose log has been asked to tell
    bool deadline STRATA_GUARDED_BY(mutex) = false;     // an earlier one than before; upkeep looks
  };
  // Whoever waits in one of the paper's modes waits for the replay, not for this.
  [[nodiscard]] uint64_t scan_delay_us() const {
    return options.mode == ReplayMode::kSmart ? options.scan_delay_us : 0;
  }
  void scan_thread();
  void worker_thread();
  void server_thread();
  void upkeep_thread();
  void wait_for_log(const std::vector<std::pair<Streams::Stream, Lsn>>& looked_at);
  bool wait_for_growth();
  bool pause(uint64_t microseconds);  // false: stop
  void report(const char* what, const Status& status);

  mutable Mutex mutex_{LatchRank::kLeaf};
  std::map<StreamId, Lsn> needed_from_ STRATA_GUARDED_BY(mutex_);
  std::map<std::string, Status> troubles_ STRATA_GUARDED_BY(mutex_);  // by work in the background
  std::map<PageId, Llsn> mending_
      STRATA_GUARDED_BY(mutex_);  // pages that peers are asked for, and as of when
  const std::shared_ptr<Wake> wake_ = std::make_shared<Wake>();
  std::vector<std::thread> threads_;
};

// Requests take a reference to what serves; a copy waits until nobody has one.
class PageStore::Shell {
 public:
  explicit Shell(PageStoreOptions opts) : options(std::move(opts)) {}
  ~Shell();

  Status open();
  Status add_stream(StreamId stream, LogView* log, Lsn begin);
  // Null: the pages are being copied.
  [[nodiscard]] std::shared_ptr<Impl> impl() const {
    const MutexLock lock(mutex_);
    return impl_;
  }
  // Without waiting for the latch: null also if somebody has it.
  [[nodiscard]] std::shared_ptr<Impl> impl_at_hand() const {
    if (!mutex_.try_lock()) return nullptr;
    const MutexLock lock(mutex_, std::adopt_lock);
    return impl_;
  }
  [[nodiscard]] static Status being_copied();
  void start();
  void stop();
  Status begin_copy(uint64_t pages);
  Status finish_copy(const std::vector<CopyMark>& at, const CopyOffer& last);
  [[nodiscard]] Status check_marks(const std::vector<CopyMark>& marks) const;
  [[nodiscard]] uint64_t backlog_bytes() const;
  void fill_status(PageStoreStatus* status) const;  // while the pages are being copied
  void note_lost(StreamId stream, Lsn to);
  [[nodiscard]] std::map<StreamId, Lsn> lost() const;

  const PageStoreOptions options;
  ReplayCounters counters;
  std::unique_ptr<CopiedPages> copy;  // the copier's
  std::atomic<uint64_t> pages_copied{0}, pages_to_copy{0};

 private:
  struct StreamHere {
    StreamId id;
    LogView* log;
    Lsn begin;
  };
  Status open_impl();
  void close_impl();
  void delete_impl();
  Status copied_if_damaged(const Status& status) const;
  Status add_streams(Impl* impl, size_t* added) const;
  [[nodiscard]] std::vector<StreamHere> streams() const;
  [[nodiscard]] bool is_running() const;

  mutable Mutex mutex_{LatchRank::kLeaf};
  CondVar gone_;
  std::shared_ptr<Impl> impl_ STRATA_GUARDED_BY(mutex_);
  bool exists_ STRATA_GUARDED_BY(mutex_) = false;         // what served last is not deleted yet
  std::unique_ptr<Impl> left_ STRATA_GUARDED_BY(mutex_);  // ... and nobody has a reference to it
  bool running_ STRATA_GUARDED_BY(mutex_) = false;
  std::vector<StreamHere> streams_ STRATA_GUARDED_BY(mutex_);
  std::map<StreamId, Lsn> lost_ STRATA_GUARDED_BY(mutex_);  // logs that are of no use below
};

}  // namespace strata::storenode
