#include "storenode/replay/page_store.h"

#include <algorithm>
#include <cstring>
#include <future>

#include "base/fault.h"
#include "pagefile/local_page_source.h"
#include "storenode/replay/internal/page_store_impl.h"
#include "storenode/replay/sequential_replay.h"
#include "storenode/replay/smart_replay.h"

namespace strata::storenode {

PageStore::Impl::Impl(PageStoreOptions opts) : options(std::move(opts)) {}

Status PageStore::Impl::open() {
  STRATA_RETURN_IF_ERROR(options.files->make_directory(options.directory));
  VersionDbOptions versions;
  versions.directory = options.directory + "/versions";
  // RocksDB would make it, but not without a message that it is missing.
  STRATA_RETURN_IF_ERROR(options.files->make_directory(versions.directory));
  versions.files = options.rocksdb_on_files ? options.files : nullptr;
  versions.cluster_id = options.cluster_id;
  versions.layout =
      options.mode == ReplayMode::kSingle ? StoreLayout::kInPlace : StoreLayout::kVersions;
  versions.memtable_bytes = options.memtable_bytes;
  STRATA_ASSIGN_OR_RETURN(db, VersionDb::open(versions));
  map = std::make_unique<VersionMap>(db.get(), options.map_bytes);
  STRATA_RETURN_IF_ERROR(map->open());
  store = std::make_unique<VersionStore>(db.get(), options.page_cache_bytes);
  log_cache = std::make_unique<LogCache>(options.log_cache_bytes);
  collector = std::make_unique<Collector>(db.get(), map.get());
  leases = std::make_unique<LeaseTable>(options.leases, map->horizon(), options.now_us());
  const ReplayParts parts{db.get(), map.get(), store.get(), log_cache.get(),
                          &streams, &waits,    &counters};
  switch (options.mode) {
    case ReplayMode::kSingle: {
      LocalPageSourceOptions files;
      files.directory = options.directory + "/pages";
      STRATA_ASSIGN_OR_RETURN(page_files, open_local_page_source(options.files, files));
      auto made = std::make_unique<SingleReplay>(parts, page_files.get(), options.page_cache_bytes);
      STRATA_RETURN_IF_ERROR(made->open());
      single = made.get();
      replay = std::move(made);
      return ok_status();
    }
    case ReplayMode::kEager:
      replay = std::make_unique<SequentialReplay>(parts, SequentialWait::kEager);
      break;
    case ReplayMode::kFiltered:
      replay = std::make_unique<SequentialReplay>(parts, SequentialWait::kFiltered);
      break;
    case ReplayMode::kSmart:
      replay = std::make_unique<SmartReplay>(
          parts, std::max(1u, options.workers),
          options.store_every_version ? Keep::kEvery : Keep::kNeeded, options.replay_lag_bytes);
      break;
  }
  ingest = std::make_unique<Ingest>(parts, replay.get());
  return ok_status();
}

Status PageStore::Impl::add_stream(StreamId stream, LogView* log, Lsn begin) {
  STRATA_ASSIGN_OR_RETURN(const auto replayed, db->read_mark(Mark::kReplayed, stream));
  const StreamMark from = replayed.value_or(StreamMark{begin, Llsn{}});
  if (ingest != nullptr) {
    STRATA_RETURN_IF_ERROR(ingest->add_stream(stream, log, begin));
  } else {
    STRATA_RETURN_IF_ERROR(replay->add_stream(stream, log, from));
    streams.add({stream, log});
  }
  const MutexLock lock(mutex_);
  needed_from_[stream] = from.lsn;
  return ok_status();
}

// --- requests ---

Status PageStore::Impl::why_late(const Ticket& ticket) const {
  const GetPageRequest& request = ticket.request;
  return error_peer_down(
      name_of(request.page) + " as of llsn " + std::to_string(request.at_least.value) +
      ": the log known here reaches llsn " + std::to_string(waits.newest_scanned().value) +
      ", replayed to " + std::to_string(waits.replayed().llsn.value));
}

Status PageStore::Impl::failure_before(const Ticket& ticket, const WaitCondition& condition) const {
  if (condition.kind == WaitCondition::Kind::kPage) return ok_status();
  if (condition.kind == WaitCondition::Kind::kReplayed) {
    if (Status status = replay->failure(); !status.ok()) return status;
    if (waits.is_scanned(ticket.request)) return ok_status();  // replay gets there
  }
  return ingest == nullptr ? ok_status() : ingest->failure();
}

void PageStore::Impl::finish(TicketPtr ticket, StatusOr<PageAnswer> answer) {
  const auto one = [](ReplayCounters::Counter& counter) {
    counter.fetch_add(1, std::memory_order_relaxed);
  };
  if (ticket->waited) one(counters.waited);
  if (ticket->shared) one(counters.shared);
  counters.waited_log_bytes.fetch_add(ticket->waited_bytes, std::memory_order_relaxed);
  if (is_not_found(answer.status())) {
    one(counters.not_found);
  } else if (is_out_of_range(answer.status())) {
    one(counters.too_old);
  } else if (is_peer_down(answer.status())) {
    one(counters.timed_out);
  } else if (!answer.ok()) {
    one(counters.failed);
  }
  ticket->done(std::move(answer));
  if (ticket->after) ticket->after();
}

void PageStore::Impl::advance(TicketPtr ticket) {
  for (;;) {
    const WaitList::Seen seen = waits.seen();
    Verdict verdict = replay->attempt(ticket.get());
    if (PageAnswer* const answer = std::get_if<PageAnswer>(&verdict))
      return finish(std::move(ticket), std::move(*answer));
    if (const Status* const status = std::get_if<Status>(&verdict))
      return finish(std::move(ticket), *status);
    const WaitCondition& condition = std::get<WaitCondition>(verdict);
    if (Status status = failure_before(*ticket, condition); !status.ok())
      return finish(std::move(ticket), status);
    switch (waits.park(&ticket, condition, seen, options.now_us())) {
      case WaitList::Park::kParked:
        return;
      case WaitList::Park::kTimeIsUp: {
        const Status late = why_late(*ticket);
        return finish(std::move(ticket), late);
      }
      case WaitList::Park::kHolds:
        break;
    }
  }
}

void PageStore::Impl::get_page(GetPageRequest request, GetPageDone done) {
  counters.get_pages.fetch_add(1, std::memory_order_relaxed);
  if (request.at_most < request.at_least)
    return done(error_invalid_argument("a page as of an llsn at least " +
                                       std::to_string(request.at_least.value) + " and at most " +
                                       std::to_string(request.at_most.value)));
  auto ticket = std::make_unique<Ticket>();
  ticket->request = std::move(request);
  ticket->done = std::move(done);
  ticket->replayed_at_arrival = waits.replayed().lsn;
  advance(std::move(ticket));
}

void PageStore::Impl::expire_requests() {
  for (TicketPtr& ticket : waits.take_expired(options.now_us())) {
    const Status late = why_late(*ticket);
    finish(std::move(ticket), late);
  }
}

// --- steps ---

StatusOr<bool> PageStore::Impl::scan_step() {
  if (ingest == nullptr) return false;
  return ingest->step(options.scan_batch_bytes);
}

Status PageStore::Impl::raise_horizon() {
  const uint64_t now = options.now_us();
  leases->observe(waits.newest_scanned(), now);
  const Status raised = map->raise_horizon(leases->horizon(now));
  // Until then every version above the old horizon would have to be stored.
  replay->hold_back(!leases->settled(now));
  return raised;
}

// Marks are taken before anything is made durable, and written after (VD2).
Status PageStore::Impl::checkpoint() {
  replay->ripen();
  STRATA_ASSIGN_OR_RETURN(const StreamMarks marks, replay->prepare_checkpoint());
  VersionDb::Batch batch = db->new_batch();
  for (const auto& [stream, mark] : marks) batch.put_mark(Mark::kReplayed, stream, mark);
  STRATA_RETURN_IF_ERROR(db->write(&batch));
  if (fault(FaultPoint::node_checkpoint_before_flush)) return error_internal("fault point");
  STRATA_RETURN_IF_ERROR(db->flush());
  fault(FaultPoint::node_checkpoint_after_flush);
  const MutexLock lock(mutex_);
  for (const auto& [stream, mark] : marks) needed_from_[stream] = mark.lsn;
  return ok_status();
}

uint64_t PageStore::Impl::backlog_bytes() const {
  uint64_t bytes = 0;
  for (const Streams::Stream& stream : streams.all()) {
    const uint64_t durable = stream.log->durable_lsn().value;
    bytes += durable - std::min(durable, replay->replayed_to(stream.id).lsn.value);
  }
  return bytes;
}

Lsn PageStore::Impl::needed_from(StreamId stream) const {
  const MutexLock lock(mutex_);
  const auto it = needed_from_.find(stream);
  return it == needed_from_.end() ? Lsn{} : it->second;
}

// --- the public face ---

PageStore::PageStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PageStore::~PageStore() = default;

StatusOr<std::unique_ptr<PageStore>> PageStore::open(const PageStoreOptions& options) {
  auto impl = std::make_unique<Impl>(options);
  STRATA_RETURN_IF_ERROR(impl->open());
  return std::unique_ptr<PageStore>(new PageStore(std::move(impl)));
}

Status PageStore::add_stream(StreamId stream, LogView* log, Lsn begin) {
  return impl_->add_stream(stream, log, begin);
}

void PageStore::get_page(GetPageRequest request, GetPageDone done) {
  impl_->get_page(std::move(request), std::move(done));
}

StatusOr<PageAnswer> PageStore::get_page(GetPageRequest request) {
  struct Waiting {
    Mutex mutex{LatchRank::kLeaf};
    CondVar changed;
    std::optional<StatusOr<PageAnswer>> answer;
  };
  // Whoever answers may still hold the latch when the answer is seen here.
  const auto waiting = std::make_shared<Waiting>();
  impl_->get_page(std::move(request), [waiting](StatusOr<PageAnswer> answer) {
    const MutexLock lock(waiting->mutex);
    waiting->answer = std::move(answer);
    waiting->changed.notify_all();
  });
  MutexLock lock(waiting->mutex);
  waiting->changed.wait(lock, [&waiting] { return waiting->answer.has_value(); });
  return *std::move(waiting->answer);
}

StatusOr<std::vector<SpaceId>> PageStore::list_spaces() {
  StatusOr<std::vector<SpaceId>> spaces =
      impl_->single != nullptr ? impl_->single->list_spaces() : impl_->map->list_spaces();
  if (!spaces.ok()) return spaces.status();
  std::erase_if(*spaces, [this](SpaceId space) { return impl_->map->is_dropped(space); });
  return spaces;
}

LeaseTable& PageStore::leases() { return *impl_->leases; }

Status PageStore::repair_version(PageId page, Llsn llsn, const char* sealed_page) {
  STRATA_RETURN_IF_ERROR(verify_page(sealed_page, page));
  if (header_of(sealed_page)->llsn != llsn.value)
    return error_corruption("the copy of " + name_of(page) + " has llsn " +
                            std::to_string(header_of(sealed_page)->llsn) + ", not " +
                            std::to_string(llsn.value));
  auto copy = std::make_shared<PageBuffer>();
  std::memcpy(copy->bytes, sealed_page, kPageBytes);
  return impl_->map->replace(page, {llsn, std::move(copy)});
}

void PageStore::retry() {
  impl_->log_cache->clear();
  if (impl_->ingest != nullptr) impl_->ingest->retry();
  impl_->replay->retry();
  impl_->look_again();
}

void PageStore::start() { impl_->start(); }
void PageStore::stop() { impl_->stop(); }
StatusOr<bool> PageStore::scan_step() { return impl_->scan_step(); }
StatusOr<bool> PageStore::replay_step() { return impl_->replay->step(); }
bool PageStore::serve_step() {
  TicketPtr ticket = impl_->waits.take_ready();
  if (ticket == nullptr) return false;
  impl_->advance(std::move(ticket));
  return true;
}
void PageStore::expire_requests() { impl_->expire_requests(); }
Status PageStore::raise_horizon() { return impl_->raise_horizon(); }
StatusOr<bool> PageStore::collect_step(uint32_t pages_max) {
  return impl_->collector->step(pages_max);
}
Status PageStore::checkpoint() { return impl_->checkpoint(); }
void PageStore::forget_caches() {
  (void)impl_->map->drop_memory();  // what cannot be written stays
  impl_->store->forget_all();
  impl_->log_cache->clear();
}

uint64_t PageStore::backlog_bytes() const { return impl_->backlog_bytes(); }
Lsn PageStore::needed_from(StreamId stream) const { return impl_->needed_from(stream); }
const ReplayCounters& PageStore::counters() const { return impl_->counters; }

PageStoreStatus PageStore::status() const {
  PageStoreStatus status;
  for (const Streams::Stream& stream : impl_->streams.all()) {
    PageStoreStatus::Stream one;
    one.stream = stream.id;
    one.durable = stream.log->durable_lsn();
    one.scanned = impl_->waits.scanned(stream.id);
    one.replayed = impl_->replay->replayed_to(stream.id);
    one.needed_from = impl_->needed_from(stream.id);
    status.scan_lag_bytes += one.durable.value - std::min(one.durable, one.scanned.lsn).value;
    status.streams.push_back(one);
  }
  status.backlog_bytes = impl_->backlog_bytes();
  status.horizon = impl_->map->horizon();
  status.leases = impl_->leases->leases();
  status.version_store_bytes = impl_->db->disk_bytes();
  status.map_memory_bytes = impl_->map->memory_bytes();
  status.map_entries_unwritten = impl_->map->unwritten();
  const PageCache& cache = impl_->store->cache();
  status.page_cache_hits = impl_->single ? impl_->single->pages().hits() : cache.hits();
  status.page_cache_misses = impl_->single ? impl_->single->pages().misses() : cache.misses();
  const VersionMapCounters& map = impl_->map->counters();
  status.map_entries_written = map.written.load();
  status.versions_stored = map.stored.load();
  status.versions_collected = map.collected.load();
  status.spaces_reclaimed = map.spaces_reclaimed.load();
  status.failure = impl_->ingest != nullptr ? impl_->ingest->failure() : ok_status();
  if (status.failure.ok()) status.failure = impl_->replay->failure();
  status.trouble = impl_->trouble();
  return status;
}

}  // namespace strata::storenode
