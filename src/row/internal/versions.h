// From the newest version of a record to the one a view sees. The walk needs no latch: undo of
// versions a view may need stays until the view is closed.
#pragma once

#include <cstdint>
#include <string>

#include "row/row_store.h"

namespace strata::row_internal {

// A version of a record, copied out of its leaf or rebuilt from undo.
struct Version {
  RecordHeader header;
  std::string payload;
};

// Strings whose capacity is kept from walk to walk.
struct WalkScratch {
  UndoRecord undo;
  std::string payload;
};

enum class Walk : uint8_t {
  kFound,   // *version is the visible one
  kAbsent,  // the view sees no such record
  kStale,   // the writer of the copied version has rolled back meanwhile: copy the record again
};

// Replaces *version (the newest one as it stood in the leaf) by the version `view` sees. Blocks.
StatusOr<Walk> walk_to_visible(RowContext* context, const ReadView& view, TreeId tree, Bytes key,
                               Version* version, WalkScratch* scratch);
// Same, past the versions of `writer`, which was undecided when the newest was copied. It is not
// asked again: were it rolled back meanwhile, it would count as decided, and so would its version
// (T7).
StatusOr<Walk> walk_past_writer(RowContext* context, TrxId writer, TreeId tree, Bytes key,
                                Version* version, WalkScratch* scratch);

// Reads the record again after kStale, but not for ever: the same version cannot be stale twice.
class StaleGuard {
 public:
  Status check(TreeId tree, const RecordHeader& copied);

 private:
  RecordHeader last_;
  bool any_ = false;
};

// RW8: a lock of one's own hides nothing.
inline bool is_own_lock(const ReadView& view, const RecordHeader& header) noexcept {
  return (header.flags & kLockOnly) != 0 && header.trx_id == view.own;
}

void copy_version(Bytes value, Version* out);

}  // namespace strata::row_internal
