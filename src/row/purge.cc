// Purge: what committed transactions left behind once no view needs it any more.
#include "base/fault.h"
#include "row/internal/leaves.h"
#include "row/internal/overflow.h"
#include "row/row_store.h"

namespace strata {
namespace row_internal {
namespace {

constexpr uint32_t kSparseBytes = kPageBytes / 4;  // a leaf below this is worth a merge
constexpr size_t kSparseLeavesMax = 64;

}  // namespace

void LeafWatch::note(TreeId tree, Bytes key, const MtrPage* leaf) {
  if (leaf->view().used_bytes() >= kSparseBytes) return;
  sparse_.try_emplace(leaf->id(), Sparse{tree, std::string(key)});
}

Status LeafWatch::merge_if_many() {
  return sparse_.size() < kSparseLeavesMax ? ok_status() : merge();
}

Status LeafWatch::merge() {
  for (const auto& [page, leaf] : sparse_) {
    const Status status = try_merge(&context_->tree, leaf.tree, leaf.key);
    if (!status.ok() && context_->tree.spaces->is_live(SpaceId{page.space})) return status;
  }
  sparse_.clear();
  return ok_status();
}

namespace {

class Purge {
 public:
  explicit Purge(RowContext* context) : context_(context), leaves_(context) {}

  Status run(const TrxSystem::PurgeItem& item) {
    if (!item.has_work) return ok_status();
    return for_each_undo(context_->tree.pool, item.id, item.first_undo,
                         [&](UndoPtr, const UndoRecord& undo) {
                           if (fault(FaultPoint::purge_half))
                             return error_peer_down("fault point purge_half");
                           const Status status = purge_one(item.id, undo);
                           const SpaceId space{undo.root.space};
                           // A space that is dropped needs no purging.
                           return context_->tree.spaces->is_live(space) ? status : ok_status();
                         });
  }
  Status merge() { return leaves_.merge(); }

 private:
  Status purge_one(TrxId id, const UndoRecord& undo) {
    const SpaceId space{undo.root.space};
    if (undo.type != UndoType::kUpdate || !context_->tree.spaces->is_live(space))
      return ok_status();
    if ((undo.previous.flags & kNextIsDelete) != 0) {
      STRATA_RETURN_IF_ERROR(erase(id, undo));
      STRATA_RETURN_IF_ERROR(leaves_.merge_if_many());
    }
    for (const OverflowRef& ref : undo.free_on_purge)
      STRATA_RETURN_IF_ERROR(free_overflow(context_, space, ref));
    return ok_status();
  }

  Status erase(TrxId id, const UndoRecord& undo) {
    const TreeId tree{undo.index, undo.root};
    Mtr mtr(context_->tree.pool, context_->tree.log);
    STRATA_RETURN_IF_ERROR(mtr.begin_write());
    TreeCursor cursor(&context_->tree, tree, &mtr);
    STRATA_RETURN_IF_ERROR(cursor.seek(undo.key, LatchMode::kExclusive));
    if (!cursor.equals(undo.key)) return ok_status();
    const RecordHeader header = read_record_header(cursor.value());
    if (!header.deleted() || header.trx_id != id) return ok_status();  // RW6
    cursor.erase();
    leaves_.note(tree, undo.key, cursor.leaf());
    mtr.publish();
    return ok_status();
  }

  RowContext* const context_;
  LeafWatch leaves_;
};

}  // namespace
}  // namespace row_internal

StatusOr<uint64_t> purge_some(RowContext* context, uint64_t limit) {
  row_internal::Purge purge(context);
  uint64_t done = 0;
  TrxSystem::PurgeItem item;
  while (done < limit && context->trxs->next_to_purge(&item)) {
    STRATA_RETURN_IF_ERROR(purge.run(item));
    STRATA_RETURN_IF_ERROR(context->trxs->purged(item));
    ++done;
  }
  if (done == 0) return done;
  STRATA_RETURN_IF_ERROR(purge.merge());
  STRATA_RETURN_IF_ERROR(context->tree.spaces->reclaim());
  return done;
}

}  // namespace strata
