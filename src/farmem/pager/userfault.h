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
  // One page; `from` is missing afterwards. EEXIST: there is a page in both places. (One in `to`
  // only, and it has been moved: kernels 6.18 and others say EEXIST then, too, when they had to
  // begin again because the page's entry changed meanwhile, for example because it was used.)
  // For one thread at a time.
  int move(void* to, const void* from) const;
  int wake(const void* begin, uint64_t bytes) const;
  [[nodiscard]] int fd() const noexcept { return fd_; }

 private:
  explicit Userfault(int fd) noexcept : fd_(fd) {}
  Status make_spare();
  [[nodiscard]] int move_once(uint64_t to, uint64_t from) const;
  [[nodiscard]] bool is_missing(uint64_t page) const;

  const int fd_;
  void* spare_ = nullptr;  // a page that is always missing
};

}  // namespace strata::farmem
