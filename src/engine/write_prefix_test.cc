// Recovery from every moment: random work on a simulated disk; after each change of the disk
// (write, sync, rename, growth ...) copies of it are opened as if the machine had stopped right
// there, once with everything that was written and again with what was not synced lost, torn or
// reordered. Each must hold every acknowledged commit, none half, nothing else, and its indexes
// must agree.
//
// By default each change is looked at once; STRATA_PREFIX_COPIES=n looks n times (the first with
// everything written). STRATA_SEED chooses the work, STRATA_PREFIX_STEPS how much of it. A disk
// that fails is saved below STRATA_PREFIX_SAVE (default: the folder for temporary files) so that it
// can be opened again: the log's helper thread is not part of the seed.
#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <thread>

#include "base/diag.h"
#include "base/testing/sanitized.h"
#include "engine/testing/save_disk.h"
#include "engine/testing/workload.h"

namespace strata::engine {
namespace {

using namespace testing;  // NOLINT: test helpers

// One disk to be opened.
struct Job {
  std::unique_ptr<SimFileSystem> disk;
  uint64_t change = 0;   // how many changes the disk had seen
  uint64_t variant = 0;  // 0: everything written is there; else the seed of the power loss
  bool created = false;  // the database was complete
  std::vector<LedgerStatePtr> allowed;
  [[nodiscard]] std::string name() const {
    return "change " + std::to_string(change) + ", variant " + std::to_string(variant);
  }
};

// Opens the disk of a job and says what is wrong; empty: nothing.
class Examination {
 public:
  explicit Examination(Job* job) : job_(job), rng_(mix64(job->change * 8191 + job->variant)) {}

  std::string run() {
    if (job_->variant != 0) job_->disk->crash(job_->variant);
    std::string problem = open();
    if (!problem.empty() || kernel_ == nullptr) return problem;
    problem = look();
    if (problem.empty() && rng_.one_in(4)) problem = go_on();
    kernel_.reset();
    return problem;
  }

 private:
  std::string open() {
    kernel_.reset();
    if (rng_.one_in(8)) {  // recovery is itself cut short
      auto first = Kernel::open(small_options(job_->disk.get()));
      job_->disk->crash(rng_.next());
    }
    auto opened = Kernel::open(small_options(job_->disk.get()));
    if (opened.ok()) {
      kernel_ = std::move(opened).value();
      return "";
    }
    // Until the control file is there the folder is recognised as half made (E20).
    const std::string message = opened.status().ToString();
    if (!job_->created && message.find("half-initialised") != std::string::npos) return "";
    return "does not open: " + message;
  }

  std::string look() {
    auto contents = read_contents(kernel_.get());
    if (!contents.ok()) return "cannot be read: " + contents.status().ToString();
    std::string problem;
    for (const LedgerStatePtr& state : job_->allowed) {
      const std::string differs = compare(*contents, *state);
      if (differs.empty()) {
        state_ = *state;
        return check_indexes(kernel_.get(), *contents) + check_files();
      }
      if (problem.empty()) problem = differs;
    }
    return problem;
  }

  // No file is left of spaces that no table uses.
  std::string check_files() {
    const auto files = job_->disk->list("/db/pages");
    if (!files.ok()) return files.status().ToString();
    size_t wanted = 3;  // system and undo space, the copies of double writes
    kernel_->for_each_table(true,
                            [&wanted](const TableSpec& spec) { wanted += spaces_of(spec).size(); });
    if (files->size() == wanted) return "";
    return std::to_string(files->size()) + " page files, wanted " + std::to_string(wanted);
  }

  // The recovered database works on, decides what was prepared, and survives the next crash.
  std::string go_on() {
    while (!state_.prepared.empty()) {
      const auto [xid, work] = *state_.prepared.begin();
      const bool commits = rng_.one_in(2);
      const Status done = commits ? kernel_->commit_by_xid(xid) : kernel_->rollback_by_xid(xid);
      if (!done.ok()) return "deciding " + xid + ": " + done.ToString();
      if (commits) state_.apply(work.table, work.changes);
      state_.prepared.erase(xid);
    }
    if (!state_.tables.empty()) {
      const std::string name = state_.tables.begin()->first;
      auto session = kernel_->new_session();
      session->begin(Isolation::kRepeatableRead);
      const auto table = session->open_table("test", name);
      if (!table.ok()) return table.status().ToString();
      std::vector<LedgerChange> changes;
      for (uint64_t id = 5000; id < 5030; ++id) {
        auto row = std::make_shared<Row>();
        row->unique_value = id * 10;
        row->text = std::string(rng_.below(1000), 'n');
        const Status inserted = insert(session.get(), *table, id, *row);
        if (!inserted.ok()) return "insert after recovery: " + inserted.ToString();
        changes.push_back({id, row});
      }
      const Status committed = session->commit();
      if (!committed.ok()) return "commit after recovery: " + committed.ToString();
      state_.apply(name, changes);
    }
    const Status purged = kernel_->run_purge(1000);
    if (!purged.ok()) return "purge after recovery: " + purged.ToString();
    const Status persisted = kernel_->persist_log();
    if (!persisted.ok()) return persisted.ToString();
    if (rng_.one_in(2)) {
      const Status shut = kernel_->shutdown();
      if (!shut.ok()) return "shutdown after recovery: " + shut.ToString();
    }
    kernel_.reset();
    job_->disk->crash(rng_.next());
    job_->created = true;
    job_->allowed = {std::make_shared<const LedgerState>(state_)};
    std::string problem = open();
    if (problem.empty()) problem = look();
    return problem.empty() ? "" : "after working on: " + problem;
  }

  Job* job_;
  Rng rng_;
  std::unique_ptr<Kernel> kernel_;
  LedgerState state_;
};

// Two threads that examine disks; whoever brings one waits while several are left.
class Examiners {
 public:
  Examiners() {
    for (std::thread& thread : threads_) thread = std::thread([this] { main(); });
  }
  ~Examiners() { finish(); }
  void add(Job job) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return jobs_.size() < 4; });
    jobs_.push_back(std::move(job));
    changed_.notify_all();
  }
  void finish() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_)
      if (thread.joinable()) thread.join();
  }
  bool failed() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return !failures_.empty();
  }
  [[nodiscard]] const std::vector<std::string>& failures() const { return failures_; }
  [[nodiscard]] uint64_t examined() const { return examined_; }

 private:
  void main() {
    for (;;) {
      Job job;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [this] { return ended_ || !jobs_.empty(); });
        if (jobs_.empty()) return;
        job = std::move(jobs_.front());
        jobs_.pop_front();
        changed_.notify_all();
        if (!failures_.empty()) continue;
        ++examined_;
      }
      const auto untouched = job.disk->fork();
      const std::string name = job.name();
      const std::string problem = Examination(&job).run();
      if (problem.empty()) continue;
      const std::lock_guard<std::mutex> lock(mutex_);
      failures_.push_back(name + ": " + problem);
      if (failures_.size() == 1) save(untouched.get());
    }
  }
  static void save(SimFileSystem* disk) {
    const char* folder = std::getenv("STRATA_PREFIX_SAVE");
    const std::string target =
        (folder != nullptr ? std::string(folder) : ::testing::TempDir()) + "/failed-write-prefix";
    const Status saved = save_disk(disk, "/db", target);
    std::printf("the disk is saved in %s: %s\n", target.c_str(), saved.ToString().c_str());
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  std::vector<std::string> failures_;
  uint64_t examined_ = 0;
  bool ended_ = false;
  std::thread threads_[2];
};

class WritePrefix {
 public:
  WritePrefix(uint64_t seed, uint64_t copies)
      : rng_(seed), copies_(copies), workload_(disk_.get(), seed, &ledger_) {}

  void run(int steps) {
    disk_->set_observer([this] { on_change(); });
    Status status = workload_.start();
    if (status.ok()) {
      created_ = true;
      for (int i = 0; i < steps && status.ok() && !examiners_.failed(); ++i)
        status = workload_.step();
      if (status.ok()) status = workload_.shutdown();
    }
    disk_->set_observer(nullptr);
    examiners_.finish();
    EXPECT_TRUE(status.ok()) << "the work itself: " << status;
    for (const std::string& failure : examiners_.failures()) ADD_FAILURE() << failure;
    std::printf("%llu changes of the disk, %llu copies examined\n",
                static_cast<unsigned long long>(changes_),
                static_cast<unsigned long long>(examiners_.examined()));
  }
  [[nodiscard]] uint64_t changes() const { return changes_; }

 private:
  // Also called by the log's helper thread; the ledger may move on while the disk is copied.
  void on_change() {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++changes_;
    for (uint64_t copy = 0; copy < copies_ && !examiners_.failed(); ++copy) {
      Job job;
      job.change = changes_;
      const bool keeps_all = copies_ > 1 ? copy == 0 : rng_.one_in(3);
      job.variant = keeps_all ? 0 : rng_.next() | 1;
      job.created = created_;
      const size_t from = ledger_.acknowledged();
      job.disk = disk_->fork();
      job.allowed = ledger_.allowed_from(from);
      examiners_.add(std::move(job));
    }
  }

  std::mutex mutex_;
  Rng rng_;
  const uint64_t copies_;
  uint64_t changes_ = 0;
  std::atomic<bool> created_{false};
  Ledger ledger_;
  std::unique_ptr<SimFileSystem> disk_ = make_sim_file_system();
  Workload workload_;
  Examiners examiners_;
};

void only_errors(Severity severity, std::string_view message) {
  if (severity == Severity::kError)
    std::printf("%.*s\n", static_cast<int>(message.size()), message.data());
}

TEST(WritePrefix, EveryMomentRecoversToWhatWasAcknowledged) {
  const uint64_t seed = environment("STRATA_SEED", 1);
  const uint64_t steps =
      environment("STRATA_PREFIX_STEPS", strata::testing::fewer_if_sanitized(700, 200));
  set_diag_sink(&only_errors);
  std::printf("STRATA_SEED=%llu\n", static_cast<unsigned long long>(seed));
  WritePrefix run(seed, environment("STRATA_PREFIX_COPIES", 1));
  run.run(static_cast<int>(steps));
  set_diag_sink(nullptr);
  if (!HasFailure() && steps >= 700) {
    EXPECT_GE(run.changes(), 2000u);
  }
}

}  // namespace
}  // namespace strata::engine
