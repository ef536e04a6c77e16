#include "bufpool/page_lock.h"

namespace strata {
namespace {

class NoPageLock final : public PageLock {
 public:
  Status acquire(PageId, LatchMode, Llsn*) override { return ok_status(); }
  void forget(PageId) override {}
};

}  // namespace

PageLock* no_page_lock() noexcept {
  static NoPageLock lock;
  return &lock;
}

}  // namespace strata
