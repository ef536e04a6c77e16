// /healthz, /metrics and /status over HTTP, for people and their tools. Reads only.
//   SH1  A thread of its own answers, one request per connection. Whoever connects, and however
//        often, takes at most so many descriptors as were said at the start, for some seconds, and
//        keeps nobody else from being answered (transport/http/http_server.h).
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "base/status.h"
#include "settings.h"
#include "storenode/node/storage_node.h"
#include "transport/http/http_server.h"
#include "transport/sockets/event_loop.h"
#include "transport/sockets/socket_network.h"

namespace strata::daemon {

class StatusServer {
 public:
  // Listens; says "starting" until it is given a node. kAlreadyExists: the address is in use.
  static StatusOr<std::unique_ptr<StatusServer>> start(const HttpAddress& at,
                                                       uint32_t connections_max);
  StatusServer(const StatusServer&) = delete;
  StatusServer& operator=(const StatusServer&) = delete;

  [[nodiscard]] const std::string& address() const noexcept { return address_; }
  // The node outlives the server.
  void serve(const storenode::StorageNode* node) { node_.store(node); }

 private:
  explicit StatusServer(uint32_t connections_max);
  void add_pages();
  std::string address_;
  std::atomic<const storenode::StorageNode*> node_{nullptr};
  transport::IoThread io_;
  transport::SocketNetwork network_;
  transport::HttpServer server_;  // goes first
};

}  // namespace strata::daemon
