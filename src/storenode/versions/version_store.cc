#include "storenode/versions/version_store.h"

#include <utility>

namespace strata::storenode {

StatusOr<PageRef> VersionStore::read(PageId page, Llsn llsn) {
  if (PageRef cached = cache_.find(page, llsn); cached != nullptr) return cached;
  auto made = std::make_shared<PageBuffer>();
  if (Status status = db_->read_page(page, llsn, made->bytes); !status.ok()) {
    if (is_corruption(status)) damaged_.fetch_add(1, std::memory_order_relaxed);
    return status;
  }
  pages_read_.fetch_add(1, std::memory_order_relaxed);
  PageRef ref = std::move(made);
  cache_.insert(page, llsn, ref);
  return ref;
}

}  // namespace strata::storenode
