// Goal: a program's threads find in far memory what they wrote, with never more than the frames
// resident (FM20, FM21), the kernel's own reads and writes included; a forked child has none of it
// (FM24); a node that is lost ends the program with a reason and in time (FM22). Method: this
// process is the program, with a memory node beside it; what is resident is asked of the kernel.
#include "farmem/pager/pager.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "base/rng.h"
#include "base/testing/wait_until.h"
#include "farmem/node/memory_service.h"
#include "farmem/pager/userfault.h"
#include "transport/calls/testing/io_node.h"

namespace strata::farmem {
namespace {

using transport::test::Folder;
using transport::test::IoNode;
using transport::test::secret_of;

constexpr uint64_t kPages = 2048;
constexpr uint32_t kFrames = 256;
constexpr int kLostExit = 74;

class PagerTest : public ::testing::TestWithParam<const char*> {
 protected:
  PagerTest() {
    server_ = std::make_unique<transport::RpcServer>(node_.world(), secret_of('s'),
                                                     transport::ServerOptions{});
    service_ = std::make_unique<MemoryService>(node_.world(), server_.get(), ServiceOptions{});
    tcp_ = *server_->listen("tcp:127.0.0.1:0");
    unix_ = *server_->listen("unix:" + (folder_ / "socket"));
  }
  ~PagerTest() override {
    pager_.reset();
    server_.reset();
  }

  void start(const char* policy = "fifo", uint32_t prefetch = 0) {
    const bool mapped = std::string(GetParam()) == "unix";
    auto client = MemoryClient::open(
        secret_of('s'), {.address = mapped ? unix_ : tcp_, .name = "test", .pages = kPages});
    ASSERT_TRUE(client.ok());
    PagerOptions options{.policy = {.frames = kFrames, .prefetch = prefetch},
                         .renew_us = 50'000,
                         .counters = &counters_,
                         .on_lost =
                             [](const Status& why) {
                               (void)!::write(2, why.message().data(), why.message().size());
                               ::_exit(kLostExit);
                             },
                         .on_thread = nullptr,
                         .on_discarded = [this](uint64_t, uint64_t) { discarded_++; }};
    ASSERT_TRUE(parse_policy(policy, &options.policy).ok());
    auto pager = Pager::start(*std::move(client), options);
    ASSERT_TRUE(pager.ok()) << pager.status();
    pager_ = *std::move(pager);
  }
  uint64_t* word(uint64_t page) const {
    return reinterpret_cast<uint64_t*>(pager_->base() + page * kPageBytes) + page % 512;
  }
  // Pages of the program's that have memory, as the kernel sees it.
  uint64_t resident() const {
    const int fd = ::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    std::vector<uint64_t> entries(kPages);
    const auto at = reinterpret_cast<uint64_t>(pager_->base()) / kPageBytes * sizeof(uint64_t);
    EXPECT_EQ(::pread(fd, entries.data(), kPages * sizeof(uint64_t), static_cast<off_t>(at)),
              static_cast<ssize_t>(kPages * sizeof(uint64_t)));
    ::close(fd);
    return static_cast<uint64_t>(std::count_if(entries.begin(), entries.end(),
                                               [](uint64_t entry) { return entry >> 63 != 0; }));
  }

  Folder folder_;
  IoNode node_;
  std::unique_ptr<transport::RpcServer> server_;
  std::unique_ptr<MemoryService> service_;
  std::string tcp_, unix_;
  PagerCounters counters_;
  std::atomic<uint64_t> discarded_{0};
  std::unique_ptr<Pager> pager_;
};

TEST_P(PagerTest, EveryPolicyGivesBackWhatWasWrittenWithinTheCap) {
  constexpr int kSteps = 6000;
  const std::vector<std::pair<const char*, uint32_t>> policies{
      {"fifo", 0}, {"second-chance", 7}, {"assoc:1", 0}, {"assoc:16", 1}};
  for (const auto& [policy, prefetch] : policies) {
    start(policy, prefetch);
    Rng rng(1);
    std::vector<uint64_t> model(kPages);
    for (int step = 0; step < kSteps; step++) {
      const uint64_t page = step < int{kPages} ? step : rng.below(kPages);
      ASSERT_EQ(*word(page), model[page]) << policy;
      if (rng.one_in(2)) *word(page) = model[page] = rng.next();
      if (step % 1000 == 999) {
        ASSERT_LE(resident(), kFrames) << policy;
      }
    }
    EXPECT_LE(counters_.local_max, kFrames);
    pager_.reset();
  }
  EXPECT_GT(counters_.prefetched, 0u);
  EXPECT_GT(counters_.evicted_clean, 0u);
  EXPECT_EQ(counters_.faults, counters_.soft_hits + counters_.zero_filled + counters_.fetched);
}

TEST_P(PagerTest, ThreadsShareIt) {
  start("second-chance", 3);
  constexpr int kThreads = 4;
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < kThreads; t++) {
    threads.emplace_back([&, t] {
      Rng rng(static_cast<uint64_t>(t) + 1);
      std::vector<uint64_t> model(kPages);
      for (int step = 0; step < 8000; step++) {
        const uint64_t page = rng.below(kPages);
        uint64_t* const mine = word(page) - page % 512 + t;  // a word of each page for each thread
        if (*mine != model[page]) wrong++;
        *mine = model[page] = rng.next();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_LE(counters_.local_max, kFrames);
}

TEST_P(PagerTest, DiscardedPagesReadAsZerosTheOthersDoNot) {
  start();
  for (uint64_t page = 0; page < kPages; page++) *word(page) = page + 1;
  pager_->discard(100, 1500);
  pager_->discard_later(1900, 10);
  ASSERT_TRUE(testing::wait_until([this] { return discarded_ == 1; }));
  for (uint64_t page = 0; page < kPages; page++) {
    const bool gone = (page >= 100 && page < 1600) || (page >= 1900 && page < 1910);
    ASSERT_EQ(*word(page), gone ? 0 : page + 1) << page;
  }
}

TEST_P(PagerTest, TheKernelReadsAndWritesItToo) {
  start();
  for (uint64_t page = 0; page < kPages; page++) *word(page) = page + 1;
  const int file = ::open((folder_ / "file").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  const auto bytes = static_cast<ssize_t>(1024 * kPageBytes);
  ASSERT_EQ(::write(file, pager_->base(), bytes), bytes);
  ASSERT_EQ(::pread(file, pager_->base() + bytes, bytes, 0), bytes);
  for (uint64_t page = 0; page < 1024; page++)
    ASSERT_EQ(*(word(page) + 1024 * kPageBytes / sizeof(uint64_t)), page + 1);
  ::close(file);
}

// Direct input and output: the device has the pages while other threads want room. With more of
// them in one piece than FIFO would look at.
TEST_P(PagerTest, PagesThatADeviceUsesStayAndOthersGo) {
  for (const char* const policy : {"fifo", "second-chance"}) {
    start(policy);
    constexpr uint64_t kAtOnce = 160;
    const std::string name =
        std::filesystem::current_path() / ("pager_test." + std::string(GetParam()));
    const int file = ::open(name.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_DIRECT | O_CLOEXEC, 0600);
    ASSERT_GE(file, 0);
    ::unlink(name.c_str());
    std::atomic<bool> done{false};
    std::thread other([&] {
      Rng rng(1);
      while (!done) *word(1024 + rng.below(1024)) += 1;
    });
    for (uint64_t round = 0; round < 10; round++) {
      for (uint64_t page = 0; page < kAtOnce; page++) *word(page) = page + round;
      const auto bytes = static_cast<ssize_t>(kAtOnce * kPageBytes);
      ASSERT_EQ(::pwrite(file, pager_->base(), bytes, 0), bytes);
      ASSERT_EQ(::pread(file, pager_->base() + 512 * kPageBytes, bytes, 0), bytes);
      for (uint64_t page = 0; page < kAtOnce; page++)
        ASSERT_EQ(*(word(page) + 512 * kPageBytes / sizeof(uint64_t)), page + round);
    }
    done = true;
    other.join();
    ::close(file);
    EXPECT_LE(counters_.local_max, kFrames);
    pager_.reset();
  }
}

int status_of_child(const std::function<void()>& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGSEGV, SIG_DFL);
    work();
    ::_exit(0);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status;
}

TEST_P(PagerTest, AForkedChildHasNoneOfIt) {
  start();
  *word(1) = 7;
  EXPECT_EQ(status_of_child([] {}), 0);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  const int status = status_of_child([this] { ::_exit(static_cast<int>(*word(1))); });
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
#endif
  EXPECT_EQ(*word(1), 7u);
}

using PagerDeathTest = PagerTest;

// The node goes while the program waits for pages, and while it does not touch any.
TEST_P(PagerDeathTest, ALostNodeEndsTheProgramWithAReason) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto go = [this](bool touching) {
    start();
    for (uint64_t page = 0; page < kPages; page++) *word(page) = page + 1;
    server_.reset();
    while (touching)
      for (uint64_t page = 0; page < kPages; page++) *word(page) += 1;
    for (;;) ::pause();
  };
  EXPECT_EXIT(go(true), ::testing::ExitedWithCode(kLostExit), ".+");
  EXPECT_EXIT(go(false), ::testing::ExitedWithCode(kLostExit), ".+");
}

// Where the kernel or the rights are not enough, what is promised is that it says so.
Status possible() { return Userfault::open(-1).status(); }
std::vector<const char*> ways() {
  if (possible().ok()) return {"tcp", "unix"};
  return {};
}

TEST(PagerRefusal, SaysWhatIsMissing) {
  if (possible().ok()) return;
  const std::string why(possible().message());
  EXPECT_TRUE(why.find("userfaultfd") != std::string::npos) << why;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PagerTest);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PagerDeathTest);
INSTANTIATE_TEST_SUITE_P(Ways, PagerTest, ::testing::ValuesIn(ways()));
INSTANTIATE_TEST_SUITE_P(Ways, PagerDeathTest, ::testing::ValuesIn(ways()));

}  // namespace
}  // namespace strata::farmem
