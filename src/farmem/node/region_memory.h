// The memory of one client's region: a file in memory, as large as the client's far memory, of
// which only what was written takes room. The node has it mapped; a client on the same host may,
// too.
//
//     file = header of each page (16 bytes each, filled up to 4096) | pages
//
// Written by: the node for calls; the client for its mapping; never both, a client uses one way.
// Read by the same. Torn or foreign content: the reader knows what it wrote last (page_digest.h).
//   FM10  The file never changes its size, and is sealed so: no access to a mapping is beyond its
//         end.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"

namespace strata::farmem {

struct PageHeader {
  uint64_t generation = 0;  // 0: nothing stored
  uint32_t crc32c = 0;      // of the page
  uint32_t reserved = 0;
};
static_assert(sizeof(PageHeader) == 16);

constexpr uint64_t kRegionPagesMax = 1ull << 28;  // 1 TiB

class RegionMemory {
 public:
  // A new one, empty. Errors: kInvalidArgument (no or too many pages), kResourceExhausted.
  static StatusOr<std::unique_ptr<RegionMemory>> create(uint64_t pages);
  // The one in `fd`, which came from a node; takes the descriptor. Error: kDataLoss (no such file).
  static StatusOr<std::unique_ptr<RegionMemory>> map(int fd, uint64_t pages);
  ~RegionMemory();
  RegionMemory(const RegionMemory&) = delete;
  RegionMemory& operator=(const RegionMemory&) = delete;

  [[nodiscard]] PageHeader* header(uint64_t page) const noexcept;
  [[nodiscard]] char* page(uint64_t page) const noexcept;
  // Empties these pages and gives their memory back.
  void discard(uint64_t first, uint64_t count) noexcept;
  [[nodiscard]] uint64_t pages() const noexcept { return pages_; }
  // What the file takes now, headers included.
  [[nodiscard]] uint64_t bytes_used() const noexcept;
  [[nodiscard]] int fd() const noexcept { return fd_; }

 private:
  RegionMemory(int fd, char* base, uint64_t pages) noexcept : fd_(fd), base_(base), pages_(pages) {}
  const int fd_;
  char* const base_;
  const uint64_t pages_;
};

}  // namespace strata::farmem
