// Goal: whatever a peer says, and wherever it dies, its own connection ends, which is counted, and
// nobody else notices (CN1-CN3, RS1, RS4). Method: raw sockets that say wrong things, and processes
// killed with SIGKILL after each single byte of what they had to say, while an honest client makes
// calls all the time. The program starts itself as those processes.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/diag.h"
#include "base/rng.h"
#include "transport/calls/blocking_channel.h"
#include "transport/calls/rpc_server.h"
#include "transport/calls/testing/io_node.h"
#include "transport/calls/testing/raw_peer.h"

extern char** environ;

namespace strata::transport {
namespace {

using test::Folder;
using test::frame_of;
using test::header_of;
using test::IoNode;
using test::RawPeer;
using test::secret_of;
using test::take_output;

constexpr uint16_t kEcho = 1, kBig = 2;
constexpr size_t kBigBytes = 3u << 20;
const char* const kRequest = "a request of a few bytes";

class HostilePeer : public testing::Test {
 protected:
  HostilePeer() {
    set_diag_sink([](Severity, std::string_view) {});
    ServerOptions options;
    options.limits.payload_bytes_max = 8u << 20;
    options.limits.handshake_us_max = 2'000'000;
    server_ = std::make_unique<RpcServer>(node_.world(), secret_of('s'), options);
    server_->handle(kEcho, [this](const Request& request, Responder responder) {
      echoed_++;
      responder.reply(std::string(request.payload));
    });
    server_->handle(kBig, [](const Request&, Responder responder) {
      responder.reply(std::string(kBigBytes, 'b'));
    });
    address_ = *server_->listen("unix:" + (folder_ / "socket"));
    honest_ = std::thread([this] { be_honest(); });
    // Connected before the others begin: busy with a reply of 3 MiB under a sanitizer, the server
    // may miss the time for a handshake.
    while (honest_calls_ == 0) std::this_thread::yield();
  }
  ~HostilePeer() override {
    stop_ = true;
    honest_.join();
    EXPECT_EQ(honest_failures_, 0);
    EXPECT_GT(honest_calls_, 0);
    // Everything a peer left behind is gone, but for the honest client's connection.
    for (size_t left = 99; left > 1;) {
      run_and_wait(node_.world().executor, [&] {
        left = server_->connections();
        EXPECT_EQ(server_->in_progress(), 0u);
      });
      if (left > 1) std::this_thread::yield();
    }
  }

  void be_honest() {
    BlockingChannel channel(secret_of('s'), address_, {});
    BlockingReply reply;
    while (!stop_ || honest_calls_ == 0) {
      const CallOptions options{.method = kEcho, .deadline_us = monotonic_us() + 60'000'000};
      const std::string request = std::to_string(honest_calls_);
      const Status status = channel.call(options, request, &reply);
      if (!status.ok() || reply.payload != request) honest_failures_++;
      honest_calls_++;
    }
    honest_gone_ = true;
  }

  uint64_t refused(Refusal refusal) { return server_->counters().refused(refusal).load(); }
  RawPeer authenticated() {
    RawPeer peer = RawPeer::client(address_);
    EXPECT_TRUE(peer.authenticate());
    return peer;
  }

  Folder folder_;
  IoNode node_;
  std::unique_ptr<RpcServer> server_;
  std::string address_;
  std::atomic<uint64_t> echoed_{0};
  std::atomic<bool> stop_{false}, honest_gone_{false};
  std::atomic<int> honest_calls_{0}, honest_failures_{0};
  std::thread honest_;
};

TEST_F(HostilePeer, GarbageEndsTheConnection) {
  Rng rng(1);
  for (int i = 0; i < 50; i++) {
    RawPeer peer = rng.one_in(2) ? authenticated() : RawPeer::client(address_);
    std::string garbage(48 + rng.below(3000), '\0');
    for (char& c : garbage) c = static_cast<char>(rng.next());
    (void)peer.write(garbage);
    peer.wait_closed();
  }
  EXPECT_EQ(refused(Refusal::kBadFrame), 50u);
}

TEST_F(HostilePeer, ADamagedFrameEndsTheConnection) {
  const std::string good = frame_of(header_of(FrameKind::kRequest, 1, kEcho), kRequest);
  Rng rng(2);
  for (size_t byte = 0; byte < good.size(); byte++) {
    RawPeer peer = authenticated();
    std::string bad = good;
    bad[byte] = static_cast<char>(bad[byte] ^ (1 << rng.below(8)));
    ASSERT_TRUE(peer.write(bad));
    peer.wait_closed();
  }
  EXPECT_EQ(refused(Refusal::kBadFrame), good.size());
}

TEST_F(HostilePeer, OversizedFramesAreRefusedByTheirHeader) {
  const auto header_only = [](FrameKind kind, uint32_t bytes) {
    std::string frame = frame_of(header_of(kind, 1, kEcho), "");
    store_u32(frame.data() + 12, bytes);
    store_u32(frame.data() + 44, crc32c(frame.data(), 44));
    return frame;
  };
  RawPeer early = RawPeer::client(address_);
  ASSERT_TRUE(early.write(header_only(FrameKind::kHandshake, kHandshakePayloadBytesMax + 1)));
  early.wait_closed();
  RawPeer late = authenticated();
  ASSERT_TRUE(late.write(header_only(FrameKind::kRequest, (8u << 20) + 1)));
  late.wait_closed();
  RawPeer huge = authenticated();
  ASSERT_TRUE(huge.write(header_only(FrameKind::kRequest, UINT32_MAX)));
  huge.wait_closed();
  EXPECT_EQ(refused(Refusal::kTooLarge), 3u);
}

TEST_F(HostilePeer, FramesBeforeAuthenticationAreRefused) {
  RawPeer peer = RawPeer::client(address_);
  const uint64_t before = refused(Refusal::kOutOfTurn);
  ASSERT_TRUE(peer.write(frame_of(header_of(FrameKind::kRequest, 1, kEcho), "let me in")));
  peer.wait_closed();
  EXPECT_EQ(refused(Refusal::kOutOfTurn), before + 1);
  RawPeer silent = RawPeer::client(address_);
  silent.wait_closed();
  EXPECT_EQ(refused(Refusal::kHandshakeTime), 1u);
}

TEST_F(HostilePeer, AWrongProofIsRefused) {
  RawPeer peer = RawPeer::client(address_);
  ASSERT_TRUE(peer.write_output());
  ASSERT_TRUE(peer.read());
  std::string proof = take_output(&peer.connection());
  ASSERT_EQ(proof.size(), kFrameHeaderBytes + 33);
  std::string payload = proof.substr(kFrameHeaderBytes);
  payload[10] = static_cast<char>(payload[10] ^ 1);
  ASSERT_TRUE(peer.write(frame_of(header_of(FrameKind::kHandshake, 0, 0), payload)));
  peer.wait_closed();
  EXPECT_EQ(refused(Refusal::kWrongSecret), 1u);
}

TEST_F(HostilePeer, ARecordedConversationIsRefused) {
  RawPeer peer = authenticated();
  ASSERT_TRUE(peer.write(frame_of(header_of(FrameKind::kRequest, 1, kEcho), "recorded")));
  ASSERT_TRUE(peer.read());
  ASSERT_EQ(peer.frames.size(), 1u);
  RawPeer again = RawPeer::client(address_);
  ASSERT_TRUE(again.write(peer.sent));
  again.wait_closed();
  EXPECT_EQ(refused(Refusal::kWrongSecret), 1u);
}

TEST_F(HostilePeer, ARequestSaidTwiceRunsOnce) {
  RawPeer peer = authenticated();
  const std::string request = frame_of(header_of(FrameKind::kRequest, 7, kEcho), "once");
  ASSERT_TRUE(peer.write(request + request));
  peer.wait_closed();
  EXPECT_EQ(refused(Refusal::kOutOfTurn), 1u);
}

TEST_F(HostilePeer, RepliesAndHeartbeatsAreNotForAServer) {
  for (const FrameKind kind : {FrameKind::kReply, FrameKind::kHeartbeat, FrameKind::kHandshake}) {
    RawPeer peer = authenticated();  // a quiet one: no heartbeats
    ASSERT_TRUE(peer.write(frame_of(header_of(kind, 1, kEcho), "")));
    peer.wait_closed();
  }
  EXPECT_EQ(refused(Refusal::kOutOfTurn), 3u);
}

TEST_F(HostilePeer, ATruncatedConversationIsForgotten) {
  RawPeer model = authenticated();
  const std::string all = model.sent + frame_of(header_of(FrameKind::kRequest, 1, kEcho), kRequest);
  for (size_t bytes = 0; bytes < all.size(); bytes += 3) {
    RawPeer peer = RawPeer::client(address_, 's', bytes);
    if (peer.authenticate())
      (void)peer.write(frame_of(header_of(FrameKind::kRequest, 1, kEcho), kRequest));
    peer.close();
  }
}

TEST_F(HostilePeer, APeerThatReadsNothingIsHeldUpAlone) {
  RawPeer peer = authenticated();
  std::string requests;
  for (uint64_t id = 1; id <= 50; id++)
    requests += frame_of(header_of(FrameKind::kRequest, id, kBig), "");
  ASSERT_TRUE(peer.write(requests));
  // The server goes on with others; of this one it keeps a bounded amount unsent, and reads on when
  // there is room again.
  const int before = honest_calls_;
  while (honest_calls_ < before + 50) std::this_thread::yield();
  while (peer.frames.size() < 50) ASSERT_TRUE(peer.read());
  EXPECT_EQ(peer.frames.back().second.size(), kBigBytes);
}

// --- processes ----------------------------------------------------------------------------------

// This program again, as a peer that stops after so many bytes, says so, and waits to be killed.
class Child {
 public:
  Child(const std::string& role, const std::string& address, size_t bytes) {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    told_.reset(ends[0]);
    FileDescriptor out(ends[1]);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, out.get(), 1);
    std::string arguments[] = {"peer", role, address, std::to_string(bytes)};
    char* argv[] = {arguments[0].data(), arguments[1].data(), arguments[2].data(),
                    arguments[3].data(), nullptr};
    EXPECT_EQ(::posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, argv, environ), 0);
    ::posix_spawn_file_actions_destroy(&actions);
  }
  ~Child() { kill(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  void wait_told() {
    char byte;
    EXPECT_EQ(::read(told_.get(), &byte, 1), 1);
  }
  void kill() {
    if (pid_ == 0) return;
    ::kill(pid_, SIGKILL);
    int status = 0;
    EXPECT_EQ(::waitpid(pid_, &status, 0), pid_);
    EXPECT_TRUE(WIFSIGNALED(status));
    pid_ = 0;
  }

 private:
  pid_t pid_ = 0;
  FileDescriptor told_;
};

void tell() { (void)!::write(1, "x", 1); }

[[noreturn]] void wait_for_death() {
  tell();
  for (;;) ::pause();
}

// Authenticates and sends a request, as far as `bytes` go.
[[noreturn]] void act_as_client(const std::string& address, size_t bytes) {
  RawPeer peer = RawPeer::client(address, 's', bytes);
  if (peer.authenticate())
    (void)peer.write(frame_of(header_of(FrameKind::kRequest, 1, kEcho), kRequest));
  wait_for_death();
}

// Asks for a large reply and reads so much of it.
[[noreturn]] void act_as_reader(const std::string& address, size_t bytes) {
  RawPeer peer = RawPeer::client(address);
  if (!peer.authenticate()) ::_exit(1);
  (void)peer.write(frame_of(header_of(FrameKind::kRequest, 1, kBig), ""));
  const FileDescriptor more = RawPeer::connect(address);  // and one that says nothing
  std::string buffer(bytes, '\0');
  for (size_t got = 0; got < bytes;) {
    got += 4096;
    if (!peer.read()) break;
  }
  wait_for_death();
}

// Authenticates a client and answers its request, as far as `bytes` go.
[[noreturn]] void act_as_server(const std::string& address, size_t bytes) {
  const auto parsed = parse_address(address);
  const FileDescriptor listening(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::bind(listening.get(), parsed->get(), parsed->bytes) != 0) ::_exit(1);
  if (::listen(listening.get(), 4) != 0) ::_exit(1);
  tell();
  RawPeer peer(FileDescriptor(::accept(listening.get(), nullptr, nullptr)),
               Connection(secret_of('s'), 5, {}, system_entropy(), 0), bytes);
  while (!peer.exhausted() && peer.frames.empty()) {
    if (!peer.read() || !peer.write_output()) break;
  }
  if (!peer.frames.empty()) {
    FrameHeader header = peer.frames[0].first;
    header.flags = static_cast<uint16_t>(FrameKind::kReply);
    (void)peer.write(frame_of(header, peer.frames[0].second));
  }
  wait_for_death();
}

TEST_F(HostilePeer, ClientsKilledAtAnyByteHarmNobody) {
  RawPeer model = authenticated();
  const size_t all = model.sent.size() + kFrameHeaderBytes + std::string_view(kRequest).size();
  for (size_t bytes = 0; bytes <= all; bytes++) {
    Child child("client", address_, bytes);
    child.wait_told();
  }
}

TEST_F(HostilePeer, ReadersKilledInsideAReplyHarmNobody) {
  for (const size_t bytes : {0, 1, 47, 48, 49, 5000, 100'000, 1'000'000, 3'000'000}) {
    Child child("reader", address_, bytes);
    child.wait_told();
  }
}

TEST_F(HostilePeer, ServersKilledAtAnyByteAreToldTruly) {
  // What a server says: challenge, welcome, reply.
  const size_t handshake = 2 * kFrameHeaderBytes + 65 + 9;
  const size_t all = handshake + kFrameHeaderBytes + std::string_view(kRequest).size();
  for (size_t bytes = 0; bytes <= all; bytes += bytes % 16 == 15 ? 1 : 3) {
    const std::string address = "unix:" + (folder_ / ("server" + std::to_string(bytes)));
    Child child("server", address, bytes);
    child.wait_told();
    BlockingChannel channel(secret_of('s'), address, {});
    Status status;
    std::thread caller([&] {
      BlockingReply reply;
      status = channel.call({.method = kEcho, .deadline_us = monotonic_us() + 60'000'000}, kRequest,
                            &reply);
      if (status.ok()) {
        EXPECT_EQ(reply.payload, kRequest);
      }
    });
    child.wait_told();
    child.kill();
    caller.join();
    const StatusCode expected = bytes < handshake ? StatusCode::kUnavailable
                                : bytes < all     ? StatusCode::kUnknown
                                                  : StatusCode::kOk;
    EXPECT_EQ(status.code(), expected) << bytes << ": " << status;
  }
}

}  // namespace

int act(const std::string& role, const std::string& address, size_t bytes) {
  if (role == "client") act_as_client(address, bytes);
  if (role == "reader") act_as_reader(address, bytes);
  if (role == "server") act_as_server(address, bytes);
  return 1;
}

}  // namespace strata::transport

int main(int argc, char** argv) {
  if (argc == 4 && std::string_view(argv[0]) == "peer")
    return strata::transport::act(argv[1], argv[2], std::strtoull(argv[3], nullptr, 10));
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
