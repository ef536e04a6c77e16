// Waiting for several things at once, with time limits in emulated time.
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/select.h>

#include <climits>

#include "dilate/preload/runtime.h"

namespace {

using strata::dilate::begin_call;
using strata::dilate::Call;
using strata::dilate::end_call;
using strata::dilate::factor;
using strata::dilate::interrupted_by_slice;
using strata::dilate::is_on;
using strata::dilate::is_valid;
using strata::dilate::kMillisecondNs;
using strata::dilate::ns_of;
using strata::dilate::paying_once;
using strata::dilate::real_now_ns;
using strata::dilate::shrunk;
using strata::dilate::stretched;
using strata::dilate::timespec_of;
using strata::dilate::without_slice_signal;

constexpr int64_t kNoLimit = -1;

// `wait(left_ns)` waits for so long, or kNoLimit; again with what is left when it was interrupted
// by nothing that the program may know of.
template <class Wait>
auto wait_within(int64_t emulated_ns, Wait&& wait) {
  Call call = begin_call();
  const int64_t limit_ns = stretched(emulated_ns, factor());
  const int64_t until_ns = limit_ns < 0 ? 0 : real_now_ns() + limit_ns;
  auto result = wait(limit_ns);
  while (result == -1 && errno == EINTR && interrupted_by_slice(&call)) {
    const int64_t left_ns = until_ns - real_now_ns();
    result = wait(limit_ns < 0 ? kNoLimit : left_ns > 0 ? left_ns : 0);
  }
  end_call(call);
  return result;
}

int64_t ns_of_ms(int timeout_ms) noexcept {
  return timeout_ms < 0 ? kNoLimit : int64_t{timeout_ms} * kMillisecondNs;
}
int ms_of(int64_t ns) noexcept {
  if (ns < 0) return -1;
  const int64_t ms = (ns + kMillisecondNs - 1) / kMillisecondNs;
  return static_cast<int>(ms < INT_MAX ? ms : INT_MAX);
}
int64_t ns_or_no_limit(const timespec* limit) noexcept {
  return limit == nullptr ? kNoLimit : ns_of(*limit);
}
const timespec* limit_of(int64_t ns, timespec* room) noexcept {
  if (ns < 0) return nullptr;
  *room = timespec_of(ns);
  return room;
}
bool is_for_the_kernel(const timespec* limit) noexcept {
  return !is_on() || (limit != nullptr && !is_valid(*limit));
}

}  // namespace

STRATA_PUBLIC int poll(pollfd* files, nfds_t count, int timeout_ms) {
  if (!is_on()) return STRATA_NEXT(poll)(files, count, timeout_ms);
  return wait_within(ns_of_ms(timeout_ms), [&](int64_t ns) {
    timespec room;
    return STRATA_NEXT(ppoll)(files, count, limit_of(ns, &room), nullptr);
  });
}
// NOLINTNEXTLINE(readability-identifier-naming): of the C library
STRATA_PUBLIC int __poll_chk(pollfd* files, nfds_t count, int timeout_ms, size_t /*bytes*/) {
  return poll(files, count, timeout_ms);
}

STRATA_PUBLIC int ppoll(pollfd* files, nfds_t count, const timespec* limit, const sigset_t* mask) {
  if (is_for_the_kernel(limit)) return STRATA_NEXT(ppoll)(files, count, limit, mask);
  sigset_t signals;
  const sigset_t* const allowed = without_slice_signal(mask, &signals);
  return wait_within(ns_or_no_limit(limit), [&](int64_t ns) {
    timespec room;
    return STRATA_NEXT(ppoll)(files, count, limit_of(ns, &room), allowed);
  });
}
// NOLINTNEXTLINE(readability-identifier-naming): of the C library
STRATA_PUBLIC int __ppoll_chk(pollfd* files, nfds_t count, const timespec* limit,
                              const sigset_t* mask, size_t /*bytes*/) {
  return ppoll(files, count, limit, mask);
}

// Linux says in the time limit what is left of it; and changes no set when it fails.
STRATA_PUBLIC int select(int count, fd_set* readable, fd_set* writable, fd_set* special,
                         timeval* limit) {
  if (!is_on() || (limit != nullptr && (limit->tv_sec < 0 || limit->tv_usec < 0)))
    return STRATA_NEXT(select)(count, readable, writable, special, limit);
  int64_t left_ns = 0;
  const int result = wait_within(limit == nullptr ? kNoLimit : ns_of(*limit), [&](int64_t ns) {
    timeval room = strata::dilate::timeval_up(ns);
    const int ready =
        STRATA_NEXT(select)(count, readable, writable, special, ns < 0 ? nullptr : &room);
    left_ns = ns_of(room);
    return ready;
  });
  if (limit != nullptr) *limit = strata::dilate::timeval_of(shrunk(left_ns, factor()));
  return result;
}

STRATA_PUBLIC int pselect(int count, fd_set* readable, fd_set* writable, fd_set* special,
                          const timespec* limit, const sigset_t* mask) {
  if (is_for_the_kernel(limit))
    return STRATA_NEXT(pselect)(count, readable, writable, special, limit, mask);
  sigset_t signals;
  const sigset_t* const allowed = without_slice_signal(mask, &signals);
  return wait_within(ns_or_no_limit(limit), [&](int64_t ns) {
    timespec room;
    return STRATA_NEXT(pselect)(count, readable, writable, special, limit_of(ns, &room), allowed);
  });
}

STRATA_PUBLIC int epoll_wait(int epoll, epoll_event* events, int count, int timeout_ms) {
  if (!is_on()) return STRATA_NEXT(epoll_wait)(epoll, events, count, timeout_ms);
  return wait_within(ns_of_ms(timeout_ms), [&](int64_t ns) {
    return STRATA_NEXT(epoll_wait)(epoll, events, count, ms_of(ns));
  });
}

STRATA_PUBLIC int epoll_pwait(int epoll, epoll_event* events, int count, int timeout_ms,
                              const sigset_t* mask) {
  if (!is_on()) return STRATA_NEXT(epoll_pwait)(epoll, events, count, timeout_ms, mask);
  sigset_t signals;
  const sigset_t* const allowed = without_slice_signal(mask, &signals);
  return wait_within(ns_of_ms(timeout_ms), [&](int64_t ns) {
    return STRATA_NEXT(epoll_pwait)(epoll, events, count, ms_of(ns), allowed);
  });
}

STRATA_PUBLIC int epoll_pwait2(int epoll, epoll_event* events, int count, const timespec* limit,
                               const sigset_t* mask) {
  if (is_for_the_kernel(limit)) return STRATA_NEXT(epoll_pwait2)(epoll, events, count, limit, mask);
  sigset_t signals;
  const sigset_t* const allowed = without_slice_signal(mask, &signals);
  return wait_within(ns_or_no_limit(limit), [&](int64_t ns) {
    timespec room;
    return STRATA_NEXT(epoll_pwait2)(epoll, events, count, limit_of(ns, &room), allowed);
  });
}

STRATA_PUBLIC int sigtimedwait(const sigset_t* signals, siginfo_t* info, const timespec* limit) {
  if (is_for_the_kernel(limit)) return STRATA_NEXT(sigtimedwait)(signals, info, limit);
  sigset_t room;
  const sigset_t* const awaited = without_slice_signal(signals, &room);
  return wait_within(ns_or_no_limit(limit), [&](int64_t ns) {
    timespec time;
    return STRATA_NEXT(sigtimedwait)(awaited, info, limit_of(ns, &time));
  });
}

STRATA_PUBLIC int sigwaitinfo(const sigset_t* signals, siginfo_t* info) {
  if (!is_on()) return STRATA_NEXT(sigwaitinfo)(signals, info);
  return sigtimedwait(signals, info, nullptr);
}

STRATA_PUBLIC int sigwait(const sigset_t* signals, int* which) {
  sigset_t room;
  const sigset_t* const awaited = without_slice_signal(signals, &room);
  return paying_once([&] { return STRATA_NEXT(sigwait)(awaited, which); });
}

// TD9
STRATA_PUBLIC int sigprocmask(int how, const sigset_t* mask, sigset_t* before) noexcept {
  sigset_t room;
  if (how != SIG_UNBLOCK) mask = without_slice_signal(mask, &room);
  return STRATA_NEXT(sigprocmask)(how, mask, before);
}
STRATA_PUBLIC int pthread_sigmask(int how, const sigset_t* mask, sigset_t* before) noexcept {
  sigset_t room;
  if (how != SIG_UNBLOCK) mask = without_slice_signal(mask, &room);
  return STRATA_NEXT(pthread_sigmask)(how, mask, before);
}
STRATA_PUBLIC int sigsuspend(const sigset_t* mask) {
  sigset_t room;
  const sigset_t* const allowed = without_slice_signal(mask, &room);
  return strata::dilate::paying([&] { return STRATA_NEXT(sigsuspend)(allowed); });
}
