// The kernel's userfaultfd, as far as the pager needs it: a thread that touches a missing page of a
// watched range sleeps until this process puts a page there. Linux 6.8 or newer (UFFDIO_MOVE).
#pragma once

#include <cstdint>
#include <memory>

#include "absl/types/span.h"
#include "base/status.h"

namespace strata::farmem {

struct Fault {
  uint64_t address = 0;
  bool write = false;  // the thread wants to write, as far as the kernel can tell
};

class Userfault {
 public:
  // `device`: an open /dev/userfaultfd, or -1 for the system call, which needs root. Error:
  // kInvalidArgument, which says what right or what kernel is missing.
  static StatusOr<std::unique_ptr<Userfault>> open(int device);
  ~Userfault();
  Userfault(const Userfault&) = delete;
  Userfault& operator=(const Userfault&) = delete;

  // Private anonymous memory. Error: kInternal.
  Status watch(const void* begin, uint64_t bytes) const;
  // The next faults, as far as `faults` holds them; 0 when there is none now.
  size_t read(absl::Span<Fault> faults) const;
  // Each returns 0 or an error number. Pages of `to` must be missing. Sleepers are woken.
  int copy(void* to, const void* from, uint64_t bytes) const;
  int move(void* to, const void* from, uint64_t bytes) const;  // `from` is missing afterwards
  int wake(const void* begin, uint64_t bytes) const;
  [[nodiscard]] int fd() const noexcept { return fd_; }

 private:
  explicit Userfault(int fd) noexcept : fd_(fd) {}
  const int fd_;
};

}  // namespace strata::farmem
