#include "farmem/node/region_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/assert.h"
#include "farmem/policy/policy_options.h"

namespace strata::farmem {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;
constexpr uint64_t kBlockBytes = 512;  // of st_blocks

uint64_t headers_bytes(uint64_t pages) {
  const uint64_t bytes = pages * sizeof(PageHeader);
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}
uint64_t file_bytes(uint64_t pages) { return headers_bytes(pages) + pages * kPageBytes; }

char* map_file(int fd, uint64_t pages) {
  void* const base =
      ::mmap(nullptr, file_bytes(pages), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  return base == MAP_FAILED ? nullptr : static_cast<char*>(base);
}

Status no_memory() {
  return error_no_space(std::string("memory of a region: ") + std::strerror(errno));
}

}  // namespace

StatusOr<std::unique_ptr<RegionMemory>> RegionMemory::create(uint64_t pages) {
  if (pages == 0 || pages > kRegionPagesMax)
    return error_invalid_argument("a region has 1 to 2^28 pages");
  const int fd = ::memfd_create("strata-farmem", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return no_memory();
  char* base = nullptr;
  if (::ftruncate(fd, static_cast<off_t>(file_bytes(pages))) == 0 &&
      ::fcntl(fd, F_ADD_SEALS, kSeals) == 0)
    base = map_file(fd, pages);
  if (base == nullptr) {
    const Status status = no_memory();
    ::close(fd);
    return status;
  }
  return std::unique_ptr<RegionMemory>(new RegionMemory(fd, base, pages));
}

StatusOr<std::unique_ptr<RegionMemory>> RegionMemory::map(int fd, uint64_t pages) {
  struct stat info {};
  const bool sound = pages > 0 && pages <= kRegionPagesMax && ::fstat(fd, &info) == 0 &&
                     static_cast<uint64_t>(info.st_size) == file_bytes(pages) &&
                     (::fcntl(fd, F_GET_SEALS) & kSeals) == kSeals;  // FM10
  char* const base = sound ? map_file(fd, pages) : nullptr;
  if (base == nullptr) {
    ::close(fd);
    return error_corruption("what the memory node sent is not the file of a region");
  }
  return std::unique_ptr<RegionMemory>(new RegionMemory(fd, base, pages));
}

RegionMemory::~RegionMemory() {
  ::munmap(base_, file_bytes(pages_));
  ::close(fd_);
}

PageHeader* RegionMemory::header(uint64_t page) const noexcept {
  STRATA_ASSERT(page < pages_);
  return reinterpret_cast<PageHeader*>(base_) + page;
}

char* RegionMemory::page(uint64_t page) const noexcept {
  STRATA_ASSERT(page < pages_);
  return base_ + headers_bytes(pages_) + page * kPageBytes;
}

void RegionMemory::discard(uint64_t first, uint64_t count) noexcept {
  STRATA_ASSERT(first <= pages_ && count <= pages_ - first);
  if (count == 0) return;
  std::memset(static_cast<void*>(header(first)), 0, count * sizeof(PageHeader));
  // Refused (a kernel without it): the memory stays taken; it is still empty by its headers.
  (void)::madvise(page(first), count * kPageBytes, MADV_REMOVE);
}

uint64_t RegionMemory::bytes_used() const noexcept {
  struct stat info {};
  if (::fstat(fd_, &info) != 0) return 0;
  return static_cast<uint64_t>(info.st_blocks) * kBlockBytes;
}

}  // namespace strata::farmem
