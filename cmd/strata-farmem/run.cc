#include "run.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <map>

#include "base/clock.h"
#include "farmem/node/memory_client.h"
#include "farmem/pager/userfault.h"
#include "farmem/trace/trace_writer.h"
#include "program.h"
#include "report.h"
#include "transport/secret.h"

namespace strata::farmem {
namespace {

constexpr const char* kLibrary = "libstrata-farmem.so";
constexpr timespec kLookEvery{.tv_sec = 1, .tv_nsec = 0};

StatusOr<std::string> absolute_path(const std::string& path) {
  if (path.front() == '/') return path;
  std::array<char, PATH_MAX> folder;
  if (::getcwd(folder.data(), folder.size()) == nullptr)
    return error_invalid_argument(std::string("this folder is gone: ") + std::strerror(errno));
  return std::string(folder.data()) + "/" + path;
}

// Whether this user may have the kernel tell of faults: by the device, else by the system call.
StatusOr<int> userfault_device() {
  const int device = ::open("/dev/userfaultfd", O_RDWR);  // inherited
  const auto tried = Userfault::open(device);
  STRATA_RETURN_IF_ERROR(tried.status());
  return device;
}

class Run {
 public:
  Run(const RunSettings& settings, SharedMemory shared)
      : settings_(settings), setup_(shared.get()), fd_(shared.fd()) {}

  Status prepare(const transport::Secret& secret, int device) {
    put_text(&setup_->address, settings_.memory_node);
    secret.bytes().copy(setup_->secret.data(), setup_->secret.size());
    setup_->userfault_device = device;
    setup_->replacement = static_cast<uint32_t>(settings_.policy.replacement);
    setup_->frames = settings_.policy.frames;
    setup_->ways = settings_.policy.ways;
    setup_->prefetch = settings_.policy.prefetch;
    setup_->far_pages = settings_.far_bytes / kPageBytes;
    setup_->far_bytes_min = settings_.far_from_bytes;
    setup_->timeout_us = settings_.timeout_us;
    setup_->link_round_trip_ns = settings_.link.round_trip_ns;
    setup_->link_bytes_per_second = settings_.link.bytes_per_second;
    if (settings_.memory_node.size() >= kAddressBytesMax)
      return error_invalid_argument("the memory node's address is too long");
    // Better known before the program has begun its work.
    STRATA_ASSIGN_OR_RETURN(const auto node,
                            MemoryClient::open(secret, {.address = settings_.memory_node,
                                                        .name = "strata-farmem run",
                                                        .pages = 1,
                                                        .timeout_us = settings_.timeout_us}));
    return node->close();
  }

  // Better refused now than by a line in the program's output.
  Status prepare_trace() {
    if (settings_.trace_file.empty()) return ok_status();
    STRATA_ASSIGN_OR_RETURN(const std::string path, absolute_path(settings_.trace_file));
    if (path.size() + 8 >= kPathBytesMax)
      return error_invalid_argument("the trace's path is too long");
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) return error_invalid_argument("cannot write " + path + ": " + std::strerror(errno));
    ::close(fd);
    put_text(&setup_->trace, path);
    return ok_status();
  }

  Status start(const sigset_t& ours) {
    begun_us_ = monotonic_us();
    STRATA_ASSIGN_OR_RETURN(
        child_,
        start_program(settings_.command, environment_of_program(library_path(kLibrary), fd_)));
    wait(ours);
    return ok_status();
  }

  // Of the program, once it has ended.
  int finish(const transport::Secret& secret) {
    look();
    close_regions(secret);
    if (!settings_.trace_file.empty())
      for (size_t i = 0; i < setup_->processes.size(); i++)
        if (setup_->processes[i].pid.load() != 0)
          trim_trace(trace_path(std::string(text_of(setup_->trace)), i));
    write_stats(true);
    if (!settings_.quiet) std::fputs(table().c_str(), stderr);
    return exit_code_;
  }

 private:
  void wait(const sigset_t& ours) {
    for (;;) {
      const int signal = ::sigtimedwait(&ours, nullptr, &kLookEvery);
      if (signal == SIGTERM || signal == SIGINT || signal == SIGHUP) ::kill(child_, signal);
      int status = 0;
      const pid_t ended = ::waitpid(child_, &status, WNOHANG);
      if (ended == child_) {
        exit_code_ = exit_code_of(status);
        return;
      }
      if (signal >= 0) continue;
      look();
      write_stats(false);
      if (settings_.live) std::fputs(table().c_str(), stderr);
    }
  }

  [[nodiscard]] double seconds() const {
    return static_cast<double>(monotonic_us() - begun_us_) / 1e6;
  }

  // Takes the counters, and what is resident besides.
  void look() {
    reports_.clear();
    for (const ProcessCounters& place : setup_->processes) {
      if (place.pid.load() == 0) continue;
      ProcessReport report = report_of(place);
      const Resident resident = resident_bytes(report.pid);
      report.runs = resident.anonymous + resident.file > 0;
      Resident& most = outside_[report.pid];
      const uint64_t far_local = report.local_pages * kPageBytes;
      // Far memory is anonymous; it is counted at another moment than the rest.
      const uint64_t anonymous =
          resident.anonymous > far_local ? resident.anonymous - far_local : 0;
      most.anonymous = std::max(most.anonymous, anonymous);
      most.file = std::max(most.file, resident.file);
      report.outside_bytes_max = most.anonymous + most.file;
      report.outside_anonymous_bytes_max = most.anonymous;
      reports_.push_back(std::move(report));
    }
  }

  // At once, instead of when their leases end.
  void close_regions(const transport::Secret& secret) const {
    for (const ProcessCounters& place : setup_->processes) {
      if (place.pid.load() == 0 || place.credentials.client == 0) continue;
      if (::kill(static_cast<pid_t>(place.pid.load()), 0) == 0) continue;  // a child that goes on
      // A node that is gone has forgotten it anyhow.
      (void)close_region(secret, settings_.memory_node, place.credentials, settings_.timeout_us);
    }
  }

  void write_stats(bool ended) const {
    if (settings_.stats_file.empty()) return;
    farmem::write_stats(settings_.stats_file,
                        {.mode = "uffd",
                         .seconds = seconds(),
                         .ended = ended,
                         .exit_code = exit_code_,
                         .memory_node = settings_.memory_node,
                         .policy = policy_name(settings_.policy),
                         .prefetch = settings_.policy.prefetch,
                         .local_pages_cap = settings_.policy.frames,
                         .link_round_trip_ns = settings_.link.round_trip_ns,
                         .link_bytes_per_second = settings_.link.bytes_per_second,
                         .processes = reports_});
  }

  [[nodiscard]] std::string table() const { return table_of(reports_, seconds()); }

  const RunSettings& settings_;
  SharedSetup* const setup_;
  const int fd_;
  pid_t child_ = -1;
  int exit_code_ = 0;
  uint64_t begun_us_ = 0;
  std::vector<ProcessReport> reports_;
  std::map<uint64_t, Resident> outside_;  // by pid, at most so far
};

}  // namespace

int run(const RunSettings& settings) {
  sigset_t ours;
  ::sigemptyset(&ours);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGCHLD}) ::sigaddset(&ours, signal);
  ::pthread_sigmask(SIG_BLOCK, &ours, nullptr);
  const auto secret = transport::load_secret(settings.secret_file);
  if (!secret.ok()) return not_started(secret.status());
  const auto device = userfault_device();
  if (!device.ok()) return not_started(device.status());
  if (::access(library_path(kLibrary).c_str(), R_OK) != 0)
    return not_started(
        error_not_found(library_path(kLibrary) + " is missing; ./strata build makes it"));
  const auto shared = SharedMemory::create();
  if (!shared.ok()) return not_started(shared.status());
  Run run(settings, *shared);
  if (const Status traced = run.prepare_trace(); !traced.ok()) return not_started(traced);
  if (const Status ready = run.prepare(*secret, *device); !ready.ok())
    return not_started(with_message(
        ready, "memory node " + settings.memory_node + ": " + std::string(ready.message())));
  if (const Status started = run.start(ours); !started.ok()) return not_started(started);
  return run.finish(*secret);
}

}  // namespace strata::farmem
