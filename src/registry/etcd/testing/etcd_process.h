// A real etcd for a test: on loopback, with a folder of its own in the current directory, gone with
// the test. The program is what `./strata setup` unpacked; STRATA_ETCD names another.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "registry/registry.h"

namespace strata::registry::testing {

class EtcdProcess {
 public:
  EtcdProcess();  // starts it; the test fails when it does not answer
  ~EtcdProcess();
  EtcdProcess(const EtcdProcess&) = delete;
  EtcdProcess& operator=(const EtcdProcess&) = delete;

  void start();  // after kill(), on the same port and folder
  void kill();   // with signal 9
  void pause();
  void resume();
  void wipe();  // after kill(): the next start makes another cluster
  // Forgets all changes before the newest.
  void compact();

  [[nodiscard]] const std::string& endpoint() const { return endpoint_; }
  [[nodiscard]] std::unique_ptr<Registry> connect(uint64_t retry_us_min = 20'000) const;

 private:
  const std::string folder_;
  std::string endpoint_;
  uint16_t port_ = 0;
  int life_ = 0;
  pid_t pid_ = -1;
};

// Nothing listens there (any more).
[[nodiscard]] uint16_t free_port();

}  // namespace strata::registry::testing
