// Goal: servers, channels and blocking channels keep their promises over real sockets and threads,
// TCP and unix (CA1, RS1-RS4, RS6, CH1-CH3, BC1-BC3, BC5, SN1, SN2). Method: an IO thread for the
// server, one for channels, many callers.
#include "transport/sockets/socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <atomic>
#include <future>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/diag.h"
#include "base/latch.h"
#include "base/rng.h"
#include "base/wait_interrupt.h"
#include "transport/calls/blocking_channel.h"
#include "transport/calls/channel.h"
#include "transport/calls/rpc_server.h"
#include "transport/calls/testing/io_node.h"

namespace strata::transport {
namespace {

using test::Folder;
using test::IoNode;
using test::secret_of;

constexpr uint16_t kEcho = 1, kLater = 2, kKeep = 3, kFile = 4, kLine = 5;
constexpr uint64_t kSecond = 1'000'000;

uint64_t in_seconds(uint64_t seconds) { return monotonic_us() + seconds * kSecond; }

// Echoes, inline or from a thread of its own.
class Server {
 public:
  explicit Server(const std::string& address) : worker_([this] { work(); }) {
    server_ = std::make_unique<RpcServer>(node_.world(), secret_of('s'), ServerOptions());
    server_->handle(kEcho, [](const Request& request, Responder responder) {
      responder.reply(std::string(request.payload), request.epoch + 1);
    });
    server_->handle(kLater, [this](const Request& request, Responder responder) {
      const MutexLock lock(mutex_);
      later_.emplace_back(std::move(responder), std::string(request.payload));
      changed_.notify_all();
    });
    server_->handle(kKeep, [this](const Request&, Responder responder) {
      const MutexLock lock(mutex_);
      kept_.push_back(std::move(responder));
      changed_.notify_all();
    });
    server_->handle(kFile, [](const Request&, Responder responder) {
      FileDescriptor file(::open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC));
      if (!responder.carries_descriptors()) return responder.fail(error_invalid_argument("no"));
      responder.reply_with(std::move(file), "here");
    });
    server_->handle(kLine, [this](const Request&, Responder responder) {
      responder.when_peer_ends([this] { ++lines_ended_; });
      const std::string other_end = responder.other_end();
      responder.reply(std::string(other_end));
    });
    const auto listening = server_->listen(address);
    EXPECT_TRUE(listening.ok()) << listening.status();
    address_ = listening.value_or("");
  }
  ~Server() {
    {
      const MutexLock lock(mutex_);
      stop_ = true;
      changed_.notify_all();
    }
    worker_.join();
  }
  void wait_for_kept(size_t count) {
    MutexLock lock(mutex_);
    changed_.wait(lock, [&] { return kept_.size() >= count; });
  }
  void answer_kept() {
    std::vector<Responder> kept;
    const MutexLock lock(mutex_);
    kept.swap(kept_);
  }
  [[nodiscard]] uint32_t lines_ended() const { return lines_ended_.load(); }
  [[nodiscard]] uint64_t connections() {
    size_t now = 0;
    run_and_wait(node_.world().executor, [&] { now = server_->connections(); });
    return now;
  }
  [[nodiscard]] const std::string& address() const { return address_; }
  [[nodiscard]] Counters& counters() { return server_->counters(); }

 private:
  void work() {
    MutexLock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stop_ || !later_.empty(); });
      if (stop_) return;
      auto [responder, payload] = std::move(later_.back());
      later_.pop_back();
      lock.unlock();
      responder.reply(std::move(payload));
      lock.lock();
    }
  }
  IoNode node_;
  Mutex mutex_{LatchRank::kLeaf};
  CondVar changed_;
  bool stop_ = false;
  std::vector<std::pair<Responder, std::string>> later_;
  std::vector<Responder> kept_;
  std::atomic<uint32_t> lines_ended_{0};
  std::unique_ptr<RpcServer> server_;
  std::string address_;
  std::thread worker_;
};

class Sockets : public testing::TestWithParam<const char*> {
 protected:
  Sockets() {
    set_diag_sink([](Severity, std::string_view) {});
  }
  std::string listen_address(const std::string& name = "socket") {
    return std::string(GetParam()) == "tcp" ? "tcp:127.0.0.1:0" : "unix:" + (folder_ / name);
  }
  static std::unique_ptr<BlockingChannel> blocking(const std::string& address, char secret = 's') {
    return std::make_unique<BlockingChannel>(secret_of(secret), address, BlockingChannelOptions());
  }
  Folder folder_;
};
INSTANTIATE_TEST_SUITE_P(Both, Sockets, testing::Values("unix", "tcp"));

// --- what the end of a connection tells (RS6, BC5) ---

// Passes bytes on, both ways; ends both sides in order with one of them, or when it is told to.
class Relay {
 public:
  Relay(const std::string& address, const std::string& to)
      : to_(*parse_address(to)), listener_(*open_socket(*parse_address(address))) {
    const SocketAddress own = *parse_address(address);
    EXPECT_EQ(::bind(listener_.get(), own.get(), own.bytes), 0);
    EXPECT_EQ(::listen(listener_.get(), 1), 0);
    thread_ = std::thread([this] { run(); });
  }
  ~Relay() { stop(); }
  void stop() {
    if (!thread_.joinable()) return;
    stop_ = true;
    thread_.join();
  }
  std::string address() {
    SocketAddress own;
    own.bytes = sizeof own.storage;
    ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&own.storage), &own.bytes);
    return to_text(own);
  }

 private:
  void run() {
    FileDescriptor in, out;
    while (!stop_) {
      pollfd all[3] = {{listener_.get(), POLLIN, 0}, {in.get(), POLLIN, 0}, {out.get(), POLLIN, 0}};
      ::poll(all, 3, 10);
      if (all[0].revents != 0) {
        in.reset(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        out = *open_socket(to_);
        ::connect(out.get(), to_.get(), to_.bytes);
      }
      if (all[1].revents != 0) pass(in.get(), out.get());
      if (all[2].revents != 0) pass(out.get(), in.get());
    }
  }
  static void pass(int from, int to) {
    char bytes[4096];
    const ssize_t got = ::recv(from, bytes, sizeof bytes, MSG_DONTWAIT);
    if (got <= 0) return;
    EXPECT_EQ(::send(to, bytes, static_cast<size_t>(got), MSG_NOSIGNAL), got);
  }
  const SocketAddress to_;
  FileDescriptor listener_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

std::string said_on(BlockingChannel* channel, KeptConnection* line, uint16_t method) {
  BlockingReply reply;
  const Status status = channel->call_on(
      line, {.method = method, .epoch = 1, .deadline_us = in_seconds(60)}, "x", &reply);
  EXPECT_TRUE(status.ok()) << status;
  return reply.payload;
}

TEST_P(Sockets, AKeptConnectionEndsWithItsOwnerAndThatIsTold) {
  Server server(listen_address());
  const auto channel = blocking(server.address());
  auto line = channel->keep_connection(in_seconds(60));
  auto other = channel->keep_connection(in_seconds(60));
  ASSERT_TRUE(line.ok() && other.ok());
  EXPECT_EQ(said_on(channel.get(), line->get(), kEcho), "x");
  EXPECT_EQ(said_on(channel.get(), line->get(), kLine), (*line)->own_end());
  EXPECT_NE((*line)->own_end(), "");
  channel->forget_connections();
  {
    WaitInterrupt interrupt;
    interrupt.interrupt();
    const InterruptScope scope(&interrupt);
    EXPECT_EQ(said_on(channel.get(), line->get(), kEcho), "x") << "an interrupt ends none of it";
  }
  EXPECT_TRUE((*line)->stands());
  EXPECT_EQ(server.lines_ended(), 0u);
  other->reset();  // one that nobody asked about
  line->reset();
  while (server.lines_ended() == 0) std::this_thread::yield();
  while (server.connections() != 0) std::this_thread::yield();
  EXPECT_EQ(server.lines_ended(), 1u);
}

TEST_P(Sockets, AKeptConnectionThatItsServerEndsTellsNothing) {
  auto server = std::make_unique<Server>(listen_address());
  const auto channel = blocking(server->address());
  auto line = channel->keep_connection(in_seconds(60));
  ASSERT_TRUE(line.ok());
  EXPECT_EQ(said_on(channel.get(), line->get(), kLine), (*line)->own_end());
  server.reset();  // no task runs any more
  while ((*line)->stands()) std::this_thread::yield();
}

TEST_P(Sockets, TheEndOfAKeptConnectionIsWaitedFor) {  // BC6
  auto server = std::make_unique<Server>(listen_address());
  const std::string address = server->address();
  const auto channel = blocking(address);
  EXPECT_FALSE(channel->is_refused(in_seconds(60)));
  auto line = channel->keep_connection(in_seconds(60));
  auto other = channel->keep_connection(in_seconds(60));
  ASSERT_TRUE(line.ok() && other.ok());
  std::atomic<int> over{0};
  std::thread waiter([&] {
    (*line)->wait_over();
    ++over;
  });
  std::thread other_waiter([&] {
    (*other)->wait_over();
    ++over;
  });
  EXPECT_EQ(over, 0);
  (*other)->cut();
  other_waiter.join();
  EXPECT_EQ(over, 1);
  EXPECT_TRUE((*line)->stands());
  server.reset();
  waiter.join();
  EXPECT_FALSE((*line)->stands());
  EXPECT_TRUE(channel->is_refused(in_seconds(60)));
}

TEST(SocketEnds, WhoPassesBytesOnIsSeenByTheNamesOfTheEnds) {
  set_diag_sink([](Severity, std::string_view) {});
  Server server("tcp:127.0.0.1:0");
  Relay relay("tcp:127.0.0.1:0", server.address());
  BlockingChannel channel(secret_of('s'), relay.address(), {});
  auto line = channel.keep_connection(in_seconds(60));
  ASSERT_TRUE(line.ok()) << line.status();
  const std::string other_end = said_on(&channel, line->get(), kLine);
  EXPECT_NE(other_end, "");
  EXPECT_NE(other_end, (*line)->own_end());
  relay.stop();
}

TEST(SocketEnds, ABreakTellsNothing) {  // RS6
  set_diag_sink([](Severity, std::string_view) {});
  Server server("tcp:127.0.0.1:0");
  BlockingChannel channel(secret_of('s'), server.address(), {});
  auto line = channel.keep_connection(in_seconds(60));
  ASSERT_TRUE(line.ok());
  EXPECT_EQ(said_on(&channel, line->get(), kLine), (*line)->own_end());
  // As a network or a peer's kernel breaks it: reset.
  for (int fd = 3; fd < 200; ++fd) {
    if (own_end_of(fd) != (*line)->own_end()) continue;
    const linger at_once{1, 0};
    ASSERT_EQ(::setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
  }
  line->reset();
  while (server.connections() != 0) std::this_thread::yield();
  EXPECT_EQ(server.lines_ended(), 0u);
}

TEST_P(Sockets, BlockingCallsOfManyThreads) {
  Server server(listen_address());
  const auto channel = blocking(server.address());
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; t++) {
    threads.emplace_back([&, t] {
      Rng rng(static_cast<uint64_t>(t) + 1);
      BlockingReply reply;
      for (int i = 0; i < 300; i++) {
        const std::string request(rng.below(rng.one_in(10) ? 300'000 : 500), static_cast<char>(t));
        reply.payload.resize(rng.below(1000));  // a guess, good or bad
        const uint16_t method = rng.one_in(3) ? kLater : kEcho;
        const CallOptions options{.method = method, .epoch = 9, .deadline_us = in_seconds(60)};
        const Status status = channel->call(options, request, &reply);
        ASSERT_TRUE(status.ok()) << status;
        ASSERT_EQ(reply.payload, request);
        ASSERT_TRUE(reply.answered);
        if (method == kEcho) {
          ASSERT_EQ(reply.epoch, 10u);
        }
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(channel->counters().of(kEcho).operations + channel->counters().of(kLater).operations,
            1800u);
  EXPECT_LE(channel->counters().connections_opened, 6u) << "sockets are used again";
  EXPECT_EQ(server.counters().of(kEcho).bytes_out, channel->counters().of(kEcho).bytes_in);
}

TEST_P(Sockets, ManyCallsAtOnceOverOneChannelFromManyThreads) {
  Server server(listen_address());
  IoNode node;
  Channel channel(node.world(), secret_of('s'), server.address(), {});
  std::atomic<int> good{0}, ended{0};
  std::promise<void> all;
  std::vector<std::thread> threads;
  constexpr int kThreads = 4, kCalls = 500;
  for (int t = 0; t < kThreads; t++) {
    threads.emplace_back([&, t] {
      Rng rng(static_cast<uint64_t>(t) + 1);
      for (int i = 0; i < kCalls; i++) {
        std::string request(rng.below(rng.one_in(20) ? 100'000 : 300), static_cast<char>(i));
        const std::string copy = request;
        const uint16_t method = rng.one_in(3) ? kLater : kEcho;
        const CallOptions options{
            .method = method, .deadline_us = in_seconds(60), .wait_for_connection = true};
        channel.call(options, std::move(request), [&, copy](const Reply& reply) {
          good += reply.status.ok() && reply.payload == copy ? 1 : 0;
          if (++ended == kThreads * kCalls) all.set_value();
        });
      }
    });
  }
  for (std::thread& t : threads) t.join();
  all.get_future().wait();
  EXPECT_EQ(good, kThreads * kCalls);
  EXPECT_EQ(channel.counters().connections_opened, 1u);
}

TEST_P(Sockets, BlockingCallsEndAtTheirDeadline) {
  Server server(listen_address());
  const auto channel = blocking(server.address());
  BlockingReply reply;
  CallOptions options{.method = kKeep, .deadline_us = monotonic_us() + 30'000};
  const Status status = channel->call(options, "x", &reply);
  EXPECT_EQ(status.code(), StatusCode::kUnknown);
  EXPECT_FALSE(reply.answered);
  EXPECT_GE(monotonic_us(), options.deadline_us);
  options.idempotent = true;
  options.deadline_us = monotonic_us() + 30'000;
  EXPECT_TRUE(is_timed_out(channel->call(options, "x", &reply)));
  // Longer than a read waits by itself.
  options = {.method = kKeep, .deadline_us = monotonic_us() + 1'200'000, .idempotent = false};
  EXPECT_EQ(channel->call(options, "x", &reply).code(), StatusCode::kUnknown);
  EXPECT_GE(monotonic_us(), options.deadline_us);
  options.idempotent = true;
  options.deadline_us = 1;  // long ago
  EXPECT_TRUE(is_timed_out(channel->call(options, "x", &reply)));
  // BC2: those sockets were not used again.
  server.answer_kept();
  const CallOptions echo{.method = kEcho, .deadline_us = in_seconds(60)};
  ASSERT_TRUE(channel->call(echo, "fresh", &reply).ok());
  EXPECT_EQ(reply.payload, "fresh");
}

TEST_P(Sockets, BlockingCallsCanBeInterrupted) {  // BC4
  Server server(listen_address());
  const auto channel = blocking(server.address());
  WaitInterrupt interrupt;
  const InterruptScope scope(&interrupt);
  BlockingReply reply;
  CallOptions keep{.method = kKeep, .deadline_us = in_seconds(60), .idempotent = true};
  interrupt.interrupt();  // before the call
  EXPECT_TRUE(is_interrupted(channel->call(keep, "x", &reply)));
  for (const size_t calls : {1, 2}) {
    interrupt.clear();
    std::thread killer([&] {
      server.wait_for_kept(calls);
      interrupt.interrupt();
    });
    const Status status = channel->call(keep, "x", &reply);
    killer.join();
    EXPECT_EQ(status.code(), keep.idempotent ? StatusCode::kCancelled : StatusCode::kUnknown)
        << status;
    EXPECT_FALSE(reply.answered);
    keep.idempotent = false;
  }
  interrupt.clear();
  server.answer_kept();
  const CallOptions echo{.method = kEcho, .deadline_us = in_seconds(60)};
  ASSERT_TRUE(channel->call(echo, "fresh", &reply).ok());
  EXPECT_EQ(reply.payload, "fresh");
}

TEST_P(Sockets, ARestartedServerIsFoundAgain) {
  auto server = std::make_unique<Server>(listen_address());
  const std::string address = server->address();
  const auto channel = blocking(address);
  IoNode node;
  std::promise<void> lost;
  std::atomic<int> connections{0};
  Channel lively(node.world(), secret_of('s'), address, {},
                 [&](bool connected, uint64_t, const Status&) {
                   if (connected) connections++;
                   if (!connected && connections == 1) lost.set_value();
                 });
  BlockingReply reply;
  CallOptions options{.method = kEcho, .deadline_us = in_seconds(60)};
  ASSERT_TRUE(channel->call(options, "x", &reply).ok());
  std::promise<Status> kept;
  lively.call({.method = kKeep, .deadline_us = in_seconds(60), .wait_for_connection = true}, "x",
              [&](const Reply& r) { kept.set_value(r.status); });
  server->wait_for_kept(1);
  server.reset();
  EXPECT_EQ(kept.get_future().get().code(), StatusCode::kUnknown);
  lost.get_future().wait();
  EXPECT_EQ(channel->call(options, "x", &reply).code(), StatusCode::kUnavailable);
  server = std::make_unique<Server>(address);
  ASSERT_TRUE(channel->call(options, "x", &reply).ok());
  std::promise<Status> again;
  lively.call({.method = kEcho, .deadline_us = in_seconds(60), .wait_for_connection = true}, "x",
              [&](const Reply& r) { again.set_value(r.status); });
  EXPECT_TRUE(again.get_future().get().ok());
  EXPECT_EQ(connections, 2);
}

// CH3: what an attempt of some time ago has found is not said of a server that is back.
TEST_P(Sockets, ACallThatComesInALongPauseTriesAtOnce) {
  auto server = std::make_unique<Server>(listen_address());
  const std::string address = server->address();
  server.reset();
  IoNode node;
  ChannelOptions options;
  options.reconnect_us_min = 100'000;
  options.reconnect_us_max = 600'000'000;
  Channel channel(node.world(), secret_of('s'), address, options);
  const auto call = [&channel] {
    std::promise<Status> ended;
    channel.call({.method = kEcho, .deadline_us = in_seconds(60)}, "x",
                 [&](const Reply& r) { ended.set_value(r.status); });
    return ended.get_future().get();
  };
  // Pauses of ever greater length: a call that comes later than the shortest finds out again.
  const uint64_t until_us = monotonic_us() + 3'000'000;
  while (monotonic_us() < until_us) {
    EXPECT_EQ(call().code(), StatusCode::kUnavailable);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  server = std::make_unique<Server>(address);
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
  EXPECT_TRUE(call().ok());
}

TEST_P(Sockets, AWrongSecretIsRefusedByBothSides) {
  Server server(listen_address());
  const auto channel = blocking(server.address(), 'x');
  BlockingReply reply;
  const CallOptions options{.method = kEcho, .deadline_us = in_seconds(60)};
  const Status status = channel->call(options, "x", &reply);
  EXPECT_TRUE(is_wrong_secret(status)) << status;
  EXPECT_FALSE(may_pass(status));
  EXPECT_EQ(channel->counters().refused(Refusal::kWrongSecret), 1u);
  EXPECT_EQ(server.counters().of(kEcho).operations, 0u);
}

TEST_P(Sockets, FilesTravelOverUnixSocketsOnly) {
  Server server(listen_address());
  const auto channel = blocking(server.address());
  for (int i = 0; i < 3; i++) {
    BlockingReply reply;
    const CallOptions options{.method = kFile, .deadline_us = in_seconds(60)};
    const Status status = channel->call(options, "", &reply);
    if (std::string(GetParam()) == "tcp") {
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
      EXPECT_FALSE(reply.attached.valid());
      continue;
    }
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_TRUE(reply.attached.valid());
    char bytes[16];
    EXPECT_GT(::read(reply.attached.get(), bytes, sizeof bytes), 0);
  }
}

TEST_P(Sockets, ASecondListenerIsRefusedAndAStaleSocketIsNot) {
  auto server = std::make_unique<Server>(listen_address());
  IoNode node;
  RpcServer second(node.world(), secret_of('s'), {});
  EXPECT_EQ(second.listen(server->address()).status().code(), StatusCode::kAlreadyExists);
  const auto channel = blocking(server->address());
  BlockingReply reply;
  const CallOptions options{.method = kEcho, .deadline_us = in_seconds(60)};
  EXPECT_TRUE(channel->call(options, "still there", &reply).ok());
  if (std::string(GetParam()) == "tcp") return;
  struct stat info {};
  ASSERT_EQ(::stat((folder_ / "socket").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);  // SN2
  // Left behind by a process that is gone.
  const auto stale = parse_address("unix:" + (folder_ / "stale"));
  {
    const FileDescriptor fd(::socket(AF_UNIX, SOCK_STREAM, 0));
    ASSERT_EQ(::bind(fd.get(), stale->get(), stale->bytes), 0);
  }
  EXPECT_TRUE(second.listen("unix:" + (folder_ / "stale")).ok());
}

TEST(SocketAddresses, OnlyPrivateOnesAreListenedOn) {
  for (const char* good :
       {"tcp:127.0.0.1:1", "tcp:10.1.2.3:1", "tcp:172.16.0.1:1", "tcp:172.31.255.1:1",
        "tcp:192.168.3.4:65535", "tcp:[::1]:5", "tcp:[fd00::1]:5", "unix:/tmp/x"}) {
    const auto address = parse_address(good);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_TRUE(may_bind(*address)) << good;
    EXPECT_EQ(to_text(*address), good);
  }
  for (const char* bad : {"tcp:0.0.0.0:1", "tcp:8.8.8.8:1", "tcp:172.32.0.1:1", "tcp:[::]:1",
                          "tcp:[2001:db8::1]:1", "tcp:193.168.0.1:1"})
    EXPECT_FALSE(may_bind(*parse_address(bad))) << bad;
  for (const char* wrong :
       {"", "tcp:", "tcp:localhost:1", "tcp:127.0.0.1", "tcp:127.0.0.1:65536", "tcp:127.0.0.1:-1",
        "tcp:127.0.0.1:1x", "tcp:::1:1", "unix:relative", "unix:", "http://x"})
    EXPECT_EQ(parse_address(wrong).status().code(), StatusCode::kInvalidArgument) << wrong;
  EXPECT_FALSE(parse_address("unix:/" + std::string(120, 'x')).ok());
  IoNode node;
  RpcServer server(node.world(), secret_of('s'), {});
  EXPECT_EQ(server.listen("tcp:0.0.0.0:0").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(server.listen("unix:/nowhere/x").status().code(), StatusCode::kInternal);
}

TEST(EventLoopTest, TimersTasksAndCancellation) {
  EventLoop loop;
  std::vector<int> ran;
  const uint64_t now_ns = loop.now_ns();
  loop.run_at(now_ns + 3'000'000, [&] {
    ran.push_back(3);
    loop.stop();
  });
  const auto cancelled = loop.run_at(now_ns + 2'000'000, [&] { ran.push_back(9); });
  loop.run_at(now_ns + 1'000'000, [&] {
    EXPECT_GE(loop.now_ns(), now_ns + 1'000'000);
    ran.push_back(2);
    loop.cancel(cancelled);
    loop.cancel(cancelled);
    loop.cancel(0);
  });
  loop.post([&] {
    ran.push_back(0);
    loop.post([&] { ran.push_back(1); });
    EXPECT_EQ(ran.size(), 1u) << "EX1: not inside post()";
  });
  loop.run();
  EXPECT_EQ(ran, (std::vector<int>{0, 1, 2, 3}));
}

TEST(EventLoopTest, TasksOfManyThreadsRunInTheOrderOfEach) {
  std::vector<std::vector<int>> seen(4);
  {
    IoThread io;
    EXPECT_FALSE(io.loop()->in_thread());
    std::vector<std::thread> threads;
    for (size_t t = 0; t < seen.size(); t++) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < 2000; i++) io.loop()->post([&, t, i] { seen[t].push_back(i); });
      });
    }
    for (std::thread& t : threads) t.join();
    run_and_wait(io.loop(), [&] { EXPECT_TRUE(io.loop()->in_thread()); });
  }
  for (const std::vector<int>& one : seen) {
    ASSERT_EQ(one.size(), 2000u);
    for (int i = 0; i < 2000; i++) EXPECT_EQ(one[static_cast<size_t>(i)], i);
  }
}

// Until run_or_post() has run its task in this thread: the loop slept.
template <class Run>
void do_in_place(EventLoop* loop, Run run) {
  for (bool in_place = false; !in_place;) {
    Parker done;
    loop->run_or_post([&, caller = std::this_thread::get_id()] {
      EXPECT_TRUE(loop->in_thread());
      in_place = std::this_thread::get_id() == caller;
      if (in_place) run();
      done.unpark(1);
    });
    done.wait();
  }
  EXPECT_FALSE(loop->in_thread());
}

TEST(EventLoopTest, WorkForASleepingLoopIsDoneByWhoeverHasIt) {  // EX3
  IoThread io;
  std::vector<int> ran;
  std::promise<void> rest, timer;
  do_in_place(io.loop(), [&] {
    io.loop()->post([&] {
      ran.push_back(1);
      io.loop()->run_or_post([&] {
        ran.push_back(2);
        // Deeper than one turn goes: left to the loop.
        io.loop()->post([&] { rest.set_value(); });
      });
    });
    ran.push_back(0);
    // Earlier than anything the loop had gone to sleep for.
    io.loop()->run_at(io.loop()->now_ns() + 10'000'000, [&] { timer.set_value(); });
  });
  EXPECT_EQ(ran, (std::vector<int>{0, 1, 2}));
  rest.get_future().wait();
  timer.get_future().wait();
  IoThread other;  // one loop at a time is lent to a thread
  do_in_place(io.loop(), [&] {
    other.loop()->run_or_post([&] { EXPECT_TRUE(other.loop()->in_thread()); });
    EXPECT_TRUE(io.loop()->in_thread());
    EXPECT_FALSE(other.loop()->in_thread());
  });
}

TEST(EventLoopTest, OneThreadAtATimeIsTheLoops) {  // EX3
  std::vector<std::vector<int>> seen(4);
  int inside = 0, ran = 0;  // by tasks only
  {
    IoThread io;
    std::vector<std::thread> threads;
    for (size_t t = 0; t < seen.size(); t++) {
      threads.emplace_back([&, t] {
        const auto task = [&, t](int i) {
          EXPECT_EQ(inside++, 0);
          seen[t].push_back(i);
          io.loop()->post([&] { ran++; });
          io.loop()->run_at(io.loop()->now_ns() + 1000, [&] { ran++; });
          EXPECT_EQ(--inside, 0);
        };
        Rng rng(t);
        for (int i = 0; i < 2000; i++) {
          rng.one_in(2) ? io.loop()->post([&task, i] { task(i); })
                        : io.loop()->run_or_post([&task, i] { task(i); });
          if (rng.one_in(4)) run_and_wait(io.loop(), [] {});  // it often sleeps then
        }
        run_and_wait(io.loop(), [] {});  // `task` goes
      });
    }
    for (std::thread& t : threads) t.join();
    for (int all = 0; all < 16'000;) run_and_wait(io.loop(), [&] { all = ran; });
  }
  for (const std::vector<int>& one : seen) {
    ASSERT_EQ(one.size(), 2000u);
    for (int i = 0; i < 2000; i++) EXPECT_EQ(one[static_cast<size_t>(i)], i);
  }
}

TEST(EventLoopTest, SleepsWhileThereIsNothingToDo) {
  IoThread io;
  clockid_t clock;
  ASSERT_EQ(::pthread_getcpuclockid(::pthread_self(), &clock), 0);
  run_and_wait(io.loop(), [&] { ::pthread_getcpuclockid(::pthread_self(), &clock); });
  const auto cpu_us = [&] {
    timespec t{};
    ::clock_gettime(clock, &t);
    return t.tv_sec * 1'000'000 + t.tv_nsec / 1000;
  };
  std::promise<void> later;
  const long before = cpu_us();
  run_and_wait(io.loop(), [&] {
    io.loop()->run_at(io.loop()->now_ns() + 200'000'000, [&] { later.set_value(); });
  });
  later.get_future().wait();
  EXPECT_LT(cpu_us() - before, 20'000);
}

}  // namespace
}  // namespace strata::transport
