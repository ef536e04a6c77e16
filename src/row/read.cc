// Point reads and the walk along a record's versions.
#include "base/assert.h"
#include "row/internal/conflicts.h"
#include "row/internal/versions.h"
#include "row/row_store.h"

namespace strata {
namespace row_internal {
namespace {

enum class Step : uint8_t { kOlder, kNone, kStale };

std::string describe(TreeId tree) {
  return "index " + std::to_string(tree.index_id.value) + " (space " +
         std::to_string(tree.root.space) + ")";
}

// One hop: *version becomes its predecessor.
StatusOr<Step> step_back(RowContext* context, TreeId tree, Bytes key, Version* version,
                         WalkScratch* scratch) {
  if (version->header.undo_ptr.is_zero()) return Step::kNone;
  UndoRecord& undo = scratch->undo;
  const Status read =
      read_undo(context->tree.pool, version->header.undo_ptr, version->header.trx_id, &undo);
  if (is_not_found(read)) return Step::kStale;
  STRATA_RETURN_IF_ERROR(read);
  // Its place was given to another change of the same transaction after a rollback to a savepoint.
  if (undo.index != tree.index_id || undo.root != tree.root || Bytes(undo.key) != key) {
    return Step::kStale;
  }
  if (undo.type == UndoType::kInsert) return Step::kNone;
  if (undo.type != UndoType::kUpdate) {
    return error_corruption(describe(tree) + ": an undo pointer leads to undo of another kind");
  }
  STRATA_RETURN_IF_ERROR(previous_payload(undo, version->payload, &scratch->payload));
  version->payload.swap(scratch->payload);
  version->header = undo.previous;
  version->header.flags &= static_cast<uint8_t>(~kNextIsDelete);
  return Step::kOlder;
}

// `Accept` says whether a version is the one looked for.
template <typename Accept>
StatusOr<Walk> walk(RowContext* context, TreeId tree, Bytes key, Version* version,
                    WalkScratch* scratch, const Accept& accept) {
  for (;;) {
    STRATA_ASSIGN_OR_RETURN(const bool accepted, accept(version->header));
    if (accepted) return version->header.deleted() ? Walk::kAbsent : Walk::kFound;
    STRATA_ASSIGN_OR_RETURN(const Step step, step_back(context, tree, key, version, scratch));
    if (step == Step::kNone) return Walk::kAbsent;
    if (step == Step::kStale) return Walk::kStale;
  }
}

}  // namespace

void copy_version(Bytes value, Version* out) {
  out->header = read_record_header(value);
  out->payload.assign(record_payload(value));
}

StatusOr<Walk> walk_to_visible(RowContext* context, const ReadView& view, TreeId tree, Bytes key,
                               Version* version, WalkScratch* scratch) {
  return walk(context, tree, key, version, scratch,
              [&](const RecordHeader& header) -> StatusOr<bool> {
                if (is_own_lock(view, header)) return false;
                return context->trxs->visible(view, header, true);
              });
}

StatusOr<Walk> walk_past_writer(RowContext* context, TrxId writer, TreeId tree, Bytes key,
                                Version* version, WalkScratch* scratch) {
  return walk(
      context, tree, key, version, scratch,
      [writer](const RecordHeader& header) -> StatusOr<bool> { return header.trx_id != writer; });
}

// An undecided writer's rollback changes or removes the record before its undo goes. So the same
// version found in the leaf again, still without undo, is not a matter of timing.
Status StaleGuard::check(TreeId tree, const RecordHeader& copied) {
  if (any_ && last_.trx_id == copied.trx_id && last_.undo_ptr == copied.undo_ptr) {
    return error_corruption(describe(tree) + ": the undo of a version that is needed is missing");
  }
  any_ = true;
  last_ = copied;
  return ok_status();
}

namespace {

struct PointScratch {
  Version version;
  WalkScratch walk;
};
PointScratch& point_scratch() {
  thread_local PointScratch scratch;
  return scratch;
}

}  // namespace
}  // namespace row_internal

Status read_record(RowContext* context, Trx* trx, TreeId tree, Bytes key, std::string* payload) {
  using row_internal::Walk;
  row_internal::PointScratch& scratch = row_internal::point_scratch();
  row_internal::StaleGuard stale;
  const InterruptScope scope(&trx->interrupt);
  STRATA_DASSERT(trx->view.open);
  for (;;) {
    {
      Mtr mtr(context->tree.pool, context->tree.log);
      TreeCursor cursor(&context->tree, tree, &mtr);
      STRATA_RETURN_IF_ERROR(cursor.seek(key, LatchMode::kShared));
      if (!cursor.equals(key)) return error_not_found();
      const Bytes value = cursor.value();
      const RecordHeader header = read_record_header(value);
      const StatusOr<bool> visible = context->trxs->visible(trx->view, header, false);
      if (visible.ok() && *visible && !row_internal::is_own_lock(trx->view, header)) {
        if (header.deleted()) return error_not_found();
        payload->assign(record_payload(value));
        return ok_status();
      }
      row_internal::copy_version(value, &scratch.version);
    }
    const RecordHeader newest = scratch.version.header;
    STRATA_ASSIGN_OR_RETURN(const Walk walk,
                            row_internal::walk_to_visible(context, trx->view, tree, key,
                                                          &scratch.version, &scratch.walk));
    if (walk == Walk::kAbsent) return error_not_found();
    if (walk == Walk::kFound) {
      payload->swap(scratch.version.payload);
      return ok_status();
    }
    STRATA_RETURN_IF_ERROR(stale.check(tree, newest));
  }
}

Status read_committed(RowContext* context, Trx* trx, TreeId tree, Bytes key, std::string* payload) {
  using row_internal::Owner;
  using row_internal::Walk;
  row_internal::PointScratch& scratch = row_internal::point_scratch();
  row_internal::StaleGuard stale;
  row_internal::Conflicts conflicts(context, trx, tree.index_id);
  const InterruptScope scope(&trx->interrupt);
  for (;;) {
    Owner owner = Owner::kDecided;
    {
      Mtr mtr(context->tree.pool, context->tree.log);
      TreeCursor cursor(&context->tree, tree, &mtr);
      STRATA_RETURN_IF_ERROR(cursor.seek(key, LatchMode::kShared));
      if (!cursor.equals(key)) return error_not_found();
      row_internal::copy_version(cursor.value(), &scratch.version);
      owner = conflicts.owner(&scratch.version.header);
    }
    const RecordHeader newest = scratch.version.header;
    if (owner == Owner::kUnknown) {
      STRATA_RETURN_IF_ERROR(conflicts.resolve(newest.trx_id));
      continue;
    }
    Walk walk = newest.deleted() ? Walk::kAbsent : Walk::kFound;
    if (owner == Owner::kUndecided) {
      STRATA_ASSIGN_OR_RETURN(
          walk, row_internal::walk_past_writer(context, newest.trx_id, tree, key, &scratch.version,
                                               &scratch.walk));
    }
    if (walk == Walk::kAbsent) return error_not_found();
    if (walk == Walk::kFound) {
      payload->swap(scratch.version.payload);
      return ok_status();
    }
    STRATA_RETURN_IF_ERROR(stale.check(tree, newest));
  }
}

Status read_dirty(RowContext* context, TreeId tree, Bytes key, std::string* payload) {
  Mtr mtr(context->tree.pool, context->tree.log);
  TreeCursor cursor(&context->tree, tree, &mtr);
  STRATA_RETURN_IF_ERROR(cursor.seek(key, LatchMode::kShared));
  if (!cursor.equals(key)) return error_not_found();
  const Bytes value = cursor.value();
  if (read_record_header(value).deleted()) return error_not_found();
  payload->assign(record_payload(value));
  return ok_status();
}

}  // namespace strata
