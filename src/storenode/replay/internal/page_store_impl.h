// The parts of a page store, wired together. page_store.cc: what one thread does step by step;
// page_store_threads.cc: the threads that do it.
#pragma once

#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "base/latch.h"
#include "pagefile/page_source.h"
#include "storenode/replay/ingest.h"
#include "storenode/replay/page_store.h"
#include "storenode/replay/replay.h"
#include "storenode/replay/single_replay.h"
#include "storenode/versions/collector.h"

namespace strata::storenode {

class PageStore::Impl {
 public:
  explicit Impl(PageStoreOptions options);
  ~Impl() { stop(); }
  Status open();

  Status add_stream(StreamId stream, LogView* log, Lsn begin);
  void get_page(GetPageRequest request, GetPageDone done);
  void advance(TicketPtr ticket);
  void finish(TicketPtr ticket, StatusOr<PageAnswer> answer);
  [[nodiscard]] Status why_late(const Ticket& ticket) const;
  // Waiting would be in vain: what stopped the log or its replay before that point.
  [[nodiscard]] Status failure_before(const Ticket& ticket, const WaitCondition& condition) const;

  StatusOr<bool> scan_step();
  void expire_requests();
  Status raise_horizon();
  Status checkpoint();
  [[nodiscard]] uint64_t backlog_bytes() const;
  [[nodiscard]] Lsn needed_from(StreamId stream) const;

  void start();
  void stop();
  void look_again();  // whoever reads logs, even if they have not grown
  [[nodiscard]] Status trouble() const;

  const PageStoreOptions options;
  std::unique_ptr<VersionDb> db;
  std::unique_ptr<VersionMap> map;
  std::unique_ptr<VersionStore> store;
  std::unique_ptr<LogCache> log_cache;
  Streams streams;
  WaitList waits;
  ReplayCounters counters;
  std::unique_ptr<PageSource> page_files;  // kSingle
  std::unique_ptr<Replay> replay;
  SingleReplay* single = nullptr;
  std::unique_ptr<Ingest> ingest;  // not in kSingle, which reads the log itself
  std::unique_ptr<Collector> collector;
  std::unique_ptr<LeaseTable> leases;

 private:
  struct Wake;  // lives as long as a log may call it
  void scan_thread();
  void worker_thread();
  void server_thread();
  void upkeep_thread();
  void wait_for_log(const std::vector<std::pair<Streams::Stream, Lsn>>& looked_at);
  bool pause(uint64_t microseconds);  // false: stop
  void report(const char* what, const Status& status);

  mutable Mutex mutex_{LatchRank::kLeaf};
  std::map<StreamId, Lsn> needed_from_;
  std::map<std::string, Status> troubles_;  // by work in the background
  std::shared_ptr<Wake> wake_;
  std::vector<std::thread> threads_;
};

}  // namespace strata::storenode
