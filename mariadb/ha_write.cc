// Writing rows: keys and entries of a row, inserts, updates, deletes, AUTO_INCREMENT.
//
//   HW1  A DELETE or UPDATE of one table changes the rows that its scan holds later, a leaf at a
//        time (engine E21). The server says that it begins and, of a DELETE, that it ends; an
//        UPDATE ends with its scan, so one that stops earlier (LIMIT) changes each row at once. So
//        does a statement that goes on after errors (IGNORE), and one whose AFTER triggers look at
//        the table: those the server does not announce. What is left when the statement ends all
//        the same is made then, or the statement fails (transaction.cc).
#include "mariadb/ha_strata.h"

namespace strata::glue {

Bytes ha_strata::key_of(const EntryPlan& plan, const Buffer& bytes) {
  return bytes.bytes().substr(plan.key, plan.key_bytes);
}
Bytes ha_strata::covering_of(const EntryPlan& plan, const Buffer& bytes) {
  return bytes.bytes().substr(plan.covering, plan.covering_bytes);
}

// The clustered key of a new row; the hidden one is made up.
int ha_strata::make_clustered_key(const uchar* record, Buffer* out) {
  out->clear();
  if (layout_.hidden_key()) {
    store_be64(out->grow(8), table_->next_row_id());
    return 0;
  }
  bool has_null = false;
  layout_.index(0).append_key(record, out, &has_null);
  return out->size() > engine::kMaxKeyLength ? key_too_long() : 0;
}

// Only keys of the first form can be (TL3). The message says which way out there is.
int ha_strata::key_too_long() {
  my_printf_error(ER_TOO_LONG_KEY,
                  "A key of this row is longer than %u bytes. The table was made by an older "
                  "version, which did not store such rows; ALTER TABLE ... FORCE makes it anew",
                  MYF(0), engine::kMaxKeyLength);
  return HA_ERR_GENERIC;
}

void ha_strata::make_entry(size_t index, const uchar* record, size_t clustered_bytes, Buffer* bytes,
                           EntryPlan* plan) {
  IndexLayout& layout = layout_.index(index);
  plan->key = bytes->size();
  layout.append_key(record, bytes, &plan->has_null);
  plan->covering = bytes->size();
  plan->key_bytes = plan->covering - plan->key;
  layout.append_covering(record, bytes);
  if (bytes->size() - plan->key + clustered_bytes > engine::kMaxEntryBytes)
    bytes->shrink(plan->covering);  // TL4
  plan->covering_bytes = bytes->size() - plan->covering;
}

int ha_strata::duplicate(uint32_t kernel_index) {
  duplicate_key_ =
      kernel_index < layout_.index_count() ? layout_.index(kernel_index).server_key : MAX_KEY;
  return HA_ERR_FOUND_DUPP_KEY;
}

// The value of the AUTO_INCREMENT column that the counter must leave behind; 0: none.
uint64_t ha_strata::used_auto_increment(const uchar* record) const {
  Field* const field = table->found_next_number_field;
  if (field == nullptr) return 0;
  const my_ptrdiff_t shift = record - table->record[0];
  field->move_field_offset(shift);
  const longlong value = field->val_int();
  field->move_field_offset(-shift);
  if (value < 0 && (field->flags & UNSIGNED_FLAG) == 0) return 0;
  return static_cast<uint64_t>(value);
}

int ha_strata::write_row(const uchar* record) {
  return guarded([&]() -> int {
    if (table->next_number_field != nullptr && record == table->record[0]) {
      if (const int error = update_auto_increment()) return error;
    }
    if (const int error = make_clustered_key(record, &key_)) return error;
    entries_.clear();
    images_.clear();
    for (size_t i = 1; i < layout_.index_count(); ++i)
      make_entry(i, record, key_.size(), &entries_, &plans_[i]);
    for (size_t i = 1; i < layout_.index_count(); ++i) {
      const EntryPlan& plan = plans_[i];
      if (plan.key_bytes + key_.size() > engine::kMaxKeyLength) return key_too_long();
      images_.push_back({static_cast<uint32_t>(i), key_of(plan, entries_),
                         layout_.index(i).unique && !plan.has_null, covering_of(plan, entries_)});
    }
    StatusOr<EncodedRow> row = row_.encode(record, key_.size());
    if (!row.ok()) return fail(row.status());
    engine::RowImage image;
    image.key = key_.bytes();
    image.inline_bytes = row->inline_bytes;
    image.externals = row->externals;
    image.external_count = row->external_count;
    image.entries = images_.data();
    image.entry_count = static_cast<uint32_t>(images_.size());
    image.auto_increment_used = used_auto_increment(record);
    image.changes_duplicates = changes_duplicates_;
    uint32_t conflict = 0;
    const Status status = session()->insert_row(table_.get(), image, &conflict);
    count_auto_increment_row();
    if (is_duplicate_key(status)) {
      if (duplicate_uses_auto_increment()) raise_auto_increment(image.auto_increment_used);
      return duplicate(conflict);
    }
    if (!status.ok()) return fail(status);
    raise_auto_increment(image.auto_increment_used);
    if (layout_.hidden_key()) row_id_.assign(key_.bytes());
    at_ = nullptr;
    return 0;
  });
}

bool ha_strata::index_may_change(size_t index) const {
  const IndexLayout& layout = const_cast<TableLayout&>(layout_).index(index);
  if (layout.has_virtual) return true;
  return std::any_of(layout.columns.begin(), layout.columns.end(),
                     [&](uint16_t column) { return bitmap_is_set(table->write_set, column); });
}

// The row the server means is the one it read last (H2); after a write it may have to be found
// again.
int ha_strata::find_current_row(const uchar* record) {
  if (at_ != nullptr) return 0;
  if (layout_.hidden_key()) {
    old_key_.clear();
    old_key_.append(row_id_.data(), row_id_.size());
  } else if (const int error = make_clustered_key(record, &old_key_)) {
    return error;
  }
  engine::TableCursor* const cursor = make_cursor(&point_, 0);
  bool gone = false;
  const Status status = cursor->get(old_key_.bytes(), &gone);
  if (!status.ok()) return fail(status);
  if (gone) return HA_ERR_KEY_NOT_FOUND;
  at_ = cursor;
  return 0;
}

// Entries need columns the statement may not have read: they come from the stored row, and so do
// indexed virtual columns, whose expression may give another value by now than the one the entry
// was made of. Then *old_record, and *new_record when there is one, are replaced by completed
// copies of ours: the server goes on using its records, with what they point to.
int ha_strata::complete_index_columns(const uchar** old_record, const uchar** new_record,
                                      bool only_changing) {
  bitmap_clear_all(&known_);
  bool missing = false;
  for (size_t i = 0; i < layout_.index_count(); ++i) {
    if (i > 0 && only_changing && !index_may_change(i)) continue;
    for (const uint16_t column : layout_.index(i).columns) {
      if (bitmap_is_set(table->read_set, column) && table->field[column]->stored_in_db()) continue;
      bitmap_set_bit(&known_, column);
      missing = true;
    }
  }
  if (!missing) return 0;
  const size_t bytes = table->s->reclength;
  old_image_.assign(*old_record, *old_record + bytes);
  *old_record = old_image_.data();
  const Status status = row_.decode(at_->row(), &known_, load_, old_image_.data());
  if (!status.ok()) return fail(status);
  if (new_record == nullptr) return 0;
  new_image_.assign(*new_record, *new_record + bytes);
  *new_record = new_image_.data();
  for (uint index = bitmap_get_first_set(&known_); index != MY_BIT_NONE;
       index = bitmap_get_next_set(&known_, index)) {
    if (bitmap_is_set(table->write_set, index)) continue;
    const Column column = describe_column(table, table->field[index]);
    std::memcpy(new_image_.data() + column.offset, old_image_.data() + column.offset, column.bytes);
    column.set_null(new_image_.data(), column.is_null(old_image_.data()));
  }
  return 0;
}

bool ha_strata::may_change_later() const {
  return statement_lock_ == engine::LockMode::kExclusive && !ha_thd()->lex->ignore;
}

// True: the server does not batch, but goes on as usual.
bool ha_strata::start_bulk_update() {
  changes_later_ = may_change_later() && ha_thd()->lex->unit.lim.get_select_limit() == HA_POS_ERROR;
  return true;
}

bool ha_strata::start_bulk_delete() {
  changes_later_ = may_change_later();
  return false;  // end_bulk_delete() will be called
}

int ha_strata::end_bulk_delete() {
  return guarded([&] {
    changes_later_ = false;
    const Status made = session()->make_later_changes();
    return made.ok() ? 0 : fail(made);
  });
}

bool ha_strata::changes_current_row_later() const noexcept {
  return changes_later_ && at_ == cursor_.get() && cursor_index_ == 0 && at_->holds_run();
}

// The last moment to say of an UPDATE that it did not work.
int ha_strata::at_end_of_scan(int error) {
  if (error != HA_ERR_END_OF_FILE || !changes_later_) return error;
  const Status made = session()->make_later_changes();
  return made.ok() ? error : fail(made);
}

int ha_strata::update_row(const uchar* old_record, const uchar* new_record) {
  return guarded([&]() -> int {
    if (const int error = find_current_row(old_record)) return error;
    old_key_.clear();
    const Bytes found_key = at_->clustered_key();
    old_key_.append(found_key.data(), found_key.size());
    const bool key_may_change = !layout_.hidden_key() && index_may_change(0);
    const uchar* old_image = old_record;
    const uchar* new_image = new_record;
    if (const int error = complete_index_columns(&old_image, &new_image, !key_may_change))
      return error;
    key_.clear();
    if (!key_may_change) {
      key_.append(old_key_.data(), old_key_.size());
    } else if (const int error = make_clustered_key(new_image, &key_)) {
      return error;
    }
    const bool key_changes = key_.bytes() != old_key_.bytes();

    entries_.clear();
    old_entries_.clear();
    images_.clear();
    old_images_.clear();
    for (size_t i = 1; i < layout_.index_count(); ++i) {
      if (!key_changes && !index_may_change(i)) continue;
      make_entry(i, old_image, old_key_.size(), &old_entries_, &old_plans_[i]);
      make_entry(i, new_image, key_.size(), &entries_, &plans_[i]);
    }
    for (size_t i = 1; i < layout_.index_count(); ++i) {
      if (!key_changes && !index_may_change(i)) continue;
      const EntryPlan& plan = plans_[i];
      const Bytes old_entry = key_of(old_plans_[i], old_entries_);
      const Bytes new_entry = key_of(plan, entries_);
      const Bytes covering = covering_of(plan, entries_);
      if (!key_changes && old_entry == new_entry &&
          covering == covering_of(old_plans_[i], old_entries_))
        continue;
      if (plan.key_bytes + key_.size() > engine::kMaxKeyLength) return key_too_long();
      old_images_.push_back({static_cast<uint32_t>(i), old_entry, false, Bytes()});
      images_.push_back({static_cast<uint32_t>(i), new_entry,
                         layout_.index(i).unique && !plan.has_null, covering});
    }

    bitmap_copy(&known_, table->read_set);
    bitmap_union(&known_, table->write_set);
    // As in the entries: what is not written keeps its stored value.
    for (const uint16_t column : layout_.virtual_columns()) {
      if (!bitmap_is_set(table->write_set, column)) bitmap_clear_bit(&known_, column);
    }
    StatusOr<EncodedRow> row =
        row_.encode_update(new_record, key_.size(), at_->row(), &known_, table->write_set, load_);
    if (!row.ok()) return fail(row.status());
    // Nothing to write; the server counts the row as matched, not as changed.
    if (row->unchanged && !key_changes && images_.empty()) return HA_ERR_RECORD_IS_THE_SAME;
    if (changes_current_row_later() && !key_changes && images_.empty() &&
        row->external_count == 0 && at_->external_count() == 0) {
      const Status status =
          session()->update_row_later(table_.get(), key_.bytes(), row->inline_bytes);
      if (!status.ok()) return fail(status);
      at_ = nullptr;
      return 0;
    }
    engine::RowImage image;
    image.key = key_.bytes();
    image.inline_bytes = row->inline_bytes;
    image.externals = row->externals;
    image.external_count = row->external_count;
    image.entries = images_.data();
    image.entry_count = static_cast<uint32_t>(images_.size());
    Field* const counter = table->found_next_number_field;
    if (counter != nullptr && bitmap_is_set(table->write_set, counter->field_index))
      image.auto_increment_used = used_auto_increment(new_record);
    uint32_t conflict = 0;
    const Status status =
        session()->update_row(table_.get(), old_key_.bytes(), image, old_images_.data(),
                              static_cast<uint32_t>(old_images_.size()), &conflict);
    if (is_duplicate_key(status)) return duplicate(conflict);
    if (!status.ok()) return fail(status);
    raise_auto_increment(image.auto_increment_used);
    at_ = nullptr;
    return 0;
  });
}

int ha_strata::delete_row(const uchar* record) {
  return guarded([&]() -> int {
    if (const int error = find_current_row(record)) return error;
    old_key_.clear();
    const Bytes found_key = at_->clustered_key();
    old_key_.append(found_key.data(), found_key.size());
    if (const int error = complete_index_columns(&record, nullptr, false)) return error;
    old_entries_.clear();
    old_images_.clear();
    for (size_t i = 1; i < layout_.index_count(); ++i)
      make_entry(i, record, old_key_.size(), &old_entries_, &old_plans_[i]);
    for (size_t i = 1; i < layout_.index_count(); ++i)
      old_images_.push_back(
          {static_cast<uint32_t>(i), key_of(old_plans_[i], old_entries_), false, Bytes()});
    const auto entry_count = static_cast<uint32_t>(old_images_.size());
    const Status status = changes_current_row_later()
                              ? session()->delete_row_later(table_.get(), old_key_.bytes(),
                                                            old_images_.data(), entry_count)
                              : session()->delete_row(table_.get(), old_key_.bytes(),
                                                      old_images_.data(), entry_count);
    if (!status.ok()) return fail(status);
    at_ = nullptr;
    return 0;
  });
}

// --- AUTO_INCREMENT ---
//
// The values a statement gets, and so the gaps it leaves, are those of InnoDB with
// innodb_autoinc_lock_mode=1: the first value asked for reserves as many as the statement announces
// rows; when explicit values have used up part of them, the next request reserves what is left.

void ha_strata::count_auto_increment_row() noexcept {
  if (table->next_number_field != nullptr && auto_increment_rows_left_ > 0)
    --auto_increment_rows_left_;
}

void ha_strata::raise_auto_increment(uint64_t used) noexcept {
  if (used != 0) table_->raise_auto_increment(used);
}

// Statements that go on after a duplicate do not try its value again.
bool ha_strata::duplicate_uses_auto_increment() const noexcept {
  switch (thd_sql_command(ha_thd())) {
    case SQLCOM_REPLACE:
    case SQLCOM_REPLACE_SELECT:
    case SQLCOM_INSERT_SELECT:
      return table->next_number_field != nullptr;
    default:
      return false;
  }
}

void ha_strata::get_auto_increment(ulonglong offset, ulonglong increment, ulonglong wanted,
                                   ulonglong* first, ulonglong* reserved) {
  if (auto_increment_rows_left_ == 0) auto_increment_rows_left_ = std::max<ulonglong>(wanted, 1);
  *reserved = auto_increment_rows_left_;
  *first = table_->reserve_auto_increment(offset, increment, *reserved,
                                          table->next_number_field->get_max_int_value());
}

}  // namespace strata::glue
