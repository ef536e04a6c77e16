#include "dilate/preload/runtime.h"

#include <pthread.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "dilate/node_file.h"
#include "dilate/settings.h"

namespace strata::dilate {
namespace {

constexpr int kWrongSettings = 78;  // EX_CONFIG of sysexits.h
constexpr int kSignalsBelowLast = 5;
constexpr unsigned long kTimerSlackNs = 1;
constexpr int kCalibrations = 64;

enum class Phase : int { kUnread, kReading, kOff, kOn };

struct Setup {
  std::atomic<Phase> phase{Phase::kUnread};
  // Constant once the phase is kOn.
  NodeState* node = nullptr;
  DilatedClock monotonic;
  DilatedClock realtime;
  int64_t charging_ns = 0;  // what begin_call() takes of the CPU
  pthread_key_t end_of_thread = 0;
};
constinit Setup setup;

struct Thread {
  Account account;
  bool begun = false;
  bool paying = false;  // also: what a signal's handler must leave alone
  bool has_timer = false;
  int timer = 0;  // the kernel's number
};
constinit thread_local Thread self;

// None of the C library's functions for these: they are those of the program, or set errno, or can
// be cancelled.
long system_call(long number, long a = 0, long b = 0, long c = 0, long d = 0) noexcept {
  long result = 0;
  register long d_register asm("r10") = d;
  asm volatile("syscall"
               : "=a"(result)
               : "a"(number), "D"(a), "S"(b), "d"(c), "r"(d_register)
               : "rcx", "r11", "memory");
  return result;
}

template <class Pointer>
long address(Pointer* pointer) noexcept {
  return reinterpret_cast<long>(pointer);
}

[[noreturn]] void end_program(const std::string& problem) noexcept {
  const std::string line = "strata-dilate: " + problem + "\n";
  system_call(SYS_write, STDERR_FILENO, address(line.data()), static_cast<long>(line.size()));
  for (;;) system_call(SYS_exit_group, kWrongSettings);
}

int64_t cpu_now_ns() noexcept { return real_now_ns(CLOCK_THREAD_CPUTIME_ID); }

void sleep_until(int64_t when_ns) noexcept {
  const timespec when = timespec_of(when_ns);
  while (system_call(SYS_clock_nanosleep, CLOCK_MONOTONIC, TIMER_ABSTIME, address(&when)) ==
         -EINTR) {
  }
}

void start_timer() noexcept {
  sigevent event{};
  event.sigev_notify = SIGEV_THREAD_ID;
  event.sigev_signo = slice_signal();
  event._sigev_un._tid = static_cast<pid_t>(system_call(SYS_gettid));
  // Without a timer (too many of them) long bursts are charged at the next call.
  if (system_call(SYS_timer_create, CLOCK_THREAD_CPUTIME_ID, address(&event),
                  address(&self.timer)) != 0)
    return;
  self.has_timer = true;
  const itimerspec every{{0, kSliceNs}, {0, kSliceNs}};
  system_call(SYS_timer_settime, self.timer, 0, address(&every));
}

void stop_timer() noexcept {
  if (!self.has_timer) return;
  self.has_timer = false;
  system_call(SYS_timer_delete, self.timer);
}

void end_thread(void* /*unused*/) noexcept {
  pay();
  stop_timer();
}

// TD8
void on_slice(int /*signal*/) {
  if (self.paying || !self.begun) return;
  const int before = errno;
  self.account.slices++;
  setup.node->slices.fetch_add(1, std::memory_order_relaxed);
  pay();
  errno = before;
}

void catch_slices() noexcept {
  struct sigaction action {};
  action.sa_handler = on_slice;
  action.sa_flags = SA_RESTART;
  STRATA_NEXT(sigaction)(slice_signal(), &action, nullptr);
  sigset_t ours;
  sigemptyset(&ours);
  sigaddset(&ours, slice_signal());
  STRATA_NEXT(sigprocmask)(SIG_UNBLOCK, &ours, nullptr);
}

// TD10
void before_fork() { pay(); }
void in_child() {
  self = Thread{};
  begin_thread();
}

int64_t measured_charging_ns() noexcept {
  const int64_t before_ns = cpu_now_ns();
  int64_t last_ns = before_ns;
  for (int i = 0; i < kCalibrations; i++) {
    static_cast<void>(real_now_ns());
    static_cast<void>(real_now_ns());
    last_ns = cpu_now_ns();
  }
  return (last_ns - before_ns) / kCalibrations;
}

void configure() noexcept {
  const Reading reading =
      read_settings({std::getenv("STRATA_DILATE_FACTOR"), std::getenv("STRATA_DILATE_CORES"),
                     std::getenv("STRATA_DILATE_SHARED"), std::getenv("STRATA_DILATE_ORIGIN")});
  if (!reading.problem.empty()) end_program(reading.problem);
  if (!reading.settings) {
    setup.phase.store(Phase::kOff, std::memory_order_release);
    return;
  }
  const Settings& settings = *reading.settings;
  const MappedNode node =
      map_node(settings, {real_now_ns(CLOCK_MONOTONIC), real_now_ns(CLOCK_REALTIME)});
  if (node.state == nullptr) end_program(node.problem);
  setup.node = node.state;
  setup.monotonic = {settings.factor, node.state->origin_monotonic_ns};
  setup.realtime = {settings.factor, node.state->origin_realtime_ns};
  setup.charging_ns = measured_charging_ns();
  node.state->programs.fetch_add(1, std::memory_order_relaxed);
  if (pthread_key_create(&setup.end_of_thread, end_thread) != 0 ||
      pthread_atfork(before_fork, nullptr, in_child) != 0)
    end_program("the C library has no room for one more thread key or fork handler");
  catch_slices();
  setup.phase.store(Phase::kOn, std::memory_order_release);  // pairs with is_on()
}

__attribute__((constructor(101))) void begin_program() {
  if (is_on() && !self.begun) begin_thread();
}

__attribute__((destructor(101))) void end_of_program() { pay(); }

}  // namespace

void* next_function(std::atomic<void*>* found, const char* name, const char* version,
                    const char* library) noexcept {
  void* function = found->load(std::memory_order_relaxed);
  if (function != nullptr) return function;
  if (version != nullptr) function = ::dlvsym(RTLD_NEXT, name, version);
  if (function == nullptr) function = ::dlsym(RTLD_NEXT, name);
  if (function == nullptr && library != nullptr) {
    void* const loaded = ::dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
    if (loaded != nullptr) function = ::dlsym(loaded, name);
  }
  if (function == nullptr) end_program(std::string("there is no ") + name + "() to call");
  found->store(function, std::memory_order_relaxed);
  return function;
}

bool is_on() noexcept {
  const Phase phase = setup.phase.load(std::memory_order_acquire);
  if (phase != Phase::kUnread) [[likely]]
    return phase == Phase::kOn;
  Phase unread = Phase::kUnread;
  // Other libraries call before our constructor runs, and configure() itself calls.
  if (setup.phase.compare_exchange_strong(unread, Phase::kReading)) configure();
  return setup.phase.load(std::memory_order_acquire) == Phase::kOn;
}

Factor factor() noexcept { return setup.monotonic.factor; }

const DilatedClock* dilation_of(clockid_t clock) noexcept {
  switch (clock) {
    case CLOCK_MONOTONIC:
    case CLOCK_MONOTONIC_COARSE:
    case CLOCK_MONOTONIC_RAW:
      return &setup.monotonic;
    case CLOCK_REALTIME:
    case CLOCK_REALTIME_COARSE:
      return &setup.realtime;
    default:
      return nullptr;
  }
}

int64_t real_now_ns(clockid_t clock) noexcept {
  timespec now{};
  STRATA_NEXT(clock_gettime)(clock, &now);
  return ns_of(now);
}
int64_t real_now_ns() noexcept { return real_now_ns(CLOCK_MONOTONIC); }

bool pay() noexcept {
  if (!is_on() || self.paying) return false;
  if (!self.begun) begin_thread();
  Account& account = self.account;
  self.paying = true;
  const int64_t cpu_ns = cpu_now_ns();
  const int64_t used_ns = account.used_ns(cpu_ns, setup.charging_ns);
  if (used_ns >= 0) {
    account.charge(used_ns, cpu_ns, factor(), setup.node);
    const int64_t now_ns = real_now_ns();
    const int64_t until_ns = account.sleep_until(now_ns);
    if (until_ns != 0) {
      sleep_until(until_ns);
      account.woke(real_now_ns(), cpu_now_ns());
      setup.node->sleeps.fetch_add(1, std::memory_order_relaxed);
    } else {
      account.bound_lateness(now_ns, setup.node);
    }
  }
  self.paying = false;
  return used_ns >= 0;
}

Call begin_call() noexcept {
  if (!pay()) return {};
  return {true, real_now_ns(), self.account.slices};
}

void end_call(const Call& call) noexcept {
  if (!call.dilated) return;
  self.paying = true;
  self.account.waited(call.from_ns, real_now_ns(), setup.node);
  self.paying = false;
}

void end_sleep(const Call& call) noexcept {
  if (!call.dilated) return;
  self.paying = true;
  self.account.waited(call.from_ns, real_now_ns(), setup.node);
  self.account.cpu_ns = cpu_now_ns();
  self.paying = false;
}

bool interrupted_by_slice(Call* call) noexcept {
  if (!call->dilated || call->slices == self.account.slices) return false;
  call->slices = self.account.slices;
  return true;
}

void begin_thread() noexcept {
  self.begun = true;
  self.paying = true;
  system_call(SYS_prctl, PR_SET_TIMERSLACK, kTimerSlackNs);
  pthread_setspecific(setup.end_of_thread, &self);
  start_timer();
  self.account.begin(real_now_ns(), cpu_now_ns());
  self.paying = false;
}

int slice_signal() noexcept { return SIGRTMAX - kSignalsBelowLast; }

const sigset_t* without_slice_signal(const sigset_t* mask, sigset_t* room) noexcept {
  if (mask == nullptr || !is_on()) return mask;
  *room = *mask;
  sigdelset(room, slice_signal());
  return room;
}

timespec real_deadline(clockid_t clock, const timespec& shown) noexcept {
  const DilatedClock* const dilation = dilation_of(clock);
  if (dilation == nullptr || !is_valid(shown)) return shown;
  return timespec_of(dilation->real_of(ns_of(shown)));
}

const timespec* real_limit(const timespec* limit, timespec* room) noexcept {
  if (limit == nullptr || !is_valid(*limit)) return limit;
  *room = timespec_of(stretched(ns_of(*limit), factor()));
  return room;
}

}  // namespace strata::dilate
