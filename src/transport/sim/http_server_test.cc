// Goal: a person's request is answered whatever else is connected (HT1-HT3). Method: peers in the
// simulated world that say nothing, little, much, or nonsense, at exact times.
#include "transport/http/http_server.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "transport/sim/sim_world.h"

namespace strata::transport {
namespace {

constexpr uint64_t kMs = 1000;
constexpr size_t kLongBytes = 300'000;

class Peer final : public StreamEvents {
 public:
  Peer(const World& world, std::string says) : says_(std::move(says)) {
    stream_ = world.network->connect("sim:1:1");
    stream_->start(this);
  }
  void on_open() override {
    open_ = true;
    on_writable();
  }
  void on_writable() override {
    while (open_ && !closed && !says_.empty()) {
      const Bytes bytes = says_;
      const size_t taken = stream_->write({&bytes, 1}, -1);
      if (taken == 0) return;
      says_.erase(0, taken);
    }
  }
  // As clients do: it closes once it has the whole answer.
  void on_bytes(Bytes bytes) override {
    got.append(bytes);
    const size_t length = got.find("Content-Length: ");
    const size_t end = got.find("\r\n\r\n");
    if (end != std::string::npos && !stays && body().size() == std::stoul(got.substr(length + 16)))
      closed = true;
  }
  void on_closed(const Status&) override { closed = true; }
  void say(const std::string& more) {
    says_ += more;
    on_writable();
  }
  void set_reading(bool reading) { stream_->set_reading(reading); }
  [[nodiscard]] std::string first_line() const { return got.substr(0, got.find("\r\n")); }
  [[nodiscard]] std::string body() const {
    const size_t end = got.find("\r\n\r\n");
    return end == std::string::npos ? "" : got.substr(end + 4);
  }
  void close() { stream_.reset(); }
  bool closed = false;
  bool stays = false;
  std::string got;

 private:
  bool open_ = false;
  std::string says_;
  std::unique_ptr<Stream> stream_;
};

class Http : public testing::Test {
 protected:
  Http() : world_(1, SimFaults{.delay_us_min = 100, .delay_us_max = 100}) {
    world_.add_node();
    world_.add_node();
    start({});
  }
  void start(const HttpOptions& options) {
    server_.reset();
    server_ = std::make_unique<HttpServer>(world_.world(1), options);
    server_->handle("/healthz", [this] {
      asked_++;
      return HttpAnswer{.status = healthy_ ? 200 : 503, .body = healthy_ ? "ok\n" : "not well\n"};
    });
    server_->handle("/long", [] {
      return HttpAnswer{.type = "application/json", .body = std::string(kLongBytes, 'x')};
    });
    ASSERT_TRUE(server_->listen("sim:1:1").ok());
  }
  std::unique_ptr<Peer> peer(const std::string& says) {
    return std::make_unique<Peer>(world_.world(0), says);
  }
  std::unique_ptr<Peer> asked(const std::string& says, uint64_t us = 10 * kMs) {
    auto made = peer(says);
    world_.run_for(us);
    if (made->closed) made->close();
    world_.run_for(1 * kMs);
    return made;
  }
  SimWorld world_;
  std::unique_ptr<HttpServer> server_;
  bool healthy_ = true;
  int asked_ = 0;
};

const std::string kGet = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";

TEST_F(Http, AnswersAndCloses) {
  const auto good = asked(kGet);
  EXPECT_EQ(good->first_line(), "HTTP/1.1 200 OK");
  EXPECT_NE(good->got.find("Content-Length: 3\r\n"), std::string::npos);
  EXPECT_EQ(good->body(), "ok\n");
  healthy_ = false;
  EXPECT_EQ(asked("GET /healthz?verbose HTTP/1.0\r\n\r\n")->first_line(),
            "HTTP/1.1 503 Service Unavailable");
  const auto head = asked("HEAD /healthz HTTP/1.1\r\n\r\n");
  EXPECT_EQ(head->first_line(), "HTTP/1.1 503 Service Unavailable");
  EXPECT_NE(head->got.find("Content-Length: 9\r\n"), std::string::npos);
  EXPECT_EQ(head->body(), "");
  const auto long_one = asked("GET /long HTTP/1.1\r\n\r\n", 1000 * kMs);
  EXPECT_EQ(long_one->body().size(), kLongBytes);
  EXPECT_EQ(server_->connections(), 0u);
}

TEST_F(Http, WhatIsNoRequestIsRefused) {
  EXPECT_EQ(asked("GET /other HTTP/1.1\r\n\r\n")->first_line(), "HTTP/1.1 404 Not Found");
  EXPECT_EQ(asked("POST /healthz HTTP/1.1\r\n\r\n")->first_line(),
            "HTTP/1.1 405 Method Not Allowed");
  for (const char* const bad : {"\r\n\r\n", " \r\n\r\n", "GET\r\n\r\n", "GET /healthz\r\n\r\n",
                                "GET healthz HTTP/1.1\r\n\r\n", "GET /healthz SPDY\r\n\r\n"})
    EXPECT_EQ(asked(bad)->first_line(), "HTTP/1.1 400 Bad Request") << bad;
  EXPECT_EQ(asked(std::string(100'000, 'x'), 1000 * kMs)->first_line(),
            "HTTP/1.1 431 Request Header Fields Too Large");
  EXPECT_EQ(asked_, 0);
  EXPECT_EQ(server_->connections(), 0u);
}

TEST_F(Http, WhatComesBehindARequestIsIgnored) {
  const auto one = peer(kGet + kGet + std::string(50'000, 'x'));
  one->stays = true;
  world_.run_for(100 * kMs);
  EXPECT_EQ(one->body(), "ok\n");
  EXPECT_EQ(asked_, 1);
  EXPECT_FALSE(one->closed) << "the peer closes first";
  world_.run_for(1000 * kMs);
  EXPECT_TRUE(one->closed) << "but is not waited for for long";
}

TEST_F(Http, ARequestMayComeInPiecesAndRunsOnce) {
  const auto one = peer("");
  for (const char c : kGet) {
    one->say(std::string(1, c));
    world_.run_for(1 * kMs);
  }
  world_.run_for(10 * kMs);
  EXPECT_EQ(one->body(), "ok\n");
  EXPECT_EQ(asked_, 1);
}

// HT1: neither silence nor a byte now and then nor not reading keeps a connection.
TEST_F(Http, NobodyStaysForLong) {
  const auto silent = peer("");
  const auto slow = peer("GET");
  const auto deaf = peer("GET /long HTTP/1.1\r\n\r\n");
  deaf->set_reading(false);
  world_.run_for(1 * kMs);
  for (int i = 0; i < 49; i++) {
    slow->say("x");
    world_.run_for(100 * kMs);
  }
  EXPECT_EQ(server_->connections(), 3u);
  EXPECT_FALSE(silent->closed || slow->closed);
  world_.run_for(150 * kMs);
  EXPECT_EQ(server_->connections(), 0u);
  EXPECT_TRUE(silent->closed && slow->closed);
}

// HT2: a thousand connections at once, coming again when they are closed, hold no more places than
// there are, and who asks is answered.
TEST_F(Http, ACrowdKeepsNobodyOut) {
  constexpr uint32_t kPlaces = 16;
  start({.connections_max = kPlaces});
  std::vector<std::unique_ptr<Peer>> crowd;
  for (int i = 0; i < 1000; i++) crowd.push_back(peer(i % 2 == 0 ? "" : "GET /heal"));
  world_.run_for(10 * kMs);
  EXPECT_EQ(server_->connections(), kPlaces);
  EXPECT_EQ(server_->evicted(), 1000u - kPlaces);
  const auto one = asked(kGet);
  EXPECT_EQ(one->body(), "ok\n");
}

TEST_F(Http, ItMayEndWithConnectionsUnderWay) {
  const auto silent = asked("GET");
  const auto deaf = peer("GET /long HTTP/1.1\r\n\r\n");
  world_.run_for(300);
  server_.reset();
  world_.run_for(10 * kMs);
  EXPECT_TRUE(silent->closed);
  EXPECT_TRUE(deaf->closed);
}

}  // namespace
}  // namespace strata::transport
