#include "run_shared.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "base/clock.h"
#include "base/latch.h"
#include "farmem/files/far_folder.h"
#include "farmem/shared/shared_pager.h"
#include "program.h"
#include "report.h"
#include "transport/secret.h"

namespace strata::farmem {
namespace {

constexpr const char* kLibrary = "libstrata-farmem-shared.so";
constexpr timespec kLookEvery{.tv_sec = 0, .tv_nsec = 200'000'000};
constexpr uint64_t kShowEveryUs = 1'000'000;

class SharedRun {
 public:
  SharedRun(const RunSettings& settings, SharedMemory shared)
      : settings_(settings), setup_(shared.get()), setup_fd_(shared.fd()) {}

  Status prepare(const transport::Secret& secret) {
    ClientOptions client_options{.address = settings_.memory_node,
                                 .name = settings_.command[0].substr(0, kClientNameBytesMax),
                                 .pages = settings_.far_bytes / kPageBytes,
                                 .timeout_us = settings_.timeout_us};
    if (settings_.link.round_trip_ns + settings_.link.bytes_per_second > 0)
      client_options.link_model = std::make_shared<transport::LinkModel>(settings_.link);
    auto client = MemoryClient::open(secret, client_options);
    if (!client.ok())
      return with_message(client.status(), "memory node " + settings_.memory_node + ": " +
                                               std::string(client.status().message()));
    credentials_ = (*client)->credentials();
    const SharedPagerOptions options{.policy = settings_.policy,
                                     .counters = &place().pager,
                                     .on_lost = [this](const Status& why) { note_lost(why); }};
    auto pager = SharedPager::start(*std::move(client), options);
    if (!pager.ok())
      return with_message(pager.status(), "mode fuse needs root and /dev/fuse: " +
                                              std::string(pager.status().message()));
    pager_ = *std::move(pager);
    STRATA_RETURN_IF_ERROR(prepare_files(secret, client_options));
    return prepare_setup();
  }

  Status start() {
    // What a process of the program leaves behind when it ends is still the program.
    ::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    begun_us_ = monotonic_us();
    STRATA_ASSIGN_OR_RETURN(
        child_, start_program(settings_.command,
                              environment_of_program(library_path(kLibrary), setup_fd_)));
    place().pid.store(static_cast<uint64_t>(child_));
    return ok_status();
  }

  void wait(const sigset_t& ours) {
    uint64_t shown_us = begun_us_;
    for (;;) {
      const int signal = ::sigtimedwait(&ours, nullptr, &kLookEvery);
      if (!wait_for_children()) note_lost(error_internal("the process that guards it was ended"));
      if (is_lost_.load()) return end();
      if (signal == SIGTERM || signal == SIGINT || signal == SIGHUP) pass_on(signal);
      if (has_ended_ && descendants(pager_->guard()).empty()) return look();
      cached_max_ = std::max(cached_max_, cached_pages(pager_->file()));
      if (monotonic_us() - shown_us < kShowEveryUs) continue;
      shown_us = monotonic_us();
      look();
      stay_alive();
      write_stats(false);
      if (settings_.live) std::fputs(table().c_str(), stderr);
    }
  }

  int finish(const transport::Secret& secret) {
    pager_.reset();
    const bool has_files = files_ != nullptr;
    files_.reset();
    // At once, instead of when its lease ends; a node that is gone has forgotten it anyhow.
    if (!is_lost_.load()) {
      (void)close_region(secret, settings_.memory_node, credentials_, settings_.timeout_us);
      if (has_files)
        (void)close_region(secret, settings_.memory_node, file_credentials_, settings_.timeout_us);
    }
    write_stats(true);
    if (!settings_.quiet) std::fputs(table().c_str(), stderr);
    return exit_code_;
  }

 private:
  // The one place: the memory is of all processes of the program together.
  [[nodiscard]] ProcessCounters& place() const { return setup_->processes[0]; }

  // Before the program is started: it sees what is mounted here, and nobody else does.
  Status prepare_files(const transport::Secret& secret, ClientOptions client_options) {
    if (settings_.far_files.empty()) return ok_status();
    client_options.pages = settings_.far_files_bytes / kPageBytes;
    STRATA_ASSIGN_OR_RETURN(auto client, MemoryClient::open(secret, client_options));
    file_credentials_ = client->credentials();
    auto files = FarFolder::mount(std::move(client),
                                  {.folder = settings_.far_files,
                                   .counters = &file_counters_,
                                   .on_lost = [this](const Status& why) { note_lost(why); }});
    if (!files.ok())
      return with_message(files.status(), "--far-files: " + std::string(files.status().message()));
    files_ = *std::move(files);
    return ok_status();
  }

  void stay_alive() {
    if (files_ == nullptr) return;
    if (const Status renewed = files_->client().renew(); !renewed.ok()) note_lost(renewed);
  }

  Status prepare_setup() {
    struct stat info {};
    // Inherited by the program; the pager's own is closed there.
    const int file = ::fcntl(pager_->file(), F_DUPFD, 0);
    if (file < 0 || ::fstat(file, &info) != 0) return error_no_space("no descriptor is left");
    setup_->shared_file = file;
    setup_->shared_device = info.st_dev;
    setup_->far_pages = settings_.far_bytes / kPageBytes;
    setup_->far_bytes_min = settings_.far_from_bytes;
    return ok_status();
  }

  // In a thread of the pager's.
  void note_lost(const Status& why) {
    if (is_lost_.load()) return;
    {
      const MutexLock lock(lost_latch_);
      lost_ = std::string(why.message());
    }
    is_lost_.store(true);
    ::kill(::getpid(), SIGCHLD);  // wait() has something to look at
  }

  // Takes the exit codes of those that have ended. False: the guard is one of them.
  bool wait_for_children() {
    for (;;) {
      siginfo_t ended{};
      if (::waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) != 0 || ended.si_pid == 0)
        return true;
      if (ended.si_pid == pager_->guard()) return false;
      int status = 0;
      if (::waitpid(ended.si_pid, &status, WNOHANG) != child_) continue;
      exit_code_ = exit_code_of(status);
      has_ended_ = true;
    }
  }

  void pass_on(int signal) const {
    if (!has_ended_) {
      ::kill(child_, signal);
      return;
    }
    for (const pid_t pid : descendants(pager_->guard())) ::kill(pid, signal);
  }

  // All processes of the program: who touches far memory has got SIGBUS, or will.
  void end() {
    std::vector<pid_t> running = descendants(pager_->guard());
    const std::string why = lost();
    std::fprintf(stderr, "strata-farmem: far memory of process %d is lost: %s; the program ends\n",
                 child_, why.c_str());
    put_text(&place().message, why);
    place().lost.store(1);
    while (!running.empty()) {
      for (const pid_t pid : running) ::kill(pid, SIGKILL);
      (void)::usleep(10'000);  // they are ended by the kernel, one after the other
      if (!wait_for_children()) break;
      running = descendants(pager_->guard());
    }
    runs_ = false;
    exit_code_ = kLostExit;
  }

  [[nodiscard]] std::string lost() {
    const MutexLock lock(lost_latch_);
    return lost_;
  }

  void look() {
    const std::vector<pid_t> running = descendants(pager_->guard());
    uint64_t anonymous = 0;
    for (const pid_t pid : running)
      anonymous += resident_bytes(static_cast<uint64_t>(pid)).anonymous;
    outside_max_ = std::max(outside_max_, anonymous);
    runs_ = !running.empty();
  }

  [[nodiscard]] ProcessReport report() const {
    ProcessReport out = report_of(place());
    out.runs = runs_;
    out.outside_bytes_max = out.outside_anonymous_bytes_max = outside_max_;
    out.cached_pages_max = cached_max_;
    return out;
  }

  void write_stats(bool ended) const {
    if (settings_.stats_file.empty()) return;
    farmem::write_stats(settings_.stats_file,
                        {.mode = "fuse",
                         .seconds = seconds(),
                         .ended = ended,
                         .exit_code = exit_code_,
                         .memory_node = settings_.memory_node,
                         .policy = policy_name(settings_.policy),
                         .prefetch = settings_.policy.prefetch,
                         .local_pages_cap = settings_.policy.frames,
                         .link_round_trip_ns = settings_.link.round_trip_ns,
                         .link_bytes_per_second = settings_.link.bytes_per_second,
                         .processes = {report()},
                         .has_files = !settings_.far_files.empty(),
                         .file_pages_fetched = file_counters_.fetched.load(),
                         .file_pages_from_disk = file_counters_.from_disk.load(),
                         .file_pages_stored = file_counters_.stored.load(),
                         .file_bytes_written = file_counters_.written.load()});
  }
  [[nodiscard]] std::string table() const { return table_of({report()}, seconds()); }
  [[nodiscard]] double seconds() const {
    return static_cast<double>(monotonic_us() - begun_us_) / 1e6;
  }

  const RunSettings& settings_;
  SharedSetup* const setup_;
  const int setup_fd_;
  Credentials credentials_;
  std::unique_ptr<SharedPager> pager_;
  Credentials file_credentials_;
  FileCounters file_counters_;
  std::unique_ptr<FarFolder> files_;
  pid_t child_ = -1;
  bool has_ended_ = false;
  bool runs_ = false;
  int exit_code_ = 0;
  uint64_t begun_us_ = 0;
  uint64_t outside_max_ = 0;
  uint64_t cached_max_ = 0;
  std::atomic<bool> is_lost_{false};
  Mutex lost_latch_{LatchRank::kLeaf};
  std::string lost_;  // under lost_latch_
};

}  // namespace

int run_shared(const RunSettings& settings) {
  sigset_t ours;
  ::sigemptyset(&ours);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGCHLD}) ::sigaddset(&ours, signal);
  ::pthread_sigmask(SIG_BLOCK, &ours, nullptr);
  const auto secret = transport::load_secret(settings.secret_file);
  if (!secret.ok()) return not_started(secret.status());
  if (::access(library_path(kLibrary).c_str(), R_OK) != 0)
    return not_started(
        error_not_found(library_path(kLibrary) + " is missing; ./strata build makes it"));
  const auto shared = SharedMemory::create();
  if (!shared.ok()) return not_started(shared.status());
  SharedRun run(settings, *shared);
  if (const Status ready = run.prepare(*secret); !ready.ok()) return not_started(ready);
  if (const Status started = run.start(); !started.ok()) return not_started(started);
  run.wait(ours);
  return run.finish(*secret);
}

}  // namespace strata::farmem
