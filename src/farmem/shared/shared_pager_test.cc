// Goal: processes that map the file share its content and find what they wrote, with never more
// than the frames in the kernel's cache, whatever the kernel forgets by itself (FM50-FM52); a node
// that is lost ends all waiting (FM55); nothing is to be seen of it on the host (FM56). Method: the
// real kernel, where it allows it; what is in its cache is asked of it. STRATA_SEED=n repeats.
#include "farmem/shared/shared_pager.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <random>
#include <sstream>
#include <thread>

#include "base/rng.h"
#include "base/testing/wait_until.h"
#include "farmem/node/memory_service.h"
#include "transport/calls/testing/io_node.h"

namespace strata::farmem {
namespace {

using transport::test::Folder;
using transport::test::IoNode;
using transport::test::secret_of;

constexpr uint64_t kPages = 2048;
constexpr uint32_t kFrames = 256;
constexpr int kThreads = 3;
constexpr int kChildren = 2;

uint64_t seed() {
  const char* const given = std::getenv("STRATA_SEED");
  const uint64_t chosen = given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
  std::printf("STRATA_SEED=%llu\n", static_cast<unsigned long long>(chosen));
  return chosen;
}

std::string mounts() {
  std::ostringstream out;
  out << std::ifstream("/proc/self/mounts").rdbuf();
  return out.str();
}

class SharedPagerTest : public ::testing::TestWithParam<const char*> {
 protected:
  SharedPagerTest() {
    server_ = std::make_unique<transport::RpcServer>(node_.world(), secret_of('s'),
                                                     transport::ServerOptions{});
    service_ = std::make_unique<MemoryService>(node_.world(), server_.get(), ServiceOptions{});
    tcp_ = *server_->listen("tcp:127.0.0.1:0");
    unix_ = *server_->listen("unix:" + (folder_ / "socket"));
  }
  ~SharedPagerTest() override {
    unmap();
    pager_.reset();
    server_.reset();
  }

  // False: not allowed here.
  bool start(const char* policy = "fifo", uint32_t prefetch = 0) {
    unmap();
    pager_.reset();
    const bool mapped = std::string(GetParam()) == "unix";
    auto client = MemoryClient::open(secret_of('s'), {.address = mapped ? unix_ : tcp_,
                                                      .name = "test",
                                                      .pages = kPages,
                                                      .timeout_us = timeout_us_});
    EXPECT_TRUE(client.ok());
    SharedPagerOptions options{.policy = {.frames = kFrames, .prefetch = prefetch},
                               .counters = &counters_,
                               .on_lost = [this](const Status&) { lost_.fetch_add(1); }};
    EXPECT_TRUE(parse_policy(policy, &options.policy).ok());
    auto pager = SharedPager::start(*std::move(client), options);
    if (!pager.ok()) {
      EXPECT_TRUE(pager.status().code() == absl::StatusCode::kInvalidArgument) << pager.status();
      return false;
    }
    pager_ = *std::move(pager);
    void* const memory = ::mmap(nullptr, kPages * kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                                pager_->file(), 0);
    EXPECT_NE(memory, MAP_FAILED);
    base_ = static_cast<char*>(memory);
    return true;
  }
  void unmap() {
    if (base_ != nullptr) ::munmap(base_, kPages * kPageBytes);
    base_ = nullptr;
  }
  // One of each page, at another place in each. Written by one thread or process at a time.
  std::atomic<uint64_t>& word(uint64_t page) const {
    return reinterpret_cast<std::atomic<uint64_t>*>(base_ + page * kPageBytes)[page % 512];
  }
  // Empty pages of threads that wait come on top.
  void check_cap() const { EXPECT_LE(cached_pages(pager_->file()), kFrames + kThreads + kChildren); }

  Folder folder_;
  IoNode node_;
  std::unique_ptr<transport::RpcServer> server_;
  std::unique_ptr<MemoryService> service_;
  std::string tcp_, unix_;
  PagerCounters counters_;
  std::atomic<int> lost_{0};
  uint64_t timeout_us_ = 60'000'000;
  std::unique_ptr<SharedPager> pager_;
  char* base_ = nullptr;
};

#define START_OR_SKIP(...) \
  if (!start(__VA_ARGS__)) GTEST_SKIP() << "a FUSE file system is not allowed here"

TEST_P(SharedPagerTest, EveryPolicyGivesBackWhatWasWrittenWithinTheCap) {
  constexpr int kSteps = 6000;
  const std::vector<std::pair<const char*, uint32_t>> policies{
      {"fifo", 0}, {"second-chance", 7}, {"assoc:1", 0}, {"assoc:16", 1}, {"fifo", 31}};
  const uint64_t first_seed = seed();
  for (const auto& [policy, prefetch] : policies) {
    SCOPED_TRACE(policy);
    START_OR_SKIP(policy, prefetch);
    Rng rng(first_seed);
    std::vector<uint64_t> model(kPages);
    uint64_t page = 0;
    for (int step = 0; step < kSteps; step++) {
      page = rng.one_in(3) ? rng.below(kPages) : (page + 1) % kPages;
      ASSERT_EQ(word(page).load(), model[page]) << page;
      if (rng.one_in(2)) word(page).store(model[page] = rng.one_in(9) ? 0 : rng.next());
      // What the kernel may do whenever it likes.
      if (rng.one_in(50)) ::sync_file_range(pager_->file(), 0, 0, SYNC_FILE_RANGE_WRITE);
      if (rng.one_in(20))
        ::posix_fadvise(pager_->file(), static_cast<off_t>(rng.below(kPages) * kPageBytes), 16 * kPageBytes,
                        POSIX_FADV_DONTNEED);
      if (step % 100 == 0) check_cap();
    }
    for (uint64_t i = 0; i < kPages; i++) ASSERT_EQ(word(i).load(), model[i]) << i;
    EXPECT_LE(counters_.local_max.load(), kFrames);
    EXPECT_GT(counters_.fetched.load(), 0u);
    EXPECT_EQ(lost_.load(), 0);
  }
}

// Each page is counted up by everybody; the kernel forgets pages meanwhile.
TEST_P(SharedPagerTest, ThreadsAndProcessesCountTogether) {
  constexpr uint64_t kTouches = 4000;
  const uint64_t first_seed = seed();
  for (const auto& [policy, prefetch] :
       std::vector<std::pair<const char*, uint32_t>>{{"fifo", 0}, {"second-chance", 3}, {"assoc:1", 0}}) {
    SCOPED_TRACE(policy);
    START_OR_SKIP(policy, prefetch);
    const auto count_up = [this](uint64_t seed) {
      Rng rng(seed);
      uint64_t page = rng.below(kPages);
      for (uint64_t i = 0; i < kTouches; i++) {
        page = rng.one_in(4) ? rng.below(kPages) : (page + 1) % kPages;
        word(page).fetch_add(1);
      }
    };
    std::vector<pid_t> children;
    for (int i = 0; i < kChildren; i++) {
      const pid_t child = ::fork();
      if (child == 0) {
        count_up(first_seed + static_cast<uint64_t>(100 + i));
        ::_exit(0);
      }
      children.push_back(child);
    }
    std::atomic<bool> done{false};
    std::thread forgetting([this, &done] {
      while (!done.load()) {
        ::sync_file_range(pager_->file(), 0, 0, SYNC_FILE_RANGE_WRITE);
        ::posix_fadvise(pager_->file(), 0, 0, POSIX_FADV_DONTNEED);
        check_cap();
        std::this_thread::yield();
      }
    });
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; i++)
      threads.emplace_back(count_up, first_seed + static_cast<uint64_t>(i));
    for (std::thread& thread : threads) thread.join();
    for (const pid_t child : children) {
      int status = 0;
      ASSERT_EQ(::waitpid(child, &status, 0), child);
      EXPECT_EQ(status, 0);
    }
    done.store(true);
    forgetting.join();
    uint64_t sum = 0;
    for (uint64_t i = 0; i < kPages; i++) sum += word(i).load();
    EXPECT_EQ(sum, kTouches * (kThreads + kChildren));
    EXPECT_LE(counters_.local_max.load(), kFrames);
  }
}

TEST_P(SharedPagerTest, NothingIsSeenOfItOnTheHost) {
  const std::string before = mounts();
  START_OR_SKIP();
  word(1).store(1);
  EXPECT_EQ(mounts(), before);
  unmap();
  pager_.reset();
  EXPECT_EQ(mounts(), before);
}

TEST_P(SharedPagerTest, ANodeThatGoesEndsAllWaiting) {
  timeout_us_ = 1'000'000;
  START_OR_SKIP();
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;)
      for (uint64_t i = 0; i < kPages; i++) word(i).fetch_add(1);
  }
  ASSERT_TRUE(testing::wait_until([this] { return counters_.fetched.load() > kPages; }));
  server_.reset();
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
  EXPECT_TRUE(testing::wait_until([this] { return lost_.load() == 1; }));
}

// Whoever still has it mapped when the pager goes.
TEST_P(SharedPagerTest, WithoutThePagerATouchIsASignal) {
  START_OR_SKIP();
  for (uint64_t i = 0; i < kPages; i++) word(i).store(i);
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;)
      for (uint64_t i = 0; i < kPages; i++) word(i).fetch_add(1);
  }
  unmap();
  pager_.reset();
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
}

INSTANTIATE_TEST_SUITE_P(Nodes, SharedPagerTest, ::testing::Values("unix", "tcp"));

}  // namespace
}  // namespace strata::farmem
