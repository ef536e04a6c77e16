// Pages of a peer, on their way into a page store that has nothing of its own: what a peer tells,
// and the store that is being filled. Why the copy need not be of one moment is in
// storenode/copy/README.md.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "pagefile/page_source.h"
#include "storenode/replay/copy_offer.h"
#include "storenode/replay/in_place_pages.h"
#include "storenode/replay/page_store.h"
#include "storenode/versions/version_db.h"

namespace strata::storenode {

// How a page store's version db is opened.
[[nodiscard]] VersionDbOptions version_db_options(const PageStoreOptions& options);
// ... and, in mode single, its page files. Blocks.
StatusOr<std::unique_ptr<PageSource>> open_page_files(const PageStoreOptions& options);

// Pages that the space's file has room for; written or not. Blocks.
StatusOr<uint32_t> page_file_pages(const PageStoreOptions& options, SpaceId space);

// The file that says, over any crash, that what is in the folder is no whole page store.
//   CF1  It is durable before the first file of the old store is removed, and removed once the new
//        one is whole and durable.
[[nodiscard]] StatusOr<bool> is_being_copied(const PageStoreOptions& options);
Status note_being_copied(const PageStoreOptions& options);
Status note_copied(const PageStoreOptions& options);

// A page store that is being filled. Not thread-safe.
//   CG1  What finish() says is true of the whole store: everything that was put, positions, horizon
//        and dropped spaces are durable when it returns OK.
class CopiedPages {
 public:
  // Removes what the folder holds. Blocks.
  static StatusOr<std::unique_ptr<CopiedPages>> begin(const PageStoreOptions& options);

  // A verified page; kept as the oldest state there is. Blocks now and then.
  Status put(PageId page, const PageRef& ref);
  // One that no peer can give: requests for it fail until a section restarts its chain.
  Status put_broken(PageId page, const CopyMark& mark);
  // `at`: the positions from which the logs are scanned. Blocks.
  Status finish(const std::vector<CopyMark>& at, const CopyOffer& last);
  [[nodiscard]] uint64_t pages() const noexcept { return pages_; }

 private:
  explicit CopiedPages(const PageStoreOptions& options) : options_(options) {}
  Status open();
  Status write_batch();
  [[nodiscard]] bool in_place() const noexcept { return options_.mode == ReplayMode::kSingle; }

  const PageStoreOptions options_;
  std::unique_ptr<VersionDb> db_;
  VersionDb::Batch batch_;
  std::unique_ptr<PageSource> page_files_;
  std::unique_ptr<InPlacePages> in_place_;
  uint64_t pages_ = 0;
  Llsn newest_;  // of all pages
};

}  // namespace strata::storenode
