// A program to be dilated: it knows nothing of that, and says what it sees of time. Lines of
// "name value".
//   probe loop CLIENTS SERVICE_US PAUSE_US SECONDS   closed loop; of real seconds
//   probe sleeps                                     every way to sleep or to wait with a limit
//   probe call FILE CYCLES BURST_US                  computes, calls, waits for the answer
//   probe serve FILE CYCLES BURST_US                 the other end of it
//   probe link PRESET BYTES CYCLES                   exchanges over a modelled link
//   probe burst CPU_US                               one long burst without any call
//   probe children                                   by fork() and by exec(), and threads
#include <fcntl.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "transport/clock.h"
#include "transport/link_model.h"

namespace {

int64_t now_ns(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}
int64_t emulated_ns() { return now_ns(CLOCK_MONOTONIC); }
int64_t real_ns() { return now_ns(CLOCK_BOOTTIME); }
int64_t cpu_ns() { return now_ns(CLOCK_THREAD_CPUTIME_ID); }

timespec time_of(int64_t ns) { return {ns / 1'000'000'000, ns % 1'000'000'000}; }

// Computes for so long, by the CPU clock; returns what it took.
int64_t burn(int64_t ns) {
  const int64_t from = cpu_ns();
  int64_t used = 0;
  while (used < ns) used = cpu_ns() - from;
  return used;
}

void pause_for(int64_t ns) {
  const timespec time = time_of(ns);
  ::nanosleep(&time, nullptr);
}

void say(const char* name, double value) { std::printf("%s %.6f\n", name, value); }

// --- the closed loop ------------------------------------------------------------------------

// Exponential times whose mean is exact: quantiles, in random order.
std::vector<int64_t> exponential(double mean_ns, size_t count, uint64_t seed) {
  std::vector<double> drawn;
  drawn.reserve(count);
  double sum = 0;
  for (size_t i = 0; i < count; i++) {
    drawn.push_back(-std::log(1 - (static_cast<double>(i) + 0.5) / static_cast<double>(count)));
    sum += drawn.back();
  }
  std::vector<int64_t> times;
  times.reserve(count);
  for (const double one : drawn)
    times.push_back(static_cast<int64_t>(one / sum * static_cast<double>(count) * mean_ns));
  std::shuffle(times.begin(), times.end(), std::mt19937_64(seed));
  return times;
}

struct Client {
  int64_t served_ns = 0;
  int64_t paused_ns = 0;
  int64_t cycles = 0;
};

void be_client(Client* client, uint64_t seed, double service_ns, double pause_ns,
               int64_t real_end_ns) {
  constexpr size_t kTimes = 64;
  for (uint64_t round = 0; real_ns() < real_end_ns; round++) {
    const auto services = exponential(service_ns, kTimes, seed * 1000 + 2 * round);
    const auto pauses = exponential(pause_ns, kTimes, seed * 1000 + 2 * round + 1);
    for (size_t i = 0; i < kTimes && real_ns() < real_end_ns; i++) {
      client->served_ns += burn(services[i]);
      pause_for(pauses[i]);  // what is owed for the burst is paid before that
      client->paused_ns += pauses[i];
      client->cycles++;
    }
  }
}

int loop(int clients, double service_us, double pause_us, double seconds) {
  std::vector<Client> counts(static_cast<size_t>(clients));
  const int64_t began = emulated_ns();
  const int64_t real_end = real_ns() + static_cast<int64_t>(seconds * 1e9);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < counts.size(); i++)
    threads.emplace_back(be_client, &counts[i], i, service_us * 1e3, pause_us * 1e3, real_end);
  for (std::thread& thread : threads) thread.join();
  const double elapsed_s = static_cast<double>(emulated_ns() - began) / 1e9;
  Client all;
  for (const Client& one : counts) {
    all.served_ns += one.served_ns;
    all.paused_ns += one.paused_ns;
    all.cycles += one.cycles;
  }
  const auto cycles = static_cast<double>(all.cycles);
  say("cycles", cycles);
  say("rate", cycles / elapsed_s);
  say("service_us", static_cast<double>(all.served_ns) / cycles / 1e3);
  say("pause_us", static_cast<double>(all.paused_ns) / cycles / 1e3);
  return 0;
}

// --- every way to wait ----------------------------------------------------------------------

constexpr int64_t kWaitNs = 40'000'000;

timespec deadline(clockid_t clock) { return time_of(now_ns(clock) + kWaitNs); }

void wait_on_condition(bool by_clock, clockid_t clock) {
  pthread_condattr_t attributes;
  ::pthread_condattr_init(&attributes);
  if (!by_clock) ::pthread_condattr_setclock(&attributes, clock);
  pthread_cond_t condition;
  ::pthread_cond_init(&condition, &attributes);
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  ::pthread_mutex_lock(&mutex);
  const timespec until = deadline(clock);
  int error = 0;
  while (error == 0)
    error = by_clock ? ::pthread_cond_clockwait(&condition, &mutex, clock, &until)
                     : ::pthread_cond_timedwait(&condition, &mutex, &until);
  ::pthread_mutex_unlock(&mutex);
}

void wait_for_futex(int operation, bool absolute) {
  uint32_t word = 0;
  const timespec limit = absolute ? deadline(CLOCK_MONOTONIC) : time_of(kWaitNs);
  ::syscall(SYS_futex, &word, operation, 0, &limit, nullptr, FUTEX_BITSET_MATCH_ANY);
}

void wait_for_timer(clockid_t clock, bool absolute) {
  const int file = ::timerfd_create(clock, TFD_CLOEXEC);
  itimerspec times{};
  times.it_value = absolute ? deadline(clock) : time_of(kWaitNs);
  ::timerfd_settime(file, absolute ? TFD_TIMER_ABSTIME : 0, &times, nullptr);
  uint64_t expired = 0;
  if (::read(file, &expired, sizeof expired) != sizeof expired) std::abort();
  ::close(file);
}

void wait_for_signal_timer(clockid_t clock) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGRTMIN + 1);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  sigevent event{};
  event.sigev_notify = SIGEV_THREAD_ID;
  event.sigev_signo = SIGRTMIN + 1;
  event._sigev_un._tid = ::gettid();
  timer_t timer{};
  if (::timer_create(clock, &event, &timer) != 0) std::abort();
  itimerspec times{};
  times.it_value = time_of(kWaitNs);
  ::timer_settime(timer, 0, &times, nullptr);
  int which = 0;
  ::sigwait(&signals, &which);
  ::timer_delete(timer);
}

void wait_in_receive() {
  std::array<int, 2> ends{};
  ::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data());
  const timeval limit{0, kWaitNs / 1000};
  ::setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  timeval said{};
  socklen_t bytes = sizeof said;
  ::getsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &said, &bytes);
  if (std::abs(said.tv_usec - limit.tv_usec) > 10'000) std::abort();
  char byte = 0;
  if (::recv(ends[0], &byte, 1, 0) != -1 || errno != EAGAIN) std::abort();
  ::close(ends[0]);
  ::close(ends[1]);
}

void wait_in_select() {
  timeval limit{0, kWaitNs / 1000};
  ::select(0, nullptr, nullptr, nullptr, &limit);
  if (limit.tv_sec != 0 || limit.tv_usec != 0) std::abort();  // nothing is left of it
}

void wait_for_lock() {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  ::pthread_mutex_lock(&mutex);
  const timespec until = deadline(CLOCK_REALTIME);
  if (::pthread_mutex_timedlock(&mutex, &until) != ETIMEDOUT) std::abort();
  ::pthread_mutex_unlock(&mutex);
}

void wait_for_semaphore() {
  sem_t semaphore;
  ::sem_init(&semaphore, 0, 0);
  const timespec until = deadline(CLOCK_REALTIME);
  if (::sem_timedwait(&semaphore, &until) != -1 || errno != ETIMEDOUT) std::abort();
}

void wait_for_cpp_condition() {
  std::mutex mutex;
  std::condition_variable condition;
  std::unique_lock<std::mutex> lock(mutex);
  condition.wait_for(lock, std::chrono::nanoseconds(kWaitNs), [] { return false; });
}

void wait_for_signal() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGUSR2);
  const timespec limit = time_of(kWaitNs);
  ::sigtimedwait(&signals, nullptr, &limit);
}

void wait_until_by(clockid_t clock) {
  const timespec until = deadline(clock);
  ::clock_nanosleep(clock, TIMER_ABSTIME, &until, nullptr);
}

using Way = std::pair<const char*, std::function<void()>>;
const std::vector<Way>& ways() {
  static const std::vector<Way> all = {
      {"nanosleep", [] { pause_for(kWaitNs); }},
      {"usleep", [] { ::usleep(kWaitNs / 1000); }},
      {"clock_nanosleep", [] { wait_until_by(CLOCK_MONOTONIC); }},
      {"clock_nanosleep_realtime", [] { wait_until_by(CLOCK_REALTIME); }},
      {"sleep_for", [] { std::this_thread::sleep_for(std::chrono::nanoseconds(kWaitNs)); }},
      {"poll", [] { ::poll(nullptr, 0, kWaitNs / 1'000'000); }},
      {"ppoll",
       [] {
         const timespec limit = time_of(kWaitNs);
         ::ppoll(nullptr, 0, &limit, nullptr);
       }},
      {"select", wait_in_select},
      {"pselect",
       [] {
         const timespec limit = time_of(kWaitNs);
         ::pselect(0, nullptr, nullptr, nullptr, &limit, nullptr);
       }},
      {"epoll_wait",
       [] {
         epoll_event event{};
         ::epoll_wait(::epoll_create1(EPOLL_CLOEXEC), &event, 1, kWaitNs / 1'000'000);
       }},
      {"epoll_pwait2",
       [] {
         epoll_event event{};
         const timespec limit = time_of(kWaitNs);
         ::epoll_pwait2(::epoll_create1(EPOLL_CLOEXEC), &event, 1, &limit, nullptr);
       }},
      {"cond_timedwait", [] { wait_on_condition(false, CLOCK_REALTIME); }},
      {"cond_timedwait_monotonic", [] { wait_on_condition(false, CLOCK_MONOTONIC); }},
      {"cond_clockwait", [] { wait_on_condition(true, CLOCK_MONOTONIC); }},
      {"condition_variable", wait_for_cpp_condition},
      {"sem_timedwait", wait_for_semaphore},
      {"mutex_timedlock", wait_for_lock},
      {"futex", [] { wait_for_futex(FUTEX_WAIT_PRIVATE, false); }},
      {"futex_bitset", [] { wait_for_futex(FUTEX_WAIT_BITSET_PRIVATE, true); }},
      {"timerfd", [] { wait_for_timer(CLOCK_MONOTONIC, false); }},
      {"timerfd_absolute", [] { wait_for_timer(CLOCK_REALTIME, true); }},
      {"timer", [] { wait_for_signal_timer(CLOCK_MONOTONIC); }},
      {"receive", wait_in_receive},
      {"sigtimedwait", wait_for_signal},
      {"real_timerfd", [] { wait_for_timer(CLOCK_BOOTTIME, false); }},
      {"real_timer", [] { wait_for_signal_timer(CLOCK_BOOTTIME); }},
      {"real_nanosleep", [] { wait_until_by(CLOCK_BOOTTIME); }},
  };
  return all;
}

// All at once, each in a thread. Seconds: how long it took, by both kinds of clock.
int sleeps() {
  struct Took {
    double emulated_s = 0;
    double realtime_s = 0;
    double real_s = 0;
  };
  std::vector<Took> took(ways().size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < took.size(); i++)
    threads.emplace_back([i, &took] {
      const int64_t emulated = emulated_ns();
      const int64_t realtime = now_ns(CLOCK_REALTIME);
      const int64_t real = real_ns();
      ways()[i].second();
      took[i] = {static_cast<double>(emulated_ns() - emulated) / 1e9,
                 static_cast<double>(now_ns(CLOCK_REALTIME) - realtime) / 1e9,
                 static_cast<double>(real_ns() - real) / 1e9};
    });
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < took.size(); i++) {
    const std::string name = ways()[i].first;
    say((name + ".emulated").c_str(), took[i].emulated_s);
    say((name + ".realtime").c_str(), took[i].realtime_s);
    say((name + ".real").c_str(), took[i].real_s);
  }
  return 0;
}

// --- two nodes ------------------------------------------------------------------------------

int end_of_pair(bool calls, int file, int cycles, int64_t burst_ns) {
  char byte = 'x';
  const int64_t cpu = cpu_ns();
  const int64_t began = emulated_ns();
  for (int i = 0; i < cycles; i++) {
    if (calls) burn(burst_ns);
    if (calls && ::send(file, &byte, 1, 0) != 1) return 1;
    if (::recv(file, &byte, 1, 0) != 1) return 1;
    if (!calls) burn(burst_ns);
    if (!calls && ::send(file, &byte, 1, 0) != 1) return 1;
  }
  say("cycle_us", static_cast<double>(emulated_ns() - began) / 1e3 / cycles);
  say("cpu_us", static_cast<double>(cpu_ns() - cpu) / 1e3 / cycles);
  return 0;
}

int over_link(const char* preset, uint64_t bytes, int cycles) {
  const auto speed = strata::transport::link_speed(preset);
  if (!speed.ok()) return 1;
  strata::transport::LinkModel link(*speed);
  const int64_t cpu = cpu_ns();
  const int64_t began = emulated_ns();
  for (int i = 0; i < cycles; i++)
    strata::transport::sleep_until_ns(link.round_trip(strata::transport::monotonic_ns(), bytes, 0));
  say("cycle_us", static_cast<double>(emulated_ns() - began) / 1e3 / cycles);
  say("cpu_us", static_cast<double>(cpu_ns() - cpu) / 1e3 / cycles);
  return 0;
}

// --- bursts and children --------------------------------------------------------------------

int burst(int64_t ns) {
  const int64_t began = emulated_ns();
  const int64_t used = burn(ns);
  say("elapsed_us", static_cast<double>(emulated_ns() - began) / 1e3);
  say("cpu_us", static_cast<double>(used) / 1e3);
  return 0;
}

// Each of them computes for a while; the file of the node says whether it was charged for that.
int children() {
  constexpr int64_t kBurstNs = 10'000'000;
  sigset_t all;
  sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);  // which must not keep bursts from being charged
  std::thread([] { burn(kBurstNs); }).join();
  const pid_t child = ::fork();
  if (child == 0) {
    burn(kBurstNs);
    std::thread([] { burn(kBurstNs); }).join();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  const int shell = std::system("exit 7");  // vfork() and exec()
  say("child", status);
  say("shell", WEXITSTATUS(shell));
  return 0;
}

}  // namespace

int main(int count, char** words) {
  const std::vector<std::string> args(words + 1, words + count);
  const std::string what = args.empty() ? "" : args[0];
  const auto number = [&](size_t i) { return std::atof(args.at(i).c_str()); };
  const auto whole = [&](size_t i) { return std::atoi(args.at(i).c_str()); };
  const auto us = [&](size_t i) { return static_cast<int64_t>(number(i) * 1e3); };
  if (what == "loop" && args.size() == 5) return loop(whole(1), number(2), number(3), number(4));
  if (what == "sleeps") return sleeps();
  if ((what == "call" || what == "serve") && args.size() == 4)
    return end_of_pair(what == "call", whole(1), whole(2), us(3));
  if (what == "link" && args.size() == 4)
    return over_link(args[1].c_str(), static_cast<uint64_t>(whole(2)), whole(3));
  if (what == "burst" && args.size() == 2) return burst(us(1));
  if (what == "children") return children();
  return 2;
}
