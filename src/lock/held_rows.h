// The rows that one transaction holds exclusively without having written to them (row_waits.h,
// L10). Belongs to the transaction and to its thread; RowWaits fills and empties it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/ids.h"

namespace strata {

namespace lock_internal {
class ExclusiveLocks;

struct HeldRow {  // in the table's chains, and in its holder's list
  HeldRow* next = nullptr;
  uint64_t hash = 0;
  TrxId holder;
  uint32_t savepoints = 0;  // of the holder when it took the row
  IndexId index;
  std::string key;
};
}  // namespace lock_internal

class HeldRows {
 public:
  HeldRows() = default;
  HeldRows(const HeldRows&) = delete;
  HeldRows& operator=(const HeldRows&) = delete;
  // What is still held stays locked: the outcome of its transaction is unknown.
  ~HeldRows() = default;

  [[nodiscard]] size_t size() const noexcept { return rows_.size(); }
  // A rollback may come back to here (L11).
  void mark_savepoint() noexcept { ++savepoints_; }
  // The rows stay locked for as long as the lock table lives.
  void abandon() noexcept { rows_.clear(); }

 private:
  friend class lock_internal::ExclusiveLocks;
  std::vector<lock_internal::HeldRow*> rows_;  // newest last; owned by the table
  std::vector<std::unique_ptr<lock_internal::HeldRow>> spare_;
  uint32_t savepoints_ = 0;
};

}  // namespace strata
