// Background work of the engine: purge, and deleting the files of dropped spaces (E4).
#include "base/assert.h"
#include "base/clock.h"
#include "base/diag.h"
#include "base/fault.h"
#include "base/thread_name.h"
#include "engine/internal/kernel_impl.h"
#include "redo/redo.h"

namespace strata::engine {
namespace {

// The pending-delete page holds redo::kPendingDeletesMax entries. A checkpoint is asked for long
// before, and DROP waits for it rather than fail.
constexpr size_t kDroppedMany = redo::kPendingDeletesMax / 4;
constexpr size_t kDroppedTooMany = redo::kPendingDeletesMax / 2;
constexpr uint64_t kIdleUs = 5'000'000;
constexpr uint64_t kHurryUs = 50'000;
constexpr uint64_t kRetryUs = 1'000'000;
constexpr uint64_t kDropWaitUsMax = 60'000'000;
constexpr uint64_t kFlushEveryUs = 1'000'000;

}  // namespace

// Called before a DROP holds anything.
Status KernelImpl::wait_for_drop_room(WaitInterrupt* interrupt) {
  const uint64_t deadline = monotonic_us() + kDropWaitUsMax;
  CondVarSleep sleep(&dropped_mutex, &dropped_changed);
  const WaitInterrupt::Asleep asleep(interrupt, &sleep);
  MutexLock lock(dropped_mutex);
  while (dropped_count >= kDroppedTooMany) {
    if (is_interrupted_now(interrupt)) return error_interrupted();
    if (monotonic_us() >= deadline)
      return error_no_space(
          "too many dropped tables wait for the deletion of their files; the server's error log "
          "says why it does not go on (a checkpoint that fails, a full disk?)");
    lock.unlock();
    if (options.background) {
      checkpointer->request();
    } else {
      STRATA_RETURN_IF_ERROR(checkpointer->run_once());
      STRATA_RETURN_IF_ERROR(reap_dropped());
    }
    lock.lock();
    if (dropped_count >= kDroppedTooMany && !is_interrupted_now(interrupt))
      dropped_changed.wait_for_us(lock, kHurryUs);
  }
  return ok_status();
}

void KernelImpl::note_dropped(SpaceId space) {
  {
    const MutexLock lock(dropped_mutex);
    dropped.push_back(DroppedSpace{space, false, Lsn{}});
    ++dropped_count;
    STRATA_ASSERT(dropped_count >= dropped.size());
  }
  dropped_changed.notify_all();
}

// Deletes files first; an entry leaves the pending-delete list only after a checkpoint has passed
// the deletion, so that recovery never meets a redo record of a space it does not know to be gone.
Status KernelImpl::reap_dropped() {
  std::vector<DroppedSpace> work;
  {
    const MutexLock lock(dropped_mutex);
    work.swap(dropped);
  }
  Status first_error;
  bool all_leave = true;  // false: some node is away; asking for each of many spaces takes too long
  std::vector<DroppedSpace> left;
  for (DroppedSpace& item : work) {
    if (!item.file_deleted) {
      if (!all_leave) {
        left.push_back(item);
        continue;
      }
      // MW17
      Status deleted = seams.schema == nullptr
                           ? ok_status()
                           : seams.schema->space_dropped(NodeId{options.node}, item.space);
      all_leave = deleted.ok();
      if (deleted.ok()) deleted = spaces->delete_file(item.space);
      if (!deleted.ok()) {
        if (first_error.ok()) first_error = deleted;
        left.push_back(item);
        continue;
      }
      fault(FaultPoint::space_delete);
      item.file_deleted = true;
      item.forget_after = log->next_lsn();
    }
    STRATA_ASSERT(!item.forget_after.is_zero());  // E4
    if (checkpointer->last_checkpoint() < item.forget_after) {
      left.push_back(item);
      continue;
    }
    Mtr mtr(pool.get(), log.get());
    const Status begun = mtr.begin_write_to_free();  // it frees room
    if (!begun.ok()) {
      left.push_back(item);
      continue;
    }
    auto page = mtr.fix(kPendingDeletePage, LatchMode::kExclusive);
    if (!page.ok()) {
      left.push_back(item);
      if (first_error.ok()) first_error = page.status();
      continue;
    }
    mtr.pending_delete_remove(*page, item.space);
    mtr.publish();
    const MutexLock lock(dropped_mutex);
    STRATA_ASSERT(dropped_count != 0);
    --dropped_count;
  }
  {
    const MutexLock lock(dropped_mutex);
    dropped.insert(dropped.end(), left.begin(), left.end());
    STRATA_ASSERT(dropped.size() <= dropped_count);
  }
  dropped_changed.notify_all();
  return first_error;
}

void KernelImpl::reaper_thread() {
  name_this_thread("reaper");
  while (!stopping.load()) {
    bool hurry;
    {
      const MutexLock lock(dropped_mutex);
      hurry = dropped_count >= kDroppedMany;
    }
    if (hurry) checkpointer->request();
    {
      MutexLock lock(dropped_mutex);
      bool files_left = stopping.load();
      for (const DroppedSpace& item : dropped) files_left |= !item.file_deleted;
      // Entries whose file is gone only wait for the next checkpoint.
      if (!files_left) dropped_changed.wait_for_us(lock, hurry ? kHurryUs : kIdleUs);
    }
    if (stopping.load()) return;
    const Status status = reap_dropped();
    if (!status.ok()) {
      diag(Severity::kWarning, "deleting files of dropped tables: %s; it will be tried again",
           std::string(status.message()).c_str());
      MutexLock lock(dropped_mutex);
      if (!stopping.load()) dropped_changed.wait_for_us(lock, kRetryUs);
    }
  }
}

// Tables may grow again as soon as there is room, but nobody may try: so that the state says so all
// the same, a file of about that size is made and removed.
void KernelImpl::look_for_disk_room() {
  constexpr uint64_t kProbeBytes = 1u << 20;
  if (!growth_refused.load(std::memory_order_relaxed)) return;
  const std::string probe = path("room-probe");
  const Status made = [&]() -> Status {
    STRATA_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files->open(probe, {.create = true}));
    return file->allocate(kProbeBytes);
  }();
  const Status removed = files->remove(probe);
  if (made.ok() && removed.ok()) growth_refused.store(false, std::memory_order_relaxed);
}

// Commits that do not wait (Durability::kNoSync) are durable after about a second.
void KernelImpl::log_flusher_thread() {
  name_this_thread("log-flusher");
  MutexLock lock(flusher_mutex);
  while (!stopping.load()) {
    flusher_wakes.wait_for_us(lock, kFlushEveryUs);
    lock.unlock();
    if (!stopping.load()) (void)log->persist(log->next_lsn());  // the log reports its own failure
    if (!stopping.load()) look_for_disk_room();
    lock.lock();
  }
}

void KernelImpl::purge_thread() {
  name_this_thread("purge");
  constexpr uint64_t kBatch = 64;
  while (!stopping.load()) {
    auto done = purge_some(&row, kBatch);
    if (!done.ok()) {
      diag(Severity::kWarning, "purge: %s; it will be tried again",
           std::string(done.status().message()).c_str());
      if (!stopping.load()) trxs->pause_purge(200000);  // it goes on with others
      continue;
    }
    if (*done == 0 && !stopping.load()) trxs->wait_for_purge_work(10000000);
  }
}

Status Kernel::run_purge(uint64_t limit) {
  STRATA_ASSIGN_OR_RETURN(const uint64_t done, purge_some(&impl_->row, limit));
  (void)done;
  return ok_status();
}

}  // namespace strata::engine
