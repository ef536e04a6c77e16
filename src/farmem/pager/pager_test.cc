// Goal: a program's threads find in far memory what they wrote, with never more than the frames
// resident (FM20, FM21), the kernel's own reads and writes included; a forked child has none of it
// (FM24); a node that is lost ends the program with a reason and in time (FM22). Method: this
// process is the program, with a memory node beside it; what is resident is asked of the kernel.
#include "farmem/pager/pager.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "base/rng.h"
#include "base/testing/wait_until.h"
#include "farmem/node/memory_service.h"
#include "farmem/pager/userfault.h"
#include "farmem/policy/replay.h"
#include "farmem/trace/trace_reader.h"
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
                         .pinned_us_max = pinned_us_max_,
                         .counters = &counters_,
                         .trace = trace_,
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
  uint64_t pinned_us_max_ = 5'000'000;
  std::shared_ptr<TraceWriter> trace_;
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

// Not by way of the pager: by the system call itself.
TEST_P(PagerTest, PagesGivenBackBehindItsBackReadAsZerosToo) {
  start();
  for (uint64_t page = 0; page < kPages; page++) *word(page) = page + 1;
  const auto give_back = [this](uint64_t page) {
    ASSERT_EQ(::madvise(pager_->base() + page * kPageBytes, kPageBytes, MADV_DONTNEED), 0);
  };
  *word(5) += 1;  // is local now, and far memory has what it was before
  give_back(5);
  EXPECT_EQ(*word(5), 0u);
  *word(7) += 1;
  give_back(7);
  for (uint64_t page = 8; page < kPages; page++) ASSERT_EQ(*word(page), page + 1);
  EXPECT_EQ(*word(7), 0u);  // was to go meanwhile
  EXPECT_EQ(*word(6), 7u);
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

// A file that direct input and output work on, which is gone with its descriptor.
int direct_file(const std::string& name) {
  const std::string path = std::filesystem::current_path() / name;
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_DIRECT | O_CLOEXEC, 0600);
  ::unlink(path.c_str());
  return file;
}

// Linux's own asynchronous input and output (what libaio calls): several requests have pages at
// once while other threads want room, and the requests of one submission do not begin one by one.
TEST_P(PagerTest, RequestsInFlightKeepTheirPages) {
  start();
  constexpr uint64_t kRequests = 16, kPagesEach = 8;
  const int file = direct_file("pager_test.aio." + std::string(GetParam()));
  ASSERT_GE(file, 0);
  aio_context_t context = 0;
  ASSERT_EQ(::syscall(SYS_io_setup, kRequests, &context), 0);
  std::atomic<bool> done{false};
  std::thread other([&] {
    Rng rng(1);
    while (!done) *word(1024 + rng.below(1024)) += 1;
  });
  const auto submit = [&](uint16_t operation, uint64_t first) {
    std::array<iocb, kRequests> requests{};
    std::array<iocb*, kRequests> list{};
    for (uint64_t i = 0; i < kRequests; i++) {
      requests[i].aio_lio_opcode = operation;
      requests[i].aio_fildes = static_cast<uint32_t>(file);
      requests[i].aio_buf =
          reinterpret_cast<uint64_t>(pager_->base()) + (first + i * kPagesEach) * kPageBytes;
      requests[i].aio_nbytes = kPagesEach * kPageBytes;
      requests[i].aio_offset = static_cast<int64_t>(i * kPagesEach * kPageBytes);
      list[i] = &requests[i];
    }
    ASSERT_EQ(::syscall(SYS_io_submit, context, kRequests, list.data()), long{kRequests});
    std::array<io_event, kRequests> ends{};
    ASSERT_EQ(::syscall(SYS_io_getevents, context, kRequests, kRequests, ends.data(), nullptr),
              long{kRequests});
    for (const io_event& end : ends) ASSERT_EQ(end.res, int64_t{kPagesEach * kPageBytes});
  };
  for (uint64_t round = 0; round < 10; round++) {
    for (uint64_t page = 0; page < kRequests * kPagesEach; page++) *word(page) = page + round;
    submit(IOCB_CMD_PWRITE, 0);
    submit(IOCB_CMD_PREAD, 512);
    for (uint64_t page = 0; page < kRequests * kPagesEach; page++)
      ASSERT_EQ(*(word(page) + 512 * kPageBytes / sizeof(uint64_t)), page + round);
  }
  done = true;
  other.join();
  EXPECT_EQ(::syscall(SYS_io_destroy, context), 0);
  ::close(file);
  EXPECT_LE(counters_.local_max, kFrames);
}

// The kernel forgets that pages were used (as it does when it looks for some to reclaim) while they
// are used and moved: a move that sees a page's entry change begins again, within the kernel.
TEST_P(PagerTest, PagesWhoseEntriesChangeMeanwhileMove) {
  start("second-chance");
  constexpr uint64_t kThreads = 3, kUsed = 2 * kFrames;
  std::atomic<bool> done{false};
  std::thread ager([&] {
    while (!done) ::madvise(pager_->base(), kUsed * kPageBytes, MADV_COLD);
  });
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (uint64_t t = 0; t < kThreads; t++) {
    threads.emplace_back([&, t] {
      Rng rng(t + 1);
      std::vector<uint64_t> model(kUsed);
      for (int step = 0; step < 20'000; step++) {
        const uint64_t page = rng.below(kUsed);
        uint64_t* const mine = word(page) - page % 512 + t;
        if (*mine != model[page]) wrong++;
        *mine = model[page] = rng.next();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  done = true;
  ager.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_LE(counters_.local_max, kFrames);
}

// Registered with an io_uring, pages are the kernel's until they are taken back: they never go, and
// what the device writes into them is what the program reads.
int ring_of(unsigned entries) {
  io_uring_params params{};
  return static_cast<int>(::syscall(SYS_io_uring_setup, entries, &params));
}
int register_buffers(int ring, void* base, uint64_t bytes) {
  const iovec buffer{base, bytes};
  return static_cast<int>(
      ::syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &buffer, 1));
}

TEST_P(PagerTest, RegisteredBuffersStayWhereTheyAre) {
  const int ring = ring_of(8);
  if (ring < 0) GTEST_SKIP() << "this kernel has no io_uring for us";
  start();
  constexpr uint64_t kRegistered = 100;
  for (uint64_t page = 0; page < kRegistered; page++) *word(page) = page + 1;
  ASSERT_EQ(register_buffers(ring, pager_->base(), kRegistered * kPageBytes), 0);
  for (int round = 0; round < 3; round++)
    for (uint64_t page = kRegistered; page < kPages; page++) *word(page) += 1;
  EXPECT_GT(counters_.pinned, 0u);
  EXPECT_LE(counters_.local_max, kFrames);
  const uint64_t before = counters_.faults;
  for (uint64_t page = 0; page < kRegistered; page++) ASSERT_EQ(*word(page), page + 1);
  EXPECT_EQ(counters_.faults, before);  // they were all there
  ::close(ring);
  // The kernel takes its time to give them back.
  ASSERT_TRUE(testing::wait_until([&] {
    for (uint64_t page = kRegistered; page < kPages; page++) *word(page) += 1;
    const uint64_t faults = counters_.faults;
    for (uint64_t page = 0; page < kRegistered; page++) EXPECT_EQ(*word(page), page + 1);
    return counters_.faults - faults == kRegistered;
  }));
}

// FM32: what a policy does is what its replay says, number by number.
TEST_P(PagerTest, ARecordedTraceReplaysToTheSameCounts) {
  const std::vector<std::pair<const char*, uint32_t>> policies{
      {"fifo", 0}, {"fifo", 7}, {"second-chance", 0}, {"second-chance", 15}, {"assoc:16", 3}};
  for (const auto& [policy, prefetch] : policies) {
    SCOPED_TRACE(policy);
    const std::string path = folder_ / "trace";
    PolicyOptions options{.frames = kFrames, .prefetch = prefetch};
    ASSERT_TRUE(parse_policy(policy, &options).ok());
    trace_ = *TraceWriter::create(path, {.policy = options, .pages = kPages});
    start(policy, prefetch);
    std::vector<std::thread> threads;
    for (uint64_t t = 0; t < 2; t++) {
      threads.emplace_back([&, t] {
        Rng rng(t + 1);
        uint64_t page = 0;
        for (int step = 0; step < 6000; step++) {
          page = rng.one_in(8) ? rng.below(kPages) : (page + 1) % kPages;  // runs, and jumps
          uint64_t* const mine = word(page) - page % 512 + t;
          if (rng.one_in(3)) *mine = rng.one_in(4) ? 0 : rng.next();
          if (rng.one_in(500)) pager_->discard(page, std::min<uint64_t>(20, kPages - page));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    pager_.reset();
    trace_.reset();
    const auto trace = read_trace(path);
    ASSERT_TRUE(trace.ok()) << trace.status();
    EXPECT_EQ(trace->pinned, 0u);
    EXPECT_EQ(*replay(trace->accesses, trace->policy, trace->pages), trace->recorded);
    EXPECT_GT(trace->recorded.fetched, 500u);
    EXPECT_GT(trace->recorded.evicted_clean, 0u);
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

// More pages in the kernel's hands than are local: nothing can go, and the program is told why.
TEST_P(PagerDeathTest, MorePagesInUseByTheKernelThanFitEndTheProgramWithAReason) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto go = [this] {
    pinned_us_max_ = 200'000;
    start();
    const int ring = ring_of(8);
    if (ring < 0) {
      (void)!::write(2, "needs more local memory", 23);  // nothing can be registered here
      ::_exit(kLostExit);
    }
    register_buffers(ring, pager_->base(), (kFrames + 1) * kPageBytes);
  };
  EXPECT_EXIT(go(), ::testing::ExitedWithCode(kLostExit), "needs more local memory");
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
