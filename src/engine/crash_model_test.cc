// Random work by several sessions on a simulated disk that loses or tears what was not synced,
// crashes at random moments and inside the named fault points; after each restart the database must
// equal the oracle; the same with nothing on a disk, but a log service that makes the pages from
// the log (each life begins in an empty folder); and with pages in two tiers, of which the first
// one, or the power of the second, is lost at times. One thread, so that a seed replays exactly.
// Seeds are printed; STRATA_SEED and STRATA_ROUNDS choose others.
#include <gtest/gtest.h>

#include <map>
#include <optional>

#include "base/fault.h"
#include "base/rng.h"
#include "base/testing/sanitized.h"
#include "engine/testing/log_service.h"
#include "engine/testing/memory_tier.h"
#include "engine/testing/test_database.h"

namespace strata::engine {
namespace {

using namespace testing;  // NOLINT: test helpers

SimFileSystem* crashing_disk = nullptr;
LogService* crashing_service = nullptr;  // null: everything is on the disk
MemoryTier* crashing_tier = nullptr;     // null: no pages elsewhere
uint64_t crash_seed = 0;
bool crashed = false;

void crash_now(FaultPoint) {
  crashed = true;
  crashing_disk->crash(crash_seed);
  if (crashing_service != nullptr) crashing_service->crash(crash_seed);
  if (crashing_tier != nullptr) crashing_tier->crash(crash_seed);
}

enum class Home { kDisk, kLogService, kMemoryTier };

class CrashModel {
 public:
  CrashModel(uint64_t seed, Home home) : rng_(seed) {
    if (home == Home::kLogService) service_ = std::make_unique<LogService>();
    if (home == Home::kMemoryTier) tier_ = std::make_unique<MemoryTier>(rng_.next());
  }
  [[nodiscard]] const MemoryTier* tier() const { return tier_.get(); }

  void run(int lives, int steps) {
    for (int life = 0; life < lives && !::testing::Test::HasFailure(); ++life) {
      open();
      if (::testing::Test::HasFailure()) return;
      verify();
      work(steps);
      end_life();
    }
    open();
    if (!::testing::Test::HasFailure()) verify();
  }

 private:
  struct Work {
    std::unique_ptr<Session> session;
    Rows rows;  // committed state as this transaction changes it (it holds its rows locked)
    std::vector<uint64_t> touched;
    bool open = false;
  };

  void open() {
    KernelSeams seams;
    if (service_ != nullptr) {
      service_->revive();
      disk_ = make_sim_file_system();  // nothing of the last life is needed
      seams = service_->seams();
    }
    if (tier_ != nullptr) {
      tier_->revive();
      seams.page_source = tier_.get();
    }
    auto opened = open_with_seams(options_on(disk_.get()), seams);
    ASSERT_TRUE(opened.ok()) << opened.status();
    kernel_ = std::move(opened).value();
    auto session = kernel_->new_session();
    if (!kernel_->table_exists("test", "t")) {
      session->begin(Isolation::kRepeatableRead);
      ASSERT_TRUE(session->create_table(table_spec("t"), nullptr).ok());
      ASSERT_TRUE(session->commit().ok());
    }
    table_ = *session->open_table("test", "t");
  }

  void verify() {
    auto session = kernel_->new_session();
    session->begin(Isolation::kRepeatableRead);
    auto rows = scan(session.get(), table_);
    ASSERT_TRUE(rows.ok()) << rows.status();
    if (maybe_.has_value() && *rows == *maybe_)
      committed_ = *maybe_;  // the commit in flight made it
    maybe_.reset();
    EXPECT_EQ(rows->size(), committed_.size());
    EXPECT_TRUE(*rows == committed_) << "the restarted database differs from what was acknowledged";
    EXPECT_TRUE(*scan(session.get(), table_, 1) == committed_);
    EXPECT_TRUE(*scan(session.get(), table_, 2, true) == committed_);
    for (uint32_t i = 3; i < table_->spec().indexes.size(); ++i)
      EXPECT_TRUE(*scan(session.get(), table_, i) == committed_) << "added index " << i;
    expect_consistent(kernel_.get(), table_);
  }

  void arm() {
    crashed = false;
    crashing_disk = disk_.get();
    crashing_service = service_.get();
    crashing_tier = tier_.get();
    crash_seed = rng_.next();
    disarm_faults();
    set_fault_crash_handler(&crash_now);
    if (rng_.one_in(4)) return;
    FaultPoint point = FaultPoint::count;
    do {  // those of storage nodes are not passed here
      point = static_cast<FaultPoint>(rng_.below(static_cast<uint64_t>(FaultPoint::count)));
    } while (fault_point_name(point).starts_with("node_") ||
             fault_point_name(point).starts_with("memnode_"));
    arm_fault(std::string(fault_point_name(point)) + ":" + std::to_string(1 + rng_.below(30)));
  }

  void work(int steps) {
    arm();
    std::vector<Work> workers(3);
    for (Work& w : workers) {
      w.session = kernel_->new_session();
      w.session->set_lock_wait_timeout_us(0);
    }
    for (int step = 0; step < steps && !crashed; ++step) {
      if (rng_.one_in(200)) (void)kernel_->checkpoint();
      if (tier_ != nullptr && rng_.one_in(100)) (void)kernel_->memory_checkpoint();
      if (rng_.one_in(40)) (void)kernel_->run_purge(8);
      if (crashed) break;
      one_step(&workers[rng_.below(workers.size())]);
    }
    if (!crashed) crash_now(FaultPoint::count);
    disarm_faults();
    workers.clear();  // sessions try to roll back on a dead disk: harmless
  }

  void one_step(Work* w) {
    if (!w->open) {
      w->session->begin(rng_.one_in(2) ? Isolation::kRepeatableRead : Isolation::kReadCommitted);
      w->touched.clear();
      w->open = true;
      pending_of_[w] = {};
    }
    if (rng_.one_in(50) && change_indexes()) return;
    const uint64_t choice = rng_.below(10);
    if (choice == 0) return finish(w, rng_.one_in(4));
    change(w);
  }

  // Needs the table for itself, as the server's metadata locks would give it.
  bool change_indexes() {
    for (const auto& [other, changes] : pending_of_)
      if (!changes.empty()) return false;
    auto session = kernel_->new_session();
    session->begin(Isolation::kReadCommitted);
    const size_t indexes = table_->spec().indexes.size();
    const bool drop = indexes > 3 && rng_.one_in(2);
    Status status = drop ? drop_index(session.get(), "t", 3 + rng_.below(indexes - 3))
                         : add_index(session.get(), "t", rng_.one_in(2));
    if (status.ok()) status = rng_.one_in(4) ? session->rollback() : session->commit();
    EXPECT_TRUE(status.ok() || crashed) << status;
    const auto table = kernel_->new_session()->open_table("test", "t");
    if (table.ok()) table_ = *table;
    return true;
  }

  void change(Work* w) {
    const uint64_t id = 1 + rng_.below(400);
    auto& pending = pending_of_[w];
    for (auto& [other, changes] : pending_of_) {
      if (other != w && changes.count(id) != 0) return;  // would time out: keep the oracle simple
    }
    std::optional<Row> current;
    if (pending.count(id) != 0) {
      current = pending[id];
    } else if (committed_.count(id) != 0) {
      current = committed_[id];
    }
    Row next;
    next.unique_value = id * 10 + rng_.below(3);
    next.group = static_cast<uint32_t>(rng_.below(20));
    next.text = std::string(rng_.below(rng_.one_in(5) ? 1500 : 40),
                            static_cast<char>('a' + rng_.below(26)));
    if (rng_.one_in(6))
      next.blob = std::string(rng_.below(60000), static_cast<char>('A' + rng_.below(26)));
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
    if (crashed) return;
    if (status.ok()) {
      pending[id] = after;
    } else {
      EXPECT_TRUE(is_lock_wait_timeout(status)) << status;
    }
  }

  void finish(Work* w, bool roll_back) {
    Rows after = committed_;
    for (const auto& [id, row] : pending_of_[w]) {
      if (row) {
        after[id] = *row;
      } else {
        after.erase(id);
      }
    }
    w->open = false;
    pending_of_.erase(w);
    if (roll_back) {
      EXPECT_TRUE(w->session->rollback().ok() || crashed);
      return;
    }
    maybe_ = after;
    const Status status = w->session->commit();
    if (status.ok()) {
      // Acknowledged, even if the simulated power went off right after: it was durable.
      committed_ = after;
      maybe_.reset();
    } else {
      EXPECT_TRUE(crashed) << status;
    }
  }

  void end_life() {
    pending_of_.clear();
    table_.reset();
    kernel_.reset();
  }

  Rng rng_;
  std::unique_ptr<SimFileSystem> disk_ = make_sim_file_system();
  std::unique_ptr<LogService> service_;
  std::unique_ptr<MemoryTier> tier_;
  std::unique_ptr<Kernel> kernel_;
  TableRef table_;
  Rows committed_;
  std::optional<Rows> maybe_;
  std::map<Work*, std::map<uint64_t, std::optional<Row>>> pending_of_;
};

class CrashModelIn : public ::testing::TestWithParam<Home> {};

TEST_P(CrashModelIn, EveryAcknowledgedCommitAndNothingElseIsThereAfterEveryCrash) {
  const uint64_t first = environment("STRATA_SEED", 1);
  const uint64_t usual = GetParam() == Home::kMemoryTier ? 6 : 12;
  const uint64_t rounds =
      environment("STRATA_ROUNDS", strata::testing::fewer_if_sanitized(usual, usual / 3));
  for (uint64_t seed = first; seed < first + rounds && !HasFailure(); ++seed) {
    SCOPED_TRACE("STRATA_SEED=" + std::to_string(seed));
    CrashModel model(seed, GetParam());
    model.run(6, 1200);
    if (model.tier() != nullptr) {
      std::printf("seed %llu: %llu starts from memory, %llu pools lost, %llu direct writes\n",
                  static_cast<unsigned long long>(seed),
                  static_cast<unsigned long long>(model.tier()->memory_starts),
                  static_cast<unsigned long long>(model.tier()->pools_lost),
                  static_cast<unsigned long long>(model.tier()->direct_writes));
    }
    if (HasFailure())
      std::printf("failed with STRATA_SEED=%llu\n", static_cast<unsigned long long>(seed));
  }
}

INSTANTIATE_TEST_SUITE_P(Homes, CrashModelIn,
                         ::testing::Values(Home::kDisk, Home::kLogService, Home::kMemoryTier),
                         [](const auto& home) {
                           return home.param == Home::kDisk         ? "Disk"
                                  : home.param == Home::kLogService ? "LogService"
                                                                    : "MemoryTier";
                         });

}  // namespace
}  // namespace strata::engine
