// Insert, update, delete, lock: one record at a time.
#include <algorithm>

#include "base/assert.h"
#include "row/internal/record_change.h"

namespace strata {
namespace row_internal {

// --- the loop ---

template <typename Attempt>
Status RecordChange::run(size_t undo_bytes_first, const Attempt& attempt, bool frees_room) {
  if (trx_->must_rollback) return error_deadlock();
  undo_bytes_ = static_cast<uint32_t>(undo_bytes_first);
  for (;;) {
    STRATA_RETURN_IF_ERROR(context_->trxs->prepare_change(trx_, undo_bytes_));
    queued_ = conflicts_.must_queue(key_);
    StatusOr<Outcome> outcome = Outcome{};
    {
      Mtr mtr(context_->tree.pool, context_->tree.log);
      STRATA_RETURN_IF_ERROR(frees_room || trx_->frees_room ? mtr.begin_write_to_free()
                                                            : mtr.begin_write());
      TreeCursor cursor(&context_->tree, tree_, &mtr);
      outcome = attempt(&mtr, &cursor);
      // After a failure nothing but an undo record can be in the mtr: rollback will find that its
      // change was never made.
      mtr.publish();
    }
    if (!outcome.ok()) return outcome.status();
    if (outcome->next == Next::kDone) break;
    STRATA_RETURN_IF_ERROR(back_off(*outcome));
  }
  conflicts_.took(key_);
  return conflicts_.wait_for_shared(key_, is_row_);
}

Status RecordChange::back_off(const Outcome& outcome) {
  switch (outcome.next) {
    case Next::kWait:
      return conflicts_.wait(outcome.other, outcome.other_row ? Bytes(other_key_) : key_,
                             outcome.in_memory);
    case Next::kWaitForShared:
      conflicts_.give_turn_back();  // who keeps the record absent may insert it
      return conflicts_.wait_for_shared(key_, false);
    case Next::kResolve:
      return conflicts_.resolve(outcome.other);
    case Next::kRoom:
      return make_room(&context_->tree, tree_, key_, outcome.bytes, trx_->frees_room);
    case Next::kUndoRoom:
      undo_bytes_ = static_cast<uint32_t>(outcome.bytes);
      return ok_status();
    case Next::kUnseen:
      trx_->must_rollback = true;
      return error_row_changed();
    case Next::kLookAgain:
    case Next::kDone:
      return ok_status();
  }
  return error_internal("unknown outcome of an attempt");
}

bool RecordChange::is_free(RecordHeader* header, Outcome* outcome) {
  if (!is_decided(header, outcome)) return false;
  is_row_ = header->trx_id != trx_->id && !header->deleted();
  if (header->trx_id == trx_->id) return true;
  if (trx_->may_not_touch(header->cts)) {
    *outcome = Outcome{.next = Next::kUnseen};
    return false;
  }
  if (trx_->held.last_run_holds(RowId{tree_.index_id, key_}, header->cts)) return true;
  const TrxId holder = conflicts_.holder_in_memory(key_, header->cts);
  if (holder == trx_->id) return true;
  if (!holder.is_zero() && !header->deleted()) {  // L12
    *outcome = Outcome{.next = Next::kWait, .other = holder, .in_memory = true};
    return false;
  }
  if (!queued_) return true;
  *outcome = Outcome{.next = Next::kWait};  // L1: behind those who came first
  return false;
}

// Its writer has ended, or is this transaction.
bool RecordChange::is_decided(RecordHeader* header, Outcome* outcome) {
  switch (conflicts_.owner(header)) {
    case Owner::kSelf:
    case Owner::kDecided:
      return true;
    case Owner::kUndecided:
      *outcome = Outcome{.next = Next::kWait, .other = header->trx_id};
      return false;
    case Owner::kUnknown:
      *outcome = Outcome{.next = Next::kResolve, .other = header->trx_id};
      return false;
  }
  return false;
}

// The new record would not be visible to who keeps it absent, but it would stand in its way: it
// would have to wait for us, who wait for it. So nothing is written while such a one is known. One
// that comes later is found by run(), after the record has been written.
bool RecordChange::is_kept_absent(Outcome* outcome) const noexcept {
  const RowWaits* waits = context_->trxs->waits();
  if (!waits->index_has_shared(tree_.index_id)) return false;
  if (waits->shared_conflict(trx_->id, RowId{tree_.index_id, key_}, false).is_zero()) return false;
  *outcome = Outcome{.next = Next::kWaitForShared};
  return true;
}

Status RecordChange::note_duplicate(Bytes key, const RecordHeader& header, Bytes value) {
  if (duplicate_ != nullptr) {
    duplicate_->key.assign(key);
    duplicate_->payload.assign(record_payload(value));
    duplicate_->own = header.trx_id == trx_->id;
  }
  return error_duplicate_key();
}

bool RecordChange::can_write(bool fits, size_t value_bytes, Outcome* outcome) const noexcept {
  const uint32_t needed =
      undo_bytes_max(undo_.key.size(), undo_.middle.size(), undo_.free_on_purge.size());
  if (needed > undo_bytes_) {
    *outcome = Outcome{.next = Next::kUndoRoom, .bytes = needed};
    return false;
  }
  if (!fits) {
    *outcome = Outcome{.next = Next::kRoom, .bytes = value_bytes};
    return false;
  }
  return true;
}

void RecordChange::describe_undo(UndoType type) {
  undo_.type = type;
  undo_.index = tree_.index_id;
  undo_.root = tree_.root;
  undo_.key.assign(key_);
  undo_.previous = RecordHeader{};
  undo_.prefix_bytes = 0;
  undo_.suffix_bytes = 0;
  undo_.middle.clear();
  undo_.free_on_purge.clear();
}

Status RecordChange::add_undo(Mtr* mtr, uint8_t flags, Bytes payload) {
  STRATA_ASSIGN_OR_RETURN(const UndoPtr ptr, context_->trxs->add_undo(mtr, trx_, &undo_));
  value_.clear();
  append_record_header(&value_, RecordHeader{trx_->id, Cts{}, ptr, flags});
  value_.append(payload);
  return ok_status();
}

// --- insert ---

Status RecordChange::insert(Bytes payload, size_t unique_bytes, const SlotRaise* raise,
                            Duplicate* duplicate) {
  duplicate_ = duplicate;
  if (key_.size() > kMaxKeyBytes ||
      key_.size() + kRecordHeaderBytes + payload.size() > kMaxRecordBytes) {
    return error_invalid_argument("a record is too large for a page");
  }
  return run(undo_bytes_max(key_.size(), 0, 0), [&](Mtr* mtr, TreeCursor* cursor) {
    return try_insert(mtr, cursor, payload, unique_bytes, raise);
  });
}

StatusOr<RecordChange::Outcome> RecordChange::try_insert(Mtr* mtr, TreeCursor* cursor,
                                                         Bytes payload, size_t unique_bytes,
                                                         const SlotRaise* raise) {
  Place place;
  is_row_ = false;
  if (unique_bytes != 0 && unique_bytes <= key_.size()) {
    STRATA_RETURN_IF_ERROR(cursor->seek(key_.substr(0, unique_bytes), LatchMode::kExclusive));
    STRATA_ASSIGN_OR_RETURN(const Outcome checked,
                            find_unique_place(mtr, cursor, unique_bytes, &place));
    if (checked.next != Next::kDone) return checked;
  } else {
    STRATA_RETURN_IF_ERROR(cursor->seek(key_, LatchMode::kExclusive));
    place = Place{cursor->leaf(), cursor->slot(), cursor->equals(key_)};
  }
  return place.exists ? insert_over(mtr, place, payload, raise)
                      : insert_new(mtr, cursor, place, payload, raise);
}

StatusOr<RecordChange::Outcome> RecordChange::find_unique_place(Mtr* mtr, TreeCursor* cursor,
                                                                size_t unique_bytes, Place* place) {
  const Bytes unique = key_.substr(0, unique_bytes);
  const auto covers = [this](const MtrPage* leaf) {
    const TreePageView view = leaf->view();
    return view.covers_left(key_) && (view.has_flag(kHighIsInfinity) || view.covers_right(key_));
  };
  MtrPage* leaf = cursor->leaf();
  STRATA_RETURN_IF_ERROR(cursor->settle(true));
  while (true) {
    if (cursor->at_end()) break;
    cursor->copy_key(&other_key_);
    if (Bytes(other_key_).substr(0, unique_bytes) != unique) break;
    if (other_key_ != key_) {  // our own key is looked at by insert_over()
      RecordHeader header = read_record_header(cursor->value());
      const Owner owner = conflicts_.owner(&header);
      if (owner == Owner::kUnknown) return Outcome{.next = Next::kResolve, .other = header.trx_id};
      if (owner == Owner::kUndecided) {
        return Outcome{.next = Next::kWait, .other = header.trx_id, .other_row = true};
      }
      if (!header.deleted()) return note_duplicate(other_key_, header, cursor->value());
    }
    STRATA_RETURN_IF_ERROR(cursor->next(true));
  }
  // All leaves passed are still latched, those without a record too, and their fences meet.
  while (!covers(leaf)) {
    leaf = mtr->held(PageId{tree_.root.space, leaf->view().header()->right_sibling});
    STRATA_ASSERT(leaf != nullptr);
  }
  place->leaf = leaf;
  place->slot = leaf->view().lower_bound(key_, &place->exists);
  return Outcome{};
}

StatusOr<RecordChange::Outcome> RecordChange::insert_new(Mtr* mtr, TreeCursor* cursor,
                                                         const Place& place, Bytes payload,
                                                         const SlotRaise* raise) {
  Outcome outcome;
  if (queued_) return Outcome{.next = Next::kWait};
  if (is_kept_absent(&outcome)) return outcome;
  describe_undo(UndoType::kInsert);
  const size_t value_bytes = kRecordHeaderBytes + payload.size();
  const bool fits = place.leaf->view().fits_insert(key_, value_bytes);
  if (!can_write(fits, value_bytes, &outcome)) return outcome;
  STRATA_RETURN_IF_ERROR(add_undo(mtr, 0, payload));
  if (raise != nullptr) {
    STRATA_RETURN_IF_ERROR(
        context_->tree.spaces->raise_slot(mtr, raise->space, raise->slot, raise->value));
  }
  if (place.leaf == cursor->leaf() && place.slot == cursor->slot()) {
    cursor->insert(key_, value_);  // it notices ascending runs
  } else {
    mtr->insert(place.leaf, place.slot, key_, value_);
  }
  return outcome;
}

// The key is there. If its newest version is a delete that is ours or committed, the new record
// continues its version chain.
StatusOr<RecordChange::Outcome> RecordChange::insert_over(Mtr* mtr, const Place& place,
                                                          Bytes payload, const SlotRaise* raise) {
  Outcome outcome;
  const Bytes old_value = place.leaf->view().value(place.slot);
  RecordHeader header = read_record_header(old_value);
  if (!is_free(&header, &outcome)) return outcome;
  if (!header.deleted()) return note_duplicate(key_, header, old_value);
  if (is_kept_absent(&outcome)) return outcome;
  describe_undo(UndoType::kUpdate);
  undo_.previous = header;
  set_payload_difference(&undo_, record_payload(old_value), payload);
  const size_t value_bytes = kRecordHeaderBytes + payload.size();
  const bool fits = place.leaf->view().fits_replace(place.slot, value_bytes);
  if (!can_write(fits, value_bytes, &outcome)) return outcome;
  STRATA_RETURN_IF_ERROR(add_undo(mtr, 0, payload));
  if (raise != nullptr) {
    STRATA_RETURN_IF_ERROR(
        context_->tree.spaces->raise_slot(mtr, raise->space, raise->slot, raise->value));
  }
  mtr->replace(place.leaf, place.slot, value_);
  return outcome;
}

// --- update, delete, exclusive lock ---

Status RecordChange::seek_row(TreeCursor* cursor, LatchMode mode) {
  const LastLeaf& last = trx_->last_leaf;
  STRATA_RETURN_IF_ERROR(last.index_id == tree_.index_id ? cursor->seek_near(last.leaf, key_, mode)
                                                         : cursor->seek(key_, mode));
  trx_->last_leaf = {tree_.index_id, cursor->leaf()->id()};
  return ok_status();
}

StatusOr<RecordChange::Outcome> RecordChange::find_live(TreeCursor* cursor, LatchMode mode,
                                                        RecordHeader* header) {
  Outcome outcome;
  STRATA_RETURN_IF_ERROR(seek_row(cursor, mode));
  if (!cursor->equals(key_)) return error_not_found();
  *header = read_record_header(cursor->value());
  if (!is_free(header, &outcome)) return outcome;
  if (header->deleted()) return error_not_found();
  return outcome;
}

Status RecordChange::update(Bytes payload) {
  if (key_.size() + kRecordHeaderBytes + payload.size() > kMaxRecordBytes)
    return error_invalid_argument("a record is too large for a page");
  // Most updates change part of the payload; try_change() asks for more if it is not enough.
  const size_t guess = undo_bytes_max(key_.size(), std::min<size_t>(payload.size(), 256), 0);
  return run(guess,
             [&](Mtr* mtr, TreeCursor* cursor) { return try_change(mtr, cursor, &payload, {}); });
}

Status RecordChange::erase(const std::vector<OverflowRef>& moved) {
  return run(
      undo_bytes_max(key_.size(), 0, 0),
      [&](Mtr* mtr, TreeCursor* cursor) { return try_change(mtr, cursor, nullptr, moved); }, true);
}

Status RecordChange::list_freed(Bytes before, const Bytes* after,
                                const std::vector<OverflowRef>& moved) {
  if (before.empty() || before[0] == 0) return ok_status();  // most rows have no chains
  std::vector<OverflowRef> kept;
  Bytes ignored;
  if (after != nullptr) STRATA_RETURN_IF_ERROR(decode_payload(*after, &kept, &ignored));
  kept.insert(kept.end(), moved.begin(), moved.end());
  STRATA_RETURN_IF_ERROR(decode_payload(before, &undo_.free_on_purge, &ignored));
  std::erase_if(undo_.free_on_purge, [&kept](const OverflowRef& ref) {
    return std::find(kept.begin(), kept.end(), ref) != kept.end();
  });
  return ok_status();
}

StatusOr<RecordChange::Outcome> RecordChange::try_change(Mtr* mtr, TreeCursor* cursor,
                                                         const Bytes* payload,
                                                         const std::vector<OverflowRef>& moved) {
  RecordHeader header;
  STRATA_ASSIGN_OR_RETURN(Outcome outcome, find_live(cursor, LatchMode::kExclusive, &header));
  if (outcome.next != Next::kDone) return outcome;
  return change_found(mtr, cursor, header, payload, moved);
}

StatusOr<RecordChange::Outcome> RecordChange::change_found(Mtr* mtr, TreeCursor* cursor,
                                                           const RecordHeader& header,
                                                           const Bytes* payload,
                                                           const std::vector<OverflowRef>& moved) {
  Outcome outcome;
  const Bytes before = record_payload(cursor->value());
  const Bytes after = payload == nullptr ? before : *payload;
  describe_undo(UndoType::kUpdate);
  undo_.previous = header;
  STRATA_RETURN_IF_ERROR(list_freed(before, payload, moved));
  if (payload == nullptr) undo_.previous.flags |= kNextIsDelete;
  set_payload_difference(&undo_, before, after);
  const size_t value_bytes = kRecordHeaderBytes + after.size();
  if (!can_write(cursor->fits_replace(value_bytes), value_bytes, &outcome)) return outcome;
  if (payload == nullptr) {
    STRATA_RETURN_IF_ERROR(patch_header(mtr, cursor, kDeleted));
  } else {
    STRATA_RETURN_IF_ERROR(add_undo(mtr, 0, after));
    cursor->replace(value_);
  }
  return outcome;
}

// A settled record grows by the rest of its header.
Status RecordChange::patch_header(Mtr* mtr, TreeCursor* cursor, uint8_t flags) {
  const bool settled = is_settled(cursor->value());
  const Bytes payload = settled ? record_payload(cursor->value()) : Bytes();
  STRATA_RETURN_IF_ERROR(add_undo(mtr, flags, payload));
  if (settled)
    cursor->replace(value_);
  else
    cursor->patch(0, value_);
  return ok_status();
}

Status RecordChange::lock_exclusive(std::string* payload, bool* fresh) {
  *fresh = false;
  if (trx_->held.size() < context_->unwritten_locks_max) return lock_in_memory(payload, fresh);
  const bool had = !trx_->id.is_zero() && conflicts_.holder_in_memory(key_) == trx_->id;
  return had ? lock_in_memory(payload, fresh) : lock_in_record(payload, fresh);
}

Status RecordChange::lock_in_memory(std::string* payload, bool* fresh) {
  if (trx_->must_rollback) return error_deadlock();
  STRATA_RETURN_IF_ERROR(context_->trxs->ensure_id(trx_));
  for (;;) {
    queued_ = conflicts_.must_queue(key_);
    StatusOr<Outcome> outcome = Outcome{};
    {
      Mtr mtr(context_->tree.pool, context_->tree.log);
      TreeCursor cursor(&context_->tree, tree_, &mtr);
      outcome = try_lock_in_memory(&cursor, payload, fresh);
    }
    if (!outcome.ok()) return outcome.status();
    if (outcome->next == Next::kDone) break;
    STRATA_RETURN_IF_ERROR(back_off(*outcome));
  }
  conflicts_.took(key_);
  Status alone = conflicts_.wait_for_shared(key_, is_row_);
  if (!alone.ok() && *fresh) {
    *fresh = false;
    context_->trxs->waits()->drop_exclusive(&trx_->held, trx_->id, RowId{tree_.index_id, key_});
  }
  return alone;
}

// Who owns the newest version has the lock already.
StatusOr<RecordChange::Outcome> RecordChange::try_lock_in_memory(TreeCursor* cursor,
                                                                 std::string* payload,
                                                                 bool* fresh) {
  RecordHeader header;
  STRATA_ASSIGN_OR_RETURN(Outcome outcome, find_live(cursor, LatchMode::kShared, &header));
  if (outcome.next != Next::kDone) return outcome;
  if (header.trx_id != trx_->id) {
    const TrxId before = context_->trxs->waits()->add_exclusive(
        &trx_->held, trx_->id, RowId{tree_.index_id, key_}, header.cts);
    if (!before.is_zero() && before != trx_->id)  // under a shared latch we are not alone
      return Outcome{.next = Next::kWait, .other = before, .in_memory = true};
    *fresh = before.is_zero();
  }
  payload->assign(record_payload(cursor->value()));
  return outcome;
}

Status RecordChange::lock_in_record(std::string* payload, bool* fresh) {
  const UndoPtr before = trx_->undo.last;
  const Status locked = run(undo_bytes_max(key_.size(), 0, 0), [&](Mtr* mtr, TreeCursor* cursor) {
    return try_lock_in_record(mtr, cursor, payload);
  });
  *fresh = trx_->undo.last != before;
  return locked;
}

StatusOr<RecordChange::Outcome> RecordChange::try_lock_in_record(Mtr* mtr, TreeCursor* cursor,
                                                                 std::string* payload) {
  RecordHeader header;
  STRATA_ASSIGN_OR_RETURN(Outcome outcome, find_live(cursor, LatchMode::kExclusive, &header));
  if (outcome.next != Next::kDone) return outcome;
  const Bytes now = record_payload(cursor->value());
  if (header.trx_id != trx_->id) {
    describe_undo(UndoType::kUpdate);
    undo_.previous = header;
    set_payload_difference(&undo_, now, now);
    const size_t value_bytes = kRecordHeaderBytes + now.size();
    if (!can_write(cursor->fits_replace(value_bytes), value_bytes, &outcome)) return outcome;
  }
  payload->assign(now);
  if (header.trx_id != trx_->id) {
    STRATA_RETURN_IF_ERROR(patch_header(mtr, cursor, (header.flags | kLockOnly)));
  }
  return outcome;
}

// --- shared lock ---

// Looks, registers, looks again: a writer marks the row first and asks for shared holders then, so
// one of the two sees the other.
Status RecordChange::lock_shared(std::string* payload, bool* fresh) {
  *fresh = false;
  if (trx_->must_rollback) return error_deadlock();
  STRATA_RETURN_IF_ERROR(context_->trxs->ensure_id(trx_));
  RowWaits* waits = context_->trxs->waits();
  const RowId row{tree_.index_id, key_};
  const bool any_shared = waits->index_has_shared(tree_.index_id);
  const bool protects = any_shared && waits->protects(trx_->id, row);
  const bool held = protects || (any_shared && waits->shared_run_holds(trx_->id, row));
  bool registered = held;
  StaleGuard stale;
  Version copy;
  for (;;) {
    queued_ = !registered && conflicts_.must_queue(key_);
    StatusOr<Outcome> looked = Outcome{};
    {
      Mtr mtr(context_->tree.pool, context_->tree.log);
      TreeCursor cursor(&context_->tree, tree_, &mtr);
      looked = look_shared(&cursor, held, &copy);
    }
    if (looked.ok() && looked->next == Next::kDone) {
      if (registered) break;
      waits->add_shared(trx_->id, row);
      registered = true;
      continue;
    }
    if (looked.ok() && looked->next == Next::kLookAgain) {  // a writer waits for us to end
      const RecordHeader newest = copy.header;
      WalkScratch scratch;
      STRATA_ASSIGN_OR_RETURN(
          const Walk walk, walk_past_writer(context_, newest.trx_id, tree_, key_, &copy, &scratch));
      if (walk == Walk::kFound) break;
      if (walk == Walk::kAbsent && protects) return error_not_found();
      if (walk == Walk::kAbsent) {  // a new row: a run keeps nobody from inserting (L20)
        STRATA_RETURN_IF_ERROR(back_off(Outcome{.next = Next::kWait, .other = looked->other}));
        continue;
      }
      STRATA_RETURN_IF_ERROR(stale.check(tree_, newest));
      continue;
    }
    if (registered && !held) {
      waits->drop_shared(trx_->id, row);
      registered = false;
    }
    if (!looked.ok()) return looked.status();
    STRATA_RETURN_IF_ERROR(back_off(*looked));
  }
  *fresh = registered && !held;
  conflicts_.give_turn_back();  // the next in the queue may want a shared lock, too
  payload->swap(copy.payload);
  return ok_status();
}

StatusOr<RecordChange::Outcome> RecordChange::look_shared(TreeCursor* cursor, bool held,
                                                          Version* copy) {
  Outcome outcome;
  STRATA_RETURN_IF_ERROR(seek_row(cursor, LatchMode::kShared));
  if (!cursor->equals(key_)) return error_not_found();
  copy_version(cursor->value(), copy);
  const bool free = is_free(&copy->header, &outcome);
  if (free && copy->header.deleted()) return error_not_found();
  if (!free && held && outcome.next == Next::kWait && !outcome.other.is_zero()) {
    if (!outcome.in_memory) return Outcome{.next = Next::kLookAgain, .other = outcome.other};
    if (copy->header.deleted()) return error_not_found();
    return Outcome{};  // a locker waits for us to end, and has written nothing
  }
  return outcome;
}

}  // namespace row_internal

using row_internal::RecordChange;

Status insert_record(RowContext* context, Trx* trx, TreeId tree, Bytes key, Bytes payload,
                     size_t unique_bytes, const SlotRaise* raise, Duplicate* duplicate) {
  const InterruptScope scope(&trx->interrupt);
  return RecordChange(context, trx, tree, key).insert(payload, unique_bytes, raise, duplicate);
}

Status update_record(RowContext* context, Trx* trx, TreeId tree, Bytes key, Bytes new_payload) {
  const InterruptScope scope(&trx->interrupt);
  return RecordChange(context, trx, tree, key).update(new_payload);
}

Status delete_record(RowContext* context, Trx* trx, TreeId tree, Bytes key,
                     const std::vector<OverflowRef>& moved) {
  const InterruptScope scope(&trx->interrupt);
  return RecordChange(context, trx, tree, key).erase(moved);
}

Status lock_record(RowContext* context, Trx* trx, TreeId tree, Bytes key, RowLock mode,
                   std::string* payload, bool* fresh) {
  const InterruptScope scope(&trx->interrupt);
  RecordChange change(context, trx, tree, key);
  bool ignored = false;
  if (fresh == nullptr) fresh = &ignored;
  switch (mode) {
    case RowLock::kNone:
      return read_record(context, trx, tree, key, payload);
    case RowLock::kShared:
      return change.lock_shared(payload, fresh);
    case RowLock::kExclusive:
      return change.lock_exclusive(payload, fresh);
  }
  return error_invalid_argument("unknown lock mode");
}

}  // namespace strata
