// The rows that one transaction holds exclusively without having written to them (row_waits.h,
// L10), and its runs of rows held shared (L20). Belongs to the transaction and to its thread;
// RowWaits fills and empties it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/ids.h"
#include "lock/row_id.h"

namespace strata {

namespace lock_internal {
class ExclusiveLocks;
class ExclusiveRuns;
class SharedRuns;

struct HeldRow {  // in the table's chains, and in its holder's list
  HeldRow* next = nullptr;
  uint64_t hash = 0;
  TrxId holder;
  uint32_t savepoints = 0;  // of the holder when it took the row
  IndexId index;
  std::string key;
};

struct HeldRun {  // in the table, and in its holder's list; L12, L20
  TrxId holder;
  IndexId index;
  std::string low;      // of the first row
  std::string high;     // of the last row; changed under the table's mutex, by its holder's thread
  Cts taken;            // no row that it holds was written later by another; changed likewise
  bool shared = false;  // the rows are held shared; `taken` means nothing then
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
  [[nodiscard]] size_t run_count() const noexcept { return runs_.size(); }
  [[nodiscard]] size_t shared_run_count() const noexcept { return shared_runs_.size(); }
  // Whether the run taken last holds the row, whose newest version is of `written`; true is
  // certain. Looks into nothing that is shared.
  [[nodiscard]] bool last_run_holds(RowId row, Cts written) const noexcept {
    if (runs_.empty() || written.is_zero()) return false;
    const lock_internal::HeldRun& last = *runs_.back();
    return last.index == row.index && written <= last.taken && row.key <= Bytes(last.high) &&
           Bytes(last.low) <= row.key;
  }
  // A rollback may come back to here (L11).
  void mark_savepoint() noexcept { ++savepoints_; }
  // The rows stay locked for as long as the lock table lives.
  void abandon() noexcept {
    rows_.clear();
    runs_.clear();
    shared_runs_.clear();
  }

 private:
  friend class lock_internal::ExclusiveLocks;
  friend class lock_internal::ExclusiveRuns;
  friend class lock_internal::SharedRuns;
  std::vector<lock_internal::HeldRow*> rows_;         // newest last; owned by the table
  std::vector<lock_internal::HeldRun*> runs_;         // newest last; owned by the table
  std::vector<lock_internal::HeldRun*> shared_runs_;  // likewise
  std::vector<std::unique_ptr<lock_internal::HeldRow>> spare_;
  uint32_t savepoints_ = 0;
};

}  // namespace strata
