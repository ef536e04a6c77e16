// Clocks and sleeps as the program sees them. CLOCK_BOOTTIME, CPU clocks and the processor's own
// counter stay real: what others judge by them (leases) must not be dilated, and what measures work
// needs no dilation.
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "dilate/preload/runtime.h"

namespace {

using strata::dilate::begin_call;
using strata::dilate::Call;
using strata::dilate::DilatedClock;
using strata::dilate::dilation_of;
using strata::dilate::factor;
using strata::dilate::interrupted_by_slice;
using strata::dilate::is_on;
using strata::dilate::is_valid;
using strata::dilate::kSecondNs;
using strata::dilate::ns_of;
using strata::dilate::real_now_ns;
using strata::dilate::shrunk;
using strata::dilate::stretched;
using strata::dilate::timespec_of;

int64_t shown_realtime_ns() noexcept {
  return dilation_of(CLOCK_REALTIME)->shown(real_now_ns(CLOCK_REALTIME));
}

// In a call, by the real clock. Returns an error number.
int sleep_in(Call call, clockid_t clock, int64_t real_ns) {
  const timespec until = timespec_of(real_ns);
  int error = 0;
  do {
    error = STRATA_NEXT(clock_nanosleep)(clock, TIMER_ABSTIME, &until, nullptr);
  } while (error == EINTR && interrupted_by_slice(&call));
  strata::dilate::end_sleep(call);
  return error;
}

// Of emulated time, which begins once everything is paid. What is left of it, if a signal came.
int sleep_for(int64_t ns, int64_t* left_ns) {
  const Call call = begin_call();
  const int64_t until_ns = real_now_ns() + stretched(ns, factor());
  const int error = sleep_in(call, CLOCK_MONOTONIC, until_ns);
  const int64_t left = until_ns - real_now_ns();
  *left_ns = error == EINTR && left > 0 ? shrunk(left, factor()) : 0;
  return error;
}

}  // namespace

STRATA_PUBLIC int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const int result = STRATA_NEXT(clock_gettime)(clock, time);
  if (result != 0 || !is_on()) return result;
  const DilatedClock* const dilation = dilation_of(clock);
  if (dilation != nullptr) *time = timespec_of(dilation->shown(ns_of(*time)));
  return result;
}

STRATA_PUBLIC int gettimeofday(timeval* time, void* zone) noexcept {
  if (!is_on() || time == nullptr) return STRATA_NEXT(gettimeofday)(time, zone);
  *time = strata::dilate::timeval_of(shown_realtime_ns());
  return zone == nullptr ? 0 : STRATA_NEXT(gettimeofday)(nullptr, zone);
}

STRATA_PUBLIC time_t time(time_t* time) noexcept {
  if (!is_on()) return STRATA_NEXT(time)(time);
  const time_t now = shown_realtime_ns() / kSecondNs;
  if (time != nullptr) *time = now;
  return now;
}

STRATA_PUBLIC int timespec_get(timespec* time, int base) noexcept {
  const int result = STRATA_NEXT(timespec_get)(time, base);
  if (result == TIME_UTC && is_on()) *time = timespec_of(shown_realtime_ns());
  return result;
}

STRATA_PUBLIC int clock_nanosleep(clockid_t clock, int flags, const timespec* wanted,
                                  timespec* left) {
  if (!is_on() || dilation_of(clock) == nullptr || wanted == nullptr || !is_valid(*wanted))
    return strata::dilate::paying_once(
        [&] { return STRATA_NEXT(clock_nanosleep)(clock, flags, wanted, left); });
  if ((flags & TIMER_ABSTIME) != 0) {
    return sleep_in(begin_call(), clock, dilation_of(clock)->real_of(ns_of(*wanted)));
  }
  int64_t left_ns = 0;
  const int error = sleep_for(ns_of(*wanted), &left_ns);
  if (error == EINTR && left != nullptr) *left = timespec_of(left_ns);
  return error;
}

STRATA_PUBLIC int nanosleep(const timespec* wanted, timespec* left) {
  if (!is_on() || wanted == nullptr || !is_valid(*wanted))
    return STRATA_NEXT(nanosleep)(wanted, left);
  const int error = clock_nanosleep(CLOCK_MONOTONIC, 0, wanted, left);
  if (error == 0) return 0;
  errno = error;
  return -1;
}

STRATA_PUBLIC int usleep(useconds_t wanted_us) {
  if (!is_on()) return STRATA_NEXT(usleep)(wanted_us);
  const timespec wanted = timespec_of(int64_t{wanted_us} * 1000);
  return nanosleep(&wanted, nullptr);
}

STRATA_PUBLIC unsigned sleep(unsigned wanted_s) {
  if (!is_on()) return STRATA_NEXT(sleep)(wanted_s);
  int64_t left_ns = 0;
  if (sleep_for(int64_t{wanted_s} * kSecondNs, &left_ns) == 0) return 0;
  return static_cast<unsigned>((left_ns + kSecondNs / 2) / kSecondNs);
}
