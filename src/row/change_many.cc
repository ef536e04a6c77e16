// Several changes of rows that the transaction holds, in one mini-transaction for each leaf (RW20).
#include <algorithm>

#include "row/internal/record_change.h"

namespace strata {
namespace row_internal {
namespace {

// Of the leaf's changes: a longer list of them is logged as an image of the page.
constexpr size_t kGroupOpsBytes = Mtr::kPageLogBytesMax / 2;

// What a change takes as a rule; one that needs more is made by itself.
uint32_t undo_bytes_wanted(const HeldChange& change) {
  constexpr size_t kDifferenceMost = 256;
  return undo_bytes_max(change.key.size(), std::min(change.payload.size(), kDifferenceMost), 0);
}

}  // namespace

StatusOr<size_t> RecordChange::change_group(const HeldChange* changes, size_t count) {
  if (trx_->must_rollback) return error_deadlock();
  bool frees_room = trx_->frees_room;
  for (size_t i = 0; i < count && !frees_room; ++i) frees_room = changes[i].deletes;
  STRATA_RETURN_IF_ERROR(context_->trxs->prepare_change(trx_, undo_bytes_wanted(changes[0])));
  size_t made = 0;
  Status failed;
  {
    Mtr mtr(context_->tree.pool, context_->tree.log);
    STRATA_RETURN_IF_ERROR(frees_room ? mtr.begin_write_to_free() : mtr.begin_write());
    TreeCursor cursor(&context_->tree, tree_, &mtr);
    const StatusOr<size_t> group = try_group(&mtr, &cursor, changes, count);
    // What was made before something failed is whole, undo records included.
    mtr.publish();
    failed = group.status();
    if (group.ok()) made = *group;
  }
  STRATA_RETURN_IF_ERROR(failed);
  return made;
}

StatusOr<size_t> RecordChange::try_group(Mtr* mtr, TreeCursor* cursor, const HeldChange* changes,
                                         size_t count) {
  // A row that turns out not to be ours is left to a single change, which can wait.
  queued_ = true;
  size_t made = 0;
  for (; made < count; ++made) {
    const HeldChange& change = changes[made];
    key_ = change.key;
    if (made == 0) {
      STRATA_RETURN_IF_ERROR(seek_row(cursor, LatchMode::kExclusive));
      // Whoever locks a row of this leaf shared from now on sees what we have made of it: he looks
      // again after he has registered, and that takes the latch.
      if (context_->trxs->waits()->index_has_shared(tree_.index_id)) break;
      if (!cursor->equals(key_)) break;
    } else if (!cursor->seek_on_in_leaf(key_)) {
      break;
    }
    RecordHeader header = read_record_header(cursor->value());
    Outcome outcome;
    if (!is_free(&header, &outcome) || header.deleted()) break;
    undo_bytes_ = UndoSpace::room(trx_->undo);
    STRATA_ASSIGN_OR_RETURN(
        outcome, change_found(mtr, cursor, header, change.deletes ? nullptr : &change.payload, {}));
    if (outcome.next != Next::kDone) break;
    if (cursor->leaf()->ops.size() > kGroupOpsBytes) {
      ++made;
      break;
    }
  }
  return made;
}

}  // namespace row_internal

using row_internal::RecordChange;

Status change_held_records(RowContext* context, Trx* trx, TreeId tree, const HeldChange* changes,
                           size_t count) {
  const InterruptScope scope(&trx->interrupt);
  for (size_t done = 0; done < count;) {
    const HeldChange& next = changes[done];
    RecordChange group(context, trx, tree, next.key);
    STRATA_ASSIGN_OR_RETURN(const size_t made, group.change_group(&next, count - done));
    done += made;
    if (made != 0) continue;
    RecordChange single(context, trx, tree, next.key);
    STRATA_RETURN_IF_ERROR(next.deletes ? single.erase({}) : single.update(next.payload));
    ++done;
  }
  return ok_status();
}

}  // namespace strata
