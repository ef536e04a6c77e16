// RangeCursor. Each step: look for the next record, register the range up to it, look again. Only
// what the second look finds counts (RW9), and it costs a glance at the leaf's llsn when nothing
// has happened meanwhile. No latch is held when a lock table is asked, so that it may be far away.
#include <string>
#include <utility>

#include "base/assert.h"
#include "row/internal/conflicts.h"
#include "row/internal/versions.h"
#include "row/row_store.h"

namespace strata {
namespace {

using row_internal::Conflicts;
using row_internal::Owner;
using row_internal::StaleGuard;
using row_internal::Version;
using row_internal::Walk;
using row_internal::WalkScratch;

// The smallest key above `key`.
void assign_successor(std::string* out, Bytes key) {
  out->assign(key);
  out->push_back('\0');
}

}  // namespace

struct RangeCursor::Impl {
  // What a look came to.
  enum class Found : uint8_t { kRecord, kEnd, kUnknownOwner };

  RowContext* const context;
  const TreeId tree;
  RowWaits* const waits;
  Trx* trx = nullptr;
  Mtr mtr;
  TreeCursor at;

  std::string low;  // bounds
  std::string high;
  bool later = false;

  bool forward = true;
  bool valid = false;
  bool covered = false;  // the record shown is protected
  // Everything between where the scan began and here is settled; the rest has not been read.
  // Forward: the smallest key not read; backward: the smallest key read (or none: edge_infinite).
  std::string edge;
  bool edge_infinite = false;

  // The record of the last look.
  std::string key;
  std::string after_key;  // its successor
  Version version;
  bool open = false;  // owned by another undecided transaction, as the look saw it
  TrxId unknown;
  // Where the last look ended; `saved`: the tree cursor has a position. `one_leaf`: it saw nothing
  // but that leaf.
  bool saved = false;
  bool one_leaf = false;
  PageId leaf;
  uint64_t leaf_llsn = 0;

  std::string waited_for;  // row locked while waiting for its owner; the range takes over
  bool waited = false;
  WalkScratch scratch;

  Impl(RowContext* c, TreeId t)
      : context(c),
        tree(t),
        waits(c->trxs->waits()),
        mtr(c->tree.pool, c->tree.log),
        at(&c->tree, t, &mtr) {}

  void forget_position() noexcept {
    at.reset();
    saved = one_leaf = false;
  }

  Status start(Trx* t) {
    trx = t;
    valid = false;
    covered = true;
    forget_position();
    if (trx->must_rollback) return error_deadlock();
    return context->trxs->ensure_id(trx);
  }

  // --- ranges ---
  [[nodiscard]] KeyRange range_to_end() const noexcept {
    if (forward) return {edge, high, high.empty()};
    return {low, edge, edge_infinite};
  }
  // From the edge to the record, with it or without.
  [[nodiscard]] KeyRange range_to_record(bool with_it) const noexcept {
    if (forward) return {edge, with_it ? after_key : key, false};
    return {with_it ? key : after_key, edge, edge_infinite};
  }
  [[nodiscard]] bool is_behind_bounds(Bytes k) const noexcept {
    return forward ? !high.empty() && k >= Bytes(high) : k < Bytes(low);
  }
  [[nodiscard]] bool is_read(Bytes k) const noexcept {
    return forward ? k < Bytes(edge) : !edge_infinite && k >= Bytes(edge);
  }

  void settle(const KeyRange& range) {
    if (!range.empty()) waits->settle_range(trx->id, tree.index_id, range);
    if (!waited) return;
    waited = false;
    waits->drop_shared(trx->id, RowId{tree.index_id, waited_for});
  }

  void move_edge_past_record() {
    edge_infinite = false;
    edge.assign(forward ? after_key : key);
  }

  // --- looking ---
  // Latches the first record not read, or the place where it would be.
  Status latch_edge() {
    one_leaf = false;
    if (saved) {
      bool same = false;
      saved = false;
      STRATA_RETURN_IF_ERROR(at.restore(LatchMode::kShared, &same));
      if (same) at.copy_key(&key);
      // From a record that was not read we could not go on: others may have come before it.
      if (same && is_read(key)) {
        one_leaf = true;
        leaf = at.leaf()->id();
        return forward ? at.next() : at.prev();
      }
    }
    STRATA_RETURN_IF_ERROR(forward ? at.seek(edge, LatchMode::kShared)
                                   : at.seek_before(edge, edge_infinite));
    if (at.leaf() == nullptr) return ok_status();
    leaf = at.leaf()->id();
    const TreePageView view = at.leaf()->view();
    one_leaf = forward || view.has_flag(kHighIsInfinity) ||
               (!edge_infinite && Bytes(edge) <= view.high_key());
    return ok_status();
  }

  StatusOr<Found> look(Conflicts* conflicts) {
    STRATA_RETURN_IF_ERROR(latch_edge());
    Found found = Found::kEnd;
    for (;;) {
      if (!at.on_record()) {
        if (!forward || at.leaf() == nullptr || at.at_end()) break;
        STRATA_RETURN_IF_ERROR(at.settle());
        continue;
      }
      at.copy_key(&key);
      if (is_behind_bounds(key)) break;
      RecordHeader header = read_record_header(at.value());
      const Owner owner = conflicts->owner(&header);
      if (owner == Owner::kUnknown) {
        unknown = header.trx_id;
        found = Found::kUnknownOwner;
        break;
      }
      open = owner == Owner::kUndecided;
      if (open || !header.deleted()) {
        row_internal::copy_version(at.value(), &version);
        assign_successor(&after_key, key);
        found = Found::kRecord;
        break;
      }
      STRATA_RETURN_IF_ERROR(forward ? at.next() : at.prev());
    }
    if (at.leaf() == nullptr) {
      forget_position();
      return found;
    }
    one_leaf = one_leaf && at.leaf()->id() == leaf;
    leaf_llsn = at.leaf()->view().header()->llsn;
    at.save();
    saved = true;
    return found;
  }

  // Whether nothing can have changed since the last look.
  StatusOr<bool> is_unchanged() {
    if (!saved || !one_leaf) return false;
    bool same = false;
    STRATA_RETURN_IF_ERROR(at.restore(LatchMode::kShared, &same));
    if (at.leaf() == nullptr || at.leaf()->id() != leaf ||
        at.leaf()->view().header()->llsn != leaf_llsn) {
      forget_position();
      return false;
    }
    at.save();
    return true;
  }

  // --- moving ---
  // To the next record not read yet.
  Status advance() {
    Conflicts conflicts(context, trx, tree.index_id);
    StaleGuard stale;
    valid = false;
    for (;;) {
      STRATA_ASSIGN_OR_RETURN(const Found found, look(&conflicts));
      if (found == Found::kUnknownOwner) {
        STRATA_RETURN_IF_ERROR(conflicts.resolve(unknown));
        continue;
      }
      const KeyRange range = found == Found::kEnd ? range_to_end() : range_to_record(!later);
      if (waits->add_range(trx->id, tree.index_id, range)) {
        STRATA_ASSIGN_OR_RETURN(const bool unchanged, is_unchanged());
        if (!unchanged) continue;
      }
      if (found == Found::kEnd) {
        settle(range);
        return ok_status();
      }
      if (open) {
        const RowId row{tree.index_id, key};
        if (waits->protects(trx->id, row)) {
          // L7: its owner waits for us; what we have read here is the version below.
          const RecordHeader newest = version.header;
          STRATA_ASSIGN_OR_RETURN(const Walk walk,
                                  row_internal::walk_past_writer(context, newest.trx_id, tree, key,
                                                                 &version, &scratch));
          if (walk == Walk::kStale) {
            STRATA_RETURN_IF_ERROR(stale.check(tree, newest));
            continue;
          }
          if (walk == Walk::kAbsent) {
            settle(range);
            move_edge_past_record();
            continue;
          }
        } else if (!later) {
          waits->drop_range_key(trx->id, row);
          STRATA_RETURN_IF_ERROR(wait_for_owner());
          continue;
        }
      }
      if (!later && !open && is_held_by_other()) {
        waits->drop_range_key(trx->id, RowId{tree.index_id, key});
        STRATA_RETURN_IF_ERROR(wait_for_owner());
        continue;
      }
      settle(range);
      valid = true;
      covered = !later;
      return ok_status();
    }
  }

  // Whether another transaction has locked the record in `key` without writing to it, and not after
  // we had read it. To be asked after the range was registered (L10).
  [[nodiscard]] bool is_held_by_other() const {
    const RowId row{tree.index_id, key};
    const TrxId holder = waits->exclusive_holder(row);
    return !holder.is_zero() && holder != trx->id && !waits->protects(trx->id, row);
  }

  // Until the record in `key` has no undecided owner, or is gone. A lock keeps the next one off
  // until the range does.
  Status wait_for_owner() {
    waited_for.assign(key);
    std::string payload;
    const Status locked = lock_record(context, trx, tree, waited_for, RowLock::kShared, &payload);
    waited = locked.ok();
    return is_not_found(locked) ? ok_status() : locked;
  }

  // Leaves the record shown behind. One that is not protected yet is now; *again: it has become
  // another version, so whatever the caller has made of it was premature.
  Status leave(bool* again) {
    *again = false;
    if (!covered) STRATA_RETURN_IF_ERROR(cover(again));
    if (!*again) move_edge_past_record();
    return ok_status();
  }

  Status cover(bool* again) {
    Conflicts conflicts(context, trx, tree.index_id);
    const KeyRange point{key, after_key, false};
    const RowId row{tree.index_id, key};
    const RecordHeader shown = version.header;
    forget_position();
    for (;;) {
      waits->add_range(trx->id, tree.index_id, point);
      RecordHeader header;
      Owner owner = Owner::kDecided;
      bool live = false;
      STRATA_RETURN_IF_ERROR(at.seek(key, LatchMode::kShared));
      if (at.equals(key)) {
        header = read_record_header(at.value());
        owner = conflicts.owner(&header);
        live = !header.deleted();
        row_internal::copy_version(at.value(), &version);
      }
      at.reset();
      if (owner == Owner::kUnknown) {
        STRATA_RETURN_IF_ERROR(conflicts.resolve(header.trx_id));
        continue;
      }
      const bool owned = owner == Owner::kUndecided && !waits->protects(trx->id, row);
      if (owned || (live && owner == Owner::kDecided && is_held_by_other())) {
        waits->drop_range_key(trx->id, row);
        STRATA_RETURN_IF_ERROR(wait_for_owner());
        continue;
      }
      // An owner that waits for us leaves what we have read before, and may be showing again.
      const bool same = header.trx_id == shown.trx_id && header.undo_ptr == shown.undo_ptr;
      *again = live && owner != Owner::kUndecided && !same;
      break;
    }
    settle(point);
    covered = true;
    return ok_status();
  }

  Status finish(const Status& status) {
    if (status.ok()) return status;
    forget_position();
    valid = false;
    return status;
  }

  Status move(bool go_forward) {
    if (!valid) return ok_status();
    const InterruptScope scope(&trx->interrupt);
    valid = false;
    bool again = false;
    STRATA_RETURN_IF_ERROR(leave(&again));
    if (again) {
      valid = true;
      return ok_status();
    }
    if (forward != go_forward) {
      // What lies on the other side was read, perhaps by another scan or not at all.
      forward = go_forward;
      edge.assign(forward ? after_key : key);
      forget_position();
    }
    return advance();
  }
};

RangeCursor::RangeCursor(RowContext* context, TreeId tree)
    : impl_(std::make_unique<Impl>(context, tree)) {}
RangeCursor::~RangeCursor() = default;

void RangeCursor::set_bounds(Bytes low, Bytes high) {
  impl_->low.assign(low);
  impl_->high.assign(high);
}

void RangeCursor::set_records_later(bool later) noexcept { impl_->later = later; }

Status RangeCursor::seek(Trx* trx, Bytes key) {
  Impl& c = *impl_;
  const InterruptScope scope(&trx->interrupt);
  STRATA_RETURN_IF_ERROR(c.start(trx));
  c.forward = true;
  c.edge.assign(key);
  c.edge_infinite = false;
  return c.finish(c.advance());
}

Status RangeCursor::seek_before(Trx* trx, Bytes key, bool infinite) {
  Impl& c = *impl_;
  const InterruptScope scope(&trx->interrupt);
  STRATA_RETURN_IF_ERROR(c.start(trx));
  c.forward = false;
  c.edge.assign(key);
  c.edge_infinite = infinite;
  return c.finish(c.advance());
}

Status RangeCursor::next() { return impl_->finish(impl_->move(true)); }
Status RangeCursor::prev() { return impl_->finish(impl_->move(false)); }

void RangeCursor::took() {
  Impl& c = *impl_;
  if (!c.valid || c.covered) return;
  const KeyRange point{c.key, c.after_key, false};
  c.waits->add_range(c.trx->id, c.tree.index_id, point);
  c.settle(point);
  c.covered = true;
}

bool RangeCursor::valid() const noexcept { return impl_->valid; }
Bytes RangeCursor::key() const noexcept { return impl_->valid ? Bytes(impl_->key) : Bytes(); }
Bytes RangeCursor::payload() const noexcept {
  return impl_->valid ? Bytes(impl_->version.payload) : Bytes();
}

}  // namespace strata
