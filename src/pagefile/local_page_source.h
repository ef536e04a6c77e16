// Pages in local files, one per space: <directory>/space-<id, 8 hex digits>.pages. In-place writes,
// protected by <directory>/double-write.pages (double_write.h), optional direct I/O. Thread-safe.
#pragma once

#include <memory>
#include <string>

#include "io/file_system.h"
#include "pagefile/page_source.h"

namespace strata {

// A file grows by an eighth: at least, and at most, by so many pages.
constexpr uint32_t kGrowPagesMin = 64;    // 1 MiB
constexpr uint32_t kGrowPagesMax = 4096;  // 64 MiB

struct LocalPageSourceOptions {
  std::string directory;
  bool direct_io = true;
  uint32_t open_files = 0;  // kept open at most; 0: a quarter of the process's limit, 1000 at most
  uint32_t double_write_pages = 512;
};
// Repairs what a power loss has torn.
StatusOr<std::unique_ptr<PageSource>> open_local_page_source(FileSystem* fs,
                                                             const LocalPageSourceOptions& options);

}  // namespace strata
