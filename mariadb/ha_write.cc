// Writing rows: inserts, updates, deletes, AUTO_INCREMENT.
//
//   HW1  A DELETE or UPDATE of one table changes the rows that its scan holds later, a leaf at a
//        time (engine E21). The server says that it begins and, of a DELETE, that it ends; an
//        UPDATE ends with its scan, so one that stops earlier (LIMIT) changes each row at once. So
//        does a statement that goes on after errors (IGNORE), and one whose AFTER triggers look at
//        the table: those the server does not announce. What is left when the statement ends all
//        the same is made then, or the statement fails (transaction.cc).
#include "mariadb/ha_strata.h"
#include "mariadb/server_tables.h"

namespace strata::glue {

// Only keys of the first form can be (TL3). The message says which way out there is.
int ha_strata::key_too_long() {
  my_printf_error(ER_TOO_LONG_KEY,
                  "A key of this row is longer than %u bytes. The table was made by an older "
                  "version, which did not store such rows; ALTER TABLE ... FORCE makes it anew",
                  MYF(0), engine::kMaxKeyLength);
  return HA_ERR_GENERIC;
}

int ha_strata::refused(const Status& status) {
  return rows_.key_is_too_long() ? key_too_long() : fail(status);
}

int ha_strata::duplicate(uint32_t kernel_index) {
  TableLayout& layout = rows_.layout();
  duplicate_key_ =
      kernel_index < layout.index_count() ? layout.index(kernel_index).server_key : MAX_KEY;
  return HA_ERR_FOUND_DUPP_KEY;
}

int ha_strata::write_row(const uchar* record) {
  return guarded([&]() -> int {
    if (is_sequence()) {  // SEQ3
      if (const int error = begin_on_table()) return error;
    }
    if (table->next_number_field != nullptr && record == table->record[0]) {
      auto_increment_status_ = ok_status();
      if (const int error = update_auto_increment())
        return auto_increment_status_.ok() ? error : fail(auto_increment_status_);
    }
    engine::RowImage image;
    if (const Status built = rows_.build_insert(record, table_.get(), &image); !built.ok())
      return refused(built);
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
    if (rows_.layout().hidden_key()) scan_.set_hidden_key(image.key);
    scan_.stand_on_no_row();
    return 0;
  });
}

// H2.
int ha_strata::find_current_row(const uchar* record) {
  if (scan_.current() != nullptr) return 0;
  Bytes key = scan_.hidden_key();
  if (!rows_.layout().hidden_key()) {
    if (const Status made = rows_.clustered_key_of(record, &key); !made.ok()) return refused(made);
  }
  engine::TableCursor* cursor = nullptr;
  bool gone = false;
  const Status status = scan_.read_row(terms(), key, &cursor, &gone);
  if (!status.ok()) return fail(status);
  if (gone) return HA_ERR_KEY_NOT_FOUND;
  scan_.stand_on(cursor);
  return 0;
}

bool ha_strata::may_change_later() const { return locks_.to_change() && !ha_thd()->lex->ignore; }

// True: the server does not batch, but goes on as usual.
bool ha_strata::start_bulk_update() {
  scan_.change_later(may_change_later() &&
                     ha_thd()->lex->unit.lim.get_select_limit() == HA_POS_ERROR);
  return true;
}

bool ha_strata::start_bulk_delete() {
  scan_.change_later(may_change_later());
  return false;  // end_bulk_delete() will be called
}

int ha_strata::make_later_changes() {
  const Status made = session()->make_later_changes();
  return made.ok() ? 0 : fail(made);
}

int ha_strata::end_bulk_delete() {
  return guarded([&] {
    scan_.change_later(false);
    return make_later_changes();
  });
}

int ha_strata::update_row(const uchar* old_record, const uchar* new_record) {
  return guarded([&]() -> int {
    if (const int error = find_current_row(old_record)) return error;
    engine::TableCursor* const at = scan_.current();
    RowUpdate update;
    if (const Status built = rows_.build_update(at, old_record, new_record, &update); !built.ok())
      return refused(built);
    // Nothing to write; the server counts the row as matched, not as changed.
    // But where the server changes its own tables it may take that for a failure.
    if (update.unchanged) return is_server_table(table_->spec()) ? 0 : HA_ERR_RECORD_IS_THE_SAME;
    const engine::RowImage& image = update.image;
    if (update.bytes_only && scan_.changes_current_row_later() && at->external_count() == 0) {
      const Status status =
          session()->update_row_later(table_.get(), image.key, image.inline_bytes);
      if (!status.ok()) return fail(status);
      scan_.stand_on_no_row();
      return 0;
    }
    uint32_t conflict = 0;
    const Status status = session()->update_row(
        table_.get(), update.old_key, image, update.old_entries, update.old_entry_count, &conflict);
    if (is_duplicate_key(status)) return duplicate(conflict);
    if (!status.ok()) return fail(status);
    raise_auto_increment(image.auto_increment_used);
    scan_.stand_on_no_row();
    return 0;
  });
}

int ha_strata::delete_row(const uchar* record) {
  return guarded([&]() -> int {
    if (const int error = find_current_row(record)) return error;
    RowDelete row;
    if (const Status built = rows_.build_delete(scan_.current(), record, &row); !built.ok())
      return fail(built);
    const Status status =
        scan_.changes_current_row_later()
            ? session()->delete_row_later(table_.get(), row.key, row.entries, row.entry_count)
            : session()->delete_row(table_.get(), row.key, row.entries, row.entry_count);
    if (!status.ok()) return fail(status);
    scan_.stand_on_no_row();
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
  const StatusOr<uint64_t> taken = table_->reserve_auto_increment(
      offset, increment, *reserved, table->next_number_field->get_max_int_value());
  auto_increment_status_ = taken.status();
  *first = taken.ok() ? *taken : ULONGLONG_MAX;  // which the server takes for a failure
}

}  // namespace strata::glue
