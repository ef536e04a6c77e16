// The functions by which a program gets memory, in front of the C library's: large pieces come from
// far memory, everything else from where it always came. Loaded by LD_PRELOAD.
//   FM26  Each function keeps the contract of the C library's: alignment, zeros, errno, and
//         contents over realloc() and mremap().
//   FM27  What cannot be far is local: fixed addresses, files, shared memory, code, stacks, huge
//         pages, and small pieces.
// Not far either: what the C library maps for itself (thread stacks, its own allocator's arenas).
#include <dlfcn.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstring>

#include "farmem/policy/policy_options.h"
#include "farmem/preload/far_memory.h"

#define STRATA_PUBLIC extern "C" __attribute__((visibility("default")))

// The C library's own, under the names it keeps for this purpose.
// NOLINTBEGIN(readability-identifier-naming): they are not ours to name
extern "C" {
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* memory, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);
void __libc_free(void* memory);
}
// NOLINTEND(readability-identifier-naming)

namespace {

using strata::farmem::far_allocate;
using strata::farmem::far_bytes_of;
using strata::farmem::far_clear;
using strata::farmem::far_free;
using strata::farmem::far_unmap;
using strata::farmem::is_far_address;
using strata::farmem::kPageBytes;
using strata::farmem::wants_far;

// Of the program's far memory, and asked about by the program: the pager's own calls about these
// addresses are meant for the kernel.
bool is_programs_far(const void* address) {
  return is_far_address(address) && !strata::farmem::InsideFarmem::now();
}

bool is_power_of_two(size_t n) { return n != 0 && (n & (n - 1)) == 0; }

void* aligned(size_t alignment, size_t bytes) {
  if (wants_far(bytes)) {
    void* const far = far_allocate(bytes, alignment);
    if (far != nullptr) return far;
  }
  return __libc_memalign(alignment, bytes);
}

// Far memory's contents in another place, as much as both hold.
void* moved(void* from, size_t bytes_from, size_t bytes) {
  void* const to = malloc(bytes);
  if (to == nullptr) return nullptr;
  std::memcpy(to, from, std::min(bytes_from, bytes));
  far_free(from);
  return to;
}

void* kernel_mmap(void* address, size_t bytes, int protection, int flags, int fd, off_t offset) {
  return reinterpret_cast<void*>(
      ::syscall(SYS_mmap, address, bytes, protection, flags, fd, offset));
}

// FM27
bool may_be_far(size_t bytes, int protection, int flags) {
  constexpr int kNeeded = MAP_PRIVATE | MAP_ANONYMOUS;
  constexpr int kForbidden = MAP_FIXED | MAP_FIXED_NOREPLACE | MAP_SHARED | MAP_GROWSDOWN |
                             MAP_STACK | MAP_HUGETLB | MAP_LOCKED | MAP_32BIT;
  // Addresses without access are a reservation, to be used later: far from the beginning, or what
  // becomes of it would be local.
  const bool fits = protection == (PROT_READ | PROT_WRITE) || protection == PROT_NONE;
  return (flags & kNeeded) == kNeeded && (flags & kForbidden) == 0 && fits && wants_far(bytes);
}

bool is_whole_pages(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % kPageBytes == 0;
}

}  // namespace

STRATA_PUBLIC void* malloc(size_t bytes) {
  if (wants_far(bytes)) {
    void* const far = far_allocate(bytes, 1);
    if (far != nullptr) return far;
  }
  return __libc_malloc(bytes);
}

STRATA_PUBLIC void free(void* memory) {
  if (!is_far_address(memory)) return __libc_free(memory);
  const int before = errno;  // free() keeps it
  far_free(memory);
  errno = before;
}

STRATA_PUBLIC void* calloc(size_t count, size_t bytes) {
  size_t all = 0;
  if (!__builtin_mul_overflow(count, bytes, &all) && wants_far(all)) {
    void* const far = far_allocate(all, 1);
    if (far != nullptr) return far;
  }
  return __libc_calloc(count, bytes);
}

STRATA_PUBLIC void* realloc(void* memory, size_t bytes) {
  if (memory == nullptr) return malloc(bytes);
  if (is_far_address(memory)) {
    if (bytes == 0) {
      far_free(memory);
      return nullptr;
    }
    // All of its pages: it may have grown within them before.
    const size_t room = far_bytes_of(memory);
    if (bytes <= room && bytes >= room / 2) return memory;
    return moved(memory, room, bytes);
  }
  if (!wants_far(bytes)) return __libc_realloc(memory, bytes);
  void* const far = far_allocate(bytes, 1);
  if (far == nullptr) return __libc_realloc(memory, bytes);
  std::memcpy(far, memory, std::min(malloc_usable_size(memory), bytes));
  __libc_free(memory);
  return far;
}

STRATA_PUBLIC void* reallocarray(void* memory, size_t count, size_t bytes) {
  size_t all = 0;
  if (__builtin_mul_overflow(count, bytes, &all)) {
    errno = ENOMEM;
    return nullptr;
  }
  return realloc(memory, all);
}

STRATA_PUBLIC void* memalign(size_t alignment, size_t bytes) { return aligned(alignment, bytes); }

STRATA_PUBLIC void* aligned_alloc(size_t alignment, size_t bytes) {
  return aligned(alignment, bytes);
}

STRATA_PUBLIC int posix_memalign(void** memory, size_t alignment, size_t bytes) {
  if (alignment % sizeof(void*) != 0 || !is_power_of_two(alignment)) return EINVAL;
  const int before = errno;  // posix_memalign() keeps it
  void* const made = aligned(alignment, bytes);
  errno = before;
  if (made == nullptr) return ENOMEM;
  *memory = made;
  return 0;
}

STRATA_PUBLIC void* valloc(size_t bytes) { return aligned(kPageBytes, bytes); }

STRATA_PUBLIC void* pvalloc(size_t bytes) {
  return aligned(kPageBytes, (bytes + kPageBytes - 1) / kPageBytes * kPageBytes);
}

STRATA_PUBLIC size_t malloc_usable_size(void* memory) {
  if (is_far_address(memory)) return far_bytes_of(memory);
  using Function = size_t (*)(void*);
  static const auto next = reinterpret_cast<Function>(::dlsym(RTLD_NEXT, "malloc_usable_size"));
  return next(memory);
}

STRATA_PUBLIC void* mmap(void* address, size_t bytes, int protection, int flags, int fd,
                         off_t offset) noexcept {
  if (may_be_far(bytes, protection, flags)) {
    void* const far = far_allocate(bytes, 1);
    if (far != nullptr) return far;
  }
  if ((flags & MAP_FIXED) != 0 && is_programs_far(address)) {
    // Fresh anonymous memory in a place the program has already; a file has no place there.
    if ((flags & MAP_ANONYMOUS) == 0 || (flags & MAP_SHARED) != 0 || !is_whole_pages(address)) {
      errno = ENOMEM;
      return MAP_FAILED;
    }
    far_clear(address, bytes);
    return address;
  }
  return kernel_mmap(address, bytes, protection, flags, fd, offset);
}

STRATA_PUBLIC void* mmap64(void* address, size_t bytes, int protection, int flags, int fd,
                           off64_t offset) noexcept {
  return mmap(address, bytes, protection, flags, fd, offset);
}

STRATA_PUBLIC int munmap(void* address, size_t bytes) noexcept {
  if (!is_programs_far(address)) return static_cast<int>(::syscall(SYS_munmap, address, bytes));
  if (!is_whole_pages(address) || bytes == 0) {
    errno = EINVAL;
    return -1;
  }
  far_unmap(address, bytes);
  return 0;
}

STRATA_PUBLIC void* mremap(void* from, size_t bytes_from, size_t bytes, int flags, ...) noexcept {
  va_list more;
  va_start(more, flags);
  void* const wanted = (flags & MREMAP_FIXED) != 0 ? va_arg(more, void*) : nullptr;
  va_end(more);
  if (!is_programs_far(from))
    return reinterpret_cast<void*>(::syscall(SYS_mremap, from, bytes_from, bytes, flags, wanted));
  if (!is_whole_pages(from) || bytes == 0 || (flags & MREMAP_FIXED) != 0) {
    errno = EINVAL;
    return MAP_FAILED;
  }
  const auto whole = [](size_t n) { return (n + kPageBytes - 1) / kPageBytes * kPageBytes; };
  if (whole(bytes) <= whole(bytes_from)) {
    char* const end = static_cast<char*>(from) + whole(bytes);
    if (whole(bytes) < whole(bytes_from)) far_unmap(end, whole(bytes_from) - whole(bytes));
    return from;
  }
  if ((flags & MREMAP_MAYMOVE) == 0) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  void* const to = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (to == MAP_FAILED) return MAP_FAILED;
  std::memcpy(to, from, bytes_from);
  far_unmap(from, bytes_from);
  return to;
}

STRATA_PUBLIC int madvise(void* address, size_t bytes, int advice) noexcept {
  if (!is_programs_far(address))
    return static_cast<int>(::syscall(SYS_madvise, address, bytes, advice));
  if (!is_whole_pages(address)) {
    errno = EINVAL;
    return -1;
  }
  // The others are wishes about how the kernel keeps the memory, which is not its business here.
  if (advice == MADV_DONTNEED || advice == MADV_FREE) far_clear(address, bytes);
  return 0;
}

// Locked memory would have to be local, all of it and at once: the kernel would fetch the whole
// region, and could move none of it away. The program is told what it is told when its limit of
// locked memory is reached.
STRATA_PUBLIC int mlock(const void* address, size_t bytes) noexcept {
  if (!is_programs_far(address)) return static_cast<int>(::syscall(SYS_mlock, address, bytes));
  errno = ENOMEM;
  return -1;
}

STRATA_PUBLIC int mlock2(const void* address, size_t bytes, unsigned flags) noexcept {
  if (!is_programs_far(address))
    return static_cast<int>(::syscall(SYS_mlock2, address, bytes, flags));
  errno = ENOMEM;
  return -1;
}

STRATA_PUBLIC int munlock(const void* address, size_t bytes) noexcept {
  if (is_programs_far(address)) return 0;  // it never is locked
  return static_cast<int>(::syscall(SYS_munlock, address, bytes));
}

STRATA_PUBLIC int mlockall(int flags) noexcept {
  if (!strata::farmem::far_memory_is_used())
    return static_cast<int>(::syscall(SYS_mlockall, flags));
  errno = ENOMEM;
  return -1;
}

STRATA_PUBLIC int mprotect(void* address, size_t bytes, int protection) noexcept {
  if (!is_programs_far(address))
    return static_cast<int>(::syscall(SYS_mprotect, address, bytes, protection));
  // Far memory is readable and writable always; only code would need more.
  if ((protection & PROT_EXEC) == 0) return 0;
  errno = EACCES;
  return -1;
}
