#include "bufpool/checkpointer.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <utility>

#include "base/assert.h"
#include "base/clock.h"
#include "base/diag.h"
#include "base/fault.h"
#include "base/latch.h"
#include "base/thread_name.h"
#include "bufpool/memory_checkpointer.h"

namespace strata {

namespace {
constexpr uint64_t kLookUsMax = 1'000'000;  // how often the growth of the log is looked at
constexpr uint64_t kPaceLookUs = 10'000;  // how often a checkpoint that is ahead of its plan looks
constexpr uint64_t kRetryUsMin = 1'000'000;  // after a failure
constexpr uint64_t kRetryUsMax = 60'000'000;
constexpr Lsn kNothingKept{UINT64_MAX};
}  // namespace

struct Checkpointer::Impl {
  Impl(const CheckpointerOptions& options, BufferPool* pool, Log* log, ControlStore* control)
      : options_(options),
        pool_(pool),
        log_(log),
        control_(control),
        marks_(pool->source()->replays_log()),
        last_lsn_(control->data().checkpoint_lsn.value),
        floor_lsn_(last_lsn_.load()),
        last_us_(monotonic_us()),
        published_(control->data()) {
    if (pool->source()->has_memory_tier())
      memory_ = std::make_unique<MemoryCheckpointer>(
          MemoryCheckpointerOptions{options.memory_interval_us, options.background}, pool, log);
  }

  class Pace;
  enum class Kind : uint8_t { kPaced, kHurried, kMark };
  Status run_once(bool clean_shutdown, Kind kind);
  Status run(bool clean_shutdown, Kind kind);
  Status run_behind_memory(bool clean_shutdown, Kind kind);
  Status move_start(Lsn lsn, uint64_t bias, bool clean_shutdown);
  Status publish(Lsn lsn, uint64_t bias, bool clean_shutdown);
  Status truncate_below(Lsn lsn);
  void note_result(const Status& status) STRATA_REQUIRES(mutex_);
  void main();
  [[nodiscard]] uint64_t grown_since(const std::atomic<uint64_t>& lsn) const noexcept {
    const uint64_t next = log_->next_lsn().value;
    const uint64_t last = lsn.load(std::memory_order_relaxed);
    return next > last ? next - last : 0;
  }
  [[nodiscard]] uint64_t log_bytes() const noexcept { return grown_since(last_lsn_); }
  [[nodiscard]] uint64_t image_bytes() const noexcept {
    return log_->counters().image_bytes.load(std::memory_order_relaxed);
  }
  // CP5
  [[nodiscard]] uint64_t counted_bytes() const noexcept {
    const uint64_t grown = grown_since(floor_lsn_);
    const uint64_t images = image_bytes() - last_images_.load(std::memory_order_relaxed);
    return grown - std::min({images, grown, options_.log_bytes});
  }
  [[nodiscard]] bool due() const noexcept;
  [[nodiscard]] bool mark_due() const noexcept {
    return marks_ && log_bytes() != 0 && since(last_mark_us_) >= options_.mark_interval_us;
  }
  static uint64_t since(const std::atomic<uint64_t>& us) noexcept {
    return monotonic_us() - us.load(std::memory_order_relaxed);
  }
  // Under the mutex: somebody waits for the checkpoint, or the log grows faster than planned.
  [[nodiscard]] bool hurried() const noexcept STRATA_REQUIRES(mutex_) {
    return callers_ > 0 || requested_ || stop_ || counted_bytes() > 2 * options_.log_bytes;
  }

  const CheckpointerOptions options_;
  BufferPool* const pool_;
  Log* const log_;
  ControlStore* const control_;
  const bool marks_;                            // CP6
  std::unique_ptr<MemoryCheckpointer> memory_;  // CP7; null: there is no such tier
  std::atomic<uint64_t> last_lsn_;              // where a restart begins to read
  std::atomic<uint64_t> floor_lsn_;             // of the last checkpoint that was not a mark
  std::atomic<uint64_t> last_us_;               // when that was
  std::atomic<uint64_t> last_mark_us_{0};
  std::atomic<uint64_t> last_images_{0};  // image_bytes() when the last one began

  Mutex mutex_{LatchRank::kCheckpoint};
  CondVar changed_;  // any of the following
  bool running_ STRATA_GUARDED_BY(mutex_) = false;
  bool requested_ STRATA_GUARDED_BY(mutex_) = false;
  uint32_t callers_ STRATA_GUARDED_BY(mutex_) = 0;  // that wait for a run of their own, or make it
  bool stop_ STRATA_GUARDED_BY(mutex_) = false;
  bool failing_ STRATA_GUARDED_BY(mutex_) = false;
  uint64_t runs_ STRATA_GUARDED_BY(mutex_) = 0;  // ended, well or not
  Status last_status_ STRATA_GUARDED_BY(mutex_);
  ControlData published_ STRATA_GUARDED_BY(mutex_);
  Lsn kept_ STRATA_GUARDED_BY(mutex_) = kNothingKept;  // CP8
  std::thread thread_;
};

Status Checkpointer::Impl::publish(Lsn lsn, uint64_t bias, bool clean_shutdown) {
  ControlData data = control_->data();
  data.checkpoint_lsn = lsn;
  data.llsn_bias = bias;
  ++data.checkpoint_count;
  data.clean_shutdown = clean_shutdown;
  STRATA_RETURN_IF_ERROR(control_->publish(data));
  const MutexLock lock(mutex_);
  published_ = std::move(data);
  return ok_status();
}

// CP8. Whoever calls keep_log() after the look at kept_ is given this checkpoint or a later one.
Status Checkpointer::Impl::truncate_below(Lsn lsn) {
  {
    const MutexLock lock(mutex_);
    lsn = std::min(lsn, kept_);
  }
  return log_->truncate_below(lsn);
}

// CP4
class Checkpointer::Impl::Pace {
 public:
  Pace(Impl* impl, Lsn floor)
      : impl_(impl),
        floor_(floor.value),
        pages_(std::max<uint64_t>(impl->pool_->dirty_count(), 1)),
        images_(impl->image_bytes()),
        started_us_(monotonic_us()) {
    allowed_us_ = std::max<uint64_t>(impl->options_.interval_us / 2, 1);
    allowed_bytes_ = std::max<uint64_t>(impl->options_.log_bytes / 2, 1);
  }

  void wrote(size_t pages) {
    written_ += pages;
    MutexLock lock(impl_->mutex_);
    while (!impl_->hurried() && ahead()) impl_->changed_.wait_for_us(lock, kPaceLookUs);
  }

 private:
  [[nodiscard]] bool ahead() const noexcept {
    const auto share = [](uint64_t part, uint64_t whole) {
      return static_cast<double>(part) / static_cast<double>(whole);
    };
    const uint64_t grown = impl_->log_->next_lsn().value - floor_;
    const uint64_t changes = grown - std::min(impl_->image_bytes() - images_, grown);
    return share(written_, pages_) > std::max(share(monotonic_us() - started_us_, allowed_us_),
                                              share(changes, allowed_bytes_));
  }

  Impl* const impl_;
  const uint64_t floor_;
  const uint64_t pages_;  // about
  const uint64_t images_;
  const uint64_t started_us_;
  uint64_t allowed_us_ = 0;
  uint64_t allowed_bytes_ = 0;
  uint64_t written_ = 0;
};

// CP1, CP6
Status Checkpointer::Impl::run(bool clean_shutdown, Kind kind) {
  if (memory_ != nullptr) return run_behind_memory(clean_shutdown, kind);
  const uint64_t images = image_bytes();
  uint64_t bias = 0;
  const Lsn floor = kind == Kind::kMark ? log_->position(&bias) : log_->raise_image_floor(&bias);
  log_->wait_completed(floor);
  if (!marks_) {
    Pace pace(this, floor);
    STRATA_RETURN_IF_ERROR(
        pool_->write_back_below(floor, [&pace](size_t pages) { pace.wrote(pages); }));
  }
  STRATA_RETURN_IF_ERROR(move_start(floor, bias, clean_shutdown));
  last_mark_us_.store(monotonic_us(), std::memory_order_relaxed);
  if (kind != Kind::kMark) {
    floor_lsn_.store(floor.value, std::memory_order_relaxed);
    last_images_.store(images, std::memory_order_relaxed);
  }
  if (fault(FaultPoint::checkpoint_after_publish))
    return error_io_error("fault point checkpoint_after_publish");
  return truncate_below(floor);
}

// CP7
Status Checkpointer::Impl::run_behind_memory(bool clean_shutdown, Kind kind) {
  MemoryCheckpoint at = memory_->last();
  if (clean_shutdown || kind == Kind::kHurried ||
      at.lsn.value <= last_lsn_.load(std::memory_order_relaxed)) {
    STRATA_ASSIGN_OR_RETURN(const MemoryCheckpointer::Made made, memory_->run_once());
    if (clean_shutdown && made.kept) return ok_status();
    at = made.at;
  }
  STRATA_RETURN_IF_ERROR(move_start(at.lsn, at.llsn_bias, clean_shutdown));
  floor_lsn_.store(at.lsn.value, std::memory_order_relaxed);
  if (fault(FaultPoint::checkpoint_after_publish))
    return error_io_error("fault point checkpoint_after_publish");
  return truncate_below(at.lsn);
}

// Every change below `lsn` is written, or its source's work.
Status Checkpointer::Impl::move_start(Lsn lsn, uint64_t bias, bool clean_shutdown) {
  if (fault(FaultPoint::checkpoint_before_sync))
    return error_io_error("fault point checkpoint_before_sync");
  STRATA_RETURN_IF_ERROR(pool_->source()->sync_below(lsn));
  // Pages of dropped spaces were forgotten, not written: their groups may be younger than the last
  // durable one, and redo must not start beyond the end of the log.
  STRATA_RETURN_IF_ERROR(log_->persist(lsn));
  if (fault(FaultPoint::checkpoint_before_publish))
    return error_io_error("fault point checkpoint_before_publish");
  STRATA_RETURN_IF_ERROR(publish(lsn, bias, clean_shutdown));
  last_lsn_.store(lsn.value, std::memory_order_relaxed);
  return ok_status();
}

// One message per episode of failures (CP3).
void Checkpointer::Impl::note_result(const Status& status) {
  if (status.ok()) {
    if (failing_) diag(Severity::kInfo, "checkpoints work again");
  } else if (!failing_) {
    diag(Severity::kError,
         "checkpoint failed: %s. The one at %llu stays in force and the log grows; retrying",
         std::string(status.message()).c_str(),
         static_cast<unsigned long long>(last_lsn_.load(std::memory_order_relaxed)));
  }
  failing_ = !status.ok();
}

Status Checkpointer::Impl::run_once(bool clean_shutdown, Kind kind) {
  {
    MutexLock lock(mutex_);
    if (kind == Kind::kHurried) {
      ++callers_;
      changed_.notify_all();
    }
    changed_.wait(lock, [this]() STRATA_REQUIRES(mutex_) { return !running_; });
    running_ = true;
    if (kind != Kind::kMark) requested_ = false;
  }
  const Status status = run(clean_shutdown, kind);
  const MutexLock lock(mutex_);
  running_ = false;
  if (kind == Kind::kHurried) --callers_;
  ++runs_;
  last_status_ = status;
  if (kind != Kind::kMark) last_us_.store(monotonic_us(), std::memory_order_relaxed);
  note_result(status);
  changed_.notify_all();
  return status;
}

bool Checkpointer::Impl::due() const noexcept {
  if (counted_bytes() >= options_.log_bytes) return true;
  return grown_since(floor_lsn_) != 0 && since(last_us_) >= options_.interval_us;
}

void Checkpointer::Impl::main() {
  name_this_thread("checkpointer");
  uint64_t retry_us = kRetryUsMin;
  const uint64_t look_us = std::max<uint64_t>(
      1000, std::min({kLookUsMax, options_.interval_us, options_.mark_interval_us}));
  MutexLock lock(mutex_);
  while (!stop_) {
    changed_.wait_for_us(lock, failing_ ? retry_us : look_us, [this]() STRATA_REQUIRES(mutex_) {
      return stop_ || (requested_ && !running_);
    });
    if (stop_) return;
    const bool wanted = requested_ || failing_;
    if (!wanted && !due() && !mark_due()) continue;
    const Kind kind = wanted ? Kind::kHurried : due() ? Kind::kPaced : Kind::kMark;
    lock.unlock();
    const Status status = run_once(/*clean_shutdown=*/false, kind);
    lock.lock();
    retry_us = status.ok() ? kRetryUsMin : std::min(retry_us * 2, kRetryUsMax);
  }
}

Checkpointer::Checkpointer(const CheckpointerOptions& options, BufferPool* pool, Log* log,
                           ControlStore* control)
    : impl_(std::make_unique<Impl>(options, pool, log, control)) {
  if (options.background) impl_->thread_ = std::thread([this] { impl_->main(); });
}

Checkpointer::~Checkpointer() { stop(); }

Status Checkpointer::run_once(bool clean_shutdown) {
  return impl_->run_once(clean_shutdown, Impl::Kind::kHurried);
}

Status Checkpointer::run_memory_once() {
  return impl_->memory_ == nullptr ? ok_status() : impl_->memory_->run_once().status();
}

void Checkpointer::request() noexcept {
  const MutexLock lock(impl_->mutex_);
  impl_->requested_ = true;
  impl_->changed_.notify_all();
}

void Checkpointer::stop() noexcept {
  {
    const MutexLock lock(impl_->mutex_);
    impl_->stop_ = true;
    impl_->changed_.notify_all();
  }
  if (impl_->thread_.joinable()) impl_->thread_.join();
  if (impl_->memory_ != nullptr) impl_->memory_->stop();
}

ControlData Checkpointer::keep_log() {
  const MutexLock lock(impl_->mutex_);
  STRATA_ASSERT(impl_->kept_ == kNothingKept);
  impl_->kept_ = impl_->published_.checkpoint_lsn;
  return impl_->published_;
}

void Checkpointer::keep_log_from(Lsn lsn) noexcept {
  const MutexLock lock(impl_->mutex_);
  if (impl_->kept_ != kNothingKept) impl_->kept_ = std::max(impl_->kept_, lsn);
}

void Checkpointer::release_log() noexcept {
  const MutexLock lock(impl_->mutex_);
  impl_->kept_ = kNothingKept;
}

Status Checkpointer::failure() const {
  const MutexLock lock(impl_->mutex_);
  return impl_->last_status_;
}

Lsn Checkpointer::last_checkpoint() const noexcept {
  return Lsn{impl_->last_lsn_.load(std::memory_order_relaxed)};
}

Lsn Checkpointer::last_memory_checkpoint() const noexcept {
  return impl_->memory_ == nullptr ? Lsn{} : impl_->memory_->last().lsn;
}

bool Checkpointer::failing() const noexcept {
  const MutexLock lock(impl_->mutex_);
  return impl_->failing_;
}

// A checkpoint that fails while somebody waits is that caller's answer: waiting on would hang it.
Status Checkpointer::wait_for_log_room(WaitInterrupt* interrupt) {
  Impl& impl = *impl_;
  const uint64_t limit = 4 * impl.options_.log_bytes;
  if (impl.log_bytes() <= limit) return ok_status();
  CondVarSleep sleep(&impl.mutex_, &impl.changed_);
  const WaitInterrupt::Asleep asleep(interrupt, &sleep);
  while (impl.log_bytes() > limit) {
    if (!impl.options_.background) {
      STRATA_RETURN_IF_ERROR(impl.run_once(false, Impl::Kind::kHurried));
      continue;
    }
    MutexLock lock(impl.mutex_);
    if (impl.stop_) return ok_status();
    const uint64_t runs = impl.runs_;
    impl.requested_ = true;
    impl.changed_.notify_all();
    while (!impl.stop_ && impl.runs_ == runs) {
      if (is_interrupted_now(interrupt)) return error_interrupted();
      impl.changed_.wait(lock);
    }
    if (impl.runs_ != runs) STRATA_RETURN_IF_ERROR(impl.last_status_);
  }
  return ok_status();
}

}  // namespace strata
