// Reading a table through one of its indexes.
#include "engine/internal/kernel_impl.h"

namespace strata::engine {

struct TableCursor::Impl {
  Session* session = nullptr;
  TableRef table;
  uint32_t index = 0;
  LockMode lock = LockMode::kNone;
  bool skip_locked = false;
  RowCursor cursor;
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

  StatusOr<RowCursor::Read> begin_read() {
    fetched = false;
    point = false;
    if (lock != LockMode::kNone) return RowCursor::Read::kLatest;
    if (session->impl_->isolation == Isolation::kReadUncommitted) return RowCursor::Read::kDirty;
    STRATA_RETURN_IF_ERROR(session->open_view());
    return RowCursor::Read::kConsistent;
  }

  // payload = encode_payload({}, u16 clustered key bytes | covering)
  static Bytes entry_of(Bytes payload) { return payload.size() >= 3 ? payload.substr(1) : Bytes(); }
  static size_t clustered_bytes_of(Bytes key, Bytes payload) {
    const Bytes entry = entry_of(payload);
    const size_t n = entry.size() >= 2 ? load_u16(entry.data()) : 0;
    return n <= key.size() ? n : 0;
  }
  static Bytes clustered_key_of(Bytes key, Bytes payload) {
    return key.substr(key.size() - clustered_bytes_of(key, payload));
  }
  [[nodiscard]] Bytes entry_bytes() const { return entry_of(cursor.payload()); }
  [[nodiscard]] size_t clustered_bytes() const {
    return clustered_bytes_of(cursor.key(), cursor.payload());
  }
  [[nodiscard]] Bytes clustered_key() const {
    if (point) return point_key;
    return index == 0 ? cursor.key() : clustered_key_of(cursor.key(), cursor.payload());
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
    const Status locked = lock_record(context(), trx(), clustered(), key, mode, &payload);
    trx()->lock_wait_timeout_us = timeout;
    *gone = is_not_found(locked) || (skip_locked && is_lock_wait_timeout(locked));
    if (*gone) return ok_status();
    STRATA_RETURN_IF_ERROR(locked);
    if (index != 0 && !point) {
      // Holding the row nobody else can change its entries: look whether this one still belongs to
      // it.
      std::string entry;
      const Status still = read_dirty(context(), tree_of(*table, index), cursor.key(), &entry);
      *gone = is_not_found(still);
      if (*gone) return ok_status();
      STRATA_RETURN_IF_ERROR(still);
    }
    return use(payload);
  }

  Status fetch(bool* gone) {
    *gone = false;
    if (fetched) return ok_status();
    if (lock != LockMode::kNone) {
      key_copy.assign(clustered_key());
      return fetch_locked(key_copy, gone);
    }
    if (index == 0) return use(cursor.payload());
    const Bytes key = clustered_key();
    const Status read = session->impl_->isolation == Isolation::kReadUncommitted
                            ? read_dirty(context(), clustered(), key, &payload)
                            : read_record(context(), trx(), clustered(), key, &payload);
    *gone = is_not_found(read);
    if (*gone) return ok_status();
    STRATA_RETURN_IF_ERROR(read);
    return use(payload);
  }

  std::string key_copy;
};

TableCursor::TableCursor(Session* session, TableRef table, uint32_t index)
    : impl_(std::make_unique<Impl>(session, std::move(table), index)) {}
TableCursor::~TableCursor() = default;

void TableCursor::set_lock_mode(LockMode mode) noexcept { impl_->lock = mode; }
void TableCursor::set_skip_locked(bool skip) noexcept { impl_->skip_locked = skip; }

Status TableCursor::seek(Bytes key) {
  STRATA_ASSIGN_OR_RETURN(const RowCursor::Read read, impl_->begin_read());
  return impl_->cursor.seek(impl_->trx(), read, key);
}

Status TableCursor::seek_before(Bytes key) {
  STRATA_ASSIGN_OR_RETURN(const RowCursor::Read read, impl_->begin_read());
  return impl_->cursor.seek_before(impl_->trx(), read, key, key.empty());
}

Status TableCursor::next() {
  impl_->fetched = false;
  return impl_->cursor.next();
}

Status TableCursor::prev() {
  impl_->fetched = false;
  return impl_->cursor.prev();
}

bool TableCursor::valid() const noexcept {
  return impl_->point ? impl_->fetched : impl_->cursor.valid();
}

Bytes TableCursor::key() const noexcept {
  const Impl& c = *impl_;
  if (c.point) return c.point_key;
  const Bytes key = c.cursor.key();
  return c.index == 0 ? key : key.substr(0, key.size() - c.clustered_bytes());
}

Bytes TableCursor::clustered_key() const noexcept { return impl_->clustered_key(); }

Bytes TableCursor::covering() const noexcept {
  const Bytes entry = impl_->entry_bytes();
  return entry.size() >= 2 ? entry.substr(2) : Bytes();
}

Status TableCursor::fetch(bool* gone) { return impl_->fetch(gone); }
Bytes TableCursor::row() const noexcept { return impl_->inline_bytes; }
uint32_t TableCursor::external_count() const noexcept {
  return static_cast<uint32_t>(impl_->refs.size());
}

Status TableCursor::external(uint32_t position, std::string* out) {
  Impl& c = *impl_;
  if (!c.fetched || position >= c.refs.size())
    return error_invalid_argument("no such outside value");
  return read_overflow(c.context(), SpaceId{c.table->spec().space_id}, c.refs[position], out);
}

Status TableCursor::get(Bytes clustered_key, bool* gone) {
  Impl& c = *impl_;
  STRATA_ASSIGN_OR_RETURN(const RowCursor::Read read, c.begin_read());
  c.point = true;
  c.point_key.assign(clustered_key);
  *gone = false;
  if (c.lock != LockMode::kNone) return c.fetch_locked(c.point_key, gone);
  const Status status =
      read == RowCursor::Read::kDirty
          ? read_dirty(c.context(), c.clustered(), c.point_key, &c.payload)
          : read_record(c.context(), c.trx(), c.clustered(), c.point_key, &c.payload);
  *gone = is_not_found(status);
  if (*gone) return ok_status();
  STRATA_RETURN_IF_ERROR(status);
  return c.use(c.payload);
}

void TableCursor::reset() noexcept {
  impl_->fetched = false;
  impl_->point = false;
  impl_->inline_bytes = Bytes();
  impl_->refs.clear();
}

}  // namespace strata::engine
