// Timers: those of clocks that are dilated run in emulated time.
#include <sys/time.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <cstdio>
#include <cstring>

#include "dilate/preload/runtime.h"

namespace {

using strata::dilate::dilation_of;
using strata::dilate::factor;
using strata::dilate::is_on;
using strata::dilate::is_valid;
using strata::dilate::kSecondNs;
using strata::dilate::ns_of;
using strata::dilate::real_deadline;
using strata::dilate::shrunk;
using strata::dilate::stretched;
using strata::dilate::timespec_of;
using strata::dilate::timeval_of;
using strata::dilate::timeval_up;

itimerspec real_times(clockid_t clock, bool absolute, const itimerspec& wanted) noexcept {
  if (!is_valid(wanted.it_value) || !is_valid(wanted.it_interval)) return wanted;
  itimerspec real = wanted;
  real.it_interval = timespec_of(stretched(ns_of(wanted.it_interval), factor()));
  const bool stops = ns_of(wanted.it_value) == 0;
  if (absolute && !stops) {
    real.it_value = real_deadline(clock, wanted.it_value);
    if (ns_of(real.it_value) <= 0) real.it_value = {0, 1};  // long ago
  } else {
    real.it_value = timespec_of(stretched(ns_of(wanted.it_value), factor()));
  }
  return real;
}

void show(itimerspec* times) noexcept {
  times->it_interval = timespec_of(shrunk(ns_of(times->it_interval), factor()));
  times->it_value = timespec_of(shrunk(ns_of(times->it_value), factor()));
}

// --- which timers are real -----------------------------------------------------------------

// Timers of clocks that are not dilated. Empty places are null; a timer that is id 0 of the kernel
// has the number 1 here.
constexpr size_t kRealTimersMax = 256;
constinit std::array<std::atomic<uintptr_t>, kRealTimersMax> real_timers{};

uintptr_t number_of(timer_t timer) noexcept { return reinterpret_cast<uintptr_t>(timer) + 1; }

std::atomic<uintptr_t>* place_of(uintptr_t number) noexcept {
  for (std::atomic<uintptr_t>& place : real_timers)
    if (place.load(std::memory_order_relaxed) == number) return &place;
  return nullptr;
}

bool keep_real(timer_t timer) noexcept {
  for (std::atomic<uintptr_t>& place : real_timers) {
    uintptr_t none = 0;
    if (place.compare_exchange_strong(none, number_of(timer))) return true;
  }
  return false;
}

bool is_dilated(timer_t timer) noexcept { return is_on() && place_of(number_of(timer)) == nullptr; }

// Of a timer that is a file. Known of those made here; others (inherited, duplicated) are asked
// about.
constexpr size_t kFilesKnown = 4096;
constinit std::array<std::atomic<int>, kFilesKnown> clock_of_file{};  // and one; 0: not known

clockid_t asked_clock_of(int file) noexcept {
  constexpr char kLine[] = "clockid: ";
  std::array<char, 64> path;
  std::snprintf(path.data(), path.size(), "/proc/self/fdinfo/%d", file);
  std::FILE* const facts = std::fopen(path.data(), "re");
  int clock = CLOCK_MONOTONIC;
  if (facts == nullptr) return clock;
  for (std::array<char, 128> line; std::fgets(line.data(), line.size(), facts) != nullptr;)
    if (std::strncmp(line.data(), kLine, sizeof kLine - 1) == 0)
      clock = std::atoi(line.data() + sizeof kLine - 1);
  std::fclose(facts);
  return clock;
}

clockid_t clock_of(int file) noexcept {
  if (file >= 0 && static_cast<size_t>(file) < kFilesKnown) {
    const int known = clock_of_file[static_cast<size_t>(file)].load(std::memory_order_relaxed);
    if (known != 0) return known - 1;
  }
  return asked_clock_of(file);
}

}  // namespace

STRATA_PUBLIC int timer_create(clockid_t clock, sigevent* event, timer_t* timer) noexcept {
  const int result = STRATA_NEXT(timer_create)(clock, event, timer);
  if (result != 0 || !is_on() || dilation_of(clock) != nullptr || keep_real(*timer)) return result;
  STRATA_NEXT(timer_delete)(*timer);
  errno = EAGAIN;
  return -1;
}

STRATA_PUBLIC int timer_delete(timer_t timer) noexcept {
  if (is_on()) {
    std::atomic<uintptr_t>* const place = place_of(number_of(timer));
    if (place != nullptr) place->store(0, std::memory_order_relaxed);
  }
  return STRATA_NEXT(timer_delete)(timer);
}

STRATA_PUBLIC int timer_settime(timer_t timer, int flags, const itimerspec* wanted,
                                itimerspec* before) noexcept {
  const auto next = STRATA_NEXT(timer_settime);
  if (!is_dilated(timer) || wanted == nullptr) return next(timer, flags, wanted, before);
  // Timers do not say of which clock they are. Deadlines do: since 1970, or since the start.
  const bool absolute = (flags & TIMER_ABSTIME) != 0;
  const int64_t realtime_ns = strata::dilate::real_now_ns(CLOCK_REALTIME);
  const bool of_realtime = ns_of(wanted->it_value) > realtime_ns / 2;
  const itimerspec real =
      real_times(of_realtime ? CLOCK_REALTIME : CLOCK_MONOTONIC, absolute, *wanted);
  const int result = next(timer, flags, &real, before);
  if (result == 0 && before != nullptr) show(before);
  return result;
}

STRATA_PUBLIC int timer_gettime(timer_t timer, itimerspec* left) noexcept {
  const int result = STRATA_NEXT(timer_gettime)(timer, left);
  if (result == 0 && is_dilated(timer)) show(left);
  return result;
}

STRATA_PUBLIC int timerfd_create(int clock, int flags) noexcept {
  const int file = STRATA_NEXT(timerfd_create)(clock, flags);
  if (file >= 0 && static_cast<size_t>(file) < kFilesKnown)
    clock_of_file[static_cast<size_t>(file)].store(clock + 1, std::memory_order_relaxed);
  return file;
}

STRATA_PUBLIC int timerfd_settime(int file, int flags, const itimerspec* wanted,
                                  itimerspec* before) noexcept {
  const auto next = STRATA_NEXT(timerfd_settime);
  if (!is_on() || wanted == nullptr) return next(file, flags, wanted, before);
  const clockid_t clock = clock_of(file);
  if (dilation_of(clock) == nullptr) return next(file, flags, wanted, before);
  const itimerspec real = real_times(clock, (flags & TFD_TIMER_ABSTIME) != 0, *wanted);
  const int result = next(file, flags, &real, before);
  if (result == 0 && before != nullptr) show(before);
  return result;
}

STRATA_PUBLIC int timerfd_gettime(int file, itimerspec* left) noexcept {
  const int result = STRATA_NEXT(timerfd_gettime)(file, left);
  if (result == 0 && is_on() && dilation_of(clock_of(file)) != nullptr) show(left);
  return result;
}

STRATA_PUBLIC int setitimer(__itimer_which_t which, const itimerval* wanted,
                            itimerval* before) noexcept {
  const auto next = STRATA_NEXT(setitimer);
  if (!is_on() || which != ITIMER_REAL || wanted == nullptr) return next(which, wanted, before);
  const itimerval real{timeval_up(stretched(ns_of(wanted->it_interval), factor())),
                       timeval_up(stretched(ns_of(wanted->it_value), factor()))};
  const int result = next(which, &real, before);
  if (result == 0 && before != nullptr) {
    before->it_interval = timeval_of(shrunk(ns_of(before->it_interval), factor()));
    before->it_value = timeval_of(shrunk(ns_of(before->it_value), factor()));
  }
  return result;
}

STRATA_PUBLIC int getitimer(__itimer_which_t which, itimerval* left) noexcept {
  const int result = STRATA_NEXT(getitimer)(which, left);
  if (result == 0 && is_on() && which == ITIMER_REAL) {
    left->it_interval = timeval_of(shrunk(ns_of(left->it_interval), factor()));
    left->it_value = timeval_of(shrunk(ns_of(left->it_value), factor()));
  }
  return result;
}

STRATA_PUBLIC unsigned alarm(unsigned wanted_s) noexcept {
  if (!is_on()) return STRATA_NEXT(alarm)(wanted_s);
  const int64_t real_s = stretched(wanted_s, factor());
  const unsigned left_s =
      STRATA_NEXT(alarm)(static_cast<unsigned>(real_s < INT_MAX ? real_s : INT_MAX));
  const auto left = static_cast<unsigned>(shrunk(left_s, factor()));
  return left_s != 0 && left == 0 ? 1 : left;  // 0 would say that there was none
}
