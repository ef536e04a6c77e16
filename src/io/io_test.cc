// What every file system promises, and what only one of them does.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <set>

#include "base/testing/wait_until.h"
#include "io/device_error.h"
#include "io/file_system.h"
#include "io/internal/power_loss_revert.h"
#include "io/testing/any_disk.h"

namespace strata {
namespace {

using strata::testing::AnyDisk;
using strata::testing::Disk;
using strata::testing::TemporaryFolder;

std::string read_file(File* file, uint64_t offset, size_t bytes) {
  std::string data(bytes, '?');
  size_t got = 0;
  EXPECT_TRUE(file->read_at(offset, data.data(), bytes, &got).ok());
  data.resize(got);
  return data;
}
void write_file(File* file, uint64_t offset, std::string_view data) {
  const Status status = file->write_at(offset, data.data(), data.size());
  ASSERT_TRUE(status.ok()) << status;
}
std::unique_ptr<File> create(FileSystem* fs, const std::string& path) {
  auto file = fs->open(path, OpenOptions{.create = true});
  EXPECT_TRUE(file.ok()) << file.status();
  return std::move(*file);
}

class AnyFileSystem : public AnyDisk {};

TEST_P(AnyFileSystem, OpenSaysWhatIsWrong) {
  const auto absent = fs_->open(at("a"), OpenOptions{});
  ASSERT_TRUE(is_not_found(absent.status()));
  EXPECT_NE(absent.status().message().find(at("a")), absl::string_view::npos);  // IO2
  EXPECT_TRUE(fs_->open(at("a"), OpenOptions{.create = true, .exclusive = true}).ok());
  EXPECT_TRUE(is_duplicate_key(
      fs_->open(at("a"), OpenOptions{.create = true, .exclusive = true}).status()));
  EXPECT_TRUE(fs_->open(at("a"), OpenOptions{.create = true}).ok());
  EXPECT_TRUE(fs_->open(at("a"), OpenOptions{}).ok());
  EXPECT_TRUE(is_not_found(fs_->open(at("no/such"), OpenOptions{.create = true}).status()));
  EXPECT_FALSE(*fs_->exists(at("no/such")));
}

TEST_P(AnyFileSystem, ReadsWhatWasWritten) {
  const auto file = create(fs_.get(), at("a"));
  EXPECT_EQ(file->path(), at("a"));
  write_file(file.get(), 0, "hello world");
  write_file(file.get(), 6, "there");
  EXPECT_EQ(read_file(file.get(), 0, 100), "hello there");
  EXPECT_EQ(read_file(file.get(), 8, 2), "er");
  EXPECT_EQ(read_file(file.get(), 11, 5), "");
  EXPECT_EQ(read_file(file.get(), 500, 5), "");
  write_file(file.get(), 9000, "far");
  EXPECT_EQ(*file->size(), 9003u);
  EXPECT_EQ(read_file(file.get(), 8990, 100), std::string(10, '\0') + "far");
  const auto again = fs_->open(at("a"), OpenOptions{});
  EXPECT_EQ(read_file(again->get(), 0, 5), "hello");
  EXPECT_TRUE(file->sync_data().ok());
}

TEST_P(AnyFileSystem, AllocateAndTruncate) {
  const auto file = create(fs_.get(), at("a"));
  write_file(file.get(), 0, "abc");
  EXPECT_TRUE(file->allocate(10000).ok());
  EXPECT_EQ(*file->size(), 10000u);
  EXPECT_EQ(read_file(file.get(), 0, 5), std::string("abc\0\0", 5));
  EXPECT_TRUE(file->allocate(5).ok());  // never shrinks
  EXPECT_EQ(*file->size(), 10000u);
  EXPECT_TRUE(file->truncate(2).ok());
  EXPECT_EQ(*file->size(), 2u);
  EXPECT_TRUE(file->truncate(6).ok());
  EXPECT_EQ(read_file(file.get(), 0, 10), std::string("ab\0\0\0\0", 6));
}

TEST_P(AnyFileSystem, Names) {
  EXPECT_TRUE(fs_->make_directory(dir_).ok());  // again
  EXPECT_TRUE(fs_->make_directory(at("sub")).ok());
  EXPECT_TRUE(is_not_found(fs_->make_directory(at("no/sub"))));
  const auto a = create(fs_.get(), at("a"));
  write_file(a.get(), 0, "A");
  write_file(create(fs_.get(), at("b")).get(), 0, "B");
  EXPECT_EQ(*fs_->list(dir_), (std::vector<std::string>{"a", "b", "sub"}));
  EXPECT_TRUE(fs_->rename(at("a"), at("b")).ok());
  EXPECT_EQ(*fs_->list(dir_), (std::vector<std::string>{"b", "sub"}));
  EXPECT_EQ(read_file(fs_->open(at("b"), OpenOptions{})->get(), 0, 9), "A");
  write_file(a.get(), 1, "x");  // the handle follows the file
  EXPECT_EQ(read_file(fs_->open(at("b"), OpenOptions{})->get(), 0, 9), "Ax");
  EXPECT_TRUE(is_not_found(fs_->rename(at("a"), at("c"))));
  EXPECT_FALSE(*fs_->exists(at("a")));
  EXPECT_TRUE(*fs_->exists(at("b")));
  EXPECT_TRUE(*fs_->exists(at("sub")));
  EXPECT_TRUE(fs_->remove(at("b")).ok());
  EXPECT_TRUE(fs_->remove(at("b")).ok());  // absent
  EXPECT_FALSE(*fs_->exists(at("b")));
  EXPECT_EQ(read_file(a.get(), 0, 9), "Ax");  // still open
  EXPECT_TRUE(fs_->sync_directory(dir_).ok());
  EXPECT_TRUE(is_not_found(fs_->sync_directory(at("nowhere"))));
  EXPECT_TRUE(is_not_found(fs_->list(at("nowhere")).status()));
}

TEST_P(AnyFileSystem, DirectIoWhereItIsPossible) {
  const auto file = fs_->open(at("direct"), OpenOptions{.create = true, .direct = true});
  ASSERT_TRUE(file.ok()) << file.status();
  alignas(4096) static char page[8192];
  std::memset(page, 'd', sizeof(page));
  write_file(file->get(), 4096, std::string_view(page, 8192));
  std::memset(page, 0, sizeof(page));
  size_t got = 0;
  ASSERT_TRUE((*file)->read_at(8192, page, 8192, &got).ok());
  EXPECT_EQ(got, 4096u);
  EXPECT_EQ(page[4095], 'd');
}

// The simulated disk is as strict as a real one, so that tests on it find what a real one refuses.
TEST(SimDisk, DirectIoAsksForWholeBlocks) {
  const auto fs = make_sim_file_system();
  const auto file = fs->open("/direct", OpenOptions{.create = true, .direct = true});
  ASSERT_TRUE(file.ok()) << file.status();
  alignas(4096) static char page[8192];
  size_t got = 0;
  EXPECT_TRUE((*file)->write_at(0, page, 8192).ok());
  EXPECT_FALSE((*file)->write_at(0, page, 100).ok());
  EXPECT_FALSE((*file)->write_at(512, page, 4096).ok());
  EXPECT_FALSE((*file)->write_at(0, page + 512, 4096).ok());
  EXPECT_FALSE((*file)->read_at(0, page, 100, &got).ok());
  EXPECT_TRUE((*file)->read_at(4096, page, 8192, &got).ok());
  EXPECT_EQ(got, 4096u) << "the file ends there";
}

TEST_P(AnyFileSystem, ALockHasOneHolder) {  // IO3
  auto first = fs_->lock_file(at("lock"));
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_TRUE(*fs_->exists(at("lock")));
  const auto second = fs_->lock_file(at("lock"));
  EXPECT_TRUE(is_in_use(second.status())) << second.status();
  EXPECT_NE(second.status().message().find(at("lock")), absl::string_view::npos);
  EXPECT_NE(cause_and_remedy(second.status()).find("end that process first"), std::string::npos);
  EXPECT_TRUE(fs_->lock_file(at("other")).ok());
  first->reset();
  EXPECT_TRUE(fs_->lock_file(at("lock")).ok()) << "freed by its holder, and by the refused one not";
  const auto nowhere = fs_->lock_file(at("no/such"));
  EXPECT_TRUE(is_not_found(nowhere.status())) << nowhere.status();
  EXPECT_NE(nowhere.status().message().find(at("no/such")), absl::string_view::npos);
}

TEST(SimDisk, ACrashFreesLocks) {  // IO3
  const auto fs = make_sim_file_system();
  auto old = fs->lock_file("/lock");
  ASSERT_TRUE(old.ok()) << old.status();
  const auto copy = fs->fork();
  EXPECT_TRUE(copy->lock_file("/lock").ok()) << "a lock is a process's, and this disk has none";
  fs->crash(1);
  const auto fresh = fs->lock_file("/lock");
  ASSERT_TRUE(fresh.ok()) << fresh.status();
  old->reset();
  EXPECT_TRUE(is_in_use(fs->lock_file("/lock").status())) << "one of the old life frees no new one";
}

// A killed process frees what it held; a program it has started does not go on holding it.
TEST(PosixDisk, ALockEndsWithItsProcess) {  // IO3
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/lock";
  int ready[2];
  ASSERT_EQ(::pipe2(ready, O_CLOEXEC), 0);
  const pid_t holder = ::fork();
  if (holder == 0) {
    const auto fs = make_posix_file_system();
    const auto lock = fs->lock_file(path);
    char* const program[] = {const_cast<char*>("sleep"), const_cast<char*>("60"), nullptr};
    pid_t started = 0;
    if (!lock.ok() || ::posix_spawnp(&started, "sleep", nullptr, nullptr, program, environ) != 0 ||
        ::write(ready[1], &started, sizeof started) != sizeof started)
      ::_exit(1);
    for (;;) ::pause();
  }
  ::close(ready[1]);
  pid_t started = 0;
  ASSERT_EQ(::read(ready[0], &started, sizeof started), ssize_t{sizeof started});
  const auto fs = make_posix_file_system();
  EXPECT_TRUE(is_in_use(fs->lock_file(path).status()));
  ASSERT_EQ(::kill(holder, SIGKILL), 0);
  ASSERT_EQ(::waitpid(holder, nullptr, 0), holder);
  // Not at once: posix_spawn() returns a moment before the program's descriptors are closed.
  EXPECT_TRUE(strata::testing::wait_until([&] { return fs->lock_file(path).ok(); }));
  EXPECT_EQ(::kill(started, SIGKILL), 0) << "it still ran";
  ::close(ready[0]);
}

TEST(PosixDisk, AFileThatCannotBeLockedSaysWhy) {
  const TemporaryFolder folder;
  const auto fs = make_posix_file_system();
  const Status status = fs->lock_file(folder.path()).status();  // a folder
  EXPECT_TRUE(is_io_error(status)) << status;
  EXPECT_NE(status.message().find("open " + folder.path() + ": Is a directory"),
            absl::string_view::npos)
      << status;
}

INSTANTIATE_TEST_SUITE_P(Io, AnyFileSystem,
                         ::testing::Values(Disk::kPosix, Disk::kPowerLoss, Disk::kFullDisk,
                                           Disk::kFailingDisk, Disk::kSim));

// --- the simulated disk ---

TEST(FullDiskOnDemand, NothingGetsRoomWhileItIsFull) {
  const TemporaryFolder folder = TemporaryFolder::in_memory();
  const std::string marker = folder.path() + "/marker";
  const auto fs = make_full_disk_file_system(make_posix_file_system(), marker);
  const auto file = create(fs.get(), folder.path() + "/a");
  write_file(file.get(), 0, "0123456789");
  const auto full = create(make_posix_file_system().get(), marker);
  write_file(file.get(), 4, "abcdef");  // has its room
  EXPECT_EQ(file->write_at(8, "XYZ", 3).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(read_file(file.get(), 0, 100), "0123abcdXY");  // as much as there was room for
  EXPECT_EQ(file->write_at(20, "Z", 1).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(file->allocate(100).code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(file->allocate(5).ok());
  EXPECT_TRUE(file->sync_data().ok());
  EXPECT_EQ(fs->open(folder.path() + "/b", {.create = true}).status().code(),
            StatusCode::kResourceExhausted);
  EXPECT_EQ(fs->make_directory(folder.path() + "/c").code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(fs->open(folder.path() + "/a", {.create = true}).ok());
  EXPECT_TRUE(fs->rename(folder.path() + "/a", folder.path() + "/d").ok());
  ASSERT_TRUE(make_posix_file_system()->remove(marker).ok());
  write_file(file.get(), 8, "XYZ");
  EXPECT_EQ(read_file(file.get(), 0, 100), "0123abcdXYZ");
}

// Only the named operations on the named files fail, only while the marker is there.
TEST(FailingDiskOnDemand, WhatTheMarkerNamesFails) {
  const TemporaryFolder folder = TemporaryFolder::in_memory();
  const std::string marker = folder.path() + "/marker";
  const auto posix = make_posix_file_system();
  const auto fs = make_failing_disk_file_system(make_posix_file_system(), marker);
  const auto put = [&](const std::string& text) {
    const auto file = create(posix.get(), marker + ".new");
    write_file(file.get(), 0, text);
    ASSERT_TRUE(posix->rename(marker + ".new", marker).ok());
  };
  const auto log = create(fs.get(), folder.path() + "/log-1");
  const auto pages = create(fs.get(), folder.path() + "/pages-1");
  write_file(log.get(), 0, "0123");
  write_file(pages.get(), 0, "0123");
  put("write,sync /log-\nread /pages-\nnonsense\n");
  EXPECT_TRUE(is_io_error(log->write_at(0, "abcd", 4)));
  EXPECT_TRUE(is_device_error(log->allocate(100)));
  EXPECT_TRUE(is_io_error(log->sync_data()));
  EXPECT_EQ(read_file(log.get(), 0, 100), "0123");
  write_file(pages.get(), 0, "abcd");
  EXPECT_TRUE(pages->sync_data().ok());
  std::string got(4, ' ');
  size_t bytes = 0;
  EXPECT_TRUE(is_io_error(pages->read_at(0, got.data(), 4, &bytes)));
  put("name log-2");
  EXPECT_TRUE(log->sync_data().ok());
  EXPECT_EQ(read_file(pages.get(), 0, 100), "abcd");
  EXPECT_TRUE(is_io_error(fs->open(folder.path() + "/log-2", {.create = true}).status()));
  EXPECT_TRUE(is_io_error(fs->remove(folder.path() + "/log-2")));
  ASSERT_TRUE(posix->remove(marker).ok());
  EXPECT_TRUE(fs->open(folder.path() + "/log-2", {.create = true}).ok());
}

TEST(SimDisk, SyncedDataAndNamesSurvive) {  // IO1
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const auto fs = make_sim_file_system();
    const auto file = create(fs.get(), "a");
    write_file(file.get(), 0, std::string(3000, 'x'));
    ASSERT_TRUE(file->sync_data().ok());
    ASSERT_TRUE(fs->sync_directory(".").ok());
    fs->crash(seed);
    const auto again = fs->open("a", OpenOptions{});
    ASSERT_TRUE(again.ok());
    EXPECT_EQ(read_file(again->get(), 0, 4000), std::string(3000, 'x'));
  }
}

TEST(SimDisk, UnsyncedWritesTearBySector) {
  int kept = 0;
  int lost = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const auto fs = make_sim_file_system();
    const auto file = create(fs.get(), "a");
    write_file(file.get(), 0, std::string(4096, 'o'));
    ASSERT_TRUE(file->sync_data().ok());
    ASSERT_TRUE(fs->sync_directory(".").ok());
    write_file(file.get(), 0, std::string(4096, 'n'));
    fs->crash(seed);
    const auto again = fs->open("a", OpenOptions{});
    for (uint64_t sector = 0; sector < 8; ++sector) {
      const std::string bytes = read_file(again->get(), sector * 512, 512);
      ASSERT_TRUE(bytes == std::string(512, 'o') || bytes == std::string(512, 'n'));
      ++(bytes[0] == 'o' ? lost : kept);
    }
  }
  EXPECT_GT(kept, 100);
  EXPECT_GT(lost, 100);
}

TEST(SimDisk, HandlesOfTheOldLifeFail) {
  const auto fs = make_sim_file_system();
  const auto file = create(fs.get(), "a");
  fs->crash(1);
  char byte = 0;
  size_t got = 0;
  EXPECT_TRUE(is_io_error(file->read_at(0, &byte, 1, &got)));
  EXPECT_TRUE(is_io_error(file->write_at(0, &byte, 1)));
  EXPECT_TRUE(is_io_error(file->sync_data()));
  EXPECT_TRUE(is_io_error(file->size().status()));
}

TEST(SimDisk, FullDisk) {
  const auto fs = make_sim_file_system();
  fs->set_capacity(10000);
  const auto a = create(fs.get(), "a");
  const auto b = create(fs.get(), "b");
  EXPECT_TRUE(a->allocate(6000).ok());
  write_file(b.get(), 0, std::string(4000, 'b'));
  EXPECT_TRUE(is_no_space(b->write_at(4000, "x", 1)));
  EXPECT_TRUE(is_no_space(a->allocate(6001)));
  write_file(a.get(), 0, std::string(6000, 'a'));  // in place
  EXPECT_TRUE(fs->remove("b").ok());
  EXPECT_TRUE(a->allocate(10000).ok());
}

TEST(SimDisk, FlippedBitSurvivesACrash) {
  const auto fs = make_sim_file_system();
  const auto file = create(fs.get(), "a");
  write_file(file.get(), 0, "abc");
  ASSERT_TRUE(file->sync_data().ok());
  ASSERT_TRUE(fs->sync_directory(".").ok());
  fs->flip_bit("a", 8 + 1);
  fs->crash(1);
  EXPECT_EQ(read_file(fs->open("a", OpenOptions{})->get(), 0, 3), "a`c");
}

// --- what a crash does to names, the same on both disks ---

// Runs `before`, syncs the folder, runs `after`, crashes; returns what is there then
// ("name=content").
using Steps = std::function<void(FileSystem*, const std::string& dir)>;
std::string names_after_crash(bool sim, uint64_t seed, const Steps& before, const Steps& after) {
  const TemporaryFolder folder = TemporaryFolder::in_memory();
  const std::string dir = folder.path();
  const TemporaryFolder journal_folder = TemporaryFolder::in_memory();
  const std::string journal = journal_folder.path() + "/journal";
  std::unique_ptr<SimFileSystem> disk = make_sim_file_system();
  std::unique_ptr<FileSystem> real = make_power_loss_file_system(make_posix_file_system(), journal);
  FileSystem* fs = sim ? static_cast<FileSystem*>(disk.get()) : real.get();
  if (sim) {
    for (size_t at = dir.find('/', 1); at != std::string::npos; at = dir.find('/', at + 1))
      EXPECT_TRUE(fs->make_directory(dir.substr(0, at)).ok());
    EXPECT_TRUE(fs->make_directory(dir).ok());
  }
  before(fs, dir + "/");
  EXPECT_TRUE(fs->sync_directory(dir).ok());
  after(fs, dir + "/");
  if (sim) {
    disk->crash(seed);
  } else {
    real.reset();
    const auto report = revert_unsynced(journal, seed);
    EXPECT_TRUE(report.ok()) << report.status();
    real = make_posix_file_system();
    fs = real.get();
  }
  std::string found;
  const auto names = fs->list(dir);
  for (const std::string& name : *names)
    found += name + "=" + read_file(fs->open(dir + "/" + name, OpenOptions{})->get(), 0, 100) + " ";
  return found;
}

void create_synced(FileSystem* fs, const std::string& path, std::string_view content) {
  const auto file = create(fs, path);
  write_file(file.get(), 0, content);
  ASSERT_TRUE(file->sync_data().ok());
}

void expect_all_seen(const Steps& before, const Steps& after, std::set<std::string> want) {
  for (const bool sim : {true, false}) {
    std::set<std::string> seen;
    for (uint64_t seed = 0; seed < 60; ++seed)
      seen.insert(names_after_crash(sim, seed, before, after));
    EXPECT_EQ(seen, want) << (sim ? "sim" : "power loss");
  }
}

TEST(NamesAfterCrash, CreatedFileMayBeMissing) {
  expect_all_seen([](FileSystem*, const std::string&) {},
                  [](FileSystem* fs, const std::string& dir) {
                    create_synced(fs, dir + "a", "A");
                    create_synced(fs, dir + "b", "B");
                  },
                  {"", "a=A ", "a=A b=B "});
}

TEST(NamesAfterCrash, RemovedFileMayReturn) {
  expect_all_seen(
      [](FileSystem* fs, const std::string& dir) { create_synced(fs, dir + "a", "A"); },
      [](FileSystem* fs, const std::string& dir) { ASSERT_TRUE(fs->remove(dir + "a").ok()); },
      {"", "a=A "});
}

TEST(NamesAfterCrash, ReplacingRenameIsAtomic) {
  expect_all_seen(
      [](FileSystem* fs, const std::string& dir) { create_synced(fs, dir + "control", "old"); },
      [](FileSystem* fs, const std::string& dir) {
        create_synced(fs, dir + "control.new", "new");
        ASSERT_TRUE(fs->rename(dir + "control.new", dir + "control").ok());
      },
      {"control=old ", "control=old control.new=new ", "control=new "});
}

TEST(NamesAfterCrash, RecycledFileKeepsItsSyncedContent) {
  expect_all_seen(
      [](FileSystem* fs, const std::string& dir) { create_synced(fs, dir + "log1", "one"); },
      [](FileSystem* fs, const std::string& dir) {
        ASSERT_TRUE(fs->rename(dir + "log1", dir + "log2").ok());
        create_synced(fs, dir + "log2", "two");
      },
      {"log1=two ", "log2=two "});
}

TEST(NamesAfterCrash, UnsyncedContentOfARemovedFileIsLostToo) {
  for (const bool sim : {true, false}) {
    std::set<std::string> seen;
    for (uint64_t seed = 0; seed < 100; ++seed)
      seen.insert(names_after_crash(
          sim, seed,
          [](FileSystem* fs, const std::string& dir) { create_synced(fs, dir + "a", "A"); },
          [](FileSystem* fs, const std::string& dir) {
            write_file(fs->open(dir + "a", OpenOptions{})->get(), 0, "X");
            ASSERT_TRUE(fs->remove(dir + "a").ok());
          }));
    EXPECT_EQ(seen, (std::set<std::string>{"", "a=A ", "a=X "})) << sim;
  }
}

TEST(NamesAfterCrash, FailedRenameLeavesNoTrace) {
  expect_all_seen([](FileSystem* fs, const std::string& dir) { create_synced(fs, dir + "a", "A"); },
                  [](FileSystem* fs, const std::string& dir) {
                    EXPECT_FALSE(fs->rename(dir + "a", dir + "no/such").ok());
                    EXPECT_FALSE(fs->open(dir + "no/such", OpenOptions{.create = true}).ok());
                  },
                  {"a=A "});
}

// Goal: neither disk sees what happens to the other after a fork, and the fork may still lose what
// was not synced before it.
TEST(SimFork, DisksPartWays) {
  auto fs = make_sim_file_system();
  auto file = fs->open("a", {.create = true});
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE((*file)->write_at(0, "old", 3).ok());
  ASSERT_TRUE((*file)->sync_data().ok());
  ASSERT_TRUE(fs->sync_directory(".").ok());
  ASSERT_TRUE((*file)->write_at(0, "new", 3).ok());
  const auto read = [](FileSystem* disk) {
    char bytes[3] = {};
    size_t got = 0;
    EXPECT_TRUE((*disk->open("a", {}))->read_at(0, bytes, 3, &got).ok());
    return std::string(bytes, got);
  };
  int lost = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const auto copy = fs->fork();
    EXPECT_EQ(read(copy.get()), "new");
    copy->crash(seed);
    lost += read(copy.get()) == "old" ? 1 : 0;
    ASSERT_TRUE((*copy->open("a", {}))->write_at(0, "abc", 3).ok());
    ASSERT_TRUE(copy->remove("a").ok());
    EXPECT_EQ(read(fs.get()), "new");
  }
  EXPECT_GT(lost, 5);
  EXPECT_LT(lost, 35);
  const auto copy = fs->fork();
  ASSERT_TRUE((*file)->write_at(1, "XY", 2).ok());
  EXPECT_EQ(read(copy.get()), "new");
  EXPECT_EQ(read(fs.get()), "nXY");
}

TEST(SimObserver, IsToldOfEveryChange) {
  auto fs = make_sim_file_system();
  int calls = 0;
  fs->set_observer([&] {
    ++calls;
    (void)fs->fork();  // allowed: no lock is held
  });
  auto file = fs->open("a", {.create = true});
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(calls, 1);
  ASSERT_TRUE((*file)->write_at(0, "x", 1).ok());
  ASSERT_TRUE((*file)->sync_data().ok());
  ASSERT_TRUE((*file)->allocate(100).ok());
  ASSERT_TRUE(fs->rename("a", "b").ok());
  ASSERT_TRUE(fs->sync_directory(".").ok());
  EXPECT_EQ(calls, 6);
  fs->set_observer(nullptr);
  ASSERT_TRUE(fs->remove("b").ok());
  EXPECT_EQ(calls, 6);
}

}  // namespace
}  // namespace strata
