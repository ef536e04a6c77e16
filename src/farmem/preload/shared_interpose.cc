// mmap() of shared anonymous memory, in front of the C library's: large pieces become pieces of a
// file whose pages another process keeps in a memory node (src/farmem/shared). Loaded by
// LD_PRELOAD into each process of a program; nothing else of it is touched.
//   FM29  What is mapped is as the kernel's own would be: zeros at first, shared with the children
//         that are forked afterwards, gone with munmap(). No piece of the file is mapped twice.
//         Once strata-farmem is gone there is none (ENOMEM).
// Not far: fixed addresses, huge pages (which are refused with ENOMEM, as where there are none),
// shared memory that has a name (shm_open(), shmget()), and what finds no room in the file.
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "farmem/pager/shared_setup.h"
#include "farmem/policy/policy_options.h"

#define STRATA_PUBLIC extern "C" __attribute__((visibility("default")))

namespace {

using strata::farmem::kPageBytes;
using strata::farmem::SharedMemory;
using strata::farmem::SharedSetup;

SharedSetup* setup = nullptr;  // set once, before main()

void* kernel_mmap(void* address, size_t bytes, int protection, int flags, int fd, off_t offset) {
  return reinterpret_cast<void*>(
      ::syscall(SYS_mmap, address, bytes, protection, flags, fd, offset));
}

// A program closes what it does not know, and may have opened something else since. Where
// strata-farmem is gone, `lost` is set: local memory would hide it.
bool is_there(const SharedSetup& shared, bool* lost) {
  struct stat info {};
  const bool found = ::fstat(shared.shared_file, &info) == 0;
  *lost = !found && errno != EBADF;
  return found && info.st_dev == shared.shared_device;
}

bool may_be_far(size_t bytes, int flags) {
  constexpr int kForbidden = MAP_FIXED | MAP_FIXED_NOREPLACE | MAP_GROWSDOWN | MAP_32BIT;
  const bool is_shared = (flags & MAP_TYPE) == MAP_SHARED && (flags & MAP_ANONYMOUS) != 0;
  return is_shared && (flags & kForbidden) == 0 && setup != nullptr &&
         bytes >= setup->far_bytes_min;
}

// Pages of the file that nobody else has; UINT64_MAX: there is no such room.
uint64_t take(uint64_t pages) {
  uint64_t first = setup->shared_pages_taken.load(std::memory_order_relaxed);
  do {
    if (pages > setup->far_pages - first) return UINT64_MAX;
  } while (!setup->shared_pages_taken.compare_exchange_weak(first, first + pages));
  return first;
}

void* map_far(void* address, size_t bytes, int protection, bool* lost) {
  const uint64_t pages = (bytes + kPageBytes - 1) / kPageBytes;
  const uint64_t first = is_there(*setup, lost) ? take(pages) : UINT64_MAX;
  auto& counters = setup->processes[0];
  if (first == UINT64_MAX) {
    counters.far_bytes_refused.fetch_add(bytes, std::memory_order_relaxed);
    return MAP_FAILED;
  }
  void* const memory = kernel_mmap(address, bytes, protection, MAP_SHARED, setup->shared_file,
                                   static_cast<off_t>(first * kPageBytes));
  if (memory == MAP_FAILED) return memory;
  counters.far_bytes_allocated.fetch_add(pages * kPageBytes, std::memory_order_relaxed);
  // One page comes at a time, and none is in a core dump.
  ::syscall(SYS_madvise, memory, bytes, MADV_RANDOM);
  ::syscall(SYS_madvise, memory, bytes, MADV_DONTDUMP);
  return memory;
}

__attribute__((constructor)) void set_up() {
  const auto memory = SharedMemory::from_environment();
  if (memory.ok() && memory->get()->shared_file >= 0) setup = memory->get();
}

}  // namespace

STRATA_PUBLIC void* mmap(void* address, size_t bytes, int protection, int flags, int fd,
                         off_t offset) noexcept {
  if (may_be_far(bytes, flags)) {
    if ((flags & MAP_HUGETLB) != 0) {
      errno = ENOMEM;
      return MAP_FAILED;
    }
    const int before = errno;
    bool lost = false;
    void* const far = map_far(address, bytes, protection, &lost);
    if (far != MAP_FAILED) return far;
    if (lost) {
      errno = ENOMEM;
      return MAP_FAILED;
    }
    errno = before;
  }
  return kernel_mmap(address, bytes, protection, flags, fd, offset);
}

STRATA_PUBLIC void* mmap64(void* address, size_t bytes, int protection, int flags, int fd,
                           off64_t offset) noexcept {
  return mmap(address, bytes, protection, flags, fd, offset);
}
