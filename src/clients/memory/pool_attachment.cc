#include "clients/memory/pool_attachment.h"

#include <algorithm>
#include <string>

#include "base/clock.h"
#include "base/diag.h"
#include "proto/methods.h"

namespace strata::clients {

namespace {

constexpr uint64_t kAttemptUsMin = 500'000;  // for one attach(), however late it is

}  // namespace

bool is_trouble(const Status& status) {
  return is_peer_down(status) || is_timed_out(status) || is_outcome_unknown(status) ||
         is_fenced(status) || is_not_found(status) || is_withdrawn(status) ||
         is_wrong_secret(status);
}

// PAT4
Status told_above(const Status& why) {
  const bool of_a_page =
      is_not_found(why) || is_corruption(why) || is_conflict(why) || is_out_of_range(why);
  if (!of_a_page && !ends_right(why)) return why;
  return error_peer_down("the memory node's pool: " + cause_of(why));
}

PoolAttachment::PoolAttachment(const Options& options, RemotePool* pool, PoolNaming* naming,
                               RemoteDirectory* directory, std::function<void()> renewed)
    : options_(options),
      pool_(pool),
      naming_(naming),
      directory_(directory),
      renewed_(std::move(renewed)) {
  directory_->reset(0, /*complete=*/true);
}

void PoolAttachment::set(State state) {
  state_ = state;
  state_now_.store(state, std::memory_order_release);
}

// --- the start ---

Status PoolAttachment::open() {
  STRATA_ASSIGN_OR_RETURN(const std::optional<uint64_t> named, naming_->named());
  Status why = ok_status();
  if (named.has_value()) {
    const uint64_t deadline_us = monotonic_us() + options_.timeout_us;
    for (;;) {
      auto attached = pool_->attach(*named, /*fresh=*/false, deadline_us);
      why = attached.status();
      if (attached.ok()) {
        if (!attached->checkpoint.is_zero())
          found_ = MemoryCheckpoint{attached->checkpoint, attached->bias};
        found_epoch_ = attached->checkpoint_epoch;
        found_whole_ = true;
        directory_->reset(attached->slots, /*complete=*/attached->made);
        counters_.attached.fetch_add(1, std::memory_order_relaxed);
        if (renewed_) renewed_();
        const MutexLock lock(mutex_);
        incarnation_ = attached->incarnation;
        ++number_;
        set(State::kAttached);
        return ok_status();
      }
      if (is_fenced(why)) return why;
      if (!may_be_repeated(why) || monotonic_us() + options_.pause_us >= deadline_us ||
          stop_.wait_for_us(options_.pause_us))
        break;
    }
    diag(Severity::kWarning,
         "the memory node's pool is lost (%s): recovery begins where storage has everything",
         std::string(why.message()).c_str());
    STRATA_RETURN_IF_ERROR(naming_->remove(PoolLoss::kUnknown));  // PAT2
  }
  const Status fresh = have_new_pool();
  if (fresh.ok() || is_fenced(fresh)) return fresh;
  diag(Severity::kWarning, "there is no memory node for now (%s): pages go to storage only",
       std::string(fresh.message()).c_str());
  counters_.bypassed.fetch_add(1, std::memory_order_relaxed);
  return ok_status();
}

std::optional<MemoryCheckpoint> PoolAttachment::found_checkpoint() const {
  return found_epoch_ < naming_->since() ? std::nullopt : found_;
}

// An empty pool that the registry does not name, or one that it names, changes nothing.
Status PoolAttachment::have_new_pool() {
  STRATA_ASSIGN_OR_RETURN(
      const AttachedPool attached,
      pool_->attach(0, /*fresh=*/true, monotonic_us() + options_.timeout_us / 2));
  STRATA_RETURN_IF_ERROR(naming_->name(attached.incarnation));
  directory_->reset(attached.slots, /*complete=*/true);
  counters_.attached.fetch_add(1, std::memory_order_relaxed);
  if (renewed_) renewed_();
  const MutexLock lock(mutex_);
  incarnation_ = attached.incarnation;
  ++number_;
  may_be_unnamed_ = false;
  doubtful_.clear();
  set(State::kAttached);
  return ok_status();
}

Status PoolAttachment::discard() {
  Status result;
  found_.reset();
  found_whole_ = false;
  if (!claim(number(), &result)) return result;
  {
    MutexLock lock(mutex_);
    changed_.wait(lock, [this]() STRATA_REQUIRES(mutex_) { return uses_ == 0; });
  }
  Status status = naming_->remove(PoolLoss::kUnknown);  // PAT2
  if (status.ok()) {
    directory_->reset(0, /*complete=*/true);
    {
      const MutexLock lock(mutex_);
      doubtful_.clear();
      set(State::kBypass);
    }
    status = have_new_pool();
    if (!is_fenced(status)) status = ok_status();  // later, then
  }
  {
    const MutexLock lock(mutex_);
    working_ = false;
  }
  changed_.notify_all();
  return status;
}

Status PoolAttachment::try_again() {
  {
    const MutexLock lock(mutex_);
    if (state_ != State::kBypass) return ended_;
    if (working_) return error_busy();
    working_ = true;
  }
  const Status status = have_new_pool();
  if (is_fenced(status)) (void)end(status);  // it says the same
  {
    const MutexLock lock(mutex_);
    working_ = false;
  }
  changed_.notify_all();
  if (status.ok()) diag(Severity::kInfo, "a memory node keeps pages again");
  return status;
}

// --- calls ---

StatusOr<PoolAttachment::Use> PoolAttachment::use() {
  const uint64_t begun_us = monotonic_us();
  for (;;) {
    {
      MutexLock lock(mutex_);
      changed_.wait(lock, [this]() STRATA_REQUIRES(mutex_) {
        return state_ != State::kUnsettled || !working_;
      });
      if (state_ == State::kEnded) return ended_;
      if (state_ != State::kUnsettled) {
        ++uses_;
        return Use(this, number_, state_ == State::kBypass);
      }
      working_ = true;  // whoever tried before has given up
    }
    STRATA_RETURN_IF_ERROR(work(begun_us));
  }
}

void PoolAttachment::leave() {
  const MutexLock lock(mutex_);
  if (--uses_ == 0) changed_.notify_all();
}

void PoolAttachment::doubt(const std::vector<PageId>& pages) {
  counters_.doubtful_pages.fetch_add(pages.size(), std::memory_order_relaxed);
  const MutexLock lock(mutex_);
  doubtful_.insert(doubtful_.end(), pages.begin(), pages.end());
}

Status PoolAttachment::ended() const {
  if (state_now_.load(std::memory_order_acquire) != State::kEnded) return ok_status();
  const MutexLock lock(mutex_);
  return ended_;
}

uint64_t PoolAttachment::number() const {
  const MutexLock lock(mutex_);
  return number_;
}

// --- when one went wrong ---

// False: there is nothing to do any more; *result says why.
bool PoolAttachment::claim(uint64_t number, Status* result) {
  MutexLock lock(mutex_);
  for (;;) {
    if (state_ == State::kEnded) {
      *result = ended_;
      return false;
    }
    if (number_ != number || state_ == State::kBypass) return false;
    if (!working_) break;
    changed_.wait(lock);
  }
  working_ = true;
  set(State::kUnsettled);
  return true;
}

Status PoolAttachment::settle(uint64_t number, const Status& why, uint64_t begun_us) {
  if (!is_trouble(why)) return told_above(why);
  Status result;
  if (!claim(number, &result)) return result;
  return work(begun_us);
}

Status PoolAttachment::renew(uint64_t number) {
  Status result;
  if (!claim(number, &result)) return result;
  return work(monotonic_us());
}

// By the one who has set working_.
Status PoolAttachment::work(uint64_t begun_us) {
  {
    MutexLock lock(mutex_);
    changed_.wait(lock, [this]() STRATA_REQUIRES(mutex_) { return uses_ == 0; });  // PAT1
  }
  Status status = attach_again(begun_us);
  {
    const MutexLock lock(mutex_);
    working_ = false;
    status = state_ == State::kEnded ? ended_ : told_above(status);
  }
  changed_.notify_all();
  return status;
}

Status PoolAttachment::attach_again(uint64_t begun_us) {
  const uint64_t deadline_us =
      std::max(begun_us + options_.timeout_us,
               monotonic_us() + std::min(kAttemptUsMin, options_.timeout_us));
  uint64_t incarnation = 0;
  {
    const MutexLock lock(mutex_);
    incarnation = incarnation_;
  }
  for (;;) {
    auto attached = pool_->attach(incarnation, /*fresh=*/false, deadline_us);
    Status status = attached.status();
    if (attached.ok() && attached->elsewhere)
      directory_->reset(attached->slots, /*complete=*/false);
    if (attached.ok()) {
      const Status named = name_again(attached->incarnation);
      if (ends_right(named)) return end(named);
      if (!named.ok()) return named;
    }
    if (status.ok()) status = look_up_doubtful();
    if (status.ok()) {
      counters_.attached.fetch_add(1, std::memory_order_relaxed);
      if (renewed_) renewed_();
      const MutexLock lock(mutex_);
      ++number_;
      set(State::kAttached);
      return ok_status();
    }
    // Of a lookup, fenced means that somebody else has attached himself just now: attach() tells.
    if (!attached.ok() && is_fenced(status)) return end(status);
    if (!attached.ok() && is_not_found(status)) return lost(status);
    if (!is_trouble(status) && !may_be_repeated(status)) return lost(status);
    if (monotonic_us() + options_.pause_us >= deadline_us) return lost(status);
    if (stop_.wait_for_us(options_.pause_us)) return status;
  }
}

// PAT2. Once the registry was asked to forget it and has not answered: it may have done so.
Status PoolAttachment::name_again(uint64_t incarnation) {
  {
    const MutexLock lock(mutex_);
    if (!may_be_unnamed_) return ok_status();
  }
  STRATA_RETURN_IF_ERROR(naming_->name(incarnation));
  const MutexLock lock(mutex_);
  may_be_unnamed_ = false;
  return ok_status();
}

// PAT1
Status PoolAttachment::look_up_doubtful() {
  std::vector<PageId> pages;
  {
    const MutexLock lock(mutex_);
    pages = doubtful_;
  }
  std::sort(pages.begin(), pages.end());
  pages.erase(std::unique(pages.begin(), pages.end()), pages.end());
  for (size_t at = 0; at < pages.size(); at += proto::kPagesMax) {
    const std::vector<PageId> some(
        pages.begin() + static_cast<ptrdiff_t>(at),
        pages.begin() + static_cast<ptrdiff_t>(std::min(at + proto::kPagesMax, pages.size())));
    STRATA_ASSIGN_OR_RETURN(const std::vector<proto::PoolLookupReply::Found> found,
                            pool_->lookup(some));
    for (size_t i = 0; i < some.size(); ++i)
      directory_->looked_up(some[i], directory_->find(some[i]), found[i]);
  }
  const MutexLock lock(mutex_);
  doubtful_.clear();
  return ok_status();
}

// PAT3
Status PoolAttachment::lost(const Status& why) {
  if (!options_.copies && (!directory_->complete() || directory_->dirty() != 0))
    return end(error_ended("the memory node's pool, with pages that storage lacks, is lost (" +
                           std::string(why.message()) + ")" + std::string(kRemedyMark) +
                           "restart this server: it recovers from storage and the log"));
  {
    const MutexLock lock(mutex_);
    may_be_unnamed_ = true;
  }
  const Status removed = naming_->remove(PoolLoss::kNothing);  // PAT2
  if (ends_right(removed)) return end(removed);
  if (!removed.ok()) return removed;
  directory_->reset(0, /*complete=*/true);
  counters_.bypassed.fetch_add(1, std::memory_order_relaxed);
  diag(Severity::kWarning,
       "the memory node's pool is lost (%s); storage lacks nothing of it: pages go to storage only "
       "until there is another one",
       std::string(why.message()).c_str());
  const MutexLock lock(mutex_);
  doubtful_.clear();
  set(State::kBypass);
  return ok_status();
}

Status PoolAttachment::end(const Status& why) {
  diag(Severity::kError, "no page is written any more: %s", std::string(why.message()).c_str());
  const MutexLock lock(mutex_);
  ended_ = why;
  set(State::kEnded);
  return why;
}

}  // namespace strata::clients
