// Rollback: undo records newest to oldest, each undone in its own mini-transaction. A change is
// undone only if the record still carries the undo pointer of that very change, so that a rollback
// can be repeated after a crash.
#include "base/fault.h"
#include "row/internal/leaves.h"
#include "row/internal/overflow.h"
#include "row/internal/versions.h"
#include "row/row_store.h"

namespace strata {
namespace {

using row_internal::LeafWatch;

class Rollback {
 public:
  Rollback(RowContext* context, Trx* trx, const std::atomic<bool>* stop)
      : context_(context), trx_(trx), stop_(stop), leaves_(context) {}

  Status run(UndoPtr to) {
    while (!trx_->undo.last.is_zero() && trx_->undo.last != to) {
      if (stop_ != nullptr && stop_->load(std::memory_order_relaxed)) return error_interrupted();
      const UndoPtr ptr = trx_->undo.last;
      const Status read = read_undo(context_->tree.pool, ptr, trx_->id, &undo_);
      if (is_not_found(read))
        return error_corruption("rollback: the transaction's undo is missing");
      STRATA_RETURN_IF_ERROR(read);
      const Status undone = undo_one(ptr);
      // A space that is dropped needs no undoing.
      if (!undone.ok() && context_->tree.spaces->is_live(SpaceId{undo_.root.space})) return undone;
      context_->undo->rewind(&trx_->undo, undo_.prev_in_trx);
      // Merging is housekeeping: a leaf that stays emptier than it should be (full disk, a sibling
      // that cannot be read) is no reason not to undo, and every later merge there tries again.
      if (!leaves_.merge_if_many().ok()) leaves_.forget();
      if (fault(FaultPoint::rollback_half)) return error_peer_down("fault point rollback_half");
    }
    leaves_.merge().IgnoreError();  // as above
    return ok_status();
  }

 private:
  Status undo_one(UndoPtr ptr) {
    if (!context_->tree.spaces->is_live(SpaceId{undo_.root.space})) return ok_status();
    switch (undo_.type) {
      case UndoType::kInsert:
        return undo_change(ptr, true, Cts{});
      case UndoType::kUpdate: {
        STRATA_ASSIGN_OR_RETURN(const Cts deleted_at, committed_delete_below());
        return undo_change(ptr, false, deleted_at);
      }
      case UndoType::kOverflow:
        return row_internal::free_overflow(context_, SpaceId{undo_.root.space}, undo_.overflow);
      case UndoType::kContinue:
      case UndoType::kPrepare:
      case UndoType::kRewind:
        return ok_status();
    }
    return error_internal("unknown undo type");
  }

  // When the previous version is a committed delete of another transaction, its cts; zero
  // otherwise. May read a page.
  StatusOr<Cts> committed_delete_below() {
    const RecordHeader& previous = undo_.previous;
    if (!previous.deleted() || previous.trx_id == trx_->id) return Cts{};
    if (!previous.cts.is_zero()) return previous.cts;
    STRATA_ASSIGN_OR_RETURN(const TrxLookup found, context_->trxs->lookup(previous.trx_id));
    return found.state == TrxState::kCommitted ? found.cts : Cts{};
  }

  // Whether every view sees the delete below. Then its purge may have come by while our version was
  // on top, and will not come again: the record has to go with our version. Asked with the leaf
  // latched: a purge that gets its turn later finds what we leave, one that was before us knew of
  // no later horizon than this one (MW2).
  StatusOr<bool> is_obsolete(Cts deleted_at) {
    if (deleted_at.is_zero()) return false;
    STRATA_ASSIGN_OR_RETURN(const Cts horizon, context_->trxs->newest_min_view());
    return deleted_at <= horizon;
  }

  Status undo_change(UndoPtr ptr, bool is_insert, Cts deleted_at) {
    const TreeId tree{undo_.index, undo_.root};
    for (;;) {
      size_t needs_room = 0;
      {
        Mtr mtr(context_->tree.pool, context_->tree.log);
        STRATA_RETURN_IF_ERROR(mtr.begin_write(Mtr::kDefaultLogBytes, true));
        TreeCursor cursor(&context_->tree, tree, &mtr);
        STRATA_RETURN_IF_ERROR(cursor.seek(undo_.key, LatchMode::kExclusive));
        if (!cursor.equals(undo_.key)) return ok_status();
        const RecordHeader header = read_record_header(cursor.value());
        if (header.trx_id != trx_->id || header.undo_ptr != ptr) return ok_status();
        STRATA_ASSIGN_OR_RETURN(const bool obsolete, is_obsolete(deleted_at));
        if (is_insert || obsolete) {
          cursor.erase();
          leaves_.note(tree, undo_.key, cursor.leaf());
        } else {
          STRATA_RETURN_IF_ERROR(restore_version(&cursor, &needs_room));
        }
        mtr.publish();
      }
      if (needs_room == 0) return ok_status();
      STRATA_RETURN_IF_ERROR(make_room(&context_->tree, tree, undo_.key, needs_room, true));
    }
  }

  // *needs_room = bytes of the value, if the older version does not fit.
  Status restore_version(TreeCursor* cursor, size_t* needs_room) {
    STRATA_RETURN_IF_ERROR(previous_payload(undo_, record_payload(cursor->value()), &payload_));
    RecordHeader previous = undo_.previous;
    previous.flags &= static_cast<uint8_t>(~kNextIsDelete);
    value_.clear();
    append_record_header(&value_, previous);
    value_.append(payload_);
    if (cursor->fits_replace(value_.size())) {
      cursor->replace(value_);
    } else {
      *needs_room = value_.size();
    }
    return ok_status();
  }

  RowContext* const context_;
  Trx* const trx_;
  const std::atomic<bool>* const stop_;
  LeafWatch leaves_;
  UndoRecord undo_;
  std::string payload_;
  std::string value_;
};

}  // namespace

namespace {

// T13: as long as a part of it is undone and a part is not, there is no way back.
Status undo_failed(Trx* trx, const Status& why) {
  trx->must_rollback = true;
  trx->undo_failure = why;
  return why;
}

}  // namespace

Status rollback_to(RowContext* context, Trx* trx, UndoPtr to) {
  if (trx->id.is_zero()) return ok_status();
  const Status status = Rollback(context, trx, nullptr).run(to);
  // Rows given back: whoever waits for us looks again.
  context->trxs->waits()->holder_ended(trx->id);
  if (!status.ok()) return undo_failed(trx, status);
  if (!trx->undo_failure.ok()) {  // it was tried again
    trx->must_rollback = false;
    trx->undo_failure = ok_status();
  }
  return ok_status();
}

Status rollback_all(RowContext* context, Trx* trx, const std::atomic<bool>* stop) {
  STRATA_RETURN_IF_ERROR(context->trxs->begin_rollback(trx));
  Status status;
  if (!trx->id.is_zero()) status = Rollback(context, trx, stop).run(UndoPtr{});
  if (status.ok()) status = context->trxs->finish_rollback(trx);
  return status.ok() ? status : undo_failed(trx, status);
}

}  // namespace strata
