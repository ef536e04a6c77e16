// Checkpoints, the memory node's writes to storage, spaces, and what is done in the background.
#include <algorithm>
#include <string>
#include <utility>

#include "base/assert.h"
#include "base/clock.h"
#include "base/diag.h"
#include "base/thread_name.h"
#include "clients/memory/memory_page_source.h"
#include "proto/methods.h"

namespace strata::clients {

namespace {

constexpr Lsn kAny{UINT64_MAX};
constexpr size_t kGrantsOfRelief = 16;   // between two syncs of storage
constexpr size_t kVictimsMax = 64;       // dropped by one call
constexpr uint32_t kIdleRoundsMax = 3;   // of sync_below() in which nothing got done
constexpr uint64_t kPauseUsMin = 5'000;  // when there is nothing to be done for want of slots
constexpr uint64_t kPauseUsMax = 100'000;
constexpr uint64_t kIdlePatience = 4;    // times the timeout of who needs the pool
constexpr uint64_t kLookUs = 1'000'000;  // between two looks at the pool, also to list it

void count(std::atomic<uint64_t>& counter, uint64_t by = 1) {
  counter.fetch_add(by, std::memory_order_relaxed);
}

bool all_ok(const std::vector<proto::PoolAnswer>& answers) {
  return std::all_of(answers.begin(), answers.end(), [](const proto::PoolAnswer& answer) {
    return answer.answered && answer.status.ok();
  });
}

}  // namespace

// What earlier reports say counts no more: the pool takes what it has written for dirty again.
void MemoryPageSource::attached_anew() {
  {
    const MutexLock lock(mutex_);
    flushed_.clear();
    report_ = 0;
  }
  if (!directory_.complete()) wake(&register_wanted_);
}

// --- the memory node's writes ---

// One call to storage that the memory node makes, if there is something to write.
StatusOr<MemoryPageSource::Granted> MemoryPageSource::grant(Lsn below) {
  {
    MutexLock lock(mutex_);
    changed_.wait(lock, [this]() STRATA_REQUIRES(mutex_) { return !granting_; });
    granting_ = true;
  }
  Granted granted;
  Status pool_status;
  uint64_t number = 0;
  bool asked = false, reported = false, doubtful = false;
  proto::PoolWriteReply last;
  const Status status = storage_->to_all_through(
      [&](const std::vector<proto::PoolTarget>& targets) -> WrittenThrough {
        WrittenThrough nothing;
        nothing.nothing_to_do = true;
        last = {};
        auto use = attachment_.use();
        pool_status = use.status();
        granted.bypass = use.ok() && use->bypass();
        if (!use.ok() || granted.bypass) return nothing;
        doubtful = doubtful || reported;  // what it judges now is another call
        asked = true;
        number = use->number();
        auto reply = pool_->write(below, proto::kPoolImagesMax, targets);
        pool_status = reply.status();
        if (!reply.ok()) return {};
        last = *std::move(reply);
        if (last.answers.empty()) return nothing;
        reported = reported || all_ok(last.answers);
        WrittenThrough done;
        done.answers = last.answers;
        for (const proto::PoolWriteReply::Page& page : last.pages) done.pages.push_back(page.id);
        return done;
      });
  if (status.ok() && pool_status.ok() && !doubtful && !last.answers.empty() && all_ok(last.answers))
    note_flushed(last, number);
  {
    const MutexLock lock(mutex_);
    granting_ = false;
  }
  changed_.notify_all();
  if (asked) count(counters_.grants);
  if (all_ok(last.answers)) granted.pages = last.pages.size();
  if (!pool_status.ok()) {
    if (!asked) return pool_status;
    STRATA_RETURN_IF_ERROR(attachment_.settle(number, pool_status, monotonic_us()));
    return status.ok() ? StatusOr<Granted>(granted) : StatusOr<Granted>(status);
  }
  // The pool counts as written what the judge of storage nodes does not: it shall write that again.
  if (doubtful || (!status.ok() && reported)) STRATA_RETURN_IF_ERROR(attachment_.renew(number));
  if (!status.ok()) return status;
  return granted;
}

void MemoryPageSource::note_flushed(const proto::PoolWriteReply& reply, uint64_t number) {
  count(counters_.flushed, reply.pages.size());
  for (const proto::PoolWriteReply::Page& page : reply.pages)
    storage_->note_written(page.id, page.llsn);
  if (attachment_.number() != number) return;
  const MutexLock lock(mutex_);
  report_ = std::max(report_, reply.report);
  for (const proto::PoolWriteReply::Page& page : reply.pages)
    flushed_.push_back({reply.report, page.id, page.llsn});
}

// MS4
StatusOr<MemoryPageSource::Told> MemoryPageSource::sync_and_tell() {
  const uint64_t begun_us = monotonic_us();
  uint64_t report = 0;
  const uint64_t number = attachment_.number();
  {
    const MutexLock lock(mutex_);
    report = report_;
  }
  const uint64_t direct = direct_writes_.load();
  STRATA_RETURN_IF_ERROR(below_->sync());
  direct_synced_.store(direct);
  auto use = attachment_.use();
  if (!use.ok()) return use.status();
  if (use->bypass() || use->number() != number) return Told();
  auto reply = pool_->synced(report);
  std::vector<Flushed> synced;
  {
    const MutexLock lock(mutex_);
    const auto first = std::stable_partition(flushed_.begin(), flushed_.end(),
                                             [&](const Flushed& f) { return f.report > report; });
    synced.assign(first, flushed_.end());
    flushed_.erase(first, flushed_.end());
  }
  if (!reply.ok()) {
    // What the pool has cleaned all the same it does not say again: it is asked.
    std::vector<PageId> pages;
    pages.reserve(synced.size());
    for (const Flushed& page : synced) pages.push_back(page.id);
    use->doubt(pages);
    STRATA_RETURN_IF_ERROR(settle(&*use, reply.status(), begun_us));
    return Told();
  }
  for (const Flushed& page : synced) directory_.cleaned(page.id, page.llsn);
  return Told(*reply);
}

proto::PoolAnswer MemoryPageSource::write_again(const proto::PoolTarget& target) {
  for (uint32_t from = 0;;) {
    auto use = attachment_.use();
    if (!use.ok()) return {false, use.status()};
    if (use->bypass()) return {true, ok_status()};  // all of it was clean
    auto reply = pool_->write_again(from, target);
    if (!reply.ok()) {
      // Whoever calls the pool next hears of it as well; this storage node is asked again later.
      (void)settle(&*use, reply.status(), monotonic_us());
      return {false, reply.status()};
    }
    if (!reply->answer.answered || !reply->answer.status.ok()) return reply->answer;
    if (reply->next <= from || reply->next >= directory_.slots()) return {true, ok_status()};
    from = reply->next;
  }
}

// --- checkpoints ---

Status MemoryPageSource::sync() {
  STRATA_RETURN_IF_ERROR(attachment_.ended());
  const uint64_t direct = direct_writes_.load();
  STRATA_RETURN_IF_ERROR(below_->sync());
  direct_synced_.store(direct);
  return ok_status();
}

// --- the start, where storage makes pages from the log (MS10) ---

void MemoryPageSource::changed_in_log(PageId id, Llsn llsn) {
  Llsn& newest = changed_in_log_[id];
  newest = std::max(newest, llsn);
}

void MemoryPageSource::begin_at(Llsn last) {
  below_->begin_at(last);
  if (!copies_) return;
  Status status = drop_outdated();
  if (!status.ok()) {
    diag(Severity::kWarning,
         "which pages on the memory node are outdated cannot be said (%s): an empty pool is used",
         std::string(status.message()).c_str());
    status = attachment_.discard();
  }
  changed_in_log_.clear();
  if (!status.ok()) (void)attachment_.give_up(status);  // it says the same; every read ends with it
  start_threads();
}

// Nothing else calls the pool yet, and the directory has no entry.
Status MemoryPageSource::drop_outdated() {
  std::vector<PageId> ids;
  ids.reserve(proto::kPagesMax);
  for (const auto& [id, llsn] : changed_in_log_) {
    ids.push_back(id);
    if (ids.size() < proto::kPagesMax) continue;
    STRATA_RETURN_IF_ERROR(drop_outdated_of(ids));
    ids.clear();
  }
  return ids.empty() ? ok_status() : drop_outdated_of(ids);
}

Status MemoryPageSource::drop_outdated_of(const std::vector<PageId>& ids) {
  if (!attachment_.attached()) return ok_status();  // a new one is empty
  STRATA_ASSIGN_OR_RETURN(const auto found, pool_->lookup(ids));
  std::vector<PageId> outdated;
  for (size_t i = 0; i < ids.size(); ++i)
    if (found[i].there && found[i].at.llsn != changed_in_log_.at(ids[i]))
      outdated.push_back(ids[i]);
  if (outdated.empty()) return ok_status();
  STRATA_ASSIGN_OR_RETURN(const auto dropped, pool_->drop(outdated));
  for (const Status& status : dropped)
    if (!status.ok() && !is_not_found(status)) return status;
  count(counters_.outdated, outdated.size());
  return ok_status();
}

// MS3
Status MemoryPageSource::sync_direct_writes() {
  return direct_writes_.load() == direct_synced_.load() ? ok_status() : sync();
}

Status MemoryPageSource::sync_below(Lsn floor) {
  if (copies_) {  // MS10
    count(counters_.storage_checkpoints);
    return sync();
  }
  for (uint32_t idle = 0; idle < kIdleRoundsMax;) {
    STRATA_RETURN_IF_ERROR(attachment_.ended());
    bool wrote = false;
    for (;;) {
      STRATA_ASSIGN_OR_RETURN(const Granted granted, grant(floor));
      if (granted.bypass) return sync();
      if (granted.pages == 0) break;
      wrote = true;
    }
    STRATA_ASSIGN_OR_RETURN(const Told told, sync_and_tell());
    if (told.has_value() && told->oldest >= floor) {
      count(counters_.storage_checkpoints);
      return ok_status();
    }
    idle = wrote ? 0 : idle + 1;
    // It may wait for a report to be confirmed that never came here: it shall doubt all of them.
    if (idle + 1 == kIdleRoundsMax) {
      const uint64_t number = attachment_.number();
      if (attachment_.attached()) STRATA_RETURN_IF_ERROR(attachment_.renew(number));
    }
  }
  return error_busy("the memory node does not come to an end with its writes to storage");
}

StatusOr<bool> MemoryPageSource::publish_memory_checkpoint(const MemoryCheckpoint& at) {
  const uint64_t begun_us = monotonic_us();
  for (;;) {
    STRATA_RETURN_IF_ERROR(sync_direct_writes());
    auto use = attachment_.use();
    if (!use.ok()) return use.status();
    if (use->bypass()) {
      use->end();
      // What went to storage until the pool was given up, too: it has everything then.
      STRATA_RETURN_IF_ERROR(sync_direct_writes());
      return false;
    }
    const Status status = pool_->checkpoint(at.lsn, at.llsn_bias);
    if (status.ok()) {
      count(counters_.memory_checkpoints);
      return true;
    }
    STRATA_RETURN_IF_ERROR(settle(&*use, status, begun_us));
  }
}

Status MemoryPageSource::delete_space(SpaceId space) {
  STRATA_RETURN_IF_ERROR(forget_space(space));
  return below_->delete_space(space);
}

// MS7
Status MemoryPageSource::forget_space(SpaceId space) {
  const uint64_t begun_us = monotonic_us();
  for (;;) {
    staged_.clear_space(space);
    auto use = attachment_.use();
    if (!use.ok()) return use.status();
    if (use->bypass()) return ok_status();
    const Status status = pool_->forget_space(space);
    if (status.ok()) {
      directory_.erase_space(space);
      return ok_status();
    }
    STRATA_RETURN_IF_ERROR(settle(&*use, status, begun_us));
  }
}

// --- registering ---

// RDR2
void MemoryPageSource::list_pages() {
  uint32_t from = 0;
  uint64_t resets = directory_.resets();
  while (attachment_.attached() && !directory_.complete()) {
    auto use = attachment_.use();
    if (!use.ok() || use->bypass()) return;
    if (std::exchange(resets, directory_.resets()) != directory_.resets()) from = 0;
    auto reply = pool_->list(from);
    if (!reply.ok() || (reply->next <= from && reply->next < directory_.slots())) {
      // Whoever calls the pool next hears of it as well. It begins anew in a moment.
      (void)settle(&*use, reply.status(), monotonic_us());
      return;
    }
    directory_.listed(reply->pages);
    from = reply->next;
    if (from >= directory_.slots()) directory_.whole_list();
    const MutexLock lock(mutex_);
    if (stopped_) return;
  }
}

// MS9. Any page will do.
void MemoryPageSource::look_after_pool() {
  auto use = attachment_.use();
  if (!use.ok() || use->bypass()) return;
  const auto answer = pool_->lookup({PageId{1, 0}});
  const bool silent = is_peer_down(answer.status()) || is_timed_out(answer.status());
  const uint64_t now_us = monotonic_us();
  if (!silent) silent_since_us_ = 0;
  if (silent && silent_since_us_ == 0) silent_since_us_ = now_us;
  // Nobody waits for it: its process may be started again.
  if (silent && !pool_->has_backup() &&
      now_us - silent_since_us_ < kIdlePatience * options_.timeout_us)
    return;
  // What is to be done about it is done here, and whoever needs the pool next hears of it.
  if (!answer.ok()) return (void)settle(&*use, answer.status(), monotonic_us());
  const uint64_t number = use->number();
  use->end();
  if (const Lsn below = pool_->wants_stored_below(); !below.is_zero()) store_some(below);
  // As above: how it ends concerns whoever needs the pool next.
  if (pool_->wants_attach()) (void)attachment_.renew(number);
}

void MemoryPageSource::look_for_pool() {
  {
    const MutexLock lock(mutex_);
    const uint64_t now_us = monotonic_us();
    if (stopped_ || now_us < new_pool_at_us_) return;
    new_pool_at_us_ = now_us + options_.new_pool_us;
  }
  staged_.clear();
  (void)attachment_.try_again();  // it says so itself; next time, then
}

// False: there was nothing to register.
bool MemoryPageSource::register_some() {
  const std::vector<StagedPages::Taken> staged = staged_.take(proto::kPoolImagesMax, batch_.get());
  if (staged.empty()) return false;
  std::vector<PageId> ids;
  std::vector<proto::PoolImage> images;
  for (size_t i = 0; i < staged.size(); ++i) {
    ids.push_back(staged[i].id);
    images.push_back({staged[i].id, /*dirty=*/false, {}, {}});
    seal_page(batch_.get() + i * kPageBytes);  // that of an evicted page may be an old one
  }
  auto use = attachment_.use();
  if (use.ok() && !use->bypass()) {
    const auto taken =
        pool_->put(images, Bytes(batch_.get(), staged.size() * kPageBytes), options_.durable());
    if (taken.ok()) {
      take_registered(staged, batch_.get(), *taken);
    } else {
      count(counters_.not_registered, staged.size());
      if (is_outcome_unknown(taken.status())) use->doubt(ids);
      // They are copies of what storage has: nothing is lost with them.
      (void)settle(&*use, taken.status(), monotonic_us());
    }
  }
  staged_.end(ids.data(), static_cast<uint32_t>(ids.size()));
  return true;
}

void MemoryPageSource::take_registered(const std::vector<StagedPages::Taken>& staged,
                                       const char* pages,
                                       const std::vector<proto::PoolPutReply::Taken>& taken) {
  for (size_t i = 0; i < staged.size(); ++i) {
    if (!taken[i].status.ok()) {
      count(counters_.not_registered);
      continue;
    }
    const Llsn llsn{header_of(pages + i * kPageBytes)->llsn};
    directory_.put(staged[i].id, {taken[i].slot, taken[i].generation, llsn, /*dirty=*/false},
                   staged[i].out_of_use);
    count(counters_.registered);
  }
}

void MemoryPageSource::register_main() {
  name_this_thread("pool-register");
  uint64_t looked_at_us = monotonic_us();
  for (;;) {
    {
      MutexLock lock(mutex_);
      changed_.wait_for_us(
          lock, attachment_.attached() ? kLookUs : options_.new_pool_us,
          [this]() STRATA_REQUIRES(mutex_) { return stopped_ || register_wanted_.load(); });
      if (stopped_) return;
      register_wanted_.store(false);
    }
    if (attachment_.attached() && monotonic_us() - looked_at_us >= kLookUs) {
      look_after_pool();
      looked_at_us = monotonic_us();
    }
    if (attachment_.bypassed()) look_for_pool();
    if (!attachment_.attached()) continue;
    list_pages();
    if (!directory_.complete()) continue;
    while (attachment_.attached() && register_some()) {
    }
    if (is_short()) wake(&relief_wanted_);
  }
}

// --- keeping slots free ---

size_t MemoryPageSource::free_wanted() const noexcept {
  const uint32_t slots = directory_.slots();
  const uint32_t reserve = std::min(options_.reserve_slots, slots / 8);
  return std::min<size_t>(options_.free_slots, slots / 4) + reserve;
}

bool MemoryPageSource::is_short() const noexcept {
  return directory_.size() + free_wanted() > directory_.slots();
}

// Pages that were dropped. *dirty: colder ones could not be.
size_t MemoryPageSource::drop_cold(bool* dirty) {
  const RemoteDirectory::Cold cold = directory_.coldest(kVictimsMax);
  *dirty = cold.dirty;
  std::vector<PageId> ids;
  std::vector<RemoteDirectory::Victim> victims;
  for (const RemoteDirectory::Victim& victim : cold.clean) {
    if (!staged_.try_begin(victim.id)) continue;
    victims.push_back(victim);
    ids.push_back(victim.id);
  }
  if (ids.empty()) return 0;
  size_t dropped = 0;
  auto use = attachment_.use();
  if (use.ok() && !use->bypass()) {
    for (const RemoteDirectory::Victim& victim : victims)
      storage_->note_written(victim.id, victim.at.llsn);
    const auto answer = pool_->drop(ids);
    for (size_t i = 0; answer.ok() && i < ids.size(); ++i) {
      if ((*answer)[i].ok() || is_not_found((*answer)[i])) {
        directory_.erase(ids[i], victims[i].at);
        ++dropped;
      } else {
        directory_.dirtied(ids[i], victims[i].at);
      }
    }
    if (!answer.ok()) {
      if (is_outcome_unknown(answer.status())) use->doubt(ids);
      // Whoever calls the pool next hears of it as well.
      (void)settle(&*use, answer.status(), monotonic_us());
    }
  }
  staged_.end(ids.data(), static_cast<uint32_t>(ids.size()));
  count(counters_.dropped, dropped);
  return dropped;
}

// MS6. Somewhat more is freed than is wanted, so that it is not begun again for every page. False:
// there is nothing to be done now.
bool MemoryPageSource::relieve() {
  if (!attachment_.attached() || !directory_.complete()) return false;
  const uint32_t slots = directory_.slots();
  const size_t ahead = std::min<size_t>(kVictimsMax, slots / 8);
  bool cold_dirty = false;
  if (directory_.size() + free_wanted() + ahead > slots && drop_cold(&cold_dirty) != 0) return true;
  if (!(cold_dirty && is_short()) && directory_.dirty() <= slots / 2) return false;
  return store_some(kAny);
}

// False: there was nothing to be done, or it cannot be done now.
bool MemoryPageSource::store_some(Lsn below) {
  size_t pages = 0;
  for (size_t i = 0; i < kGrantsOfRelief; ++i) {
    const auto granted = grant(below);
    if (!granted.ok() || granted->pages == 0) break;
    pages += granted->pages;
  }
  // An error is the storage nodes', who say so themselves, or the pool's; later, then.
  const size_t dirty = directory_.dirty();
  const auto told = sync_and_tell();
  return told.ok() && (pages != 0 || directory_.dirty() < dirty);
}

void MemoryPageSource::relieve_main() {
  name_this_thread("pool-relief");
  uint64_t pause_us = kPauseUsMin;
  for (;;) {
    {
      MutexLock lock(mutex_);
      changed_.wait(lock,
                    [this]() STRATA_REQUIRES(mutex_) { return stopped_ || relief_wanted_.load(); });
      if (stopped_) return;
      relief_wanted_.store(false);
    }
    bool did = false;
    while (relieve()) {
      did = true;
      const MutexLock lock(mutex_);
      if (stopped_) return;
    }
    pause_us = did ? kPauseUsMin : std::min(pause_us * 2, kPauseUsMax);
    if (did) continue;
    MutexLock lock(mutex_);
    changed_.wait_for_us(lock, pause_us, [this]() STRATA_REQUIRES(mutex_) { return stopped_; });
  }
}

void MemoryPageSource::wake(std::atomic<bool>* wanted) noexcept {
  if (wanted->load(std::memory_order_relaxed) || wanted->exchange(true)) return;
  { const MutexLock lock(mutex_); }  // whoever has looked at the flag sleeps by now
  changed_.notify_all();
}

void MemoryPageSource::do_work() {
  if (attachment_.bypassed()) look_for_pool();
  list_pages();
  while (directory_.complete() && register_some()) {
  }
  while (relieve()) {
  }
}

}  // namespace strata::clients
