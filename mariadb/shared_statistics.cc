#include "mariadb/shared_statistics.h"

#include <ctime>
#include <thread>

#include "base/clock.h"
#include "base/fault.h"
#include "base/thread_name.h"
#include "mariadb/error_map.h"

namespace strata::glue {
namespace {

constexpr uint64_t kTellUs = 1'000'000;
constexpr uint64_t kAnalyzeWaitsUs = 3'000'000;
constexpr uint64_t kRowLockUs = 1'000'000;  // of a record, which a killed server may have left
constexpr uint64_t kFirstCollectUs = 10'000'000, kCollectUs = 3'600'000'000;

uint64_t now_version() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000 + static_cast<uint64_t>(now.tv_nsec) / 1000;
}

StatusOr<std::optional<StatisticsRecord>> committed_record(uint64_t table_id) {
  std::optional<StatisticsRecord> record;
  STRATA_RETURN_IF_ERROR(kernel->for_each_journal(
      statistics_key(table_id), [&](Bytes, Bytes value) { record = decode_statistics(value); }));
  return record;
}

class SharedStatistics {
 public:
  void start() {
    {
      const MutexLock lock(mutex_);
      stopping_ = false;
    }
    collect_at_us_ = monotonic_us() + kFirstCollectUs;
    thread_ = std::thread([this] { run(); });
  }
  void stop() {
    {
      const MutexLock lock(mutex_);
      stopping_ = true;
      if (writing_ != nullptr) writing_->interrupt();
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  void share(const engine::TableRef& table, Calculated found) {
    {
      const MutexLock lock(mutex_);
      if (stopping_) return;
      const auto [at, made] = found_.try_emplace(table, found);
      if (!made) add(&at->second, std::move(found));
      ++given_;
    }
    changed_.notify_all();
  }

  void wait_until_written() {
    MutexLock lock(mutex_);
    const uint64_t mine = given_, deadline_us = monotonic_us() + kAnalyzeWaitsUs;
    while (written_ < mine && !stopping_) {
      const uint64_t now_us = monotonic_us();
      if (now_us >= deadline_us) return;
      changed_.wait_for_us(lock, deadline_us - now_us);
    }
  }

  std::optional<StatisticsRecord> read(const engine::TableSpec& table) {
    const auto record = committed_record(table.table_id);
    if (!record.ok()) {
      if (!is_interrupted(record.status())) failed("read", record.status());
      return std::nullopt;
    }
    if (!record->has_value() || (*record)->space_id != table.space_id) return std::nullopt;
    return *record;
  }

  void take(engine::Table* table, const engine::TableCounts& known, const engine::Committed* told) {
    const MutexLock lock(taking_);
    engine::Kernel::take_counts(table, known, told);
  }

  std::vector<engine::Kernel::Counter> counters() {
    return {{"statistics_written", writes_.load(std::memory_order_relaxed)},
            {"statistics_read", reads_.load(std::memory_order_relaxed)},
            {"statistics_collected", collected_.load(std::memory_order_relaxed)},
            {"statistics_errors", errors_.load(std::memory_order_relaxed)}};
  }
  void has_read() { reads_.fetch_add(1, std::memory_order_relaxed); }

 private:
  // A transaction of the thread's, which ends with it; stop() ends what it waits for.
  class Writing {
   public:
    explicit Writing(SharedStatistics* owner) : owner_(owner), session_(kernel->new_session()) {
      session_->set_lock_wait_timeout_us(kRowLockUs);
      session_->begin(engine::Isolation::kReadCommitted);
      const MutexLock lock(owner_->mutex_);
      owner_->writing_ = session_.get();
      if (owner_->stopping_) session_->interrupt();
    }
    ~Writing() {
      const MutexLock lock(owner_->mutex_);
      owner_->writing_ = nullptr;
    }
    Writing(const Writing&) = delete;
    engine::Session* operator->() const noexcept { return session_.get(); }

   private:
    SharedStatistics* const owner_;
    const std::unique_ptr<engine::Session> session_;
  };
  using Found = std::map<engine::TableRef, Calculated>;

  void run() {
    name_this_thread("statistics");
    uint64_t tell_at_us = 0;
    for (;;) {
      Found found;
      uint64_t given = 0;
      {
        MutexLock lock(mutex_);
        if (!stopping_ && found_.empty()) changed_.wait_for_us(lock, kTellUs);
        if (stopping_) return;
        found.swap(found_);
        given = given_;
      }
      // Out of memory: what was found is lost, and found again.
      const int wrote = guarded([&] {
        for (const auto& [table, calculated] : found) write(table, calculated);
        return 0;
      });
      if (wrote != 0) errors_.fetch_add(1, std::memory_order_relaxed);  // TS3
      {
        const MutexLock lock(mutex_);
        written_ = given;
      }
      changed_.notify_all();
      if (monotonic_us() < tell_at_us) continue;
      const int told = guarded([&] {
        tell();
        collect();
        return 0;
      });
      if (told != 0) errors_.fetch_add(1, std::memory_order_relaxed);
      tell_at_us = monotonic_us() + kTellUs;
    }
  }

  // TS5
  void tell() {
    std::map<uint64_t, uint64_t> since;
    const uint64_t now_us = monotonic_us();
    for (const engine::TableRef& table : kernel->tables_with_untold()) {
      if (table->spec().internal_name) continue;
      const uint64_t id = table->spec().table_id;
      const auto known = since_us_.find(id);
      const uint64_t first_us = known == since_us_.end() ? now_us : known->second;
      const Calculated counted{.counts = engine::Kernel::counts(*table),
                               .committed = engine::Kernel::committed(*table)};
      if (!counted.counts.known) continue;
      const bool tells = is_worth_telling(engine::Kernel::untold(*table, counted.committed),
                                          counted.counts.rows, now_us - first_us);
      // What fails is tried again after as long a while.
      since[id] = tells ? now_us : first_us;
      if (tells && write(table, counted)) since.erase(id);
    }
    since_us_ = std::move(since);
  }

  bool write(const engine::TableRef& table, const Calculated& found) {
    if (table->stale() || table->spec().internal_name) return true;
    if (const Status status = put(table.get(), found); !status.ok()) {
      failed("written", status);
      return false;
    }
    writes_.fetch_add(1, std::memory_order_relaxed);
    has_failed_.store(false);
    return true;
  }

  // The row is locked before it is read, so that nobody's rows are lost.
  Status put(engine::Table* table, const Calculated& found) {
    const engine::TableSpec& spec = table->spec();
    const std::string key = statistics_key(spec.table_id);
    const Writing session(this);
    STRATA_RETURN_IF_ERROR(session->journal_put(key, Bytes()));
    STRATA_ASSIGN_OR_RETURN(const std::optional<StatisticsRecord> before,
                            committed_record(spec.table_id));
    const bool follows = before.has_value() && before->space_id == spec.space_id;
    // If it counts from a sample that is news here, this server has nothing to add.
    if (follows) take(table, before->counts, nullptr);
    const engine::Committed told = engine::Kernel::committed(*table);
    const engine::Committed untold = engine::Kernel::untold(*table, told);
    const engine::Committed since{.net = told.net - found.committed.net,
                                  .changed = told.changed - found.committed.changed};
    const uint64_t version =
        std::max(now_version(), before.has_value() ? before->counts.version + 1 : 0);
    const StatisticsRecord next =
        next_record(follows ? &*before : nullptr, spec.space_id, found, untold, since, version);
    STRATA_RETURN_IF_ERROR(session->journal_put(key, encode(next)));
    if (fault(FaultPoint::statistics_before_commit))
      return error_no_space("a test has it that statistics cannot be written");
    STRATA_RETURN_IF_ERROR(session->commit(engine::Durability::kNoSync));
    take(table, next.counts, &told);
    return ok_status();
  }

  // TS1
  void collect() {
    if (monotonic_us() < collect_at_us_) return;
    collect_at_us_ = monotonic_us() + kCollectUs;
    std::set<uint64_t> gone;
    const Status listed = kernel->for_each_journal(kStatisticsPrefix, [&](Bytes key, Bytes) {
      if (const auto id = table_of_statistics(key)) gone.insert(*id);
    });
    if (!listed.ok()) return failed("collected", listed);
    // After the records: each was written after its table was there.
    kernel->for_each_table(true, [&](const engine::TableSpec& spec) { gone.erase(spec.table_id); });
    for (const uint64_t id : gone) {
      const Writing session(this);
      Status erased = session->journal_erase(statistics_key(id));
      if (erased.ok()) erased = session->commit(engine::Durability::kNoSync);
      if (!erased.ok()) return failed("collected", erased);
      collected_.fetch_add(1, std::memory_order_relaxed);
    }
  }

  // TS3
  void failed(const char* what, const Status& why) {
    errors_.fetch_add(1, std::memory_order_relaxed);
    if (has_failed_.exchange(true)) return;
    sql_print_warning(
        "STRATA: statistics of tables cannot be %s (%s); plans go on with what this "
        "server knows, and it is tried again",
        what, cause_and_remedy(why).c_str());
  }

  Mutex mutex_{LatchRank::kServer};
  CondVar changed_;
  bool stopping_ = true;                // mutex_
  Found found_;                         // mutex_
  engine::Session* writing_ = nullptr;  // mutex_: of the thread
  uint64_t given_ = 0, written_ = 0;    // mutex_
  Mutex taking_{LatchRank::kServer};    // one at a time takes counts over
  std::atomic<uint64_t> writes_{0}, reads_{0}, collected_{0}, errors_{0};
  std::atomic<bool> has_failed_{false};
  // Of the thread:
  std::map<uint64_t, uint64_t> since_us_;  // by table id: rows are untold
  uint64_t collect_at_us_ = 0;
  std::thread thread_;
};

SharedStatistics statistics;

}  // namespace

void start_shared_statistics() { statistics.start(); }
void stop_shared_statistics() { statistics.stop(); }

std::optional<StatisticsRecord> read_statistics(const engine::TableSpec& table) {
  return statistics.read(table);
}
void take_statistics(engine::Table* table, const engine::TableCounts& known) {
  statistics.has_read();
  statistics.take(table, known, nullptr);
}
void share_statistics(const engine::TableRef& table, Calculated found) {
  statistics.share(table, std::move(found));
}
void wait_until_statistics_are_shared() { statistics.wait_until_written(); }
std::vector<engine::Kernel::Counter> statistics_counters() { return statistics.counters(); }

}  // namespace strata::glue
