// E18, E19: what a session, a decision by xid or a crash has left unfinished is brought to its end
// by a thread of its own, however often that has to be tried.
#include <algorithm>

#include "base/assert.h"
#include "base/clock.h"
#include "base/diag.h"
#include "base/thread_name.h"
#include "engine/internal/kernel_impl.h"

namespace strata::engine {
namespace {

constexpr uint64_t kRetryUsMin = 100'000;
constexpr uint64_t kRetryUsMax = 60'000'000;
// What ends by itself or by an operator's hand (a full disk, a node out of reach) is looked at
// often: somebody may wait for the rows.
constexpr uint64_t kRetryUsMaxOfPassing = 1'000'000;

uint64_t retry_us_max(const Status& failure) {
  const bool passes = is_no_space(failure) || may_pass(failure);
  return passes ? kRetryUsMaxOfPassing : kRetryUsMax;
}

const char* work_of(const KernelImpl::Unfinished& item) {
  return item.commit ? "commit" : "rollback";
}

}  // namespace

std::string text_of(const Status& failure) {
  if (!failure.message().empty()) return std::string(failure.message());
  return is_no_space(failure) ? "the disk is full" : failure.ToString();
}

// When the log has no room a checkpoint gives back what was needed before it: so a small reserve is
// enough for a rollback of any size. False: nothing was gained.
bool KernelImpl::checkpoint_frees_log() const {
  return !sink->is_stream() &&
         log->next_lsn().value - sink->begin_lsn().value >= options.log_segment_bytes;
}

void KernelImpl::ask_for_log_room() {
  if (backup.running.load() && !backup.log_given_up.exchange(true))
    checkpointer->release_log();  // BU5
  if (checkpoint_frees_log()) checkpointer->request();
}

bool KernelImpl::free_log_room() {
  if (checkpointer == nullptr || !checkpoint_frees_log()) return false;
  const Lsn before = sink->begin_lsn();
  return checkpointer->run_once().ok() && sink->begin_lsn() > before;
}

Status KernelImpl::roll_back(Trx* trx) {
  Status status = rollback_all(&row, trx);
  while (is_no_space(status) && free_log_room()) status = rollback_all(&row, trx);
  return status;
}

void KernelImpl::finish_later(Unfinished item) {
  STRATA_ASSERT(item.trx != nullptr && item.trx->started);
  STRATA_ASSERT(!item.commit || (item.created_spaces.empty() && !item.recovered));
  if (!item.why.empty()) {
    diag(Severity::kWarning,
         "%s of transaction %llu (%llu undo records): %s. It is tried again until it works; the "
         "rows "
         "stay locked",
         work_of(item), static_cast<unsigned long long>(item.trx->id.value),
         static_cast<unsigned long long>(item.trx->undo.records), item.why.c_str());
    item.retry_us = kRetryUsMin;
    item.retry_at = monotonic_us() + item.retry_us;
  }
  if (item.recovered) ++recovery.to_roll_back;
  ++(item.commit ? unfinished_commits : unfinished_rollbacks);
  {
    const MutexLock lock(unfinished_mutex);
    unfinished.push_back(std::move(item));
  }
  unfinished_changed.notify_all();
}

// DDL waits for it as for one that is being decided (E14).
void KernelImpl::commit_later(std::unique_ptr<Trx> trx, std::vector<SpaceId> spaces,
                              const Status& why) {
  {
    const MutexLock lock(prepared_mutex);
    prepared[trx->xid] = Prepared{nullptr, std::move(spaces)};
  }
  finish_later({.trx = std::move(trx), .commit = true, .why = text_of(why)});
}

// Newest first: more recent work is more likely to be waited for. False: none is due before
// *next_at.
bool KernelImpl::take_unfinished(uint64_t now, Unfinished* out, uint64_t* next_at) {
  *next_at = UINT64_MAX;
  for (size_t i = unfinished.size(); i-- > 0;) {
    if (unfinished[i].retry_at > now) {
      *next_at = std::min(*next_at, unfinished[i].retry_at);
      continue;
    }
    STRATA_ASSERT(unfinished[i].trx != nullptr);
    *out = std::move(unfinished[i]);
    unfinished.erase(unfinished.begin() + static_cast<ptrdiff_t>(i));
    return true;
  }
  return false;
}

Status KernelImpl::try_to_finish(Unfinished* item, const std::atomic<bool>* stop) {
  Trx* const trx = item->trx.get();
  const std::string xid = trx->xid;
  Status status;
  do {
    status = item->commit ? trxs->commit(trx) : rollback_all(&row, trx, stop);
  } while (is_no_space(status) && free_log_room());
  // Nobody may be told an outcome that only the log knows now; recovery reads it there.
  if (item->commit && !trx->started) status = ok_status();
  if (!status.ok()) return status;
  STRATA_ASSERT(!trx->started);
  if (item->commit) {
    const MutexLock lock(prepared_mutex);
    prepared.erase(xid);
  }
  prepared_decided.notify_all();
  for (const SpaceId space : item->created_spaces) discard_created(space);
  if (item->recovered) {
    ++recovery.rolled_back;
    STRATA_ASSERT(recovery.to_roll_back != 0);
    if (--recovery.to_roll_back == 0) diag(Severity::kInfo, "recovery: the last rollback is done");
  }
  if (!item->why.empty()) diag(Severity::kInfo, "%s in the background: done", work_of(*item));
  STRATA_ASSERT((item->commit ? unfinished_commits : unfinished_rollbacks) != 0);
  --(item->commit ? unfinished_commits : unfinished_rollbacks);
  return ok_status();
}

void KernelImpl::keep_for_retry(Unfinished item, const Status& failure) {
  if (!is_interrupted(failure)) {
    if (item.why.empty())
      diag(Severity::kWarning, "%s of transaction %llu: %s; it is tried again until it works",
           work_of(item), static_cast<unsigned long long>(item.trx->id.value),
           text_of(failure).c_str());
    item.why = text_of(failure);
    item.retry_us = std::clamp(item.retry_us * 2, kRetryUsMin, retry_us_max(failure));
    item.retry_at = monotonic_us() + item.retry_us;
  }
  const MutexLock lock(unfinished_mutex);
  unfinished.push_back(std::move(item));
}

void KernelImpl::rollback_thread() {
  name_this_thread("rollback");
  while (!stopping.load()) {
    Unfinished item;
    {
      MutexLock lock(unfinished_mutex);
      const uint64_t now = monotonic_us();
      uint64_t next_at = 0;
      if (!take_unfinished(now, &item, &next_at)) {
        if (stopping.load()) return;
        unfinished_changed.wait_for_us(lock, std::min(next_at - now, kRetryUsMax));
        continue;
      }
    }
    const Status status = try_to_finish(&item, &stopping);
    if (!status.ok()) keep_for_retry(std::move(item), status);
  }
}

Status Kernel::run_unfinished() {
  KernelImpl* const k = impl_.get();
  k->look_for_disk_room();
  std::vector<KernelImpl::Unfinished> work;
  {
    const MutexLock lock(k->unfinished_mutex);
    work.swap(k->unfinished);
  }
  Status first_error;
  for (KernelImpl::Unfinished& item : work) {
    const Status status = k->try_to_finish(&item, nullptr);
    if (status.ok()) continue;
    if (first_error.ok()) first_error = status;
    k->keep_for_retry(std::move(item), status);
  }
  return first_error;
}

std::string KernelImpl::describe_unfinished(size_t limit) {
  std::string out;
  const MutexLock lock(unfinished_mutex);
  for (const Unfinished& item : unfinished) {
    if (item.why.empty()) continue;
    if (limit-- == 0) break;
    out += "  " + std::string(work_of(item)) + " of transaction " +
           std::to_string(item.trx->id.value) + ": " + item.why + "\n";
  }
  return out;
}

}  // namespace strata::engine
