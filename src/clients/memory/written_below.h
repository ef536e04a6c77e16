// Storage nodes below a memory node: what MemoryPageSource wants of them (storage_below.h), from
// WrittenPageSource. Thread-safe.
#pragma once

#include "base/latch.h"
#include "clients/memory/storage_below.h"
#include "clients/storage/written_page_source.h"

namespace strata::clients {

class WrittenBelow final : public StorageBelow {
 public:
  // For WrittenNodesOptions::write_again of what is given to use() then.
  DelegateAnswer write_again(const DelegateTarget& target);
  // Once, before anything else. It outlives this.
  void use(WrittenPageSource* pages) { pages_ = pages; }

  PageSource* pages() override { return pages_; }
  Status to_all_through(Through write) override;
  void note_written(PageId id, Llsn llsn) override { pages_->note_written(id, llsn); }
  void set_write_again(WriteAgain write_again) override;

 private:
  WrittenPageSource* pages_ = nullptr;
  Mutex mutex_{LatchRank::kLeaf};
  CondVar ended_;
  WriteAgain write_again_ STRATA_GUARDED_BY(mutex_);
  uint32_t under_way_ STRATA_GUARDED_BY(mutex_) = 0;  // calls of it
};

}  // namespace strata::clients
