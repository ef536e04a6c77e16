#include "bufpool/memory_checkpointer.h"

#include <algorithm>
#include <string>
#include <thread>

#include "base/diag.h"
#include "base/fault.h"
#include "base/latch.h"
#include "base/thread_name.h"

namespace strata {

namespace {
constexpr uint64_t kRetryUs = 200'000;
}  // namespace

struct MemoryCheckpointer::Impl {
  Impl(const MemoryCheckpointerOptions& options_in, BufferPool* pool_in, Log* log_in)
      : options(options_in), pool(pool_in), log(log_in) {}
  StatusOr<Made> run();
  StatusOr<Made> run_once();
  void note_result(const Status& status) STRATA_REQUIRES(mutex);
  void main();

  const MemoryCheckpointerOptions options;
  BufferPool* const pool;
  Log* const log;

  Mutex mutex{LatchRank::kCheckpoint};
  CondVar changed;  // any of the following
  bool running STRATA_GUARDED_BY(mutex) = false;
  bool stop STRATA_GUARDED_BY(mutex) = false;
  bool failing STRATA_GUARDED_BY(mutex) = false;
  MemoryCheckpoint last STRATA_GUARDED_BY(mutex);
  std::thread thread;
};

// MC1
StatusOr<MemoryCheckpointer::Made> MemoryCheckpointer::Impl::run() {
  MemoryCheckpoint at;
  at.lsn = log->position(&at.llsn_bias);
  log->wait_completed(at.lsn);
  STRATA_RETURN_IF_ERROR(pool->write_back_below(at.lsn));
  STRATA_RETURN_IF_ERROR(log->persist(at.lsn));
  if (fault(FaultPoint::memory_checkpoint_before_publish))
    return error_io_error("fault point memory_checkpoint_before_publish");
  STRATA_ASSIGN_OR_RETURN(const bool kept, pool->source()->publish_memory_checkpoint(at));
  return Made{at, kept};
}

// One message when they begin to fail, and one when they work again.
void MemoryCheckpointer::Impl::note_result(const Status& status) {
  if (status.ok() && failing) {
    diag(Severity::kInfo, "checkpoints in the memory tier work again");
  } else if (!status.ok() && !failing) {
    diag(Severity::kError,
         "checkpoint in the memory tier failed: %s. The one at %llu stays in force; retrying",
         std::string(status.message()).c_str(), static_cast<unsigned long long>(last.lsn.value));
  }
  failing = !status.ok();
}

StatusOr<MemoryCheckpointer::Made> MemoryCheckpointer::Impl::run_once() {
  {
    MutexLock lock(mutex);
    changed.wait(lock, [this]() STRATA_REQUIRES(mutex) { return !running; });
    running = true;
  }
  StatusOr<Made> made = run();
  const MutexLock lock(mutex);
  running = false;
  if (made.ok()) last = made->at;
  note_result(made.status());
  changed.notify_all();
  return made;
}

void MemoryCheckpointer::Impl::main() {
  name_this_thread("light-daemon");
  MutexLock lock(mutex);
  while (!stop) {
    const uint64_t pause_us =
        failing ? std::max(options.interval_us, kRetryUs) : options.interval_us;
    changed.wait_for_us(lock, pause_us, [this]() STRATA_REQUIRES(mutex) { return stop; });
    if (stop) return;
    if (log->next_lsn() == last.lsn && !failing) continue;
    lock.unlock();
    // How it ended is said by note_result(), and the next one tries again (MC3).
    (void)run_once();
    lock.lock();
  }
}

MemoryCheckpointer::MemoryCheckpointer(const MemoryCheckpointerOptions& options, BufferPool* pool,
                                       Log* log)
    : impl_(std::make_unique<Impl>(options, pool, log)) {
  if (options.background) impl_->thread = std::thread([this] { impl_->main(); });
}

MemoryCheckpointer::~MemoryCheckpointer() { stop(); }

StatusOr<MemoryCheckpointer::Made> MemoryCheckpointer::run_once() { return impl_->run_once(); }

MemoryCheckpoint MemoryCheckpointer::last() const {
  const MutexLock lock(impl_->mutex);
  return impl_->last;
}

void MemoryCheckpointer::stop() noexcept {
  {
    const MutexLock lock(impl_->mutex);
    impl_->stop = true;
    impl_->changed.notify_all();
  }
  if (impl_->thread.joinable()) impl_->thread.join();
}

}  // namespace strata
