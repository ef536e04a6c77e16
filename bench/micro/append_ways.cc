// How should a log segment be written? Compares, on the file system of argv[1], ways to make a
// small append durable: microseconds per durable append. Raw system calls on purpose: this bench
// chooses what io/ and wal/ use, it does not measure them.
//   strata_append_ways <directory> [appends]
#include <fcntl.h>
#include <liburing.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/clock.h"

namespace {

constexpr size_t kFileBytes = 64u << 20;
constexpr size_t kBlock = 4096;

enum class Fill { kZeroes, kFallocate };
enum class Way { kBuffered, kDirect, kDirectDsync, kUring, kUringDirect };
const char* const kWayNames[] = {"buffered + fdatasync", "direct + fdatasync", "direct, O_DSYNC",
                                 "io_uring buffered write->fdatasync",
                                 "io_uring direct write->fdatasync"};

void check(bool ok, const char* what) {
  if (ok) return;
  std::perror(what);
  std::exit(1);
}

int make_file(const std::string& path, Fill fill, char* zeroes) {
  int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600);
  check(fd >= 0, "open");
  if (fill == Fill::kFallocate) {
    check(::posix_fallocate(fd, 0, kFileBytes) == 0, "fallocate");
  } else {
    for (size_t at = 0; at < kFileBytes; at += 1u << 20)
      check(::pwrite(fd, zeroes, 1u << 20, static_cast<off_t>(at)) == (1 << 20), "pwrite");
  }
  check(::fsync(fd) == 0, "fsync");
  ::close(fd);
  return 0;
}

double run(const std::string& path, Way way, size_t bytes, int appends, char* buffer) {
  const bool direct = way == Way::kDirect || way == Way::kDirectDsync || way == Way::kUringDirect;
  int flags = O_RDWR | (direct ? O_DIRECT : 0) | (way == Way::kDirectDsync ? O_DSYNC : 0);
  int fd = ::open(path.c_str(), flags);
  check(fd >= 0, "open for the run");
  io_uring ring;
  const bool uring = way == Way::kUring || way == Way::kUringDirect;
  if (uring) check(io_uring_queue_init(8, &ring, 0) == 0, "io_uring_queue_init");
  size_t at = 0;
  const uint64_t began = strata::monotonic_us();
  for (int i = 0; i < appends && at + bytes + kBlock < kFileBytes; i++, at += bytes) {
    const size_t from = direct ? at & ~(kBlock - 1) : at;
    const size_t to = direct ? (at + bytes + kBlock - 1) & ~(kBlock - 1) : at + bytes;
    if (uring) {
      io_uring_sqe* write = io_uring_get_sqe(&ring);
      io_uring_prep_write(write, fd, buffer, static_cast<unsigned>(to - from), from);
      write->flags |= IOSQE_IO_LINK;
      io_uring_prep_fsync(io_uring_get_sqe(&ring), fd, IORING_FSYNC_DATASYNC);
      check(io_uring_submit_and_wait(&ring, 2) >= 0, "io_uring_submit");
      for (int n = 0; n < 2; n++) {
        io_uring_cqe* done;
        check(io_uring_wait_cqe(&ring, &done) == 0 && done->res >= 0, "io_uring completion");
        io_uring_cqe_seen(&ring, done);
      }
      continue;
    }
    check(::pwrite(fd, buffer, to - from, static_cast<off_t>(from)) ==
              static_cast<ssize_t>(to - from),
          "pwrite");
    if (way != Way::kDirectDsync) check(::fdatasync(fd) == 0, "fdatasync");
  }
  const double us = static_cast<double>(strata::monotonic_us() - began) / appends;
  if (uring) io_uring_queue_exit(&ring);
  ::close(fd);
  return us;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s <directory> [appends]\n", argv[0]);
    return 2;
  }
  const int appends = argc > 2 ? std::atoi(argv[2]) : 500;
  const std::string path = std::string(argv[1]) + "/append_ways.tmp";
  char* buffer = static_cast<char*>(std::aligned_alloc(kBlock, 1u << 20));
  std::memset(buffer, 0, 1u << 20);
  for (Fill fill : {Fill::kZeroes, Fill::kFallocate}) {
    std::printf("%s\n", fill == Fill::kZeroes ? "zero-filled" : "fallocate only");
    for (size_t bytes : {size_t{512}, size_t{8192}, size_t{65536}}) {
      for (int way = 0; way < 5; way++) {
        make_file(path, fill, buffer);
        std::printf("  %6zu bytes  %-36s %8.1f us\n", bytes, kWayNames[way],
                    run(path, static_cast<Way>(way), bytes, appends, buffer));
        std::fflush(stdout);
      }
    }
  }
  ::unlink(path.c_str());
  std::free(buffer);
  return 0;
}
