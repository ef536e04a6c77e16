// RowCursor. Between calls no latch is held: the position is the tree cursor's saved one.
// Consistent and dirty reads copy several records per latch into an arena and serve next() or
// prev() from there.
#include <algorithm>
#include <string>
#include <vector>

#include "base/assert.h"
#include "row/internal/versions.h"
#include "row/row_store.h"

namespace strata {
namespace {

using row_internal::StaleGuard;
using row_internal::Version;
using row_internal::Walk;
using row_internal::WalkScratch;

// A batch grows while the scan goes on, so that a point look-up copies one record.
constexpr size_t kBatchRecordsMax = 64;
constexpr size_t kBatchGrowth = 4;
constexpr size_t kBatchBytesMax = 64 * 1024;
constexpr size_t kBatchBytesKept = 4 * 1024;  // by a cursor that is not in use

}  // namespace

struct RowCursor::Impl {
  struct Item {  // places in `arena`
    uint32_t key_at;
    uint32_t key_bytes;
    uint32_t payload_bytes;  // behind the key
  };
  // What to do with the record under the tree cursor.
  enum class Seen : uint8_t {
    kShow,
    kSkip,
    kOlder,    // an older version is needed, or a page must be read to decide
    kResolve,  // kLatest: only a status page knows the writer's state
    kUnseen,   // kLatest: a row that the view shows is gone (RW22)
  };

  RowContext* const context;
  const TreeId tree;
  BaseRow base{};
  Trx* trx = nullptr;
  Read read = Read::kConsistent;
  Mtr mtr;
  TreeCursor at;

  bool forward = true;
  bool valid = false;
  bool ended = false;    // nothing behind the batch in this direction
  bool pending = false;  // the saved position has not been looked at yet
  size_t limit = 1;      // of the next batch
  std::string arena;
  std::vector<Item> items;
  size_t current = 0;
  Bytes shown_key;  // of the current item
  Bytes shown_payload;
  bool undecided = false;
  bool deleted = false;

  std::string key;  // scratch
  Version version;
  WalkScratch scratch;
  TrxId resolved;  // kLatest: a writer a status page was read for
  bool resolved_undecided = false;
  Cts resolved_cts;
  std::string bound_low;
  std::string bound_high;
  Cts latest_cts;  // kLatest: when the record looked at last was committed, if that is known

  Impl(RowContext* c, TreeId t)
      : context(c), tree(t), mtr(c->tree.pool, c->tree.log), at(&c->tree, t, &mtr) {}

  // --- RW11 ---
  bool ahead = false;       // wished for
  bool shared = false;      // ... as shared locks
  bool locked = false;      // the items are
  bool contiguous = false;  // no record between the last batch and this leaf latch's position
  lock_internal::HeldRun* run = nullptr;  // holds the items, and others before them
  TrxId run_owner;
  bool run_is_new = false;  // it begins with the first item
  std::string held_before;  // else the last row that it held before the items
  bool taken = false;       // took() was called for the row shown

  [[nodiscard]] LatchMode latch_mode() const noexcept {
    return ahead && forward ? LatchMode::kExclusive : LatchMode::kShared;
  }
  // The record under the tree cursor, which is nobody else's by what it says itself.
  [[nodiscard]] bool can_take_here() {
    if (trx->may_not_touch(latest_cts)) return false;  // locking it alone says why not
    RowWaits* const waits = context->trxs->waits();
    at.copy_key(&key);
    const RowId row{tree.index_id, key};
    const TrxId holder = waits->exclusive_holder(row, read_record_header(at.value()).cts);
    return (holder.is_zero() || holder == trx->id) && !waits->has_waiters(row);
  }
  // Before the leaf's latch goes.
  void take_items() {
    locked = false;
    if (!ahead || !forward) return;
    // Several nodes have none: and the clock may be far away, which nobody asks with a leaf
    // latched.
    if (context->runs_max == 0) {
      run = nullptr;
      return;
    }
    RowWaits* const waits = context->trxs->waits();
    // Of rows that another has locked shared, one at a time is wanted: we would keep it from going
    // on while we wait for it.
    const StatusOr<Cts> now = shared ? Cts{} : context->trxs->newest_cts();
    if (!now.ok() || (!shared && waits->index_has_shared(tree.index_id))) {
      run = nullptr;
      return;
    }
    const Item& first = items.front();
    const Item& last = items.back();
    const Bytes low(arena.data() + first.key_at, first.key_bytes);
    const Bytes high(arena.data() + last.key_at, last.key_bytes);
    if (run != nullptr && contiguous && run_owner == trx->id) {
      held_before.assign(run->high);
      run_is_new = false;
      locked = waits->extend_run(run, high, *now);
      if (locked) return;
    }
    run = nullptr;
    const size_t runs = shared ? trx->held.shared_run_count() : trx->held.run_count();
    if (runs >= context->runs_max) return;
    const RowWaits::Run added =
        shared ? waits->add_shared_run(&trx->held, trx->id, tree.index_id, low, high)
               : waits->add_run(&trx->held, trx->id, tree.index_id, low, high, *now);
    run = added.taken;
    run_owner = trx->id;
    run_is_new = true;
    locked = added.held;
  }
  // What nobody took: the rows behind the one shown, and that one, too, if it lies behind what was
  // looked for.
  void give_back(Trx* owner) noexcept {
    if (run != nullptr && valid && owner == trx && owner->id == run_owner) {
      RowWaits* const waits = context->trxs->waits();
      if (!taken && current == 0) {
        if (run_is_new)
          waits->drop_run(&owner->held, run);
        else
          waits->trim_run(run, held_before);
      } else {
        if (!taken) show(current - 1);
        if (current + 1 < items.size()) waits->trim_run(run, shown_key);
      }
    }
    run = nullptr;
    locked = valid = false;
  }

  // --- the batch ---
  void clear_batch() noexcept {
    arena.clear();
    items.clear();
    current = 0;
    shown_key = shown_payload = Bytes();
    undecided = deleted = false;
  }
  void add(Bytes key_head, Bytes key_tail, Bytes payload) {
    items.push_back({static_cast<uint32_t>(arena.size()),
                     static_cast<uint32_t>(key_head.size() + key_tail.size()),
                     static_cast<uint32_t>(payload.size())});
    arena.append(key_head).append(key_tail).append(payload);
  }
  void add_record_here(Bytes value) {
    const TreePageView view = at.leaf()->view();
    add(view.prefix(), view.suffix(at.slot()), record_payload(value));
  }
  void show(size_t item) noexcept {
    current = item;
    taken = false;
    const Item& i = items[item];
    shown_key = Bytes(arena.data() + i.key_at, i.key_bytes);
    shown_payload = Bytes(arena.data() + i.key_at + i.key_bytes, i.payload_bytes);
  }

  // --- one record, under its latch, no I/O ---
  Seen look(const RecordHeader& header) {
    switch (read) {
      case Read::kConsistent: {
        if (row_internal::is_own_lock(trx->view, header)) return Seen::kOlder;
        const StatusOr<bool> visible = context->trxs->visible(trx->view, header, false);
        if (!visible.ok() || !*visible) return Seen::kOlder;
        return header.deleted() ? Seen::kSkip : Seen::kShow;
      }
      case Read::kDirty:
        return header.deleted() ? Seen::kSkip : Seen::kShow;
      case Read::kLatest:
        return look_latest(header);
    }
    return Seen::kSkip;
  }

  Seen look_latest(const RecordHeader& header) {
    const TrxId id = header.trx_id;
    bool open = false;
    latest_cts = header.cts;
    if (!id.is_zero() && header.cts.is_zero() && id != trx->id) {
      TrxLookup found;
      if (context->trxs->lookup_fast(id, &found)) {
        open = found.state == TrxState::kActive || found.state == TrxState::kPrepared ||
               found.state == TrxState::kCommitting;
        latest_cts = open ? Cts{} : found.cts;
      } else if (id == resolved) {
        open = resolved_undecided;
        latest_cts = resolved_cts;
      } else {
        return Seen::kResolve;
      }
    }
    if (header.deleted() && !open)
      return trx->may_not_touch(latest_cts) && is_wanted() ? Seen::kUnseen : Seen::kSkip;
    undecided = open;
    deleted = header.deleted();
    return Seen::kShow;
  }

  // Whether the record under the tree cursor lies within the bounds.
  [[nodiscard]] bool is_wanted() {
    at.copy_key(&key);
    return Bytes(key) >= Bytes(bound_low) && (bound_high.empty() || Bytes(key) < Bytes(bound_high));
  }

  // --- moving ---
  [[nodiscard]] bool batch_is_full() const noexcept {
    const bool single = read == Read::kLatest && !(ahead && forward);
    return single || items.size() >= limit || arena.size() >= kBatchBytesMax;
  }
  Status step() { return forward ? at.next() : at.prev(); }

  // Latches the saved position again and stands on the next record to look at (or none).
  Status come_back() {
    bool same = false;
    STRATA_RETURN_IF_ERROR(at.restore(latch_mode(), &same));
    const bool look_here = pending;
    pending = false;
    contiguous = same && !look_here && at.step_in_leaf(forward);
    if (contiguous) return ok_status();
    if (same) return look_here ? ok_status() : step();
    if (forward) return ok_status();  // restore() went to the next greater key
    key.assign(at.saved_key());
    return at.seek_before(key, false);
  }
  void pause(bool look_here) {
    pending = look_here;
    at.save();
  }

  // From the record the tree cursor stands on, latched, gathers what next() or prev() will show.
  Status fill() {
    clear_batch();
    locked = false;
    StaleGuard stale;
    for (;;) {
      if (!at.on_record()) {
        contiguous = false;
        if (forward && at.leaf() != nullptr && !at.at_end()) {
          STRATA_RETURN_IF_ERROR(at.settle());
          continue;
        }
        at.reset();
        ended = true;
        break;
      }
      const Bytes value = at.value();
      const Seen seen = look(read_record_header(value));
      if (seen == Seen::kOlder || seen == Seen::kResolve) {
        if (!items.empty()) {
          take_items();
          pause(true);
          break;
        }
        contiguous = false;
        STRATA_RETURN_IF_ERROR(seen == Seen::kOlder ? look_older(value, &stale) : resolve(value));
        if (!items.empty()) break;
        STRATA_RETURN_IF_ERROR(come_back());
        continue;
      }
      if (seen == Seen::kUnseen) {
        if (items.empty()) {
          trx->must_rollback = true;
          return error_row_changed();
        }
        take_items();  // what comes before it may be all that is wanted
        pause(true);
        break;
      }
      const bool takes = ahead && forward && seen == Seen::kShow;
      if (takes && (undecided || !can_take_here())) {  // the caller locks that one by itself
        if (items.empty()) {
          run = nullptr;
          add_record_here(value);
          pause(false);
        } else {
          undecided = deleted = false;
          take_items();
          pause(true);
        }
        break;
      }
      if (seen == Seen::kShow) {
        add_record_here(value);
        if (batch_is_full()) {
          take_items();
          pause(false);
          break;
        }
      }
      if (at.step_in_leaf(forward)) continue;
      if (!items.empty()) {  // a batch is of one leaf
        take_items();
        pause(false);
        break;
      }
      contiguous = false;
      STRATA_RETURN_IF_ERROR(step());
    }
    valid = !items.empty();
    if (valid) show(0);
    limit = std::min(limit * kBatchGrowth, kBatchRecordsMax);
    return ok_status();
  }

  // Copies the record, lets the leaf go, and finds the version the view sees.
  Status look_older(Bytes value, StaleGuard* stale) {
    row_internal::copy_version(value, &version);
    at.copy_key(&key);
    pause(false);
    const RecordHeader newest = version.header;
    if (base.key_of != nullptr && !trx->id.is_zero()) {
      STRATA_ASSIGN_OR_RETURN(const bool own, owns_base_row());
      if (own && !newest.deleted()) add(key, Bytes(), version.payload);
      if (own) return ok_status();
    }
    STRATA_ASSIGN_OR_RETURN(
        const Walk walk,
        row_internal::walk_to_visible(context, trx->view, tree, key, &version, &scratch));
    if (walk == Walk::kFound) add(key, Bytes(), version.payload);
    if (walk != Walk::kStale) return ok_status();
    pending = true;
    return stale->check(tree, newest);
  }

  // RW8: has this transaction changed the row of the entry in `key` and `version`?
  StatusOr<bool> owns_base_row() {
    const Bytes row_key = base.key_of(key, version.payload);
    Mtr row_mtr(context->tree.pool, context->tree.log);
    TreeCursor row(&context->tree, base.tree, &row_mtr);
    STRATA_RETURN_IF_ERROR(row.seek(row_key, LatchMode::kShared));
    if (!row.equals(row_key)) return false;
    const RecordHeader header = read_record_header(row.value());
    return header.trx_id == trx->id && !row_internal::is_own_lock(trx->view, header);
  }

  Status resolve(Bytes value) {
    const TrxId id = read_record_header(value).trx_id;
    pause(true);
    STRATA_ASSIGN_OR_RETURN(resolved_undecided, context->trxs->is_undecided(id, trx->id));
    resolved_cts = Cts{};
    if (trx->refuses_unseen && !resolved_undecided) {
      STRATA_ASSIGN_OR_RETURN(const TrxLookup found, context->trxs->lookup_told(id));
      if (found.state == TrxState::kCommitted) resolved_cts = found.cts;
    }
    resolved = id;
    return ok_status();
  }

  // --- calls ---
  void start(Trx* t, Read r, bool go_forward) {
    trx = t;
    read = r;
    forward = go_forward;
    valid = ended = pending = locked = contiguous = false;
    run = nullptr;
    limit = 1;
    resolved = TrxId{};
    clear_batch();
    at.reset();
  }

  Status finish(const Status& status) {
    if (!status.ok()) {
      at.reset();
      clear_batch();
      valid = false;
    }
    return status;
  }

  Status find_first(Bytes from) {
    const InterruptScope scope(&trx->interrupt);
    STRATA_RETURN_IF_ERROR(at.seek(from, latch_mode()));
    trx->last_leaf = {tree.index_id, at.leaf()->id()};
    return fill();
  }

  Status find_last(Bytes before, bool infinite) {
    const InterruptScope scope(&trx->interrupt);
    STRATA_RETURN_IF_ERROR(at.seek_before(before, infinite));
    return fill();
  }

  Status turn() {
    const InterruptScope scope(&trx->interrupt);
    const std::string from(shown_key);
    give_back(trx);
    ahead = false;
    start(trx, read, !forward);
    if (!forward) return find_last(from, false);
    STRATA_RETURN_IF_ERROR(at.seek(from, LatchMode::kShared));
    if (at.equals(from)) STRATA_RETURN_IF_ERROR(at.next());
    return fill();
  }

  Status move(bool go_forward) {
    if (!valid) return ok_status();
    if (go_forward != forward) return finish(turn());
    if (current + 1 < items.size()) {
      show(current + 1);
      return ok_status();
    }
    valid = false;
    if (ended) return ok_status();
    const InterruptScope scope(&trx->interrupt);
    const Status status = come_back();
    return finish(status.ok() ? fill() : status);
  }

  Status look_again(std::string* payload) {
    const bool saved_here = forward && !ended && !pending && items.size() == 1;
    if (!saved_here || undecided || deleted) return read_dirty(context, tree, shown_key, payload);
    const InterruptScope scope(&trx->interrupt);
    bool same = false;
    STRATA_RETURN_IF_ERROR(at.restore(LatchMode::kShared, &same));
    if (same) {
      const Bytes value = at.value();
      const bool gone = read_record_header(value).deleted();
      if (!gone) payload->assign(record_payload(value));
      pause(false);
      return gone ? error_not_found() : ok_status();
    }
    // Erased meanwhile: next() begins with what comes after it.
    if (at.leaf() == nullptr || at.at_end()) {
      at.reset();
      ended = true;
    } else {
      pause(true);
    }
    return error_not_found();
  }
};

RowCursor::RowCursor(RowContext* context, TreeId tree)
    : impl_(std::make_unique<Impl>(context, tree)) {}
RowCursor::~RowCursor() = default;

void RowCursor::set_base_row(const BaseRow& base) noexcept { impl_->base = base; }

Status RowCursor::seek(Trx* trx, Read read, Bytes key) {
  impl_->start(trx, read, true);
  return impl_->finish(impl_->find_first(key));
}

Status RowCursor::seek_before(Trx* trx, Read read, Bytes key, bool infinite) {
  impl_->start(trx, read, false);
  return impl_->finish(impl_->find_last(key, infinite));
}

Status RowCursor::next() { return impl_->move(true); }
Status RowCursor::prev() { return impl_->move(false); }
Status RowCursor::look_again(std::string* payload) { return impl_->look_again(payload); }

void RowCursor::set_bounds(Bytes low, Bytes high) {
  impl_->bound_low.assign(low);
  impl_->bound_high.assign(high);
}

void RowCursor::reset() noexcept {
  impl_->bound_low.clear();
  impl_->bound_high.clear();
  impl_->ahead = false;
  impl_->start(nullptr, Read::kConsistent, true);
  if (impl_->arena.capacity() > kBatchBytesKept) impl_->arena = std::string();
}

void RowCursor::set_lock_ahead(bool ahead, bool shared) noexcept {
  impl_->ahead = ahead;
  impl_->shared = shared;
}
bool RowCursor::locked() const noexcept { return impl_->locked; }
void RowCursor::took() noexcept { impl_->taken = true; }
void RowCursor::give_back(Trx* trx) noexcept { impl_->give_back(trx); }

bool RowCursor::valid() const noexcept { return impl_->valid; }
Bytes RowCursor::key() const noexcept { return impl_->valid ? impl_->shown_key : Bytes(); }
Bytes RowCursor::payload() const noexcept { return impl_->valid ? impl_->shown_payload : Bytes(); }
bool RowCursor::undecided() const noexcept { return impl_->undecided; }
bool RowCursor::deleted() const noexcept { return impl_->deleted; }

}  // namespace strata
