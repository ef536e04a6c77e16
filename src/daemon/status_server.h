// /healthz, /metrics and /status over HTTP, for people and their tools. Reads only.
//
//   DM6  A thread of its own answers, one request per connection. Whoever connects, and however
//        often, takes at most so many descriptors as were said at the start, for some seconds, and
//        keeps nobody else from being answered (transport/http/http_server.h).
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "base/status.h"
#include "daemon/addresses.h"
#include "transport/http/http_server.h"
#include "transport/sockets/event_loop.h"
#include "transport/sockets/socket_network.h"

namespace strata::daemon {

// What is said about a node. Thread-safe; called in the server's thread.
class StatusSource {
 public:
  virtual ~StatusSource() = default;
  // Why not all is well; OK otherwise.
  [[nodiscard]] virtual Status health() const = 0;
  [[nodiscard]] virtual std::string metrics() const = 0;  // metrics_text.h
  [[nodiscard]] virtual std::string status_json() const = 0;
};

class StatusServer {
 public:
  // Listens; says "starting" until it is given a source. in_use: the address.
  static StatusOr<std::unique_ptr<StatusServer>> start(const HostPort& at,
                                                       uint32_t connections_max);
  StatusServer(const StatusServer&) = delete;
  StatusServer& operator=(const StatusServer&) = delete;

  [[nodiscard]] const std::string& address() const noexcept { return address_; }
  // The source outlives the server.
  void serve(const StatusSource* source) { source_.store(source); }

 private:
  explicit StatusServer(uint32_t connections_max);
  void add_pages();
  std::string address_;
  std::atomic<const StatusSource*> source_{nullptr};
  transport::IoThread io_;
  transport::SocketNetwork network_;
  transport::HttpServer server_;  // goes first
};

}  // namespace strata::daemon
