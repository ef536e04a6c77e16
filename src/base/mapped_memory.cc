#include "base/mapped_memory.h"

#include <sys/mman.h>

#include <string>

namespace strata {

MappedMemory::~MappedMemory() {
  if (memory_ != nullptr) munmap(memory_, bytes_);
}

StatusOr<MappedMemory> MappedMemory::map(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    return error_no_space("cannot map " + std::to_string(bytes) + " bytes of memory");
  madvise(memory, bytes, MADV_HUGEPAGE);  // a hint; refusal is fine
  MappedMemory mapped;
  mapped.memory_ = static_cast<char*>(memory);
  mapped.bytes_ = bytes;
  return mapped;
}

}  // namespace strata
