// Random changes of files against an oracle, on the simulated disk and under the power-loss file
// system: after a crash every sector holds what it held at the last sync or after one of the
// changes since. STRATA_TEST_SEED=n repeats one run.
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "base/rng.h"
#include "base/testing/sanitized.h"
#include "io/file_system.h"
#include "io/internal/power_loss_journal.h"
#include "io/internal/power_loss_revert.h"
#include "io/internal/unsynced.h"
#include "io/testing/temporary_folder.h"

namespace strata {
namespace {

uint64_t first_seed() {
  const char* given = std::getenv("STRATA_TEST_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : monotonic_us() % 1000000;
}
int runs(int usual) { return std::getenv("STRATA_TEST_SEED") != nullptr ? 1 : usual; }

// A disk that can lose power, either kind.
class CrashDisk {
 public:
  explicit CrashDisk(bool sim) {
    if (sim) {
      sim_ = make_sim_file_system();
    } else {
      start();
    }
  }
  FileSystem* fs() { return sim_ != nullptr ? sim_.get() : real_.get(); }
  [[nodiscard]] std::string path(const std::string& name) const {
    return sim_ != nullptr ? name : folder_.path() + "/" + name;
  }
  [[nodiscard]] std::string folder() const { return sim_ != nullptr ? "." : folder_.path(); }
  [[nodiscard]] std::string journal() const { return folder_.path() + "/journal"; }
  // All files of the old life are closed or given up.
  void crash(uint64_t seed) {
    if (sim_ != nullptr) return sim_->crash(seed);
    real_.reset();
    const auto report = revert_unsynced(journal(), seed);
    ASSERT_TRUE(report.ok()) << report.status();
    reverted_sectors += report->reverted_sectors;
    start();
  }
  uint64_t reverted_sectors = 0;

 private:
  void start() { real_ = make_power_loss_file_system(make_posix_file_system(), journal()); }
  testing::TemporaryFolder folder_ = testing::TemporaryFolder::in_memory();
  std::unique_ptr<SimFileSystem> sim_;
  std::unique_ptr<FileSystem> real_;
};

std::string read_all(File* file) {
  std::string data(*file->size(), '?');
  size_t got = 0;
  EXPECT_TRUE(file->read_at(0, data.data(), data.size(), &got).ok());
  EXPECT_EQ(got, data.size());
  return data;
}

// One file and everything it has been since its last sync.
class FileOracle {
 public:
  FileOracle(CrashDisk* disk, const std::string& name) : disk_(disk), name_(name) {
    reopen(true);
    EXPECT_TRUE(disk_->fs()->sync_directory(disk_->folder()).ok());
    versions_ = {""};
  }

  void step(Rng* rng) {
    const std::string& now = versions_.back();
    switch (rng->below(12)) {
      case 0:
      case 1: {
        ASSERT_TRUE(file_->sync_data().ok());
        versions_ = {now};
        break;
      }
      case 2: {
        const uint64_t size = rng->below(9000);
        ASSERT_TRUE(file_->truncate(size).ok());
        std::string next = now;
        next.resize(size);
        versions_.push_back(next);
        break;
      }
      case 3: {
        const uint64_t size = rng->below(9000);
        ASSERT_TRUE(file_->allocate(size).ok());
        std::string next = now;
        next.resize(std::max<size_t>(size, next.size()));
        versions_.push_back(next);
        break;
      }
      case 4:
        reopen(false);
        break;
      case 5: {
        const std::string to = disk_->path("r" + std::to_string(rng->next()));
        ASSERT_TRUE(disk_->fs()->rename(disk_->path(name_), to).ok());
        name_ = to.substr(to.find_last_of('/') + 1);
        ASSERT_TRUE(disk_->fs()->sync_directory(disk_->folder()).ok());
        break;
      }
      default: {
        const uint64_t offset = rng->below(8000);
        std::string bytes(1 + rng->below(rng->one_in(2) ? 300 : 3000), '\0');
        for (char& c : bytes) c = static_cast<char>(rng->next());
        ASSERT_TRUE(file_->write_at(offset, bytes.data(), bytes.size()).ok());
        std::string next = now;
        next.resize(std::max<size_t>(next.size(), offset + bytes.size()));
        next.replace(offset, bytes.size(), bytes);
        versions_.push_back(next);
      }
    }
    ASSERT_EQ(read_all(file_.get()), versions_.back());
  }

  void close() { file_.reset(); }
  // After the crash: checks and goes on from what is there.
  void check_after_crash() {
    reopen(false);
    const std::string found = read_all(file_.get());
    bool size_known = false;
    for (const std::string& v : versions_) size_known |= v.size() == found.size();
    ASSERT_TRUE(size_known) << name_ << " has " << found.size() << " bytes";
    for (uint64_t at = 0; at < found.size(); at += kSectorBytes) {
      const std::string sector = found.substr(at, kSectorBytes);
      bool known = false;
      for (std::string v : versions_) {
        v.resize(std::max(found.size(), v.size()));
        known |= v.compare(at, sector.size(), sector) == 0;
      }
      ASSERT_TRUE(known) << name_ << " sector at " << at << " of " << found.size();
    }
    versions_ = {found};
  }

 private:
  void reopen(bool create) {
    auto file = disk_->fs()->open(disk_->path(name_), OpenOptions{.create = create});
    ASSERT_TRUE(file.ok()) << file.status();
    file_ = std::move(*file);
  }
  CrashDisk* disk_;
  std::string name_;
  std::unique_ptr<File> file_;
  std::vector<std::string> versions_;
};

class EitherDisk : public ::testing::TestWithParam<bool> {};

TEST_P(EitherDisk, EverySectorIsOneItHasBeen) {
  const uint64_t seed = first_seed();
  for (int run = 0; run < runs(60); ++run) {
    SCOPED_TRACE("STRATA_TEST_SEED=" + std::to_string(seed + run));
    Rng rng(seed + run);
    CrashDisk disk(GetParam());
    std::vector<std::unique_ptr<FileOracle>> files;
    for (int i = 0; i < 3; ++i)
      files.push_back(std::make_unique<FileOracle>(&disk, "f" + std::to_string(i)));
    for (int life = 0; life < 5; ++life) {
      for (uint64_t n = 1 + rng.below(60); n > 0; --n) files[rng.below(3)]->step(&rng);
      for (const auto& f : files) f->close();
      disk.crash(rng.next());
      for (const auto& f : files) f->check_after_crash();
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Io, EitherDisk, ::testing::Values(true, false),
                         [](const auto& info) { return info.param ? "sim" : "power_loss"; });

// Writers count up in sectors of their own while another thread syncs: what a sync covered stays.
TEST(PowerLossThreads, ASyncCoversTheWritesThatCameBefore) {
  constexpr int kWriters = 4;
  constexpr int kSectors =
      8;  // per writer, interleaved so that neighbours share nothing but the file
  const uint64_t seed = first_seed();
  uint64_t reverted = 0;
  for (int run = 0; run < runs(12); ++run) {
    SCOPED_TRACE("STRATA_TEST_SEED=" + std::to_string(seed + run));
    CrashDisk disk(false);
    auto file = std::move(*disk.fs()->open(disk.path("f"), OpenOptions{.create = true}));
    ASSERT_TRUE(disk.fs()->sync_directory(disk.folder()).ok());
    ASSERT_TRUE(file->allocate(kWriters * kSectors * kSectorBytes).ok());
    ASSERT_TRUE(file->sync_data().ok());
    std::atomic<uint64_t> written[kWriters][kSectors] = {};
    uint64_t synced[kWriters][kSectors] = {};
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (int w = 0; w < kWriters; ++w)
      threads.emplace_back([&, w] {
        Rng rng(seed + run + 100 * w);
        for (uint64_t count = 1; !stop; ++count) {
          const uint64_t s = rng.below(kSectors);
          char sector[kSectorBytes];
          for (uint64_t at = 0; at < kSectorBytes; at += 8) store_u64(sector + at, count);
          const uint64_t offset = (s * kWriters + w) * kSectorBytes;
          ASSERT_TRUE(file->write_at(offset, sector, sizeof(sector)).ok());
          written[w][s].store(count);
        }
      });
    for (int n = 0; n < 5; ++n) {
      uint64_t before[kWriters][kSectors];
      for (int w = 0; w < kWriters; ++w)
        for (int s = 0; s < kSectors; ++s) before[w][s] = written[w][s].load();
      ASSERT_TRUE(file->sync_data().ok());
      std::memcpy(synced, before, sizeof(synced));
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    stop = true;
    for (std::thread& t : threads) t.join();
    file.reset();
    disk.crash(seed + run);
    reverted += disk.reverted_sectors;
    file = std::move(*disk.fs()->open(disk.path("f"), OpenOptions{}));
    const std::string found = read_all(file.get());
    for (int w = 0; w < kWriters; ++w)
      for (int s = 0; s < kSectors; ++s) {
        const char* sector = found.data() + (s * kWriters + w) * kSectorBytes;
        const uint64_t count = load_u64(sector);
        ASSERT_GE(count, synced[w][s]);
        ASSERT_LE(count, written[w][s].load());
        for (uint64_t at = 0; at < kSectorBytes; at += 8) ASSERT_EQ(load_u64(sector + at), count);
      }
  }
  if (runs(2) == 2) {
    EXPECT_GT(reverted, 0u);
  }
}

// The real thing: a process writes, syncs, says so and is killed in the middle.
TEST(PowerLossKill, WhatTheDeadProcessHadSyncedIsThere) {
  constexpr uint64_t kSectors = 64;
  const uint64_t seed = first_seed();
  uint64_t reverted = 0;
  for (int run = 0; run < runs(25); ++run) {
    SCOPED_TRACE("STRATA_TEST_SEED=" + std::to_string(seed + run));
    CrashDisk disk(false);
    Rng rng(seed + run);
    int pipe_ends[2];
    ASSERT_EQ(::pipe(pipe_ends), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {  // writes count into every sector, syncs, reports count
      auto file = disk.fs()->open(disk.path("f"), OpenOptions{.create = true});
      if (!file.ok() || !disk.fs()->sync_directory(disk.folder()).ok()) ::_exit(1);
      char sector[kSectorBytes];
      for (uint64_t count = 1;; ++count) {
        for (uint64_t at = 0; at < kSectorBytes; at += 8) store_u64(sector + at, count);
        for (uint64_t s = 0; s < kSectors; ++s)
          if (!(*file)->write_at(s * kSectorBytes, sector, kSectorBytes).ok()) ::_exit(1);
        if (!(*file)->sync_data().ok()) ::_exit(1);
        if (::write(pipe_ends[1], &count, 8) != 8) ::_exit(1);
      }
    }
    ::close(pipe_ends[1]);
    uint64_t synced = 0;
    uint64_t count = 0;
    for (uint64_t n = 1 + rng.below(20); n > 0; --n) {
      ASSERT_EQ(::read(pipe_ends[0], &count, 8), 8);
      synced = count;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(rng.below(3000)));
    ::kill(child, SIGKILL);
    int how = 0;
    ::waitpid(child, &how, 0);
    ASSERT_TRUE(WIFSIGNALED(how));
    while (::read(pipe_ends[0], &count, 8) == 8) synced = count;
    ::close(pipe_ends[0]);
    disk.crash(seed + run);
    reverted += disk.reverted_sectors;
    const std::string found = read_all(disk.fs()->open(disk.path("f"), OpenOptions{})->get());
    ASSERT_EQ(found.size(), kSectors * kSectorBytes);
    for (uint64_t s = 0; s < kSectors; ++s) {
      const char* sector = found.data() + s * kSectorBytes;
      const uint64_t in_sector = load_u64(sector);
      ASSERT_GE(in_sector, synced);
      ASSERT_LE(in_sector, synced + 2);  // one sync may not have been reported
      for (uint64_t at = 0; at < kSectorBytes; at += 8) ASSERT_EQ(load_u64(sector + at), in_sector);
    }
  }
  if (runs(2) == 2) {
    EXPECT_GT(reverted, 0u);
  }
}

// Posix, but writes of 'W' wait inside the disk until they are let through.
class Gate {
 public:
  void pass() {
    std::unique_lock<std::mutex> lock(mutex_);
    waiting_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_; });
  }
  void await_writer() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return waiting_; });
  }
  void open() {
    const std::lock_guard<std::mutex> lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool waiting_ = false;
  bool open_ = false;
};

class GatedFile final : public File {
 public:
  GatedFile(Gate* gate, std::unique_ptr<File> inner) : gate_(gate), inner_(std::move(inner)) {}
  Status read_at(uint64_t offset, void* data, size_t bytes, size_t* got) override {
    return inner_->read_at(offset, data, bytes, got);
  }
  Status write_at(uint64_t offset, const void* data, size_t bytes) override {
    if (*static_cast<const char*>(data) == 'W') gate_->pass();
    return inner_->write_at(offset, data, bytes);
  }
  Status sync_data() override { return inner_->sync_data(); }
  StatusOr<uint64_t> size() override { return inner_->size(); }
  Status allocate(uint64_t bytes) override { return inner_->allocate(bytes); }
  Status truncate(uint64_t bytes) override { return inner_->truncate(bytes); }
  [[nodiscard]] const std::string& path() const override { return inner_->path(); }

 private:
  Gate* gate_;
  std::unique_ptr<File> inner_;
};

class GatedFileSystem final : public FileSystem {
 public:
  explicit GatedFileSystem(Gate* gate) : gate_(gate) {}
  StatusOr<std::unique_ptr<File>> open(const std::string& path, OpenOptions options) override {
    STRATA_ASSIGN_OR_RETURN(std::unique_ptr<File> file, inner_->open(path, options));
    return std::unique_ptr<File>(std::make_unique<GatedFile>(gate_, std::move(file)));
  }
  Status make_directory(const std::string& p) override { return inner_->make_directory(p); }
  Status remove(const std::string& path) override { return inner_->remove(path); }
  Status rename(const std::string& from, const std::string& to) override {
    return inner_->rename(from, to);
  }
  StatusOr<bool> exists(const std::string& path) override { return inner_->exists(path); }
  StatusOr<std::vector<std::string>> list(const std::string& d) override { return inner_->list(d); }
  Status sync_directory(const std::string& path) override { return inner_->sync_directory(path); }
  StatusOr<std::unique_ptr<FileLock>> lock_file(const std::string& path) override {
    return inner_->lock_file(path);
  }

 private:
  Gate* gate_;
  std::unique_ptr<FileSystem> inner_ = make_posix_file_system();
};

TEST(PowerLossThreads, ASyncDoesNotCoverAWriteThatWasStillUnderWay) {  // PW2
  bool kept = false;
  bool lost = false;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    CrashDisk disk(false);  // only for its folder
    const std::string journal = disk.path("gated_journal");
    Gate gate;
    auto fs = make_power_loss_file_system(std::make_unique<GatedFileSystem>(&gate), journal);
    auto file = std::move(*fs->open(disk.path("f"), OpenOptions{.create = true}));
    ASSERT_TRUE(fs->sync_directory(disk.folder()).ok());
    ASSERT_TRUE(file->write_at(0, "old", 3).ok());
    ASSERT_TRUE(file->sync_data().ok());
    std::thread writer([&] { ASSERT_TRUE(file->write_at(0, "Wet", 3).ok()); });
    gate.await_writer();
    ASSERT_TRUE(file->sync_data().ok());
    gate.open();
    writer.join();
    file.reset();
    fs.reset();
    ASSERT_TRUE(revert_unsynced(journal, seed).ok());
    const std::string found = read_all(disk.fs()->open(disk.path("f"), OpenOptions{})->get());
    ASSERT_TRUE(found == "old" || found == "Wet") << found;
    (found == "old" ? lost : kept) = true;
  }
  EXPECT_TRUE(kept);
  EXPECT_TRUE(lost);
}

// The journal tells of a rename the kill prevented: the changes must not land in the wrong file.
TEST(PowerLossJournal, RenameThatWasNotMadeIsIgnored) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    CrashDisk disk(false);
    const auto create = [&](const std::string& name, const char* content) {
      auto file = disk.fs()->open(disk.path(name), OpenOptions{.create = true});
      EXPECT_TRUE((*file)->write_at(0, content, 1).ok());
      EXPECT_TRUE((*file)->sync_data().ok());
    };
    create("a", "A");  // file 1
    create("b", "B");  // file 2
    ASSERT_TRUE(disk.fs()->sync_directory(disk.folder()).ok());
    auto a = disk.fs()->open(disk.path("a"), OpenOptions{});
    ASSERT_TRUE((*a)->write_at(0, "X", 1).ok());
    const std::string kept = power_loss::kept_folder_of(disk.journal()) + "/kept";
    std::filesystem::create_hard_link(disk.path("b"), kept);
    std::string record;
    power_loss::append_record(&record, power_loss::Record{.kind = power_loss::RecordKind::kRename,
                                                          .seq = 1000,
                                                          .file = 1,
                                                          .b = 2,
                                                          .path = disk.path("a"),
                                                          .path2 = disk.path("b"),
                                                          .data = kept});
    std::ofstream(disk.journal(), std::ios::app | std::ios::binary) << record;
    disk.crash(seed);
    const std::string found = read_all(disk.fs()->open(disk.path("a"), OpenOptions{})->get());
    EXPECT_TRUE(found == "A" || found == "X") << found;
    EXPECT_EQ(read_all(disk.fs()->open(disk.path("b"), OpenOptions{})->get()), "B");
  }
}

// The kill may cut the last record; what stands before it still counts.
TEST(PowerLossJournal, CutTailIsTolerated) {
  const uint64_t seed = first_seed();
  for (int run = 0; run < runs(40); ++run) {
    SCOPED_TRACE("STRATA_TEST_SEED=" + std::to_string(seed + run));
    Rng rng(seed + run);
    CrashDisk disk(false);
    FileOracle oracle(&disk, "f");
    for (uint64_t n = 5 + rng.below(20); n > 0; --n) oracle.step(&rng);
    oracle.close();
    // A record that was being appended when the kill came; its change was not made.
    std::string record;
    power_loss::append_record(
        &record,
        power_loss::change_record(
            1u << 30, 1, FileChange{.offset = 0, .bytes = 600, .before = std::string(600, '!')}));
    std::ofstream(disk.journal(), std::ios::app | std::ios::binary)
        .write(record.data(), static_cast<long>(rng.below(record.size())));
    disk.crash(rng.next());
    oracle.check_after_crash();
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(PowerLossJournal, StaysSmallWhenEverythingIsSynced) {
  CrashDisk disk(false);
  const auto unsynced = std::move(*disk.fs()->open(disk.path("u"), OpenOptions{.create = true}));
  const auto synced = std::move(*disk.fs()->open(disk.path("s"), OpenOptions{.create = true}));
  ASSERT_TRUE(disk.fs()->sync_directory(disk.folder()).ok());
  const std::string old_bytes(4096, 'o');
  ASSERT_TRUE(unsynced->write_at(0, old_bytes.data(), old_bytes.size()).ok());
  ASSERT_TRUE(unsynced->sync_data().ok());
  const std::string new_bytes(4096, 'n');
  ASSERT_TRUE(unsynced->write_at(0, new_bytes.data(), new_bytes.size()).ok());
  const std::string megabyte(1 << 20, 'm');
  uint64_t largest = 0;
  const uint64_t megabytes = testing::fewer_if_sanitized(120, 60);
  for (uint64_t i = 0; i < megabytes; ++i) {
    ASSERT_TRUE(synced->write_at(0, megabyte.data(), megabyte.size()).ok());
    ASSERT_TRUE(synced->sync_data().ok());
    largest = std::max<uint64_t>(largest, std::filesystem::file_size(disk.journal()));
  }
  EXPECT_LT(largest, 40u << 20);  // PW4
  // What was live before the rewrite can still be undone.
  bool undone = false;
  disk.crash(first_seed());
  const std::string found = read_all(disk.fs()->open(disk.path("u"), OpenOptions{})->get());
  undone = found != new_bytes;
  for (uint64_t at = 0; at < found.size(); at += kSectorBytes) {
    const std::string sector = found.substr(at, kSectorBytes);
    EXPECT_TRUE(sector == old_bytes.substr(0, kSectorBytes) ||
                sector == new_bytes.substr(0, kSectorBytes));
  }
  EXPECT_EQ(undone, disk.reverted_sectors > 0);
  EXPECT_EQ(read_all(disk.fs()->open(disk.path("s"), OpenOptions{})->get()), megabyte);
}

TEST(PowerLossJournal, DamagedRecordEndsTheJournal) {
  std::string bytes;
  power_loss::append_record(&bytes, power_loss::Record{.kind = power_loss::RecordKind::kFile,
                                                       .seq = 1,
                                                       .file = 2,
                                                       .path = "p",
                                                       .path2 = {},
                                                       .data = "d"});
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::string bad = bytes;
    bad[at] = static_cast<char>(bad[at] ^ 1);
    Bytes in = bad;
    EXPECT_FALSE(power_loss::take_record(&in).has_value()) << at;
    in = Bytes(bytes).substr(0, at);
    EXPECT_FALSE(power_loss::take_record(&in).has_value()) << at;
  }
  Bytes in = bytes;
  const auto record = power_loss::take_record(&in);
  ASSERT_TRUE(record.has_value());
  EXPECT_TRUE(in.empty());
  EXPECT_EQ(record->path, "p");
  EXPECT_EQ(record->data, "d");
}

}  // namespace
}  // namespace strata
