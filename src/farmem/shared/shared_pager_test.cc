// Goal: processes that map the file share its content and find what they wrote, with never more
// than the frames in the kernel's cache, whatever the kernel forgets by itself (FM50-FM52); a node
// that is lost ends all waiting (FM55); nothing is to be seen of it on the host (FM56). Method: the
// real kernel, where it allows it; what is in its cache is asked of it. The program is this one
// again, as other processes (FM57): the tests called Program. STRATA_SEED=n repeats.
#include "farmem/shared/shared_pager.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <random>
#include <sstream>
#include <thread>

#include "base/rng.h"
#include "base/testing/sanitized.h"
#include "base/testing/wait_until.h"
#include "farmem/node/memory_service.h"
#include "transport/calls/testing/io_node.h"

extern char** environ;

namespace strata::farmem {
namespace {

using transport::test::Folder;
using transport::test::IoNode;
using transport::test::secret_of;

constexpr uint64_t kPages = 2048;
constexpr uint32_t kFrames = 256;
constexpr uint64_t kThreads = 3;  // of each process
constexpr uint64_t kChildren = 2;

uint64_t seed() {
  const char* const given = std::getenv("STRATA_SEED");
  const uint64_t chosen =
      given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
  std::printf("STRATA_SEED=%llu\n", static_cast<unsigned long long>(chosen));
  return chosen;
}

std::string mounts() {
  std::ostringstream out;
  out << std::ifstream("/proc/self/mounts").rdbuf();
  return out.str();
}

// What a process of the program is told, in its environment.
constexpr const char* kFileVariable = "STRATA_TEST_FILE";
constexpr const char* kSeedVariable = "STRATA_TEST_SEED";
constexpr const char* kStepsVariable = "STRATA_TEST_STEPS";

uint64_t told(const char* variable) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
}

class Program : public ::testing::Test {
 protected:
  Program() : file_(static_cast<int>(told(kFileVariable))) {
    ::signal(SIGBUS, SIG_DFL);  // a sanitizer has its own way
    void* const memory =
        ::mmap(nullptr, kPages * kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    EXPECT_NE(memory, MAP_FAILED);
    base_ = static_cast<char*>(memory);
  }
  // One of each page, at another place in each.
  std::atomic<uint64_t>& word(uint64_t page) const {
    return reinterpret_cast<std::atomic<uint64_t>*>(base_ + page * kPageBytes)[page % 512];
  }
  const int file_;
  char* base_ = nullptr;
};

// Alone: what it reads is what it wrote.
TEST_F(Program, DISABLED_ReadsAndWrites) {
  Rng rng(told(kSeedVariable));
  std::vector<uint64_t> model(kPages);
  uint64_t page = 0;
  for (uint64_t step = 0; step < told(kStepsVariable); step++) {
    page = rng.one_in(3) ? rng.below(kPages) : (page + 1) % kPages;
    ASSERT_EQ(word(page).load(), model[page]) << page;
    if (rng.one_in(2)) word(page).store(model[page] = rng.one_in(9) ? 0 : rng.next());
    // What the kernel may do whenever it likes.
    if (rng.one_in(50)) ::sync_file_range(file_, 0, 0, SYNC_FILE_RANGE_WRITE);
    if (rng.one_in(20))
      ::posix_fadvise(file_, static_cast<off_t>(rng.below(kPages) * kPageBytes), 16 * kPageBytes,
                      POSIX_FADV_DONTNEED);
    if (step % 100 == 0) {
      ASSERT_LE(cached_pages(file_), kFrames + 1);
    }
  }
  for (uint64_t i = 0; i < kPages; i++) ASSERT_EQ(word(i).load(), model[i]) << i;
}

// Words are counted up by all threads of all processes.
TEST_F(Program, DISABLED_CountsUp) {
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < kThreads; t++) {
    threads.emplace_back([this, t] {
      Rng rng(told(kSeedVariable) + t);
      uint64_t page = rng.below(kPages);
      for (uint64_t i = 0; i < told(kStepsVariable); i++) {
        page = rng.one_in(4) ? rng.below(kPages) : (page + 1) % kPages;
        word(page).fetch_add(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(Program, DISABLED_FindsTheSum) {
  uint64_t sum = 0;
  for (uint64_t i = 0; i < kPages; i++) sum += word(i).load();
  EXPECT_EQ(sum, told(kStepsVariable));
}

TEST_F(Program, DISABLED_Touches) {
  for (;;)
    for (uint64_t i = 0; i < kPages; i++) word(i).fetch_add(1);
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
    pager_.reset();
    server_.reset();
  }

  // False: not allowed here.
  bool start(const char* policy = "fifo", uint32_t prefetch = 0) {
    pager_.reset();
    const bool mapped = std::string(GetParam()) == "unix";
    auto client = MemoryClient::open(secret_of('s'), {.address = mapped ? unix_ : tcp_,
                                                      .name = "test",
                                                      .pages = kPages,
                                                      .timeout_us = timeout_us_});
    EXPECT_TRUE(client.ok());
    SharedPagerOptions options{.policy = {.frames = kFrames, .prefetch = prefetch},
                               .counters = &counters_,
                               .on_lost = [this](const Status& why) {
                                 std::fprintf(stderr, "lost: %s\n",
                                              std::string(why.message()).c_str());
                                 lost_.fetch_add(1);
                               }};
    EXPECT_TRUE(parse_policy(policy, &options.policy).ok());
    auto pager = SharedPager::start(*std::move(client), options);
    if (!pager.ok()) {
      EXPECT_TRUE(pager.status().code() == absl::StatusCode::kInvalidArgument) << pager.status();
      return false;
    }
    pager_ = *std::move(pager);
    return true;
  }
  // A process of the program, that is one of its tests.
  [[nodiscard]] pid_t run(const std::string& test, uint64_t seed = 0, uint64_t steps = 0) const {
    const int file = ::fcntl(pager_->file(), F_DUPFD, 0);  // not closed by exec
    const std::string filter = "--gtest_filter=Program.DISABLED_" + test;
    const std::vector<std::string> variables{
        std::string(kFileVariable) + "=" + std::to_string(file),
        std::string(kSeedVariable) + "=" + std::to_string(seed),
        std::string(kStepsVariable) + "=" + std::to_string(steps)};
    std::vector<char*> environment;
    for (char** variable = environ; *variable != nullptr; variable++)
      environment.push_back(*variable);
    for (const std::string& text : variables)
      environment.push_back(const_cast<char*>(text.c_str()));
    environment.push_back(nullptr);
    std::array<const char*, 5> arguments{
        "program", filter.c_str(), "--gtest_also_run_disabled_tests", "--gtest_brief=1", nullptr};
    pid_t child = -1;
    EXPECT_EQ(::posix_spawn(&child, "/proc/self/exe", nullptr, nullptr,
                            const_cast<char**>(arguments.data()), environment.data()),
              0);
    ::close(file);
    return child;
  }
  static int result_of(pid_t child) {
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    return status;
  }
  static bool is_signal(int status) { return WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS; }

  Folder folder_;
  IoNode node_;
  std::unique_ptr<transport::RpcServer> server_;
  std::unique_ptr<MemoryService> service_;
  std::string tcp_, unix_;
  PagerCounters counters_;
  std::atomic<int> lost_{0};
  uint64_t timeout_us_ = 60'000'000;
  std::unique_ptr<SharedPager> pager_;
};

#define START_OR_SKIP(...) \
  if (!start(__VA_ARGS__)) GTEST_SKIP() << "a FUSE file system is not allowed here"

TEST_P(SharedPagerTest, EveryPolicyGivesBackWhatWasWrittenWithinTheCap) {
  const uint64_t steps = testing::fewer_if_sanitized(6000, 3000);
  const std::vector<std::pair<const char*, uint32_t>> policies{
      {"fifo", 0}, {"second-chance", 7}, {"assoc:1", 0}, {"assoc:16", 1}, {"fifo", 31}};
  const uint64_t first_seed = seed();
  for (const auto& [policy, prefetch] : policies) {
    SCOPED_TRACE(policy);
    START_OR_SKIP(policy, prefetch);
    EXPECT_EQ(result_of(run("ReadsAndWrites", first_seed, steps)), 0);
    EXPECT_LE(counters_.local_max.load(), kFrames);
    EXPECT_GT(counters_.fetched.load(), 0u);
    EXPECT_EQ(lost_.load(), 0);
  }
}

// The kernel forgets pages meanwhile, all of them at once, too.
TEST_P(SharedPagerTest, ThreadsAndProcessesCountTogether) {
  const uint64_t touches = testing::fewer_if_sanitized(4000, 1500);
  const uint64_t first_seed = seed();
  const std::vector<std::pair<const char*, uint32_t>> policies{
      {"fifo", 0}, {"second-chance", 3}, {"assoc:1", 0}};
  for (const auto& [policy, prefetch] : policies) {
    SCOPED_TRACE(policy);
    START_OR_SKIP(policy, prefetch);
    std::vector<pid_t> children;
    for (uint64_t i = 0; i < kChildren; i++)
      children.push_back(run("CountsUp", first_seed + 100 * i, touches));
    std::atomic<bool> done{false};
    std::thread forgetting([this, &done] {
      while (!done.load()) {
        ::sync_file_range(pager_->file(), 0, 0, SYNC_FILE_RANGE_WRITE);
        ::posix_fadvise(pager_->file(), 0, 0, POSIX_FADV_DONTNEED);
        // Empty pages of threads that wait come on top.
        EXPECT_LE(cached_pages(pager_->file()), kFrames + kThreads * kChildren);
        std::this_thread::yield();
      }
    });
    for (const pid_t child : children) EXPECT_EQ(result_of(child), 0);
    done.store(true);
    forgetting.join();
    EXPECT_EQ(result_of(run("FindsTheSum", 0, touches * kThreads * kChildren)), 0);
    EXPECT_LE(counters_.local_max.load(), kFrames);
  }
}

TEST_P(SharedPagerTest, NothingIsSeenOfItOnTheHost) {
  const std::string before = mounts();
  START_OR_SKIP();
  EXPECT_EQ(result_of(run("CountsUp", 1, 10)), 0);
  EXPECT_EQ(mounts(), before);
  pager_.reset();
  EXPECT_EQ(mounts(), before);
}

TEST_P(SharedPagerTest, ANodeThatGoesEndsAllWaiting) {
  timeout_us_ = 1'000'000;
  START_OR_SKIP();
  const pid_t child = run("Touches");
  ASSERT_TRUE(testing::wait_until([this] { return counters_.fetched.load() > kPages; }));
  server_.reset();
  EXPECT_TRUE(is_signal(result_of(child)));
  EXPECT_TRUE(testing::wait_until([this] { return lost_.load() == 1; }));
}

// Whoever still has it mapped when the pager goes.
TEST_P(SharedPagerTest, WithoutThePagerATouchIsASignal) {
  START_OR_SKIP();
  const pid_t child = run("Touches");
  ASSERT_TRUE(testing::wait_until([this] { return counters_.fetched.load() > 0; }));
  pager_.reset();
  EXPECT_TRUE(is_signal(result_of(child)));
}

INSTANTIATE_TEST_SUITE_P(Nodes, SharedPagerTest, ::testing::Values("unix", "tcp"));

}  // namespace
}  // namespace strata::farmem
