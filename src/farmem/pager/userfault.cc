#include "farmem/pager/userfault.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include "farmem/policy/policy_options.h"

namespace strata::farmem {
namespace {

// Newer than the headers this may be built with.
struct MoveRequest {
  uint64_t to;
  uint64_t from;
  uint64_t bytes;
  uint64_t mode;
  int64_t moved;
};
constexpr uint64_t kFeatureMove = 1u << 16;
constexpr unsigned long kMove = _IOWR(UFFDIO, 0x05, MoveRequest);
constexpr unsigned long kNewFromDevice = _IO(UFFDIO, 0x00);
constexpr size_t kMessagesMax = 16;

int open_descriptor(int device) {
  constexpr int kFlags = O_CLOEXEC | O_NONBLOCK;
  if (device >= 0) return ::ioctl(device, kNewFromDevice, kFlags);
  return static_cast<int>(::syscall(SYS_userfaultfd, kFlags));
}

uint64_t address_of(const void* p) { return reinterpret_cast<uint64_t>(p); }

}  // namespace

StatusOr<std::unique_ptr<Userfault>> Userfault::open(int device) {
  const int fd = open_descriptor(device);
  if (fd < 0 && errno == EPERM)
    return error_invalid_argument(
        "userfaultfd is not allowed here: run as root, or give this user read and write access to "
        "/dev/userfaultfd");
  if (fd < 0)
    return error_invalid_argument(std::string("this kernel has no userfaultfd: ") +
                                  std::strerror(errno));
  auto opened = std::unique_ptr<Userfault>(new Userfault(fd));
  uffdio_api api{.api = UFFD_API, .features = kFeatureMove, .ioctls = 0};
  if (::ioctl(fd, UFFDIO_API, &api) != 0)
    return error_invalid_argument(
        "this kernel's userfaultfd cannot move pages: Linux 6.8 or newer is needed");
  STRATA_RETURN_IF_ERROR(opened->make_spare());
  return opened;
}

Userfault::~Userfault() {
  if (spare_ != nullptr) ::munmap(spare_, kPageBytes);
  ::close(fd_);
}

Status Userfault::make_spare() {
  void* const memory =
      ::mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return error_no_space("no address is left");
  spare_ = memory;
  return watch(spare_, kPageBytes);
}

Status Userfault::watch(const void* begin, uint64_t bytes) const {
  uffdio_register request{};
  request.range = {.start = address_of(begin), .len = bytes};
  request.mode = UFFDIO_REGISTER_MODE_MISSING;
  if (::ioctl(fd_, UFFDIO_REGISTER, &request) != 0)
    return error_internal(std::string("userfaultfd: register: ") + std::strerror(errno));
  return ok_status();
}

size_t Userfault::read(absl::Span<Fault> faults) const {
  std::array<uffd_msg, kMessagesMax> messages;
  const size_t most = std::min(messages.size(), faults.size());
  const ssize_t bytes = ::read(fd_, messages.data(), most * sizeof(uffd_msg));
  if (bytes <= 0) return 0;
  size_t count = 0;
  for (size_t i = 0; i < static_cast<size_t>(bytes) / sizeof(uffd_msg); i++)
    if (messages[i].event == UFFD_EVENT_PAGEFAULT)
      faults[count++] = {
          .address = messages[i].arg.pagefault.address,
          .write = (messages[i].arg.pagefault.flags & UFFD_PAGEFAULT_FLAG_WRITE) != 0};
  return count;
}

int Userfault::copy(void* to, const void* from, uint64_t bytes) const {
  uffdio_copy request{};
  for (uint64_t done = 0; done < bytes;) {
    request = {.dst = address_of(to) + done,
               .src = address_of(from) + done,
               .len = bytes - done,
               .mode = 0,
               .copy = 0};
    if (::ioctl(fd_, UFFDIO_COPY, &request) == 0) return 0;
    if (errno != EAGAIN) return errno;
    if (request.copy > 0) done += static_cast<uint64_t>(request.copy);
  }
  return 0;
}

int Userfault::move_once(uint64_t to, uint64_t from) const {
  constexpr int kTriesMax = 1000;  // the page is looked at by somebody else, for a moment
  for (int tries = 0;; tries++) {
    MoveRequest request{.to = to, .from = from, .bytes = kPageBytes, .mode = 0, .moved = 0};
    if (::ioctl(fd_, kMove, &request) == 0) return 0;
    if (errno != EAGAIN || tries == kTriesMax) return errno;
  }
}

int Userfault::move(void* to, const void* from) const {
  const int error = move_once(address_of(to), address_of(from));
  // The kernel has moved it, forgotten that it had, and done it again: nobody was woken.
  if (error == EEXIST && is_missing(address_of(from))) return wake(to, kPageBytes);
  return error;
}

// No call says so, but a move of what is missing fails, before it does anything. (A page in the
// kernel's place to swap to is not missing.)
bool Userfault::is_missing(uint64_t page) const {
  const uint64_t spare = address_of(spare_);
  const int error = move_once(spare, page);
  if (error == ENOENT) return true;
  // It is in the spare page now: EEXIST, as above.
  if (error == 0 || error == EEXIST) (void)move_once(page, spare);
  return false;
}

int Userfault::wake(const void* begin, uint64_t bytes) const {
  uffdio_range range{.start = address_of(begin), .len = bytes};
  return ::ioctl(fd_, UFFDIO_WAKE, &range) == 0 ? 0 : errno;
}

}  // namespace strata::farmem
