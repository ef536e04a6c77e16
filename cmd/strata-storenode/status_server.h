// /healthz, /metrics and /status over HTTP, for people and their tools. Reads only.
//   CH1  Two threads answer, one request per connection; a caller that is slow or sends much is cut
//        off.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "base/status.h"
#include "settings.h"
#include "storenode/node/storage_node.h"

namespace httplib {
class Server;
}

namespace strata::daemon {

class StatusServer {
 public:
  // Listens; says "starting" until it is given a node. kAlreadyExists: the address is in use.
  static StatusOr<std::unique_ptr<StatusServer>> start(const HttpAddress& at);
  ~StatusServer();  // ends what is under way
  StatusServer(const StatusServer&) = delete;
  StatusServer& operator=(const StatusServer&) = delete;

  [[nodiscard]] const std::string& address() const noexcept { return address_; }
  // The node outlives the server.
  void serve(const storenode::StorageNode* node) { node_.store(node); }

 private:
  StatusServer();
  void add_handlers();
  std::unique_ptr<httplib::Server> server_;
  std::string address_;
  std::atomic<const storenode::StorageNode*> node_{nullptr};
  std::thread thread_;
};

}  // namespace strata::daemon
