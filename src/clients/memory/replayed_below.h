// Storage nodes that make pages from the log, below a memory node (storage_below.h): nothing is
// ever written to them, by compute or by a memory node.
#pragma once

#include "clients/memory/storage_below.h"

namespace strata::clients {

class ReplayedBelow final : public StorageBelow {
 public:
  explicit ReplayedBelow(PageSource* pages) : pages_(pages) {}  // it outlives this

  PageSource* pages() override { return pages_; }
  Status to_all_through(Through /*write*/) override {
    return error_unsupported("storage nodes that make pages from the log take none");
  }
  void note_written(PageId /*id*/, Llsn /*llsn*/) override {}  // the log says so
  void set_write_again(WriteAgain /*write_again*/) override {}

 private:
  PageSource* const pages_;
};

}  // namespace strata::clients
