// Random work by several sessions on a disk, and at fault points, that fail now and then while the
// kernel lives on: reads, writes, syncs, a full disk, in rollbacks and commits too. Whatever the
// errors were, a transaction that was not acknowledged leaves nothing behind, one that was is
// there, and one that was decided is there in the end: on the living kernel, once the disk works
// again, and after a crash. One thread, so that a seed replays exactly. Seeds are printed;
// STRATA_SEED and STRATA_ROUNDS choose others.
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <set>

#include "base/fault.h"
#include "base/rng.h"
#include "base/testing/sanitized.h"
#include "engine/testing/failing_disk.h"
#include "engine/testing/test_database.h"

namespace strata::engine {
namespace {

using namespace testing;  // NOLINT: test helpers

constexpr uint64_t kIds = 300;

class ErrorModel {
 public:
  explicit ErrorModel(uint64_t seed) : rng_(seed) {}
  ~ErrorModel() {
    workers_.clear();
    table_.reset();
    kernel_.reset();
    disarm_faults();
  }

  void run(int lives, int episodes) {
    for (int life = 0; life < lives && !::testing::Test::HasFailure(); ++life) {
      open();
      if (::testing::Test::HasFailure()) return;
      for (int i = 0; i < episodes && !life_is_over_; ++i) episode();
      crash();
    }
    open();
  }
  [[nodiscard]] const std::map<StatusCode, uint64_t>& seen() const { return seen_; }
  [[nodiscard]] uint64_t finished_later() const { return finished_later_; }

 private:
  using Changes = std::map<uint64_t, std::optional<Row>>;
  struct Worker {
    std::unique_ptr<Session> session;
    Changes changes;
    std::optional<Savepoint> savepoint;
    Changes at_savepoint;
    bool open = false;
  };

  void open() {
    KernelOptions options = options_on(&disk_);
    options.buffer_pool_bytes = 2u << 20;  // pages have to be read
    options.log_segment_bytes = 1u << 20;
    options.log_buffer_bytes = 1u << 19;
    auto opened = Kernel::open(options);
    ASSERT_TRUE(opened.ok()) << opened.status();
    kernel_ = std::move(opened).value();
    life_is_over_ = false;
    for (const PreparedTransaction& left : kernel_->prepared_transactions()) {
      const bool commit = decided_.count(left.xid) != 0;
      ASSERT_TRUE(
          (commit ? kernel_->commit_by_xid(left.xid) : kernel_->rollback_by_xid(left.xid)).ok());
    }
    decided_.clear();
    auto session = kernel_->new_session();
    if (!kernel_->table_exists("test", "t")) {
      session->begin(Isolation::kRepeatableRead);
      ASSERT_TRUE(session->create_table(table_spec("t"), nullptr).ok());
      ASSERT_TRUE(session->commit().ok());
    }
    table_ = *session->open_table("test", "t");
    workers_ = std::vector<Worker>(3);
    for (Worker& w : workers_) {
      w.session = kernel_->new_session();
      w.session->set_lock_wait_timeout_us(0);
    }
    verify();
  }

  void crash() {
    for (Worker& w : workers_) w.changes.clear();
    disk_.empty();
    sim_->crash(rng_.next());
    disarm_faults();
    workers_.clear();
    table_.reset();
    kernel_.reset();
  }

  // Everything works, then something does not for a while, then everything works again.
  void episode() {
    disturb();
    const uint64_t steps = 20 + rng_.below(200);
    for (uint64_t i = 0; i < steps && !life_is_over_; ++i) step(&workers_[rng_.below(3)]);
    disk_.empty();
    disarm_faults();
    if (life_is_over_ || ::testing::Test::HasFailure()) return;
    for (Worker& w : workers_) finish(&w, rng_.one_in(2));
    if (life_is_over_ || ::testing::Test::HasFailure()) return;
    if (log_has_ended()) return;
    const Status ended = kernel_->run_unfinished();
    ASSERT_TRUE(ended.ok()) << ended;
    ASSERT_EQ(counter_of(kernel_.get(), "unfinished_rollbacks"), 0u);
    ASSERT_EQ(counter_of(kernel_.get(), "unfinished_commits"), 0u);
    ASSERT_EQ(counter_of(kernel_.get(), "trx_active"), 0u);
    decided_.clear();
    verify();
  }

  void disturb() {
    if (rng_.one_in(2)) {
      FaultPoint point = FaultPoint::count;
      do {  // those of storage nodes are not passed here
        point = static_cast<FaultPoint>(rng_.below(static_cast<uint64_t>(FaultPoint::count)));
      } while (fault_point_name(point).starts_with("node_") || ends_the_life(point));
      arm_fault(std::string(fault_point_name(point)) + ":" + std::to_string(1 + rng_.below(30)) +
                ":errors=" + std::to_string(1 + rng_.below(5)));
    }
    if (rng_.one_in(4))
      arm_fault("rollback_half:" + std::to_string(1 + rng_.below(20)) + ":errors=3");
    if (rng_.one_in(4))
      arm_fault("commit_before_log:" + std::to_string(1 + rng_.below(5)) + ":errors=4");
    if (rng_.one_in(3)) return disk_.fill_up();
    if (rng_.one_in(3)) return;
    // What ends the life, soon or at once: seldom.
    const bool log_too = rng_.one_in(20);
    const auto kind = rng_.one_in(40)  ? DiskCall::kSync
                      : rng_.one_in(2) ? DiskCall::kRead
                      : rng_.one_in(2) ? DiskCall::kWrite
                                       : DiskCall::kAllocate;
    const uint64_t every = 2 + rng_.below(20);  // or no page could ever be written
    disk_.set_refuse([this, kind, log_too, every, calls = uint64_t{0}](
                         DiskCall call, const std::string& path) mutable -> Status {
      const bool of_log = path.find("/log") != std::string::npos;
      if (call != kind || (of_log && !log_too) || ++calls % every != 0) return ok_status();
      // After a sync that failed nobody knows what is on the disk: no page is written any more, and
      // a small pool is soon full of those that should be.
      if (call == DiskCall::kSync) life_is_over_ = true;
      return error_peer_down("the disk failed: " + path);
    });
  }
  // Nobody may say whether a commit that stopped there took place.
  static bool ends_the_life(FaultPoint point) {
    const std::string_view name = fault_point_name(point);
    return name == "commit_before_persist" || name == "commit_before_publish" ||
           name.starts_with("wal_before") || name.starts_with("wal_after");
  }

  void step(Worker* w) {
    if (rng_.one_in(100)) (void)kernel_->checkpoint();  // may fail like everything else
    if (rng_.one_in(30)) (void)kernel_->run_purge(8);
    if (rng_.one_in(30)) (void)kernel_->run_unfinished();
    if (!w->open) {
      w->session->begin(rng_.one_in(2) ? Isolation::kRepeatableRead : Isolation::kReadCommitted);
      w->open = true;
      w->changes.clear();
      w->savepoint.reset();
    }
    switch (rng_.below(12)) {
      case 0:
        return finish(w, rng_.one_in(3));
      case 1:
        w->savepoint = w->session->savepoint();
        w->at_savepoint = w->changes;
        return;
      case 2:
        return back_to_savepoint(w);
      case 3:
        if (rng_.one_in(5)) return disconnect(w);
        [[fallthrough]];
      default:
        return change(w);
    }
  }

  void note(const Status& status) { ++seen_[status.code()]; }

  void back_to_savepoint(Worker* w) {
    if (!w->savepoint) return;
    const Status status = w->session->rollback_to(*w->savepoint);
    note(status);
    if (status.ok()) {
      w->changes = w->at_savepoint;
      return;
    }
    EXPECT_TRUE(w->session->must_rollback());
    EXPECT_FALSE(w->session->undo_failure().ok());
    if (rng_.one_in(2)) {  // somebody commits all the same
      EXPECT_FALSE(w->session->commit().ok());
    } else {
      note(w->session->rollback());
    }
    ended(w);
  }

  void disconnect(Worker* w) {
    w->session = kernel_->new_session();
    w->session->set_lock_wait_timeout_us(0);
    ended(w);
  }

  void ended(Worker* w) {
    EXPECT_FALSE(w->session->in_transaction());
    w->open = false;
    w->changes.clear();
    w->savepoint.reset();
  }

  void change(Worker* w) {
    const uint64_t id = 1 + rng_.below(kIds);
    for (const Worker& other : workers_)
      if (&other != w && other.changes.count(id) != 0) return;
    std::optional<Row> current;
    if (const auto it = w->changes.find(id); it != w->changes.end()) {
      current = it->second;
    } else if (const auto found = committed_.find(id); found != committed_.end()) {
      current = found->second;
    }
    Row next;
    next.unique_value = id * 10 + rng_.below(3);
    next.group = static_cast<uint32_t>(rng_.below(20));
    next.text = std::string(rng_.below(rng_.one_in(3) ? 1500 : 40),
                            static_cast<char>('a' + rng_.below(26)));
    if (rng_.one_in(6))
      next.blob = std::string(rng_.below(60000), static_cast<char>('A' + rng_.below(26)));
    // Sometimes with the unique value of another row: an entry that fails when the row is written.
    if (rng_.one_in(10)) next.unique_value = (1 + rng_.below(kIds)) * 10;
    Status status;
    std::optional<Row> after = next;
    if (!current) {
      status = insert(w->session.get(), table_, id, next);
    } else if (rng_.one_in(3)) {
      status = remove(w->session.get(), table_, id, *current);
      after.reset();
    } else {
      status = update(w->session.get(), table_, id, *current, id, next);
    }
    note(status);
    if (status.ok()) w->changes[id] = after;
    if (w->session->must_rollback()) {
      note(w->session->rollback());
      ended(w);
    }
  }

  Rows with(const Changes& changes) const {
    Rows rows = committed_;
    for (const auto& [id, row] : changes) {
      if (row) {
        rows[id] = *row;
      } else {
        rows.erase(id);
      }
    }
    return rows;
  }

  void finish(Worker* w, bool roll_back) {
    if (!w->open) return;
    if (roll_back) {
      note(w->session->rollback());
      return ended(w);
    }
    const Rows after = with(w->changes);
    bool decided = false;
    if (!w->changes.empty() && rng_.one_in(2)) {  // with a coordinator
      const std::string xid = "xid-" + std::to_string(++xids_);
      Status prepared = w->session->prepare(xid);
      if (prepared.ok()) prepared = w->session->reserve_commit();
      note(prepared);
      if (!prepared.ok()) {
        note(w->session->rollback());
        return ended(w);
      }
      decided = true;
      decided_.insert(xid);
      if (rng_.one_in(2)) note(w->session->commit_ordered());
    }
    const Status status = w->session->commit();
    note(status);
    const bool later = decided && is_outcome_unknown(status);
    if (later) ++finished_later_;
    if (status.ok() || later) {
      committed_ = after;
    } else if (is_outcome_unknown(status)) {
      maybe_ = after;
    }
    // A log that cannot be written any more: only a restart helps. Otherwise nothing is unknown.
    if (is_outcome_unknown(status) && !later) life_is_over_ = true;
    log_has_ended();
    ended(w);
  }

  bool log_has_ended() {
    life_is_over_ |= ends_right(kernel_->persist_log());
    return life_is_over_;
  }

  void verify() {
    auto session = kernel_->new_session();
    session->begin(Isolation::kRepeatableRead);
    auto rows = scan(session.get(), table_);
    ASSERT_TRUE(rows.ok()) << rows.status();
    if (maybe_.has_value() && *rows == *maybe_) committed_ = *maybe_;
    maybe_.reset();
    EXPECT_EQ(rows->size(), committed_.size());
    EXPECT_TRUE(*rows == committed_) << "the database differs from what was acknowledged";
    EXPECT_TRUE(*scan(session.get(), table_, 1) == committed_);
    EXPECT_TRUE(*scan(session.get(), table_, 2, true) == committed_);
    EXPECT_TRUE(session->commit().ok());
    expect_consistent(kernel_.get(), table_);
  }

  Rng rng_;
  std::unique_ptr<SimFileSystem> sim_ = make_sim_file_system();
  FailingDisk disk_{sim_.get()};
  std::unique_ptr<Kernel> kernel_;
  TableRef table_;
  std::vector<Worker> workers_;
  Rows committed_;
  std::optional<Rows> maybe_;
  std::set<std::string> decided_;
  uint64_t xids_ = 0;
  uint64_t finished_later_ = 0;
  bool life_is_over_ = false;
  std::map<StatusCode, uint64_t> seen_;
};

TEST(ErrorModel, WhatFailsWhileTheKernelLivesLosesNothingAndLeavesNothingBehind) {
  const uint64_t first = environment("STRATA_SEED", 1);
  const uint64_t rounds = environment("STRATA_ROUNDS", strata::testing::fewer_if_sanitized(12, 4));
  std::map<StatusCode, uint64_t> seen;
  uint64_t finished_later = 0;
  for (uint64_t seed = first; seed < first + rounds && !HasFailure(); ++seed) {
    SCOPED_TRACE("STRATA_SEED=" + std::to_string(seed));
    ErrorModel model(seed);
    model.run(3, 8);
    for (const auto& [code, count] : model.seen()) seen[code] += count;
    finished_later += model.finished_later();
    if (HasFailure())
      std::printf("failed with STRATA_SEED=%llu\n", static_cast<unsigned long long>(seed));
  }
  for (const auto& [code, count] : seen)
    std::printf("%s: %llu\n", absl::StatusCodeToString(code).c_str(),
                static_cast<unsigned long long>(count));
  std::printf("decided commits that were finished later: %llu\n",
              static_cast<unsigned long long>(finished_later));
}

}  // namespace
}  // namespace strata::engine
