// The shared pages of several servers, written to where their storage is (a PageSource over the
// storage nodes). The memory node is the only one that writes pages there.
//   SPG1  A page counts as written only when the sync behind its write was OK: every storage node
//         in sync has it durably then (WN1, WN2 of clients/storage).
//   SPG2  What was given in one call is written in the order of pages. Of a page that comes twice
//         the larger llsn is written.
//   SPG3  A version that is older than one that this has written is not written: storage keeps the
//         larger llsn (FU17).
#pragma once

#include <unordered_map>
#include <vector>

#include "base/aligned.h"
#include "memnode/fusion/page_store.h"
#include "pagefile/page_source.h"

namespace strata::memnode {

class StoredPages final : public PageStore {
 public:
  // `storage` outlives it. `known_max`: of so many pages it is remembered what was written last.
  explicit StoredPages(PageSource* storage, size_t known_max = 1u << 18);
  void write(absl::Span<const Image> images, absl::Span<Status> results) override;

 private:
  void write_batch(absl::Span<const Image> images, absl::Span<const size_t> which,
                   absl::Span<Status> results);
  [[nodiscard]] bool is_older(const Image& image) const;
  void note(const Image& image);

  PageSource* const storage_;
  const size_t known_max_;
  AlignedBytes batch_;
  std::unordered_map<uint64_t, uint64_t> written_;  // packed page -> llsn
};

}  // namespace strata::memnode
