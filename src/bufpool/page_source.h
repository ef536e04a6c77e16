// Where pages come from and go to. Owned by bufpool; implemented by local files
// (bufpool/local_page_source.h) and by clients of storage or memory nodes. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "base/status.h"

namespace strata {

class PageSource {
 public:
  virtual ~PageSource() = default;
  // Reads a page whose llsn is at least `at_least` into page[0..kPageBytes) and verifies checksum
  // and identity. kNotFound: never written. kDataLoss: damaged (names file and page). Blocks.
  virtual Status read(PageId id, Llsn at_least, char* page) = 0;
  // Writes a sealed page in place; durable after sync(). `page` is 4096-aligned. Blocks.
  virtual Status write(PageId id, const char* page) = 0;
  // Writes `count` neighbours from `first` on; `pages` holds them one after the other, each sealed.
  // On failure some may have been written.
  virtual Status write_run(PageId first, uint32_t count, const char* pages) {
    for (uint32_t i = 0; i < count; ++i) {
      const PageId id{first.space, first.number + i};
      if (Status s = write(id, pages + size_t{i} * 16384); !s.ok()) return s;
    }
    return ok_status();
  }
  virtual Status sync() = 0;                       // every completed write is durable
  virtual Status create_space(SpaceId space) = 0;  // durable when it returns; OK when it exists
  virtual Status delete_space(SpaceId space) = 0;  // durable when it returns; OK when absent
  virtual StatusOr<bool> space_exists(SpaceId space) = 0;
  virtual StatusOr<std::vector<SpaceId>> list_spaces() = 0;
  // Room for pages [0, pages) of the space exists after OK; kResourceExhausted when the disk is
  // full.
  virtual Status grow_space(SpaceId space, uint32_t pages) = 0;
  // In-place stores tear pages at power loss and need full-page images in the log.
  [[nodiscard]] virtual bool needs_page_images() const = 0;
};

}  // namespace strata
