#include "run_swapped.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <optional>

#include "base/clock.h"
#include "base/diag.h"
#include "farmem/swap/limits.h"
#include "farmem/swap/small_files.h"
#include "farmem/swap/stuck.h"
#include "program.h"
#include "report.h"
#include "transport/secret.h"

namespace strata::farmem {
namespace {

constexpr int kNotPutBack = 1;
constexpr timespec kLookEvery{.tv_sec = 0, .tv_nsec = 200'000'000};
constexpr uint64_t kShowEveryUs = 1'000'000;

// Of the whole machine, on which nothing else swaps.
struct Swapped {
  uint64_t in = 0;
  uint64_t out = 0;
  [[nodiscard]] uint64_t pages() const noexcept { return in + out; }
};
Swapped swapped() {
  const std::string figures = read_small("/proc/vmstat");
  return {.in = figure_of(figures, "pswpin"), .out = figure_of(figures, "pswpout")};
}

class SwappedRun {
 public:
  SwappedRun(const SwapSettings& settings, SwapKeeper* keeper)
      : settings_(settings), keeper_(keeper) {}

  Status start() {
    before_ = swapped();
    begun_us_ = monotonic_us();
    std::array<int, 2> failed{-1, -1};  // closed by exec, or told why there is none
    if (::pipe2(failed.data(), O_CLOEXEC) != 0) return error_no_space("no descriptor is left");
    child_ = ::fork();
    if (child_ == 0) become_the_program(failed[1]);
    ::close(failed[1]);
    int error = child_ < 0 ? errno : 0;
    // Nothing to read: it has become the program.
    if (child_ > 0 && ::read(failed[0], &error, sizeof error) > 0) {
      ::waitpid(child_, nullptr, 0);
      child_ = -1;
    }
    ::close(failed[0]);
    if (error == 0) return ok_status();
    return error_invalid_argument("cannot start " + settings_.command[0] + ": " +
                                  std::strerror(error));
  }

  void wait(const sigset_t& ours) {
    uint64_t shown_us = begun_us_;
    for (;;) {
      const int signal = ::sigtimedwait(&ours, nullptr, &kLookEvery);
      if (signal == SIGTERM || signal == SIGINT || signal == SIGHUP) ::kill(child_, signal);
      int status = 0;
      if (::waitpid(child_, &status, WNOHANG) == child_) {
        exit_code_ = exit_code_of(status);
        // The kernel tells a program by a signal that a page is lost; not why.
        if (const auto why = reason_of_loss(); why && WIFSIGNALED(status)) end(*why);
        break;
      }
      if (const auto why = reason_to_end()) {
        // It may wait for a page that comes only when swapping has ended: not waited for here.
        ::kill(child_, SIGKILL);
        end(*why);
        break;
      }
      if (monotonic_us() - shown_us < kShowEveryUs) continue;
      shown_us = monotonic_us();
      look(true);
      if (!settings_.stats_file.empty()) write_stats(settings_.stats_file, report(false));
      if (settings_.live) std::fputs(table().c_str(), stderr);
    }
    look(false);
  }

  void show() const {
    if (!settings_.stats_file.empty()) write_stats(settings_.stats_file, report(true));
    if (!settings_.quiet) std::fputs(table().c_str(), stderr);
  }
  [[nodiscard]] int exit_code() const { return exit_code_; }

 private:
  [[noreturn]] void become_the_program(int failed) const {
    sigset_t none;
    ::sigemptyset(&none);
    ::pthread_sigmask(SIG_SETMASK, &none, nullptr);
    std::vector<char*> arguments;
    for (const std::string& text : settings_.command)
      arguments.push_back(const_cast<char*>(text.c_str()));
    arguments.push_back(nullptr);
    if (join_groups(keeper_->state().changes)) ::execvp(arguments[0], arguments.data());
    const int error = errno;
    (void)!::write(failed, &error, sizeof error);
    ::_exit(kNotStarted);
  }

  [[nodiscard]] std::optional<std::string> reason_of_loss() const {
    const SwapState& state = keeper_->state();
    if (state.lost.load() != 0) return "is lost: " + std::string(text_of(state.message));
    if (keeper_->is_gone()) return "is lost: the process that keeps the swap was ended";
    return std::nullopt;
  }

  std::optional<std::string> reason_to_end() {
    if (auto why = reason_of_loss()) return why;
    const HostChanges& changes = keeper_->state().changes;
    const WhenStuck answer =
        stuck_.look(monotonic_us(), waits_for_memory(changes), swapped().pages());
    if (answer == WhenStuck::kNothing) return std::nullopt;
    if (answer == WhenStuck::kTakePages) {
      if (const Status taken = take_pages(changes); !taken.ok())
        diag(Severity::kWarning, "a program that waits for memory cannot be helped on: %s",
             std::string(taken.message()).c_str());
      stuck_.has_taken(monotonic_us(), swapped().pages());
      return reason_of_loss();  // that may have taken long
    }
    return "is full, or --local is too little to swap with";
  }

  void end(const std::string& why) {
    lost_ = why;
    std::fprintf(stderr, "strata-farmem: far memory of process %d %s; the process ends\n", child_,
                 why.c_str());
    exit_code_ = kLostExit;
  }

  void look(bool runs) {
    const SwapState& state = keeper_->state();
    const GroupFigures figures = figures_of(state.changes);
    const Swapped now = swapped();
    const bool to_node = settings_.swap.to == SwapTo::kMemoryNode;
    process_.pid = static_cast<uint64_t>(child_);
    process_.runs = runs;
    process_.lost = lost_;
    process_.faults = figures.major_faults;
    process_.fetched = to_node ? state.pages_in.load() : now.in - before_.in;
    process_.evicted_dirty = to_node ? state.pages_out.load() : now.out - before_.out;
    process_.local_pages_max = figures.bytes_max / kPageBytes;
    process_.service_ns = state.service_ns.load();
  }

  [[nodiscard]] RunReport report(bool ended) const {
    return {.mode = settings_.mode,
            .seconds = seconds(),
            .ended = ended,
            .exit_code = exit_code_,
            .memory_node = settings_.swap.memory_node,
            .policy = "kernel",
            .prefetch = settings_.swap.prefetch,
            .local_pages_cap = settings_.swap.local_bytes / kPageBytes,
            .link_round_trip_ns = settings_.swap.link.round_trip_ns,
            .link_bytes_per_second = settings_.swap.link.bytes_per_second,
            .processes = {process_}};
  }
  [[nodiscard]] std::string table() const { return table_of({process_}, seconds()); }
  [[nodiscard]] double seconds() const {
    return static_cast<double>(monotonic_us() - begun_us_) / 1e6;
  }

  const SwapSettings& settings_;
  SwapKeeper* const keeper_;
  pid_t child_ = -1;
  int exit_code_ = 0;
  uint64_t begun_us_ = 0;
  StuckWatch stuck_;
  Swapped before_;
  std::string lost_;
  ProcessReport process_;
};

// Of no memory node: nobody is shown it.
StatusOr<transport::Secret> secret_of(const SwapSettings& settings) {
  if (settings.swap.to != SwapTo::kMemoryNode)
    return transport::Secret(std::array<char, transport::Secret::kBytes>{});
  return transport::load_secret(settings.secret_file);
}

}  // namespace

int run_swapped(const SwapSettings& settings) {
  sigset_t ours;
  ::sigemptyset(&ours);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGCHLD}) ::sigaddset(&ours, signal);
  ::pthread_sigmask(SIG_BLOCK, &ours, nullptr);
  const auto secret = secret_of(settings);
  if (!secret.ok()) return not_started(secret.status());
  const auto keeper = SwapKeeper::start(*secret, settings.swap);
  if (!keeper.ok()) return not_started(keeper.status());
  SwappedRun run(settings, keeper->get());
  const Status started = run.start();
  if (started.ok()) run.wait(ours);
  const Status stopped = (*keeper)->stop();
  if (!stopped.ok())
    std::fprintf(stderr, "strata-farmem: not everything was put back: %s\n",
                 std::string(stopped.message()).c_str());
  if (!started.ok()) return not_started(started);
  run.show();
  if (!stopped.ok() && run.exit_code() == 0) return kNotPutBack;
  return run.exit_code();
}

}  // namespace strata::farmem
