#include "clients/fusion/fusion_pages.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/assert.h"
#include "base/diag.h"
#include "base/page_name.h"
#include "base/thread_name.h"
#include "base/wait_interrupt.h"

namespace strata::clients {

using proto::kNoPageSlot;
using proto::PageMode;
using proto::PageReport;
using transport::RegionOperation;

namespace {

// Adds one, and the time until its end.
class Timed {
 public:
  Timed(std::atomic<uint64_t>* count, std::atomic<uint64_t>* us, uint64_t began_us)
      : count_(count), us_(us), began_us_(began_us) {}
  ~Timed() {
    count_->fetch_add(1, std::memory_order_relaxed);
    us_->fetch_add(monotonic_us() - began_us_, std::memory_order_relaxed);
  }
  Timed(const Timed&) = delete;

 private:
  std::atomic<uint64_t>* const count_;
  std::atomic<uint64_t>* const us_;
  const uint64_t began_us_;
};

constexpr uint64_t kLeaseAgainUs = 5'000;
constexpr uint64_t kReadAgainUs = 20'000;
constexpr uint64_t kSlotLookUs = 20'000;  // who does not want to wait lets another's call end
constexpr uint32_t kPutsAtOnce = 16;      // a batch of puts by call has room for that many pages

// False: the thread was interrupted.
bool pause_for_us(uint64_t us) {
  Mutex mutex(LatchRank::kLeaf);
  CondVar never;
  CondVarSleep sleep(&mutex, &never);
  WaitInterrupt* const interrupt = WaitInterrupt::current();
  const WaitInterrupt::Asleep asleep(interrupt, &sleep);
  MutexLock lock(mutex);
  if (is_interrupted_now(interrupt)) return false;
  never.wait_for_us(lock, us);
  return !is_interrupted_now(interrupt);
}

PageMode mode_of(LatchMode mode) noexcept {
  return mode == LatchMode::kExclusive ? PageMode::kExclusive : PageMode::kShared;
}

Status no_lease() {
  return error_lease_lost("this server has no lease from the memory node at the moment");
}

Status another_serves() {
  return error_lease_lost("another memory node serves this server by now, or soon");
}

}  // namespace

// The pool's page source.
class FusionPages::Source final : public PageSource {
 public:
  explicit Source(FusionPages* pages) : pages_(pages), storage_(pages->storage_) {}
  Status read(PageId id, Llsn at_least, char* page) override {
    return pages_->read(id, at_least, page);
  }
  Status write(PageId, const char*) override {
    return error_unsupported("a page is written with the places of its changes in the log");
  }
  Status write_changed(const PageId* ids, const PageChanges* changes, uint32_t count,
                       const char* pages, bool* ok) override {
    return pages_->write(ids, changes, count, pages, ok);
  }
  Status sync() override { return sync_below(Lsn{UINT64_MAX}); }
  // FU17: what is in a slot, and the memory node does not know yet, is in no frame any more if its
  // page is being given up (FH6). Looked at after the frames, and told before the rest is waited
  // for.
  Status sync_below(Lsn floor) override {
    if (replays_log()) return ok_status();  // FH14
    const Epoch epoch = pages_->pool_now()->epoch;
    STRATA_RETURN_IF_ERROR(pages_->report_all(pages_->holds_.all_unreported(), epoch));
    return pages_->service_->write_back_below(pages_->options_.stream, floor);
  }
  Status create_space(SpaceId space) override { return storage_->create_space(space); }
  Status delete_space(SpaceId space) override {
    STRATA_RETURN_IF_ERROR(pages_->service_->forget_space(space));
    return storage_->delete_space(space);
  }
  // FH14: one that is not there has no first page, as who opens it finds out by that page's lock.
  StatusOr<bool> space_exists(SpaceId space) override {
    return replays_log() ? StatusOr<bool>(true) : storage_->space_exists(space);
  }
  StatusOr<std::vector<SpaceId>> list_spaces() override { return storage_->list_spaces(); }
  Status grow_space(SpaceId space, uint32_t pages) override {
    return storage_->grow_space(space, pages);
  }
  StatusOr<uint32_t> space_pages(SpaceId space) override { return storage_->space_pages(space); }
  [[nodiscard]] bool replays_log() const override { return pages_->options_.replayed != nullptr; }
  // The log was read to its end, and its epoch begins there.
  void begin_at(Llsn last) override {
    storage_->begin_at(last);
    pages_->log_found_ = pages_->options_.durable().value;
  }
  [[nodiscard]] bool needs_page_images() const override { return storage_->needs_page_images(); }

 private:
  FusionPages* const pages_;
  PageSource* const storage_;
};

// A thread that waits for a page, until it is answered, interrupted, or has waited long enough.
class FusionPages::Sleeping final : public PageHolds::Request {
 public:
  using Request::Request;
  void answered() noexcept override {
    const MutexLock lock(mutex_);
    answered_ = true;
    changed_.notify_one();
  }
  // False: it is not answered.
  bool wait(uint64_t us) {
    WaitInterrupt* const interrupt = WaitInterrupt::current();
    CondVarSleep sleep(&mutex_, &changed_);
    const WaitInterrupt::Asleep asleep(interrupt, &sleep);
    const uint64_t end_us = monotonic_us() + us;
    MutexLock lock(mutex_);
    while (!answered_) {
      const uint64_t now_us = monotonic_us();
      if (now_us >= end_us || is_interrupted_now(interrupt)) return false;
      changed_.wait_for_us(lock, end_us - now_us);
    }
    return true;
  }
  void wait_answered() {
    MutexLock lock(mutex_);
    while (!answered_) changed_.wait(lock);
  }

 private:
  Mutex mutex_{LatchRank::kLeaf};
  CondVar changed_;
  bool answered_ = false;  // mutex_
};

FusionPages::FusionPages(const FusionPagesOptions& options, Epoch epoch, const LeaseCheck* lease,
                         PageService* service, std::shared_ptr<transport::RemoteRegion> pool,
                         PageSource* storage)
    : options_(options),
      lease_(lease),
      service_(service),
      storage_(storage),
      source_(std::make_unique<Source>(this)),
      slots_of_(make_pool(epoch, std::move(pool))),
      holds_(
          options.holds,
          [this] {
            const MutexLock lock(mutex_);
            has_work_ = true;
            changed_.notify_all();
          },
          epoch) {
  STRATA_ASSERT(options.replayed == nullptr || options.durable != nullptr);
  thread_ = std::thread([this] { work(); });
}

FusionPages::~FusionPages() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

FusionPages::PoolRef FusionPages::make_pool(Epoch epoch,
                                            std::shared_ptr<transport::RemoteRegion> region) {
  auto pool = std::make_shared<Pool>();
  pool->epoch = epoch;
  pool->region = std::move(region);
  return pool;
}

FusionPages::PoolRef FusionPages::pool_now() const {
  const MutexLock lock(mutex_);
  return slots_of_;
}

PageSource* FusionPages::source() noexcept { return source_.get(); }

Status FusionPages::begin() {
  STRATA_ASSIGN_OR_RETURN(const std::vector<PageId> pages, service_->adopt());
  to_redo_.insert(pages.begin(), pages.end());
  holds_.redo(true);
  return ok_status();
}

void FusionPages::heard(const Status& status) {
  if (is_fenced(status)) holds_.end(status);  // FU3
}

// --- another memory node ---

bool FusionPages::may_renew() {
  const MutexLock lock(mutex_);
  return adoption_ended_ && pool_ != nullptr;
}

std::vector<proto::HeldPage> FusionPages::renew(Epoch epoch) {
  {
    MutexLock lock(mutex_);
    renewing_ = true;
    changed_.notify_all();
    while (!resting_ && !stopping_) changed_.wait(lock);
  }
  given_up_.clear();  // of these nothing is here any more: renew() lets go of them
  return holds_.renew(epoch, monotonic_us());
}

void FusionPages::use(Epoch epoch, std::shared_ptr<transport::RemoteRegion> pool) {
  PoolRef next = make_pool(epoch, std::move(pool));
  const MutexLock lock(mutex_);
  slots_of_.swap(next);
  renewing_ = false;
  has_work_ = true;
  changed_.notify_all();
}

// --- page locks ---

// Everybody's asks that are not sent yet, in one call: others' ride along. `wanted`: the page that
// the calling thread waits for, or null.
void FusionPages::ask(const PageId* wanted) {
  const Epoch epoch = holds_.epoch();  // before: what comes late is an earlier memory node's
  const std::vector<proto::PageAsk> asks = holds_.take_asks();
  if (asks.empty()) return;
  const bool own = wanted != nullptr &&  // FH12
                   std::any_of(asks.begin(), asks.end(),
                               [wanted](const proto::PageAsk& ask) { return ask.page == *wanted; });
  const bool waits =
      own && asking_.fetch_add(1, std::memory_order_relaxed) < options_.ask_waits_max;
  const InterruptScope carried_through(nullptr);
  const auto grants = service_->ask(asks, waits ? options_.ask_wait_us : 0);
  if (own) asking_.fetch_sub(1, std::memory_order_relaxed);
  // Those without an answer are asked again after a while (PageHolds::repeat()).
  if (!grants.ok()) return heard(grants.status());
  for (const proto::PageGrant& grant : *grants) holds_.granted(grant, epoch);
}

// FU3. What was granted just before a lease ended waits for the next one.
Status FusionPages::wait_for_lease() const {
  const uint64_t end_us = monotonic_us() + options_.lease_us_max;
  while (!lease_->valid(lease_->epoch())) {
    STRATA_RETURN_IF_ERROR(holds_.ended());
    if (monotonic_us() >= end_us) return no_lease();
    if (!pause_for_us(kLeaseAgainUs)) return error_interrupted();
  }
  return ok_status();
}

Status FusionPages::acquire(PageId id, LatchMode mode, Llsn* newest) {
  Sleeping request(id, mode_of(mode));
  const uint64_t began_us = monotonic_us();
  if (!holds_.acquire(&request, began_us)) {
    const Timed waited(&counters_.waits, &counters_.wait_us, began_us);
    ask(&id);
    if (!request.wait(options_.wait_us_max)) {
      if (holds_.cancel(&request)) {
        if (is_interrupted_now(WaitInterrupt::current())) return error_interrupted();
        return error_timed_out("other servers have not given up " + name_of(id));
      }
      request.wait_answered();  // it is being answered
    }
    if (request.status.ok()) {
      const Status may = wait_for_lease();
      if (!may.ok()) holds_.release(id);
      STRATA_RETURN_IF_ERROR(may);
    }
  }
  if (request.status.ok()) *newest = holds_.version(id).llsn;
  return request.status;
}

Status FusionPages::try_acquire(PageId id, LatchMode mode, Llsn* newest) {
  if (!holds_.try_acquire(id, mode_of(mode))) return error_busy();
  *newest = holds_.version(id).llsn;
  return ok_status();
}

bool FusionPages::seems_held(PageId id, LatchMode mode) const noexcept {
  return holds_.seems_held(id, mode_of(mode));
}

proto::StreamPosition FusionPages::log_end() const {
  if (options_.replayed == nullptr || !adoption_ended_) return {};
  return {options_.stream, options_.durable()};
}

void FusionPages::serve(BufferPool* pool) {
  if (pool != nullptr && !adoption_ended_) {
    holds_.redo(false);
    // If it fails, what the last life held and did not change stays locked until this life ends.
    const Status status = service_->adoption_ended({options_.stream, Lsn{log_found_.load()}});
    adoption_ended_ = status.ok();
    if (!status.ok())
      diag(Severity::kError, "the memory node has not heard that the log is redone: %s",
           std::string(status.message()).c_str());
  }
  {
    MutexLock lock(mutex_);
    pool_ = pool;
    while (pool == nullptr && surrendering_) changed_.wait(lock);
  }
  holds_.serve(pool != nullptr);
}

// --- the thread that gives pages up ---

void FusionPages::work() {
  name_this_thread("page-give-up");
  uint64_t looked_us = monotonic_us();
  for (;;) {
    BufferPool* pool = nullptr;
    {
      MutexLock lock(mutex_);
      if (!has_work_ && !stopping_) changed_.wait_for_us(lock, options_.look_us);
      while (renewing_ && !stopping_) {  // FH10
        resting_ = true;
        changed_.notify_all();
        changed_.wait(lock);
      }
      resting_ = false;
      if (stopping_) return;
      has_work_ = false;
      pool = pool_;
      surrendering_ = pool != nullptr;
    }
    const std::vector<PageReport> not_held = holds_.take_not_held();
    // One that is lost is asked for again.
    if (!not_held.empty()) heard(service_->report(not_held, pool_now()->epoch));
    ask(nullptr);
    report_given_up();
    if (pool != nullptr) give_up(pool);
    MutexLock lock(mutex_);
    surrendering_ = false;
    if (pool_ == nullptr) changed_.notify_all();  // serve() waits
    lock.unlock();
    if (monotonic_us() - looked_us < options_.look_us) continue;
    looked_us = monotonic_us();
    holds_.repeat(looked_us);
  }
}

void FusionPages::give_up(BufferPool* pool) {
  const std::vector<PageHolds::Ready> ready = holds_.take_ready(kWriteBatchPages);
  if (ready.empty()) return;
  std::optional<Timed> written(std::in_place, &counters_.rounds, &counters_.write_us,
                               monotonic_us());
  if (ready.size() == kWriteBatchPages) {  // there may be more
    const MutexLock lock(mutex_);
    has_work_ = true;
  }
  std::vector<PageId> ids;
  for (const PageHolds::Ready& page : ready)
    if (page.mode == PageMode::kExclusive) ids.push_back(page.page);
  // If that fails, so will those of them that are still dirty.
  if (!ids.empty())
    pool->write_back_pages(ids.data(), static_cast<uint32_t>(ids.size())).IgnoreError();
  for (const PageHolds::Ready& page : ready) {
    const Status status = pool->surrender(page.page);
    if (status.ok()) {
      given_up_.push_back(page.page);
      continue;
    }
    counters_.give_up_failures.fetch_add(1, std::memory_order_relaxed);
    holds_.give_up_failed(page.page);  // its turn comes with the next look
  }
  written.reset();
  report_given_up();
}

void FusionPages::report_given_up() {
  if (given_up_.empty()) return;
  std::vector<PageReport> reports;
  for (const PageId page : given_up_) reports.push_back(holds_.last_report(page));
  const uint64_t began_us = monotonic_us();
  const Status status = service_->report(reports, pool_now()->epoch);
  counters_.reports.fetch_add(1, std::memory_order_relaxed);
  counters_.given_up.fetch_add(reports.size(), std::memory_order_relaxed);
  counters_.report_us.fetch_add(monotonic_us() - began_us, std::memory_order_relaxed);
  heard(status);
  if (!status.ok()) return;  // and again, with the next look
  for (const PageId page : std::exchange(given_up_, {})) holds_.given_up(page, monotonic_us());
  ask(nullptr);
}

// --- pages ---

// FH10: what only the pool of a memory node had that is gone is in storage before long.
Status FusionPages::read(PageId id, Llsn at_least, char* page) {
  const uint64_t end_us = monotonic_us() + options_.lease_us_max;
  for (;;) {
    const Status status = read_once(id, at_least, page);
    const bool may_come = is_peer_down(status) && holds_.version(id).known;
    if (!may_come || monotonic_us() >= end_us) return status;
    if (!pause_for_us(kReadAgainUs)) return error_interrupted();
  }
}

Status FusionPages::read_once(PageId id, Llsn at_least, char* page) {
  const PoolRef pool = pool_now();
  const PageHolds::Version version = holds_.version(id);
  if (version.known && version.slot != kNoPageSlot) {
    RegionOperation get = PageSlots::get(version.slot, page);
    const Status got =
        pool->region->run(absl::MakeSpan(&get, 1), monotonic_us() + options_.io_us_max);
    if (got.ok() && PageSlots::check(page, id, version.llsn).ok()) {
      counters_.gets.fetch_add(1, std::memory_order_relaxed);
      return ok_status();
    }
    counters_.slots_changed.fetch_add(1, std::memory_order_relaxed);
  }
  const Llsn wanted = std::max(at_least, version.known ? version.llsn : Llsn{});
  counters_.storage_reads.fetch_add(1, std::memory_order_relaxed);
  STRATA_RETURN_IF_ERROR(read_stored(id, wanted, version, page));
  if (header_of(page)->llsn >= wanted.value) return ok_status();  // FH8
  return error_peer_down("storage does not have the newest version of " + name_of(id) +
                         ", and the memory node's slot cannot be read");
}

// FH14
Status FusionPages::read_stored(PageId id, Llsn wanted, const PageHolds::Version& version,
                                char* page) {
  if (options_.replayed == nullptr) return storage_->read(id, wanted, page);
  std::vector<LogPosition> places;
  for (const proto::StreamPosition& at : version.floor.scanned_to)
    places.push_back({at.stream, at.lsn});
  if (const Lsn found{log_found_.load()}; !found.is_zero())
    places.push_back({options_.stream, found});
  return options_.replayed->read_behind(id, wanted, places, page);
}

// FH2.
Status FusionPages::report_unreported(const PageId* ids, uint32_t count, Epoch epoch) {
  std::vector<PageReport> reports;
  for (uint32_t i = 0; i < count; ++i)
    if (const auto report = holds_.unreported(ids[i]); report.has_value())
      reports.push_back(*report);
  return report_all(reports, epoch);
}

Status FusionPages::report_all(const std::vector<PageReport>& reports, Epoch epoch) {
  if (reports.empty()) return ok_status();
  counters_.reports.fetch_add(1, std::memory_order_relaxed);
  const Status status = service_->report(reports, epoch);
  heard(status);
  if (status.ok())
    for (const PageReport& report : reports) holds_.reported(report);
  return status;
}

// Some, and at most `count`.
Status FusionPages::take_slots(const PoolRef& pool, size_t count, std::vector<uint32_t>* slots) {
  for (;;) {
    while (slots->size() < count) {
      const auto slot = pool->slots.take();
      if (!slot.has_value()) break;
      slots->push_back(*slot);
    }
    if (!slots->empty()) return ok_status();
    Status status = get_slots(pool, 0);
    if (status.ok() && pool->slots.free() == 0) {
      if (options_.replayed != nullptr) {  // FH14
        slots->assign(count, kNoPageSlot);
        return ok_status();
      }
      status = wait_for_slots(pool);
    }
    heard(status);
    STRATA_RETURN_IF_ERROR(status);
  }
}

// FH9
Status FusionPages::wait_for_slots(const PoolRef& pool) {
  counters_.slot_waits.fetch_add(1, std::memory_order_relaxed);
  STRATA_RETURN_IF_ERROR(report_all(holds_.all_unreported(), pool->epoch));
  const uint64_t end_us = monotonic_us() + options_.slot_us_max;
  while (pool->slots.free() == 0) {
    if (!lease_->valid(pool->epoch)) return no_lease();  // FU3
    const uint64_t now_us = monotonic_us();
    if (now_us >= end_us)
      return error_busy(
          "the memory node's pool is full of pages that storage lacks, and storage has taken none "
          "of them for some seconds; to do: look at the storage nodes");
    STRATA_RETURN_IF_ERROR(get_slots(pool, std::min(options_.slot_call_us, end_us - now_us)));
  }
  return ok_status();
}

// One thread asks, the others wait for what it gets. OK: there may be some now.
Status FusionPages::get_slots(const PoolRef& pool, uint64_t wait_us) {
  MutexLock lock(pool->mutex);
  if (pool->asks) {
    pool->asked.wait_for_us(lock, std::max<uint64_t>(wait_us, kSlotLookUs));
    return ok_status();
  }
  if (pool->slots.free() != 0) return ok_status();
  pool->asks = true;
  const uint64_t request = pool->request + 1;
  lock.unlock();
  const auto taken = service_->take_slots(request, options_.slots_at_once, wait_us, pool->epoch);
  lock.lock();
  pool->asks = false;
  if (taken.ok() && !taken->empty()) {
    pool->request = request;
    pool->slots.add(*taken);
  }
  pool->asked.notify_all();
  return taken.status();
}

// Puts pages[which[i]] into slots[i]; all of them are slots, or none is.
Status FusionPages::put(const PoolRef& pool, const std::vector<uint32_t>& slots,
                        const std::vector<uint32_t>& which, const char* pages) {
  if (!slots.empty() && slots.front() == kNoPageSlot) return ok_status();
  RegionOperation puts[kPutsAtOnce];
  for (size_t from = 0; from < which.size(); from += kPutsAtOnce) {
    const size_t some = std::min<size_t>(kPutsAtOnce, which.size() - from);
    for (size_t i = 0; i < some; ++i)
      puts[i] = PageSlots::put(slots[from + i], pages + size_t{which[from + i]} * kPageBytes);
    const Status status =
        pool->region->run(absl::MakeSpan(puts, some), monotonic_us() + options_.io_us_max);
    if (is_withdrawn(status)) return another_serves();  // FH10: another pool comes
    STRATA_RETURN_IF_ERROR(status);
  }
  counters_.puts.fetch_add(which.size(), std::memory_order_relaxed);
  return ok_status();
}

Status FusionPages::write(const PageId* ids, const PageChanges* changes, uint32_t count,
                          const char* pages, bool* ok) {
  std::fill(ok, ok + count, false);
  const InterruptScope carried_through(nullptr);
  const PoolRef pool = pool_now();
  if (!lease_->valid(pool->epoch)) return no_lease();  // FU3
  for (uint32_t i = 0; i < count; ++i)
    if (holds_.number(ids[i]) == 0)
      return error_fenced("this server does not have " + name_of(ids[i]) + " any more");
  STRATA_RETURN_IF_ERROR(report_unreported(ids, count, pool->epoch));
  std::vector<uint32_t> which;
  for (uint32_t i = 0; i < count; ++i) {
    const PageHolds::Version version = holds_.version(ids[i]);
    // The memory node has it, as after a restart that finds nothing to redo.
    ok[i] = version.known && version.llsn.value == header_of(pages + size_t{i} * kPageBytes)->llsn;
    if (!ok[i]) which.push_back(i);
  }
  Status status;
  for (size_t from = 0; status.ok() && from < which.size();) {
    std::vector<uint32_t> slots;
    status = take_slots(pool, which.size() - from, &slots);
    if (!status.ok()) break;
    const auto begin = which.begin() + static_cast<ptrdiff_t>(from);
    const std::vector<uint32_t> some(begin, begin + static_cast<ptrdiff_t>(slots.size()));
    status = write_some(pool, some, slots, ids, changes, pages, ok);
    from += some.size();
  }
  return status;
}

// The pages `which`, into these slots.
Status FusionPages::write_some(const PoolRef& pool, const std::vector<uint32_t>& which,
                               const std::vector<uint32_t>& slots, const PageId* ids,
                               const PageChanges* changes, const char* pages, bool* ok) {
  if (!lease_->valid(pool->epoch)) {                           // FU3: it may have waited
    if (slots.front() != kNoPageSlot) pool->slots.add(slots);  // nothing was put into them
    return no_lease();
  }
  STRATA_RETURN_IF_ERROR(put(pool, slots, which, pages));  // FH4: else these slots are lost
  std::vector<PageId> kept;
  for (size_t at = 0; at < which.size(); ++at) {
    const uint32_t i = which[at];
    PageReport version;
    version.page = ids[i];
    version.llsn = Llsn{header_of(pages + size_t{i} * kPageBytes)->llsn};
    version.slot = slots[at];
    version.stream = options_.stream;
    version.first = changes[i].first;
    version.end = changes[i].end;
    if (!holds_.put(version, pool->epoch)) return another_serves();  // FH10
    // Of one that is given up the last report tells it, too.
    if (holds_.is_giving_up(ids[i]))
      ok[i] = true;
    else
      kept.push_back(ids[i]);
  }
  STRATA_RETURN_IF_ERROR(
      report_unreported(kept.data(), static_cast<uint32_t>(kept.size()), pool->epoch));
  // There may have been nothing to report any more. If it is the same memory node still, that is
  // since somebody else has reported it.
  if (holds_.epoch() != pool->epoch) return another_serves();
  for (const uint32_t i : which) ok[i] = true;
  return ok_status();
}

}  // namespace strata::clients
