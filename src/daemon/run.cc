#include "daemon/run.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <thread>
#include <utility>

#include "base/fault.h"
#include "base/thread_name.h"
#include "daemon/signals.h"

namespace strata::daemon {
namespace {

int refuse(const RunOptions& options, const Failure& failure) {
  const std::string reason = cause_and_remedy(failure.why);
  if (options.log.has_value())
    log_event(Level::kError, failure.event, {{"reason", reason}});
  else
    std::fprintf(stderr, "%s: %s\n", options.program.c_str(), reason.c_str());
  return failure.exit_code;
}

// What was decided to be printed for scripts.
void say_ready(const std::string& address, const StatusServer* http) {
  std::vector<Field> fields{{"address", shown_address(address)}};
  if (http != nullptr) fields.emplace_back("http", http->address());
  std::string line = "ready";
  for (const auto& [key, value] : fields) line.append(" ").append(key).append("=").append(value);
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
  log_event(Level::kInfo, "ready", fields);
}

// DM10
class StopDeadline {
 public:
  explicit StopDeadline(const RunOptions& options) {
    if (options.stop_us_max != 0) thread_ = std::thread([this, &options] { watch(options); });
  }
  ~StopDeadline() {
    stopped_.raise();
    if (thread_.joinable()) thread_.join();
  }
  StopDeadline(const StopDeadline&) = delete;
  StopDeadline& operator=(const StopDeadline&) = delete;

 private:
  void watch(const RunOptions& options) {
    name_this_thread("stop-deadline");
    if (stopped_.wait_for_us(options.stop_us_max)) return;
    const std::string us = std::to_string(options.stop_us_max);
    _exit(refuse(options,
                 {"stop_too_slow", error_timed_out("it did not stop within " + us + " us")}));
  }
  StopFlag stopped_;
  std::thread thread_;
};

}  // namespace

Failure failure_of(const char* event, const Status& why) {
  return {event, why, is_invalid_argument(why) ? kUsage : kFailed};
}

int run_daemon(const RunOptions& options, std::unique_ptr<Daemon> daemon) {
  if (options.log.has_value()) start_log(*options.log);
  arm_fault_from_environment();
  const auto shares = reserve_descriptors();
  if (!shares.ok()) return refuse(options, failure_of("too_few_descriptors", shares.status()));
  StopFlag stop;
  const Signals signals(&stop);
  // For crash tests: a disk that remembers what was not yet durable, is full or fails on demand.
  auto files = make_file_system_for_tests();
  const bool disk_for_tests = files != nullptr;
  if (files == nullptr) files = make_posix_file_system();

  std::optional<StopDeadline> deadline;  // of what is below
  const std::unique_ptr<Daemon> node = std::move(daemon);
  if (const auto failure = node->prepare()) return refuse(options, *failure);
  std::unique_ptr<StatusServer> http;
  if (options.http.has_value()) {
    auto started = StatusServer::start(*options.http, shares->http);
    if (!started.ok()) return refuse(options, failure_of("no_http", started.status()));
    http = *std::move(started);
  }
  log_event(Level::kInfo, "starting", node->about());
  const auto address = node->open({.descriptors = *shares,
                                   .files = files.get(),
                                   .disk_for_tests = disk_for_tests,
                                   .stop = &stop,
                                   .status_address = http != nullptr ? http->address() : ""});
  if (!address.ok()) {
    if (!stop.raised() || !is_interrupted(address.status()))
      return refuse(options, failure_of("start_failed", address.status()));
    log_event(Level::kInfo, "stopped", {{"reason", "while starting"}});
    return EXIT_SUCCESS;
  }
  if (http != nullptr) http->serve(node->status());
  say_ready(*address, http.get());
  stop.wait();
  deadline.emplace(options);
  node->stop();
  log_event(Level::kInfo, "stopped");
  return EXIT_SUCCESS;
}

}  // namespace strata::daemon
