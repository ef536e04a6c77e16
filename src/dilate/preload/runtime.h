// What stands between the C library and a dilated program: the settings, each thread's account, and
// paying. Everything here works in any program, at any time from its first instruction on, in
// signal handlers too, and does nothing at all where nothing is configured.
//   TD8  A thread that computes without calling anything is charged every kSliceNs of CPU time, by
//        a signal of a timer of its own, and sleeps in that signal's handler. Calls that are
//        interrupted by nothing else are taken up again.
//   TD9  errno, cancellation and signal masks are the program's, but for the slices' signal, which
//        it can neither block nor wait for.
//   TD10  A child of fork() has accounts of its own from then on. A child of vfork(), which works
//         with its parent's memory, is not charged.
#pragma once

#include <dlfcn.h>
#include <signal.h>
#include <sys/time.h>
#include <time.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

#include "dilate/account.h"
#include "dilate/dilated_clock.h"

#define STRATA_PUBLIC extern "C" __attribute__((visibility("default")))

// The function that the program would have called. Not kept in a C++ static that would need a lock.
#define STRATA_NEXT(name) STRATA_NEXT_OF(name, nullptr, nullptr)
// `version`: the symbol's, where there are several. `library`: where else to look.
#define STRATA_NEXT_OF(name, version, library)                           \
  ([]() noexcept {                                                       \
    static std::atomic<void*> found{nullptr};                            \
    return reinterpret_cast<decltype(&::name)>(                          \
        strata::dilate::next_function(&found, #name, version, library)); \
  }())

namespace strata::dilate {

void* next_function(std::atomic<void*>* found, const char* name, const char* version,
                    const char* library) noexcept;

constexpr int64_t kSecondNs = 1'000'000'000;
constexpr int64_t kMillisecondNs = 1'000'000;
constexpr int64_t kSliceNs = 5'000'000;

// Whether the program is dilated.
bool is_on() noexcept;

// Only where is_on():
Factor factor() noexcept;
// Null: a clock that stays real.
const DilatedClock* dilation_of(clockid_t clock) noexcept;

int64_t real_now_ns(clockid_t clock) noexcept;
int64_t real_now_ns() noexcept;  // CLOCK_MONOTONIC

// Charges the calling thread and makes it sleep for what it owes. Whether it is dilated at all.
bool pay() noexcept;
// After pay() and a call: whether the thread was charged in the middle of it, which the program
// must not see (EINTR).
struct Call {
  bool dilated = false;
  int64_t from_ns = 0;
  uint64_t slices = 0;
};
Call begin_call() noexcept;
void end_call(const Call& call) noexcept;
// After a call that does nothing but sleep: what the kernel took for that is not charged. It is
// much on a virtual machine, and modelled links and disks are made of sleeps.
void end_sleep(const Call& call) noexcept;
bool interrupted_by_slice(Call* call) noexcept;

// For pthread_create().
void begin_thread() noexcept;

int slice_signal() noexcept;

// The mask as the program may have it. Null stays null.
const sigset_t* without_slice_signal(const sigset_t* mask, sigset_t* room) noexcept;

// A call that sends, or may wait, or writes to a disk.
template <class Function>
auto paying(Function&& function) {
  Call call = begin_call();
  auto result = function();
  while (result == -1 && errno == EINTR && interrupted_by_slice(&call)) result = function();
  end_call(call);
  return result;
}
// One that returns an error number, or nothing that says EINTR.
template <class Function>
auto paying_once(Function&& function) {
  const Call call = begin_call();
  const auto result = function();
  end_call(call);
  return result;
}

inline bool is_valid(const timespec& time) noexcept {
  return time.tv_nsec >= 0 && time.tv_nsec < kSecondNs && time.tv_sec >= 0;
}
inline int64_t ns_of(const timespec& time) noexcept {
  constexpr int64_t kSecondsMax = INT64_MAX / kSecondNs - 1;
  return (time.tv_sec < kSecondsMax ? time.tv_sec : kSecondsMax) * kSecondNs + time.tv_nsec;
}
inline timespec timespec_of(int64_t ns) noexcept {
  const int64_t seconds = ns >= 0 ? ns / kSecondNs : -((-ns + kSecondNs - 1) / kSecondNs);
  return {seconds, static_cast<long>(ns - seconds * kSecondNs)};
}
inline int64_t ns_of(const timeval& time) noexcept {
  return ns_of(timespec{time.tv_sec, time.tv_usec * 1000});
}
inline timeval timeval_of(int64_t ns) noexcept {
  const timespec time = timespec_of(ns);
  return {time.tv_sec, time.tv_nsec / 1000};
}
inline timeval timeval_up(int64_t ns) noexcept { return timeval_of(ns + 999); }

// The real moment of a deadline that the program gives by its clocks. What is no time at all stays,
// for the C library to refuse.
timespec real_deadline(clockid_t clock, const timespec& shown) noexcept;
// The real length of a time limit; null: none.
const timespec* real_limit(const timespec* limit, timespec* room) noexcept;

}  // namespace strata::dilate
