// How one statement deals with other transactions' rows: who wrote a record, whose turn it is,
// waiting. One thread, one change or lock at a time.
#pragma once

#include <cstdint>
#include <string>

#include "row/row_store.h"

namespace strata::row_internal {

enum class Owner : uint8_t {
  kSelf,
  kDecided,    // committed (or so old that nobody needs to know)
  kUndecided,  // another transaction that may still roll back
  kUnknown,    // only a status page knows: resolve() without latches, then look again
};

class Conflicts {
 public:
  Conflicts(RowContext* context, Trx* trx, IndexId index) noexcept;
  ~Conflicts() { give_turn_back(); }
  Conflicts(const Conflicts&) = delete;

  // Who wrote the version with this header; fills in its cts where that is known at no cost. No
  // I/O: for use under a page latch.
  Owner owner(RecordHeader* header) noexcept;
  // Finds out about an owner that was kUnknown. Blocks; no latch held.
  Status resolve(TrxId id);

  // Who holds the row without having written to it, or zero (perhaps this transaction). For use
  // under a page latch.
  // `written`: when the newest version was committed, if that is known.
  [[nodiscard]] TrxId holder_in_memory(Bytes key, Cts written = Cts{}) const noexcept {
    return context_->trxs->waits()->exclusive_holder(RowId{index_, key}, written);
  }

  // Whether a newcomer has to queue for the row before it may take it (L1). No latch held.
  [[nodiscard]] bool must_queue(Bytes key) const noexcept;
  // Waits until `holder` (zero: whoever is first in the row's queue) has let the row go and it is
  // our turn. No latch held. Errors: kAborted (also sets trx->must_rollback), kDeadlineExceeded,
  // kCancelled.
  // `in_memory`: the holder has not written to the row (exclusive_holder()).
  Status wait(TrxId holder, Bytes key, bool in_memory);
  // The row is ours: the rest of its queue waits for this transaction. No latch held.
  void took(Bytes key) noexcept;
  // We do not want the row any more (also done by the destructor). No latch held.
  void give_turn_back() noexcept;

  // After this transaction has marked a row: waits until nobody else holds a shared lock on it. On
  // an error the mark stays; the statement's rollback takes it away. No latch held.
  // `is_row`: the mark replaced a live record of somebody else's (row_waits.h, L20).
  Status wait_for_shared(Bytes key, bool is_row);

 private:
  [[nodiscard]] uint64_t time_left_us() noexcept;
  Status waited(Status status) noexcept;

  RowContext* const context_;
  Trx* const trx_;
  const IndexId index_;
  TrxId resolved_;  // answer of the last resolve()
  bool resolved_undecided_ = false;
  Cts resolved_cts_;
  bool has_turn_ = false;
  std::string turn_key_;
  uint64_t deadline_us_ = 0;
};

}  // namespace strata::row_internal
