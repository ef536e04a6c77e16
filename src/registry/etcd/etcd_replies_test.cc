// Goal: whatever is at the other end, calls end in time with a true report, watches and renewals go
// on, and nothing crashes. Method: a server that answers garbage of every kind, endless and silent
// replies included.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>

#include "base/clock.h"
#include "base/diag.h"
#include "base/rng.h"
#include "base/testing/wait_until.h"
#include "registry/etcd/etcd.h"
#include "registry/etcd/testing/fake_server.h"
#include "registry/testing/conformance.h"

namespace strata::registry {
namespace {

using testing::FakeServer;
using testing::http_reply;

constexpr uint64_t kSecond = 1'000'000;
constexpr size_t kReplyBytesMax = 100'000;
const std::string kHeader = R"("header":{"cluster_id":"5","revision":"7"})";

std::unique_ptr<Registry> connect(const FakeServer& server) {
  return *make_etcd_registry({.endpoints = {server.endpoint()},
                              .watch_check_us = kSecond / 5,
                              .retry_us_min = 5'000,
                              .retry_us_max = 20'000,
                              .reply_bytes_max = kReplyBytesMax});
}

uint64_t soon() { return monotonic_us() + kSecond; }

class RepliesTest : public ::testing::Test {
 protected:
  RepliesTest() {
    set_diag_sink([](Severity, std::string_view) {});
  }
  ~RepliesTest() override { set_diag_sink(nullptr); }
};

// What every call comes to when the server always says this.
void expect_reported(const std::string& what, const FakeServer::Answer& answer) {
  SCOPED_TRACE(what);
  FakeServer server(answer);
  const auto registry = connect(server);
  const uint64_t began = monotonic_us();
  const auto changed = registry->change(Change::create("a", "x"), soon());
  EXPECT_TRUE(is_outcome_unknown(changed.status())) << changed.status();  // RG3
  for (const Status& status :
       {registry->get("a", soon()).status(), registry->list("a", soon()).status(),
        registry->grant_lease(5, nullptr, soon()).status()})
    EXPECT_TRUE(is_corruption(status) || is_peer_down(status) || is_timed_out(status)) << status;
  EXPECT_LT(monotonic_us() - began, 6 * kSecond);
  testing::Seen seen;
  std::atomic<int> requests{0};
  const auto watch = registry->watch("a", seen.handler());
  EXPECT_TRUE(seen.batches().empty());
}

TEST_F(RepliesTest, GarbageIsReported) {
  const std::string large(kReplyBytesMax + 1, ' ');
  const std::pair<std::string, std::string> replies[] = {
      {"nothing", ""},
      {"no HTTP", "garbage\r\n\r\n"},
      {"zeroes", std::string(1000, '\0')},
      {"half a header", "HTTP/1.1 200 OK\r\nContent-Le"},
      {"half a body", "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"},
      {"a negative length", "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n{}"},
      {"bad chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n{}\r\n"},
      {"no body", http_reply("")},
      {"no JSON", http_reply("<html>")},
      {"another JSON", http_reply("[1,2,3]")},
      {"JSON without a header", http_reply("{\"kvs\":[]}")},
      {"bytes", http_reply(std::string(500, '\xff'))},
      {"a redirect",
       "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"},
      {"an error",
       http_reply("{\"error\":\"x\",\"message\":\"x\",\"code\":2}", "500 Internal Server Error")},
      {"an error that is none", http_reply("oops", "500 Internal Server Error")},
      {"too large", http_reply("{" + kHeader + large + "}")},
      {"too large, without a length", "HTTP/1.1 200 OK\r\n\r\n{" + kHeader + large + large + "}"},
      {"too much header", "HTTP/1.1 200 OK\r\nX: " + large + "\r\n\r\n{}"},
      {"many headers",
       [] {
         std::string reply = "HTTP/1.1 200 OK\r\n";
         for (int i = 0; i < 20'000; i++) reply += "X: y\r\n";
         return reply + "\r\n{}";
       }()},
      {"many 100s",
       [] {
         std::string reply;
         for (int i = 0; i < 20'000; i++) reply += "HTTP/1.1 100 Continue\r\n\r\n";
         return reply;
       }()},
  };
  for (const auto& [what, reply] : replies)
    expect_reported(what, [&reply = reply](const std::string&) { return reply; });
}

TEST_F(RepliesTest, RandomBytesAreReported) {
  Rng rng(7);
  const std::string whole = http_reply("{" + kHeader + "}");
  for (int trial = 0; trial < 30; trial++) {
    std::string broken = whole.substr(0, rng.below(whole.size()));
    if (rng.one_in(2)) {
      broken.resize(200 + rng.below(2000));
      for (char& c : broken) c = static_cast<char>(rng.below(256));
    }
    expect_reported("trial " + std::to_string(trial), [&](const std::string&) { return broken; });
  }
}

TEST_F(RepliesTest, SilenceEndsAtTheDeadline) {
  expect_reported("silence", [](const std::string&) { return std::nullopt; });
}

TEST_F(RepliesTest, AnotherServiceWasNotAskedToDoAnything) {
  FakeServer server([](const std::string&) { return http_reply("not here", "404 Not Found"); });
  const auto changed = connect(server)->change(Change::create("a", "x"), soon());
  EXPECT_TRUE(is_peer_down(changed.status())) << changed.status();
}

TEST_F(RepliesTest, KeysThatWereNotAskedForAreRefused) {
  FakeServer server([](const std::string&) {
    return http_reply("{" + kHeader + R"(,"kvs":[{"key":"Yg==","mod_revision":"3"}]})");
  });
  const auto registry = connect(server);
  EXPECT_TRUE(is_corruption(registry->get("a", soon()).status()));
  EXPECT_TRUE(is_corruption(registry->list("a", soon()).status()));
  EXPECT_TRUE(registry->get("b", soon()).ok());
}

TEST_F(RepliesTest, AListWithoutEndIsRefused) {
  FakeServer server([](const std::string&) {
    return http_reply("{" + kHeader + R"(,"kvs":[{"key":"YQ==","mod_revision":"3"}],"more":true})");
  });
  EXPECT_TRUE(is_corruption(connect(server)->list("a", soon()).status()));
}

// EC2
TEST_F(RepliesTest, ARegistryThatWentBackIsRefused) {
  std::atomic<int> revision{9};
  FakeServer server([&](const std::string&) {
    return http_reply(R"({"header":{"cluster_id":"5","revision":")" +
                      std::to_string(revision.load()) + R"("},"succeeded":true})");
  });
  const auto registry = connect(server);
  EXPECT_TRUE(registry->get("a", soon()).ok());
  revision = 8;
  EXPECT_TRUE(is_corruption(registry->get("a", soon()).status()));
  EXPECT_TRUE(is_outcome_unknown(registry->change(Change::create("a", "x"), soon()).status()));
  revision = 10;
  EXPECT_EQ(*registry->change(Change::create("a", "x"), soon()), Version{10});
}

// EC1, RH3: on a connection that was used before, libcurl would send the change a second time.
TEST_F(RepliesTest, AChangeIsSentOnce) {
  std::atomic<int> changes{0};
  FakeServer server(
      [&](const std::string& request) {
        if (request.find("/v3/kv/txn") == std::string::npos) return http_reply("{" + kHeader + "}");
        changes++;
        return std::string();
      },
      /*keep=*/true);
  const auto registry = connect(server);
  EXPECT_TRUE(registry->get("a", soon()).ok());
  const auto changed = registry->change(Change::create("a", "x"), monotonic_us() + 10 * kSecond);
  EXPECT_TRUE(is_outcome_unknown(changed.status())) << changed.status();
  EXPECT_EQ(changes.load(), 1);
}

// A watch survives whatever a stream may say, and never passes on what does not come next.
TEST_F(RepliesTest, AWatchThatIsToldNonsenseIsTakenUpAgain) {
  const auto events = [](const std::string& key, int revision) {
    return R"({"result":{)" + kHeader + R"(,"events":[{"kv":{"key":")" + key +
           R"(","mod_revision":")" + std::to_string(revision) + R"("}}]}})" + "\n";
  };
  const std::string created = R"({"result":{)" + kHeader + R"(,"created":true}})" + "\n";
  const std::vector<std::string> streams = {
      "",
      "nonsense\n",
      created + "nonsense\n",
      created + events("YQ==", 7),  // not newer than the snapshot
      created + events("Yg==", 8),  // another prefix
      created + R"({"error":{"grpc_code":14,"message":"etcdserver: no leader"}})" + "\n",
      created + R"({"result":{)" + kHeader + R"(,"canceled":true,"cancel_reason":"so"}})" + "\n",
      created + std::string(kReplyBytesMax + 1, 'x'),
      R"({"result":{"header":{"cluster_id":"6","revision":"7"},"created":true}})"
      "\n",
      "\n\n\n",
      created + R"({"result":{)" + kHeader + R"(,"fragment":true,"events":[{"kv":{"key":"YQ==",)" +
          R"("mod_revision":"8","value":"cGFydA=="}}]}})" + "\n",  // the rest never comes
      created + events("YWE=", 8) + events("YWI=", 9),
  };
  std::atomic<size_t> next{0};
  FakeServer server([&](const std::string& request) -> std::optional<std::string> {
    if (request.find("/v3/watch") == std::string::npos) return http_reply("{" + kHeader + "}");
    const size_t index = next++;
    if (index >= streams.size()) return std::nullopt;
    return "HTTP/1.1 200 OK\r\n\r\n" + streams[index];
  });
  const auto registry = connect(server);
  testing::Seen seen;
  const auto watch = registry->watch("a", seen.handler());
  EXPECT_TRUE(strata::testing::wait_until([&] { return seen.entries().size() == 2; }));
  EXPECT_EQ(seen.snapshots(), 1u);
  EXPECT_EQ(seen.entries()[0].key, "aa");
  EXPECT_EQ(seen.entries()[1].key, "ab");
  EXPECT_TRUE(strata::testing::wait_until([&] { return next.load() > streams.size(); }));
}

TEST_F(RepliesTest, RenewalsThatAreAnsweredWithNonsenseGoOnUntilTheTimeIsOver) {
  const std::string good = R"({"result":{)" + kHeader + R"(,"ID":"9","TTL":"1"}})" + "\n";
  const std::vector<std::string> bad = {
      "", "nonsense", http_reply("{}"), http_reply(good, "500 Internal Server Error"),
      http_reply(R"({"result":{)" + kHeader + R"(,"ID":"8","TTL":"1"}})")};
  std::atomic<bool> broken{false};
  std::atomic<size_t> renewals{0};
  FakeServer server([&](const std::string& request) -> std::optional<std::string> {
    if (request.find("/lease/grant") != std::string::npos)
      return http_reply("{" + kHeader + R"(,"ID":"9","TTL":"1"})");
    const size_t n = renewals++;
    return broken.load() || n % 2 == 0 ? bad[n / 2 % bad.size()] : http_reply(good);
  });
  const auto registry = connect(server);
  std::atomic<int> lost{0};
  auto lease = registry->grant_lease(
      1, [&](LeaseId) { lost++; }, soon());
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_TRUE(strata::testing::wait_until([&] { return renewals.load() >= 2 * bad.size(); }));
  EXPECT_TRUE((*lease)->valid());
  broken = true;
  EXPECT_TRUE(strata::testing::wait_until([&] { return lost.load() == 1; }));
  EXPECT_FALSE((*lease)->valid());
}

// The registry's clock is not dilated, and ends a lease that is renewed by a slower one. Clocks are
// real here: what is to be seen is that intervals are as many times shorter.
[[noreturn]] void renew_in_dilated_time() {
  ::setenv("STRATA_DILATE_FACTOR", "100", 1);
  std::atomic<size_t> renewals{0};
  FakeServer server([&](const std::string& request) -> std::optional<std::string> {
    if (request.find("/lease/grant") != std::string::npos)
      return http_reply("{" + kHeader + R"(,"ID":"9","TTL":"60"})");
    renewals++;
    return http_reply(R"({"result":{)" + kHeader + R"(,"ID":"9","TTL":"60"}})" + "\n");
  });
  const auto registry = connect(server);
  const auto lease = registry->grant_lease(60, nullptr, soon());
  const bool renewed = strata::testing::wait_until([&] { return renewals.load() >= 2; });
  ::_exit(lease.ok() && renewed ? 0 : 1);  // 20 s each by real time
}
TEST(DilatedLease, IsRenewedByTheRegistrysTime) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // in a program that has not read the setting yet
  const uint64_t began = monotonic_us();
  EXPECT_EXIT(renew_in_dilated_time(), ::testing::ExitedWithCode(0), "");
  EXPECT_LT(monotonic_us() - began, 15 * kSecond);
}

}  // namespace
}  // namespace strata::registry
