// Reading a table through one of its indexes.
#include "base/assert.h"
#include "engine/internal/entry_payload.h"
#include "engine/internal/kernel_impl.h"

namespace strata::engine {

struct TableCursor::Impl {
  Session* session = nullptr;
  TableRef table;
  uint32_t index = 0;
  LockMode lock = LockMode::kNone;
  bool skip_locked = false;
  bool protects = false;  // whatever the isolation level
  bool dirty = false;     // likewise
  bool follows = false;   // foreign keys: whatever the view
  RowCursor cursor;
  // Instead of `cursor` where reads must stay repeatable for good (SERIALIZABLE).
  std::unique_ptr<RangeCursor> range;
  bool protecting = false;
  std::string bound_low;
  std::string bound_high;
  std::string point_key;  // get(): the row's key, no cursor involved
  bool point = false;
  bool fetched = false;
  std::string payload;  // of the fetched row when it is not the cursor's own
  std::vector<OverflowRef> refs;
  Bytes inline_bytes;

  Impl(Session* s, TableRef t, uint32_t i)
      : session(s),
        table(std::move(t)),
        index(i),
        cursor(&s->impl_->kernel->row, tree_of(*table, i)) {
    if (i != 0) cursor.set_base_row({clustered(), &clustered_key_of});
  }

  [[nodiscard]] Trx* trx() const { return session->impl_->trx.get(); }
  [[nodiscard]] RowContext* context() const { return &session->impl_->kernel->row; }
  [[nodiscard]] TreeId clustered() const { return tree_of(*table, 0); }

  // RW11: rows of a forward scan that are locked, and all kept. Rows that a change of another one
  // may reach (FK4) are not ours to keep for later.
  [[nodiscard]] bool locks_ahead() const noexcept {
    if (follows) return false;
    const TableReferences* const references = table->references();
    if (references != nullptr && references->may_be_cascaded_to && lock == LockMode::kExclusive)
      return false;
    return index == 0 && lock != LockMode::kNone && !skip_locked &&
           session->impl_->isolation == Isolation::kRepeatableRead;
  }
  void give_back() noexcept {
    if (cursor.locked()) cursor.give_back(trx());
  }

  StatusOr<RowCursor::Read> begin_read() {
    STRATA_RETURN_IF_ERROR(session->impl_->make_later());
    give_back();
    fetched = false;
    fresh = false;
    shown = false;
    show_again = false;
    entry_now.clear();
    point = false;
    note_view();
    protecting = protects_ranges();
    if (protecting) prepare_range();
    const bool ahead = locks_ahead();
    cursor.set_lock_ahead(ahead, lock == LockMode::kShared);
    if (reads_dirty()) return RowCursor::Read::kDirty;
    if (lock == LockMode::kNone) STRATA_RETURN_IF_ERROR(session->open_view());
    if (!follows && is_older_than_table()) return error_definition_changed();
    if (ahead) STRATA_RETURN_IF_ERROR(context()->trxs->ensure_id(trx()));
    return lock == LockMode::kNone ? RowCursor::Read::kConsistent : RowCursor::Read::kLatest;
  }

  // K13. A snapshot that was whole when it was taken stays so, whoever writes elsewhere later: what
  // follows the first read of a consistent one need not ask again.
  [[nodiscard]] Status answer(Status read) const {
    return session->impl_->kernel->answer(std::move(read));
  }
  [[nodiscard]] Status answer_latest(Status read) const {
    return lock == LockMode::kNone && !reads_dirty() ? read : answer(std::move(read));
  }

  // E6
  [[nodiscard]] bool is_older_than_table() const noexcept {
    return trx()->view.open && trx()->view.snapshot.value < table->readable_since(index);
  }

  // The cursor's own copy of the row will do for fetch_unlocked(): its writer was decided when it
  // was made, and the view that was open by then still is. So whoever replaces that version commits
  // behind the view's snapshot, and purge leaves its outside values alone.
  [[nodiscard]] bool has_committed_version() const {
    return !moved_at.is_zero() && trx()->view.open && trx()->view.snapshot == moved_at &&
           !cursor.undecided();
  }
  void note_view() noexcept { moved_at = trx()->view.open ? trx()->view.snapshot : Cts{}; }

  [[nodiscard]] bool reads_dirty() const {
    return lock == LockMode::kNone &&
           (dirty || session->impl_->isolation == Isolation::kReadUncommitted);
  }
  [[nodiscard]] bool protects_ranges() const {
    return lock != LockMode::kNone && !skip_locked &&
           (protects || session->impl_->isolation == Isolation::kSerializable);
  }
  void prepare_range() {
    if (range == nullptr) range = std::make_unique<RangeCursor>(context(), tree_of(*table, index));
    range->set_bounds(bound_low, bound_high);
    // The range itself locks the rows of a clustered scan. Otherwise the row comes first, so that
    // its owner can change its entries while we wait.
    range->set_records_later(index != 0 || lock == LockMode::kExclusive);
  }
  [[nodiscard]] bool cursor_valid() const { return protecting ? range->valid() : cursor.valid(); }
  [[nodiscard]] Bytes cursor_key() const { return protecting ? range->key() : cursor.key(); }
  [[nodiscard]] Bytes cursor_payload() const {
    if (!entry_now.empty() && !show_again) return entry_now;
    return protecting ? range->payload() : cursor.payload();
  }

  [[nodiscard]] Bytes clustered_key() const {
    if (point) return point_key;
    return index == 0 ? cursor_key() : clustered_key_of(cursor_key(), cursor_payload());
  }

  Status use(Bytes row_payload) {
    fetched = true;
    return decode_payload(row_payload, &refs, &inline_bytes);
  }

  // Locks the row; *gone when it does not exist any more or another index position led here
  // wrongly.
  Status fetch_locked(Bytes key, bool* gone) {
    const uint64_t timeout = trx()->lock_wait_timeout_us;
    if (skip_locked) trx()->lock_wait_timeout_us = 0;
    const RowLock mode = lock == LockMode::kShared ? RowLock::kShared : RowLock::kExclusive;
    const UndoPtr before = trx()->undo.last;
    const Status locked = lock_record(context(), trx(), clustered(), key, mode, &payload, &fresh);
    trx()->lock_wait_timeout_us = timeout;
    undo_before = before;
    undo_after = trx()->undo.last;
    *gone = is_not_found(locked);
    if (*gone) return ok_status();
    if (skip_locked && is_lock_wait_timeout(locked)) {
      // Holders of shared locks are noticed after a record was marked.
      *gone = true;
      if (trx()->undo.last == before) return ok_status();
      return rollback_to(context(), trx(), before);
    }
    STRATA_RETURN_IF_ERROR(locked);
    if (protecting && mode == RowLock::kExclusive) protect_row(key);
    STRATA_ASSERT(!protecting || range != nullptr);
    if (protecting && !point) range->took();
    if (index != 0 && !point) {
      // Holding the row nobody else can change its entries: look whether this one still belongs to
      // it.
      std::string entry;
      const Status still = protecting
                               ? read_dirty(context(), tree_of(*table, index), cursor_key(), &entry)
                               : cursor.look_again(&entry);
      *gone = is_not_found(still);
      if (*gone) return ok_status();
      STRATA_RETURN_IF_ERROR(still);
      if (Bytes(entry) != cursor_payload()) {
        // The caller may have judged by what the entry said before: the next move shows it again.
        entry_now.swap(entry);
        show_again = true;
        *gone = true;
        return ok_status();
      }
    }
    return use(payload);
  }

  // A rollback to a savepoint takes the exclusive lock away, but not what was read.
  void protect_row(Bytes key) {
    std::string behind(key);
    behind.push_back('\0');
    RowWaits* waits = context()->trxs->waits();
    const KeyRange row{key, behind, false};
    waits->add_range(trx()->id, clustered().index_id, row);
    waits->settle_range(trx()->id, clustered().index_id, row);
  }

  Status fetch(bool* gone) {
    *gone = false;
    if (fetched) return ok_status();
    STRATA_ASSERT(!point && cursor_valid());
    fresh = shown = false;
    if (protecting && index == 0 && lock == LockMode::kShared) return use(range->payload());
    // Others' shared locks: whoever holds a row exclusively waits for them.
    if (lock != LockMode::kNone && !protecting && cursor.locked() && !trx()->must_rollback &&
        (lock == LockMode::kShared ||
         !context()->trxs->waits()->index_has_shared(clustered().index_id))) {
      cursor.took();
      return use(cursor.payload());
    }
    if (lock != LockMode::kNone) {
      cursor.took();
      key_copy.assign(clustered_key());
      return fetch_locked(key_copy, gone);
    }
    if (index == 0) return use(cursor.payload());
    if (reads_dirty()) return fetch_dirty(clustered_key(), gone);
    return fetch_consistent(clustered_key(), gone);
  }

  Status fetch_consistent(Bytes key, bool* gone) {
    return use_found(read_record(context(), trx(), clustered(), key, &payload), gone);
  }
  Status fetch_dirty(Bytes key, bool* gone) {
    return use_found(read_dirty(context(), clustered(), key, &payload), gone);
  }
  Status use_found(const Status& read, bool* gone) {
    *gone = is_not_found(read);
    if (*gone) return ok_status();
    STRATA_RETURN_IF_ERROR(read);
    return use(payload);
  }

  // Nothing keeps the outside values of a version that was read dirty. Whoever takes them away has
  // changed the row before.
  StatusOr<bool> changed_since_fetch() {
    std::string latest;
    std::vector<OverflowRef> latest_refs;
    Bytes rest;
    const Status read = read_dirty(context(), clustered(), clustered_key(), &latest);
    if (is_not_found(read)) return true;
    STRATA_RETURN_IF_ERROR(read);
    STRATA_RETURN_IF_ERROR(decode_payload(latest, &latest_refs, &rest));
    return latest_refs != refs;
  }

  // A point read that found nothing: the gap must stay. *gone = false: there is a row by now.
  Status protect_gap(bool* gone) {
    std::string behind(point_key);
    behind.push_back('\0');
    STRATA_ASSERT(point && protecting && index == 0);
    range->set_bounds(point_key, behind);
    range->set_records_later(false);
    STRATA_RETURN_IF_ERROR(range->seek(trx(), point_key));
    *gone = !range->valid();
    return ok_status();
  }

  Status move(bool forward) {
    STRATA_ASSERT(!point);
    // E21: a scan may leave its own changes behind.
    const bool own_scan = forward && lock == LockMode::kExclusive && cursor.locked();
    if (!own_scan) STRATA_RETURN_IF_ERROR(session->impl_->make_later());
    fetched = fresh = shown = false;
    if (show_again) {
      show_again = false;
      return ok_status();
    }
    entry_now.clear();
    note_view();
    if (protecting) return forward ? range->next() : range->prev();
    return forward ? cursor.next() : cursor.prev();
  }

  std::string key_copy;
  std::string entry_now;  // what the entry says by now, if that differs from what the cursor has
  bool show_again = false;
  // Gives the lock of the last fetch() back if that was the first one and nothing has been changed
  // since.
  Status unlock() {
    if (!fetched || !fresh) return ok_status();
    fresh = false;
    if (lock == LockMode::kShared) {
      const std::string key(clustered_key());
      context()->trxs->waits()->drop_shared(trx()->id, RowId{clustered().index_id, key});
      return ok_status();
    }
    if (trx()->undo.last != undo_after) return ok_status();
    if (undo_after != undo_before) return rollback_to(context(), trx(), undo_before);
    const std::string key(clustered_key());
    context()->trxs->waits()->drop_exclusive(&trx()->held, trx()->id,
                                             RowId{clustered().index_id, key});
    return ok_status();
  }

  bool fresh = false;  // the last fetch() took a lock that was not held before
  UndoPtr undo_before;
  UndoPtr undo_after;
  bool shown = false;  // fetch_unlocked() found the row
  Cts moved_at;        // snapshot of the view that was open when the cursor moved, or zero
};

TableCursor::TableCursor(Session* session, TableRef table, uint32_t index)
    : impl_(std::make_unique<Impl>(session, std::move(table), index)) {}
TableCursor::~TableCursor() = default;

void TableCursor::set_lock_mode(LockMode mode) noexcept { impl_->lock = mode; }
void TableCursor::set_skip_locked(bool skip) noexcept { impl_->skip_locked = skip; }

void TableCursor::set_reads_dirty(bool dirty) noexcept { impl_->dirty = dirty; }

void TableCursor::set_protects_ranges(bool protects) noexcept { impl_->protects = protects; }

void TableCursor::set_follows_references() noexcept {
  STRATA_ASSERT(impl_->lock != LockMode::kNone);
  impl_->follows = true;
}

void TableCursor::set_bounds(Bytes low, Bytes high) {
  impl_->bound_low.assign(low);
  impl_->bound_high.assign(high);
  if (impl_->range != nullptr) impl_->range->set_bounds(low, high);
  impl_->cursor.set_bounds(low, high);
}

Status TableCursor::seek(Bytes key) {
  STRATA_ASSIGN_OR_RETURN(const RowCursor::Read read, impl_->begin_read());
  if (impl_->protecting) return impl_->answer(impl_->range->seek(impl_->trx(), key));
  return impl_->answer(impl_->cursor.seek(impl_->trx(), read, key));
}

Status TableCursor::seek_before(Bytes key) {
  STRATA_ASSIGN_OR_RETURN(const RowCursor::Read read, impl_->begin_read());
  if (impl_->protecting)
    return impl_->answer(impl_->range->seek_before(impl_->trx(), key, key.empty()));
  return impl_->answer(impl_->cursor.seek_before(impl_->trx(), read, key, key.empty()));
}

Status TableCursor::next() { return impl_->answer_latest(impl_->move(true)); }
Status TableCursor::prev() { return impl_->answer_latest(impl_->move(false)); }

bool TableCursor::valid() const noexcept {
  return impl_->point ? impl_->fetched : impl_->cursor_valid();
}

TableCursor::Entry TableCursor::entry() const noexcept {
  const Impl& c = *impl_;
  if (c.point) return {c.point_key, c.point_key, c.point_key, Bytes()};
  const Bytes whole = c.cursor_key();
  if (c.index == 0) return {whole, whole, whole, Bytes()};
  const Bytes payload = c.cursor_payload();
  const size_t own_bytes = whole.size() - clustered_bytes_of(whole, payload);
  return {whole, whole.substr(0, own_bytes), whole.substr(own_bytes), covering_of(payload)};
}

Bytes TableCursor::clustered_key() const noexcept { return impl_->clustered_key(); }

Status TableCursor::fetch(bool* gone) { return impl_->answer_latest(impl_->fetch(gone)); }

Status TableCursor::lock_entry(bool* gone) {
  Impl& c = *impl_;
  STRATA_ASSERT(c.lock == LockMode::kShared && !c.point && c.cursor_valid());
  c.key_copy.assign(c.cursor_key());
  const Status locked = lock_record(c.context(), c.trx(), tree_of(*c.table, c.index), c.key_copy,
                                    RowLock::kShared, &c.payload);
  *gone = is_not_found(locked);
  if (*gone) return ok_status();
  STRATA_RETURN_IF_ERROR(locked);
  if (c.protecting) c.range->took();
  return c.answer(ok_status());
}

Status TableCursor::fetch_unlocked(bool* gone) {
  Impl& c = *impl_;
  STRATA_ASSERT(!c.point && !c.protecting && c.index == 0);
  *gone = false;
  if (c.has_committed_version()) {
    STRATA_RETURN_IF_ERROR(c.use(c.cursor.payload()));
    c.fetched = false;  // fetch() will lock it
    c.shown = true;
    return ok_status();
  }
  // The view keeps outside values of the version alive.
  STRATA_RETURN_IF_ERROR(c.session->open_view());
  const Status read =
      read_committed(c.context(), c.trx(), c.clustered(), c.cursor.key(), &c.payload);
  *gone = is_not_found(read);
  if (*gone) return ok_status();
  STRATA_RETURN_IF_ERROR(read);
  STRATA_RETURN_IF_ERROR(c.use(c.payload));
  c.fetched = false;  // fetch() will lock it
  c.shown = true;
  return c.answer(ok_status());
}

Status TableCursor::unlock_row() { return impl_->unlock(); }

Bytes TableCursor::row() const noexcept { return impl_->inline_bytes; }
uint32_t TableCursor::external_count() const noexcept {
  return static_cast<uint32_t>(impl_->refs.size());
}

Status TableCursor::external(uint32_t position, std::string* out) {
  Impl& c = *impl_;
  if ((!c.fetched && !c.shown) || position >= c.refs.size())
    return error_invalid_argument("no such outside value");
  const InterruptScope scope(&c.trx()->interrupt);
  const Status read =
      read_overflow(c.context(), SpaceId{c.table->spec().space_id}, c.refs[position], out);
  if (!is_corruption(read) || !c.reads_dirty()) return read;
  STRATA_ASSIGN_OR_RETURN(const bool changed, c.changed_since_fetch());
  return changed ? error_not_found() : read;
}

bool TableCursor::holds_run() const noexcept {
  return impl_->lock == LockMode::kExclusive && impl_->fetched && !impl_->point &&
         !impl_->protecting && impl_->cursor.locked();
}

Status TableCursor::fetch_again(bool* gone) {
  Impl& c = *impl_;
  STRATA_ASSERT(c.reads_dirty());
  c.key_copy.assign(c.clustered_key());
  return c.answer(c.fetch_dirty(c.key_copy, gone));
}

Status TableCursor::get(Bytes clustered_key, bool* gone) {
  Impl& c = *impl_;
  STRATA_ASSIGN_OR_RETURN(const RowCursor::Read read, c.begin_read());
  c.point = true;
  c.point_key.assign(clustered_key);
  *gone = false;
  if (c.lock != LockMode::kNone) {
    STRATA_RETURN_IF_ERROR(c.fetch_locked(c.point_key, gone));
    if (!*gone || !c.protecting || c.index != 0) return c.answer(ok_status());
    STRATA_RETURN_IF_ERROR(c.protect_gap(gone));
    return c.answer(*gone ? ok_status() : c.fetch_locked(c.point_key, gone));
  }
  return c.answer(read == RowCursor::Read::kDirty ? c.fetch_dirty(c.point_key, gone)
                                                  : c.fetch_consistent(c.point_key, gone));
}

Status TableCursor::show(Bytes clustered_key, Bytes payload) {
  Impl& c = *impl_;
  STRATA_RETURN_IF_ERROR(c.begin_read().status());
  c.point = true;
  c.point_key.assign(clustered_key);
  c.payload.assign(payload);
  return c.use(c.payload);
}

void TableCursor::reset() noexcept {
  Impl& c = *impl_;
  c.give_back();
  c.cursor.reset();
  c.range.reset();
  c.follows = false;
  c.protecting = c.skip_locked = c.point = c.fetched = c.fresh = c.shown = c.show_again = false;
  c.dirty = false;
  c.lock = LockMode::kNone;
  c.moved_at = Cts{};
  c.bound_low.clear();
  c.bound_high.clear();
  c.entry_now.clear();
  c.inline_bytes = Bytes();
  c.refs.clear();
  if (c.payload.capacity() > kMaxRowBytes) c.payload = std::string();
}

void TableCursor::use_in(Session* session) noexcept {
  Impl& c = *impl_;
  if (c.session == session) return;
  reset();
  c.session = session;
}

}  // namespace strata::engine
