// What operators see: counters and SHOW ENGINE STRATA STATUS.
#include <cstdio>

#include "engine/internal/kernel_impl.h"

namespace strata::engine {

std::vector<Kernel::Counter> Kernel::counters() {
  KernelImpl* k = impl_.get();
  BufferPoolCounters& pool = k->pool->counters();
  LogCounters& log = k->log->counters();
  TrxCounters& trx = k->trxs->counters();
  WaitCounters& wait = k->waits->counters();
  return {
      {"buffer_pool_frames", k->pool->frame_count()},
      {"buffer_pool_free", k->pool->free_count()},
      {"buffer_pool_dirty", k->pool->dirty_count()},
      {"buffer_pool_hits", pool.hits.load()},
      {"buffer_pool_misses", pool.misses.load()},
      {"buffer_pool_reads", pool.reads.load()},
      {"buffer_pool_read_ahead", pool.read_ahead.load()},
      {"buffer_pool_writes", pool.writes.load()},
      {"buffer_pool_evictions", pool.evictions.load()},
      {"buffer_pool_free_waits", pool.free_waits.load()},
      {"buffer_pool_write_errors", pool.write_errors.load()},
      {"log_groups", log.groups.load()},
      {"log_bytes", log.bytes.load()},
      {"log_image_bytes", log.image_bytes.load()},
      {"log_syncs", log.syncs.load()},
      {"log_sync_us", log.sync_us.load()},
      {"log_waits", log.waits.load()},
      {"log_lsn", k->log->next_lsn().value},
      {"log_durable_lsn", k->log->durable_lsn().value},
      {"log_checkpoint_lsn", k->checkpointer->last_checkpoint().value},
      {"log_memory_checkpoint_lsn", k->checkpointer->last_memory_checkpoint().value},
      {"trx_commits", trx.commits.load()},
      {"trx_rollbacks", trx.rollbacks.load()},
      {"trx_read_only_commits", trx.read_only_commits.load()},
      {"trx_active", k->trxs->active_count()},
      {"trx_history_length", k->trxs->history_length()},
      {"trx_status_page_reads", trx.status_page_reads.load()},
      {"undo_pages", k->undo->pages_in_use()},
      {"row_lock_waits", wait.waits.load()},
      {"row_lock_wait_us", wait.wait_us.load()},
      {"row_lock_deadlocks", wait.deadlocks.load()},
      {"row_lock_timeouts", wait.timeouts.load()},
      {"recovery_redo_us", k->recovery.redo_us},
      {"recovery_total_us", k->recovery.total_us},
      {"recovery_log_bytes", k->recovery.log_bytes},
      {"recovery_rolled_back", k->recovery.rolled_back},
      {"recovery_to_roll_back", k->recovery.to_roll_back},
      {"page_writes_failing", k->pool->write_failing() || k->checkpointer->failing()},
      {"disk_full", !k->log->room_state().ok() || k->growth_refused.load()},
      {"ddl_waiting", k->ddl_waiting},
      {"unfinished_rollbacks", k->unfinished_rollbacks},
      {"unfinished_commits", k->unfinished_commits},
      {"backup_running", k->backup.running},
      {"backup_pages", k->backup.pages},
      {"backup_pages_done", k->backup.pages_done},
      {"backup_pages_copied", k->backup.pages_copied},
      {"backup_log_bytes", k->backup.log_bytes},
      {"backup_checkpoint_llsn", k->backup.checkpoint_llsn},
      {"backup_end_lsn", k->backup.end_lsn},
  };
}

std::string Kernel::status_text() {
  KernelImpl* k = impl_.get();
  std::string out = "Strata, profile " + k->options.profile + ", node " +
                    std::to_string(k->options.node) + ", data in " + k->options.directory + "\n";
  char line[160];
  for (const Counter& counter : counters()) {
    std::snprintf(line, sizeof line, "  %-28s %20llu\n", counter.name,
                  static_cast<unsigned long long>(counter.value));
    out += line;
  }
  const std::string waits = k->waits->describe(20);
  if (!waits.empty()) out += "Row lock waits\n" + waits;
  {
    const MutexLock lock(k->deadlock_mutex);
    if (!k->last_deadlock.empty()) out += "Latest deadlock\n" + k->last_deadlock;
  }
  const std::string unfinished = k->describe_unfinished(20);
  if (!unfinished.empty()) out += "Transactions that are ended in the background\n" + unfinished;
  return out;
}

// The worst first: who mends that need not read on.
Status Kernel::trouble() const {
  KernelImpl* k = impl_.get();
  STRATA_RETURN_IF_ERROR(k->log->failure());
  Status written = k->checkpointer->failure();
  if (written.ok() && k->pool->write_failing())
    written = error_io_error(
        "writing pages has failed; to do: wait, it is tried again; the error "
        "log says why it failed");
  const bool full = is_no_space(written) || !k->log->room_state().ok() || k->growth_refused.load();
  if (full)
    return error_no_space(
        "the disk is full, and only what frees room goes on; to do: DELETE, DROP TABLE or "
        "TRUNCATE, "
        "or free room on the disk");
  if (!written.ok())
    return with_message(written, "changed pages cannot be written back, so that the log grows (" +
                                     cause_of(written) + ")" + std::string(kRemedyMark) +
                                     remedy_of(written));
  if (const uint64_t left = k->unfinished_commits; left != 0)
    return error_outcome_unknown(
        std::to_string(left) +
        " decided commits could not be finished yet; to do: wait, they are tried again; the error "
        "log says why they failed");
  return ok_status();
}

Status Kernel::persist_log() { return impl_->log->persist(impl_->log->next_lsn()); }
Status KernelImpl::answer(Status told) const {
  const bool says_something = told.ok() || is_not_found(told) || is_duplicate_key(told);
  if (seams.answers == nullptr || !says_something || seams.answers->may_answer()) return told;
  return seams.answers->why_not();
}

Status Kernel::checkpoint() { return impl_->checkpointer->run_once(); }
Status Kernel::memory_checkpoint() { return impl_->checkpointer->run_memory_once(); }
uint64_t Kernel::database_id() const noexcept { return impl_->control->data().database_id; }

}  // namespace strata::engine
