// A node over real sockets, for tests: an IO thread, a network, addresses of its own.
#pragma once

#include <stdlib.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "transport/calls/testing/connections.h"
#include "transport/sockets/event_loop.h"
#include "transport/sockets/socket_network.h"

namespace strata::transport::test {

class IoNode {
 public:
  IoNode() : network_(thread_.loop(), counters) {}
  [[nodiscard]] World world() { return {thread_.loop(), &network_, system_entropy()}; }
  std::shared_ptr<Counters> counters = std::make_shared<Counters>();

 private:
  IoThread thread_;
  SocketNetwork network_;
};

// A folder for sockets and files, gone with the object.
class Folder {
 public:
  Folder() {
    char name[] = "/tmp/strata-transport-XXXXXX";
    path_ = ::mkdtemp(name);
  }
  ~Folder() {
    const std::string command = "rm -rf " + path_;
    (void)!std::system(command.c_str());
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace strata::transport::test
