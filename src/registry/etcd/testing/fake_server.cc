#include "registry/etcd/testing/fake_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>

namespace strata::registry::testing {
namespace {

constexpr int kPatienceMs = 2000;

sockaddr_in loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

// Appends what comes next; false at the end.
bool receive(int fd, std::string* bytes) {
  pollfd waiting{fd, POLLIN, 0};
  if (::poll(&waiting, 1, kPatienceMs) <= 0) return false;
  char buffer[65536];
  const ssize_t got = ::recv(fd, buffer, sizeof buffer, 0);
  if (got > 0) bytes->append(buffer, static_cast<size_t>(got));
  return got > 0;
}

bool is_whole(const std::string& message) {
  const size_t end = message.find("\r\n\r\n");
  if (end == std::string::npos) return false;
  const size_t length = message.find("Content-Length: ");
  if (length == std::string::npos || length > end) return true;
  return message.size() - end - 4 >= std::strtoul(message.c_str() + length + 16, nullptr, 10);
}

void send_all(int fd, const std::string& bytes) {
  for (size_t at = 0; at < bytes.size();) {
    const ssize_t sent = ::send(fd, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
    if (sent <= 0) return;  // the client has had enough
    at += static_cast<size_t>(sent);
  }
}

}  // namespace

FakeServer::FakeServer(Answer answer, bool keep) : answer_(std::move(answer)), keep_(keep) {
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = loopback(0);
  socklen_t bytes = sizeof address;
  EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), bytes), 0);
  EXPECT_EQ(::listen(listener_, 64), 0);
  EXPECT_EQ(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &bytes), 0);
  endpoint_ = "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  thread_ = std::thread([this] { run(); });
}

FakeServer::~FakeServer() {
  ::shutdown(listener_, SHUT_RDWR);
  thread_.join();
  ::close(listener_);
  for (const int fd : silent_) ::close(fd);
}

void FakeServer::run() {
  for (;;) {
    const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) return;
    if (serve(fd))
      ::close(fd);
    else
      silent_.push_back(fd);
  }
}

bool FakeServer::serve(int fd) {
  for (;;) {
    std::string request;
    while (!is_whole(request) && receive(fd, &request)) {
    }
    if (!is_whole(request)) return true;
    const std::optional<std::string> reply = answer_(request);
    if (!reply.has_value()) return false;
    send_all(fd, *reply);
    if (!keep_ || reply->empty()) return true;
  }
}

std::string http_reply(const std::string& body, const std::string& status) {
  return "HTTP/1.1 " + status +
         "\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body;
}

std::string forward(const std::string& endpoint, const std::string& request) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const auto port =
      static_cast<uint16_t>(std::strtoul(endpoint.c_str() + endpoint.rfind(':') + 1, nullptr, 10));
  const sockaddr_in address = loopback(port);
  std::string reply;
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
    send_all(fd, request);
    while (!is_whole(reply) && receive(fd, &reply)) {
    }
  }
  ::close(fd);
  return reply;
}

}  // namespace strata::registry::testing
