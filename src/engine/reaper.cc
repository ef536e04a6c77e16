// Background work of the engine: purge, and deleting the files of dropped spaces (E4).
#include "base/diag.h"
#include "base/fault.h"
#include "engine/internal/kernel_impl.h"

namespace strata::engine {

void KernelImpl::note_dropped(SpaceId space) {
  {
    const MutexLock lock(dropped_mutex);
    dropped.push_back(DroppedSpace{space, false, Lsn{}});
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
  std::vector<DroppedSpace> left;
  for (DroppedSpace& item : work) {
    if (!item.file_deleted) {
      const Status deleted = spaces->delete_file(item.space);
      if (!deleted.ok()) {
        if (first_error.ok()) first_error = deleted;
        left.push_back(item);
        continue;
      }
      fault(FaultPoint::space_delete);
      item.file_deleted = true;
      item.forget_after = log->next_lsn();
    }
    if (checkpointer->last_checkpoint() <= item.forget_after) {
      left.push_back(item);
      continue;
    }
    Mtr mtr(pool.get(), log.get());
    const Status begun = mtr.begin_write();
    if (!begun.ok()) {
      left.push_back(item);
      continue;
    }
    auto page = mtr.fix(kPendingDeletePage, LatchMode::kExclusive);
    if (!page.ok()) return page.status();
    mtr.pending_delete_remove(*page, item.space);
    mtr.publish();
  }
  const MutexLock lock(dropped_mutex);
  dropped.insert(dropped.end(), left.begin(), left.end());
  return first_error;
}

void KernelImpl::reaper_thread() {
  while (!stopping.load()) {
    bool files_left = false;
    {
      MutexLock lock(dropped_mutex);
      for (const DroppedSpace& item : dropped) files_left |= !item.file_deleted;
      if (!files_left) {
        // Entries whose file is gone only wait for the next checkpoint: no hurry.
        dropped_changed.wait_for_us(lock, 5000000);
      }
    }
    if (stopping.load()) return;
    const Status status = reap_dropped();
    if (!status.ok()) {
      diag(Severity::kWarning, "deleting files of dropped tables: %s; it will be tried again",
           std::string(status.message()).c_str());
      MutexLock lock(dropped_mutex);
      if (!stopping.load()) dropped_changed.wait_for_us(lock, 1000000);
    }
  }
}

void KernelImpl::purge_thread() {
  constexpr uint64_t kBatch = 64;
  while (!stopping.load()) {
    auto done = purge_some(&row, kBatch);
    if (!done.ok()) {
      diag(Severity::kWarning, "purge: %s; it will be tried again",
           std::string(done.status().message()).c_str());
      trxs->wait_for_purge_work(1000000);
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
