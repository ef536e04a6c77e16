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

bool is_sparse(const MtrPage* leaf) { return leaf->view().used_bytes() < kSparseBytes; }

// RW10: whether merging would follow the erasing of the record under the cursor.
bool leaves_sparse(const TreeCursor& cursor) {
  constexpr size_t kSlotBytesMax = 32;
  const TreePageView view = cursor.leaf()->view();
  const size_t record = view.suffix(cursor.slot()).size() + cursor.value().size() + kSlotBytesMax;
  return view.used_bytes() < kSparseBytes + record;
}

}  // namespace

void LeafWatch::note(TreeId tree, Bytes key, const MtrPage* leaf) {
  if (!is_sparse(leaf)) return;
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
  // `own`: a client's, on its way to the reply to its commit.
  explicit Purge(RowContext* context, bool own = false)
      : context_(context), leaves_(context), own_(own) {}

  Status run(const TrxSystem::PurgeItem& item) {
    if (!item.has_work) return ok_status();
    id_ = item.id;
    erases_ = 0;
    STRATA_RETURN_IF_ERROR(for_each_undo(context_->tree.pool, item.id, item.first_undo,
                                         [&](UndoPtr, const UndoRecord& undo) {
                                           if (fault(FaultPoint::purge_half))
                                             return error_peer_down("fault point purge_half");
                                           return purge_one(undo);
                                         }));
    return erase_all();
  }
  Status merge() { return leaves_.merge(); }

 private:
  // Of the records that one transaction has deleted from a tree in a row.
  static constexpr size_t kErasesMax = 64;

  // A space that is dropped needs no purging.
  [[nodiscard]] bool is_live(PageId root) const {
    return context_->tree.spaces->is_live(SpaceId{root.space});
  }

  Status purge_one(const UndoRecord& undo) {
    if (undo.type != UndoType::kUpdate || !is_live(undo.root)) return ok_status();
    if ((undo.previous.flags & kNextIsDelete) != 0) STRATA_RETURN_IF_ERROR(add_erase(undo));
    if (undo.free_on_purge.empty()) return ok_status();
    STRATA_RETURN_IF_ERROR(erase_all());
    for (const OverflowRef& ref : undo.free_on_purge) {
      const Status freed = free_overflow(context_, SpaceId{undo.root.space}, ref);
      if (!freed.ok()) return is_live(undo.root) ? freed : ok_status();
    }
    return ok_status();
  }

  Status add_erase(const UndoRecord& undo) {
    const bool same_tree = tree_.index_id == undo.index && tree_.root == undo.root;
    if (!same_tree || erases_ == kErasesMax || own_) STRATA_RETURN_IF_ERROR(erase_all());
    tree_ = TreeId{undo.index, undo.root};
    if (keys_.size() == erases_) keys_.emplace_back();
    keys_[erases_++].assign(undo.key);
    return ok_status();
  }

  Status erase_all() {
    for (size_t at = 0; at < erases_;) {
      const Status status = erase_from_leaf(&at);
      if (status.ok()) continue;
      erases_ = 0;
      return is_live(tree_.root) ? status : ok_status();
    }
    erases_ = 0;
    return leaves_.merge_if_many();
  }

  // RW21: from *at on, what lies on one leaf.
  Status erase_from_leaf(size_t* at) {
    Mtr mtr(context_->tree.pool, context_->tree.log);
    STRATA_RETURN_IF_ERROR(mtr.begin_write_to_free());  // it frees room
    TreeCursor cursor(&context_->tree, tree_, &mtr);
    STRATA_RETURN_IF_ERROR(cursor.seek(keys_[*at], LatchMode::kExclusive));
    bool found = cursor.equals(keys_[*at]);
    for (;;) {
      if (found) {
        const RecordHeader header = read_record_header(cursor.value());
        if (header.deleted() && header.trx_id == id_) {  // RW6
          if (own_ && leaves_sparse(cursor)) return error_busy();
          cursor.erase();
        }
      }
      if (++*at == erases_ || !cursor.seek_on_in_leaf(keys_[*at])) break;
      found = true;
    }
    if (mtr.modified()) leaves_.note(tree_, keys_[*at - 1], cursor.leaf());
    mtr.publish();
    return ok_status();
  }

  RowContext* const context_;
  LeafWatch leaves_;
  const bool own_;
  TrxId id_;
  TreeId tree_{};
  std::vector<std::string> keys_;  // their memory is kept
  size_t erases_ = 0;
};

}  // namespace
}  // namespace row_internal

// Whatever fails, a purge thread tries again: it is idempotent (RW6).
void purge_own(RowContext* context, TrxSystem::PurgeItem item) {
  if (item.id.is_zero()) return;
  row_internal::Purge purge(context, true);
  if (purge.run(item).ok()) {
    (void)context->trxs->purged_own(item);  // what is not forgotten is tried with the next one
  } else {
    context->trxs->purge_later(std::move(item));
  }
}

StatusOr<uint64_t> purge_some(RowContext* context, uint64_t limit) {
  row_internal::Purge purge(context);
  uint64_t done = 0;
  TrxSystem::PurgeItem item;
  while (done < limit && context->trxs->next_to_purge(&item)) {
    const Status status = purge.run(item);
    if (!status.ok()) {
      context->trxs->purge_failed(std::move(item));
      return status;
    }
    STRATA_RETURN_IF_ERROR(context->trxs->purged(item));
    ++done;
  }
  if (done == 0) return done;
  STRATA_RETURN_IF_ERROR(purge.merge());
  STRATA_RETURN_IF_ERROR(context->tree.spaces->reclaim());
  return done;
}

}  // namespace strata
