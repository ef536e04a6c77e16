// The small parts of a daemon: its log, signals, descriptors, workers, addresses and metrics.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <cstdio>
#include <regex>
#include <sstream>
#include <thread>
#include <vector>

#include "base/diag.h"
#include "daemon/addresses.h"
#include "daemon/descriptors.h"
#include "daemon/exit_codes.h"
#include "daemon/log.h"
#include "daemon/metrics_text.h"
#include "daemon/signals.h"
#include "daemon/testing/child.h"
#include "daemon/worker_pool.h"

namespace strata::daemon {
namespace {

using testing::Child;

// The line without its time, which has to be one.
std::string without_time(const std::string& line) {
  static const std::regex time(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z )");
  std::smatch found;
  EXPECT_TRUE(std::regex_search(line, found, time, std::regex_constants::match_continuous)) << line;
  return found.empty() ? line : found.suffix().str();
}

// --- log ---

TEST(Log, AnEventIsOneLineWhateverItsValuesHold) {  // DM1
  Child child([] {
    log_event(Level::kError, "before");  // there is no log yet
    start_log(Level::kInfo);
    log_event(Level::kDebug, "unheard");
    log_event(Level::kInfo, "plain", {{"address", "127.0.0.1:71"}, {"empty", ""}});
    log_event(Level::kWarning, "odd", {{"value", "two words\n\"and\\\" \x7f more"}});
    log_event(Level::kError, "bare");
    diag(Severity::kWarning, "of the %s\nkernel", "kernel");
    start_log(Level::kError);
    log_event(Level::kInfo, "unheard");
    return 0;
  });
  EXPECT_EQ(without_time(child.error_line()), "info plain address=127.0.0.1:71 empty=\"\"");
  EXPECT_EQ(without_time(child.error_line()),
            R"(warning odd value="two words\x0a\"and\\\" \x7f more")");
  EXPECT_EQ(without_time(child.error_line()), "error bare");
  EXPECT_EQ(without_time(child.error_line()), R"(warning diag message="of the kernel\x0akernel")");
  EXPECT_EQ(child.error_rest(), "");
  EXPECT_EQ(child.ended(), 0);
}

TEST(Log, LinesOfThreadsAreNotMixed) {  // DM1
  constexpr int kThreads = 4;
  constexpr int kLines = 100;
  Child child([] {
    start_log(Level::kInfo);
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i)
      threads.emplace_back([i] {
        const std::string value(900, static_cast<char>('a' + i));
        for (int n = 0; n < kLines; ++n) log_event(Level::kInfo, "x", {{"value", value}});
      });
    for (std::thread& thread : threads) thread.join();
    return 0;
  });
  int counts[kThreads] = {};
  for (int n = 0; n < kThreads * kLines; ++n) {
    const std::string line = without_time(child.error_line());
    ASSERT_EQ(line.size(), std::string("info x value=").size() + 900) << line;
    const char first = line.back();
    ASSERT_EQ(line, "info x value=" + std::string(900, first));
    ++counts[first - 'a'];
  }
  for (const int count : counts) EXPECT_EQ(count, kLines);
  EXPECT_EQ(child.error_rest(), "");
  EXPECT_EQ(child.ended(), 0);
}

// Closed, full, and a pipe that nobody reads any more: the daemon goes on.
TEST(Log, ALogThatCannotBeWrittenLosesLinesOnly) {  // DM2
  const auto logs_and_ends = [](int stderr_fd) {
    if (stderr_fd < 0)
      ::close(STDERR_FILENO);
    else
      ::dup2(stderr_fd, STDERR_FILENO);
    start_log(Level::kInfo);
    for (int n = 0; n < 3; ++n) log_event(Level::kError, "lost", {{"n", std::to_string(n)}});
    diag(Severity::kError, "lost, too");
    return ::puts("done") >= 0 && ::fflush(stdout) == 0 ? 0 : 1;
  };
  Child closed([&] { return logs_and_ends(-1); });
  EXPECT_EQ(closed.rest(), "done\n");
  EXPECT_EQ(closed.ended(), 0);
  Child full([&] { return logs_and_ends(::open("/dev/full", O_WRONLY)); });
  EXPECT_EQ(full.rest(), "done\n");
  EXPECT_EQ(full.ended(), 0);
  Child unread([&] {
    int ends[2];
    if (::pipe(ends) != 0) return 1;
    ::close(ends[0]);
    StopFlag stop;
    const Signals signals(&stop);  // DM3: without it the first line would end the process
    return logs_and_ends(ends[1]);
  });
  EXPECT_EQ(unread.rest(), "done\n");
  EXPECT_EQ(unread.ended(), 0);
}

// --- signals ---

int say(const char* what) { return ::puts(what) >= 0 && ::fflush(stdout) == 0 ? 0 : 1; }

int wait_for_signals(bool stops) {
  StopFlag stop;
  const Signals signals(&stop);
  // A thread that is started later does not get the signals, either.
  std::thread other([&stop] { stop.wait(); });
  say("on");
  stop.wait();
  other.join();
  say("stopping");
  for (; !stops;) ::pause();
  return 0;
}

TEST(SignalsTest, TheFirstAsksForAnOrderlyEnd) {  // DM3
  for (const int number : {SIGTERM, SIGINT}) {
    Child child([] { return wait_for_signals(true); });
    EXPECT_EQ(child.line(), "on");
    child.signal(number);
    EXPECT_EQ(child.line(), "stopping");
    EXPECT_EQ(child.ended(), 0);
  }
}

TEST(SignalsTest, TheSecondEndsTheProcessAtOnce) {  // DM3
  Child child([] { return wait_for_signals(false); });
  EXPECT_EQ(child.line(), "on");
  child.signal(SIGTERM);
  EXPECT_EQ(child.line(), "stopping");
  child.signal(SIGINT);
  EXPECT_EQ(child.ended(), kSecondSignal);
}

TEST(SignalsTest, WithoutASignalItEndsByItself) {
  Child child([] {
    StopFlag stop;
    { const Signals signals(&stop); }
    return stop.raised() ? 1 : 0;
  });
  EXPECT_EQ(child.ended(), 0);
}

// --- descriptors ---

TEST(Descriptors, EverybodyHasAShareOfALowLimit) {  // DM4
  const auto shares = share_descriptors(1024);
  ASSERT_TRUE(shares.ok()) << shares.status();
  EXPECT_EQ(shares->http, 64u);
  EXPECT_EQ(shares->rpc, 256u);
  EXPECT_EQ(shares->pages, 256u);
  for (const uint64_t limit : {256u, 1024u, 4096u, 65536u, 1u << 30}) {
    const auto some = share_descriptors(limit);
    ASSERT_TRUE(some.ok()) << some.status();
    EXPECT_GE(some->http, 16u);
    EXPECT_GE(limit - some->http - some->rpc - some->pages, limit / 3) << "left for its work";
  }
  const Status low = share_descriptors(255).status();
  EXPECT_TRUE(is_invalid_argument(low)) << low;
  EXPECT_NE(low.message().find("ulimit -n"), absl::string_view::npos) << low;
}

TEST(Descriptors, TheSoftLimitIsRaised) {
  Child child([] {
    const rlimit wanted{300, 2000};
    if (::setrlimit(RLIMIT_NOFILE, &wanted) != 0) return 1;
    const auto shares = reserve_descriptors();
    rlimit now{};
    ::getrlimit(RLIMIT_NOFILE, &now);
    return shares.ok() && shares->rpc == 500 && now.rlim_cur == 2000 ? 0 : 2;
  });
  EXPECT_EQ(child.ended(), 0);
}

// --- workers ---

TEST(Workers, NoMoreWaitThanMay) {  // DM5
  StopFlag go;
  StopFlag begun;
  std::atomic<int> done{0};
  WorkerPool pool(1, 2);
  ASSERT_TRUE(pool.run([&] {
    begun.raise();
    go.wait();
    ++done;
  }));
  begun.wait();
  EXPECT_TRUE(pool.run([&] { ++done; }));
  EXPECT_TRUE(pool.run([&] { ++done; }));
  EXPECT_EQ(pool.waiting(), 2u);
  EXPECT_FALSE(pool.run([&] { done += 100; }));
  go.raise();
  pool.stop();
  EXPECT_EQ(done, 3) << "what waited was done before the end";
  EXPECT_FALSE(pool.run([&] { done += 100; }));
}

// --- addresses ---

TEST(Addresses, AreOfPrivateNetworksInNumbers) {
  for (const char* good : {"127.0.0.1:7101", "10.1.2.3:0", "172.16.0.1:1", "192.168.0.1:65535",
                           "[::1]:80", "tcp:127.0.0.1:1", "unix:/a/b"})
    EXPECT_EQ(check_listen(good), "") << good;
  for (const char* bad : {"", ":", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:x",
                          "localhost:1", "8.8.8.8:1", "172.32.0.1:1", "[::2]:1", "::1:1",
                          "127.0.0.1:1 ", "unix:b", "[::1:80", "tcp:"})
    EXPECT_NE(check_listen(bad), "") << bad;
  EXPECT_EQ(check_advertise("127.0.0.1:1"), "");
  EXPECT_NE(check_advertise("127.0.0.1:0"), "");
  EXPECT_EQ(check_http("127.0.0.1:0"), "");
  EXPECT_NE(check_http("unix:/a"), "");
  EXPECT_NE(check_http("1.1.1.1:1"), "");
  const auto six = parse_host_port("[::1]:80");
  ASSERT_TRUE(six.has_value());
  EXPECT_EQ(six->host, "::1");
  EXPECT_EQ(six->port, 80);
  EXPECT_EQ(shown_address("tcp:127.0.0.1:1"), "127.0.0.1:1");
  EXPECT_EQ(shown_address("unix:/a"), "unix:/a");
}

// --- metrics ---

TEST(Metrics, NamesOnceThenSamples) {
  MetricsText out;
  out.family("node_info", "Who.", false);
  out.sample(1, {{"name", "a\"b\\c\nd"}, {"x", "y"}});
  out.family("calls_total", "Calls.", true);
  out.sample(18446744073709551615u);
  EXPECT_EQ(out.take(),
            "# HELP strata_node_info Who.\n# TYPE strata_node_info gauge\n"
            "strata_node_info{name=\"a\\\"b\\\\c\\nd\",x=\"y\"} 1\n"
            "# HELP strata_calls_total Calls.\n# TYPE strata_calls_total counter\n"
            "strata_calls_total 18446744073709551615\n");
}

}  // namespace
}  // namespace strata::daemon
