#include "mariadb/row_builder.h"

namespace strata::glue {

void RowBuilder::open(TABLE* table, KeyForm form) {
  table_ = table;
  layout_.open(table, form);
  row_.open(table);
  load_ = [this](uint32_t position, std::string* out) { return at_->external(position, out); };
  entries_.open(layout_.index_count());
  old_entries_.open(layout_.index_count());
  known_storage_.assign(bitmap_buffer_size(table->s->fields) / sizeof(my_bitmap_map) + 1, 0);
  my_bitmap_init(&known_, known_storage_.data(), table->s->fields);
}

std::vector<ScanIndex> RowBuilder::scan_indexes() {
  const IndexLayout& clustered = layout_.index(0);
  std::vector<ScanIndex> out;
  for (size_t i = 0; i < layout_.index_count(); ++i) {
    const IndexLayout& index = layout_.index(i);
    out.push_back({.most_key = index.most_key,
                   .most_clustered_key = clustered.most_key,
                   .unique = index.unique,
                   .may_be_cut = index.may_be_cut,
                   .clustered_may_be_cut = clustered.may_be_cut});
  }
  return out;
}

// --- keys ---

Status RowBuilder::too_long() {
  too_long_ = true;
  return error_invalid_argument();
}

Status RowBuilder::clustered_key_of(const uchar* record, Bytes* key) {
  too_long_ = false;
  key_.clear();
  bool has_null = false;
  layout_.index(0).append_key(record, &key_, &has_null);
  *key = key_.bytes();
  return key->size() > engine::kMaxKeyLength ? too_long() : ok_status();
}

void RowBuilder::make_entry(size_t index, const uchar* record, size_t clustered_bytes,
                            EntryList* entries) {
  IndexLayout& layout = layout_.index(index);
  bool has_null = false;
  entries->begin(index);
  layout.append_key(record, entries->bytes(), &has_null);
  entries->end_key(index, has_null);
  layout.append_covering(record, entries->bytes());
  entries->end_covering(index, clustered_bytes);
}

bool RowBuilder::may_change(size_t index) {
  const IndexLayout& layout = layout_.index(index);
  if (layout.has_virtual) return true;
  return std::any_of(layout.columns.begin(), layout.columns.end(),
                     [&](uint16_t column) { return bitmap_is_set(table_->write_set, column); });
}

// --- reading ---

// A column that is to be written counts although the server does not ask for it: the parameter
// value IGNORE lets it keep what stands in the record. So do those of the clustered key: the row of
// a table that joins as a constant is read before the server asks for what position() needs.
const MY_BITMAP* RowBuilder::read_and_written() {
  const auto& key = layout_.index(0).columns;
  const bool named = layout_.hidden_key() || std::all_of(key.begin(), key.end(), [&](uint16_t c) {
                       return bitmap_is_set(table_->read_set, c);
                     });
  if (named && bitmap_is_subset(table_->write_set, table_->read_set)) return table_->read_set;
  bitmap_copy(&known_, table_->read_set);
  bitmap_union(&known_, table_->write_set);
  if (!named) add_columns_of(0);
  return &known_;
}

void RowBuilder::add_columns_of(uint32_t index) {
  for (const uint16_t column : layout_.index(index).columns) bitmap_set_bit(&known_, column);
}

const MY_BITMAP* RowBuilder::columns_of_entry(bool to_change, uint32_t index) {
  const MY_BITMAP* const wanted = wanted_columns(to_change);
  if (wanted != &known_) bitmap_copy(&known_, wanted);
  add_columns_of(0);
  add_columns_of(index);
  return &known_;
}

// --- whole keys ---

Status RowBuilder::whole_key(engine::TableCursor* cursor, uint32_t index, std::string* whole,
                             bool* gone) {
  bitmap_clear_all(&known_);
  add_columns_of(0);
  add_columns_of(index);
  whole_record_.resize(table_->s->reclength);
  uchar* const record = whole_record_.data();
  const Status status = decode(cursor, &known_, record);
  *gone = is_not_found(status);  // changed under a dirty read
  if (*gone) return ok_status();
  STRATA_RETURN_IF_ERROR(status);
  whole_key_.clear();
  bool has_null = false;
  layout_.index(index).codec.append(record, &whole_key_, &has_null);
  if (index != 0 && layout_.hidden_key()) {
    const Bytes clustered = cursor->entry().clustered_key;
    whole_key_.append(clustered.data(), clustered.size());
  } else if (index != 0) {
    layout_.index(0).codec.append(record, &whole_key_, &has_null);
  }
  whole->assign(whole_key_.bytes());
  return ok_status();
}

bool RowBuilder::killed() const {
  THD* const thd = table_->in_use != nullptr ? table_->in_use : current_thd;
  return thd_killed(thd) != 0;
}

// --- writing ---

// The value of the AUTO_INCREMENT column that the counter must leave behind; 0: none.
uint64_t RowBuilder::used_auto_increment(const uchar* record) const {
  Field* const field = table_->found_next_number_field;
  if (field == nullptr) return 0;
  const my_ptrdiff_t shift = record - table_->record[0];
  field->move_field_offset(shift);
  const longlong value = field->val_int();
  field->move_field_offset(-shift);
  if (value < 0 && (field->flags & UNSIGNED_FLAG) == 0) return 0;
  return static_cast<uint64_t>(value);
}

Status RowBuilder::build_insert(const uchar* record, engine::Table* table, engine::RowImage* out) {
  too_long_ = false;
  if (layout_.hidden_key()) {
    key_.clear();
    store_be64(key_.grow(8), table->next_row_id());
    out->key = key_.bytes();
  } else {
    STRATA_RETURN_IF_ERROR(clustered_key_of(record, &out->key));
  }
  entries_.clear();
  const size_t indexes = layout_.index_count();
  for (size_t i = 1; i < indexes; ++i) make_entry(i, record, key_.size(), &entries_);
  for (size_t i = 1; i < indexes; ++i) {
    if (entries_.key(i).size() + key_.size() > engine::kMaxKeyLength) return too_long();
    entries_.add(i, layout_.index(i).unique);
  }
  STRATA_ASSIGN_OR_RETURN(const EncodedRow row, row_.encode(record, key_.size()));
  set_row(row, out);
  out->auto_increment_used = used_auto_increment(record);
  return ok_status();
}

void RowBuilder::set_row(const EncodedRow& row, engine::RowImage* out) const {
  out->inline_bytes = row.inline_bytes;
  out->externals = row.externals;
  out->external_count = row.external_count;
  out->entries = entries_.images();
  out->entry_count = entries_.size();
}

// RB4. *old_record, and *new_record when there is one, are replaced by completed copies of ours
// where something is missing: the server goes on using its records, with what they point to.
Status RowBuilder::complete(engine::TableCursor* at, const uchar** old_record,
                            const uchar** new_record, bool only_changing) {
  bitmap_clear_all(&known_);
  bool missing = false;
  for (size_t i = 0; i < layout_.index_count(); ++i) {
    if (i > 0 && only_changing && !may_change(i)) continue;
    for (const uint16_t column : layout_.index(i).columns) {
      if (bitmap_is_set(table_->read_set, column) && table_->field[column]->stored_in_db())
        continue;
      bitmap_set_bit(&known_, column);
      missing = true;
    }
  }
  if (!missing) return ok_status();
  const size_t bytes = table_->s->reclength;
  old_image_.assign(*old_record, *old_record + bytes);
  *old_record = old_image_.data();
  STRATA_RETURN_IF_ERROR(decode(at, &known_, old_image_.data()));
  if (new_record == nullptr) return ok_status();
  new_image_.assign(*new_record, *new_record + bytes);
  *new_record = new_image_.data();
  for (uint index = bitmap_get_first_set(&known_); index != MY_BIT_NONE;
       index = bitmap_get_next_set(&known_, index)) {
    if (bitmap_is_set(table_->write_set, index)) continue;
    const Column column = describe_column(table_, table_->field[index]);
    std::memcpy(new_image_.data() + column.offset, old_image_.data() + column.offset, column.bytes);
    column.set_null(new_image_.data(), column.is_null(old_image_.data()));
  }
  return ok_status();
}

// Entries that stay the same are in neither list, unless the clustered key changes.
Status RowBuilder::make_changed_entries(const uchar* old_image, const uchar* new_image,
                                        bool key_changes) {
  entries_.clear();
  old_entries_.clear();
  const size_t indexes = layout_.index_count();
  for (size_t i = 1; i < indexes; ++i) {
    if (!key_changes && !may_change(i)) continue;
    make_entry(i, old_image, old_key_.size(), &old_entries_);
    make_entry(i, new_image, key_.size(), &entries_);
  }
  for (size_t i = 1; i < indexes; ++i) {
    if (!key_changes && (!may_change(i) || (entries_.key(i) == old_entries_.key(i) &&
                                            entries_.covering(i) == old_entries_.covering(i))))
      continue;
    if (entries_.key(i).size() + key_.size() > engine::kMaxKeyLength) return too_long();
    old_entries_.remove(i);
    entries_.add(i, layout_.index(i).unique);
  }
  return ok_status();
}

// The columns of the new record that are right; as in the entries, a virtual one that is not
// written keeps its stored value.
const MY_BITMAP* RowBuilder::known_columns() {
  bitmap_copy(&known_, table_->read_set);
  bitmap_union(&known_, table_->write_set);
  for (const uint16_t column : layout_.virtual_columns()) {
    if (!bitmap_is_set(table_->write_set, column)) bitmap_clear_bit(&known_, column);
  }
  return &known_;
}

Status RowBuilder::build_update(engine::TableCursor* at, const uchar* old_record,
                                const uchar* new_record, RowUpdate* out) {
  at_ = at;
  too_long_ = false;
  old_key_.assign(at->clustered_key());
  const bool key_may_change = !layout_.hidden_key() && may_change(0);
  const uchar* old_image = old_record;
  const uchar* new_image = new_record;
  STRATA_RETURN_IF_ERROR(complete(at, &old_image, &new_image, !key_may_change));
  if (key_may_change) {
    STRATA_RETURN_IF_ERROR(clustered_key_of(new_image, &out->image.key));
  } else {
    key_.assign(old_key_.bytes());
    out->image.key = key_.bytes();
  }
  const bool key_changes = key_.bytes() != old_key_.bytes();
  STRATA_RETURN_IF_ERROR(make_changed_entries(old_image, new_image, key_changes));
  STRATA_ASSIGN_OR_RETURN(const EncodedRow row,
                          row_.encode_update(new_record, key_.size(), at->row(), known_columns(),
                                             table_->write_set, load_));
  set_row(row, &out->image);
  Field* const counter = table_->found_next_number_field;
  if (counter != nullptr && bitmap_is_set(table_->write_set, counter->field_index))
    out->image.auto_increment_used = used_auto_increment(new_record);
  out->old_key = old_key_.bytes();
  out->old_entries = old_entries_.images();
  out->old_entry_count = old_entries_.size();
  const bool keys_stay = !key_changes && entries_.empty();
  out->unchanged = row.unchanged && keys_stay;
  out->bytes_only = keys_stay && row.external_count == 0;
  return ok_status();
}

Status RowBuilder::build_delete(engine::TableCursor* at, const uchar* record, RowDelete* out) {
  at_ = at;
  old_key_.assign(at->clustered_key());
  STRATA_RETURN_IF_ERROR(complete(at, &record, nullptr, false));
  old_entries_.clear();
  const size_t indexes = layout_.index_count();
  for (size_t i = 1; i < indexes; ++i) make_entry(i, record, old_key_.size(), &old_entries_);
  for (size_t i = 1; i < indexes; ++i) old_entries_.remove(i);
  out->key = old_key_.bytes();
  out->entries = old_entries_.images();
  out->entry_count = old_entries_.size();
  return ok_status();
}

}  // namespace strata::glue
