// The page for people: what it answers from the start to the end, and that nothing a peer sends, or
// leaves unsaid, keeps others from being answered.
#include "daemon/status_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <vector>

namespace strata::daemon {
namespace {

class Source final : public StatusSource {
 public:
  [[nodiscard]] Status health() const override {
    return well ? ok_status() : error_lease_lost("it is no member; to do: wait");
  }
  [[nodiscard]] std::string metrics() const override { return "strata_x 1\n"; }
  [[nodiscard]] std::string status_json() const override { return "{}\n"; }
  std::atomic<bool> well{true};
};

class Peer {
 public:
  explicit Peer(const std::string& address) {
    const auto at = parse_host_port(address);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(at->port);
    EXPECT_EQ(::inet_pton(AF_INET, at->host.c_str(), &to.sin_addr), 1);
    fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(::connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
  }
  ~Peer() { ::close(fd_); }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  void send(std::string_view bytes) const {
    // Fails once the server has closed; then there is nothing more to send.
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
  }
  void end() const { ::shutdown(fd_, SHUT_WR); }
  // All of it, until the server closes.
  [[nodiscard]] std::string received() const {
    std::string text;
    char bytes[1000];
    for (;;) {
      pollfd wanted{fd_, POLLIN, 0};
      if (::poll(&wanted, 1, 60'000) != 1) ADD_FAILURE() << "no answer and no end";
      const ssize_t got = ::recv(fd_, bytes, sizeof bytes, 0);
      if (got <= 0) return text;
      text.append(bytes, static_cast<size_t>(got));
      const size_t body = text.find("\r\n\r\n");
      const size_t length = text.find("Content-Length: ");
      if (body == std::string::npos || length == std::string::npos) continue;
      if (text.size() >= body + 4 + std::stoul(text.substr(length + 16))) return text;
    }
  }

 private:
  int fd_ = -1;
};

class StatusServerTest : public ::testing::Test {
 protected:
  void start(uint32_t connections_max = 64) {
    auto started = StatusServer::start({"127.0.0.1", 0}, connections_max);
    ASSERT_TRUE(started.ok()) << started.status();
    server_ = *std::move(started);
  }
  [[nodiscard]] std::string get(const std::string& path) const {
    const Peer peer(server_->address());
    peer.send("GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n");
    return peer.received();
  }
  [[nodiscard]] static bool begins(const std::string& text, const std::string& with) {
    return text.substr(0, with.size()) == with;
  }

  Source source_;
  std::unique_ptr<StatusServer> server_;  // goes before it
};

TEST_F(StatusServerTest, SaysStartingUntilItHasANode) {
  start();
  for (const char* path : {"/healthz", "/metrics", "/status"}) {
    const std::string answer = get(path);
    EXPECT_TRUE(begins(answer, "HTTP/1.1 503 ")) << answer;
    EXPECT_TRUE(answer.ends_with("\r\n\r\nstarting\n")) << answer;
  }
  server_->serve(&source_);
  EXPECT_TRUE(get("/healthz").ends_with("\r\n\r\nok\n"));
  const std::string metrics = get("/metrics?x=1");
  EXPECT_TRUE(begins(metrics, "HTTP/1.1 200 ")) << metrics;
  EXPECT_NE(metrics.find("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"),
            std::string::npos);
  EXPECT_TRUE(metrics.ends_with("\r\n\r\nstrata_x 1\n")) << metrics;
  const std::string status = get("/status");
  EXPECT_NE(status.find("Content-Type: application/json\r\n"), std::string::npos) << status;
  EXPECT_TRUE(status.ends_with("\r\n\r\n{}\n")) << status;
  source_.well = false;
  const std::string ill = get("/healthz");
  EXPECT_TRUE(begins(ill, "HTTP/1.1 503 ")) << ill;
  EXPECT_TRUE(ill.ends_with("\r\n\r\nit is no member; to do: wait\n")) << ill;
  EXPECT_TRUE(begins(get("/nothing"), "HTTP/1.1 404 "));
}

TEST_F(StatusServerTest, GarbageIsRefusedAndOthersAreAnswered) {  // DM6
  start();
  server_->serve(&source_);
  const std::string nothing;
  const std::vector<std::string> garbage{
      "\r\n\r\n",
      "GET\r\n\r\n",
      "GET /healthz\r\n\r\n",
      "GET healthz HTTP/1.1\r\n\r\n",
      "POST /healthz HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello",
      "GET /" + std::string(7000, 'x') + " HTTP/1.1\r\n\r\n",
      "GET /healthz HTTP/1.1\r\n" + std::string(20'000, 'h'),
      std::string("\0\xff\x16\x03\x01 \0\r\n\r\n", 11),
      "GET /../../etc/passwd HTTP/1.1\r\n\r\n",
  };
  for (const std::string& bytes : garbage) {
    const Peer peer(server_->address());
    peer.send(bytes);
    peer.end();
    const std::string answer = peer.received();
    EXPECT_TRUE(answer.empty() || begins(answer, "HTTP/1.1 4")) << bytes << " got " << answer;
    EXPECT_TRUE(get("/healthz").ends_with("\r\n\r\nok\n"));
  }
}

TEST_F(StatusServerTest, SilentPeersKeepNobodyOut) {  // DM6
  start(3);
  server_->serve(&source_);
  std::vector<std::unique_ptr<Peer>> silent;
  for (int i = 0; i < 12; ++i) {
    silent.push_back(std::make_unique<Peer>(server_->address()));
    silent.back()->send("GET /hea");
  }
  EXPECT_TRUE(get("/healthz").ends_with("\r\n\r\nok\n"));
}

TEST_F(StatusServerTest, AnAddressThatIsTakenIsSaidToBe) {
  start();
  const auto port = parse_host_port(server_->address())->port;
  const Status second = StatusServer::start({"127.0.0.1", port}, 64).status();
  EXPECT_TRUE(is_in_use(second)) << second;
  EXPECT_NE(second.message().find("cannot listen for HTTP on " + server_->address()),
            absl::string_view::npos)
      << second;
}

}  // namespace
}  // namespace strata::daemon
