// The threads of a page store. Each sleeps on a condition of its own; nobody polls.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/assert.h"
#include "base/diag.h"
#include "base/fault.h"
#include "base/thread_name.h"
#include "storenode/replay/internal/page_store_impl.h"

namespace strata::storenode {
namespace {

constexpr uint64_t kPauseUs = 100'000;  // after a failure; it is tried again
constexpr uint64_t kPauseUsMax = 5'000'000;
constexpr uint64_t kHorizonIntervalUs = 200'000;
constexpr uint32_t kCollectPages = 1000;  // between two looks at the clock
constexpr int kBackgroundNice = 10;

// Commits and reads go first; nobody waits for this thread. Where it is not allowed, it is not.
void yield_to_others() noexcept {
  (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kBackgroundNice);
}

}  // namespace

// False: stop.
bool PageStore::Impl::pause(uint64_t microseconds) {
  MutexLock lock(wake_->mutex);
  wake_->changed.wait_for_us(lock, microseconds,
                             [this]() STRATA_REQUIRES(wake_->mutex) { return wake_->stop; });
  return !wake_->stop;
}

// What became of a piece of work: said once, and once it goes again.
void PageStore::Impl::report(const char* what, const Status& status) {
  bool changed = false;
  db->note_work(what, status);
  {
    const MutexLock lock(mutex_);
    changed =
        status.ok() ? troubles_.erase(what) != 0 : troubles_.insert_or_assign(what, status).second;
  }
  if (!changed) return;
  if (status.ok()) return diag(Severity::kInfo, "page store: %s goes on", what);
  diag(Severity::kError, "page store: %s: %s; it is tried again", what,
       std::string(status.message()).c_str());
}

Status PageStore::Impl::trouble() const {
  const bool damaged = db->is_damaged();  // a peer, or a request, may have met it alone
  const std::string remedy =
      damaged ? "the version store is damaged, or its disk refuses to read or write it: its pages "
                "are to be copied from a peer"
              : "";
  const MutexLock lock(mutex_);
  if (troubles_.empty()) return damaged ? error_corruption(remedy) : ok_status();
  const auto& [what, status] = *troubles_.begin();
  const std::string text = what + ": " + std::string(status.message());
  if (damaged) return error_corruption(text + "; " + remedy);
  return with_message(status, text);
}

// Each log is asked once at a time. Beyond what was durable before the last look: behind the last
// whole group there may be a part of one.
void PageStore::Impl::wait_for_log(const std::vector<std::pair<Streams::Stream, Lsn>>& looked_at) {
  for (const auto& [stream, durable] : looked_at) {
    {
      const MutexLock lock(wake_->mutex);
      if (!wake_->asked.insert(stream.id).second) continue;
    }
    stream.log->notify_beyond(durable, [wake = wake_, id = stream.id] {
      const MutexLock lock(wake->mutex);
      wake->asked.erase(id);
      wake->grown = true;
      wake->log_grown.notify_all();
    });
  }
}

void PageStore::Impl::look_again() {
  replay->look_again();
  const MutexLock lock(wake_->mutex);
  wake_->grown = true;
  wake_->log_grown.notify_all();
}

void PageStore::Impl::scan_now() {
  if (ingest == nullptr || scan_delay_us() == 0) return;
  const MutexLock lock(wake_->mutex);
  wake_->scan_now = true;
  wake_->log_grown.notify_all();
}

// Sleeps until the log has grown, and then a while longer: what is scanned at once costs less than
// the same piece by piece as it comes. False: stop.
bool PageStore::Impl::wait_for_growth() {
  MutexLock lock(wake_->mutex);
  wake_->log_grown.wait(
      lock, [this]() STRATA_REQUIRES(wake_->mutex) { return wake_->stop || wake_->grown; });
  if (scan_delay_us() != 0)
    wake_->log_grown.wait_for_us(lock, scan_delay_us(), [this]() STRATA_REQUIRES(wake_->mutex) {
      return wake_->stop || wake_->scan_now;
    });
  wake_->grown = wake_->scan_now = false;
  return !wake_->stop;
}

void PageStore::Impl::scan_thread() {
  name_this_thread("replay-scan");
  bool in_trouble = false;
  uint64_t pause_us = kPauseUs;
  for (;;) {
    std::vector<std::pair<Streams::Stream, Lsn>> looked_at;
    for (const Streams::Stream& stream : streams.all())
      looked_at.emplace_back(stream, stream.log->durable_lsn());
    const StatusOr<bool> some = scan_step();
    if (!some.ok()) {
      report("quick scan", some.status());
      in_trouble = true;
      if (!pause(pause_us)) return;
      pause_us = std::min(pause_us * 2, kPauseUsMax);
      (void)db->try_resume();  // if it cannot, the next try says so
      continue;
    }
    if (*some) fault(FaultPoint::node_scan);
    if (std::exchange(in_trouble, false)) report("quick scan", ok_status());
    pause_us = kPauseUs;
    if (!*some) {
      wait_for_log(looked_at);
      if (!wait_for_growth()) return;
    }
    const MutexLock lock(wake_->mutex);
    if (wake_->stop) return;
  }
}

void PageStore::Impl::worker_thread() {
  name_this_thread("replay-worker");
  bool in_trouble = false;
  uint64_t pause_us = kPauseUs;
  for (;;) {
    const StatusOr<bool> some = replay->step();
    if (!some.ok()) {
      report("replay", some.status());
      in_trouble = true;
      if (!pause(pause_us)) return;
      pause_us = std::min(pause_us * 2, kPauseUsMax);
      (void)db->try_resume();  // if it cannot, the next try says so
      replay->retry();
      continue;
    }
    if (*some) fault(FaultPoint::node_replay);
    if (std::exchange(in_trouble, false)) report("replay", ok_status());
    pause_us = kPauseUs;
    if (!*some && !replay->wait_for_work()) return;
    const MutexLock lock(wake_->mutex);
    if (wake_->stop) return;
  }
}

void PageStore::Impl::server_thread() {
  name_this_thread("replay-server");
  while (TicketPtr ticket = waits.wait_ready()) advance(std::move(ticket));
}

void PageStore::Impl::upkeep_thread() {
  name_this_thread("replay-upkeep");
  uint64_t next_checkpoint = options.now_us() + options.checkpoint_interval_us;
  uint64_t next_collect = options.now_us() + options.collect_interval_us;
  uint64_t next_horizon = 0;
  for (;;) {
    expire_requests();
    const uint64_t now = options.now_us();
    const auto done = [this](const char* what, const Status& status) {
      report(what, status);
      if (!status.ok()) (void)db->try_resume();  // if it cannot, the next try says so
    };
    if (now >= next_horizon) {
      const Llsn before = map->horizon();
      done("raising the horizon", raise_horizon());
      if (map->horizon() != before) look_again();  // spaces may be reclaimed
      next_horizon = now + kHorizonIntervalUs;
    }
    if (now >= next_collect) {
      const StatusOr<bool> more = collector->step(kCollectPages);
      done("collection", more.status());
      // Under load there is always more: one sweep in each interval.
      if (!more.ok() || !collector->sweeping()) next_collect = now + options.collect_interval_us;
    }
    if (now >= next_checkpoint) {
      done("checkpoint", checkpoint());
      next_checkpoint = now + options.checkpoint_interval_us;
    }
    const uint64_t until = std::min(std::min(next_horizon, next_collect),
                                    std::min(next_checkpoint, waits.next_deadline_us()));
    MutexLock lock(wake_->mutex);
    const uint64_t begin = options.now_us();
    if (until > begin)
      wake_->changed.wait_for_us(lock, until - begin, [this]() STRATA_REQUIRES(wake_->mutex) {
        return wake_->stop || wake_->deadline;
      });
    wake_->deadline = false;
    if (wake_->stop) return;
  }
}

void PageStore::Impl::start() {
  if (!threads_.empty()) return;
  STRATA_ASSERT(replay != nullptr);
  {
    const MutexLock lock(wake_->mutex);
    wake_->stop = false;
  }
  waits.reopen();
  replay->stop_waiting(false);
  replay->hold_back(!leases->settled(options.now_us()));
  waits.set_deadline_hook([wake = wake_] {
    const MutexLock lock(wake->mutex);
    wake->deadline = true;
    wake->changed.notify_all();
  });
  if (ingest != nullptr) threads_.emplace_back([this] { scan_thread(); });
  for (uint32_t i = 0; i < replay->workers_max(); ++i)
    threads_.emplace_back([this] {
      if (options.mode == ReplayMode::kSmart) yield_to_others();  // else requests wait for it
      worker_thread();
    });
  for (uint32_t i = 0; i < std::max(1u, options.servers); ++i)
    threads_.emplace_back([this] { server_thread(); });
  threads_.emplace_back([this] { upkeep_thread(); });
}

void PageStore::Impl::stop() {
  if (!threads_.empty()) {
    {
      const MutexLock lock(wake_->mutex);
      wake_->stop = true;
      wake_->changed.notify_all();
      wake_->log_grown.notify_all();
    }
    replay->stop_waiting(true);
    waits.close();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    waits.set_deadline_hook(nullptr);
    if (Status status = checkpoint(); !status.ok())
      diag(Severity::kWarning, "page store: the last checkpoint failed: %s",
           std::string(status.message()).c_str());
  }
  for (TicketPtr& ticket : waits.take_all())
    finish(std::move(ticket), error_peer_down("the page store stops"));
}

}  // namespace strata::storenode
