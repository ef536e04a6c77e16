#include "storenode/replay/page_store.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/assert.h"
#include "base/fault.h"
#include "storenode/replay/internal/page_store_impl.h"
#include "storenode/replay/sequential_replay.h"
#include "storenode/replay/smart_replay.h"

namespace strata::storenode {

PageStore::Impl::Impl(PageStoreOptions opts, ReplayCounters* counted)
    : options(std::move(opts)), counters(*counted) {}

Status PageStore::Impl::open() {
  STRATA_ASSERT(db == nullptr && options.files != nullptr);
  STRATA_RETURN_IF_ERROR(options.files->make_directory(options.directory));
  const VersionDbOptions versions = version_db_options(options);
  // RocksDB would make it, but not without a message that it is missing.
  STRATA_RETURN_IF_ERROR(options.files->make_directory(versions.directory));
  STRATA_ASSIGN_OR_RETURN(db, VersionDb::open(versions));
  map = std::make_unique<VersionMap>(db.get(), options.map_bytes);
  STRATA_RETURN_IF_ERROR(map->open());
  store = std::make_unique<VersionStore>(db.get(), options.page_cache_bytes);
  log_cache = std::make_unique<LogCache>(options.log_cache_bytes);
  collector = std::make_unique<Collector>(db.get(), map.get());
  leases = std::make_unique<LeaseTable>(options.leases, map->horizon(), options.now_us());
  ReplayParts parts{db.get(), map.get(), store.get(), log_cache.get(),
                    &streams, &waits,    &counters,   {}};
  if (options.ask_peers) parts.damaged = [this](PageId page, Llsn llsn) { mend(page, llsn); };
  switch (options.mode) {
    case ReplayMode::kSingle: {
      STRATA_ASSIGN_OR_RETURN(page_files, open_page_files(options));
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
  {
    const MutexLock lock(mutex_);
    // A checkpoint may have been made of it already.
    needed_from_.try_emplace(stream, from.lsn);
  }
  look_again();
  return ok_status();
}

// --- requests ---

Status PageStore::Impl::why_late(const Ticket& ticket) const {
  const GetPageRequest& request = ticket.request;
  const std::string as_of = request.at_least == kNewestState
                                ? " as of now"
                                : " as of llsn " + std::to_string(request.at_least.value);
  return error_peer_down(name_of(request.page) + as_of + ": the log known here reaches llsn " +
                         std::to_string(waits.newest_scanned().value) + ", replayed to " +
                         std::to_string(waits.replayed().llsn.value));
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
  STRATA_ASSERT(ticket->done != nullptr);
  if (is_corruption(answer.status()) && options.ask_peers && !ticket->request.from_peer &&
      !std::exchange(ticket->asked_peers, true))
    return ask_peers(std::move(ticket), answer.status());
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
  } else if (may_pass(answer.status())) {
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
    if (condition.kind == WaitCondition::Kind::kScanned ||
        condition.kind == WaitCondition::Kind::kMoreScanned)
      scan_now();
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

std::optional<PageStore::AtHand> PageStore::Impl::page_at_hand(const GetPageRequest& request) {
  if (request.at_most < request.at_least) return std::nullopt;
  std::optional<PageAnswer> page = replay->page_at_hand(request);
  if (!page.has_value()) return std::nullopt;
  const std::optional<uint64_t> backlog = backlog_at_hand();
  if (!backlog.has_value()) return std::nullopt;
  counters.get_pages.fetch_add(1, std::memory_order_relaxed);
  counters.at_hand.fetch_add(1, std::memory_order_relaxed);
  return AtHand{*std::move(page), progress(*backlog)};
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
  auto stepped = ingest->step(options.scan_batch_bytes);
  note_scan_lag();
  return stepped;
}

void PageStore::Impl::note_scan_lag() {
  uint64_t lag = 0;
  for (const Streams::Stream& stream : streams.all()) {
    const Lsn durable = stream.log->durable_lsn();
    lag += durable.value - std::min(durable, waits.scanned(stream.id).lsn).value;
  }
  scan_lag_bytes.store(lag, std::memory_order_relaxed);
}

ReplayProgress PageStore::Impl::progress(uint64_t backlog_bytes) const {
  return {backlog_bytes, scan_lag_bytes.load(std::memory_order_relaxed),
          counters.bytes_scanned.load(std::memory_order_relaxed)};
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

std::optional<uint64_t> PageStore::Impl::backlog_at_hand() const {
  const auto all = streams.all_at_hand();
  if (!all.has_value()) return std::nullopt;
  uint64_t bytes = 0;
  for (const Streams::Stream& stream : *all) {
    const std::optional<StreamMark> replayed = replay->replayed_to_at_hand(stream.id);
    if (!replayed.has_value()) return std::nullopt;
    const uint64_t durable = stream.log->durable_lsn().value;
    bytes += durable - std::min(durable, replayed->lsn.value);
  }
  return bytes;
}

Lsn PageStore::Impl::needed_from(StreamId stream) const {
  const MutexLock lock(mutex_);
  const auto it = needed_from_.find(stream);
  return it == needed_from_.end() ? Lsn{} : it->second;
}

// --- the public face ---

PageStore::PageStore(std::unique_ptr<Shell> shell) : shell_(std::move(shell)) {}
PageStore::~PageStore() { stop(); }

StatusOr<std::unique_ptr<PageStore>> PageStore::open(const PageStoreOptions& options) {
  auto shell = std::make_unique<Shell>(options);
  STRATA_RETURN_IF_ERROR(shell->open());
  return std::unique_ptr<PageStore>(new PageStore(std::move(shell)));
}

Status PageStore::add_stream(StreamId stream, LogView* log, Lsn begin) {
  return shell_->add_stream(stream, log, begin);
}

void PageStore::get_page(GetPageRequest request, GetPageDone done) {
  const auto impl = shell_->impl();
  if (impl == nullptr) return done(Shell::being_copied());
  impl->get_page(std::move(request), std::move(done));
}

StatusOr<PageAnswer> PageStore::get_page(GetPageRequest request) {
  struct Waiting {
    Mutex mutex{LatchRank::kLeaf};
    CondVar changed;
    std::optional<StatusOr<PageAnswer>> answer STRATA_GUARDED_BY(mutex);
  };
  // Whoever answers may still hold the latch when the answer is seen here.
  const auto waiting = std::make_shared<Waiting>();
  get_page(std::move(request), [waiting](StatusOr<PageAnswer> answer) {
    const MutexLock lock(waiting->mutex);
    waiting->answer = std::move(answer);
    waiting->changed.notify_all();
  });
  MutexLock lock(waiting->mutex);
  waiting->changed.wait(
      lock, [&waiting]() STRATA_REQUIRES(waiting->mutex) { return waiting->answer.has_value(); });
  return *std::move(waiting->answer);
}

StatusOr<std::vector<StreamId>> PageStore::known_streams() {
  const auto impl = shell_->impl();
  if (impl == nullptr) return Shell::being_copied();
  return impl->db->list_marked();
}

std::optional<PageStore::AtHand> PageStore::page_at_hand(const GetPageRequest& request) {
  const auto impl = shell_->impl_at_hand();
  return impl == nullptr ? std::nullopt : impl->page_at_hand(request);
}

StatusOr<std::vector<SpaceId>> PageStore::list_spaces(Llsn* as_of) {
  const auto impl = shell_->impl();
  if (impl == nullptr) return Shell::being_copied();
  if (as_of != nullptr)  // before the list: what comes in between may be on it
    *as_of = impl->single != nullptr ? impl->waits.replayed().llsn : impl->waits.newest_scanned();
  StatusOr<std::vector<SpaceId>> spaces =
      impl->single != nullptr ? impl->single->list_spaces() : impl->map->list_spaces();
  if (!spaces.ok()) return spaces.status();
  std::erase_if(*spaces, [&impl](SpaceId space) { return impl->map->is_dropped(space); });
  return spaces;
}

bool PageStore::streams_come() const noexcept { return shell_->options.streams_come; }

std::vector<GetPageRequest::Position> PageStore::durable_positions() const {
  std::vector<GetPageRequest::Position> positions;
  const auto impl = shell_->impl();
  if (impl == nullptr) return positions;
  for (const Streams::Stream& stream : impl->streams.all())
    positions.push_back({stream.id, stream.log->durable_lsn()});
  return positions;
}

Status PageStore::renew_lease(uint64_t reader, Llsn at, uint64_t now_us) {
  const auto impl = shell_->impl();
  return impl == nullptr ? Shell::being_copied() : impl->leases->renew(reader, at, now_us);
}

void PageStore::release_lease(uint64_t reader) {
  if (const auto impl = shell_->impl(); impl != nullptr) impl->leases->release(reader);
}

void PageStore::retry() {
  const auto impl = shell_->impl();
  if (impl == nullptr) return;
  impl->log_cache->clear();
  if (impl->ingest != nullptr) impl->ingest->retry();
  impl->replay->retry();
  impl->look_again();
}

void PageStore::start() { shell_->start(); }
void PageStore::stop() { shell_->stop(); }
StatusOr<bool> PageStore::scan_step() {
  const auto impl = shell_->impl();
  return impl == nullptr ? StatusOr<bool>(false) : impl->scan_step();
}
StatusOr<bool> PageStore::replay_step() {
  const auto impl = shell_->impl();
  return impl == nullptr ? StatusOr<bool>(false) : impl->replay->step();
}
bool PageStore::serve_step() {
  const auto impl = shell_->impl();
  TicketPtr ticket = impl == nullptr ? nullptr : impl->waits.take_ready();
  if (ticket == nullptr) return false;
  impl->advance(std::move(ticket));
  return true;
}
void PageStore::expire_requests() {
  if (const auto impl = shell_->impl(); impl != nullptr) impl->expire_requests();
}
Status PageStore::raise_horizon() {
  const auto impl = shell_->impl();
  return impl == nullptr ? ok_status() : impl->raise_horizon();
}
StatusOr<bool> PageStore::collect_step(uint32_t pages_max) {
  const auto impl = shell_->impl();
  return impl == nullptr ? StatusOr<bool>(false) : impl->collector->step(pages_max);
}
Status PageStore::checkpoint() {
  const auto impl = shell_->impl();
  return impl == nullptr ? ok_status() : impl->checkpoint();
}
void PageStore::forget_caches() {
  const auto impl = shell_->impl();
  if (impl == nullptr) return;
  (void)impl->map->drop_memory();  // what cannot be written stays
  impl->store->forget_all();
  impl->log_cache->clear();
}

uint64_t PageStore::backlog_bytes() const {
  const auto impl = shell_->impl();
  return impl == nullptr ? shell_->backlog_bytes() : impl->backlog_bytes();
}
ReplayProgress PageStore::progress() const {
  const auto impl = shell_->impl();
  if (impl != nullptr) return impl->progress(impl->backlog_bytes());
  const uint64_t behind = shell_->backlog_bytes();
  return {behind, behind, 0};
}
Lsn PageStore::needed_from(StreamId stream) const {
  const auto impl = shell_->impl();
  return impl == nullptr ? Lsn{} : impl->needed_from(stream);  // RP5
}
const ReplayCounters& PageStore::counters() const { return shell_->counters; }

PageStoreStatus PageStore::status() const {
  PageStoreStatus status;
  status.pages_copied = shell_->pages_copied;
  status.pages_to_copy = shell_->pages_to_copy;
  const auto impl = shell_->impl();
  if (impl == nullptr) {
    shell_->fill_status(&status);
    return status;
  }
  for (const Streams::Stream& stream : impl->streams.all()) {
    PageStoreStatus::Stream one;
    one.stream = stream.id;
    one.durable = stream.log->durable_lsn();
    one.scanned = impl->waits.scanned(stream.id);
    one.replayed = impl->replay->replayed_to(stream.id);
    one.needed_from = impl->needed_from(stream.id);
    status.scan_lag_bytes += one.durable.value - std::min(one.durable, one.scanned.lsn).value;
    status.streams.push_back(one);
  }
  status.backlog_bytes = impl->backlog_bytes();
  status.horizon = impl->map->horizon();
  status.leases = impl->leases->leases();
  status.version_store_bytes = impl->db->disk_bytes();
  status.map_memory_bytes = impl->map->memory_bytes();
  status.map_entries_unwritten = impl->map->unwritten();
  const PageCache& cache = impl->store->cache();
  status.page_cache_hits = impl->single ? impl->single->pages().hits() : cache.hits();
  status.page_cache_misses = impl->single ? impl->single->pages().misses() : cache.misses();
  const VersionMapCounters& map = impl->map->counters();
  status.map_entries_written = map.written.load();
  status.versions_stored = map.stored.load();
  status.versions_collected = map.collected.load();
  status.spaces_reclaimed = map.spaces_reclaimed.load();
  status.failure = impl->ingest != nullptr ? impl->ingest->failure() : ok_status();
  if (status.failure.ok()) status.failure = impl->replay->failure();
  status.trouble = impl->trouble();
  return status;
}

}  // namespace strata::storenode
