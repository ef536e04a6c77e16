// The far memory of this process: made when the program first wants a large piece of memory, gone
// with the process. Thread-safe. Everything here is called from inside malloc() and mmap(): it
// allocates local memory only (InsideFarmem).
#pragma once

#include <cstddef>
#include <cstdint>

namespace strata::farmem {

// While one exists, allocations of this thread are local: they are this library's own.
class InsideFarmem {
 public:
  InsideFarmem() noexcept { depth++; }
  ~InsideFarmem() { depth--; }
  InsideFarmem(const InsideFarmem&) = delete;
  InsideFarmem& operator=(const InsideFarmem&) = delete;
  static void for_good() noexcept { depth++; }  // until the thread ends
  [[nodiscard]] static bool now() noexcept { return depth > 0; }

 private:
  static thread_local int depth __attribute__((tls_model("initial-exec")));
};

// Whether an allocation of so many bytes should be far. False in the library's own code, in forked
// children, in programs that were not started by `strata-farmem run`, and for small ones.
[[nodiscard]] bool wants_far(size_t bytes) noexcept;
// Whether this process has far memory or may get some.
[[nodiscard]] bool far_memory_is_used() noexcept;
// Local pages that the program may give to the kernel for good (registered buffers): half of them.
[[nodiscard]] uint64_t far_pages_to_pin_max() noexcept;
// Null: there is no room (counted), the caller takes local memory. Zeros, aligned to 4096 and
// `alignment`, a power of two.
[[nodiscard]] void* far_allocate(size_t bytes, size_t alignment) noexcept;
[[nodiscard]] bool is_far_address(const void* address) noexcept;
// All bytes of what far_allocate() gave for this address, whole pages; 0 when this is not the
// beginning of one.
[[nodiscard]] size_t far_bytes_of(const void* address) noexcept;
// All of what far_allocate() gave; asserts that it is one.
void far_free(void* address) noexcept;
// Whole pages, of whatever allocations. They may be used for something else afterwards.
void far_unmap(void* address, size_t bytes) noexcept;
// Whole pages read as zeros when this returns. Blocks.
void far_clear(void* address, size_t bytes) noexcept;

}  // namespace strata::farmem
