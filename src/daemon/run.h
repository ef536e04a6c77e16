// Runs a daemon from its start to its end: what is the same for all of them, in this order.
//
//   log -> descriptors -> signals -> what the daemon needs to start at all (secret, registry)
//   -> HTTP -> the node: folder, registry, lease, sockets -> "ready" on standard output
//   -> until a signal -> the node stops, then HTTP
//
//   DM7  It says that it is ready when it serves, and not before; standard output has that line
//        only.
//   DM8  A signal is heard at any moment of this; a start that was stopped is a clean end.
//   DM9  Nothing is torn down under who uses it: the node stops while HTTP can still be asked, and
//        is gone before the file system.
//   DM10  A stop ends within the time that the daemon allows it, or the process is ended.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/stop_flag.h"
#include "daemon/addresses.h"
#include "daemon/descriptors.h"
#include "daemon/exit_codes.h"
#include "daemon/log.h"
#include "daemon/status_server.h"
#include "io/file_system.h"

namespace strata::daemon {

// Why a daemon does not start: an event of the log, and the code to exit with.
struct Failure {
  const char* event;
  Status why;
  int exit_code = kFailed;
};
// With kUsage for an invalid argument.
[[nodiscard]] Failure failure_of(const char* event, const Status& why);

// What the process around a node has for it. All outlive it.
struct Surroundings {
  DescriptorShares descriptors;
  FileSystem* files = nullptr;
  // The disk is one for crash tests (io/file_system.h): whatever has files of its own goes through
  // it, too.
  bool disk_for_tests = false;
  StopFlag* stop = nullptr;    // raised: open() gives up soon
  std::string status_address;  // empty: there is no HTTP
};

// What one kind of daemon does that others do not. Used by one thread.
class Daemon {
 public:
  virtual ~Daemon() = default;
  // Before anything of the node is touched. Nothing: it may start.
  virtual std::optional<Failure> prepare() { return std::nullopt; }
  // For the log: who is starting.
  [[nodiscard]] virtual std::vector<Field> about() const = 0;
  // Serves when this returns the addresses that it listens on. Blocks. interrupted: the flag was
  // raised.
  virtual StatusOr<std::string> open(const Surroundings& around) = 0;
  // After open(). Null: nothing; only where there is no HTTP.
  [[nodiscard]] virtual const StatusSource* status() const { return nullptr; }
  // After open(). Blocks until what was begun is finished. What it says of itself meanwhile and
  // afterwards is still asked for.
  virtual void stop() = 0;
};

struct RunOptions {
  std::string program;  // its name, for messages
  // Nothing: no log; why it does not start is one line on standard error then.
  std::optional<Level> log = std::nullopt;
  std::optional<HostPort> http = std::nullopt;
  uint64_t stop_us_max = 0;  // DM10; 0: what it takes. Only for who loses nothing by it.
};

// Returns the exit code (CD2 in cmd/README.md). No other thread runs yet.
int run_daemon(const RunOptions& options, std::unique_ptr<Daemon> daemon);

}  // namespace strata::daemon
