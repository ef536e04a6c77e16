// StorageBelow over the storage nodes that compute writes pages to. Thread-safe.
#pragma once

#include <memory>

#include "base/latch.h"
#include "clients/memory/storage_below.h"
#include "clients/storage/written_page_source.h"

namespace strata::clients {

// Made before WrittenNodes, whose option write_again is write_again(); the source comes later.
class WrittenStorage final : public StorageBelow {
 public:
  WrittenStorage();
  ~WrittenStorage() override;
  // For WrittenNodesOptions. It may be called as long as the nodes live, this or not.
  [[nodiscard]] std::function<DelegateAnswer(const DelegateTarget&)> write_again() const;
  // Once, before anything else is asked. The source outlives this.
  void use(WrittenPageSource* source) { source_ = source; }

  PageSource* pages() override { return source_; }
  Status to_all_through(Through write) override;
  void note_written(PageId id, Llsn llsn) override { source_->note_written(id, llsn); }
  void set_write_again(WriteAgain write_again) override;

 private:
  struct Hook;
  const std::shared_ptr<Hook> hook_;
  WrittenPageSource* source_ = nullptr;
};

}  // namespace strata::clients
