// Goal: who reads a file through the cache gets what was written last, whatever is kept at the node
// and whatever has had to leave it (FM60, FM61); what the node cannot give comes from the file or
// is an error, never something else (FM63). Method: real nodes and files, random calls against
// plain strings.
#include "farmem/files/far_cache.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "base/rng.h"
#include "farmem/node/memory_service.h"
#include "farmem/policy/policy_options.h"
#include "transport/calls/testing/io_node.h"

namespace strata::farmem {
namespace {

using transport::test::Folder;
using transport::test::IoNode;
using transport::test::secret_of;

constexpr uint64_t kCallUs = 30'000'000;

class FarCacheTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    server_ = std::make_unique<transport::RpcServer>(node_.world(), secret_of('s'),
                                                     transport::ServerOptions{});
    service_ = std::make_unique<MemoryService>(node_.world(), server_.get(), ServiceOptions{});
    address_ = std::string(GetParam()) == "unix" ? *server_->listen("unix:" + (folder_ / "socket"))
                                                 : *server_->listen("tcp:127.0.0.1:0");
  }
  void stop() {
    server_.reset();
    service_.reset();
  }
  ~FarCacheTest() override { stop(); }

  std::unique_ptr<FarCache> cache(uint64_t pages) {
    return std::make_unique<FarCache>(
        *MemoryClient::open(
            secret_of('s'),
            {.address = address_, .name = "test", .pages = pages, .timeout_us = kCallUs}),
        &counters_);
  }
  int file(const std::string& name) {
    return ::open((folder_ / name).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  }
  static std::string read(FarCache* cache, uint64_t file, int fd, uint64_t at, uint64_t bytes) {
    std::string out(bytes, '?');
    int error = 0;
    const auto got = cache->read(file, fd, at, bytes, out.data(), &error);
    EXPECT_TRUE(got.ok()) << got.status().ToString() << " " << error;
    out.resize(got.ok() ? *got : 0);
    return out;
  }
  static void write(FarCache* cache, uint64_t file, int fd, uint64_t at, const std::string& what) {
    int error = 0;
    EXPECT_TRUE(cache->write(file, fd, at, what.size(), what.data(), &error).ok()) << error;
  }

  Folder folder_;
  IoNode node_;
  std::unique_ptr<transport::RpcServer> server_;
  std::unique_ptr<MemoryService> service_;
  std::string address_;
  FileCounters counters_;
};

TEST_P(FarCacheTest, WhatWasReadOnceComesFromTheNode) {
  const auto cached = cache(64);
  const int fd = file("a");
  const std::string content(3 * kPageBytes + 100, 'x');
  ASSERT_EQ(::pwrite(fd, content.data(), content.size(), 0), static_cast<ssize_t>(content.size()));
  EXPECT_EQ(read(cached.get(), 1, fd, 0, 1 << 20), content);
  EXPECT_EQ(counters_.from_disk.load(), 4);
  EXPECT_EQ(counters_.fetched.load(), 0);
  EXPECT_EQ(read(cached.get(), 1, fd, 0, 1 << 20), content);
  EXPECT_EQ(read(cached.get(), 1, fd, 5000, 10), content.substr(5000, 10));
  EXPECT_EQ(counters_.from_disk.load(), 4);
  EXPECT_EQ(counters_.fetched.load(), 5);
  EXPECT_EQ(read(cached.get(), 1, fd, content.size(), 10), "");
  ::close(fd);
}

TEST_P(FarCacheTest, WholePagesThatAreWrittenAreKeptAndZerosAreZeros) {
  const auto cached = cache(64);
  const int fd = file("a");
  const std::string page(kPageBytes, 'p'), zeros(2 * kPageBytes, '\0');
  write(cached.get(), 1, fd, 0, page);
  write(cached.get(), 1, fd, kPageBytes, zeros);
  EXPECT_EQ(read(cached.get(), 1, fd, 0, 1 << 20), page + zeros);
  EXPECT_EQ(counters_.from_disk.load(), 0);
  write(cached.get(), 1, fd, 10, "in it");
  EXPECT_EQ(read(cached.get(), 1, fd, 8, 9), "ppin itpp");
  EXPECT_EQ(counters_.from_disk.load(), 1);
  ::close(fd);
}

TEST_P(FarCacheTest, RandomCallsGiveWhatPlainFilesWould) {
  constexpr int kFiles = 3, kCalls = 4000;
  constexpr uint64_t kBytesMax = 40 * kPageBytes;
  const uint64_t seed = ::testing::UnitTest::GetInstance()->random_seed();
  SCOPED_TRACE(seed);
  Rng rng(seed);
  for (const uint64_t room : {1, 7, 64, 1000}) {
    const auto cached = cache(room);
    std::vector<std::string> model(kFiles);
    std::vector<int> fds;
    for (int f = 0; f < kFiles; f++) {
      fds.push_back(file("f" + std::to_string(room) + "." + std::to_string(f)));
    }
    for (int call = 0; call < kCalls; call++) {
      const auto f = static_cast<size_t>(rng.below(kFiles));
      const bool whole = rng.below(2) == 0;
      uint64_t at = rng.below(kBytesMax), bytes = 1 + rng.below(6 * kPageBytes);
      if (whole) {
        at -= at % kPageBytes;
        bytes = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
      }
      switch (rng.below(8)) {
        case 0: {
          if (at > model[f].size()) break;
          cached->cut(f, at);
          ASSERT_EQ(::ftruncate(fds[f], static_cast<off_t>(at)), 0);
          model[f].resize(at);
          break;
        }
        case 1:
        case 2:
        case 3: {
          std::string what(bytes, static_cast<char>(rng.below(3)));
          what[rng.below(bytes)] = static_cast<char>(rng.below(256));
          if (model[f].size() < at + bytes) model[f].resize(at + bytes, '\0');
          model[f].replace(at, bytes, what);
          write(cached.get(), f, fds[f], at, what);
          break;
        }
        default: {
          const std::string expected =
              at >= model[f].size() ? std::string() : model[f].substr(at, bytes);
          ASSERT_EQ(read(cached.get(), f, fds[f], at, bytes), expected) << call;
        }
      }
      ASSERT_LE(cached->kept(), room);
    }
    for (const int fd : fds) ::close(fd);
    ASSERT_TRUE(cached->lost().ok());
  }
}

TEST_P(FarCacheTest, ALostNodeIsAnErrorAndStaysOne) {
  const auto cached = cache(64);
  const int fd = file("a");
  write(cached.get(), 1, fd, 0, std::string(kPageBytes, 'p'));
  stop();
  std::string out(kPageBytes, '?');
  int error = 0;
  if (std::string(GetParam()) == "tcp") {
    EXPECT_FALSE(cached->read(1, fd, 0, kPageBytes, out.data(), &error).ok());
    EXPECT_EQ(error, EIO);
  } else {
    cached->lose(error_internal("said by whoever renews"));  // its memory is still mapped here
  }
  EXPECT_FALSE(cached->lost().ok());
  EXPECT_FALSE(cached->read(1, fd, 0, kPageBytes, out.data(), &error).ok());
  EXPECT_FALSE(cached->write(1, fd, 0, kPageBytes, out.data(), &error).ok());
  ::close(fd);
}

TEST_P(FarCacheTest, AFileThatCannotBeReadSaysWhy) {
  const auto cached = cache(64);
  const int fd = ::open((folder_ / "w").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_EQ(::pwrite(fd, "abc", 3, 0), 3);
  std::string out(10, '?');
  int error = 0;
  EXPECT_FALSE(cached->read(1, fd, 0, 10, out.data(), &error).ok());
  EXPECT_EQ(error, EBADF);
  EXPECT_TRUE(cached->lost().ok());
  ::close(fd);
}

INSTANTIATE_TEST_SUITE_P(Addresses, FarCacheTest, ::testing::Values("unix", "tcp"));

}  // namespace
}  // namespace strata::farmem
