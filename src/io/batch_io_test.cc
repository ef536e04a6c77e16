// Batches end as single calls would have, whatever the ring does with them.
#include "io/batch_io.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/aligned.h"
#include "base/diag.h"
#include "base/rng.h"
#include "base/testing/sanitized.h"
#include "io/internal/ring.h"
#include "io/testing/any_disk.h"

namespace strata {
namespace {

using internal::Ring;
using internal::RingEntry;
using strata::testing::AnyDisk;
using strata::testing::Disk;
using strata::testing::TemporaryFolder;

constexpr size_t kBlock = 4096;

std::unique_ptr<File> open_file(FileSystem* fs, const std::string& path, bool read_only = false) {
  auto file =
      fs->open(path, OpenOptions{.read_only = read_only, .create = !read_only, .direct = true});
  EXPECT_TRUE(file.ok()) << file.status();
  return std::move(*file);
}

std::atomic<int> infos{0};
void count_infos(Severity severity, std::string_view message) {
  if (severity == Severity::kInfo && message.find("one by one") != std::string_view::npos) ++infos;
}

// --- on every kind of disk ---

class BatchOnAnyDisk : public AnyDisk {
 protected:
  BatchOnAnyDisk() {
    for (const char* name : {"/a", "/b", "/c"}) files_.push_back(open_file(fs_.get(), dir_ + name));
  }

  std::vector<std::unique_ptr<File>> files_;
};

INSTANTIATE_TEST_SUITE_P(All, BatchOnAnyDisk,
                         ::testing::Values(Disk::kPosix, Disk::kPowerLoss, Disk::kFullDisk,
                                           Disk::kSim));

// Batches of any size, more than a ring holds too, against an oracle of what each block holds.
TEST_P(BatchOnAnyDisk, HoldsWhatTheBatchesWrote) {
  constexpr uint64_t kBlocks = 96;
  constexpr size_t kBatchMax = 150;
  Rng rng(17);
  BatchIo io;
  std::vector<std::string> oracle(files_.size(), std::string(kBlocks * kBlock, '\0'));
  for (auto& file : files_) ASSERT_TRUE(file->allocate(kBlocks * kBlock).ok());
  const AlignedBytes bytes(kBatchMax * 2 * kBlock, kBlock);
  for (uint64_t round = 0; round < testing::fewer_if_sanitized(40, 8); ++round) {
    std::vector<FileWrite> writes;
    std::set<std::pair<size_t, uint64_t>> taken;
    char* data = bytes.get();
    for (uint64_t i = 1 + rng.below(kBatchMax); i > 0; --i) {
      const size_t file = rng.below(files_.size());
      const uint64_t block = rng.below(kBlocks - 1);
      if (!taken.emplace(file, block).second || !taken.emplace(file, block + 1).second) continue;
      const size_t length = (1 + rng.below(2)) * kBlock;
      std::memset(data, static_cast<int>('a' + rng.below(26)), length);
      oracle[file].replace(block * kBlock, length, data, length);
      writes.push_back({.file = files_[file].get(),
                        .offset = block * kBlock,
                        .data = data,
                        .bytes = length,
                        .status = error_internal("not set")});
      data += length;
    }
    io.write_all(writes.data(), writes.size());
    for (const FileWrite& write : writes) ASSERT_TRUE(write.status.ok()) << write.status;

    std::vector<FileRead> reads;
    for (size_t file = 0; file < files_.size(); ++file)
      for (uint64_t block = 0; block < kBlocks; ++block)
        reads.push_back({.file = files_[file].get(),
                         .offset = block * kBlock,
                         .data = bytes.get() + reads.size() * kBlock,
                         .bytes = kBlock,
                         .status = error_internal("not set")});
    ASSERT_LE(reads.size(), kBatchMax * 2);
    io.read_all(reads.data(), reads.size());
    for (size_t i = 0; i < reads.size(); ++i) {
      ASSERT_TRUE(reads[i].status.ok()) << reads[i].status;
      ASSERT_EQ(reads[i].got, kBlock);
      ASSERT_EQ(std::string_view(reads[i].data, kBlock),
                std::string_view(oracle[i / kBlocks]).substr(i % kBlocks * kBlock, kBlock));
    }
  }
}

TEST_P(BatchOnAnyDisk, AReadEndsWithItsFile) {
  BatchIo io;
  const AlignedBytes bytes(4 * kBlock, kBlock);
  std::memset(bytes.get(), 'x', kBlock);
  ASSERT_TRUE(files_[0]->write_at(0, bytes.get(), kBlock).ok());
  std::array<FileRead, 2> reads{
      FileRead{.file = files_[0].get(), .data = bytes.get(), .bytes = 2 * kBlock},
      FileRead{.file = files_[1].get(), .data = bytes.get() + 2 * kBlock, .bytes = kBlock}};
  io.read_all(reads.data(), reads.size());
  EXPECT_TRUE(reads[0].status.ok());
  EXPECT_EQ(reads[0].got, kBlock);
  EXPECT_TRUE(reads[1].status.ok());
  EXPECT_EQ(reads[1].got, 0u);
}

TEST_P(BatchOnAnyDisk, NothingIsNothing) {
  BatchIo io;
  io.write_all(nullptr, 0);
  io.read_all(nullptr, 0);
}

// --- partial failures ---

class BatchOnFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    fs_ = make_posix_file_system();
    file_ = open_file(fs_.get(), folder_.path() + "/file");
  }
  // Blocks i of the file, each full of its letter.
  std::vector<FileWrite> letters(size_t count) {
    std::vector<FileWrite> writes;
    for (size_t i = 0; i < count; ++i) {
      char* const data = bytes_.get() + i * kBlock;
      std::memset(data, static_cast<int>('a' + i), kBlock);
      writes.push_back({.file = file_.get(), .offset = i * kBlock, .data = data, .bytes = kBlock});
    }
    return writes;
  }
  void expect_letters(size_t count) {
    const AlignedBytes found(kBlock, kBlock);
    for (size_t i = 0; i < count; ++i) {
      size_t got = 0;
      ASSERT_TRUE(file_->read_at(i * kBlock, found.get(), kBlock, &got).ok());
      EXPECT_EQ(std::string_view(found.get(), got),
                std::string(kBlock, static_cast<char>('a' + i)));
    }
  }

  TemporaryFolder folder_;
  std::unique_ptr<FileSystem> fs_;
  std::unique_ptr<File> file_;
  const AlignedBytes bytes_{16 * kBlock, kBlock};
};

TEST_F(BatchOnFiles, OneThatCannotBeWrittenSpoilsNoOther) {
  const auto locked = open_file(fs_.get(), folder_.path() + "/file", /*read_only=*/true);
  auto writes = letters(5);
  writes.insert(writes.begin() + 2, writes[0]);
  writes[2].file = locked.get();
  BatchIo io;
  io.write_all(writes.data(), writes.size());
  for (size_t i = 0; i < writes.size(); ++i) EXPECT_EQ(writes[i].status.ok(), i != 2);
  EXPECT_NE(writes[2].status.message().find(locked->path()), absl::string_view::npos);
  expect_letters(5);
}

// A ring that does what its script says with each entry.
enum class Do { kAll, kHalf, kInterrupted, kBusy, kFailed, kNotBegun };
struct Script {
  std::vector<Do> steps;
  bool usable_after = true;
  int made = 0;
  int runs = 0;
};
class ScriptedRing final : public Ring {
 public:
  explicit ScriptedRing(Script* script) : script_(script) {}
  bool run(RingEntry* entries, size_t count) override {
    ++script_->runs;
    EXPECT_LE(count, internal::kRingEntries);
    for (size_t i = 0; i < count; ++i)
      follow(&entries[i], script_->steps[i % script_->steps.size()]);
    return script_->usable_after;
  }

 private:
  static void follow(RingEntry* entry, Do step) {
    switch (step) {
      case Do::kAll:
        entry->result = transfer(*entry, entry->bytes);
        break;
      case Do::kHalf:
        entry->result = transfer(*entry, entry->bytes / 2);
        break;
      case Do::kInterrupted:
        entry->result = -EINTR;
        break;
      case Do::kBusy:
        entry->result = -EAGAIN;
        break;
      case Do::kFailed:
        entry->result = -EIO;
        break;
      case Do::kNotBegun:
        break;
    }
  }
  static int64_t transfer(const RingEntry& entry, size_t bytes) {
    const auto offset = static_cast<off_t>(entry.offset);
    return entry.is_write ? ::pwrite(entry.descriptor, entry.data, bytes, offset)
                          : ::pread(entry.descriptor, entry.data, bytes, offset);
  }
  Script* const script_;
};
BatchIo::MakeRing scripted(Script* script) {
  return [script]() -> StatusOr<std::unique_ptr<Ring>> {
    ++script->made;
    return std::unique_ptr<Ring>(std::make_unique<ScriptedRing>(script));
  };
}

TEST_F(BatchOnFiles, WhatTheRingLeftUndoneIsDoneByCalls) {  // BI2
  Script script{
      .steps = {Do::kAll, Do::kHalf, Do::kInterrupted, Do::kBusy, Do::kFailed, Do::kNotBegun}};
  BatchIo io(scripted(&script));
  auto writes = letters(12);
  io.write_all(writes.data(), writes.size());
  for (const FileWrite& write : writes) EXPECT_TRUE(write.status.ok()) << write.status;
  expect_letters(12);

  std::vector<FileRead> reads;
  for (size_t i = 0; i < 12; ++i)
    reads.push_back({.file = file_.get(),
                     .offset = i * kBlock,
                     .data = bytes_.get() + i * kBlock,
                     .bytes = kBlock});
  std::memset(bytes_.get(), 0, 12 * kBlock);
  io.read_all(reads.data(), reads.size());
  for (size_t i = 0; i < 12; ++i) {
    EXPECT_TRUE(reads[i].status.ok());
    EXPECT_EQ(std::string_view(reads[i].data, reads[i].got),
              std::string(kBlock, static_cast<char>('a' + i)));
  }
  EXPECT_EQ(script.made, 1);
  EXPECT_EQ(script.runs, 2);
}

TEST_F(BatchOnFiles, ARingThatBrokeIsReplaced) {
  Script script{.steps = {Do::kNotBegun}, .usable_after = false};
  BatchIo io(scripted(&script));
  auto writes = letters(3);
  for (int i = 0; i < 2; ++i) {
    for (FileWrite& write : writes) write.status = error_internal("not set");
    io.write_all(writes.data(), writes.size());
    for (const FileWrite& write : writes) EXPECT_TRUE(write.status.ok());
  }
  expect_letters(3);
  EXPECT_EQ(script.made, 2);
}

TEST_F(BatchOnFiles, ASingleTransferTakesNoRing) {
  Script script{.steps = {Do::kAll}};
  BatchIo io(scripted(&script));
  auto writes = letters(1);
  io.write_all(writes.data(), 1);
  EXPECT_TRUE(writes[0].status.ok());
  EXPECT_EQ(script.made, 0);
}

// --- where there is no io_uring ---

TEST_F(BatchOnFiles, ARefusalIsSaidOnceAndCallsDoTheWork) {
  int asked = 0;
  BatchIo io([&asked]() -> StatusOr<std::unique_ptr<Ring>> {
    ++asked;
    return error_peer_down("forbidden here");
  });
  infos = 0;
  set_diag_sink(count_infos);
  auto writes = letters(4);
  for (int i = 0; i < 3; ++i) io.write_all(writes.data(), writes.size());
  set_diag_sink(nullptr);
  for (const FileWrite& write : writes) EXPECT_TRUE(write.status.ok());
  expect_letters(4);
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(infos, 1);
}

void forbid_io_uring() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{.len = std::size(filter), .filter = filter};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
    ::_exit(9);
}

// As in a container whose profile forbids it: the real ring, in a process of its own.
TEST_F(BatchOnFiles, WorkUnderAProfileThatForbidsIoUring) {
  auto writes = letters(6);
  EXPECT_EXIT(
      {
        forbid_io_uring();
        BatchIo io;
        io.write_all(writes.data(), writes.size());
        const bool all = std::all_of(writes.begin(), writes.end(),
                                     [](const FileWrite& write) { return write.status.ok(); });
        ::_exit(all ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "one by one.*io_uring");
  expect_letters(6);
}

// --- threads ---

TEST_F(BatchOnFiles, ThreadsShareIt) {
  constexpr int kThreads = 4;
  constexpr size_t kEach = 4;
  BatchIo io;
  auto writes = letters(kThreads * kEach);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; i < testing::fewer_if_sanitized(200, 40); ++i)
        io.write_all(writes.data() + t * kEach, kEach);
    });
  for (std::thread& thread : threads) thread.join();
  for (const FileWrite& write : writes) EXPECT_TRUE(write.status.ok());
  expect_letters(kThreads * kEach);
}

}  // namespace
}  // namespace strata
