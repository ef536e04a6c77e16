// A backup made while others work is the database at the moment of the cut, and whatever goes wrong
// with one harms nobody else and leaves nothing that opens: BU1-BU6, bufpool CP8.
//
// The work (DDL, large values, prepared transactions, checkpoints, files of dropped tables that go)
// is done between any two steps of the backup, on its thread, so that a seed repeats a run
// (STRATA_SEED, STRATA_ROUNDS).
#include "engine/backup.h"

#include <gtest/gtest.h>

#include <cstring>
#include <utility>

#include "engine/testing/failing_disk.h"
#include "engine/testing/workload.h"
#include "page/page.h"

namespace strata::engine {
namespace {

using namespace testing;  // NOLINT: test helpers

constexpr const char* kFolder = "/backup";

// Reads of pages find one in the middle of a write now and then, while `tears` is set.
class TearingDisk final : public FileSystem {
 public:
  explicit TearingDisk(FileSystem* inner) : inner_(inner) {}
  bool tears = false;
  uint64_t torn = 0;

  StatusOr<std::unique_ptr<File>> open(const std::string& path, OpenOptions options) override;
  Status make_directory(const std::string& path) override { return inner_->make_directory(path); }
  Status remove(const std::string& path) override { return inner_->remove(path); }
  Status rename(const std::string& from, const std::string& to) override {
    return inner_->rename(from, to);
  }
  StatusOr<bool> exists(const std::string& path) override { return inner_->exists(path); }
  StatusOr<std::vector<std::string>> list(const std::string& directory) override {
    return inner_->list(directory);
  }
  Status sync_directory(const std::string& path) override { return inner_->sync_directory(path); }
  StatusOr<std::unique_ptr<FileLock>> lock_file(const std::string& path) override {
    return inner_->lock_file(path);
  }
  void tear(const std::string& path, char* data, size_t bytes) {
    if (!tears || bytes < kPageBytes || path.find("/db/pages/space-") == std::string::npos) return;
    if (++reads_ % 3 != 0) return;
    std::memset(data + kPageBytes / 2, 0x5a, kPageBytes / 2);
    ++torn;
  }

 private:
  FileSystem* const inner_;
  uint64_t reads_ = 0;
};

class TearingFile final : public File {
 public:
  TearingFile(std::unique_ptr<File> inner, TearingDisk* disk)
      : inner_(std::move(inner)), disk_(disk) {}
  Status read_at(uint64_t offset, void* data, size_t bytes, size_t* got) override {
    STRATA_RETURN_IF_ERROR(inner_->read_at(offset, data, bytes, got));
    disk_->tear(path(), static_cast<char*>(data), *got);
    return ok_status();
  }
  Status write_at(uint64_t offset, const void* data, size_t bytes) override {
    return inner_->write_at(offset, data, bytes);
  }
  Status sync_data() override { return inner_->sync_data(); }
  StatusOr<uint64_t> size() override { return inner_->size(); }
  Status allocate(uint64_t bytes) override { return inner_->allocate(bytes); }
  Status truncate(uint64_t bytes) override { return inner_->truncate(bytes); }
  [[nodiscard]] const std::string& path() const override { return inner_->path(); }

 private:
  const std::unique_ptr<File> inner_;
  TearingDisk* const disk_;
};

StatusOr<std::unique_ptr<File>> TearingDisk::open(const std::string& path, OpenOptions options) {
  STRATA_ASSIGN_OR_RETURN(std::unique_ptr<File> file, inner_->open(path, options));
  return std::unique_ptr<File>(std::make_unique<TearingFile>(std::move(file), this));
}

// A backup with work in between.
class BackupOfWork {
 public:
  explicit BackupOfWork(uint64_t seed) : rng_(seed), work_(disk_.get(), seed, &ledger_) {}

  Status start(int steps) {
    work_.set_file_system(&tearing_);
    STRATA_RETURN_IF_ERROR(work_.start());
    for (int i = 0; i < steps; ++i) STRATA_RETURN_IF_ERROR(work_.step(false));
    return ok_status();
  }
  Status back_up(const std::string& folder, Llsn since = Llsn{}) {
    BackupOptions options;
    options.folder = folder;
    options.since = since;
    options.go_on = [this] { return others(); };
    STRATA_ASSIGN_OR_RETURN(const std::unique_ptr<Backup> backup,
                            Backup::begin(work_.kernel(), std::move(options)));
    tearing_.tears = true;
    STRATA_RETURN_IF_ERROR(backup->copy_pages());
    STRATA_RETURN_IF_ERROR(others());
    STRATA_RETURN_IF_ERROR(backup->cut());
    at_cut_ = ledger_.copy();
    checkpoint_llsn_ = Llsn{counter_of(work_.kernel(), "backup_checkpoint_llsn")};
    STRATA_RETURN_IF_ERROR(others());
    const Status finished = backup->finish();
    tearing_.tears = false;
    return finished;
  }
  // Nothing that is not durable counts. Empty: it is what the database was at the cut.
  std::string examine(const std::string& folder) {
    const std::unique_ptr<SimFileSystem> copy = disk_->fork();
    copy->crash(rng_.next());
    KernelOptions options = small_options(copy.get());
    options.directory = folder;
    for (int life = 0; life < 2; ++life) {
      auto opened = Kernel::open(options);
      if (!opened.ok()) return "does not open: " + opened.status().ToString();
      auto contents = read_contents(opened->get());
      if (!contents.ok()) return "cannot be read: " + contents.status().ToString();
      std::string problem = compare(*contents, at_cut_);
      if (problem.empty()) problem = check_indexes(opened->get(), *contents);
      if (!problem.empty()) return problem;
      const Status ended = (*opened)->shutdown();
      if (!ended.ok()) return ended.ToString();
    }
    return "";
  }
  [[nodiscard]] SimFileSystem* disk() { return disk_.get(); }
  [[nodiscard]] uint64_t torn() const { return tearing_.torn; }
  [[nodiscard]] Llsn checkpoint_llsn() const { return checkpoint_llsn_; }
  Workload& work() { return work_; }

 private:
  Status others() {
    const bool tears = std::exchange(tearing_.tears, false);
    Status status;
    if (rng_.one_in(3)) status = work_.step(false);
    tearing_.tears = tears;
    return status;
  }

  const std::unique_ptr<SimFileSystem> disk_ = make_sim_file_system();
  TearingDisk tearing_{disk_.get()};
  Rng rng_;
  Ledger ledger_;
  Workload work_;
  LedgerState at_cut_;
  Llsn checkpoint_llsn_;
};

TEST(Backup, IsTheDatabaseAtTheCut) {  // BU1, BU3
  const uint64_t first = environment("STRATA_SEED", 1);
  uint64_t torn = 0;
  for (uint64_t seed = first; seed < first + environment("STRATA_ROUNDS", 4); ++seed) {
    BackupOfWork one(seed);
    const Status started = one.start(120);
    ASSERT_TRUE(started.ok()) << started;
    const Status made = one.back_up(kFolder);
    ASSERT_TRUE(made.ok()) << "seed " << seed << ": " << made;
    EXPECT_EQ(one.examine(kFolder), "") << "seed " << seed;
    torn += one.torn();
  }
  EXPECT_GT(torn, 0u);
}

Status copy_file(FileSystem* disk, const std::string& from, const std::string& to) {
  STRATA_ASSIGN_OR_RETURN(const std::unique_ptr<File> source, disk->open(from, {}));
  STRATA_RETURN_IF_ERROR(disk->remove(to));
  STRATA_ASSIGN_OR_RETURN(const std::unique_ptr<File> target, disk->open(to, {.create = true}));
  STRATA_ASSIGN_OR_RETURN(const uint64_t bytes, source->size());
  std::string all(bytes, '\0');
  size_t got = 0;
  STRATA_RETURN_IF_ERROR(source->read_at(0, all.data(), bytes, &got));
  STRATA_RETURN_IF_ERROR(target->write_at(0, all.data(), bytes));
  return target->sync_data();
}

// BU6: `folder` becomes what `increment` is a part of.
Status lay_over(FileSystem* disk, const std::string& folder, const std::string& increment) {
  for (const char* const part : {"/log", ""}) {
    STRATA_ASSIGN_OR_RETURN(const std::vector<std::string> old, disk->list(folder + part));
    for (const std::string& name : old)
      if (*part != '\0' || name.starts_with("control-"))
        STRATA_RETURN_IF_ERROR(disk->remove(folder + part + "/" + name));
    STRATA_ASSIGN_OR_RETURN(const std::vector<std::string> fresh, disk->list(increment + part));
    for (const std::string& name : fresh)
      if (*part != '\0' || name.starts_with("control-"))
        STRATA_RETURN_IF_ERROR(
            copy_file(disk, increment + part + "/" + name, folder + part + "/" + name));
  }
  STRATA_ASSIGN_OR_RETURN(const std::vector<std::string> old, disk->list(folder + "/pages"));
  for (const std::string& name : old) {
    STRATA_ASSIGN_OR_RETURN(const bool stays, disk->exists(increment + "/pages/" + name));
    if (!stays) STRATA_RETURN_IF_ERROR(disk->remove(folder + "/pages/" + name));
  }
  STRATA_ASSIGN_OR_RETURN(const std::vector<std::string> fresh, disk->list(increment + "/pages"));
  std::string page(kPageBytes, '\0');
  for (const std::string& name : fresh) {
    STRATA_ASSIGN_OR_RETURN(const std::unique_ptr<File> source,
                            disk->open(increment + "/pages/" + name, {}));
    STRATA_ASSIGN_OR_RETURN(const std::unique_ptr<File> target,
                            disk->open(folder + "/pages/" + name, {.create = true}));
    STRATA_ASSIGN_OR_RETURN(const uint64_t bytes, source->size());
    STRATA_RETURN_IF_ERROR(target->truncate(bytes));
    for (uint64_t at = 0; at < bytes; at += kPageBytes) {
      size_t got = 0;
      STRATA_RETURN_IF_ERROR(source->read_at(at, page.data(), kPageBytes, &got));
      if (!page_is_all_zero(page.data()))
        STRATA_RETURN_IF_ERROR(target->write_at(at, page.data(), kPageBytes));
    }
    STRATA_RETURN_IF_ERROR(target->sync_data());
  }
  STRATA_RETURN_IF_ERROR(disk->sync_directory(folder + "/log"));
  STRATA_RETURN_IF_ERROR(disk->sync_directory(folder + "/pages"));
  return disk->sync_directory(folder);
}

TEST(Backup, IncrementsLaidOverAreTheDatabaseAtTheirCut) {  // BU6
  const uint64_t first = environment("STRATA_SEED", 100);
  for (uint64_t seed = first; seed < first + environment("STRATA_ROUNDS", 2); ++seed) {
    BackupOfWork one(seed);
    ASSERT_TRUE(one.start(60).ok());
    Status made = one.back_up(kFolder);
    ASSERT_TRUE(made.ok()) << made;
    for (int n = 1; n <= 2; ++n) {
      for (int i = 0; i < 10; ++i) ASSERT_TRUE(one.work().step(false).ok());
      const std::string increment = "/increment-" + std::to_string(n);
      made = one.back_up(increment, one.checkpoint_llsn());
      ASSERT_TRUE(made.ok()) << made;
      const Status laid = lay_over(one.disk(), kFolder, increment);
      ASSERT_TRUE(laid.ok()) << laid;
      EXPECT_EQ(one.examine(kFolder), "") << "seed " << seed << ", increment " << n;
    }
  }
}

// One table, and a disk that fails on demand.
class BackupTest : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.log_segment_bytes = 256u << 10;
    options_.log_buffer_bytes = 512u << 10;
    options_.log_checkpoint_bytes = 1u << 20;
    auto opened = Kernel::open(options_);
    ASSERT_TRUE(opened.ok()) << opened.status();
    kernel_ = std::move(opened).value();
    session_ = kernel_->new_session();
    session_->begin(Isolation::kRepeatableRead);
    ASSERT_TRUE(session_->create_table(table_spec("t"), &table_).ok());
    ASSERT_TRUE(session_->commit().ok());
    add(200);
  }
  void add(uint64_t rows) {
    for (; rows > 0; --rows) {
      session_->begin(Isolation::kRepeatableRead);
      ++last_;
      const Status inserted =
          insert(session_.get(), table_, last_, Row{last_ * 10, 1, std::string(1000, 'x'), ""});
      ASSERT_TRUE(inserted.ok()) << inserted;
      ASSERT_TRUE(session_->commit().ok());
    }
  }
  static BackupOptions to(const std::string& folder) {
    BackupOptions options;
    options.folder = folder;
    return options;
  }
  static Status make(Backup* backup) {
    STRATA_RETURN_IF_ERROR(backup->copy_pages());
    STRATA_RETURN_IF_ERROR(backup->cut());
    return backup->finish();
  }
  Status back_up(BackupOptions options) {
    STRATA_ASSIGN_OR_RETURN(const std::unique_ptr<Backup> backup,
                            Backup::begin(kernel_.get(), std::move(options)));
    return make(backup.get());
  }
  Status open_backup() {
    KernelOptions options = options_;
    options.directory = kFolder;
    options.create = false;
    const auto opened = Kernel::open(options);
    STRATA_RETURN_IF_ERROR(opened.status());
    auto session = (*opened)->new_session();
    session->begin(Isolation::kRepeatableRead);
    STRATA_ASSIGN_OR_RETURN(const TableRef table, session->open_table("test", "t"));
    STRATA_ASSIGN_OR_RETURN(const Rows rows, scan(session.get(), table));
    rows_ = rows.size();
    return session->rollback();
  }

  std::unique_ptr<SimFileSystem> sim_ = make_sim_file_system();
  FailingDisk disk_{sim_.get()};
  KernelOptions options_ = options_on(&disk_);
  std::unique_ptr<Kernel> kernel_;
  std::unique_ptr<Session> session_;
  TableRef table_;
  uint64_t last_ = 0;
  size_t rows_ = 0;
};

TEST_F(BackupTest, KeepsTheLogThatItNeedsHoweverManyCheckpoints) {  // BU2, CP8
  auto backup = Backup::begin(kernel_.get(), to(kFolder));
  ASSERT_TRUE(backup.ok()) << backup.status();
  for (int i = 0; i < 4; ++i) {
    add(300);
    ASSERT_TRUE(kernel_->checkpoint().ok());
  }
  const Status made = make(backup->get());
  ASSERT_TRUE(made.ok()) << made;
  add(1);  // behind the cut
  ASSERT_TRUE(open_backup().ok());
  EXPECT_EQ(rows_, last_ - 1);
  backup->reset();
  // What was kept goes with the next checkpoint.
  const uint64_t before = kernel_->impl()->sink->begin_lsn().value;
  ASSERT_TRUE(kernel_->checkpoint().ok());
  EXPECT_GT(kernel_->impl()->sink->begin_lsn().value, before);
}

TEST_F(BackupTest, GivesWayToWritersWhenTheServersDiskIsFull) {  // BU5
  auto backup = Backup::begin(kernel_.get(), to(kFolder));
  ASSERT_TRUE(backup.ok()) << backup.status();
  add(600);
  kernel_->impl()->ask_for_log_room();  // what the log calls when it finds no room
  ASSERT_TRUE(kernel_->checkpoint().ok());
  const Status made = make(backup->get());
  EXPECT_TRUE(is_no_space(made)) << made;
  backup->reset();
  EXPECT_FALSE(open_backup().ok());
  ASSERT_TRUE(back_up(to("/another")).ok());
}

TEST_F(BackupTest, AFullDiskFailsItAndNothingElse) {  // BU4
  disk_.set_refuse([](DiskCall call, const std::string& path) {
    const bool refused = call == DiskCall::kAllocate && path.starts_with("/backup/pages/");
    return refused ? error_no_space("write " + path + ": no space left") : ok_status();
  });
  const Status made = back_up(to(kFolder));
  EXPECT_TRUE(is_no_space(made)) << made;
  disk_.empty();
  EXPECT_FALSE(open_backup().ok());
  add(10);
  ASSERT_TRUE(back_up(to("/another")).ok());
}

TEST_F(BackupTest, StopsWhenItIsToldTo) {
  BackupOptions options = to(kFolder);
  int left = 5;
  options.go_on = [&left] { return --left == 0 ? error_interrupted() : ok_status(); };
  EXPECT_TRUE(is_interrupted(back_up(std::move(options))));
  EXPECT_FALSE(open_backup().ok());
  EXPECT_EQ(counter_of(kernel_.get(), "backup_running"), 0u);
}

TEST_F(BackupTest, OnePageThatStaysDamagedFailsIt) {
  ASSERT_TRUE(kernel_->checkpoint().ok());
  const std::string name = "/db/pages/space-00000100.pages";
  sim_->flip_bit(name, uint64_t{3} * kPageBytes * 8 + 4711);
  const Status made = back_up(to(kFolder));
  EXPECT_TRUE(is_corruption(made)) << made;
  EXPECT_NE(made.ToString().find("space-00000100.pages"), std::string::npos) << made;
  EXPECT_FALSE(open_backup().ok());
}

TEST_F(BackupTest, OneAtATimeIntoAnEmptyFolder) {
  {
    const auto first = Backup::begin(kernel_.get(), to(kFolder));
    ASSERT_TRUE(first.ok());
    EXPECT_TRUE(is_in_use(Backup::begin(kernel_.get(), to("/another")).status()));
  }
  EXPECT_TRUE(is_in_use(Backup::begin(kernel_.get(), to(kFolder)).status()));
  EXPECT_TRUE(is_in_use(back_up(to("/db"))));
  ASSERT_TRUE(back_up(to("/third")).ok());
}

}  // namespace
}  // namespace strata::engine
