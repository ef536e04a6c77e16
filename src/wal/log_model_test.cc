// Goal: whatever the threads do and wherever the disk stops, recovery sees exactly a prefix of the
// log that holds every group persist() ever acknowledged (W2, W4, W5, LR1-LR3). Method: N threads
// write groups through a Log over local segments on a simulated disk; a gate makes every write fail
// from a random point on; then the disk loses what was not synced, torn at 512 bytes; a reader
// compares with what the threads recorded; the tail is erased and the next life goes on in the same
// log, with checkpoints that truncate. One seed per log, printed; STRATA_SEED=n replays one (the
// thread schedule is the machine's, so a replay is likely, not certain).
#include <cstdlib>
#include <map>
#include <mutex>
#include <random>
#include <vector>

#include "base/diag.h"
#include "base/testing/sanitized.h"
#include "io/file_system.h"
#include "wal/local_log_sink.h"
#include "wal/log_reader.h"
#include "wal/testing/test_sink.h"

namespace strata {
namespace {

constexpr int kThreads = 4;
constexpr int kLives = 10;

// Passes calls on until the disk "stops": then every append and sync fails, the first one half
// done.
class Gate final : public LogSink {
 public:
  Gate(LogSink* sink, uint64_t calls_left) : sink_(sink), calls_left_(calls_left) {}
  Lsn begin_lsn() const override { return sink_->begin_lsn(); }
  Status prepare_room(Lsn end) override { return sink_->prepare_room(end); }
  Lsn room_end() const override { return sink_->room_end(); }
  Status append(Lsn at, Bytes bytes) override {
    if (calls_left_ == 0) return error_internal("gate");
    if (--calls_left_ == 0) {
      sink_->append(at, bytes.substr(0, bytes.size() / 2)).IgnoreError();
      return error_internal("gate");
    }
    return sink_->append(at, bytes);
  }
  Status sync() override {
    if (calls_left_ == 0 || --calls_left_ == 0) return error_internal("gate");
    return sink_->sync();
  }
  StatusOr<size_t> read(Lsn at, char* out, size_t bytes) override {
    return sink_->read(at, out, bytes);
  }
  Status truncate_below(Lsn lsn) override { return sink_->truncate_below(lsn); }

 private:
  LogSink* const sink_;
  uint64_t calls_left_;
};

struct Record {
  uint64_t end, llsn;
  std::string payload;
};

class Model {
 public:
  explicit Model(uint64_t seed) : rng_(seed), fs_(make_sim_file_system()) {
    options_.directory = "/log";
    options_.database_id = seed;
    options_.segment_bytes = 4096 * (4 + rng_.below(12));
    options_.spare_segments_max = static_cast<uint32_t>(rng_.below(4));
    ring_bytes_ = 4096u << rng_.below(4);
    // Groups of one length: a new life's groups end where the old ones did (LR3).
    fixed_payload_ = rng_.one_in(2) ? 100 + rng_.below(500) : 0;
  }

  void run() {
    {
      const auto made = create_local_log(fs_.get(), options_, Lsn{checkpoint_});
      ASSERT_TRUE(made.ok()) << made.status();
    }
    for (int life = 0; life < kLives && !::testing::Test::HasFailure(); life++) {
      run_life();
      fs_->crash(rng_.next());
      recover();
    }
  }

 private:
  void run_life() {
    auto sink = open_local_log(fs_.get(), options_);
    ASSERT_TRUE(sink.ok()) << sink.status();
    // Very short lives leave the end inside what the life before had written.
    constexpr uint64_t kCallsMax[] = {4, 12, 200, 3000};
    Gate gate(sink->get(), 1 + rng_.below(kCallsMax[rng_.below(4)]));
    Log log({.buffer_bytes = ring_bytes_, .node = NodeId{1}}, &gate, Lsn{end_}, bias_);
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; i++)
      threads.emplace_back([this, &log, seed = rng_.next()] { write_groups(&log, seed); });
    threads.emplace_back([this, &log, seed = rng_.next()] { checkpoint(&log, seed); });
    for (std::thread& t : threads) t.join();
  }

  void write_groups(Log* log, uint64_t seed) {
    Rng rng(seed);
    uint64_t above = 0;
    while (true) {
      std::string payload(
          fixed_payload_ != 0 ? fixed_payload_ : rng.below(rng.one_in(20) ? 1500 : 200), '\0');
      for (char& c : payload) c = static_cast<char>(rng.next());
      const uint32_t bytes = test_group_bytes(payload.size());
      if (!log->reserve_capacity(bytes + 256, rng.one_in(2)).ok()) return;
      LogReservation r;
      while (!log->reserve(bytes, log->image_floor(), Llsn{above}, &r)) {
      }
      EXPECT_GT(r.llsn.value, above);
      {
        std::lock_guard<std::mutex> lock(mutex_);
        records_[r.start.value] = Record{r.end.value, r.llsn.value, payload};
      }
      if (rng.one_in(50)) std::this_thread::yield();
      log->copy(r, make_test_group(r, payload));
      log->complete(r);
      log->return_capacity(256);
      above = rng.one_in(10) ? r.llsn.value + rng.below(1000) : r.llsn.value;
      if (rng.one_in(100)) log->observe_llsn(Llsn{above});
      if (!rng.one_in(4)) continue;
      if (!log->persist(r.end).ok()) return;
      EXPECT_GE(log->durable_lsn(), r.end);
      std::lock_guard<std::mutex> lock(mutex_);
      acknowledged_ = std::max(acknowledged_, r.end.value);
    }
  }

  void checkpoint(Log* log, uint64_t seed) {
    Rng rng(seed);
    while (!log->poisoned()) {
      std::this_thread::sleep_for(std::chrono::microseconds(rng.below(2000)));
      const Lsn floor = log->raise_image_floor();
      log->wait_completed(floor);
      if (!log->persist(floor).ok() || rng.one_in(2)) continue;
      EXPECT_TRUE(log->truncate_below(floor).ok());
      checkpoint_ = floor.value;
    }
  }

  void recover() {
    auto sink = open_local_log(fs_.get(), options_);
    ASSERT_TRUE(sink.ok()) << sink.status();
    LogReader reader(sink->get(), Lsn{checkpoint_}, 0);
    redo::GroupView group;
    auto expected = records_.find(checkpoint_);
    uint64_t at = checkpoint_;
    for (;;) {
      const StatusOr<bool> more = reader.next(&group);
      ASSERT_TRUE(more.ok()) << more.status();
      if (!*more) break;
      ASSERT_TRUE(expected != records_.end());
      ASSERT_EQ(expected->first, at);
      ASSERT_EQ(group.header.lsn, at);
      ASSERT_EQ(group.header.llsn, expected->second.llsn);
      ASSERT_EQ(payload_of(group), expected->second.payload);
      at = (expected++)->second.end;
    }
    ASSERT_EQ(reader.end_lsn().value, at);
    ASSERT_GE(at, acknowledged_) << "an acknowledged group is gone";
    records_.erase(expected, records_.end());
    ASSERT_TRUE(reader.erase_tail().ok());
    if (rng_.one_in(3)) fs_->crash(rng_.next());
    end_ = at;
    if (reader.group_count() != 0) bias_ = reader.bias();
  }

  Rng rng_;
  std::unique_ptr<SimFileSystem> fs_;
  LocalLogOptions options_;
  uint32_t ring_bytes_;
  size_t fixed_payload_;
  std::mutex mutex_;
  std::map<uint64_t, Record> records_;  // by start; guarded by mutex_
  uint64_t acknowledged_ = 0;           // guarded by mutex_
  std::atomic<uint64_t> checkpoint_{4096};
  uint64_t end_ = 4096;
  uint64_t bias_ = 0;
};

TEST(LogModel, RecoveryReturnsAPrefixWithEverythingAcknowledged) {
  set_diag_sink([](Severity, std::string_view) {});  // every life ends with a poisoned log
  const char* fixed = std::getenv("STRATA_SEED");
  std::random_device entropy;
  const uint64_t first = fixed != nullptr ? std::strtoull(fixed, nullptr, 10) : entropy();
  const uint64_t logs = fixed != nullptr ? 1 : strata::testing::fewer_if_sanitized(25, 12);
  for (uint64_t i = 0; i < logs && !HasFailure(); i++) {
    SCOPED_TRACE("STRATA_SEED=" + std::to_string(first + i));
    Model(first + i).run();
  }
}

}  // namespace
}  // namespace strata
