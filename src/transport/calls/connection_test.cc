// Goal: nothing passes before authentication, nothing after an error, and silence is noticed in
// time (CN1-CN4). Method: two connections whose bytes and times are carried by hand.
#include "transport/calls/connection.h"

#include <gtest/gtest.h>

#include "transport/calls/testing/connections.h"

namespace strata::transport {
namespace {

using test::frame_of;
using test::header_of;
using test::Pair;
using test::take_output;

constexpr uint64_t kMs = 1'000'000;  // ns

TEST(Connection, CarriesFramesBothWaysOnceAuthenticated) {
  Pair pair;
  EXPECT_FALSE(pair.client.ready());
  ASSERT_TRUE(pair.carry().ok());
  ASSERT_TRUE(pair.client.ready());
  ASSERT_TRUE(pair.server.ready());
  EXPECT_EQ(pair.server.hello().channel_id, 5u);
  EXPECT_EQ(pair.client.server_life(), 77u);
  pair.client.send(header_of(FrameKind::kRequest, 1), "small");
  pair.client.send(header_of(FrameKind::kRequest, 2), std::string(100'000, 'L'));
  pair.client.send(header_of(FrameKind::kRequest, 3), "");
  pair.server.send(header_of(FrameKind::kReply, 1), "answer");
  ASSERT_TRUE(pair.carry().ok());
  ASSERT_EQ(pair.requests.size(), 3u);
  EXPECT_EQ(pair.requests[1], std::string(100'000, 'L'));
  EXPECT_EQ(pair.replies, std::vector<std::string>{"answer"});
}

TEST(Connection, ByteByByteItIsTheSame) {
  Pair pair;
  for (int round = 0; round < 4; round++) {
    for (const char c : take_output(&pair.client)) ASSERT_TRUE(pair.to_server({&c, 1}).ok());
    for (const char c : take_output(&pair.server)) ASSERT_TRUE(pair.to_client({&c, 1}).ok());
  }
  ASSERT_TRUE(pair.client.ready() && pair.server.ready());
  pair.client.send(header_of(FrameKind::kRequest, 1), "payload");
  for (const char c : take_output(&pair.client)) ASSERT_TRUE(pair.to_server({&c, 1}).ok());
  EXPECT_EQ(pair.requests, std::vector<std::string>{"payload"});
}

TEST(Connection, NothingIsAcceptedBeforeAuthentication) {
  const std::string request = frame_of(header_of(FrameKind::kRequest, 1), "x");
  {
    Pair pair;
    EXPECT_EQ(pair.to_server(request).code(), StatusCode::kDataLoss);
    EXPECT_EQ(pair.server.refusal(), Refusal::kOutOfTurn);
    EXPECT_FALSE(pair.to_server(take_output(&pair.client)).ok()) << "CN2";
  }
  {
    Pair pair;  // after HELLO, too; and the proof is not even looked at any more
    ASSERT_TRUE(pair.to_server(take_output(&pair.client)).ok());
    EXPECT_FALSE(pair.to_server(request).ok());
  }
  {
    Pair pair;
    EXPECT_FALSE(pair.to_client(frame_of(header_of(FrameKind::kReply, 1), "x")).ok());
  }
  {
    Pair pair;  // a handshake frame longer than any
    EXPECT_EQ(
        pair.to_server(frame_of(header_of(FrameKind::kHandshake, 0), std::string(81, '\1'))).code(),
        StatusCode::kResourceExhausted);
    EXPECT_EQ(pair.server.refusal(), Refusal::kTooLarge);
  }
  Pair pair;
  EXPECT_TRUE(pair.requests.empty() && pair.replies.empty());
}

TEST(Connection, AnotherSecretIsRefused) {
  Pair pair(Manner::kLively, 'x');
  EXPECT_TRUE(is_wrong_secret(pair.carry()));
  EXPECT_EQ(pair.client.refusal(), Refusal::kWrongSecret);
  EXPECT_FALSE(pair.client.ready() || pair.server.ready());
}

TEST(Connection, EachSideSendsOnlyWhatIsItsOwn) {
  for (const FrameKind kind : {FrameKind::kReply, FrameKind::kHandshake}) {
    Pair pair;
    ASSERT_TRUE(pair.carry().ok());
    EXPECT_FALSE(pair.to_server(frame_of(header_of(kind, 1), "")).ok());
    EXPECT_EQ(pair.server.refusal(), Refusal::kOutOfTurn);
  }
  for (const FrameKind kind : {FrameKind::kRequest, FrameKind::kHandshake}) {
    Pair pair;
    ASSERT_TRUE(pair.carry().ok());
    EXPECT_FALSE(pair.to_client(frame_of(header_of(kind, 1), "")).ok());
  }
  Pair quiet(Manner::kQuiet);
  ASSERT_TRUE(quiet.carry().ok());
  EXPECT_FALSE(quiet.to_server(frame_of(header_of(FrameKind::kHeartbeat, 0), "")).ok());
  Pair lively;
  ASSERT_TRUE(lively.carry().ok());
  EXPECT_TRUE(lively.to_server(frame_of(header_of(FrameKind::kHeartbeat, 0), "")).ok());
  EXPECT_FALSE(lively.to_server(frame_of(header_of(FrameKind::kHeartbeat, 0), "x")).ok());
}

TEST(Connection, AnAnswerThatIsNotWantedEndsTheBatch) {
  Pair pair;
  ASSERT_TRUE(pair.carry().ok());
  pair.client.send(header_of(FrameKind::kRequest, 1), "a");
  pair.client.send(header_of(FrameKind::kRequest, 2), "b");
  int seen = 0;
  EXPECT_TRUE(pair.server
                  .receive(take_output(&pair.client), 0,
                           [&](const Frame&) {
                             seen++;
                             return false;
                           })
                  .ok());
  EXPECT_EQ(seen, 1);
}

TEST(Connection, AuthenticationHasATimeLimit) {
  Pair pair;
  EXPECT_EQ(pair.server.next_tick_ns(), 2000 * kMs);
  EXPECT_TRUE(pair.server.tick(1999 * kMs).ok());
  EXPECT_TRUE(is_timed_out(pair.server.tick(2000 * kMs)));
  EXPECT_EQ(pair.server.refusal(), Refusal::kHandshakeTime);
  EXPECT_FALSE(pair.to_server(take_output(&pair.client)).ok());
}

// Both tick when they say they want to; what they send arrives, unless `deaf`.
TEST(Connection, HeartbeatsKeepASilentConnectionAliveAndOnlyThose) {
  Pair pair;
  ASSERT_TRUE(pair.carry().ok());
  uint64_t now_ns = 0;
  for (int i = 0; i < 100; i++) {
    now_ns = std::min(pair.client.next_tick_ns(), pair.server.next_tick_ns());
    ASSERT_TRUE(pair.client.tick(now_ns).ok());
    ASSERT_TRUE(pair.server.tick(now_ns).ok());
    ASSERT_TRUE(pair.carry(now_ns).ok());
  }
  EXPECT_GT(now_ns, 9'000 * kMs);  // about 200 ms each
  EXPECT_TRUE(pair.requests.empty());
  // From now on the client hears nothing.
  const uint64_t silent_from = now_ns;
  for (;;) {
    now_ns = pair.client.next_tick_ns();
    const Status alive = pair.client.tick(now_ns);
    (void)take_output(&pair.client, now_ns);
    if (alive.ok()) continue;
    EXPECT_EQ(alive.code(), StatusCode::kUnavailable);
    break;
  }
  EXPECT_EQ(pair.client.refusal(), Refusal::kNoSignOfLife);
  EXPECT_LE(now_ns - silent_from, 1000 * kMs);
}

TEST(Connection, SilenceMeansNothingWhileNobodyListens) {
  Pair pair;
  ASSERT_TRUE(pair.carry().ok());
  pair.server.set_reading(false, 0);
  for (uint64_t now_ns = 0; now_ns < 5000 * kMs; now_ns += 200 * kMs) {
    ASSERT_TRUE(pair.server.tick(now_ns).ok());
    (void)take_output(&pair.server, now_ns);
  }
  pair.server.set_reading(true, 5000 * kMs);
  EXPECT_TRUE(pair.server.tick(5900 * kMs).ok());
  (void)take_output(&pair.server, 5900 * kMs);
  EXPECT_FALSE(pair.server.tick(6100 * kMs).ok());

  // Unless bytes wait and the peer takes none.
  Pair stuck;
  ASSERT_TRUE(stuck.carry().ok());
  stuck.server.set_reading(false, 0);
  stuck.server.send(header_of(FrameKind::kReply, 1), "x");
  EXPECT_TRUE(stuck.server.tick(900 * kMs).ok());
  EXPECT_GT(stuck.server.next_tick_ns(), 900 * kMs) << "no tick that does nothing, again and again";
  EXPECT_FALSE(stuck.server.tick(1100 * kMs).ok());
}

TEST(Connection, QuietOnesDoNotTick) {
  Pair pair(Manner::kQuiet);
  ASSERT_TRUE(pair.carry().ok());
  EXPECT_EQ(pair.client.next_tick_ns(), UINT64_MAX);
  EXPECT_EQ(pair.server.next_tick_ns(), UINT64_MAX);
}

TEST(OutputQueue, PiecesComeInOrderAndDescriptorsWithTheirFirstByte) {
  OutputQueue queue;
  queue.append("head1", "small", {});
  queue.append("head2", std::string(5000, 'L'), {});
  queue.append("head3", "x", FileDescriptor(::dup(0)));
  queue.append("head4", "y", {});
  const uint64_t all = queue.waiting();
  std::string out;
  bool descriptor_seen = false;
  while (queue.waiting() > 0) {
    std::array<Bytes, 8> pieces;
    const auto batch = queue.front(absl::MakeSpan(pieces));
    ASSERT_GT(batch.pieces, 0u);
    if (batch.attached >= 0) {
      EXPECT_TRUE(pieces[0].starts_with("head3"));
      descriptor_seen = true;
    }
    out += pieces[0].substr(0, 3);
    queue.consume(std::min<size_t>(3, pieces[0].size()));
  }
  EXPECT_EQ(out, "head1smallhead2" + std::string(5000, 'L') + "head3xhead4y");
  EXPECT_TRUE(descriptor_seen);
  EXPECT_EQ(queue.written(), all);
}

}  // namespace
}  // namespace strata::transport
