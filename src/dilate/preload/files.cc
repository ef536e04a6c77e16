// Files, sockets and rings: whoever sends, receives or syncs pays first.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <climits>

#include "dilate/preload/runtime.h"

// Of liburing and libaio, declared here since neither is needed to build this.
// NOLINTBEGIN(readability-identifier-naming): they are not ours to name
extern "C" {
int io_uring_submit(void* ring);
int io_uring_submit_and_wait(void* ring, unsigned count);
int io_uring_submit_and_wait_timeout(void* ring, void** done, unsigned count, timespec* limit,
                                     sigset_t* mask);
int io_uring_wait_cqes(void* ring, void** done, unsigned count, timespec* limit, sigset_t* mask);
int io_uring_wait_cqe_timeout(void* ring, void** done, timespec* limit);
int __io_uring_get_cqe(void* ring, void** done, unsigned submit, unsigned count, sigset_t* mask);
int io_submit(void* context, long count, void** requests);
int io_getevents(void* context, long least, long count, void* events, timespec* limit);
}
// NOLINTEND(readability-identifier-naming)

namespace {

using strata::dilate::begin_call;
using strata::dilate::Call;
using strata::dilate::end_call;
using strata::dilate::factor;
using strata::dilate::interrupted_by_slice;
using strata::dilate::is_on;
using strata::dilate::ns_of;
using strata::dilate::paying;
using strata::dilate::paying_once;
using strata::dilate::real_limit;
using strata::dilate::shrunk;
using strata::dilate::stretched;

// Errors are results below zero there.
template <class Function>
int paying_ring(Function&& function) {
  Call call = begin_call();
  int result = function();
  while (result == -EINTR && interrupted_by_slice(&call)) result = function();
  end_call(call);
  return result;
}

bool is_time_limit(int level, int option, socklen_t bytes) noexcept {
  return level == SOL_SOCKET && (option == SO_RCVTIMEO || option == SO_SNDTIMEO) &&
         bytes >= sizeof(timeval);
}
bool is_patience(int level, int option, socklen_t bytes) noexcept {
  return level == IPPROTO_TCP && option == TCP_USER_TIMEOUT && bytes >= sizeof(unsigned);
}

}  // namespace

STRATA_PUBLIC ssize_t read(int file, void* to, size_t bytes) {
  return paying([&] { return STRATA_NEXT(read)(file, to, bytes); });
}
// NOLINTNEXTLINE(readability-identifier-naming): of the C library
STRATA_PUBLIC ssize_t __read_chk(int file, void* to, size_t bytes, size_t /*room*/) {
  return read(file, to, bytes);
}
STRATA_PUBLIC ssize_t write(int file, const void* from, size_t bytes) {
  return paying([&] { return STRATA_NEXT(write)(file, from, bytes); });
}
STRATA_PUBLIC ssize_t readv(int file, const iovec* parts, int count) {
  return paying([&] { return STRATA_NEXT(readv)(file, parts, count); });
}
STRATA_PUBLIC ssize_t writev(int file, const iovec* parts, int count) {
  return paying([&] { return STRATA_NEXT(writev)(file, parts, count); });
}
STRATA_PUBLIC ssize_t pread64(int file, void* to, size_t bytes, off64_t at) {
  return paying([&] { return STRATA_NEXT(pread64)(file, to, bytes, at); });
}
STRATA_PUBLIC ssize_t pread(int file, void* to, size_t bytes, off_t at) {
  return pread64(file, to, bytes, at);
}
// NOLINTNEXTLINE(readability-identifier-naming): of the C library
STRATA_PUBLIC ssize_t __pread_chk(int file, void* to, size_t bytes, off_t at, size_t /*room*/) {
  return pread64(file, to, bytes, at);
}
// NOLINTNEXTLINE(readability-identifier-naming): of the C library
STRATA_PUBLIC ssize_t __pread64_chk(int file, void* to, size_t bytes, off64_t at, size_t /*room*/) {
  return pread64(file, to, bytes, at);
}
STRATA_PUBLIC ssize_t pwrite64(int file, const void* from, size_t bytes, off64_t at) {
  return paying([&] { return STRATA_NEXT(pwrite64)(file, from, bytes, at); });
}
STRATA_PUBLIC ssize_t pwrite(int file, const void* from, size_t bytes, off_t at) {
  return pwrite64(file, from, bytes, at);
}
STRATA_PUBLIC ssize_t preadv64(int file, const iovec* parts, int count, off64_t at) {
  return paying([&] { return STRATA_NEXT(preadv64)(file, parts, count, at); });
}
STRATA_PUBLIC ssize_t preadv(int file, const iovec* parts, int count, off_t at) {
  return preadv64(file, parts, count, at);
}
STRATA_PUBLIC ssize_t pwritev64(int file, const iovec* parts, int count, off64_t at) {
  return paying([&] { return STRATA_NEXT(pwritev64)(file, parts, count, at); });
}
STRATA_PUBLIC ssize_t pwritev(int file, const iovec* parts, int count, off_t at) {
  return pwritev64(file, parts, count, at);
}
STRATA_PUBLIC int fsync(int file) {
  return paying([&] { return STRATA_NEXT(fsync)(file); });
}
STRATA_PUBLIC int fdatasync(int file) {
  return paying([&] { return STRATA_NEXT(fdatasync)(file); });
}
STRATA_PUBLIC int msync(void* memory, size_t bytes, int flags) {
  return paying([&] { return STRATA_NEXT(msync)(memory, bytes, flags); });
}

STRATA_PUBLIC ssize_t send(int file, const void* from, size_t bytes, int flags) {
  return paying([&] { return STRATA_NEXT(send)(file, from, bytes, flags); });
}
STRATA_PUBLIC ssize_t sendto(int file, const void* from, size_t bytes, int flags,
                             const sockaddr* address, socklen_t address_bytes) {
  return paying(
      [&] { return STRATA_NEXT(sendto)(file, from, bytes, flags, address, address_bytes); });
}
STRATA_PUBLIC ssize_t sendmsg(int file, const msghdr* message, int flags) {
  return paying([&] { return STRATA_NEXT(sendmsg)(file, message, flags); });
}
STRATA_PUBLIC int sendmmsg(int file, mmsghdr* messages, unsigned count, int flags) {
  return paying([&] { return STRATA_NEXT(sendmmsg)(file, messages, count, flags); });
}
STRATA_PUBLIC ssize_t recv(int file, void* to, size_t bytes, int flags) {
  return paying([&] { return STRATA_NEXT(recv)(file, to, bytes, flags); });
}
// NOLINTNEXTLINE(readability-identifier-naming): of the C library
STRATA_PUBLIC ssize_t __recv_chk(int file, void* to, size_t bytes, size_t /*room*/, int flags) {
  return recv(file, to, bytes, flags);
}
STRATA_PUBLIC ssize_t recvfrom(int file, void* to, size_t bytes, int flags, sockaddr* address,
                               socklen_t* address_bytes) {
  return paying(
      [&] { return STRATA_NEXT(recvfrom)(file, to, bytes, flags, address, address_bytes); });
}
STRATA_PUBLIC ssize_t recvmsg(int file, msghdr* message, int flags) {
  return paying([&] { return STRATA_NEXT(recvmsg)(file, message, flags); });
}
STRATA_PUBLIC int recvmmsg(int file, mmsghdr* messages, unsigned count, int flags,
                           timespec* limit) {
  timespec room;
  const timespec* const real = is_on() ? real_limit(limit, &room) : limit;
  return paying([&] {
    return STRATA_NEXT(recvmmsg)(file, messages, count, flags, const_cast<timespec*>(real));
  });
}
STRATA_PUBLIC int accept(int file, sockaddr* address, socklen_t* address_bytes) {
  return paying([&] { return STRATA_NEXT(accept)(file, address, address_bytes); });
}
STRATA_PUBLIC int accept4(int file, sockaddr* address, socklen_t* address_bytes, int flags) {
  return paying([&] { return STRATA_NEXT(accept4)(file, address, address_bytes, flags); });
}
// Not taken up again: it goes on by itself, and says so to whoever asks twice.
STRATA_PUBLIC int connect(int file, const sockaddr* address, socklen_t address_bytes) {
  return paying_once([&] { return STRATA_NEXT(connect)(file, address, address_bytes); });
}
STRATA_PUBLIC int shutdown(int file, int how) noexcept {
  return paying_once([&] { return STRATA_NEXT(shutdown)(file, how); });
}

STRATA_PUBLIC int setsockopt(int file, int level, int option, const void* value,
                             socklen_t bytes) noexcept {
  const auto next = STRATA_NEXT(setsockopt);
  if (!is_on() || value == nullptr) return next(file, level, option, value, bytes);
  if (is_time_limit(level, option, bytes)) {
    const auto* const wanted = static_cast<const timeval*>(value);
    if (wanted->tv_sec < 0 || wanted->tv_usec < 0 || wanted->tv_usec >= 1'000'000)
      return next(file, level, option, value, bytes);
    const timeval real = strata::dilate::timeval_up(stretched(ns_of(*wanted), factor()));
    return next(file, level, option, &real, sizeof real);
  }
  if (is_patience(level, option, bytes)) {
    const int64_t real = stretched(*static_cast<const unsigned*>(value), factor());
    const unsigned real_ms = real < INT_MAX ? static_cast<unsigned>(real) : INT_MAX;
    return next(file, level, option, &real_ms, sizeof real_ms);
  }
  return next(file, level, option, value, bytes);
}

STRATA_PUBLIC int getsockopt(int file, int level, int option, void* value,
                             socklen_t* bytes) noexcept {
  const int result = STRATA_NEXT(getsockopt)(file, level, option, value, bytes);
  if (result != 0 || !is_on()) return result;
  if (is_time_limit(level, option, *bytes)) {
    auto* const time = static_cast<timeval*>(value);
    *time = strata::dilate::timeval_of(shrunk(ns_of(*time), factor()));
  } else if (is_patience(level, option, *bytes)) {
    auto* const ms = static_cast<unsigned*>(value);
    *ms = static_cast<unsigned>(shrunk(*ms, factor()));
  }
  return result;
}

STRATA_PUBLIC pid_t waitpid(pid_t child, int* status, int options) {
  return paying([&] { return STRATA_NEXT(waitpid)(child, status, options); });
}
STRATA_PUBLIC pid_t wait4(pid_t child, int* status, int options, rusage* usage) {
  return paying([&] { return STRATA_NEXT(wait4)(child, status, options, usage); });
}

// --- io_uring and libaio -----------------------------------------------------------------------

#define STRATA_URING(name) STRATA_NEXT_OF(name, nullptr, "liburing.so.2")
#define STRATA_AIO(name) STRATA_NEXT_OF(name, nullptr, "libaio.so.1")

STRATA_PUBLIC int io_uring_submit(void* ring) {
  return paying_ring([&] { return STRATA_URING(io_uring_submit)(ring); });
}
STRATA_PUBLIC int io_uring_submit_and_wait(void* ring, unsigned count) {
  return paying_ring([&] { return STRATA_URING(io_uring_submit_and_wait)(ring, count); });
}
STRATA_PUBLIC int io_uring_submit_and_wait_timeout(void* ring, void** done, unsigned count,
                                                   timespec* limit, sigset_t* mask) {
  timespec room;
  auto* const real = const_cast<timespec*>(is_on() ? real_limit(limit, &room) : limit);
  return paying_ring([&] {
    return STRATA_URING(io_uring_submit_and_wait_timeout)(ring, done, count, real, mask);
  });
}
STRATA_PUBLIC int io_uring_wait_cqes(void* ring, void** done, unsigned count, timespec* limit,
                                     sigset_t* mask) {
  timespec room;
  auto* const real = const_cast<timespec*>(is_on() ? real_limit(limit, &room) : limit);
  return paying_ring(
      [&] { return STRATA_URING(io_uring_wait_cqes)(ring, done, count, real, mask); });
}
STRATA_PUBLIC int io_uring_wait_cqe_timeout(void* ring, void** done, timespec* limit) {
  timespec room;
  auto* const real = const_cast<timespec*>(is_on() ? real_limit(limit, &room) : limit);
  return paying_ring([&] { return STRATA_URING(io_uring_wait_cqe_timeout)(ring, done, real); });
}
STRATA_PUBLIC int __io_uring_get_cqe(void* ring, void** done, unsigned submit, unsigned count,
                                     sigset_t* mask) {
  return paying_ring(
      [&] { return STRATA_URING(__io_uring_get_cqe)(ring, done, submit, count, mask); });
}
STRATA_PUBLIC int io_submit(void* context, long count, void** requests) {
  return paying_ring([&] { return STRATA_AIO(io_submit)(context, count, requests); });
}
STRATA_PUBLIC int io_getevents(void* context, long least, long count, void* events,
                               timespec* limit) {
  timespec room;
  auto* const real = const_cast<timespec*>(is_on() ? real_limit(limit, &room) : limit);
  return paying_ring([&] { return STRATA_AIO(io_getevents)(context, least, count, events, real); });
}
