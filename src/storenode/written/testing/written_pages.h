// For tests: batches of pages whose bytes follow from (page id, llsn).
#pragma once

#include <string>
#include <vector>

#include "base/aligned.h"
#include "pagefile/page_source.h"
#include "pagefile/testing/test_pages.h"

namespace strata::storenode::testing {

class Batch {
 public:
  Batch() : pages_(kWriteBatchPages * size_t{kPageBytes}, 4096) {}
  // In the order of the ids.
  Batch& add(PageId id, uint64_t llsn) {
    char* const page = pages_.get() + ids_.size() * kPageBytes;
    strata::testing::fill_page(page, id, llsn, {llsn, 0});
    seal_page(page);
    ids_.push_back(id);
    return *this;
  }
  [[nodiscard]] const PageId* ids() const { return ids_.data(); }
  [[nodiscard]] uint32_t count() const { return static_cast<uint32_t>(ids_.size()); }
  [[nodiscard]] char* pages() const { return pages_.get(); }

 private:
  AlignedBytes pages_;
  std::vector<PageId> ids_;
};

// Empty: the page's bytes are those of that llsn.
inline std::string differs(const char* page, PageId id, uint64_t llsn) {
  strata::testing::PageVersion version;
  std::string wrong = strata::testing::check_page(page, id, &version);
  if (wrong.empty() && (version.version != llsn || header_of(page)->llsn != llsn))
    wrong = "llsn " + std::to_string(header_of(page)->llsn) + " instead of " + std::to_string(llsn);
  return wrong;
}

}  // namespace strata::storenode::testing
