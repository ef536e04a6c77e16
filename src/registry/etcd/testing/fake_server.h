// An HTTP server that answers whatever a test wants, byte by byte. Loopback, one connection at a
// time.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace strata::registry::testing {

class FakeServer {
 public:
  // Gets a whole request, header and body; returns what to send before the connection is closed, or
  // nothing to leave it open and silent. Runs in the server's thread.
  using Answer = std::function<std::optional<std::string>(const std::string& request)>;

  // `keep`: a connection may carry several requests; an empty answer closes it.
  explicit FakeServer(Answer answer, bool keep = false);
  ~FakeServer();
  FakeServer(const FakeServer&) = delete;
  FakeServer& operator=(const FakeServer&) = delete;
  [[nodiscard]] const std::string& endpoint() const { return endpoint_; }

 private:
  void run();
  bool serve(int fd);  // false: it stays open and silent
  const Answer answer_;
  const bool keep_;
  int listener_ = -1;
  std::string endpoint_;
  std::vector<int> silent_;
  std::thread thread_;
};

[[nodiscard]] std::string http_reply(const std::string& body, const std::string& status = "200 OK");
// Sends a request as it is to a port of loopback and returns all that comes back.
[[nodiscard]] std::string forward(const std::string& endpoint, const std::string& request);

}  // namespace strata::registry::testing
