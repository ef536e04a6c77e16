// The in-process oracle: a counter below a durable ceiling (T6).
#include "txn/timestamp_source.h"

#include <algorithm>
#include <atomic>
#include <memory>

#include "base/latch.h"
#include "txn/trx_system.h"

namespace strata {
namespace {

constexpr uint64_t kStep = 1000000;
constexpr SpaceId kSystem{kSystemSpace};

class LocalTimestampSource : public TimestampSource {
 public:
  LocalTimestampSource(BufferPool* pool, Log* log, SpaceManager* spaces)
      : pool_(pool), log_(log), spaces_(spaces) {}

  Status prepare_next() override {
    STRATA_RETURN_IF_ERROR(open());
    if (last_.load(std::memory_order_relaxed) + kStep / 2 <
        ceiling_.load(std::memory_order_acquire))
      return ok_status();
    return raise_ceiling(last_.load() + kStep);
  }

  // Normally lock-free. Without prepare_next() it may have to raise the ceiling itself, which
  // blocks.
  StatusOr<Cts> next() override {
    STRATA_RETURN_IF_ERROR(open());
    const uint64_t cts = last_.fetch_add(1) + 1;
    if (cts > ceiling_.load(std::memory_order_acquire)) {
      STRATA_RETURN_IF_ERROR(raise_ceiling(cts + kStep));
    }
    return Cts{cts};
  }

  StatusOr<Cts> current() override {
    STRATA_RETURN_IF_ERROR(open());
    return Cts{last_.load()};
  }

  Status raise_to(Cts at_least) override {
    STRATA_RETURN_IF_ERROR(open());
    uint64_t last = last_.load();
    while (last < at_least.value && !last_.compare_exchange_weak(last, at_least.value)) {
    }
    return prepare_next();
  }

 private:
  // The stored ceiling is read at the first use: only then is it sure that the system space is
  // open.
  Status open() {
    if (opened_.load(std::memory_order_acquire)) return ok_status();
    STRATA_ASSIGN_OR_RETURN(const uint64_t stored, spaces_->read_slot(kSystem, HeaderSlot::kUser2));
    const MutexLock lock(mutex_);
    if (opened_.load(std::memory_order_relaxed)) return ok_status();
    // Everything at or below the ceiling may have been given out.
    last_.store(std::max(stored, kOldestCts.value));
    ceiling_.store(stored);
    opened_.store(true, std::memory_order_release);
    return ok_status();
  }

  // Makes `wanted` the durable ceiling. One thread does; the others wait for it.
  Status raise_ceiling(uint64_t wanted) {
    MutexLock lock(mutex_);
    raised_.wait(lock, [this]() STRATA_REQUIRES(mutex_) { return !raising_; });
    const uint64_t ceiling = ceiling_.load(std::memory_order_relaxed);
    if (ceiling >= wanted || ceiling >= last_.load() + kStep / 2) return ok_status();
    raising_ = true;
    lock.unlock();
    const Status written = write_ceiling(wanted);
    lock.lock();
    if (written.ok()) ceiling_.store(wanted, std::memory_order_release);
    raising_ = false;
    raised_.notify_all();
    return written;
  }

  Status write_ceiling(uint64_t ceiling) {
    Mtr mtr(pool_, log_);
    STRATA_RETURN_IF_ERROR(mtr.begin_write(Mtr::kGroupLogBytes + Mtr::kPageLogBytesMax, true));
    STRATA_RETURN_IF_ERROR(spaces_->write_slot(&mtr, kSystem, HeaderSlot::kUser2, ceiling));
    return log_->persist(mtr.publish());
  }

  BufferPool* const pool_;
  Log* const log_;
  SpaceManager* const spaces_;
  std::atomic<bool> opened_{false};
  std::atomic<uint64_t> last_{0};        // seq_cst: views rely on it (internal/view_registry.h)
  std::atomic<uint64_t> ceiling_{0};     // durable
  Mutex mutex_{LatchRank::kTimestamps};  // not held over I/O
  CondVar raised_;
  bool raising_ STRATA_GUARDED_BY(mutex_) = false;
};

}  // namespace

std::unique_ptr<TimestampSource> make_local_timestamp_source(BufferPool* pool, Log* log,
                                                             SpaceManager* spaces) {
  return std::make_unique<LocalTimestampSource>(pool, log, spaces);
}

}  // namespace strata
